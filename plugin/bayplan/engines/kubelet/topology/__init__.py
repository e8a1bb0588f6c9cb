"""kubelet's Topology Manager: hints, their merge under a policy, and why a pod was refused."""

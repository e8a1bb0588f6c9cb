"""kubelet's Memory Manager, policy Static."""

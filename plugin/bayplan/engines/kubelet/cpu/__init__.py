"""kubelet's CPU Manager, static policy."""

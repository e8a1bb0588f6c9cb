"""kubelet's Device Manager."""

"""kubelet's eviction manager, and what a node keeps from its containers because of it."""

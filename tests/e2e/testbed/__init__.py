"""A multi-NUMA virtual machine with a container runtime, for scenarios that drive real containers."""

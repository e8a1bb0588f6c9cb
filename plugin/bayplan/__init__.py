"""bayplan: NUMA-aligned memory and CPU placement for containers, in the container runtime."""

__version__ = "0.1.0"

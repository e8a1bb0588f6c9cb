"""QoS classes and cgroup values from the API object, as kubelet has them."""

"""What kubelet lays down for a node whichever engine decides: pods and the sums of their resources, QoS classes and
cgroup values, eviction, reserved memory, and the options of its managers as its configuration names them.

Pure, and below the engines. The managers themselves are `bayplan.engines.kubelet`, which is loaded where that
engine is chosen.
"""

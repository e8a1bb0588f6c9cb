"""What kubelet lays down for a node whichever engine decides: pods and the sums of their resources, QoS
classes and cgroup values, eviction, reserved memory, and the options of its managers under the names of its
configuration.

Pure, and below the engines. The managers themselves are `bayplan.engines.kubelet`, which is loaded where that
engine is chosen.

==================  ================================================================================
here                in kubelet (pkg/kubelet)
==================  ================================================================================
pod                 the API object, and k8s.io/component-helpers: sums of requests and limits
qos                 qos, kuberuntime, cm/helpers_linux: class, oom_score_adj, cgroup values
eviction_manager    eviction: thresholds, a look, the next, who
reservation         cm/memorymanager: reservedMemory held against the sums
manager_options     apis/config, cm/cpumanager, cm/topologymanager: policies and their options
==================  ================================================================================

Thresholds of single nodes have no counterpart in kubelet.
"""

"""How many CPUs the containers of a pod get for themselves: the CPU Manager's reading of a pod.

Only whole CPUs of Guaranteed pods count; everything else shares. Which CPUs is not decided here.
"""

from bayplan.kubelet.pod import CPU, ContainerSpec, FeatureGates, PodSpec
from bayplan.kubelet.qos.classes import qos_class
from bayplan.kubelet.resources import guaranteed_alone, has_pod_level
from bayplan.model.decision import QosClass
from bayplan.quantity import MILLI_PER_CPU


def exclusive_cpus(pod: PodSpec, container: ContainerSpec, gates: FeatureGates) -> int:
    """How many CPUs the container gets for itself: those of a Guaranteed pod's container that asks for
    nothing but whole CPUs. 0 means that it shares.

    A pod with pod-level resources is left alone, unless the managers place such pods; then its containers
    must be guaranteed each by itself.
    """
    requested = container.requests.get(CPU, 0)
    if qos_class(pod, gates) is not QosClass.GUARANTEED or requested % MILLI_PER_CPU:
        return 0
    if has_pod_level(pod) and not (gates.manages_pod_level and guaranteed_alone(container)):
        return 0
    return requested // MILLI_PER_CPU


def pod_exclusive_cpus(pod: PodSpec, gates: FeatureGates) -> int:
    """How many CPUs the pod needs at the worst moment of its life: all its containers and sidecars, or one
    init container and the sidecars before it; or what it requests for itself as a whole."""
    if pod.resources is not None and has_pod_level(pod):
        requested = pod.resources.requests.get(CPU, 0)
        usable = (
            gates.manages_pod_level
            and not requested % MILLI_PER_CPU
            and qos_class(pod, gates) is QosClass.GUARANTEED
        )
        return requested // MILLI_PER_CPU if usable else 0
    starting = sidecars = 0
    for init in pod.init_containers:
        cpus = exclusive_cpus(pod, init, gates)
        if init.restartable:
            sidecars += cpus
        else:
            starting = max(starting, sidecars + cpus)
    apps = sum(exclusive_cpus(pod, container, gates) for container in pod.containers)
    return max(starting, sidecars + apps)

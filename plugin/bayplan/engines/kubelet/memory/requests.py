"""What the Memory Manager places: which pods and containers take part, and how much of what they ask for.

Only requests count, and only of memory and huge pages. Amounts are whole bytes, so that kubelet's error about
quantities which are not ("failed to represent quantity as int64") cannot arise here.
"""

from collections.abc import Mapping

from bayplan.kubelet.pod import Amounts, ContainerSpec, FeatureGates, PodSpec
from bayplan.kubelet.qos.classes import qos_class
from bayplan.kubelet.resources import guaranteed_alone, has_pod_level, is_memory
from bayplan.model.claim_parts import sum_of
from bayplan.model.decision import QosClass

Wanted = Mapping[str, int]
"""Bytes wanted, by resource."""


def takes_part(pod: PodSpec, gates: FeatureGates) -> bool:
    """Whether the pod's memory is managed: Guaranteed, and without pod-level resources unless the managers
    can place such pods."""
    if has_pod_level(pod) and not gates.manages_pod_level:
        return False
    return qos_class(pod, gates) is QosClass.GUARANTEED


def placed_as_a_whole(pod: PodSpec, gates: FeatureGates) -> bool:
    """Whether the pod's memory is that of its pod-level resources."""
    return gates.pod_level_resource_managers and has_pod_level(pod)


def container_wants(pod: PodSpec, container: ContainerSpec, gates: FeatureGates) -> Wanted:
    """What a container gets for itself. In a pod with pod-level resources that is nothing, unless the
    container by itself is Guaranteed; it then shares the rest of the pod's memory."""
    if placed_as_a_whole(pod, gates) and not guaranteed_alone(container):
        return {}
    return _memory(container.requests)


def pod_wants(pod: PodSpec, gates: FeatureGates) -> Wanted:
    """What the pod needs at the worst moment of its life, or its pod-level requests.

    As in kubelet, a resource that only init containers request is left out.
    """
    if placed_as_a_whole(pod, gates) and pod.resources is not None:
        return {name: size for name, size in _memory(pod.resources.requests).items() if size > 0}
    peak: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    for init in pod.init_containers:
        for name, size in container_wants(pod, init, gates).items():
            if init.restartable:
                sidecars[name] = sidecars.get(name, 0) + size
            else:
                peak[name] = max(peak.get(name, 0), sidecars.get(name, 0) + size)
    running = sum_of(container_wants(pod, container, gates) for container in pod.containers)
    return {name: max(size + sidecars.get(name, 0), peak.get(name, 0)) for name, size in running.items()}


def _memory(amounts: Amounts) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if is_memory(name)}

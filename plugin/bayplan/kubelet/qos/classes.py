"""QoS class, criticality and oom_score_adj of pods and containers, from the API object as kubelet has it.

The way back, from what a runtime shows, is in `bayplan.model.qos`, where the formula and its clamps are.
"""

from collections.abc import Mapping
from typing import Final

from bayplan.kubelet.pod import (
    CPU,
    Amounts,
    ContainerSpec,
    FeatureGates,
    PodLevelResources,
    PodSpec,
)
from bayplan.kubelet.resources import (
    container_requests,
    has_pod_level,
    pod_level_requests,
)
from bayplan.model.claim_parts import sum_of
from bayplan.model.decision import QosClass
from bayplan.model.machine import MEMORY
from bayplan.model.qos import GUARANTEED_OOM_SCORE_ADJ, oom_score_adj

SYSTEM_CRITICAL_PRIORITY: Final = 2_000_000_000
NODE_CRITICAL_CLASS: Final = "system-node-critical"
CONFIG_SOURCE: Final = "kubernetes.io/config.source"
CONFIG_MIRROR: Final = "kubernetes.io/config.mirror"


def qos_class(pod: PodSpec, gates: FeatureGates) -> QosClass:
    """The pod's class. Only cpu and memory above zero count. Before 1.37 they are summed over the pod, so
    that containers whose requests and limits differ but add up to the same still make a Guaranteed pod."""
    if pod.qos is not None:
        return pod.qos
    by_container = gates.rules.qos_by_container
    if gates.pod_level_resources and pod.resources is not None and (not by_container or has_pod_level(pod)):
        return _class_of(pod.resources)
    if by_container:
        classes = {_class_of(container) for container in pod.all_containers}
        return classes.pop() if len(classes) == 1 else QosClass.BURSTABLE
    requests = sum_of(_counted(container.requests) for container in pod.all_containers)
    limits = sum_of(_counted(container.limits) for container in pod.all_containers)
    return _class(requests, limits, limited=all(_both(container.limits) for container in pod.all_containers))


def is_critical(pod: PodSpec) -> bool:
    """Whether kubelet spares the pod from eviction: static, mirrored, or of a system priority."""
    static = pod.annotations.get(CONFIG_SOURCE, "api") != "api"
    mirrored = CONFIG_MIRROR in pod.annotations
    return static or mirrored or (pod.priority is not None and pod.priority >= SYSTEM_CRITICAL_PRIORITY)


def is_node_critical(pod: PodSpec) -> bool:
    """Whether the node cannot do without the pod: critical, and of the class made for that."""
    return is_critical(pod) and pod.priority_class_name == NODE_CRITICAL_CLASS


def scored_request_bytes(pod: PodSpec, container: ContainerSpec, gates: FeatureGates) -> int:
    """The memory request by which kubelet scores a Burstable container; not always its own.

    A sidecar counts at least as much as the smallest of the pod's containers, because it must not be killed
    before them. What the pod requests beyond its containers' requests is shared out equally, truncated toward
    zero.
    """
    own_bytes = container.requests.get(MEMORY, 0)
    if container.restartable and container in pod.init_containers:
        own_bytes = max(own_bytes, min((app.requests.get(MEMORY, 0) for app in pod.containers), default=0))
    return own_bytes + _share_of_rest_bytes(pod, gates)


def container_oom_score_adj(
    pod: PodSpec, container: ContainerSpec, capacity_bytes: int, gates: FeatureGates
) -> int:
    """Kubelet's oom_score_adj of a container, on a machine with *capacity_bytes* of memory (MemTotal)."""
    if is_node_critical(pod):
        return GUARANTEED_OOM_SCORE_ADJ
    return oom_score_adj(qos_class(pod, gates), scored_request_bytes(pod, container, gates), capacity_bytes)


def _share_of_rest_bytes(pod: PodSpec, gates: FeatureGates) -> int:
    pod_bytes = pod_level_requests(pod, gates).get(MEMORY, 0)
    if not pod_bytes:
        return 0
    rest_bytes = pod_bytes - container_requests(pod).get(MEMORY, 0)
    share_bytes = abs(rest_bytes) // len(pod.all_containers)
    if rest_bytes >= 0:
        return share_bytes
    return -share_bytes if gates.rules.shares_of_rest_below_zero else 0


def _class_of(resources: ContainerSpec | PodLevelResources) -> QosClass:
    """The class that a single set of requests and limits makes."""
    requests, limits = _counted(resources.requests), _counted(resources.limits)
    return _class(requests, limits, limited=_both(limits))


def _class(requests: Amounts, limits: Amounts, *, limited: bool) -> QosClass:
    if not requests and not limits:
        return QosClass.BEST_EFFORT
    return QosClass.GUARANTEED if limited and requests == limits else QosClass.BURSTABLE


def _counted(amounts: Amounts) -> Mapping[str, int]:
    return {name: amounts[name] for name in (CPU, MEMORY) if amounts.get(name, 0) > 0}


def _both(amounts: Amounts) -> bool:
    return len(_counted(amounts)) == len((CPU, MEMORY))

"""QoS class, criticality, oom_score_adj and the values of cgroups of pods and containers, from the API
object as kubelet has it: CPU shares and quota, memory, huge pages, MemoryQoS, swap.

As kubelet does it, including its in-band values: a quota of 0 or -1 means no limit, a memory limit of 0
none. `bayplan.placement.adjustment` decides what this program changes; here is only what kubelet would
write. The way back, from what a runtime shows, is in `bayplan.model.qos`, where the formula and its
clamps are.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from bayplan.kubelet.pod import (
    CPU,
    Amounts,
    ContainerSpec,
    FeatureGates,
    PodLevelResources,
    PodSpec,
    container_requests,
    has_pod_level,
    limited_throughout,
    page_size_bytes,
    pod_level_limits,
    pod_level_requests,
    pod_limits,
    pod_requests,
)
from bayplan.model.claims import sum_of
from bayplan.model.decision import QosClass
from bayplan.model.kubelet_version import KubeletRules
from bayplan.model.machine import MEMORY
from bayplan.model.policy import MemoryQos, MemoryReservationPolicy
from bayplan.model.qos import (
    GUARANTEED_OOM_SCORE_ADJ,
    OOM_GROUP,
    oom_score_adj,
    quota_from_milli,
    shares_from_milli,
)
from bayplan.model.resources import DEFAULT_PERIOD_US, MEMORY_HIGH, MEMORY_LOW, MEMORY_MIN, MIN_SHARES

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


UNLIMITED_QUOTA: Final = -1
UNLIMITED: Final = "max"
PAGE_BYTES: Final = 4096


class NodeSettings(Struct, frozen=True):
    """The node's share of the answer.

    ``capacity_bytes`` is MemTotal, ``allocatable_bytes`` the node's allocatable memory. ``memory_qos`` None
    is the gate MemoryQoS switched off. ``enforce_quota`` is cpuCFSQuota; ``period_us`` is cpuCFSQuotaPeriod,
    by which quotas are computed only with the gate CustomCPUCFSQuotaPeriod (``custom_period``).
    """

    capacity_bytes: int
    allocatable_bytes: int = 0
    cgroup_v2: bool = True
    memory_qos: MemoryQos | None = None
    single_process_oom_kill: bool = False
    enforce_quota: bool = True
    period_us: int = DEFAULT_PERIOD_US
    custom_period: bool = False
    page_bytes: int = PAGE_BYTES
    huge_page_sizes_bytes: tuple[int, ...] = ()

    def quota_us(self, limit_milli: int) -> int:
        """The CFS quota for a CPU limit."""
        return quota_from_milli(limit_milli, self.period_us if self.custom_period else DEFAULT_PERIOD_US)


class ContainerValues(Struct, frozen=True):
    """What kubelet asks the runtime to set for a container. ``cpu_quota_us`` and ``cpu_period_us`` are None
    where kubelet leaves the quota alone; ``hugepage_limits_bytes`` maps page sizes."""

    cpu_shares: int
    cpu_quota_us: int | None
    cpu_period_us: int | None
    memory_limit_bytes: int
    oom_score_adj: int
    hugepage_limits_bytes: Mapping[int, int] = field(default_factory=dict)
    unified: Mapping[str, str] = field(default_factory=dict)


class PodValues(Struct, frozen=True):
    """What kubelet writes into a pod's own cgroup; None where it leaves a file alone."""

    cpu_shares: int
    cpu_quota_us: int | None = None
    cpu_period_us: int | None = None
    memory_limit_bytes: int | None = None
    hugepage_limits_bytes: Mapping[int, int] = field(default_factory=dict)
    unified: Mapping[str, str] = field(default_factory=dict)


def container_values(
    pod: PodSpec,
    container: ContainerSpec,
    node: NodeSettings,
    gates: FeatureGates,
    *,
    exclusive_cpus: bool = False,
) -> ContainerValues:
    """Kubelet's values for one container. A limit that the container lacks is taken from the pod level."""
    level = pod_level_limits(pod, gates)
    cpu_limit_milli = container.limits.get(CPU, 0) or level.get(CPU, 0)
    unified: dict[str, str] = {}
    if node.cgroup_v2 and not node.single_process_oom_kill:
        unified[OOM_GROUP] = "1"
    if node.cgroup_v2 and node.memory_qos is not None:
        unified.update(_container_memory_qos(pod, container, node, node.memory_qos, gates))
    elif node.cgroup_v2 and gates.rules.resets_memory_qos:
        unified[MEMORY_HIGH] = UNLIMITED
    quota_us = node.quota_us(cpu_limit_milli) if node.enforce_quota else None
    if quota_us is not None and exclusive_cpus and gates.no_quota_for_exclusive_cpus:
        quota_us = UNLIMITED_QUOTA
    return ContainerValues(
        cpu_shares=shares_from_milli(container.requests.get(CPU, cpu_limit_milli)),
        cpu_quota_us=quota_us,
        cpu_period_us=_period_us(node) if node.enforce_quota else None,
        memory_limit_bytes=container.limits.get(MEMORY, 0) or level.get(MEMORY, 0),
        oom_score_adj=container_oom_score_adj(pod, container, node.capacity_bytes, gates),
        hugepage_limits_bytes=container_hugepage_limits(pod, container, node.huge_page_sizes_bytes, gates),
        unified=unified,
    )


def container_hugepage_limits(
    pod: PodSpec, container: ContainerSpec, page_sizes_bytes: Sequence[int], gates: FeatureGates
) -> dict[int, int]:
    """Limits in bytes by page size, for every page size of the machine: 0 unless the container, or else the
    pod level, has a limit whose name says that size."""
    wanted = _by_page_size(pod_level_limits(pod, gates)) | _by_page_size(container.limits)
    return {size: wanted.get(size, 0) for size in page_sizes_bytes}


def hugepage_limits(amounts: Amounts) -> dict[int, int]:
    """Huge page amounts by page size; two names of one size (``2Mi``, ``2097152``) add up."""
    limits: dict[int, int] = {}
    for name, amount in amounts.items():
        size = page_size_bytes(name)
        if size is not None:
            limits[size] = limits.get(size, 0) + amount
    return limits


def pod_values(pod: PodSpec, node: NodeSettings, gates: FeatureGates) -> PodValues:
    """Kubelet's values for a pod's cgroup. Limits are written for a Burstable pod only if all of its
    containers, or the pod level, have one."""
    requests, limits = pod_requests(pod, gates), pod_limits(pod, gates)
    level = pod_level_limits(pod, gates) if has_pod_level(pod) else {}
    qos = qos_class(pod, gates)

    def declared(resource: str) -> bool:
        if qos is QosClass.BURSTABLE:
            return limited_throughout(pod, resource, gates) or bool(level.get(resource, 0))
        return qos is QosClass.GUARANTEED

    quota_us = node.quota_us(limits.get(CPU, 0)) if node.enforce_quota else UNLIMITED_QUOTA
    return PodValues(
        cpu_shares=MIN_SHARES if qos is QosClass.BEST_EFFORT else shares_from_milli(requests.get(CPU, 0)),
        cpu_quota_us=quota_us if declared(CPU) else None,
        cpu_period_us=node.period_us if declared(CPU) else None,
        memory_limit_bytes=limits.get(MEMORY, 0) if declared(MEMORY) else None,
        hugepage_limits_bytes=hugepage_limits(requests),
        unified=_as_text(
            memory_protection(node.memory_qos, qos, requests.get(MEMORY, 0))
            | _pod_memory_high(pod, node, node.memory_qos, gates)
        )
        if node.cgroup_v2 and node.memory_qos is not None
        else {},
    )


def _pod_memory_high(
    pod: PodSpec, node: NodeSettings, settings: MemoryQos, gates: FeatureGates
) -> dict[str, int]:
    """memory.high of a pod that has resources as a whole, and a memory limit; none before 1.37."""
    level = has_pod_level(pod) and gates.pod_level_resources and gates.rules.throttles_pods
    factor, limit_bytes = settings.throttling_factor, pod_limits(pod, gates).get(MEMORY, 0)
    declared = limited_throughout(pod, MEMORY, gates) or pod_level_limits(pod, gates).get(MEMORY, 0)
    if not level or factor is None or not limit_bytes or not declared:
        return {}
    request_bytes = pod_requests(pod, gates).get(MEMORY, 0)
    high_bytes = memory_high_bytes(request_bytes, limit_bytes, 0, factor, gates.rules, node.page_bytes)
    return {} if high_bytes is None else {MEMORY_HIGH: high_bytes}


def memory_high_bytes(
    request_bytes: int,
    limit_bytes: int,
    allocatable_bytes: int,
    throttling_factor: float,
    rules: KubeletRules,
    page_bytes: int = PAGE_BYTES,
) -> int | None:
    """memory.high of a container or a pod with MemoryQoS, or None if it gets none.

    It lies *throttling_factor* of the way from the request to the limit (0: none, then to the node's
    allocatable memory), rounded down to whole pages. A container whose request is its limit gets none;
    neither does one without both, before 1.37.
    """
    if request_bytes == limit_bytes and not (request_bytes == 0 and rules.throttles_without_amounts):
        return None
    top_bytes = limit_bytes or allocatable_bytes
    if not top_bytes:
        return None
    raised = math.floor(float(request_bytes) + (float(top_bytes) - float(request_bytes)) * throttling_factor)
    high_bytes = raised // page_bytes * page_bytes
    return high_bytes if high_bytes > request_bytes else None


def memory_protection(settings: MemoryQos, qos: QosClass, request_bytes: int) -> dict[str, int]:
    """The request as memory.min of a Guaranteed or memory.low of any other pod or container, under
    TieredReservation. The class BestEffort has requests where pod-level resources of zero made it so."""
    if settings.reservation is not MemoryReservationPolicy.TIERED or request_bytes <= 0:
        return {}
    return {MEMORY_MIN if qos is QosClass.GUARANTEED else MEMORY_LOW: request_bytes}


def _period_us(node: NodeSettings) -> int:
    return node.period_us if node.custom_period else DEFAULT_PERIOD_US


def _by_page_size(amounts: Amounts) -> dict[int, int]:
    sizes = ((page_size_bytes(name), amount) for name, amount in amounts.items())
    return {size: amount for size, amount in sizes if size is not None}


def _container_memory_qos(
    pod: PodSpec, container: ContainerSpec, node: NodeSettings, settings: MemoryQos, gates: FeatureGates
) -> dict[str, str]:
    request_bytes, limit_bytes = container.requests.get(MEMORY, 0), container.limits.get(MEMORY, 0)
    values = memory_protection(settings, qos_class(pod, gates), request_bytes)
    if not values:
        values = {MEMORY_MIN: 0, MEMORY_LOW: 0}
    throttled_by_pod = (
        gates.rules.throttles_pods and not limit_bytes and pod_level_limits(pod, gates).get(MEMORY, 0)
    )
    if settings.throttling_factor is not None and not throttled_by_pod:
        high_bytes = memory_high_bytes(
            request_bytes,
            limit_bytes,
            node.allocatable_bytes,
            settings.throttling_factor,
            gates.rules,
            node.page_bytes,
        )
        if high_bytes is not None:
            values[MEMORY_HIGH] = high_bytes
    return _as_text(values)


def _as_text(values: Mapping[str, int]) -> dict[str, str]:
    return {file: str(value) for file, value in values.items()}

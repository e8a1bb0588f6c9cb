"""From what a runtime shows to what a container asks for.

The OCI spec has limits, shares and an oom_score_adj, but no requests. This module turns them into a Request
that says, for each number, how it is known.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from bayplan.model.container_names import container_name
from bayplan.model.decision import DeviceHint, Interval, PodTotals, QosClass, QosSource, Request
from bayplan.model.machine import hugepages
from bayplan.model.qos import (
    MEMORY_HIGH,
    MEMORY_LOW,
    MEMORY_MIN,
    cpu_request_milli,
    derive_qos,
    exclusive_cpu_count,
    has_pod_level_resources,
    is_burstable_score,
    milli_from_quota,
    request_from_oom_score_adj,
)
from bayplan.model.wishes import Wishes
from bayplan.model.workload import Container, Pod, Resources
from bayplan.quantity import whole_number

NO_SIGNAL: Final = "no signal"
"""The source of an interval that nothing at all says anything about."""
BY_ANNOTATION: Final = "annotation"
"""The source of a request that the pod's author gives."""

_LIMIT: Final = "limit"
_NO_LIMIT: Final = "no limit"
_NO_WISHES: Final = Wishes()


def derive_request(
    pod: Pod,
    container: Container,
    capacity_bytes: int,
    wishes: Wishes = _NO_WISHES,
    default_limit_bytes: Mapping[str, int] = MappingProxyType({}),
    hints: tuple[DeviceHint, ...] = (),
) -> Request:
    """What *container* asks for, on a machine with *capacity_bytes* of memory; *hints* are the ones of its
    devices that count.

    A memory limit that the spec lacks comes from an annotation (*wishes*), else from the configuration
    (*default_limit_bytes*, by QoS class). It takes no part in finding the class, so that a default never
    turns a Burstable container into a Guaranteed one.
    """
    resources = container.resources
    adjustment = carried_oom_score_adj(container)
    quota_milli = milli_from_quota(resources.cpu_quota_us, resources.cpu_period_us)
    qos, source = derive_qos(pod, resources, adjustment, quota_milli)
    added_bytes = wishes.memory_limit_bytes or default_limit_bytes.get(qos.value)
    limit_bytes = resources.memory_limit_bytes or added_bytes
    pod_level = has_pod_level_resources(qos, source, resources, quota_milli)
    scored = qos is QosClass.BURSTABLE and adjustment is not None and is_burstable_score(adjustment)
    cpu_milli = cpu_request_milli(resources, qos, quota_milli)
    memory = _memory_interval(
        resources, qos, source, adjustment, capacity_bytes, limit_is_request=not pod_level
    )
    if wishes.memory_request_bytes is not None and qos is QosClass.BURSTABLE:
        # A guess from the limit counts for less than what the author says.
        guessed = source is QosSource.INFERRED and memory.source in (_LIMIT, _NO_LIMIT)
        known = Interval(0, limit_bytes or capacity_bytes, memory.source) if guessed else memory
        memory = memory if known.exact else _given(known, wishes.memory_request_bytes)
    hugepages_bytes = _hugepages(resources)
    return Request(
        container_id=container.id,
        pod_id=container.pod_id,
        name=container_name(pod, container),
        qos=qos,
        qos_source=source,
        memory=memory,
        memory_limit_bytes=limit_bytes,
        cpu_milli=cpu_milli,
        exclusive_cpus=exclusive_cpu_count(qos, cpu_milli, pod_level=pod_level),
        hugepages_bytes=hugepages_bytes,
        pinned_cpus=resources.cpuset_cpus,
        pinned_mems=resources.cpuset_mems,
        pod_totals=_pod_totals(pod.resources, qos),
        hints=hints,
        nodes=wishes.nodes,
        tier=wishes.tier,
        memory_policy=wishes.memory_policy,
        opted_out=wishes.opted_out,
        keeps_pages=wishes.keeps_pages,
        strategy=wishes.strategy,
        even_hugepages=wishes.even_hugepages if hugepages_bytes else None,
        pod_level=pod_level,
        score=adjustment if scored else None,
    )


def changed_request(request: Request, spec: Resources, change: Resources) -> Request:
    """What a running container asks for after *change*, its spec being *spec* until now.

    The class stays: Kubernetes keeps it through a resize, and the spec's own oom_score_adj and cpusets may be
    ours by now, so they are not evidence any more. A cpuset in *change* is somebody else's and is respected.
    """
    merged = changed_resources(spec, change)
    limit_bytes, memory, shown = merged.memory_limit_bytes, request.memory, request.spec_memory
    if limit_bytes is not None and limit_bytes != request.memory_limit_bytes:
        memory = (
            Interval(limit_bytes, limit_bytes, _LIMIT)
            if memory.source == _LIMIT and memory.exact
            else up_to(memory, limit_bytes)
        )
        shown = None if shown is None else up_to(shown, limit_bytes)
    quota_milli = milli_from_quota(merged.cpu_quota_us, merged.cpu_period_us)
    cpu_milli = cpu_request_milli(merged, request.qos, quota_milli)
    was_pinned = request.pinned_cpus is not None or request.pinned_mems is not None
    sets_cpus_or_mems = change.cpuset_cpus is not None or change.cpuset_mems is not None
    return replace(
        request,
        memory=memory,
        spec_memory=shown,
        memory_limit_bytes=limit_bytes or request.memory_limit_bytes,
        cpu_milli=cpu_milli,
        exclusive_cpus=exclusive_cpu_count(request.qos, cpu_milli, pod_level=request.pod_level),
        pinned_cpus=change.cpuset_cpus or request.pinned_cpus,
        pinned_mems=change.cpuset_mems or request.pinned_mems,
        pinned_by_update=request.pinned_by_update or (sets_cpus_or_mems and not was_pinned),
    )


def changed_resources(spec: Resources, change: Resources) -> Resources:
    """*spec* with the amounts of *change* where it has some; cpusets are no amounts."""
    return replace(
        spec,
        memory_limit_bytes=change.memory_limit_bytes or spec.memory_limit_bytes,
        cpu_shares=change.cpu_shares or spec.cpu_shares,
        cpu_quota_us=change.cpu_quota_us or spec.cpu_quota_us,
        cpu_period_us=change.cpu_period_us or spec.cpu_period_us,
    )


def carried_oom_score_adj(container: Container) -> int | None:
    """The oom_score_adj that somebody chose for the container, None if nobody did.

    Runtimes write 0 where a CRI client gives none, and kubelet's formula never yields 0, so 0 means none.
    """
    return container.oom_score_adj or None


def _hugepages(resources: Resources) -> dict[str, int]:
    limits = sorted(resources.hugepage_limits_bytes.items())
    return {hugepages(size): amount for size, amount in limits if amount}


def _pod_totals(resources: Resources, qos: QosClass) -> PodTotals | None:
    """The sums of the pod's containers, which kubelet gives to the sandbox."""
    if resources.memory_limit_bytes is None:
        return None
    quota_milli = milli_from_quota(resources.cpu_quota_us, resources.cpu_period_us)
    cpu_milli = cpu_request_milli(resources, qos, quota_milli)
    return PodTotals(resources.memory_limit_bytes, cpu_milli, _hugepages(resources))


def _memory_interval(
    resources: Resources,
    qos: QosClass,
    source: QosSource,
    adjustment: int | None,
    capacity_bytes: int,
    *,
    limit_is_request: bool,
) -> Interval:
    """The container's own memory request. *limit_is_request*: in a Guaranteed pod it is, but for pods with
    pod-level resources."""
    limit_bytes = resources.memory_limit_bytes
    if qos is QosClass.BEST_EFFORT:
        return Interval(0, 0, "QoS class")
    if qos is QosClass.GUARANTEED and limit_bytes is not None and limit_is_request:
        return Interval(limit_bytes, limit_bytes, _LIMIT)
    for key in (MEMORY_LOW, MEMORY_MIN):
        if protected_bytes := whole_number(resources.unified.get(key, "")):
            return Interval(protected_bytes, protected_bytes, key)
    ceiling_bytes = limit_bytes if limit_bytes is not None else capacity_bytes
    if throttled_from_bytes := whole_number(resources.unified.get(MEMORY_HIGH, "")):
        # kubelet writes it only where it is more than the request.
        ceiling_bytes = min(ceiling_bytes, throttled_from_bytes - 1)
    known = None if adjustment is None else request_from_oom_score_adj(adjustment, capacity_bytes)
    if known is not None:
        return up_to(known, ceiling_bytes)
    if source is QosSource.INFERRED:
        request_bytes = limit_bytes or 0
        return Interval(request_bytes, request_bytes, _LIMIT if limit_bytes else _NO_LIMIT)
    by_limit = limit_bytes is not None and not limit_is_request
    return Interval(0, ceiling_bytes, _LIMIT if by_limit else NO_SIGNAL)


def _given(known: Interval, request_bytes: int) -> Interval:
    """The request that the author gives, or what is nearest to it of all that is possible."""
    nearest_bytes = min(max(request_bytes, known.low_bytes), known.high_bytes)
    return Interval(nearest_bytes, nearest_bytes, BY_ANNOTATION)


def up_to(known: Interval, ceiling_bytes: int) -> Interval:
    """The part of an interval that is not above *ceiling_bytes*; a request above that is that."""
    usual_bytes = known.usual_low_bytes
    return replace(
        known,
        low_bytes=min(known.low_bytes, ceiling_bytes),
        high_bytes=min(known.high_bytes, ceiling_bytes),
        usual_low_bytes=None if usual_bytes is None else min(usual_bytes, ceiling_bytes),
    )

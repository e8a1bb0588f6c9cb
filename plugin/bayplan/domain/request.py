"""From what a runtime shows to what a container asks for.

The OCI spec has limits, shares and an oom_score_adj, but no requests. This module turns them into a Request
that says, for each number, how it is known.
"""

from typing import Final

from bayplan.domain.decision import Interval, QosClass, QosSource, Request
from bayplan.domain.qos import derive_qos, milli_from_quota, milli_from_shares, request_from_oom_score_adj
from bayplan.domain.topology import hugepages
from bayplan.domain.workload import Container, Pod, Resources

MILLI: Final = 1000


def container_name(pod: Pod, container: Container) -> str:
    """The name people know a container by: ``namespace/pod/container``; its id where a part is missing."""
    return "/".join(
        (pod.namespace or "-", pod.name or pod.id or container.pod_id, container.name or container.id)
    )


def derive_request(
    pod: Pod, container: Container, capacity_bytes: int, default_limit_bytes: int | None = None
) -> Request:
    """What *container* asks for, on a machine with *capacity_bytes* of memory.

    *default_limit_bytes* is the memory limit that the configuration or an annotation gives to a container
    without one. It takes no part in finding the class, so that a default never turns a Burstable container
    into a Guaranteed one.
    """
    resources = container.resources
    adjustment = carried_oom_score_adj(container)
    qos, source = derive_qos(pod, resources, adjustment)
    limit_bytes = resources.memory_limit_bytes or default_limit_bytes
    cpu_milli = _cpu_milli(resources, qos)
    whole = cpu_milli > 0 and cpu_milli % MILLI == 0 and qos is QosClass.GUARANTEED
    return Request(
        container_id=container.id,
        pod_id=container.pod_id,
        name=container_name(pod, container),
        qos=qos,
        qos_source=source,
        memory=_memory_interval(resources, qos, source, adjustment, capacity_bytes),
        memory_limit_bytes=limit_bytes,
        cpu_milli=cpu_milli,
        exclusive_cpus=cpu_milli // MILLI if whole else 0,
        hugepages_bytes={
            hugepages(size): amount
            for size, amount in sorted(resources.hugepage_limits_bytes.items())
            if amount
        },
        pinned_cpus=resources.cpuset_cpus,
        pinned_mems=resources.cpuset_mems,
    )


def carried_oom_score_adj(container: Container) -> int | None:
    """The oom_score_adj that somebody chose for the container, None if nobody did.

    Runtimes write 0 where a CRI client gives none, and kubelet's formula never yields 0, so 0 means none.
    """
    return container.oom_score_adj or None


def _cpu_milli(resources: Resources, qos: QosClass) -> int:
    """Thousandths of a CPU requested. Guaranteed means request = limit, and the quota is the exact one of
    the two; a spec without shares asks for its limit, as the API server defaults a missing request."""
    quota_milli = milli_from_quota(resources.cpu_quota_us, resources.cpu_period_us)
    if resources.cpu_shares is None or qos is QosClass.GUARANTEED:
        return quota_milli if quota_milli is not None else milli_from_shares(resources.cpu_shares or 0)
    return milli_from_shares(resources.cpu_shares)


def _memory_interval(
    resources: Resources, qos: QosClass, source: QosSource, adjustment: int | None, capacity_bytes: int
) -> Interval:
    limit_bytes = resources.memory_limit_bytes
    if qos is QosClass.BEST_EFFORT:
        return Interval(0, 0, "QoS class")
    if qos is QosClass.GUARANTEED and limit_bytes is not None:
        return Interval(limit_bytes, limit_bytes, "limit")
    for key in ("memory.low", "memory.min"):
        protected = resources.unified.get(key, "")
        if protected.isdigit() and int(protected) > 0:
            return Interval(int(protected), int(protected), key)
    ceiling_bytes = limit_bytes if limit_bytes is not None else capacity_bytes
    known = None if adjustment is None else request_from_oom_score_adj(adjustment, capacity_bytes)
    if known is not None:
        low_bytes = min(known.low_bytes, ceiling_bytes)
        return Interval(low_bytes, max(low_bytes, min(known.high_bytes, ceiling_bytes)), known.source)
    if source is QosSource.INFERRED:
        request_bytes = limit_bytes or 0
        return Interval(request_bytes, request_bytes, "limit" if limit_bytes else "no limit")
    return Interval(0, ceiling_bytes, "no signal")

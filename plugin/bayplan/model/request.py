"""From what a runtime shows to what a container asks for.

The OCI spec has limits, shares and an oom_score_adj, but no requests. This module turns them into a Request
that says, for each number, how it is known. kubelet's formulas, and their inverses, are those of
`bayplan.model.qos`.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from bayplan.model.claims import by_page_size
from bayplan.model.decision import (
    CpuUse,
    CpuWish,
    DeviceHint,
    Interval,
    PodTotals,
    QosClass,
    QosSource,
    Request,
)
from bayplan.model.machine import Machine, hugepages
from bayplan.model.pod_as_a_whole import changed_totals, has_part
from bayplan.model.policy import OutsideRequests
from bayplan.model.qos import (
    BEST_EFFORT_OOM_SCORE_ADJ,
    GUARANTEED_OOM_SCORE_ADJ,
    MIN_QUOTA_US,
    exclusive_cpu_count,
    is_burstable_score,
    qos_from_cgroup_parent,
    request_from_oom_score_adj,
    shares_from_milli,
)
from bayplan.model.resources import (
    MEMORY_HIGH,
    MEMORY_LOW,
    MEMORY_MAX,
    MEMORY_MIN,
    MIN_SHARES,
    NO_RESOURCES,
    RESERVATION,
    UNLIMITED,
    Resources,
    changed_resources,
    limiting,
    most_bytes,
    most_hugepages_bytes,
    most_milli,
    pinned,
)
from bayplan.model.wishes import Wishes
from bayplan.model.workload import Container, Pod, container_name
from bayplan.quantity import MILLI_PER_CPU

NO_SIGNAL: Final = "no signal"
"""The source of an interval of which nothing says anything."""
BY_ANNOTATION: Final = "annotation"
"""The source of a request that the pod's author gives."""

_LIMIT: Final = "limit"
_NO_LIMIT: Final = "no limit"
_NOTHING_RESERVED: Final = Interval(0, 0, RESERVATION)
_NO_WISHES: Final = Wishes()


def derive_request(
    pod: Pod,
    container: Container,
    machine: Machine,
    wishes: Wishes = _NO_WISHES,
    default_limit_bytes: Mapping[str, int] = MappingProxyType({}),
    hints: tuple[DeviceHint, ...] = (),
    outside: OutsideRequests = OutsideRequests.LIMITS,
) -> Request:
    """What *container* asks for on *machine*; *hints* are the ones of its devices that count, *outside* says
    what counts as a request outside of kubelet's tree.

    In kubelet's tree the request is what kubelet wrote, whatever keys of ``unified`` that somebody added make
    of it in the cgroup; cpusets and the limit are what the cgroup has. Outside of it an amount that the
    machine does not exceed is none, and nobody is promised more than half of the machine.

    A memory limit that the spec lacks comes from an annotation (*wishes*), else from the configuration
    (*default_limit_bytes*, by QoS class). It takes no part in finding the class, so that a default never
    turns a Burstable container into a Guaranteed one.
    """
    by_tree = qos_from_cgroup_parent(pod.cgroup_parent)
    kubelets = by_tree is not None
    present = container.resources if kubelets else limiting(container.resources, machine)
    plain = kubelets and present.fields is None
    words = present if plain else _words(present, outside, kubelets=kubelets)
    scored = kubelets or outside is OutsideRequests.LIMITS
    adjustment = (container.oom_score_adj or None) if scored else None  # see `carried_oom_score_adj`
    by_score = None if adjustment is None else request_from_oom_score_adj(adjustment, machine.memory_bytes)
    qos, source = derive_qos(by_tree, words, adjustment)
    added_bytes = wishes.memory_limit_bytes or default_limit_bytes.get(qos.value)
    if added_bytes is not None and present.line(MEMORY_MAX):
        added_bytes = None
    if added_bytes is not None and (present.memory_swap_bytes or 0) > 0:
        # Runtimes refuse a limit above that of memory and swap together.
        added_bytes = min(added_bytes, present.memory_swap_bytes or 0)
    shown_bytes = None if present.memory_limit_bytes == UNLIMITED else present.memory_limit_bytes
    limit_bytes = shown_bytes or added_bytes
    pod_level = kubelets and qos is QosClass.GUARANTEED and _has_pod_level_resources(words)
    has_score = qos is QosClass.BURSTABLE and by_score is not None
    cpu_milli = _cpu_request_milli(words, qos)
    memory = _memory_interval(
        words,
        shown_bytes if words is present else words.limit_bytes,
        qos,
        source,
        by_score,
        machine.memory_bytes,
        limit_is_request=not pod_level,
    )
    if wishes.memory_request_bytes is not None and qos is QosClass.BURSTABLE:
        # A guess from the limit counts for less than what the author says.
        guessed = source is QosSource.INFERRED and memory.source in (_LIMIT, _NO_LIMIT)
        known = Interval(0, limit_bytes or machine.memory_bytes, memory.source) if guessed else memory
        memory = memory if known.exact else _given(known, wishes.memory_request_bytes)
    hugepages_bytes = _hugepages(words.hugepage_limits_bytes) if words.hugepage_limits_bytes else {}
    totals = None if pod.resources is NO_RESOURCES else _pod_totals(pod.resources, qos)
    if not kubelets:
        qos, memory, cpu_milli, hugepages_bytes = _in_part(machine, qos, memory, cpu_milli, words)
        if totals is not None and not _is_part(machine, totals, pod.resources.hugepage_limits_bytes):
            totals = None
    pinned_cpus, pinned_mems = container.resources.cpuset_cpus, container.resources.cpuset_mems
    if pinned_cpus is not None or pinned_mems is not None:
        pinned_cpus, pinned_mems = pinned(container.resources, machine)
    return Request(
        container_id=container.id,
        pod_id=container.pod_id,
        name=container_name(pod, container),
        qos=qos,
        qos_source=source,
        memory=memory,
        memory_limit_bytes=limit_bytes,
        cpu_milli=cpu_milli,
        exclusive_cpus=0
        if wishes.cpus is None and qos is not QosClass.GUARANTEED
        else _own_cpus(wishes.cpus, qos, cpu_milli, pod_level=pod_level),
        cpus=wishes.cpus,
        cpu_kind=wishes.cpu_kind,
        hugepages_bytes=hugepages_bytes,
        pinned_cpus=pinned_cpus,
        pinned_mems=pinned_mems,
        pod_totals=totals,
        hints=hints,
        nodes=wishes.nodes,
        tier=wishes.tier,
        memory_policy=wishes.memory_policy,
        opted_out=wishes.opted_out,
        keeps_pages=wishes.keeps_pages,
        may_move=wishes.may_move,
        strategy=wishes.strategy,
        even_hugepages=wishes.even_hugepages if hugepages_bytes else None,
        pod_level=pod_level,
        score=adjustment if has_score else None,
        given_policy=container.memory_policy,
        cpu_weighed=not kubelets and _is_by_shares(words, qos),
        placement_file=bool(wishes.placement_file) and not wishes.opted_out,
        exec_cpus=None if wishes.opted_out else wishes.exec_cpus,
        partition=wishes.partition and not wishes.opted_out,
        irqs_away=wishes.irqs_away and not wishes.opted_out,
        environment=() if wishes.opted_out else tuple(sorted(wishes.environment)),
    )


def changed_request(
    request: Request,
    spec: Resources,
    change: Resources,
    machine: Machine,
    outside: OutsideRequests = OutsideRequests.LIMITS,
) -> Request:
    """What a running container asks for after *change*, its spec being *spec* until now.

    The class stays: Kubernetes keeps it through a resize, and the spec's own oom_score_adj and cpusets may be
    ours by now, so they are not evidence any more. A cpuset in *change* is somebody else's and is respected.
    """
    kubelets = request.qos_source is QosSource.CGROUP_PARENT
    merged = changed_resources(spec, change)
    present = merged if kubelets else limiting(merged, machine)
    words = _words(present, outside, kubelets=kubelets)
    limit_bytes = present.limit_bytes
    if limit_bytes is None and merged.memory_limit_bytes is None:
        # It has the one that was added to its spec.
        limit_bytes = request.memory_limit_bytes
    memory, shown = _changed_memory(request, limit_bytes, words, kubelets=kubelets), request.spec_memory
    if shown is not None and limit_bytes is not None:
        shown = up_to(shown, limit_bytes)
    cpu_milli = _cpu_request_milli(words, request.qos)
    if not kubelets:
        cpu_milli = min(cpu_milli, most_milli(machine))
        memory = up_to(memory, most_bytes(machine))
    pages_bytes = request.hugepages_bytes
    if change.hugepage_limits_bytes:
        pages_bytes = _changed_hugepages(request, change, machine, outside, kubelets=kubelets)
    was_pinned = request.pinned_cpus is not None or request.pinned_mems is not None
    new_cpus, new_mems = pinned(change, machine)
    return replace(
        request,
        memory=memory,
        spec_memory=shown,
        memory_limit_bytes=limit_bytes,
        cpu_milli=cpu_milli,
        cpu_weighed=not kubelets and _is_by_shares(words, request.qos),
        exclusive_cpus=0
        if request.claimed is not None and request.claimed.cpus
        else _own_cpus(
            request.cpus, request.qos, cpu_milli, pod_level=request.pod_level and not has_part(request)
        ),
        hugepages_bytes=pages_bytes,
        pod_totals=changed_totals(request, limit_bytes, cpu_milli, pages_bytes),
        pinned_cpus=new_cpus or request.pinned_cpus,
        pinned_mems=new_mems or request.pinned_mems,
        pinned_by_update=request.pinned_by_update
        or ((new_cpus is not None or new_mems is not None) and not was_pinned),
    )


def derive_qos(
    by_tree: QosClass | None, resources: Resources, oom_score_adj: int | None
) -> tuple[QosClass, QosSource]:
    """The QoS class of a container's pod, and how it is known.

    Inside kubelet's tree the tree decides (*by_tree*, see `qos_from_cgroup_parent`). Outside of it (plain
    crictl, podman) an oom_score_adj that only kubelet's formula gives decides: -997 Guaranteed, 1000
    BestEffort, 3..999 Burstable. Otherwise the class is inferred, container by container, from what is asked
    for:

    * Guaranteed: a memory limit and a CPU quota, and neither CPU shares that ask for less than the quota nor
      a reservation of less than the limit;
    * BestEffort: no memory limit or reservation, no CPU quota, and no CPU shares above the minimum of 2;
    * Burstable: everything else.
    """
    if by_tree is not None:
        return by_tree, QosSource.CGROUP_PARENT
    if oom_score_adj == GUARANTEED_OOM_SCORE_ADJ:
        return QosClass.GUARANTEED, QosSource.OOM_SCORE_ADJ
    if oom_score_adj == BEST_EFFORT_OOM_SCORE_ADJ:
        return QosClass.BEST_EFFORT, QosSource.OOM_SCORE_ADJ
    if oom_score_adj is not None and is_burstable_score(oom_score_adj):
        return QosClass.BURSTABLE, QosSource.OOM_SCORE_ADJ
    return _infer(resources), QosSource.INFERRED


def _has_pod_level_resources(resources: Resources) -> bool:
    """Whether a Guaranteed pod of kubelet's evidently has resources as a whole (``spec.resources``), by the
    *resources* of one of its containers.

    In every other Guaranteed pod the CPU shares of a container ask for all of its quota, and MemoryQoS
    throttles nothing. Elsewhere it throttles from above the request, and writes memory.min together with
    memory.high; a memory.min alone, or one that does not lie below memory.high, can be anybody's. False says
    nothing: a container that asks for nothing itself gets the pod's limits and the shares that belong to
    them. The shortest quota that the kernel takes stands for several requests, and is no evidence.
    """
    # Throttled from above the limit where only the pod has one.
    if MEMORY_MIN in resources.unified:
        throttled_from_bytes = resources.amount_bytes(MEMORY_HIGH) or 0
        if resources.protected_bytes(MEMORY_MIN) < throttled_from_bytes:
            return True
    quota_us = resources.cpu_quota_us
    if not resources.cpu_shares or quota_us is None or quota_us <= MIN_QUOTA_US:
        return False
    return resources.cpu_shares < shares_from_milli(resources.quota_milli or 0)


def _infer(resources: Resources) -> QosClass:
    shares, limit_bytes, quota_milli = resources.cpu_shares or 0, resources.limit_bytes, resources.quota_milli
    reserved_bytes = _reservation(resources).high_bytes
    if limit_bytes is not None and quota_milli is not None:
        asks_less = 0 < shares < shares_from_milli(quota_milli) or 0 < reserved_bytes < limit_bytes
        return QosClass.BURSTABLE if asks_less else QosClass.GUARANTEED
    if limit_bytes is None and quota_milli is None and shares <= MIN_SHARES and not reserved_bytes:
        return QosClass.BEST_EFFORT
    return QosClass.BURSTABLE


def _reservation(resources: Resources) -> Interval:
    """What *resources* reserve, as a request with its source: what is protected most, 0 for nothing."""
    if not resources.unified and not resources.memory_reservation_bytes:
        return _NOTHING_RESERVED
    low_bytes, min_bytes = (resources.protected_bytes(file) for file in (MEMORY_LOW, MEMORY_MIN))
    source = MEMORY_LOW if resources.line(MEMORY_LOW) else RESERVATION
    return (
        Interval(min_bytes, min_bytes, MEMORY_MIN)
        if min_bytes > low_bytes
        else Interval(low_bytes, low_bytes, source)
    )


def milli_from_shares(shares: int) -> int:
    """Thousandths of a CPU that kubelet asked for when it wrote *shares*; the minimum of 2 means none."""
    return 0 if shares <= MIN_SHARES else math.ceil(shares * 1000 / 1024)


def _cpu_request_milli(resources: Resources, qos: QosClass) -> int:
    """Thousandths of a CPU requested: by shares or by the quota, see `_is_by_shares`."""
    if _is_by_shares(resources, qos):
        return milli_from_shares(resources.cpu_shares or 0)
    return resources.quota_milli or 0


def _is_by_shares(resources: Resources, qos: QosClass) -> bool:
    """Whether its CPU shares say what a container requests. Guaranteed means request = limit, and the quota
    is the exact one of the two; a spec without shares asks for its limit, as the API server defaults a
    missing request."""
    if resources.cpu_shares is None:
        return False
    return qos is not QosClass.GUARANTEED or (resources.cpu_quota_us or 0) <= 0


def _own_cpus(wish: CpuWish | None, qos: QosClass, cpu_milli: int, *, pod_level: bool) -> int:
    """How many CPUs a container gets for itself: by kubelet's rule, unless it wishes otherwise. What asks for
    no whole number gets none."""
    if wish is None or pod_level:
        return exclusive_cpu_count(qos, cpu_milli, pod_level=pod_level)
    if wish.use in (CpuUse.SHARED, CpuUse.POOL):
        return 0
    if wish.count is not None:
        return min(wish.count, cpu_milli // MILLI_PER_CPU)
    return exclusive_cpu_count(QosClass.GUARANTEED, cpu_milli, pod_level=False)


def _changed_memory(
    request: Request, limit_bytes: int | None, words: Resources, *, kubelets: bool
) -> Interval:
    """The memory request of a running container whose limit is *limit_bytes* now."""
    memory, reserved = request.memory, _reservation(words)
    if not kubelets and (reserved.high_bytes or memory.source in (reserved.source, MEMORY_LOW, MEMORY_MIN)):
        memory = reserved
    if limit_bytes == request.memory_limit_bytes:
        return memory
    if memory.source != _LIMIT or not memory.exact:
        return memory if limit_bytes is None else up_to(memory, limit_bytes)
    if limit_bytes is not None:
        return Interval(limit_bytes, limit_bytes, _LIMIT)
    return memory if kubelets else Interval(0, 0, _NO_LIMIT)


def _changed_hugepages(
    request: Request, change: Resources, machine: Machine, outside: OutsideRequests, *, kubelets: bool
) -> dict[str, int]:
    """The huge pages that a running container asks for once those sizes that *change* names are changed: what
    it has through claims is in no update of others'."""
    words = _words(change if kubelets else limiting(change, machine), outside, kubelets=kubelets)
    limits = words.hugepage_limits_bytes
    asked = {size: limits.get(size, 0) for size in change.hugepage_limits_bytes}
    if not kubelets:
        asked = {size: min(amount, most_hugepages_bytes(machine, size)) for size, amount in asked.items()}
    return _hugepages({**by_page_size(request.hugepages_bytes), **asked})


def _words(present: Resources, outside: OutsideRequests, *, kubelets: bool) -> Resources:
    """What of *present* says how much is requested."""
    if kubelets:
        return present if present.fields is None else present.without_unified
    if outside is OutsideRequests.LIMITS:
        return present
    if outside is OutsideRequests.NOTHING:
        return NO_RESOURCES
    return replace(present, memory_limit_bytes=None, cpu_quota_us=None, hugepage_limits_bytes={})


def _is_part(machine: Machine, totals: PodTotals, hugepages_bytes: Mapping[int, int]) -> bool:
    """Whether room for a whole pod outside of kubelet's tree may be kept: half of the machine at most."""
    pages = all(amount <= most_hugepages_bytes(machine, size) for size, amount in hugepages_bytes.items())
    return pages and totals.memory_bytes <= most_bytes(machine) and totals.cpu_milli <= most_milli(machine)


def _in_part(
    machine: Machine, qos: QosClass, memory: Interval, cpu_milli: int, words: Resources
) -> tuple[QosClass, Interval, int, dict[str, int]]:
    """What a container outside of kubelet's tree is promised: half of the machine at most, so that it does
    not keep out kubelet's pods. What is promised less than the limits is not Guaranteed."""
    whole = memory.high_bytes <= most_bytes(machine) and cpu_milli <= most_milli(machine)
    if qos is QosClass.GUARANTEED and not whole:
        qos = QosClass.BURSTABLE
    pages = {
        size: min(amount, most_hugepages_bytes(machine, size))
        for size, amount in words.hugepage_limits_bytes.items()
    }
    return qos, up_to(memory, most_bytes(machine)), min(cpu_milli, most_milli(machine)), _hugepages(pages)


def carried_oom_score_adj(container: Container) -> int | None:
    """The oom_score_adj that was chosen for the container, None if none was.

    Runtimes write 0 where a CRI client gives none, and kubelet's formula never yields 0, so 0 means none.
    """
    return container.oom_score_adj or None


def _hugepages(limits_bytes: Mapping[int, int]) -> dict[str, int]:
    return {hugepages(size): amount for size, amount in sorted(limits_bytes.items()) if amount}


def _pod_totals(resources: Resources, qos: QosClass) -> PodTotals | None:
    """The sums of the pod's containers, which kubelet gives to the sandbox."""
    limit_bytes = resources.limit_bytes
    if limit_bytes is None:
        return None
    cpu_milli = _cpu_request_milli(resources, qos)
    return PodTotals(limit_bytes, cpu_milli, _hugepages(resources.hugepage_limits_bytes))


def _memory_interval(
    resources: Resources,
    limit_bytes: int | None,
    qos: QosClass,
    source: QosSource,
    known: Interval | None,
    capacity_bytes: int,
    *,
    limit_is_request: bool,
) -> Interval:
    """The container's own memory request, where *resources* have the limit *limit_bytes*, and its score says
    what is *known*. *limit_is_request*: in a Guaranteed pod it is, but for pods with
    pod-level resources.

    In kubelet's tree memory.min, memory.low and memory.high are its MemoryQoS' only where they agree with
    what it wrote for the same request elsewhere, oom_score_adj and limit; else they are somebody else's.
    Outside of it, who reserves memory asks for that much.
    """
    outside = source is not QosSource.CGROUP_PARENT
    if qos is QosClass.BEST_EFFORT:
        return Interval(0, 0, "QoS class")
    if qos is QosClass.GUARANTEED and limit_bytes is not None and limit_is_request:
        return Interval(limit_bytes, limit_bytes, _LIMIT)
    ceiling_bytes = limit_bytes if limit_bytes is not None else capacity_bytes
    if outside and (reserved := _reservation(resources)).high_bytes:
        return up_to(reserved, ceiling_bytes)
    if resources.unified or resources.memory_reservation_bytes:
        least_bytes = 0 if known is None else known.likely_low_bytes
        most_bytes = ceiling_bytes if known is None else min(known.high_bytes, ceiling_bytes)
        for file in (MEMORY_LOW, MEMORY_MIN):
            protected_bytes = resources.protected_bytes(file)
            if protected_bytes and least_bytes <= protected_bytes <= most_bytes:
                return Interval(protected_bytes, protected_bytes, file)
        if (throttled_from_bytes := resources.amount_bytes(MEMORY_HIGH) or 0) > least_bytes:
            # kubelet writes it only where it is more than the request.
            ceiling_bytes = min(ceiling_bytes, throttled_from_bytes - 1)
    if known is not None:
        return up_to(known, ceiling_bytes)
    if source is QosSource.INFERRED:
        request_bytes = limit_bytes or 0
        return Interval(request_bytes, request_bytes, _LIMIT if limit_bytes else _NO_LIMIT)
    by_limit = limit_bytes is not None and not limit_is_request
    return Interval(0, ceiling_bytes, _LIMIT if by_limit else NO_SIGNAL)


def _given(known: Interval, request_bytes: int) -> Interval:
    """The author's request, or the possible request that is nearest to it."""
    nearest_bytes = min(max(request_bytes, known.low_bytes), known.high_bytes)
    return Interval(nearest_bytes, nearest_bytes, BY_ANNOTATION)


def up_to(known: Interval, ceiling_bytes: int) -> Interval:
    """The part of an interval that is not above *ceiling_bytes*; if all of it is above, that number."""
    usual_bytes = known.usual_low_bytes
    return replace(
        known,
        low_bytes=min(known.low_bytes, ceiling_bytes),
        high_bytes=min(known.high_bytes, ceiling_bytes),
        usual_low_bytes=None if usual_bytes is None else min(usual_bytes, ceiling_bytes),
    )

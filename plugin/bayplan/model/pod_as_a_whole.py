"""Guaranteed pods with resources as a whole (``spec.resources``): one promise, which their containers share.

Kubernetes gives a container that asks for nothing itself the pod's own limits, so that each container of such
a pod looks as if it asked for all of it. Here is how such pods are told from others, and what each container
holds.

A container with resources of its own has its *part*: so much memory, and so many CPUs to itself if it asks
for a whole number. The others have no part; they run on the rest of the pod's CPUs, and the rest of its
memory is one claim, which the first of them holds (or the first of all, while none of them runs). What a
container leaves goes to the others, and what a new container takes is taken from them, on the same nodes; so
the pod's promise stays whole until its last container is gone. Invariants: the claims of a pod never sum to
more than the pod asks for; a CPU is shared only by the containers of one pod that have no part.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from bayplan.model.claims import Amounts, sum_of
from bayplan.model.decision import (
    Affinity,
    Booking,
    Claim,
    Decision,
    Interval,
    Placement,
    PodTotals,
    QosClass,
    QosSource,
    Request,
)
from bayplan.model.machine import MEMORY, union
from bayplan.model.qos import exclusive_cpu_count
from bayplan.quantity import MILLI_PER_CPU
from bayplan.sets import CpuSet, NodeSet

BY_POD: Final = "pod"
"""The source of the memory request of a container that has no part of its own: nothing, the pod asks."""


def is_member(request: Request) -> bool:
    """Whether *request* is of a container that shares the promise of its pod, or has a part of it."""
    return request.pod_level and request.pod_totals is not None and request.qos is QosClass.GUARANTEED


def shares_promise(decision: Decision) -> bool:
    """Whether *decision* can be about a container that shares the promise of its pod."""
    request = decision.request
    of_pod = request.qos is QosClass.GUARANTEED and request.pod_totals is not None
    placed = isinstance(decision.placement.promise, Claim) and request.pinned_mems is None
    return of_pod and placed and not request.opted_out


def takes_from_pod(request: Request) -> bool:
    """Whether it has no part of its own."""
    return request.memory.source == BY_POD


def shares_cpus(request: Request) -> bool:
    """Whether it runs on the CPUs that its pod has as a whole, but for those that others have alone."""
    return takes_from_pod(request) or not request.exclusive_cpus


def has_part(request: Request) -> bool:
    """Whether the container has a part of its pod's resources: its memory and CPUs are its own, both limited
    below those of the pod."""
    totals = request.pod_totals
    limit_bytes, milli = request.memory_limit_bytes or 0, request.cpu_milli
    if totals is None or takes_from_pod(request):
        return False
    return request.memory.exact and 0 < limit_bytes < totals.memory_bytes and 0 < milli < totals.cpu_milli


def as_member(request: Request) -> Request:
    """*request* of a pod that is known to have resources as a whole. What equals the pod's amounts is the
    pod's."""
    totals = request.pod_totals
    if totals is None or request.qos is not QosClass.GUARANTEED or takes_from_pod(request):
        return replace(request, pod_level=True)
    if not has_part(request):
        memory = Interval(0, 0, BY_POD)
        return replace(request, pod_level=True, memory=memory, exclusive_cpus=0, hugepages_bytes={})
    own_bytes = {
        resource: amount
        for resource, amount in request.hugepages_bytes.items()
        if amount < totals.hugepages_bytes.get(resource, 0)
    }
    count = exclusive_cpu_count(request.qos, request.cpu_milli, pod_level=False)
    return replace(request, pod_level=True, exclusive_cpus=count, hugepages_bytes=own_bytes)


def with_pod_known(request: Request, others: Iterable[Request]) -> Request:
    """*request*, which is new, beside *others* that hold something: as a member where that shows that the pod
    has resources as a whole.

    In every other pod the containers that are there at one time have no more than its sums. A container that
    was resized may have more than the sums of its pod's creation; it has none here.
    """
    totals = request.pod_totals
    of_kubelets = request.qos_source is not QosSource.INFERRED
    if totals is None or request.qos is not QosClass.GUARANTEED or not of_kubelets:
        return request
    alike = [other for other in others if other.pod_id == request.pod_id and other.pod_totals is not None]
    if request.pod_level or any(is_member(other) for other in alike):
        return as_member(request)
    every = [request, *(other for other in alike if other.pod_totals == totals)]
    too_much = (
        sum(one.memory_limit_bytes or 0 for one in every) > totals.memory_bytes
        and sum(one.cpu_milli for one in every) > totals.cpu_milli
    )
    return as_member(request) if too_much and any(map(_takes_all, every)) else request


def _takes_all(request: Request) -> bool:
    totals = request.pod_totals
    if totals is None:
        return False
    return request.memory_limit_bytes == totals.memory_bytes and request.cpu_milli == totals.cpu_milli


def changed_totals(
    before: Request, limit_bytes: int | None, cpu_milli: int, hugepages_bytes: Amounts
) -> PodTotals | None:
    """The pod's sums after a container's limits became these. Those of a container that has no part are the
    pod's; of an ordinary pod the sums are not known any more."""
    totals, had = before.pod_totals, (before.memory_limit_bytes, before.cpu_milli, before.hugepages_bytes)
    if totals is None or (limit_bytes, cpu_milli, hugepages_bytes) == had:
        return totals
    if not is_member(before):
        return None
    if not takes_from_pod(before) or limit_bytes is None:
        return totals
    # A limit of its own beside the pod's CPUs, or the other way round, stays below the pod's.
    whole_bytes = before.memory_limit_bytes == totals.memory_bytes
    milli = cpu_milli if before.cpu_milli == totals.cpu_milli else totals.cpu_milli
    return replace(totals, memory_bytes=limit_bytes if whole_bytes else totals.memory_bytes, cpu_milli=milli)


def part_bytes(request: Request) -> dict[str, int]:
    """What a container has of its pod to itself, by resource."""
    if not has_part(request):
        return {}
    return {MEMORY: request.memory.high_bytes, **request.hugepages_bytes}


def whole_cpus(totals: PodTotals) -> int:
    """How many CPUs a pod has to itself: all, if they are a whole number, else none, as for containers."""
    return 0 if totals.cpu_milli % MILLI_PER_CPU else totals.cpu_milli // MILLI_PER_CPU


def held_cpus(placement: Placement) -> CpuSet:
    """The CPUs that no container of another pod may have because of *placement*: its own, those of its pod as
    a whole, and those of the named pool that it is in. A resource claim holds its CPUs itself."""
    affinity = placement.affinity
    of_pod = affinity is not None and affinity.whole and isinstance(placement.promise, Claim)
    held = placement.exclusive_cpus
    if placement.pool_cpus.mask:
        held |= placement.pool_cpus
    return held | affinity.cpus if of_pod and affinity else held


def cpus_of_parts(group: Mapping[str, Decision]) -> CpuSet:
    """The CPUs that containers of *group* have to themselves."""
    return union(one.placement.exclusive_cpus for one in group.values() if not shares_cpus(one.request))


def whole_affinity(nodes: NodeSet, cpus: CpuSet) -> Affinity:
    """The affinity of the containers of a pod that has its promise on *nodes*, and *cpus* as a whole."""
    return Affinity(nodes, preferred=True, whole=True, mems=nodes, cpus=cpus)


def group_of(decisions: Mapping[str, Decision]) -> tuple[NodeSet, dict[str, Decision]]:
    """The nodes of the pod that *decisions* are of, and the decisions about its containers that are on these
    nodes, by id. They are the nodes of the first container without a part; else those of the first container
    that was placed with all of the pod."""
    promises = {key: one.placement.promise for key, one in sorted(decisions.items())}
    nodes = {key: one.nodes for key, one in promises.items() if isinstance(one, Claim)}
    first = next((key for key in nodes if takes_from_pod(decisions[key].request)), None)
    if first is None:
        first = next((key for key in nodes if decisions[key].placement.is_with_whole_pod), None)
    if first is None:
        return NodeSet(), {}
    where = nodes[first]
    return where, {key: decisions[key] for key, there in nodes.items() if there == where}


def settled(
    decisions: Mapping[str, Decision], added: str | None = None, leaving: Decision | None = None
) -> dict[str, Decision]:
    """The containers of one pod, by id, with what each of them holds of the pod's promise.

    *added* is the one whose decision is new: it says what the pod asks for, and which CPUs it has. *leaving*
    has ended, or was only kept for the pod: what it held on the same nodes goes to the others.
    """
    newest = None if added is None else decisions[added]
    totals = (newest or next(iter(decisions.values()))).request.pod_totals
    members = {
        key: replace(one, request=replace(as_member(one.request), pod_totals=totals))
        for key, one in decisions.items()
    }
    nodes, group = group_of(members)
    if totals is None or not group:
        return dict(decisions)
    gone = leaving if leaving is not None and leaving.placement.promise.nodes == nodes else None
    changed = {**members, **_with_cpus(group, totals, nodes, newest, gone)}
    apart = {key: _with_part_only(one) for key, one in changed.items() if key not in group}
    parts = sum_of(part_bytes(one.request) for one in apart.values())
    return {**changed, **apart, **_with_claims({key: changed[key] for key in group}, totals, parts, gone)}


def _with_part_only(decision: Decision) -> Decision:
    """*decision* about a container that is not on the pod's nodes, which claims nothing but its part."""
    claim, part = decision.placement.promise, part_bytes(decision.request)
    if isinstance(claim, Booking):
        return decision
    amounts, short = (
        {resource: min(amount, part[resource]) for resource, amount in row.items() if part.get(resource)}
        for row in (claim.amounts_bytes, claim.short_bytes)
    )
    claim = replace(claim, amounts_bytes=amounts, short_bytes=short, flexible=False)
    return replace(decision, placement=replace(decision.placement, claim=claim))


def _with_cpus(
    group: Mapping[str, Decision],
    totals: PodTotals,
    nodes: NodeSet,
    newest: Decision | None,
    gone: Decision | None,
) -> dict[str, Decision]:
    """*group*, the CPUs of the pod being those that the *newest* of it says, else all that they and the one
    that is *gone* hold."""
    placements = [one.placement for one in (*group.values(), *([gone] if gone is not None else []))]
    if newest is not None and newest.placement.is_with_whole_pod:
        placements = [newest.placement]
    parts = cpus_of_parts(group)
    # A pod that asks for no whole number has none to itself beside them.
    cpus = parts | union(map(held_cpus, placements)) if whole_cpus(totals) else parts
    pool = cpus - parts
    affinity = whole_affinity(nodes, cpus)
    changed = {}
    for key, decision in group.items():
        pinned = decision.request.pinned_cpus is not None
        own = pool if shares_cpus(decision.request) and not pinned else decision.placement.exclusive_cpus
        placement = replace(
            decision.placement, exclusive_cpus=own, affinity=affinity, original_nodes=None, previous_mems=None
        )
        changed[key] = replace(decision, placement=placement)
    return changed


def _with_claims(
    group: Mapping[str, Decision], totals: PodTotals, apart: Amounts, gone: Decision | None
) -> dict[str, Decision]:
    """*group* with what each of it claims of *totals*; what those have that are elsewhere, *apart*, is not
    the group's."""
    claims = {key: one.placement.claim for key, one in group.items()}
    rows = [one.placement.promise.amounts_bytes for one in group.values()]
    if gone is not None:
        rows.append(gone.placement.promise.amounts_bytes)
    had, whole = sum_of(rows), totals.amounts_bytes
    target = {resource: max(0, amount - apart.get(resource, 0)) for resource, amount in whole.items()}
    left = {resource: min(amount, had.get(resource, 0)) for resource, amount in target.items()}
    short = {
        resource: amount - left[resource] for resource, amount in target.items() if amount > left[resource]
    }
    holder = next((key for key in group if takes_from_pod(group[key].request)), next(iter(group)))
    amounts: dict[str, dict[str, int]] = {}
    for key, decision in group.items():
        part = part_bytes(decision.request)
        amounts[key] = {resource: min(amount, left.get(resource, 0)) for resource, amount in part.items()}
        left = {resource: amount - amounts[key].get(resource, 0) for resource, amount in left.items()}
    amounts[holder] = sum_of([amounts[holder], left])
    changed = {}
    for key, before in claims.items():
        if before is None:
            continue
        claimed = {resource: amount for resource, amount in amounts[key].items() if amount}
        short_bytes = short if key == holder else {}
        claim = replace(before, amounts_bytes=claimed, short_bytes=short_bytes, flexible=False, shares={})
        placement = group[key].placement
        if claim != before:
            placement = replace(placement, claim=claim, booked_bytes={})
        changed[key] = replace(group[key], placement=placement)
    return changed

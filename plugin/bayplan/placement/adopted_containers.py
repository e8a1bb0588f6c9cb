"""Containers that have no record: their entries, made from their own annotation, else from what they run on.
Nothing about them is moved, but onto the CPUs of the named pool that they belong to.

What an annotation says counts only as far as the container runs on it: no container gets an exclusive CPU
that its cpuset does not have already. Pure.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from bayplan.engines.exact.cpu_pools import in_pool
from bayplan.engines.exact.relocations import is_relocatable
from bayplan.engines.interface import Engine
from bayplan.model.basis import Allocatable, Basis
from bayplan.model.decision import Booking, Claim, Decision, Outcome, Placement, Reason, Request
from bayplan.model.ledger import Entry, with_pool_cpus
from bayplan.model.life import Report
from bayplan.model.machine import Machine
from bayplan.model.pod_as_a_whole import is_member, shares_cpus, whole_cpus
from bayplan.model.policy import Defragment
from bayplan.model.request import changed_request, derive_request
from bayplan.model.resources import Resources
from bayplan.model.wishes import readable_wishes, ruled_wishes, without_cpu_wishes, wrong_cpu_wish
from bayplan.model.workload import Container, Pod
from bayplan.placement.memory_policy import bound_among, found_with_node_for_the_kernel
from bayplan.placement.resource_claims import on_claimed_cpus, with_resource_claims
from bayplan.sets import CpuSet, NodeSet

AFTER_ITS_END: Final = "found-after-its-end"
"""The code of the reason of a container that was released before, and has a process all the same."""
_WITHOUT_US: Final = Reason("created-without-us", "the runtime created it while no decision could be made")


def found_after_its_end(reported: Report | None) -> Reason:
    """The reason why a container is entered that was released before: it is *reported* to run all the same
    (None: an earlier daemon entered it)."""
    when = "by an earlier daemon" if reported is None else f"when it was reported: {reported.value}"
    return Reason(AFTER_ITS_END, f"it has a process, although it had been released {when}")


def has_annotated_placement(entry: Entry, container: Container) -> bool:
    """Whether *container* has what *entry*, its own annotation, says. Both come with one answer: a container
    without the cpusets did not get the annotation from us."""
    resources, placement = container.resources, entry.decision.placement
    if entry.decision.outcome is Outcome.REFUSED:
        return False
    if (entry.notified_cpus is not None or placement.exclusive_cpus) and resources.cpuset_cpus is None:
        return False
    return placement.mems is None or resources.cpuset_mems is not None


def updated_from_container(
    basis: Basis,
    engine: Engine,
    entry: Entry,
    container: Container,
    taken: CpuSet,
    *,
    alone: bool,
) -> Entry:
    """*entry*, which is older than *container*, with what we must have decided since: amounts that changed, a
    move to more nodes or back, other exclusive CPUs. *taken* are the CPUs that others have to themselves;
    *alone* says that no other container has the same cpuset.

    What cannot be our doing is left as it was; then it differs from the container, as any other pin does.

    Example: created with 2 CPUs and 1 GiB on node 0 and CPUs 2-3, the container has a quota of 4 CPUs, a
    limit of 3 GiB, nodes 0-1 and CPUs 2-5 by now. It was resized: CPUs 2-5 are its own if no other container
    has any of them, its claim is 3 GiB on nodes 0-1, and it goes back to node 0 only if its CPUs are there.
    """
    machine, policy = basis.machine, basis.policy
    resources = container.resources
    decision = found_with_node_for_the_kernel(machine, entry.decision, resources.cpuset_mems)
    placement, outside = decision.placement, policy.outside_requests
    pages = {} if decision.request.claimed is not None else resources.hugepage_limits_bytes
    said = Resources(hugepage_limits_bytes=pages)
    request = changed_request(decision.request, resources, said, machine, outside)
    resized = request != decision.request
    unavailable = taken | Allocatable(machine, policy).reserved_cpus
    own = _exclusive_cpus_now(request, placement, resources.cpuset_cpus, unavailable, alone=alone)
    if own != placement.exclusive_cpus or (own and own == resources.cpuset_cpus):
        entry = replace(entry, notified_cpus=resources.cpuset_cpus)
        placement = replace(placement, exclusive_cpus=own)
    if resources.cpuset_mems is not None:
        moves = policy.defragment is Defragment.MOVE and is_relocatable(request)
        placement = _moved_since(machine, placement, resources.cpuset_mems, ours=resized or moves)
    if resized:
        amounts, claim = engine.adopt(basis, request, placement.mems), placement.promise
        placement = replace(placement, booked_bytes=amounts.booked_bytes)
        if isinstance(claim, Claim) and isinstance(amounts.promise, Claim):
            placement = replace(placement, claim=_grown(machine, claim, amounts.promise.amounts_bytes))
    return replace(entry, decision=replace(decision, request=request, placement=placement))


def _exclusive_cpus_now(
    request: Request, placement: Placement, cpus: CpuSet | None, unavailable: CpuSet, *, alone: bool
) -> CpuSet:
    """The exclusive CPUs of a container whose cpuset is *cpus* now: these, if it asks for as many and no
    other container can have any of them; none, if it does not ask for any; else those of the record."""
    own, wanted = placement.exclusive_cpus, request.exclusive_cpus
    if is_member(request) and shares_cpus(request):
        most = 0 if request.pod_totals is None else whole_cpus(request.pod_totals)
        can_be = cpus is not None and len(cpus) <= most and cpus.isdisjoint(unavailable)
        return cpus if cpus is not None and can_be else CpuSet()
    if cpus in (None, own) or request.pinned_cpus is not None:
        return own
    if wanted == len(cpus) and alone and cpus.isdisjoint(unavailable):
        return cpus
    return own if wanted else CpuSet()


def _moved_since(machine: Machine, placement: Placement, mems: NodeSet, *, ours: bool) -> Placement:
    """*placement* with the nodes *mems* that the container has now, if it can have been moved there by us:
    because the nodes are *ours*, or because the container is flexible."""
    claim = placement.promise
    if isinstance(claim, Booking) or placement.mems in (None, mems):
        return placement
    nodes = mems - (placement.mems - claim.nodes)
    if not nodes or not (claim.flexible or ours):
        return placement
    original = placement.original_nodes or claim.nodes
    # As for a resize: no container goes back to nodes that its CPUs are not on.
    goes_back = original <= nodes and original != nodes
    goes_back = goes_back and placement.exclusive_cpus <= machine.cpus_of(original)
    return replace(
        placement,
        mems=mems,
        claim=replace(claim, nodes=nodes),
        original_nodes=original if goes_back else None,
        previous_mems=None,
    )


def _grown(machine: Machine, claim: Claim, wanted_bytes: Mapping[str, int]) -> Claim:
    """*claim* after a resize whose decision is lost. On some of the nodes it was promised whole, or it would
    have been refused; on all nodes no more than before is known to be promised, and the rest is short."""
    if claim.nodes != machine.ordinary_nodes:
        return replace(claim, amounts_bytes=wanted_bytes, short_bytes={})
    sure = {key: min(amount, claim.amounts_bytes.get(key, 0)) for key, amount in wanted_bytes.items()}
    rest = {key: amount - sure[key] for key, amount in wanted_bytes.items() if amount > sure[key]}
    return replace(claim, amounts_bytes=sure, short_bytes=rest)


def adopt(
    basis: Basis,
    engine: Engine,
    pod: Pod,
    container: Container,
    others: Iterable[CpuSet] = (),
) -> Entry:
    """The entry for a container that exists without a decision of ours: nothing about it is moved.

    Its cpusets count as somebody else's. One exception: as many CPUs as an exclusive request asks for, if
    they could be given to it and are in no other cpuset (*others*), are taken to be its exclusive CPUs: that
    is what our own looks like after a lost state store. What it claims is promised where its spec lets it go.
    """
    machine, policy, ledger = basis.machine, basis.policy, basis.ledger
    wishes = readable_wishes(pod.annotations, container.name, machine, policy.forbidden_annotations)
    wishes = ruled_wishes(policy.cpu_rules, pod, container.name, machine, wishes)
    if engine.kind.is_kubelets:
        wishes = without_cpu_wishes(wishes)
    request = derive_request(pod, container, machine, wishes, outside=policy.outside_requests)
    if wishes.cpus is not None and wishes.cpus.pool:
        unpinned = replace(request, pinned_cpus=None)
        if wrong_cpu_wish(unpinned, machine, policy.cpu_pools) is not None:
            wishes = without_cpu_wishes(wishes)
            request = derive_request(pod, container, machine, wishes, outside=policy.outside_requests)
    request = replace(request, placement_file=container.has_our_placement, environment=(), exec_cpus=None)
    with_claims = with_resource_claims(ledger, engine, pod, container, request)
    if isinstance(with_claims, Request):
        request = with_claims
    cpus, mems = request.pinned_cpus, request.pinned_mems
    isolated = request.wishes_isolated_cpus
    candidates = basis.exclusive_candidates(isolated=isolated)
    own = (
        cpus is not None
        and len(cpus) == request.exclusive_cpus
        and cpus.isdisjoint(machine.online_cpus - candidates)
        and all(cpus.isdisjoint(one) for one in (*_notified(ledger.entries.values()), *others))
    )
    if cpus and own:
        request = replace(request, pinned_cpus=None, pinned_mems=None)
    bound = mems and bound_among(Decision(request, Outcome.ADOPTED), mems)
    placement = engine.adopt(basis, request, bound)
    if cpus and own:
        placement = replace(placement, mems=mems, exclusive_cpus=cpus)
    decision = on_claimed_cpus(ledger, Decision(request, Outcome.ADOPTED, placement, (_WITHOUT_US,)))
    return in_its_pool(basis, Entry(decision, notified_cpus=cpus))


def in_its_pool(basis: Basis, entry: Entry) -> Entry:
    """*entry* of a container that was found with the CPUs of the named pool that it is in, if it is in one.
    They are as many as the pool has without it."""
    decision = entry.decision
    if not decision.request.pool:
        return entry
    reasons = (*decision.reasons, in_pool(basis, decision.request.pool))
    pooled = with_pool_cpus(entry, basis.ledger.pool_cpus(decision.request.pool))
    return replace(pooled, decision=replace(pooled.decision, reasons=reasons))


def shared_pools(basis: Basis, found: Collection[Entry], *, lost: bool) -> frozenset[CpuSet]:
    """The cpusets that show that a container runs on our shared CPUs: the present ones, those that members
    are known to have been sent, and, where all records are *lost*, the one that most of the *found*
    containers have.

    Every pool of ours has the reserved CPUs in it, unless they are withheld.
    """
    machine, policy, ledger = basis.machine, basis.policy, basis.ledger
    members = [entry for entry in ledger.entries.values() if entry.decision.shares_cpus]
    pools = {ledger.shared_cpus(machine, policy.withheld_cpus), *_notified(members)}
    pinned = Counter(one for entry in found if (one := entry.decision.request.pinned_cpus))
    reserved = Allocatable(machine, policy).reserved_cpus - policy.withheld_cpus
    for cpus, count in pinned.items():
        if lost and 2 * count > pinned.total() and reserved <= cpus:
            pools.add(cpus)
    return frozenset(pools)


def _notified(entries: Iterable[Entry]) -> set[CpuSet]:
    """The CPUs that were sent for containers."""
    return {cpus for entry in entries if (cpus := entry.notified_cpus)}

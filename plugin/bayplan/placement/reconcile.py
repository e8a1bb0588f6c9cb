"""The ledger against what the runtime says exists. The runtime wins: it has the containers.

It is planned here what to record, what to forget and which updates the runtime gets; the daemon carries it
out.

Containers that have no record get an entry, made from their own annotation, else from what they run on.
Nothing about them is moved, but onto the CPUs of the named pool that they belong to. What an annotation says
counts only as far as the container runs on it: no container gets an exclusive CPU that its cpuset does not
have already. Pure.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.exact.cpu_pools import in_pool
from bayplan.engines.exact.relocations import is_relocatable
from bayplan.engines.interface import Engine
from bayplan.model.basis import Allocatable, Basis
from bayplan.model.decision import Booking, Claim, Decision, Outcome, Placement, QosSource, Reason, Request
from bayplan.model.ledger import Entry, Ledger, retained_changes, with_pool_cpus
from bayplan.model.life import Report
from bayplan.model.machine import Machine, union
from bayplan.model.pod_as_a_whole import is_member, shares_cpus, whole_cpus
from bayplan.model.policy import Defragment
from bayplan.model.request import changed_request, derive_request
from bayplan.model.resources import Resources, pinned
from bayplan.model.wishes import readable_wishes, ruled_wishes, without_cpu_wishes, wrong_cpu_wish
from bayplan.model.workload import Container, ContainerState, Pod, Update
from bayplan.placement.adjustment import MOST_UPDATES, cpus_updates, for_one_reply, merged
from bayplan.placement.changed_promises import with_completed_claims, with_resized_pools
from bayplan.placement.memory_policy import bound_among, found_with_node_for_the_kernel
from bayplan.placement.placement_file import as_mounted
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


_NOTHING_CARRIED: Final[Mapping[str, Entry]] = MappingProxyType({})


class Reconciliation(Struct, frozen=True):
    """The ledger that agrees with the runtime, and the way to it.

    ``gone`` are ids to forget; ``changed`` are entries to record; ``found`` are the containers that nobody
    decided about; ``recovered`` are the ids of those whose record was lost and made again from what they
    carry; ``updates`` are to be sent to the runtime.
    """

    ledger: Ledger
    gone: tuple[str, ...]
    changed: tuple[Entry, ...]
    found: tuple[Entry, ...]
    updates: tuple[Update, ...]
    recovered: tuple[str, ...] = ()


def reconcile(
    basis: Basis,
    engine: Engine,
    pods: Mapping[str, Pod],
    containers: Collection[Container],
    *,
    carried: Mapping[str, Entry] = _NOTHING_CARRIED,
    kubelet_pins_cpus: bool = False,
) -> Reconciliation:
    """Bring the ledger in line with the *containers* that the runtime lists (stopped ones hold nothing).

    *carried* are the entries that containers say they were created with, by id, the oldest first.
    *kubelet_pins_cpus*: kubelet's CPU Manager is known to be at work, so that CPUs which we did not give to a
    container of kubelet's are its doing.

    Each step works on the ledger that the steps before have made:

    1. What is gone is forgotten. A container that did not come over NRI may be another runtime's: that this
       one does not list it does not mean that it is gone.
    2. Records that were lost are made again from *carried*. If there are any, the ledger was lost or is an
       older one, and all of it is updated from what the containers have by now.
    3. Each record is compared with the runtime's spec: lost answers are repaired, cpusets that somebody else
       set are respected.
    4. Containers without any record are adopted as they are.
    5. Pods without a container keep their room as long as the runtime lists them.
    6. Found containers that run on the shared CPUs, or on those of the named pool that a rule or their
       annotation puts them into, become members of the shared pool, or of the named one.
    7. Containers whose CPUs are not what they should be get an update, as many as fit into one reply.

    Example: the record has a, b and c; the runtime lists b, with the CPUs of the record, and d, without a
    record. a and c are gone; b stays; d is adopted; the CPUs that a had to itself become shared, and b and d
    get an update if they run on the shared CPUs.
    """
    machine, policy, ledger = basis.machine, basis.policy, basis.ledger
    observed = {
        container.id: container for container in containers if container.state is not ContainerState.STOPPED
    }
    cpusets = Counter(one.resources.cpuset_cpus for one in observed.values())
    gone = _gone(ledger, observed, {container.id for container in containers})
    recovered = _recovered(ledger, observed, carried)
    known = {key: entry for key, entry in ledger.entries.items() if key in observed} | recovered
    elsewhere = ledger.entries.keys() - known.keys() - set(gone)
    unlisted = [entry for key, entry in ledger.entries.items() if key in elsewhere]
    if recovered:
        taken = Ledger.of(unlisted).exclusive_cpus
        known = _updated_from_containers(basis, engine, known, observed, cpusets, taken)
    compared = [
        _as_observed(machine, as_mounted(entry, observed[key]), observed[key], kubelet_pins_cpus)
        for key, entry in known.items()
    ]
    entries = [*unlisted, *(entry for entry, _ in compared)]
    agreed = Ledger.of(entries)
    if recovered:
        # They may have been written while another engine decided.
        agreed = engine.converted(basis.with_ledger(agreed))
        entries = list(agreed.entries.values())
    adopted = _adopted(basis.with_ledger(_with_claims(ledger, agreed)), engine, pods, observed, cpusets)
    if adopted:
        agreed = Ledger.of([*entries, *adopted])
        candidates = [entry for entry in adopted if not (kubelet_pins_cpus and _is_kubelets(entry))]
        pools = shared_pools(basis.with_ledger(agreed), candidates, lost=not known)
        if members := _members(basis.with_ledger(agreed), pools, candidates):
            agreed = Ledger.of([*entries, *adopted, *members])
    if recovered:
        # What a pod has as a whole is in the annotation of the container that was its first.
        agreed, _ = with_completed_claims(basis.with_ledger(agreed), engine)
    else:
        agreed = with_resized_pools(basis.with_ledger(agreed), engine)
    agreed = _with_retained(ledger, gone, agreed, pods)
    shared = agreed.shared_cpus(machine, policy.withheld_cpus)
    repairs = [repair for _, repair in compared if repair is not None]
    created = {key for key, one in observed.items() if one.state is ContainerState.CREATED}
    updates = for_one_reply(merged(repairs, cpus_updates(agreed, shared)), created, MOST_UPDATES)
    agreed = agreed.with_notified_cpus(
        {update.container_id: update.cpuset_cpus for update in updates if update.cpuset_cpus}
    )
    return _reconciliation(ledger, agreed, gone, adopted, tuple(updates), recovered)


def _gone(ledger: Ledger, observed: Mapping[str, Container], listed: Collection[str]) -> tuple[str, ...]:
    """The ids of the recorded containers that are gone; *listed* are the ids that the runtime lists, stopped
    ones too."""
    return tuple(
        key
        for key, entry in sorted(ledger.entries.items())
        if key not in observed and (entry.origin.is_listed or key in listed)
    )


def _recovered(
    ledger: Ledger, observed: Mapping[str, Container], carried: Mapping[str, Entry]
) -> dict[str, Entry]:
    """Those of the *carried* entries whose containers run without a record, with the placement that the entry
    says."""
    return {
        key: entry
        for key, entry in carried.items()
        if key in observed and key not in ledger.entries and has_annotated_placement(entry, observed[key])
    }


def _reconciliation(
    before: Ledger,
    agreed: Ledger,
    gone: tuple[str, ...],
    found: Iterable[Entry],
    updates: tuple[Update, ...],
    recovered: Iterable[str],
) -> Reconciliation:
    """What leads from *before* to *agreed*."""
    forgotten, retained = retained_changes(before, agreed)
    changed = tuple(entry for key, entry in agreed.entries.items() if before.entries.get(key) != entry)
    return Reconciliation(
        agreed,
        gone + forgotten,
        changed + retained,
        tuple(agreed.entries[entry.container_id] for entry in found),
        updates,
        tuple(sorted(recovered)),
    )


def _adopted(
    basis: Basis,
    engine: Engine,
    pods: Mapping[str, Pod],
    observed: Mapping[str, Container],
    cpusets: Mapping[CpuSet | None, int],
) -> list[Entry]:
    """An entry for each of the *observed* containers that the ledger does not have.

    What one has matters for the next one only where bytes are booked node by node: *cpusets* are of all
    containers, and a claim is made whether or not it fits. To enter one copies all others, so that only those
    are entered meanwhile.
    """
    ledger, entered = basis.ledger, []
    unknown = sorted(observed.keys() - ledger.entries.keys())
    for container_id in sorted(unknown, key=lambda key: not observed[key].resources.cpuset_cpus):
        container = observed[container_id]
        pod = pods.get(container.pod_id, Pod(container.pod_id))
        own = container.resources.cpuset_cpus
        others = (cpus for cpus, count in cpusets.items() if cpus and (cpus != own or count > 1))
        entry = adopt(basis.with_ledger(ledger), engine, pod, container, others)
        if isinstance(entry.decision.placement.promise, Booking):
            ledger = ledger.with_entry(entry)
        entered.append(entry)
    return entered


def _with_retained(before: Ledger, gone: Collection[str], agreed: Ledger, pods: Mapping[str, Pod]) -> Ledger:
    """*agreed* with the room that pods without a container keep, and with what resource claims hold, of which
    no runtime knows; *before* is the ledger before the containers *gone* were taken out."""
    vacant = pods.keys() - {entry.decision.request.pod_id for entry in agreed.entries.values()}
    agreed, retained = _with_claims(before, agreed), dict(before.retained)
    left: dict[str, list[Entry]] = {}
    for entry in map(before.entries.__getitem__, gone):
        if entry.decision.placement.affinity is not None:
            left.setdefault(entry.decision.request.pod_id, []).append(entry)
    for pod_id in vacant & left.keys():
        ended = Ledger.of(left[pod_id])
        for entry in left[pod_id]:
            ended = ended.after_end_of(entry.container_id)
        retained.update(ended.retained)
    for key in sorted(vacant & retained.keys()):
        agreed = agreed.with_entry(retained[key])
    return agreed


def _with_claims(before: Ledger, agreed: Ledger) -> Ledger:
    """*agreed* with what resource claims hold in the ledger *before*."""
    for key in sorted(before.resource_claims):
        agreed = agreed.with_entry(before.retained[key])
    return agreed


def _is_kubelets(entry: Entry) -> bool:
    return entry.decision.request.qos_source is QosSource.CGROUP_PARENT


def _updated_from_containers(
    basis: Basis,
    engine: Engine,
    known: dict[str, Entry],
    observed: Mapping[str, Container],
    cpusets: Mapping[CpuSet | None, int],
    taken: CpuSet,
) -> dict[str, Entry]:
    """The entries *known* of containers, the oldest first, some of them older than what these have by now.
    CPUs that an entry and its container agree on come first, of the newest container; no CPU is given to two,
    but for those that a pod has as a whole, and none of those *taken* by containers that the runtime does not
    list.
    """
    ledger, result = Ledger.of(known.values()), dict[str, Entry]()
    basis = basis.with_ledger(ledger)
    known = {key: ledger.entries[key] for key in known}
    of_pods: dict[str, CpuSet] = {}
    firm = [
        key
        for key, entry in known.items()
        if (own := entry.decision.placement.exclusive_cpus) and observed[key].resources.cpuset_cpus == own
    ]
    for container_id in (*reversed(firm), *sorted(known.keys() - firm)):
        entry, container = known[container_id], observed[container_id]
        alone = cpusets[container.resources.cpuset_cpus] == 1
        request = entry.decision.request
        pod_id = request.pod_id if is_member(request) and shares_cpus(request) else ""
        of_pod = of_pods.get(pod_id, CpuSet())
        of_others = taken - of_pod
        entry = updated_from_container(basis, engine, entry, container, of_others, alone=alone)
        placement = entry.decision.placement
        if not placement.exclusive_cpus.isdisjoint(of_others):
            # They were free when the newer one was created: this one must have got others since.
            placement = replace(placement, exclusive_cpus=CpuSet())
            decision = replace(entry.decision, placement=placement)
            entry = replace(entry, decision=decision, notified_cpus=container.resources.cpuset_cpus)
        taken |= placement.exclusive_cpus
        if pod_id:
            of_pods[pod_id] = of_pod | placement.exclusive_cpus
        result[container_id] = entry
    settled = {key: _with_cpus_of_pod(result[key], result.values()) for key in known}
    return _with_pools(settled, taken)


def _with_pools(known: Mapping[str, Entry], taken: CpuSet) -> dict[str, Entry]:
    """The entries *known* of containers, the oldest first: their named pools have what the newest member was
    created with, but for what others have of it by now, and for CPUs that are *taken*."""
    cpus = dict[str, CpuSet]()
    for entry in reversed(list(known.values())):
        pool = entry.decision.request.pool
        if pool and pool not in cpus:
            cpus[pool] = entry.decision.placement.pool_cpus - taken
            taken |= cpus[pool]
    return {
        key: with_pool_cpus(entry, cpus[pool]) if (pool := entry.decision.request.pool) else entry
        for key, entry in known.items()
    }


def _with_cpus_of_pod(entry: Entry, entries: Iterable[Entry]) -> Entry:
    """*entry*, whose pod has the CPUs that its containers among *entries* have by now, and no others."""
    request, placement = entry.decision.request, entry.decision.placement
    if not is_member(request) or placement.affinity is None or not placement.is_with_whole_pod:
        return entry
    cpus = union(
        other.placement.exclusive_cpus
        for other in (one.decision for one in entries)
        if other.request.pod_id == request.pod_id and other.placement.is_with_whole_pod
    )
    placement = replace(placement, affinity=replace(placement.affinity, cpus=cpus))
    return replace(entry, decision=replace(entry.decision, placement=placement))


def _as_observed(
    machine: Machine, entry: Entry, container: Container, kubelet_pins_cpus: bool
) -> tuple[Entry, Update | None]:
    """*entry* with what the runtime's spec says of its cpusets, and the update that repairs a lost reply.

    A cpuset.mems that is empty where we set one means that our answer never arrived, and the one from before
    the last move that the move did not: it is sent again. The same goes for the CPUs that a container had
    before it got CPUs of its own. Another value than ours was set by somebody else later and is respected
    from now on. On a container that shares the CPUs another cpuset.cpus counts as kubelet's with
    *kubelet_pins_cpus* only; otherwise it can be an older shared pool of ours.
    """
    kubelets = kubelet_pins_cpus and _is_kubelets(entry)
    request, placement = entry.decision.request, entry.decision.placement
    cpus, mems = pinned(container.resources, machine)
    repair = None
    if placement.mems is not None and mems != placement.mems:
        before = placement.previous_mems
        # Between the two steps of a relocation it has the nodes of before and those of after.
        if mems in (None, before) or (before is not None and mems == before | placement.mems):
            repair = Update(container.id, cpuset_mems=placement.mems)
        else:
            request = replace(request, pinned_mems=mems)
            there = bound_among(entry.decision, mems)
            placement = replace(placement.staying(there), mems=None, original_nodes=None, previous_mems=None)
    ours = None, entry.notified_cpus, entry.previous_cpus
    overridden = entry.notified_cpus is not None and cpus not in ours
    repinned = request.pinned_cpus is not None and cpus is not None
    if repinned or (overridden and (placement.own_cpus or kubelets)):
        later = request.pinned_by_update or not repinned
        request = replace(request, pinned_cpus=cpus, pinned_by_update=later)
        placement = replace(placement, exclusive_cpus=CpuSet(), claimed_cpus=None, pool_cpus=CpuSet())
    decision = replace(entry.decision, request=request, placement=placement)
    return replace(entry, decision=decision, notified_cpus=cpus, previous_cpus=None), repair


def _members(basis: Basis, pools: Collection[CpuSet], found: Collection[Entry]) -> list[Entry]:
    """Those *found* that run on one of the shared *pools*, or on the CPUs of their named pool, as members of
    it, not as pinned."""
    members = []
    for entry in found:
        request = entry.decision.request
        unpinned = replace(request, pinned_cpus=None)
        if request.pinned_cpus is None:
            continue
        if request.pinned_cpus in pools or request.pinned_cpus == basis.ledger.pool_cpus(unpinned.pool):
            decision = replace(entry.decision, request=unpinned)
            members.append(in_its_pool(basis, replace(entry, decision=decision)))
    return members

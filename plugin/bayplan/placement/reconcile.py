"""The ledger against what the runtime says exists. The runtime wins: it has the containers.

Pure: it plans what to record, what to forget and which updates the runtime gets; the daemon carries it out.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.interface import Engine
from bayplan.model.basis import Basis
from bayplan.model.decision import Booking, QosSource
from bayplan.model.ledger import Entry, Ledger, with_pool_cpus
from bayplan.model.machine import Machine, union
from bayplan.model.pod_as_a_whole import is_member, shares_cpus
from bayplan.model.records import retained_changes
from bayplan.model.resources import pinned
from bayplan.model.workload import Container, ContainerState, Pod, Update
from bayplan.placement.adjustment import MOST_UPDATES, cpus_updates, for_one_reply, merged
from bayplan.placement.adopted_containers import (
    adopt,
    has_annotated_placement,
    in_its_pool,
    shared_pools,
    updated_from_container,
)
from bayplan.placement.changed_promises import with_completed_claims, with_resized_pools
from bayplan.placement.memory_policy import bound_among
from bayplan.placement.placement_file import as_mounted
from bayplan.sets import CpuSet

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

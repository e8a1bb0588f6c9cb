"""The ledger against what the runtime says exists. The runtime wins: it has the containers.

Pure: it plans what to record, what to forget and what to tell the runtime; the daemon carries it out.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.interface import Engine
from bayplan.model.decision import QosSource
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.model.workload import Container, ContainerState, Pod, Update
from bayplan.placement.adjustment import merged, shared_pool_updates
from bayplan.placement.found_containers import (
    adopt,
    has_annotated_placement,
    shared_pools,
    updated_from_container,
)
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
    machine: Machine,
    policy: PlacementPolicy,
    engine: Engine,
    ledger: Ledger,
    pods: Mapping[str, Pod],
    containers: Collection[Container],
    *,
    carried: Mapping[str, Entry] = _NOTHING_CARRIED,
    kubelet_pins_cpus: bool = False,
) -> Reconciliation:
    """Bring *ledger* in line with the *containers* that the runtime lists (stopped ones hold nothing).

    *carried* are the entries that containers say they were created with, by id, the oldest first. One that is
    not in *ledger* means that the ledger was lost, or is an older one: then all of it is held against what
    the containers have.

    Pods between two containers keep their room as long as the runtime lists them.

    A container that did not come over NRI may be another runtime's: that this one does not list it says
    nothing. *kubelet_pins_cpus*: kubelet's CPU Manager is known to be at work, so that CPUs which we did not
    give to a container of kubelet's are its doing.
    """
    observed = {
        container.id: container for container in containers if container.state is not ContainerState.STOPPED
    }
    listed = {container.id for container in containers}
    gone = tuple(
        container_id
        for container_id, entry in sorted(ledger.entries.items())
        if container_id not in observed and (entry.origin is None or container_id in listed)
    )
    recorded = {key: entry for key, entry in ledger.entries.items() if key in observed}
    recovered = {
        key: entry
        for key, entry in carried.items()
        if key in observed and key not in ledger.entries and has_annotated_placement(entry, observed[key])
    }
    known = {**recorded, **recovered}
    cpusets = Counter(one.resources.cpuset_cpus for one in observed.values())
    if recovered:
        known = _updated_from_containers(machine, policy, engine, known, observed, cpusets)
    kept, repairs = [entry for key, entry in ledger.entries.items() if key not in (*gone, *known)], []
    for container_id, entry in known.items():
        kubelets = kubelet_pins_cpus and entry.decision.request.qos_source is QosSource.CGROUP_PARENT
        seen, repair = _as_observed(entry, observed[container_id], kubelets=kubelets)
        kept.append(seen)
        repairs += [repair] if repair is not None else []
    agreed = Ledger.of(kept)
    if recovered:
        # They may have been written while another engine decided.
        agreed = engine.restored(machine, policy, agreed)
    found = []
    strangers = sorted(set(observed) - set(known))
    for container_id in sorted(strangers, key=lambda key: not observed[key].resources.cpuset_cpus):
        container = observed[container_id]
        pod = pods.get(container.pod_id, Pod(container.pod_id))
        own = container.resources.cpuset_cpus
        others = (cpus for cpus, count in cpusets.items() if cpus and (cpus != own or count > 1))
        entry = adopt(machine, policy, engine, agreed, pod, container, others)
        agreed = agreed.with_entry(entry)
        found.append(entry)
    ended = ledger
    for container_id in gone:
        ended = ended.after_end_of(container_id)
    inhabited = {entry.decision.request.pod_id for entry in agreed.entries.values()}
    for pod_id, last in sorted(ended.retained.items()):
        if pod_id in pods and pod_id not in inhabited:
            agreed = agreed.with_entry(last)
    candidates = [
        entry
        for entry in found
        if not kubelet_pins_cpus or entry.decision.request.qos_source is not QosSource.CGROUP_PARENT
    ]
    pools = shared_pools(machine, policy, agreed, candidates, lost=not known)
    agreed = _sharing(pools, agreed, candidates)
    updates = merged(repairs, shared_pool_updates(agreed, agreed.shared_cpus(machine, policy.withheld_cpus)))
    agreed = agreed.with_notified_cpus(
        {update.container_id: update.cpuset_cpus for update in updates if update.cpuset_cpus}
    )
    changed = tuple(entry for key, entry in agreed.entries.items() if ledger.entries.get(key) != entry)
    forgotten, last_ones = agreed.retained_changes(ledger)
    return Reconciliation(
        agreed,
        gone + forgotten,
        changed + last_ones,
        tuple(agreed.entries[e.container_id] for e in found),
        updates,
        tuple(sorted(recovered)),
    )


def _updated_from_containers(
    machine: Machine,
    policy: PlacementPolicy,
    engine: Engine,
    known: dict[str, Entry],
    observed: Mapping[str, Container],
    cpusets: Mapping[CpuSet | None, int],
) -> dict[str, Entry]:
    """The entries *known* of containers, the oldest first, some of them older than what these have by now.
    CPUs that an entry and its container agree on come first, of the newest container; no CPU is given to two.
    """
    ledger, result, taken = Ledger.of(known.values()), dict[str, Entry](), CpuSet()
    firm = [
        key
        for key, entry in known.items()
        if (own := entry.decision.placement.exclusive_cpus) and observed[key].resources.cpuset_cpus == own
    ]
    for container_id in (*reversed(firm), *sorted(known.keys() - firm)):
        entry, container = known[container_id], observed[container_id]
        alone = cpusets[container.resources.cpuset_cpus] == 1
        entry = updated_from_container(machine, policy, engine, ledger, entry, container, taken, alone=alone)
        placement = entry.decision.placement
        if not placement.exclusive_cpus.isdisjoint(taken):
            # They were free when the newer one was created: this one must have got others since.
            placement = replace(placement, exclusive_cpus=CpuSet())
            decision = replace(entry.decision, placement=placement)
            entry = replace(entry, decision=decision, notified_cpus=container.resources.cpuset_cpus)
        taken |= placement.exclusive_cpus
        result[container_id] = entry
    return {key: result[key] for key in known}


def _as_observed(entry: Entry, container: Container, *, kubelets: bool) -> tuple[Entry, Update | None]:
    """*entry* with what the runtime's spec says of its cpusets, and the update that repairs a lost reply.

    An empty cpuset where we set one means that our answer never arrived, the nodes that it had before it
    moved that the move did not: it is sent again. Another value than ours was set by somebody else later and
    is respected from now on. Of a container on the shared CPUs
    that is known only with *kubelets* (kubelet pins it); otherwise it can be an older pool of ours.
    """
    resources, request, placement = container.resources, entry.decision.request, entry.decision.placement
    repair = None
    if placement.mems is not None and resources.cpuset_mems != placement.mems:
        if resources.cpuset_mems in (None, placement.previous_mems):
            repair = Update(container.id, cpuset_mems=placement.mems)
        else:
            request = replace(request, pinned_mems=resources.cpuset_mems)
            claim = placement.claim
            if claim is not None and resources.cpuset_mems is not None:
                claim = replace(claim, nodes=resources.cpuset_mems, flexible=False)
            placement = replace(placement, mems=None, claim=claim, original_nodes=None, previous_mems=None)
    overridden = resources.cpuset_cpus is not None and entry.notified_cpus not in (
        None,
        resources.cpuset_cpus,
    )
    repinned = request.pinned_cpus is not None and resources.cpuset_cpus is not None
    if repinned or (overridden and (placement.exclusive_cpus or kubelets)):
        later = request.pinned_by_update or not repinned
        request = replace(request, pinned_cpus=resources.cpuset_cpus, pinned_by_update=later)
        placement = replace(placement, exclusive_cpus=CpuSet())
    decision = replace(entry.decision, request=request, placement=placement)
    return replace(entry, decision=decision, notified_cpus=resources.cpuset_cpus), repair


def _sharing(pools: Collection[CpuSet], ledger: Ledger, found: Collection[Entry]) -> Ledger:
    """*ledger* with those *found* that run on one of the shared *pools* as members of it, not as pinned."""
    for entry in found:
        request = entry.decision.request
        if request.pinned_cpus in pools:
            decision = replace(entry.decision, request=replace(request, pinned_cpus=None))
            ledger = ledger.with_entry(replace(entry, decision=decision))
    return ledger

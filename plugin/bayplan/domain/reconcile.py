"""The ledger against what the runtime says exists. The runtime wins: it has the containers.

Pure: it plans what to record, what to forget and what to tell the runtime; the daemon carries it out.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from bayplan.domain.decision import Decision, Outcome, QosSource, Reason
from bayplan.domain.engine import Engine
from bayplan.domain.ledger import Entry, Ledger
from bayplan.domain.policy import Policy
from bayplan.domain.request import derive_request
from bayplan.domain.rewrite import merged, shared_pool_updates
from bayplan.domain.topology import Machine
from bayplan.domain.wishes import readable_wishes
from bayplan.domain.workload import Container, ContainerState, Pod, Update
from bayplan.sets import CpuSet


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The ledger that agrees with the runtime, and the way to it.

    ``gone`` are ids to forget; ``changed`` are entries to record; ``found`` are the containers that nobody
    decided about; ``updates`` are to be sent to the runtime.
    """

    ledger: Ledger
    gone: tuple[str, ...]
    changed: tuple[Entry, ...]
    found: tuple[Entry, ...]
    updates: tuple[Update, ...]


def reconcile(
    machine: Machine,
    policy: Policy,
    engine: Engine,
    ledger: Ledger,
    pods: Mapping[str, Pod],
    containers: Collection[Container],
    *,
    kubelet_pins_cpus: bool = False,
) -> Reconciliation:
    """Bring *ledger* in line with the *containers* that the runtime lists (stopped ones hold nothing).

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
    kept, repairs = [], []
    for container_id, entry in sorted(ledger.entries.items()):
        if container_id in observed:
            kubelets = kubelet_pins_cpus and entry.decision.request.qos_source is QosSource.CGROUP_PARENT
            seen, repair = _as_observed(entry, observed[container_id], kubelets=kubelets)
            kept.append(seen)
            repairs += [repair] if repair is not None else []
        elif container_id not in gone:
            kept.append(entry)
    agreed = Ledger.of(kept)
    found = []
    strangers = sorted(set(observed) - set(ledger.entries))
    for container_id in sorted(strangers, key=lambda key: not observed[key].resources.cpuset_cpus):
        container = observed[container_id]
        pod = pods.get(container.pod_id, Pod(container.pod_id))
        entry = adopt(machine, policy, engine, agreed, pod, container)
        agreed = agreed.with_entry(entry)
        found.append(entry)
    ended = ledger
    for container_id in gone:
        ended = ended.after_end_of(container_id)
    inhabited = {entry.decision.request.pod_id for entry in agreed.entries.values()}
    for pod_id, last in sorted(ended.between.items()):
        if pod_id in pods and pod_id not in inhabited:
            agreed = agreed.with_entry(last)
    agreed = _recognise_shared(agreed.shared_cpus(machine, policy.withheld_cpus), agreed, found)
    updates = merged(repairs, shared_pool_updates(agreed, machine, policy.withheld_cpus))
    agreed = agreed.telling(
        {update.container_id: update.cpuset_cpus for update in updates if update.cpuset_cpus}
    )
    changed = tuple(entry for key, entry in agreed.entries.items() if ledger.entries.get(key) != entry)
    forgotten, last_ones = agreed.between_since(ledger)
    return Reconciliation(
        agreed,
        gone + forgotten,
        changed + last_ones,
        tuple(agreed.entries[e.container_id] for e in found),
        updates,
    )


def adopt(
    machine: Machine, policy: Policy, engine: Engine, ledger: Ledger, pod: Pod, container: Container
) -> Entry:
    """The entry for a container that exists without a decision of ours: nothing about it is moved.

    Its cpusets count as somebody else's. One exception: as many CPUs as an exclusive request asks for, all of
    them free, are taken to be its exclusive CPUs, which is what our own looks like after a lost state store.
    What it claims is promised where its spec lets it go.
    """
    wishes = readable_wishes(pod.annotations, container.name, machine)
    request = derive_request(pod, container, machine.memory_bytes, wishes)
    cpus, mems = request.pinned_cpus, request.pinned_mems
    own = cpus is not None and len(cpus) == request.exclusive_cpus and cpus.isdisjoint(ledger.exclusive_cpus)
    if cpus and own:
        request = replace(request, pinned_cpus=None, pinned_mems=None)
    placement = engine.adopt(machine, policy, ledger, request, mems)
    if cpus and own:
        placement = replace(placement, mems=mems, exclusive_cpus=cpus)
    reason = Reason("created-without-us", "the runtime created it while no decision could be made")
    return Entry(Decision(request, Outcome.ADOPTED, placement, (reason,)), told_cpus=cpus)


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
        if resources.cpuset_mems in (None, placement.left):
            repair = Update(container.id, cpuset_mems=placement.mems)
        else:
            request = replace(request, pinned_mems=resources.cpuset_mems)
            claim = placement.claim
            if claim is not None and resources.cpuset_mems is not None:
                claim = replace(claim, nodes=resources.cpuset_mems, flexible=False)
            placement = replace(placement, mems=None, claim=claim, home=None, left=None)
    overridden = resources.cpuset_cpus is not None and entry.told_cpus not in (None, resources.cpuset_cpus)
    repinned = request.pinned_cpus is not None and resources.cpuset_cpus is not None
    if repinned or (overridden and (placement.exclusive_cpus or kubelets)):
        later = request.pinned_by_update or not repinned
        request = replace(request, pinned_cpus=resources.cpuset_cpus, pinned_by_update=later)
        placement = replace(placement, exclusive_cpus=CpuSet())
    decision = replace(entry.decision, request=request, placement=placement)
    return replace(entry, decision=decision, told_cpus=resources.cpuset_cpus), repair


def _recognise_shared(shared: CpuSet, ledger: Ledger, found: list[Entry]) -> Ledger:
    """Treat found containers that run on exactly the shared pool as members of it, not as pinned: that is
    what ours look like after a lost state store."""
    for entry in found:
        request = entry.decision.request
        if request.pinned_cpus == shared:
            decision = replace(entry.decision, request=replace(request, pinned_cpus=None))
            ledger = ledger.with_entry(replace(entry, decision=decision))
    return ledger

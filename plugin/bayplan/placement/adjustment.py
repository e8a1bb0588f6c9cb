"""From a decision to what is rewritten: the container's spec, and the shared CPUs of the others.

Never touches a value that the spec already carries, with one exception: oom_score_adj 0, which runtimes
write where none was chosen.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.kubelet.qos import memory_high_bytes, memory_protection
from bayplan.model.basis import Basis
from bayplan.model.claims import ClaimShare, by_page_size
from bayplan.model.decision import Decision, ExecCpus, Outcome, QosClass, QosSource, Reason, Request
from bayplan.model.kubelet_version import NEWEST, KubeletRules
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.origin import Nri, Origin
from bayplan.model.pod_as_a_whole import is_member, shares_cpus
from bayplan.model.policy import MemoryQos, OutsideRequests
from bayplan.model.qos import OOM_GROUP, oom_score_adj
from bayplan.model.request import carried_oom_score_adj
from bayplan.model.resources import MEMORY_HIGH, MEMORY_LOW, MEMORY_MIN, Resources, changed_resources
from bayplan.model.sentences import verb_after
from bayplan.model.wishes import wishes_of_own_cpus
from bayplan.model.workload import Adjustment, Container, Update
from bayplan.placement.placement_file import environment_of
from bayplan.sets import CpuSet

MOST_UPDATES: Final = 4
"""Of running containers in one reply. containerd carries updates out one after the other, 11 ms each, and
handles no other request of NRI meanwhile."""


EXEC_NOT_APART: Final = "exec-not-apart"
"""Code of the reason that processes which enter a container later may run on all of its own CPUs."""

NOT_ISOLATED: Final = "not-isolated"
"""Code of the reason that a container's own CPUs are no partition, or that interrupts stay on them."""

NO_OWN_CPUS: Final = "no-own-cpus"
"""Code of the reason that a container wishes something of CPUs of its own, and asks for none."""

_CODES: Final = {"exec-cpus": EXEC_NOT_APART, "cpu-partition": NOT_ISOLATED, "irqs": NOT_ISOLATED}
"""Of the reason that a container does not have what a key is for; else NO_OWN_CPUS."""

_OF_CLAIMED_CPUS: Final = ("exec-cpus", "placement-environment")
"""The keys that also say something of the CPUs of resource claims."""

_RESETS: Final[dict[str, str]] = {MEMORY_MIN: "0", MEMORY_LOW: "0", MEMORY_HIGH: "max"}
"""What kubelet writes so that no value of an earlier one lasts."""


class Ability(Struct, frozen=True):
    """What can be set at all: by the host (cgroup v2) and by the connected runtime (oom_score_adj)."""

    cgroup_v2: bool = True
    oom_score_adj: bool = True


def wanted_oom_score_adj(
    request: Request, container: Container, machine: Machine, outside: OutsideRequests
) -> int | None:
    """The oom_score_adj to set; None when the spec carries one, or the container opted out.

    Where the operator does not take limits for requests, a container that requests nothing gets none.
    """
    if request.opted_out or carried_oom_score_adj(container) is not None:
        return None
    inferred = request.qos_source is QosSource.INFERRED and outside is not OutsideRequests.LIMITS
    if inferred and request.qos is QosClass.BEST_EFFORT:
        return None
    return oom_score_adj(request.qos, request.memory.likely_low_bytes, machine.memory_bytes)


def adjustment_for(
    basis: Basis,
    ability: Ability,
    shared: CpuSet,
    decision: Decision,
    container: Container,
) -> Adjustment:
    """What to change in the spec of *container*, which is being created.

    *shared* is the shared pool as it will be once the container exists. A container that opted out is left
    as it is.
    """
    machine, policy = basis.machine, basis.policy
    request, placement = decision.request, decision.placement
    if request.opted_out:
        return Adjustment()
    limited = (container.resources.memory_limit_bytes or 0) > 0
    limit_bytes = None if limited else request.memory_limit_bytes
    return Adjustment(
        cpuset_cpus=cpus_for(decision, shared),
        cpuset_mems=placement.mems if request.pinned_mems is None else None,
        memory_limit_bytes=limit_bytes,
        oom_score_adj=wanted_oom_score_adj(request, container, machine, policy.outside_requests)
        if ability.oom_score_adj and policy.set_oom_score_adj
        else None,
        unified=_unified(basis, request, container.resources) if ability.cgroup_v2 else {},
        memory_policy=placement.memory_policy,
        environment=environment_of(machine, decision, container.given_environment)
        if request.environment
        else {},
        exec_cpus=None
        if request.exec_cpus is None or container.exec_cpus
        else exec_cpus_of(machine, decision),
        hugepage_limits_bytes=_claimed_hugepages(request.claimed, container.resources)
        if request.claimed is not None
        else {},
    )


def _claimed_hugepages(share: ClaimShare, present: Resources) -> dict[int, int]:
    """The limits of a container for the huge pages of its resource claims, by the size of the pages, where
    its spec has lower ones or none: kubelet limits those that it knows no request for to 0."""
    claimed = by_page_size(share.amounts_bytes)
    return {
        size: amount
        for size, amount in sorted(claimed.items())
        if present.hugepage_limits_bytes.get(size, 0) < amount
    }


def exec_cpus_of(machine: Machine, decision: Decision) -> CpuSet | None:
    """The CPUs of processes that enter a container later, before they are in its cgroup; None for any.

    Of them the kernel keeps what the cgroup has, at every change, and all of the cgroup's where that is none
    (Linux 6.2): so none of its own is among them but perhaps the first, and all that may ever be shared are.
    An affinity that is set within the cgroup would fail where both have no CPU in common, and with it probes.
    """
    if not _has_exec_cpus(decision):
        return None
    own = decision.placement.own_cpus
    others = CpuSet(machine.cpu_by_id) - own
    return others | CpuSet([min(own)]) if decision.request.exec_cpus is ExecCpus.FIRST else others


def _has_exec_cpus(decision: Decision) -> bool:
    """Whether processes that enter a container later can be kept to other CPUs than all of its own, as it
    wishes."""
    wish, placement = decision.request.exec_cpus, decision.placement
    return bool(wish and placement.own_cpus and (wish is ExecCpus.FIRST or placement.beside_cpus))


def own_cpu_notes(decision: Decision) -> tuple[Reason, ...]:
    """What a container wishes of CPUs of its own and does not have of those that it was given, whatever
    runtime and kernel can do. One that opted out has none of its wishes, and one that is refused nothing."""
    request, placement = decision.request, decision.placement
    keys = wishes_of_own_cpus(request)
    if not keys or request.opted_out or decision.outcome is Outcome.REFUSED:
        return ()
    own = CpuSet() if request.pinned_cpus is not None else placement.exclusive_cpus
    lacking: dict[str, list[str]] = {}
    for key in keys:
        if not (own or (key in _OF_CLAIMED_CPUS and placement.claimed_cpus)):
            lacking.setdefault(_CODES.get(key, NO_OWN_CPUS), []).append(key)
    if request.exclusive_cpus:
        # That too few are left is said of these already.
        lacking.pop(NO_OWN_CPUS, None)
    for_own = "for containers with CPUs of their own"
    notes = [
        Reason(code, f"{' and '.join(some)} {verb_after(some, 'is')} {for_own}")
        for code, some in lacking.items()
    ]
    if request.exec_cpus is ExecCpus.SHARED and EXEC_NOT_APART not in lacking and not placement.beside_cpus:
        text = "exec-cpus is shared, and it has no shared CPUs beside its own; first takes one of these"
        notes.append(Reason(EXEC_NOT_APART, text))
    if request.partition and NOT_ISOLATED not in lacking and not isolated_cpus(decision):
        text = "cpu-partition is for containers all whose CPUs are theirs alone"
        notes.append(Reason(NOT_ISOLATED, text))
    return tuple(notes)


def exec_notes(decision: Decision, origin: Origin) -> tuple[Reason, ...]:
    """That processes which enter a container later, which comes as *origin* says, cannot be kept to CPUs."""
    if origin.changes_spec or not _has_exec_cpus(decision):
        return ()
    return (Reason(EXEC_NOT_APART, "a hook cannot set execCPUAffinity"),)


def isolated_cpus(decision: Decision) -> CpuSet:
    """The CPUs that are to be a partition: all that a container may use, and no other one."""
    request, placement = decision.request, decision.placement
    with_others = placement.beside_cpus or (is_member(request) and shares_cpus(request))
    alone = not with_others and not request.cpus_chosen_by_others
    return placement.exclusive_cpus if request.partition and alone else CpuSet()


def isolation_notes(decision: Decision, *, cgroup_v2: bool) -> tuple[Reason, ...]:
    """That this host cannot isolate the CPUs of a container as it wishes."""
    if cgroup_v2 or not decision.request.partition or not decision.placement.exclusive_cpus:
        return ()
    return (Reason(NOT_ISOLATED, "cpu-partition needs cgroup v2, and this host has cgroup v1"),)


def resized(
    basis: Basis,
    ability: Ability,
    shared: CpuSet,
    entry: Entry,
    change: Resources,
) -> Entry:
    """*entry*, decided for a changed spec, with what is now to be set if the container came without NRI."""
    origin = entry.origin
    if isinstance(origin, Nri):
        return entry
    spec = changed_resources(origin.container.resources, change)
    container = replace(origin.container, resources=spec)
    applied = adjustment_for(basis, ability, shared, entry.decision, container)
    return replace(entry, recorded_origin=replace(origin, container=container, applied=applied))


def wanted_for(entry: Entry, shared: CpuSet) -> Adjustment:
    """What is to be set now for a container that came without NRI; what others pinned is left out."""
    decision = entry.decision
    mems = decision.placement.mems if decision.request.pinned_mems is None else None
    return replace(entry.origin.applied, cpuset_cpus=cpus_for(decision, shared), cpuset_mems=mems)


def cpus_for(decision: Decision, shared: CpuSet) -> CpuSet | None:
    """The cpuset.cpus that a container should have; None when somebody else decides that."""
    request = decision.request
    if request.pinned_cpus is not None or request.opted_out:
        return None
    placement = decision.placement
    apart = placement.exclusive_cpus.mask or placement.pool_cpus.mask or placement.claimed_cpus is not None
    return placement.cpus_among(shared) if apart else shared


def cpus_updates(
    ledger: Ledger, shared: CpuSet, first: Collection[str] = (), most: int | None = None
) -> list[Update]:
    """Updates for the containers for which the runtime has other CPUs than they should have: of the *first*,
    and of *most* of the others, None for all; *shared* are the CPUs of those without exclusive CPUs."""
    if not ledger.has_due_updates(shared):
        return []
    named = filter(None, (_cpus_update(ledger, key, shared) for key in first))
    others = (_cpus_update(ledger, key, shared) for key in ledger.due_ids(shared) if key not in first)
    return sorted((*named, *islice(filter(None, others), most)), key=lambda one: one.container_id)


def _cpus_update(ledger: Ledger, container_id: str, shared: CpuSet) -> Update | None:
    entry = ledger.entries.get(container_id)
    if entry is None or not entry.origin.runtime_applies:
        return None
    cpus = cpus_for(entry.decision, shared)
    due = cpus is not None and cpus != entry.notified_cpus
    return Update(container_id, cpuset_cpus=cpus) if due else None


def nodes_updates(ledger: Ledger, container_ids: Iterable[str]) -> list[Update]:
    """Updates for containers whose nodes changed; *ledger* has them where they go. Those that are gone,
    or are not ours to place any more, are passed over."""
    entries = [ledger.entries[key] for key in container_ids if key in ledger.entries]
    return [
        Update(entry.container_id, cpuset_mems=mems)
        for entry in entries
        if (mems := entry.decision.placement.mems) is not None
    ]


def merged(memory: Iterable[Update], cpus: Iterable[Update]) -> tuple[Update, ...]:
    """One update per container: NRI fails a reply that claims a field of a container twice."""
    by_id = {update.container_id: update for update in memory}
    for update in cpus:
        base = by_id.get(update.container_id, update)
        by_id[update.container_id] = replace(base, cpuset_cpus=update.cpuset_cpus)
    return tuple(by_id[key] for key in sorted(by_id))


def for_one_reply(updates: Sequence[Update], always: Collection[str], most: int) -> list[Update]:
    """Those of *updates* that go out with one reply: updates of nodes, those of the containers *always*, and
    *most* of the others, which have their CPUs from us already."""
    chosen = []
    for update in updates:
        if update.cpuset_mems is None and update.container_id not in always:
            if most == 0:
                continue
            most -= 1
        chosen.append(update)
    return chosen


def memory_qos_values(
    qos: MemoryQos,
    request: Request,
    limit_bytes: int | None,
    allocatable_bytes: int,
    kubelet: KubeletRules = NEWEST,
) -> dict[str, int]:
    """MemoryQoS' values by cgroup file, in bytes (KEP-2570 as *kubelet* has it).

    memory.high is what kubelet sets; None as a limit is none. With TieredReservation a Guaranteed request is
    protected by memory.min, a Burstable one by memory.low. Where the request is an interval, its usual low
    end is protected and its high end throttled, so that neither is overdone.
    """
    values = memory_protection(qos, request.qos, request.memory.likely_low_bytes)
    if qos.throttling_factor is not None:
        high_bytes = memory_high_bytes(
            request.memory.high_bytes, limit_bytes or 0, allocatable_bytes, qos.throttling_factor, kubelet
        )
        if high_bytes is not None:
            values[MEMORY_HIGH] = high_bytes
    return values


def _unified(basis: Basis, request: Request, present: Resources) -> dict[str, str]:
    """Keys that the spec does not set, nor a field of it that is written to the same file. What kubelet
    writes into every container where nothing is due is nobody's choice."""
    values = _memory_qos(basis, request)
    if not basis.policy.single_process_oom_kill:
        values[OOM_GROUP] = "1"
    if present.memory_reservation_bytes is not None:
        values.pop(MEMORY_LOW, None)
    if not present.unified:
        return values
    resets = _resets_of_kubelet(basis, request)
    return {
        key: value
        for key, value in values.items()
        if key not in present.unified or present.line(key) == resets.get(key)
    }


def changed_memory_qos(
    basis: Basis, before: Request, after: Request, present: Resources, change: Resources
) -> dict[str, str]:
    """MemoryQoS' keys that get another value with a *change* of the *present* resources. A key that has not
    the value which was due *before* is somebody else's, and so is a value in the change, but for what kubelet
    writes where nothing is due."""
    if basis.policy.memory_qos is None or after.opted_out:
        return {}
    due, now_due = _memory_qos(basis, before), _memory_qos(basis, after)
    if present.memory_reservation_bytes is not None or change.memory_reservation_bytes is not None:
        now_due.pop(MEMORY_LOW, None)
    resets, changed = _resets_of_kubelet(basis, after), dict[str, str]()
    for key, reset in _RESETS.items():
        had, shown, written = due.get(key, ""), present.line(key), change.line(key)
        ours = shown in (had, resets.get(key)) and written in ("", resets.get(key))
        wanted = now_due.get(key, reset if had else "")
        if ours and wanted not in ("", written or shown):
            changed[key] = wanted
    return changed


def _memory_qos(basis: Basis, request: Request) -> dict[str, str]:
    """What MemoryQoS sets, by key; nothing where it is not configured."""
    machine, policy = basis.machine, basis.policy
    if policy.memory_qos is None:
        return {}
    reserved_bytes = sum(sum(row.values()) for row in policy.reserved_bytes.values())
    allocatable, limit_bytes = max(0, machine.memory_bytes - reserved_bytes), request.memory_limit_bytes
    amounts = memory_qos_values(policy.memory_qos, request, limit_bytes, allocatable, policy.kubelet_rules)
    return {key: str(amount) for key, amount in amounts.items()}


def _resets_of_kubelet(basis: Basis, request: Request) -> dict[str, str]:
    """The values that are nobody's choice in the spec of a container with that request."""
    rules = basis.policy.kubelet_rules
    of_kubelet = rules.resets_memory_qos and request.qos_source is QosSource.CGROUP_PARENT
    return _RESETS if of_kubelet else {}

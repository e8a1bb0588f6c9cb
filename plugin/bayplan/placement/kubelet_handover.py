"""Containers go from kubelet's static managers to bayplan and back, and nothing about them is changed. Pure.

*Taken over*: what kubelet's state files say of containers is promised from now on. kubelet knows a container
by its pod's uid and its name, the ledger by the runtime's id: the containers that the runtime has described
connect the two. Invariant: a container that is taken over has the CPUs and the nodes that it had; where files
and container do not agree nothing is taken over.

*Handed back*: what the files have to say so that kubelet's managers go on with the containers that bayplan
has placed. At its start kubelet decides anew about every running container that is not in its files, and
gives to anybody the CPUs that no file mentions. Invariant: a state is made only if neither changes a
container.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.interface import Engine
from bayplan.engines.kubelet.booking import memory_need
from bayplan.engines.kubelet.cpu_state import CpuManagerError, CpuState
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.engines.kubelet.managers import PreparedManagers, managers_state
from bayplan.engines.kubelet.memory_state import Blocks, MemoryManagerError, MemoryState
from bayplan.engines.kubelet.state_files import CPU_FILE, MEMORY_FILE, start
from bayplan.errors import Problem
from bayplan.kubelet.manager_options import ManagerOptions, MemoryManagerPolicy
from bayplan.kubelet.pod import FeatureGates
from bayplan.model.basis import Allocatable, Basis
from bayplan.model.claims import sum_of
from bayplan.model.decision import Decision, Outcome, QosClass, QosSource, Reason
from bayplan.model.ledger import Entry, Ledger
from bayplan.placement.foreign_cpusets import TAKEN_OVER, sharing
from bayplan.quantity import counted
from bayplan.sets import CpuSet, NodeSet, cpus_text, nodes_text

Names = Mapping[str, tuple[str, str]]
"""Pod uid and container name by container id."""


class KubeletState(Struct, frozen=True):
    """What kubelet's files say; None for a file that is left out."""

    cpus: CpuState | None = None
    memory: MemoryState | None = None

    def containers(self) -> list[tuple[str, str]]:
        """The containers that something is assigned to, by pod uid and name."""
        found = set[tuple[str, str]]()
        if self.cpus is not None:
            found.update((uid, name) for uid, name, _ in self.cpus.items())
        if self.memory is not None:
            assignments = self.memory.assignments.items()
            found.update((uid, name) for uid, each in assignments for name, blocks in each.items() if blocks)
        return sorted(found)


class TakeOver(Struct, frozen=True):
    """The *ledger* with what kubelet had assigned. ``taken`` are the ids of the containers it had assigned
    something to, ``sharing`` of others that it kept on the shared CPUs, ``absent`` the containers of the
    files that do not run. With ``problems`` the ledger is the one before."""

    ledger: Ledger
    taken: tuple[str, ...] = ()
    sharing: tuple[str, ...] = ()
    absent: tuple[tuple[str, str], ...] = ()
    problems: tuple[Problem, ...] = ()


class _Found(Struct):
    """One container of the files that runs."""

    entry: Entry
    cpus: CpuSet | None
    blocks: Blocks | None

    @property
    def nodes(self) -> NodeSet | None:
        """The nodes that its memory is bound to."""
        return None if not self.blocks else NodeSet(node for one in self.blocks for node in one.nodes)


def take_over(
    basis: Basis,
    engine: Engine,
    names: Names,
    state: KubeletState,
) -> TakeOver:
    """What becomes of the ledger when *state*, whose files are good on *machine*, is taken over.

    *names* are those of the containers that run. Containers that opted out stay as they are.
    """
    ledger = basis.ledger
    ids = {name: key for key, name in names.items() if key in ledger.entries}
    found, absent = list[_Found](), list[tuple[str, str]]()
    for uid, name in state.containers():
        key = ids.get((uid, name))
        if key is None:
            absent.append((uid, name))
        elif not ledger.entries[key].decision.request.opted_out:
            cpus = None if state.cpus is None else state.cpus.of(uid, name)
            blocks = None if state.memory is None else state.memory.blocks(uid, name)
            found.append(_Found(ledger.entries[key], cpus, blocks))
    entries = [_taken(basis, engine, one, state) for one in found]
    problems = (*_differences(found, entries), *_contended(basis, found))
    if problems:
        return TakeOver(ledger, absent=tuple(absent), problems=problems)
    after = ledger
    for entry in entries:
        after = after.with_entry(entry)
    pool = None if state.cpus is None else state.cpus.shared
    members = () if pool is None else tuple(sharing(after, lambda cpus: cpus == pool))
    for entry in members:
        after = after.with_entry(entry)
    taken = tuple(sorted(entry.container_id for entry in entries))
    others = tuple(sorted(entry.container_id for entry in members if entry.container_id not in taken))
    return TakeOver(after, taken, others, tuple(absent))


def _taken(
    basis: Basis,
    engine: Engine,
    placed: _Found,
    state: KubeletState,
) -> Entry:
    """The entry of a container once it is ours. What a file that is left out would say stays as it is."""
    ledger = basis.ledger
    entry = placed.entry
    request, before = entry.decision.request, entry.decision.placement
    cpus, mems, notified = before.exclusive_cpus, before.mems, entry.notified_cpus
    if state.cpus is not None and placed.cpus is not None:
        request, cpus, notified = replace(request, pinned_cpus=None), placed.cpus, placed.cpus
    if state.memory is not None and placed.nodes is not None:
        request, mems = replace(request, pinned_mems=None), placed.nodes
    request = replace(request, pinned_by_update=False)
    base = ledger.without(entry.container_id)
    placement = engine.adopt(basis.with_ledger(base), request, mems or request.pinned_mems)
    placement = replace(placement.staying(), mems=mems, exclusive_cpus=cpus)
    what = [cpus_text(placed.cpus)] if placed.cpus else []
    what += [f"memory on {nodes_text(placed.nodes)}"] if placed.nodes else []
    reason = Reason(TAKEN_OVER, f"kubelet had given it {' and '.join(what)}; taken over from its state files")
    return replace(
        entry, decision=Decision(request, Outcome.PLACED, placement, (reason,)), notified_cpus=notified
    )


def _differences(found: list[_Found], entries: list[Entry]) -> Iterator[Problem]:
    """In what the containers are not as the files say; *entries* are what would be promised to them."""
    for container, entry in zip(found, entries, strict=True):
        request, placement = container.entry.decision.request, container.entry.decision.placement
        name = f"{request.name}, in a file"
        cpus = placement.exclusive_cpus or request.pinned_cpus
        if container.cpus is not None and cpus != container.cpus:
            yield Problem(
                name, cpus_text(container.cpus), f"the CPUs it has: {'all' if cpus is None else cpus}"
            )
        nodes = placement.mems or request.pinned_mems
        if container.nodes is not None and nodes != container.nodes:
            yield Problem(
                name, nodes_text(container.nodes), f"the nodes it has: {'all' if nodes is None else nodes}"
            )
        if any(block.nodes != container.nodes for block in container.blocks or ()):
            yield Problem(name, "memory of several sets of nodes", "one set for all of it")
        promised = _promised(entry)
        sizes = {block.resource: block.size_bytes for block in container.blocks or () if block.size_bytes}
        if container.blocks and sizes != promised:
            yield Problem(name, _amounts(sizes), f"what it asks for: {_amounts(promised)}")


def _promised(entry: Entry) -> dict[str, int]:
    return dict(entry.decision.placement.promise.amounts_bytes)


def _amounts(bytes_by_resource: Mapping[str, int]) -> str:
    listed = [
        f"{counted(amount, 'byte')} of {resource}" for resource, amount in sorted(bytes_by_resource.items())
    ]
    return ", ".join(listed) or "no memory"


def _contended(basis: Basis, found: list[_Found]) -> Iterator[Problem]:
    """The CPUs that cannot be one container's alone here."""
    machine, policy, ledger = basis.machine, basis.policy, basis.ledger
    own = {one.entry.container_id for one in found if one.cpus}
    owners: dict[int, str] = {}
    for entry in ledger.entries.values():
        if entry.container_id not in own:
            owners |= dict.fromkeys(entry.decision.placement.exclusive_cpus, entry.decision.request.name)
    for one in found:
        name, cpus = one.entry.decision.request.name, one.cpus or CpuSet()
        reserved = cpus & Allocatable(machine, policy).reserved_cpus
        if reserved:
            expected = "none that is reserved here; reservedSystemCPUs as kubelet has them"
            yield Problem(f"{name}, in a file", cpus_text(reserved), expected)
        for other in sorted({owners[cpu] for cpu in cpus if cpu in owners}):
            yield Problem(f"{name}, in a file", cpus_text(cpus), f"none of those that {other} has to itself")
        owners |= dict.fromkeys(cpus, name)


Value = TypeVar("Value")


class HandedBack(Struct, frozen=True):
    """The state for kubelet's files, and the names of its ``containers``. ``problems`` say that kubelet would
    not go on with it."""

    cpus: CpuState
    memory: MemoryState
    containers: tuple[str, ...]
    problems: tuple[Problem, ...] = ()


def hand_back(basis: Basis, options: ManagerOptions, names: Names) -> HandedBack:
    """The state of kubelet's static managers when they hold what the ledger promises to kubelet's containers.

    The policy of *basis* and *options* are those that kubelet is going to start with; *names* are the pod
    uids and names of the containers that run.
    """
    ledger = basis.ledger
    kubelets = [entry for entry in ledger.entries.values() if _is_placed_by_kubelet(entry)]
    own = [entry for entry in kubelets if entry.container_id in names]
    problems = [problem for entry in kubelets for problem in _wrong(entry, names)]
    problems += _not_of_kubelet(ledger, kubelets)
    problems += _overlapping(kubelets)
    engine, prepared = KubeletEngine(options), PreparedManagers.of(basis.allocatable, options)
    booked = engine.converted(basis.with_ledger(Ledger.of(map(_by_itself, own))))
    problems += _short(booked)
    state = managers_state(MemoryManagerPolicy.STATIC, prepared.empty, prepared.kubelet.cpus, booked)
    cpus = CpuState(state.cpus.shared, _renamed(state.cpus.assignments, names))
    memory = MemoryState(state.memory.state.nodes, _renamed(state.memory.state.assignments, names))
    if not problems:
        problems += _refused(prepared, cpus, memory)
    listed = tuple(sorted(entry.decision.request.name for entry in own))
    return HandedBack(cpus, memory, listed, tuple(problems))


def _is_placed_by_kubelet(entry: Entry) -> bool:
    """Whether kubelet's static managers give something to such a container. Their Memory Manager binds all
    Guaranteed ones to nodes, but those of pods with resources as a whole."""
    request = entry.decision.request
    guaranteed = request.qos is QosClass.GUARANTEED and request.qos_source is QosSource.CGROUP_PARENT
    return guaranteed and not request.pod_level


def _by_itself(entry: Entry) -> Entry:
    """*entry* without the room that is kept for the rest of its pod, of which kubelet's files know
    nothing."""
    placement = replace(entry.decision.placement, affinity=None)
    return replace(entry, decision=replace(entry.decision, placement=placement))


def _wrong(entry: Entry, names: Names) -> Iterator[Problem]:
    """Why kubelet would place that container anew."""
    request, placement = entry.decision.request, entry.decision.placement
    uid, _ = names.get(entry.container_id, ("", ""))
    if not uid:
        yield Problem(request.name, "no uid of its pod", "one, which kubelet knows it by")
    if request.opted_out or request.pinned_cpus is not None or request.pinned_mems is not None:
        expected = "CPUs and nodes that bayplan gave it; kubelet would place it anew"
        yield Problem(request.name, "CPUs or nodes that bayplan leaves alone", expected)
        return
    have, wanted = len(placement.exclusive_cpus), request.exclusive_cpus
    if have != wanted:
        expected = f"{wanted}, which kubelet would give it from others"
        yield Problem(request.name, f"{counted(have, 'CPU')} of its own", expected)
    if memory_need(request) and placement.mems is None:
        yield Problem(
            request.name, "memory on any node", "nodes that it is bound to; kubelet would choose some"
        )


def _not_of_kubelet(ledger: Ledger, kubelets: list[Entry]) -> Iterator[Problem]:
    """A problem for each container with CPUs of its own that kubelet does not know."""
    known = {entry.container_id for entry in kubelets}
    for entry in ledger.entries.values():
        cpus = entry.decision.placement.exclusive_cpus
        if cpus and entry.container_id not in known:
            expected = "none, as it is not kubelet's, which would give them to others"
            yield Problem(entry.decision.request.name, f"{cpus_text(cpus)} of its own", expected)


def _overlapping(kubelets: list[Entry]) -> Iterator[Problem]:
    """The sets of nodes that kubelet, which groups nodes, could not have chosen beside each other."""
    users: dict[NodeSet, str] = {}
    for entry in kubelets:
        if entry.decision.placement.mems is not None and memory_need(entry.decision.request):
            users.setdefault(entry.decision.placement.mems, entry.decision.request.name)
    for (one, name), (other, beside) in combinations(users.items(), 2):
        if not one.isdisjoint(other):
            expected = f"the same as or none of {nodes_text(other)} of {beside}, as kubelet groups nodes"
            yield Problem(name, nodes_text(one), expected)


def _short(booked: Ledger) -> Iterator[Problem]:
    """A problem for each container that would be promised less than it asks for once kubelet's reservations
    are kept."""
    for entry in booked.entries.values():
        request, total = entry.decision.request, sum_of(entry.decision.placement.booked_bytes.values())
        for resource, need_bytes in sorted(memory_need(request).items()):
            if entry.decision.placement.mems is not None and total.get(resource, 0) != need_bytes:
                found = f"{counted(total.get(resource, 0), 'byte')} of {resource} promised"
                yield Problem(
                    request.name, found, f"{need_bytes}, within what kubelet's reservedMemory leaves"
                )


def _refused(prepared: PreparedManagers, cpus: CpuState, memory: MemoryState) -> Iterator[Problem]:
    """What kubelet would not start with, in its own words: the files as a whole."""
    expected = "a state that kubelet starts with"
    try:
        assert prepared.kubelet.cpus is not None, "the options are those of the static policy"
        prepared.kubelet.cpus.start(cpus)
    except CpuManagerError as error:
        yield Problem(CPU_FILE, str(error), expected)
    try:
        reserved_bytes = prepared.policy.reserved_bytes
        start(MemoryManagerPolicy.STATIC, prepared.machine, reserved_bytes, FeatureGates(), memory)
    except MemoryManagerError as error:
        yield Problem(MEMORY_FILE, str(error), expected)


def _renamed(assignments: Mapping[str, Mapping[str, Value]], names: Names) -> dict[str, dict[str, Value]]:
    """*assignments*, which are by ids of the runtime, by pod uid and name."""
    renamed: dict[str, dict[str, Value]] = {}
    for containers in assignments.values():
        for container_id, value in containers.items():
            uid, name = names[container_id]
            renamed.setdefault(uid, {})[name] = value
    return renamed

"""What kubelet's state files have to say so that its static managers go on with the containers that bayplan
has placed, and leave each where it is.

At its start kubelet decides anew about every running container that is not in its files, and gives to anybody
the CPUs that no file mentions. Invariant: a state is made only if neither changes a container. Pure.
"""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.kubelet.booking import memory_need
from bayplan.engines.kubelet.cpu_state import CpuManagerError, CpuState
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.engines.kubelet.ledger_state import managers_state
from bayplan.engines.kubelet.managers import PreparedManagers
from bayplan.engines.kubelet.memory_restore import start
from bayplan.engines.kubelet.memory_state import MemoryManagerError, MemoryState
from bayplan.engines.kubelet.state_files import CPU_FILE, MEMORY_FILE
from bayplan.errors import Problem
from bayplan.kubelet.manager_options import ManagerOptions, MemoryManagerPolicy
from bayplan.kubelet.pod import FeatureGates
from bayplan.model.basis import Basis
from bayplan.model.claims import sum_of
from bayplan.model.decision import QosClass, QosSource
from bayplan.model.ledger import Entry, Ledger
from bayplan.placement.take_over import Names
from bayplan.quantity import counted
from bayplan.sets import NodeSet, cpus_text, nodes_text

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
    """*entry* without the room that is kept for the rest of its pod: kubelet's files know nothing of it."""
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
    """The containers with CPUs of their own that kubelet does not know of."""
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
    """The containers that are not promised all they ask for where kubelet's reservations are kept."""
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

"""kubelet's two state files, read by somebody else than kubelet: all that is wrong with both at once, and
damage, another policy and another machine told apart.

kubelet ends at the first of these, with one sentence; that sentence is part of the problem, because people
search for it. What a file says of reservations is not held against anything: they are kubelet's.

Whether a recorded state can be the state of this machine is found by booking all of it again. kubelet's
comparison: nodes, counts, groups and sizes must be the same, what is free and reserved only in sum over each
group, because the split inside a group depends on the order of events. It books in random order, which gives
random answers when allocations of different sets share a node. Here narrow sets are booked first and the sums
are taken over all nodes that such sets connect: whatever this program records is accepted.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from bayplan.engines.kubelet import cpu_checkpoint as cpu_file
from bayplan.engines.kubelet import memory_checkpoint as memory_file
from bayplan.engines.kubelet.checkpoint_text import CORRUPTED, json_of, payload_of
from bayplan.engines.kubelet.cpu_state import CpuState, CpuStateError
from bayplan.engines.kubelet.memory_checkpoint import Checkpoint
from bayplan.engines.kubelet.memory_manager import MemoryManager
from bayplan.engines.kubelet.memory_state import (
    Block,
    MemoryConfigurationError,
    MemoryManagerError,
    MemoryState,
    MemoryStateError,
    Nodes,
    book,
    empty_nodes,
    narrowest_set,
)
from bayplan.errors import ParseError, Problem, excerpt
from bayplan.kubelet.manager_options import STATIC, MemoryManagerPolicy
from bayplan.kubelet.pod import FeatureGates
from bayplan.model.machine import MEMORY, Machine, hugepages
from bayplan.quantity import counted, format_bytes
from bayplan.sets import CpuSet, NodeSet, cpus_text

CPU_FILE: Final = cpu_file.FILE_NAME
MEMORY_FILE: Final = memory_file.FILE_NAME

_KUBELETS: Final = "what kubelet writes"
_INTACT: Final = "the one of its content, as kubelet writes it (kubelet: checkpoint is corrupted)"
_WHOLE_PODS: Final = "none; what a pod has as a whole is not taken over"


def read_cpu_file(
    text: str, machine: Machine, reserved: CpuSet, refs: Mapping[str, tuple[str, str]]
) -> tuple[CpuState, tuple[Problem, ...]]:
    """The state in a cpu_manager_state of any version, and what is wrong with it on *machine*.

    *reserved* are the only CPUs that it may lack (strict-cpu-reservation), *refs* are pod uid and container
    name by container id, which version 1 lacks.
    """
    try:
        content = cpu_file.read_checkpoint(text, refs, pod_level_managers=True)
    except CpuStateError as error:
        if str(error).endswith(CORRUPTED):
            return CpuState(), (_wrong_checksum(CPU_FILE, text),)
        return CpuState(), (Problem(f"{CPU_FILE}, content", excerpt(str(error)), _KUBELETS),)
    if content.policy_name != STATIC:
        return CpuState(), (_other_policy(CPU_FILE, content.policy_name, STATIC),)
    try:
        state = cpu_file.state_of(content)
    except CpuStateError as error:
        return CpuState(), (Problem(f"{CPU_FILE}, content", excerpt(str(error)), _KUBELETS),)
    return state, tuple(_wrong_cpus(state, machine, reserved))


def read_memory_file(text: str, machine: Machine) -> tuple[MemoryState, tuple[Problem, ...]]:
    """The state in a memory_manager_state of any version, and what is wrong with it on *machine*."""
    try:
        content = memory_file.read_checkpoint(text, MEMORY_FILE, pod_level_managers=True)
        state = memory_file.state_of(content)
    except ParseError as error:
        found = excerpt(f"{error.found} where {error.expected} was expected")
        return MemoryState(), (Problem(f"{MEMORY_FILE}, content", found, _KUBELETS),)
    except memory_file.CheckpointError as error:
        if error.problem.endswith(CORRUPTED):
            return MemoryState(), (_wrong_checksum(MEMORY_FILE, text),)
        return MemoryState(), (Problem(f"{MEMORY_FILE}, content", excerpt(error.problem), _KUBELETS),)
    static = MemoryManagerPolicy.STATIC.value
    if content.policy_name != static:
        return MemoryState(), (_other_policy(MEMORY_FILE, content.policy_name, static),)
    return state, tuple(_wrong_memory(content, state, machine))


def _wrong_checksum(file: str, text: str) -> Problem:
    """A problem with the checksum that counts in a file, which is one of JSON."""
    name = "checksum" if payload_of(text) is None else "dataChecksum"
    found = {key.lower(): value for key, value in json_of(text).items()}
    return Problem(f"{file}, {name}", excerpt(repr(found.get(name.lower(), 0))), _INTACT)


def _other_policy(file: str, found: str, expected: str) -> Problem:
    return Problem(
        f"{file}, policyName", repr(found), f"{expected!r}; under another policy nothing is assigned"
    )


def _wrong_cpus(state: CpuState, machine: Machine, reserved: CpuSet) -> Iterator[Problem]:
    assigned = CpuSet()
    for pod_uid, name, cpus in state.items():
        assigned |= cpus
        if not cpus.isdisjoint(state.shared):
            where, expected = f"{CPU_FILE}, {pod_uid}/{name}", f"none of the defaultCpuSet {state.shared}"
            yield Problem(where, cpus_text(cpus), expected)
    for pod_uid, cpus in sorted(state.budgets.items()):
        assigned |= cpus
        yield Problem(f"{CPU_FILE}, podEntries, {pod_uid}", cpus_text(cpus), _WHOLE_PODS)
    known, online = state.shared | assigned, machine.online_cpus
    if not known <= online:
        yield _other_machine(CPU_FILE, cpus_text(known - online), f"CPUs of this machine: {online}")
    if not online - reserved <= known:
        yield _other_machine(CPU_FILE, f"{cpus_text(known)} only", f"all of this machine: {online}")


def _wrong_memory(content: Checkpoint, state: MemoryState, machine: Machine) -> Iterator[Problem]:
    for pod_uid in sorted(state.pod_blocks):
        yield Problem(f"{MEMORY_FILE}, podEntries, {pod_uid}", "memory of the pod", _WHOLE_PODS)
    changed = tuple(_changed_nodes(state, machine))
    yield from changed
    if changed or not content.nodes:
        return
    reserved = {
        node: {resource: table.system_reserved for resource, table in memory.tables.items()}
        for node, memory in state.nodes.items()
    }
    try:
        gates = FeatureGates(pod_level_resource_managers=bool(state.pod_blocks))
        start(MemoryManagerPolicy.STATIC, machine, reserved, gates, state)
    except MemoryManagerError as error:
        yield Problem(
            f"{MEMORY_FILE}, machineState", "other sums", f"those of its entries (kubelet: {error})"
        )


def _changed_nodes(state: MemoryState, machine: Machine) -> Iterator[Problem]:
    """The nodes and amounts in which *machine* is not the one of *state*."""
    here = {
        node.id: {MEMORY: node.memory_bytes}
        | {hugepages(size): amount for size, amount in node.hugepages_bytes.items()}
        for node in machine.nodes
    }
    for node in sorted(here.keys() | state.nodes.keys()):
        where = f"node {node}"
        if node not in state.nodes:
            yield _other_machine(MEMORY_FILE, f"nothing of {where}", "all nodes of this machine")
        elif node not in here:
            yield _other_machine(MEMORY_FILE, where, "nodes of this machine")
        else:
            there = {resource: table.total for resource, table in state.nodes[node].tables.items()}
            for resource in sorted(there.keys() | here[node].keys()):
                one, other = there.get(resource, 0), here[node].get(resource, 0)
                if one != other:
                    found = f"{format_bytes(one)} ({counted(one, 'byte')}) of {resource} on {where}"
                    yield _other_machine(
                        MEMORY_FILE, found, f"{format_bytes(other)} ({counted(other, 'byte')})"
                    )


def _other_machine(file: str, found: str, expected: str) -> Problem:
    return Problem(f"{file}, machine", found, f"{expected}; the machine has changed since kubelet wrote it")


def start(
    policy: MemoryManagerPolicy,
    machine: Machine,
    reserved_bytes: Mapping[int, Mapping[str, int]],
    gates: FeatureGates,
    state: MemoryState | None = None,
) -> MemoryManager:
    """A manager for *machine*, with a recorded state or without any allocation.

    Raises:
        MemoryConfigurationError: no memory at all is reserved for the system, which kubelet demands.
        MemoryStateError: the recorded state is not this machine's.
    """
    if policy is MemoryManagerPolicy.NONE:
        return MemoryManager(policy, MemoryState(), gates)
    if not any(sizes.get(MEMORY, 0) > 0 for sizes in reserved_bytes.values()):
        raise MemoryConfigurationError("[memorymanager] you should specify the system reserved memory")
    empty = empty_nodes(machine, reserved_bytes)
    recorded = state or MemoryState()
    if not recorded.nodes:
        if recorded.assignments:
            raise MemoryStateError("machine state can not be empty when it has memory assignments")
        return MemoryManager(policy, replace(recorded, nodes=empty), gates)
    if not same_state(recorded, empty, rebooked(recorded, empty)):
        raise MemoryStateError("the expected machine state is different from the real one")
    return MemoryManager(policy, recorded, gates)


def rebooked(state: MemoryState, empty: Nodes) -> Nodes:
    """The nodes after everything that *state* promises was booked on *empty* ones.

    Raises:
        MemoryStateError: a promise names a node or a resource that the machine does not have.
    """
    promises: list[Block] = []
    for pod_uid, container, blocks in state.booked():
        for block in blocks:
            _check(block, empty, pod_uid, container)
            promises.append(block)
    nodes = dict(empty)
    for block in sorted(promises, key=lambda block: len(block.nodes)):
        nodes = book(nodes, block.nodes, block.resource, block.size_bytes)
    sets: dict[int, set[NodeSet]] = {}
    for block in promises:
        for node in block.nodes:
            sets.setdefault(node, set()).add(block.nodes)
    for node, bound in sets.items():
        nodes[node] = replace(nodes[node], group=narrowest_set(bound))
    return nodes


def same_state(state: MemoryState, empty: Nodes, expected: Nodes) -> bool:
    """Whether the nodes of *state* are *expected*, apart from how connected nodes share what is reserved."""
    if state.nodes.keys() != empty.keys():
        return False
    for node, memory in state.nodes.items():
        other = expected[node]
        if memory.assignments != other.assignments or memory.group != other.group:
            return False
        if memory.tables.keys() != other.tables.keys():
            return False
        for name, table in memory.tables.items():
            known = other.tables[name]
            if (table.total, table.system_reserved, table.allocatable) != (
                known.total,
                known.system_reserved,
                known.allocatable,
            ):
                return False
    return all(_sums(state.nodes, nodes) == _sums(expected, nodes) for nodes in _connected(state))


def _check(block: Block, empty: Nodes, pod_uid: str, container: str) -> None:
    for node in block.nodes:
        where = f"(pod: {pod_uid}, container: {container}) the memory assignment uses"
        if node not in empty:
            raise MemoryStateError(f"{where} the NUMA that does not exist")
        if block.resource not in empty[node].tables:
            raise MemoryStateError(f"{where} memory resource that does not exist")


def _connected(state: MemoryState) -> list[NodeSet]:
    """The machine's nodes, split so that every promise lies within one part."""
    parts = [NodeSet((node,)) for node in state.nodes]
    for nodes in {block.nodes for _, _, blocks in state.booked() for block in blocks}:
        touched = [part for part in parts if not part.isdisjoint(nodes)]
        parts = [part for part in parts if part.isdisjoint(nodes)]
        parts.append(NodeSet(node for part in touched for node in part))
    return parts


def _sums(nodes: Nodes, where: NodeSet) -> dict[str, tuple[int, int]]:
    """What is free and reserved on *where* by resource; a resource that no node has is left out."""
    sums: dict[str, tuple[int, int]] = {}
    for node in where:
        for name, table in nodes[node].tables.items():
            free, reserved = sums.get(name, (0, 0))
            sums[name] = (free + table.free, reserved + table.reserved)
    return sums

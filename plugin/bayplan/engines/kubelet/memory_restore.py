"""Whether a recorded state can be the state of this machine, by booking all of it again.

kubelet's comparison: nodes, counts, groups and sizes must be the same, what is free and reserved only in
sum over each group, because the split inside a group depends on the order of events. It books in random
order, which gives random answers when allocations of different sets share a node. Here narrow sets are
booked first and the sums are taken over all nodes that such sets connect: whatever this program records
is accepted.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from bayplan.engines.kubelet.memory_manager import MemoryManager
from bayplan.engines.kubelet.memory_state import (
    Block,
    MemoryConfigurationError,
    MemoryState,
    MemoryStateError,
    Nodes,
    book,
    empty_nodes,
    narrowest_set,
)
from bayplan.kubelet.manager_options import MemoryManagerPolicy
from bayplan.kubelet.pod import FeatureGates
from bayplan.model.machine import MEMORY, Machine
from bayplan.sets import NodeSet


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

"""The Memory Manager's state: what each node has of each resource, and what each container was promised; and
what it refuses.

Immutable values. Booking moves amounts from a table's ``free`` to ``reserved``; nothing here decides where.
kubelet binds a node to the set of nodes of the last allocation that touched it, its *group* (``cells`` in its
state file). Nothing is released: the state is made anew from the ledger. Invariant: a state that was changed
through this module only can always be restored.

Refusals are in kubelet's own words: operators search for these texts. Each error knows the reason that
kubelet puts into the pod's status, and the figures that kubelet leaves out.
"""

import enum
from collections.abc import Iterator, Mapping
from typing import ClassVar

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.errors import BayplanError
from bayplan.model.machine import MEMORY, Machine, hugepages
from bayplan.quantity import format_bytes
from bayplan.sets import NodeSet, nodes_text


class MemoryTable(Struct, frozen=True):
    """One resource on one node, in bytes. ``allocatable`` is what is left for containers of ``total`` (for
    ordinary memory also without the huge pages); it is split into ``reserved`` and ``free``."""

    total: int
    system_reserved: int
    allocatable: int
    reserved: int
    free: int

    def moved(self, amount_bytes: int) -> "MemoryTable":
        """The table after *amount_bytes* were reserved (negative: released)."""
        return replace(self, reserved=self.reserved + amount_bytes, free=self.free - amount_bytes)


class NumaNodeState(Struct, frozen=True):
    """One node. ``assignments`` counts blocks whose set of nodes holds it, also blocks without a byte there.
    ``group`` is the node alone, or the set of nodes that its allocations are bound to."""

    tables: Mapping[str, MemoryTable]
    assignments: int
    group: NodeSet

    def free_bytes(self, resource: str) -> int:
        """What is free of a resource; nothing of one that the node does not have."""
        table = self.tables.get(resource)
        return 0 if table is None else table.free

    def allocatable_bytes(self, resource: str) -> int:
        """What containers may have of a resource at most."""
        table = self.tables.get(resource)
        return 0 if table is None else table.allocatable

    def moved(self, resource: str, amount_bytes: int) -> "NumaNodeState":
        """The node after *amount_bytes* of a resource were reserved (negative: released)."""
        if not amount_bytes:
            return self
        return replace(self, tables={**self.tables, resource: self.tables[resource].moved(amount_bytes)})


class Block(Struct, frozen=True):
    """A promise of ``size_bytes`` of one resource, somewhere on ``nodes``."""

    nodes: NodeSet
    resource: str
    size_bytes: int


Blocks = tuple[Block, ...]
Nodes = Mapping[int, NumaNodeState]


class MemoryState(Struct, frozen=True):
    """What is allocated on a machine.

    ``assignments`` maps a pod's uid to its containers' names and their blocks. ``pod_blocks`` holds the pods
    that were placed as a whole: for these the nodes are booked by the pod's blocks, and the containers'
    blocks only say how the pod's memory is shared out.
    """

    nodes: Nodes = field(default_factory=dict)
    assignments: Mapping[str, Mapping[str, Blocks]] = field(default_factory=dict)
    pod_blocks: Mapping[str, Blocks] = field(default_factory=dict)

    def blocks(self, pod_uid: str, container: str) -> Blocks | None:
        """A container's blocks; None if it has no assignment."""
        return self.assignments.get(pod_uid, {}).get(container)

    def booked(self) -> Iterator[tuple[str, str, Blocks]]:
        """What is held on the nodes: pod uid, container (empty for a pod as a whole) and blocks."""
        for pod_uid, containers in self.assignments.items():
            whole = self.pod_blocks.get(pod_uid)
            if whole:
                yield pod_uid, "", whole
            else:
                for name, blocks in containers.items():
                    yield pod_uid, name, blocks

    def with_blocks(self, pod_uid: str, container: str, blocks: Blocks) -> "MemoryState":
        """The state with a container's blocks set; the nodes are left as they are."""
        containers = {**self.assignments.get(pod_uid, {}), container: blocks}
        return replace(self, assignments={**self.assignments, pod_uid: containers})


def narrowest_set(sets: set[NodeSet]) -> NodeSet:
    """The set with the fewest nodes; of those, the one with the lowest nodes."""
    return min(sets, key=lambda nodes: (len(nodes), nodes.mask))


def empty_nodes(
    machine: Machine, reserved_bytes: Mapping[int, Mapping[str, int]]
) -> dict[int, NumaNodeState]:
    """The nodes of a machine before anything is allocated, with what is reserved for the system by node and
    resource. kubelet's arithmetic wraps around when more is reserved than there is; here nothing is left."""
    nodes = {}
    for node in machine.nodes:
        kept = reserved_bytes.get(node.id, {})
        pools = {hugepages(size): amount for size, amount in sorted(node.hugepages_bytes.items())}
        tables = {name: _unused(amount, kept.get(name, 0), amount) for name, amount in pools.items()}
        memory_bytes = node.memory_bytes
        tables[MEMORY] = _unused(memory_bytes, kept.get(MEMORY, 0), memory_bytes - sum(pools.values()))
        nodes[node.id] = NumaNodeState(tables, 0, NodeSet((node.id,)))
    return nodes


def book(nodes: Nodes, where: NodeSet, resource: str, amount_bytes: int) -> dict[int, NumaNodeState]:
    """The nodes after *amount_bytes* were taken from *where*, lowest node first, as much as each has. A node
    that gives nothing is counted and bound to the set all the same."""
    booked = dict(nodes)
    left = amount_bytes
    for node in where:
        memory = booked[node]
        given = min(left, max(0, memory.free_bytes(resource)))
        left -= given
        booked[node] = replace(memory.moved(resource, given), assignments=memory.assignments + 1, group=where)
    return booked


def _unused(total: int, system_reserved: int, usable: int) -> MemoryTable:
    allocatable = max(0, usable - system_reserved)
    return MemoryTable(total, system_reserved, allocatable, reserved=0, free=allocatable)


class MemoryManagerError(BayplanError):
    """The Memory Manager cannot do what was asked. ``reason`` is the word for the pod's status."""

    reason: ClassVar[str] = "UnexpectedAdmissionError"


class Refusal(enum.Enum):
    """The ways in which a container, or a pod as a whole, gets no memory; the values are kubelet's texts.

    NO_NODES: no set of nodes has enough free, or all that have are barred by other containers' groups.
    NOT_PREFERRED: the Topology Manager's hint is preferred, the best set of nodes is not.
    NOT_EXTENDABLE: the hint's nodes do not have enough free, and no larger set will do.
    NOT_PREFERRED_EXTENDED: a larger set would do, but is larger than the hint promised.
    GROUP: the nodes are in use by containers which are bound to other sets of nodes.
    """

    NO_NODES = "failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
    NOT_PREFERRED = "failed to find the default preferred hint"
    NOT_EXTENDABLE = "failed to find NUMA nodes to extend the current topology hint"
    NOT_PREFERRED_EXTENDED = "failed to find the extended preferred hint"
    GROUP = "preferred hint violates NUMA node allocation"


class MemoryAllocationError(MemoryManagerError):
    """No memory for a container (or for a pod with pod-level resources, whose ``container`` is empty).

    ``requested_bytes`` is by resource; ``nodes`` is the set of nodes in question, None if there was none.
    """

    def __init__(
        self,
        pod: str,
        container: str,
        refusal: Refusal,
        requested_bytes: Mapping[str, int],
        nodes: NodeSet | None,
    ) -> None:
        super().__init__(pod, container, refusal, requested_bytes, nodes)
        self.pod = pod
        self.container = container
        self.refusal = refusal
        self.requested_bytes = requested_bytes
        self.nodes = nodes

    def __str__(self) -> str:
        return f"[memorymanager] {self.refusal.value}"

    def explanation(self) -> str:
        """The same with names and figures, for humans."""
        wanted = ", ".join(f"{format_bytes(size)} {name}" for name, size in self.requested_bytes.items())
        where = "" if self.nodes is None else f" on {nodes_text(self.nodes)}"
        who = f"{self.pod}/{self.container}" if self.container else self.pod
        return f"{who} requests {wanted or 'nothing'}{where}: {self.refusal.value}"


class EmptyPodSharedPoolError(MemoryManagerError):
    """A pod with pod-level resources leaves nothing for those of its containers that share the rest."""

    reason = "EmptyPodSharedPoolError"

    def __init__(self, pod: str, problem: str) -> None:
        super().__init__(pod, problem)
        self.pod = pod
        self.problem = problem

    def __str__(self) -> str:
        return f"pod rejected, {self.problem}"


class MemoryStateError(MemoryManagerError):
    """A recorded state cannot be this machine's: kubelet refuses to start on it."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"[memorymanager] {self.problem}"


class MemoryConfigurationError(MemoryManagerError):
    """The manager cannot be made from what the operator configured."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem

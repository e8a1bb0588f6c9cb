"""The state of kubelet's managers, made from the ledger; and the placement that follows from a later state.

The state is made anew for every decision, in any order of the ledger's entries. What a container has on
each node is what was booked for it, so that state and ledger never differ. kubelet's own state, which
releases the lowest node first, may split a group's memory otherwise; the sums over a group are the same.
"""

from collections.abc import Iterator, Mapping

from bayplan.engines.kubelet.booking import REST_OF_POD, KeptForPod, kept_for_pods
from bayplan.engines.kubelet.cpu_manager import StaticCpuPolicy
from bayplan.engines.kubelet.cpu_state import CpuState
from bayplan.engines.kubelet.managers import NO_MEMORY_MANAGER, ManagersState
from bayplan.engines.kubelet.memory_manager import MemoryManager
from bayplan.engines.kubelet.memory_state import (
    Block,
    Blocks,
    MemoryState,
    Nodes,
    NumaNodeState,
    narrowest_set,
)
from bayplan.kubelet.manager_options import MemoryManagerPolicy
from bayplan.model.basis import kept_by_pin
from bayplan.model.claims import sum_of
from bayplan.model.decision import Affinity, Decision, Placement
from bayplan.model.ledger import Ledger
from bayplan.sets import CpuSet, NodeSet


def managers_state(
    policy: MemoryManagerPolicy,
    empty: Nodes,
    cpus: StaticCpuPolicy | None,
    ledger: Ledger,
    for_pod: str | None = None,
    *,
    blocks: bool = True,
) -> ManagersState:
    """What the managers have given away when everything in *ledger* is promised.

    *empty* are the machine's nodes without any promise. Containers are known by the ids of pod and container.
    What is kept for the rest of a pod is given away too, but for the pod *for_pod*. Without *blocks* the
    state does not list which container has what of the memory: a decision about another one needs no list.
    """
    entries = (*ledger.entries.values(), *ledger.retained.values())
    kept = [rest for rest in kept_for_pods(entries) if rest.pod_id != for_pod]
    return ManagersState(
        cpus=CpuState() if cpus is None else _cpus(cpus, ledger, kept),
        memory=NO_MEMORY_MANAGER
        if policy is MemoryManagerPolicy.NONE
        else _memory(policy, empty, ledger, kept, blocks=blocks),
    )


def placement_of(
    before: ManagersState, after: ManagersState, pod_uid: str, container: str, affinity: Affinity | None
) -> Placement:
    """Where a container is that was allocated between *before* and *after*, and nothing else was."""
    memory = after.memory
    mems = memory.mems(pod_uid, container)
    booked: dict[int, dict[str, int]] = {}
    for block in memory.state.blocks(pod_uid, container) or ():
        for node in block.nodes:
            amount_bytes = _reserved(memory.state.nodes[node], block.resource) - _reserved(
                before.memory.state.nodes[node], block.resource
            )
            # Without cpuset.mems only this says to which nodes it is bound: also those without a byte.
            if amount_bytes or mems is None:
                booked.setdefault(node, {})[block.resource] = amount_bytes
    return Placement(mems, after.cpus.of(pod_uid, container) or CpuSet(), booked, affinity)


def _cpus(policy: StaticCpuPolicy, ledger: Ledger, kept: list[KeptForPod]) -> CpuState:
    taken = ledger.exclusive_cpus
    assignments: dict[str, dict[str, CpuSet]] = {}
    for entry in ledger.entries.values():
        request, own = entry.decision.request, entry.decision.placement.exclusive_cpus
        if own:
            assignments.setdefault(request.pod_id, {})[request.container_id] = own
        if request.pinned_cpus is not None:
            taken |= kept_by_pin(request, policy.topology.all_cpus)
    for rest in kept:
        if rest.cpus:
            assignments.setdefault(rest.pod_id, {})[REST_OF_POD] = rest.cpus
            taken |= rest.cpus
    return CpuState(policy.managed - taken, assignments)


def _memory(
    policy: MemoryManagerPolicy, empty: Nodes, ledger: Ledger, kept: list[KeptForPod], *, blocks: bool
) -> MemoryManager:
    everything = NodeSet(empty)
    counts = dict.fromkeys(empty, 0)
    sets: dict[int, set[NodeSet]] = {node: set() for node in empty}
    for where, number in _bound(policy, everything, ledger, kept):
        for node in where:
            counts[node] += number
            sets[node].add(where)
    nodes = {}
    for node, memory in empty.items():
        group = narrowest_set(sets[node]) if sets[node] else memory.group
        nodes[node] = NumaNodeState(memory.tables, counts[node], group)
        for resource, amount_bytes in ledger.booked_bytes.get(node, {}).items():
            nodes[node] = _taken(nodes[node], resource, amount_bytes)
    for claim in ledger.resource_claims.values():
        for node, row in claim.by_node().items():
            for resource, amount_bytes in row.items() if node in nodes else ():
                nodes[node] = _taken(nodes[node], resource, amount_bytes)
    for where, need in _kept_together(everything, kept):
        for resource, amount_bytes in need.items():
            _take_together(nodes, where, resource, amount_bytes)
    assignments = _assignments(policy, everything, ledger, kept) if blocks else {}
    return MemoryManager(policy, MemoryState(nodes, assignments))


def _bound(
    policy: MemoryManagerPolicy, everything: NodeSet, ledger: Ledger, kept: list[KeptForPod]
) -> Iterator[tuple[NodeSet, int]]:
    """The sets of nodes that something is bound to, and how many promises of a resource each has."""
    # Counted by bit masks, because there are hundreds of entries and few sets.
    counts: dict[int, int] = {}
    for entry in ledger.entries.values():
        mask = _bound_to(policy, entry.decision).mask & everything.mask
        if mask:
            counts[mask] = counts.get(mask, 0) + _kinds(entry.decision.placement)
    for rest in kept:
        mask = rest.nodes.mask & everything.mask
        counts[mask] = counts.get(mask, 0) + len(rest.need)
    return ((NodeSet.of_mask(mask), count) for mask, count in counts.items() if count)


def _kept_together(everything: NodeSet, kept: list[KeptForPod]) -> list[tuple[NodeSet, Mapping[str, int]]]:
    """What is kept for pods on each set of nodes, the narrowest sets first."""
    needs: dict[int, dict[str, int]] = {}
    for rest in kept:
        need = needs.setdefault(rest.nodes.mask & everything.mask, {})
        for resource, amount_bytes in rest.need.items():
            need[resource] = need.get(resource, 0) + amount_bytes
    in_order = sorted(needs.items(), key=lambda one: (one[0].bit_count(), one[0]))
    return [(NodeSet.of_mask(mask), need) for mask, need in in_order]


def _assignments(
    policy: MemoryManagerPolicy, everything: NodeSet, ledger: Ledger, kept: list[KeptForPod]
) -> dict[str, dict[str, Blocks]]:
    """What each container, and each rest of a pod, has been promised."""
    found: dict[str, dict[str, Blocks]] = {}
    for entry in ledger.entries.values():
        where = _bound_to(policy, entry.decision) & everything
        blocks = _blocks(where, entry.decision.placement) if where else ()
        if blocks:
            found.setdefault(entry.decision.request.pod_id, {})[entry.container_id] = blocks
    for rest in kept:
        where = rest.nodes & everything
        if where and rest.need:
            needed = tuple(Block(where, resource, amount) for resource, amount in sorted(rest.need.items()))
            found.setdefault(rest.pod_id, {})[REST_OF_POD] = needed
    return found


def _take_together(nodes: dict[int, NumaNodeState], where: NodeSet, resource: str, amount_bytes: int) -> None:
    """Take so much from the nodes *where* together, the lowest first, as kubelet does."""
    for node in where:
        taken_bytes = min(amount_bytes, max(0, nodes[node].free_bytes(resource)))
        nodes[node] = _taken(nodes[node], resource, taken_bytes)
        amount_bytes -= taken_bytes


def _kinds(placed: Placement) -> int:
    """How many resources a container was promised: so often it counts on each of its nodes."""
    rows = placed.booked_bytes.values()
    return len(set().union(*rows)) if len(rows) > 1 else sum(map(len, rows))


def _blocks(where: NodeSet, placed: Placement) -> Blocks:
    """What a container was promised on *where* as a whole."""
    sizes = sum_of(placed.booked_bytes.values())
    return tuple(Block(where, resource, size_bytes) for resource, size_bytes in sorted(sizes.items()))


def _bound_to(policy: MemoryManagerPolicy, decision: Decision) -> NodeSet:
    """The set of nodes that a container's memory is counted for as a whole.

    Empty for a container that is bound to no nodes, or not by us: it makes no node a member of a group.
    """
    placed, request = decision.placement, decision.request
    if placed.mems is not None:
        return placed.mems
    if (
        policy is MemoryManagerPolicy.BEST_EFFORT
        and placed.affinity is not None
        and request.pinned_mems is None
    ):
        return NodeSet(placed.booked_bytes)
    return NodeSet()


def _taken(memory: NumaNodeState, resource: str, amount_bytes: int) -> NumaNodeState:
    """The node after so much was given away; never more than it has, as reservations may have grown."""
    return memory.moved(resource, min(amount_bytes, max(0, memory.free_bytes(resource))))


def _reserved(memory: NumaNodeState, resource: str) -> int:
    table = memory.tables.get(resource)
    return 0 if table is None else table.reserved

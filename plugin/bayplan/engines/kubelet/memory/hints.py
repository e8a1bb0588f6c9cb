"""The Memory Manager's topology hints: on which sets of nodes a request fits, described instead of listed.

A set of one node fits unless the node is bound to a group. A larger set fits if each of its nodes is unused,
or if it is exactly the group that its used nodes are bound to. So beside one region, all sets of unused nodes
with enough free, there is at most one set per used node and one per group, each looked at by itself.
"""

from collections.abc import Iterator, Mapping

from bayplan.engines.kubelet.memory.requests import Wanted
from bayplan.engines.kubelet.memory.state import Blocks, NodeMemory, Nodes
from bayplan.engines.kubelet.topology.hints import Demand, Hint, HintSet, OfSize, ProviderHints, Region
from bayplan.engines.kubelet.topology.merge import narrowest_size
from bayplan.sets import NodeSet

Reusable = Mapping[NodeSet, Mapping[str, int]]
"""Bytes by set of nodes and resource which a pod's finished init containers leave to its next containers."""


def fitting(nodes: Nodes, wanted: Wanted, reusable: Reusable) -> HintSet:
    """All sets of nodes on which *wanted* fits; empty if there are none.

    Preferred are the sets of the size of the smallest one that could hold the request if nothing else were
    allocated. As in kubelet that size does not depend on what is free.
    """
    smallest = _smallest(nodes, wanted)
    if smallest is None:
        return HintSet()
    preferred = OfSize(smallest)
    single = tuple(
        Hint(each, preferred.holds(each))
        for each in _apart(nodes)
        if _holds(nodes, each, wanted, reusable.get(each, {}))
    )
    return HintSet(single, tuple(_regions(nodes, wanted, preferred)))


def regenerated(blocks: Blocks, wanted: Wanted) -> ProviderHints:
    """The hints of a container that has its memory already: exactly the nodes that it has.

    None, no preference, if the blocks are not what is wanted.
    """
    sizes = {block.resource: block.size_bytes for block in blocks}
    if len(blocks) != len(wanted) or any(wanted.get(name) != size for name, size in sizes.items()):
        return None
    return {
        name: HintSet(tuple(Hint(block.nodes, preferred=True) for block in blocks if block.resource == name))
        for name in wanted
    }


def free_bytes(nodes: Nodes, where: NodeSet, resource: str) -> int:
    """What is free of a resource on a set of nodes."""
    return sum(nodes[node].free_bytes(resource) for node in where)


def violates_groups(nodes: Nodes, where: NodeSet) -> bool:
    """Whether the nodes are in use by allocations that are bound to another set. As in kubelet, one node
    alone never is, even inside a group; see `bayplan.engines.kubelet.memory.state` for what that takes."""
    return len(where) > 1 and any(
        nodes[node].assignments > 0 and (len(nodes[node].group) == 1 or nodes[node].group != where)
        for node in where
    )


def _smallest(nodes: Nodes, wanted: Wanted) -> int | None:
    """The size of the smallest set of nodes that could hold the request if nothing were allocated."""
    for memory in nodes.values():
        if all(memory.allocatable_bytes(name) >= size for name, size in wanted.items()):
            return 1
    capacity = tuple(
        Demand({node: memory.allocatable_bytes(name) for node, memory in nodes.items()}, size)
        for name, size in wanted.items()
    )
    return narrowest_size(Region(NodeSet(nodes), capacity, OfSize(0)))


def _apart(nodes: Nodes) -> Iterator[NodeSet]:
    """The sets that no region describes: used nodes by themselves, and groups."""
    groups: dict[NodeSet, None] = {}
    for node, memory in sorted(nodes.items()):
        if memory.assignments > 0 and len(memory.group) <= 1:
            yield NodeSet((node,))
        elif memory.assignments > 0:
            groups[memory.group] = None
    everything = NodeSet(nodes)
    for group in groups:
        if group <= everything and not violates_groups(nodes, group):
            yield group


def _regions(nodes: Nodes, wanted: Wanted, preferred: OfSize) -> Iterator[Region]:
    """The sets of unused nodes.

    Only a state that was edited by hand binds unused nodes to a group. They may then be part of a larger
    set, but not stand alone.
    """
    unused = {node: memory for node, memory in nodes.items() if memory.assignments <= 0}
    demands = tuple(_demands(unused, wanted))
    bound = NodeSet(node for node, memory in unused.items() if len(memory.group) > 1)
    free = NodeSet(unused) - bound
    if free:
        yield Region(free, demands, preferred)
    for node in bound:
        at_least_two = Demand(dict.fromkeys(unused, 1), 2)
        yield Region(NodeSet(unused), (*demands, at_least_two), preferred, must=NodeSet((node,)))


def _demands(unused: Nodes, wanted: Wanted) -> Iterator[Demand]:
    """What the nodes must hold together: enough free, and enough allocatable where that can be less."""
    for name, size in wanted.items():
        yield Demand({node: memory.free_bytes(name) for node, memory in unused.items()}, size)
        if any(memory.allocatable_bytes(name) < memory.free_bytes(name) for memory in unused.values()):
            yield Demand({node: memory.allocatable_bytes(name) for node, memory in unused.items()}, size)


def _holds(nodes: Nodes, where: NodeSet, wanted: Wanted, reusable: Mapping[str, int]) -> bool:
    members: list[NodeMemory] = [nodes[node] for node in where]
    return all(
        sum(memory.allocatable_bytes(name) for memory in members) >= size
        and sum(memory.free_bytes(name) for memory in members) + reusable.get(name, 0) >= size
        for name, size in wanted.items()
    )

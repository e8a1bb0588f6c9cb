"""Which nodes the memory of a container may be on: ordinary memory, other tiers on request, a device's.

Invariant: memory of another tier than the CPUs' is used only by a container that wishes it, memory of a
device only by a container that has the device. How much room there is, is the engines' question.
"""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from bayplan.errors import ParseError
from bayplan.model.decision import Request
from bayplan.model.machine import Machine, Node
from bayplan.sets import NodeSet

DRAM: Final = ("dram",)
FAST: Final = ("fast", "hbm")
SLOW: Final = ("slow", "cxl")
"""Names of tiers, relative to the CPUs' own: that tier itself, the next faster and the next slower one. What
the memory is made of the kernel does not say."""


def usable_nodes(machine: Machine, request: Request) -> NodeSet:
    """The nodes on which memory may be claimed for *request*: ordinary ones, and those that it wishes.

    A required wish leaves nothing else, two of them leave what both allow; a preferred one adds to the
    ordinary nodes. Never another device's memory; that of a device of its own only if the wish names the
    node. Empty where a required wish can't be had.
    """
    open_to_it = _unowned(machine) | device_nodes(machine, request)
    wishes = []
    if request.nodes is not None:
        wishes.append((request.nodes.nodes & open_to_it, request.nodes.required))
    if request.tier is not None:
        wishes.append((tier_nodes(machine, request.tier.tier), request.tier.required))
    required = [nodes for nodes, is_required in wishes if is_required]
    if required:
        usable = required[0]
        for nodes in required[1:]:
            usable &= nodes
        return usable
    usable = machine.ordinary_nodes
    for nodes, _ in wishes:
        usable |= nodes
    return usable


def closed_nodes(machine: Machine, request: Request) -> NodeSet:
    """The nodes that *request* wishes by their ids and that are memory of devices the container does not
    have."""
    if request.nodes is None:
        return NodeSet()
    wished = request.nodes.nodes & machine.memory_nodes
    return wished - _unowned(machine) - device_nodes(machine, request)


def why_unusable(machine: Machine, request: Request) -> str:
    """Why no nodes are left of those that *request* wishes, as it stands after the wish."""
    if request.nodes is not None:
        wished, closed = request.nodes.nodes & machine.memory_nodes, closed_nodes(machine, request)
        if not wished:
            return "and this machine has no memory there"
        if wished == closed:
            owners = sorted({node.owner for node in machine.nodes if node.id in closed})
            return f"which is memory of a device that it does not have ({', '.join(owners)})"
    if request.tier is not None and not tier_nodes(machine, request.tier.tier):
        return "and this machine has no such nodes for it"
    return "and none of these nodes is of that tier"


def with_owners(machine: Machine, owners: Mapping[int, str]) -> Machine:
    """*machine* with the memory of some nodes owned as *owners* says (by node; "" for no device), whatever
    was found. Nodes that it does not have are passed over: a driver may bring them later."""
    if all(node.owner == owners.get(node.id, node.owner) for node in machine.nodes):
        return machine
    nodes = (replace(node, owner=owners.get(node.id, node.owner)) for node in machine.nodes)
    return replace(machine, nodes=tuple(nodes))


def device_nodes(machine: Machine, request: Request) -> NodeSet:
    """The nodes that are memory of the container's own devices. Its processes may use them (a GPU's driver
    allocates there in their name), but nothing is claimed there unless it is wished."""
    if not request.hints:
        return NodeSet()
    return NodeSet(
        node.id for node in machine.nodes if node.owner and node.memory_bytes > 0 and _has(request, node)
    )


def nodes_to_run_on(machine: Machine, nodes: NodeSet) -> NodeSet:
    """*nodes* with those of the nearest CPUs in place of those that are a device's own memory: there are no
    CPUs, and nothing is claimed. Some drivers say of a GPU that it is on the node of its memory."""
    owned = [node for node in machine.nodes if node.owner and node.id in nodes]
    for node in owned:
        nodes = nodes - NodeSet([node.id]) | _nearest_with_cpus(machine, node)
    return nodes


def _nearest_with_cpus(machine: Machine, node: Node) -> NodeSet:
    with_cpus = NodeSet(other.id for other in machine.nodes if other.cpus)
    distances = {other: machine.distance(other, node.id) for other in with_cpus}
    least = min(distances.values(), default=0)
    best = node.initiators & with_cpus
    return best or NodeSet(other for other, distance in distances.items() if distance == least)


def open_mems(machine: Machine, request: Request) -> NodeSet | None:
    """The cpuset.mems of a container that may use all ordinary memory: None where that is all there is."""
    nodes = machine.ordinary_nodes
    if request.hints:
        nodes |= device_nodes(machine, request)
    return None if nodes.mask == machine.memory_nodes.mask else nodes


def tier_nodes(machine: Machine, rank: int) -> NodeSet:
    """The nodes of a tier (0 is the fastest) whose memory is not a device's."""
    unowned = _unowned(machine)
    return NodeSet(node.id for node in machine.nodes if node.tier == rank and node.id in unowned)


def tier_ranks(machine: Machine) -> dict[str, int]:
    """The rank of every tier of *machine* that containers can wish, by each of its names: its number, and
    those of the words that mean something here. Empty where the kernel shows no tiers."""
    ranks = sorted({node.tier for node in machine.nodes if node.tier is not None})
    ranks = [rank for rank in ranks if tier_nodes(machine, rank)]
    names = {str(rank): rank for rank in ranks}
    own = [node.tier for node in machine.nodes if node.id in machine.ordinary_nodes and node.cpus]
    of_cpus = {rank for rank in own if rank is not None}
    if not of_cpus:
        return names
    names |= dict.fromkeys(DRAM, min(of_cpus))
    faster = [rank for rank in ranks if rank < min(of_cpus)]
    slower = [rank for rank in ranks if rank > max(of_cpus)]
    if faster:
        names |= dict.fromkeys(FAST, faster[-1])
    if slower:
        names |= dict.fromkeys(SLOW, slower[0])
    return names


def tier_rank(machine: Machine, name: str) -> int:
    """The rank of the tier that *name* means on this machine.

    Raises:
        ParseError: none does.
    """
    ranks = tier_ranks(machine)
    if name not in ranks:
        known = ", ".join(ranks) or "none, because its kernel shows no memory tiers"
        raise ParseError("memory tier", name, f"a tier of this machine: {known}")
    return ranks[name]


def _unowned(machine: Machine) -> NodeSet:
    return NodeSet(node.id for node in machine.nodes if node.memory_bytes > 0 and not node.owner)


def _has(request: Request, node: Node) -> bool:
    """Whether the node is memory of one of the container's devices."""
    return any(node.owner in hint.names for hint in request.hints)

"""Every set of nodes that a request may be claimed on, by the rules for operators, whether or not it fits."""

from collections.abc import Iterator, Mapping
from itertools import combinations

from bayplan.model.decision import QosClass, Request
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import TopologyPolicy
from bayplan.sets import NodeSet
from support.exact_cpus import Cpus


def amounts_of(request: Request) -> dict[str, int]:
    """Bytes by resource that the request claims."""
    amounts = {MEMORY: request.memory.high_bytes, **request.hugepages_bytes}
    return {resource: amount for resource, amount in amounts.items() if amount}


def is_required(request: Request) -> bool:
    """Whether the request has a wish that must be granted."""
    if request.even_hugepages is not None:
        return True
    return any(wish is not None and wish.required for wish in (request.nodes, request.tier))


def allowed_sets(
    request: Request,
    machine: Machine,
    topology: TopologyPolicy,
    capacity: Mapping[str, Mapping[int, int]],
    cpus: Cpus,
) -> Iterator[Iterator[int]]:
    """The sets, as masks: for each choice of candidate nodes in the order of trying. *capacity* is by
    resource and node, in bytes."""
    options = [machine.ordinary_nodes]
    if request.nodes is not None:
        options = [request.nodes.nodes, *([] if request.nodes.required else options)]
    elif request.tier is not None:
        tier = NodeSet(node.id for node in machine.nodes if node.tier == request.tier.tier)
        options = [tier & machine.memory_nodes, *([] if request.tier.required else options)]
    for nodes in options:
        wished = nodes is options[0] and (request.nodes is not None or request.tier is not None)
        if request.even_hugepages is not None:
            yield _sets_of(nodes, request.even_hugepages.node_count, topology)
        elif request.qos is QosClass.GUARANTEED or wished:
            widest = _widest(request, nodes, topology, capacity, cpus)
            yield _sets_on(nodes, widest, exactly=request.nodes is not None and wished)
        else:
            yield iter([nodes.mask])


def _sets_on(nodes: NodeSet, widest: int, *, exactly: bool) -> Iterator[int]:
    """The sets of at most *widest* of *nodes*; only all of them if they were named and may be had."""
    if exactly and len(nodes) <= widest:
        yield nodes.mask
        return
    mask = nodes.mask
    while mask:
        if mask.bit_count() <= widest:
            yield mask
        mask = (mask - 1) & nodes.mask


def _sets_of(nodes: NodeSet, width: int, topology: TopologyPolicy) -> Iterator[int]:
    """The sets of *width* of *nodes*, on which huge pages may lie evenly: as many nodes as an empty machine
    would need for it, whatever else is asked for."""
    if topology is not TopologyPolicy.SINGLE_NUMA_NODE or width == 1:
        yield from (sum(1 << node for node in some) for some in combinations(nodes, width))


def _widest(
    request: Request,
    nodes: NodeSet,
    topology: TopologyPolicy,
    capacity: Mapping[str, Mapping[int, int]],
    cpus: Cpus,
) -> int:
    """How many of *nodes* a set may have."""
    if topology is TopologyPolicy.SINGLE_NUMA_NODE:
        return 1
    if topology is not TopologyPolicy.RESTRICTED:
        return len(nodes)
    for width in range(1, len(nodes) + 1):
        enough = cpus.most_on(nodes, width) >= request.exclusive_cpus
        for resource, amount in amounts_of(request).items():
            held = sorted((capacity.get(resource, {}).get(node, 0) for node in nodes), reverse=True)
            enough = enough and sum(held[:width]) >= amount
        if enough:
            return width
    return len(nodes)

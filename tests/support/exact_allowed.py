"""Every set of nodes that a request may be claimed on, by the rules for operators, whether or not it fits."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from bayplan.model.decision import QosClass, Request
from bayplan.model.ledger import Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import TopologyPolicy, TopologyScope
from bayplan.sets import NodeSet
from support.exact_cpus import Cpus

STRICT = (TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE_NUMA_NODE)


@dataclass(frozen=True)
class Choice:
    """Sets of nodes, as masks, one of which is to have *amounts* and *cpus*. The choices of a request are in
    the order of trying."""

    amounts: Mapping[str, int]
    cpus: int
    masks: tuple[int, ...]


def amounts_of(request: Request) -> dict[str, int]:
    """Bytes by resource that the request claims."""
    amounts = {MEMORY: request.memory.high_bytes, **request.hugepages_bytes}
    return {resource: amount for resource, amount in amounts.items() if amount}


def is_required(request: Request) -> bool:
    """Whether the request has a wish that must be granted."""
    if request.even_hugepages is not None:
        return True
    return any(wish is not None and wish.required for wish in (request.nodes, request.tier))


def is_close(request: Request, topology: TopologyPolicy, mask: int) -> bool:
    """Whether the nodes of *mask* are close to all devices that count: all under a strict policy, else those
    whose drivers insist on it."""
    counting = [hint for hint in request.hints if hint.required or topology in STRICT]
    return all(hint.nodes.mask & mask for hint in counting)


def choices(
    request: Request,
    machine: Machine,
    ledger: Ledger,
    rules: tuple[TopologyPolicy, TopologyScope],
    capacity: Mapping[str, Mapping[int, int]],
    cpus: Cpus,
) -> Iterator[Choice]:
    """What is tried for *request*, one after the other. *capacity* is by resource and node, in bytes."""
    topology, scope = rules
    own = amounts_of(request), request.exclusive_cpus
    by_pod = scope is TopologyScope.POD and topology is not TopologyPolicy.NONE
    wished = request.nodes is not None or request.tier is not None or request.even_hugepages is not None
    confined = request.qos is QosClass.GUARANTEED or wished
    together = nodes_of_pod(ledger, request) if by_pod and confined else None
    if together is not None:
        yield Choice(*own, (together,))
        if topology in STRICT and request.qos is QosClass.GUARANTEED:
            return
    demands = _whole_pod(request, topology) if by_pod and confined else [own]
    for candidates in _candidates(request, machine):
        for amounts, count in demands:
            widest = partial(_widest, request, candidates.nodes, topology, amounts, count, capacity, cpus)
            yield Choice(amounts, count, tuple(_masks(request, candidates, topology, widest)))


def nodes_of_pod(ledger: Ledger, request: Request) -> int | None:
    """The nodes that a container of the pod was placed on together with its pod, as a mask."""
    for entry in ledger.entries.values():
        affinity = entry.decision.placement.affinity
        if affinity is not None and affinity.nodes and entry.decision.request.pod_id == request.pod_id:
            return affinity.nodes.mask
    return None


def _whole_pod(request: Request, topology: TopologyPolicy) -> list[tuple[Mapping[str, int], int]]:
    """All that the pod asks for: with its CPUs, as far as it is known that containers have them to
    themselves; else rather with them; where nothing is refused also without the rest of the pod."""
    amounts, totals = amounts_of(request), request.pod_totals
    found: list[tuple[Mapping[str, int], int]] = []
    if totals is not None:
        whole = {MEMORY: totals.memory_bytes, **totals.hugepages_bytes}
        for resource, amount in amounts.items():
            whole[resource] = max(amount, whole.get(resource, 0))
        rest = max(0, totals.cpu_milli - request.cpu_milli) // 1000
        if totals.exclusive_cpus is None:
            found = [(whole, request.exclusive_cpus + rest), (whole, request.exclusive_cpus)]
        else:
            found = [(whole, max(request.exclusive_cpus, totals.exclusive_cpus))]
    if not found or topology not in STRICT:
        found.append((amounts, request.exclusive_cpus))
    return found


@dataclass(frozen=True)
class _Candidates:
    """Nodes to choose from; all of them if they were named."""

    nodes: NodeSet
    wished: bool = False
    named: bool = False


def _candidates(request: Request, machine: Machine) -> list[_Candidates]:
    """Those that were wished first."""
    anywhere = [_Candidates(machine.ordinary_nodes)]
    if request.nodes is not None:
        named = _Candidates(request.nodes.nodes, wished=True, named=True)
        return [named, *([] if request.nodes.required else anywhere)]
    if request.tier is not None:
        nodes = NodeSet(node.id for node in machine.nodes if node.tier == request.tier.tier)
        tier = _Candidates(nodes & machine.memory_nodes, wished=True)
        return [tier, *([] if request.tier.required else anywhere)]
    return anywhere


def _masks(
    request: Request, candidates: _Candidates, topology: TopologyPolicy, widest: Callable[[], int]
) -> Iterable[int]:
    if request.even_hugepages is not None:
        return _sets_of(candidates.nodes, request.even_hugepages.node_count, topology)
    bounded = request.qos is QosClass.GUARANTEED
    if topology is TopologyPolicy.NONE and not request.exclusive_cpus:
        bounded = False  # its CPUs are everywhere
    if bounded or candidates.wished:
        return _sets_on(candidates.nodes, widest(), exactly=candidates.named)
    return [candidates.nodes.mask]


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
    amounts: Mapping[str, int],
    count: int,
    capacity: Mapping[str, Mapping[int, int]],
    cpus: Cpus,
) -> int:
    """How many of *nodes* a set may have: under `restricted` as many as the smallest one that would have
    everything on an empty machine, and is close to all devices."""
    if topology is TopologyPolicy.SINGLE_NUMA_NODE:
        return 1
    if topology is not TopologyPolicy.RESTRICTED:
        return len(nodes)
    for width in range(1, len(nodes) + 1):
        for some in combinations(nodes, width):
            if (
                cpus.count_on(some) >= count
                and is_close(request, topology, NodeSet(some).mask)
                and all(
                    sum(capacity.get(resource, {}).get(node, 0) for node in some) >= amount
                    for resource, amount in amounts.items()
                )
            ):
                return width
    return len(nodes)

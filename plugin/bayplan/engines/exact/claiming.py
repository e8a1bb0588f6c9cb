"""What a request claims, where it may claim it, on how many nodes, and how firm that is.

A container is confined to a narrow set of nodes only if its use is bounded by its claim (Guaranteed), or if
it asked for that set: an unlimited container on one node would be killed there with memory free elsewhere.
All others claim on every ordinary node. Nothing here looks for room.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.exact.flow import bits
from bayplan.engines.exact.resources import ResourceFlows
from bayplan.model.claims import Amounts
from bayplan.model.decision import Claim, QosClass, Request
from bayplan.model.ledger import Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.memory_kinds import closed_nodes, usable_nodes, why_unusable
from bayplan.model.pod_as_a_whole import is_member
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.model.request import NO_SIGNAL
from bayplan.sets import NodeSet, nodes_text

STRICT: Final = frozenset({TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE_NUMA_NODE})

_MAX_LOOKED_AT: Final = 1000
"""Sets of one width that an empty machine is asked about: all of them on up to 12 nodes."""


Need = tuple[Mapping[int, int], int]
"""What each node could give of something, and how much of it is asked for."""


class CandidateNodes(Struct, frozen=True):
    """The nodes that a request may choose from. ``exactly``: it gets all of them or none, because they were
    named, or (``of_pod``) chosen for its pod, however many they are. ``required``: the request is refused
    rather than placed elsewhere. ``why`` says for people why it is these nodes, ``obstacle`` why there are
    none."""

    nodes: NodeSet
    exactly: bool = False
    required: bool = False
    why: str = ""
    of_pod: bool = False
    obstacle: str = ""


class Asking(Struct, frozen=True):
    """A request, what it claims, and how firm that is; worked out once for a decision. ``bounded``: the
    container cannot use more than it claims. ``confined``: it is bound to a set of nodes, by its claim, its
    wishes or a pinned cpuset.mems. ``flexible``: it may be given more nodes later."""

    request: Request
    amounts: Amounts
    bounded: bool
    confined: bool
    flexible: bool

    @classmethod
    def of(cls, policy: PlacementPolicy, request: Request) -> "Asking":
        """*request* as it is under *policy*."""
        asked = amounts = asked_amounts(request)
        if request.claimed is not None:
            amounts = without(asked, request.claimed.amounts_bytes)
        bounded = request.qos is QosClass.GUARANTEED and _is_bounded(request, asked.get(MEMORY, 0))
        confined = bounded or _is_bound(request)
        return cls(request, amounts, bounded, confined, is_flexible(policy, request))


def claimed_amounts(request: Request) -> dict[str, int]:
    """Bytes by resource that *request* claims.

    Guaranteed: the limit. Burstable: the high end of its request interval, because a promise that is too
    small is broken silently; where there is no signal at all the high end is the whole machine, so the low
    end. BestEffort: nothing. Huge pages: the limit, which equals the request in every class. What kubelet is
    said to know counts here only where the spec proves no more. What the container has through resource
    claims is theirs: only what it asks for beyond that is its own.
    """
    amounts = asked_amounts(request)
    return amounts if request.claimed is None else without(amounts, request.claimed.amounts_bytes)


def asked_amounts(request: Request) -> dict[str, int]:
    """Bytes by resource that *request* asks for, of which resource claims may hold some already."""
    waits = request.spec_memory is not None and request.memory_waits_for_proof
    memory = request.shown_memory if waits else request.memory
    memory_bytes = memory.low_bytes if memory.source == NO_SIGNAL else memory.high_bytes
    if request.qos is QosClass.BEST_EFFORT:
        memory_bytes = 0
    amounts = {MEMORY: memory_bytes, **request.hugepages_bytes}
    return {resource: amount for resource, amount in amounts.items() if amount}


def claim_in_full(request: Request, nodes: NodeSet, *, flexible: bool = False) -> Claim:
    """The claim of a container that runs already, on *nodes*, whether or not it fits. Its huge pages are
    assumed to lie evenly on as many nodes as it wished for."""
    wish = request.even_hugepages
    evenly = wish is not None and wish.node_count == len(nodes)
    return Claim(nodes, claimed_amounts(request), flexible, even_hugepages=evenly)


def is_bounded(request: Request) -> bool:
    """Whether the container cannot use more than it claims."""
    return _is_bounded(request, asked_amounts(request).get(MEMORY, 0))


def is_confined(request: Request) -> bool:
    """Whether the container is bound to a set by its claim, its wishes or a pinned cpuset.mems."""
    return is_bounded(request) or _is_bound(request)


def _is_bounded(request: Request, claimed_bytes: int) -> bool:
    limit_bytes = request.memory_limit_bytes
    return request.qos is QosClass.GUARANTEED and limit_bytes is not None and 0 < limit_bytes <= claimed_bytes


def _is_bound(request: Request) -> bool:
    if request.nodes is not None or request.tier is not None or request.even_hugepages is not None:
        return True
    return request.pinned_mems is not None or (request.pod_level and is_member(request))


def is_flexible(policy: PlacementPolicy, request: Request) -> bool:
    """Whether the container may get more nodes later, to make room for another one."""
    return not (
        request.opted_out
        or (request.pod_level and is_member(request))
        or request.pinned_mems is not None
        or request.memory_policy is not None
        or request.given_policy is not None
        or request.even_hugepages is not None
        or (request.nodes is not None and request.nodes.required)
        or (request.tier is not None and request.tier.required)
        or (policy.topology in STRICT and is_bounded(request))
    )


def wished_nodes(machine: Machine, request: Request) -> CandidateNodes | None:
    """The nodes that the request's wishes leave; None if it has none.

    They are empty where the machine has no such nodes, or only those of devices of other containers.
    """
    if request.nodes is None and request.tier is None:
        return None
    narrow, why = request, []
    if request.tier is not None:
        narrow = replace(narrow, tier=replace(request.tier, required=True))
        why.append(f"tier {request.tier.tier}")
    if request.nodes is not None:
        narrow = replace(narrow, nodes=replace(request.nodes, required=True))
        why.append(nodes_text(request.nodes.nodes))
    required = any(wish is not None and wish.required for wish in (request.nodes, request.tier))
    text = f"{'requires' if required else 'prefers'} {' and '.join(why)}"
    nodes = usable_nodes(machine, narrow)
    obstacle = "" if nodes else why_unusable(machine, narrow)
    closed = closed_nodes(machine, request)
    if nodes and closed:
        text += f" (but not {nodes_text(closed)}, the memory of a device that it does not have)"
    return CandidateNodes(nodes, request.nodes is not None, required, text, obstacle=obstacle)


def nodes_of_pod(ledger: Ledger, request: Request, *, required: bool) -> CandidateNodes | None:
    """The nodes that an earlier container of the pod was placed on, under the scope pod; None without one."""
    for entry in ledger.entries.values():
        affinity = entry.decision.placement.affinity
        if affinity is not None and affinity.nodes and entry.decision.request.pod_id == request.pod_id:
            why = f"goes with its pod to {nodes_text(affinity.nodes)}"
            return CandidateNodes(affinity.nodes, exactly=True, required=required, why=why, of_pod=True)
    return None


def without(amounts: Mapping[str, int], promised: Mapping[str, int]) -> dict[str, int]:
    """What of *amounts* is not in *promised*."""
    left = {resource: amount - promised.get(resource, 0) for resource, amount in amounts.items()}
    return {resource: amount for resource, amount in left.items() if amount > 0}


def widest_allowed(
    flows: ResourceFlows,
    nodes: NodeSet,
    amounts: Amounts,
    cpus_on_empty: Callable[[], Mapping[int, int]],
    cpus: int,
    devices: Sequence[int] = (),
    least: int = 1,
) -> int:
    """How many of *nodes* the topology policy allows a set to have: `restricted` as many as an empty machine
    would need, and at least *least*; `single-numa-node` one. The set is for *amounts* and *cpus*, and close
    to all *devices*, given as masks of the nodes that each is close to; *cpus_on_empty* says how many CPUs
    each node would have on an empty machine. Where even the empty machine has too little it is all of
    *nodes*, so that the minimum cut can say so.

    kubelet asks each resource by itself for the fewest nodes, so that its `restricted` never admits a
    container whose devices are on more nodes than its CPUs need. Here all that is asked for is looked at
    together.
    """
    policy = flows.policy.topology
    if policy is TopologyPolicy.SINGLE_NUMA_NODE:
        return 1
    if policy is not TopologyPolicy.RESTRICTED:
        return nodes.mask.bit_count()
    needs: list[Need] = [(flows.capacity.get(resource, {}), amount) for resource, amount in amounts.items()]
    if cpus:
        needs.append((cpus_on_empty(), cpus))
    return min(_fewest_for_all(nodes.mask, needs, devices, least), max(1, nodes.mask.bit_count()))


def _fewest_for_all(allowed: int, needs: Sequence[Need], devices: Sequence[int], least: int) -> int:
    """How many of the *allowed* nodes it takes to meet all *needs* together and to be close to all *devices*,
    at least; one more than there are if all of them do not suffice.

    It is no fewer than the need that takes most takes alone, and no more than a greedy choice takes. Between
    the two every set is looked at, as long as a width has no more than `_MAX_LOOKED_AT` sets; else the greedy
    number is the answer.
    """
    every = list(bits(allowed))
    for by_node, needed in needs:
        least = max(least, fewest([by_node.get(node, 0) for node in every], needed))
    greedy = _greedy(every, needs, devices)
    most = greedy.bit_count() if greedy else len(every) + 1
    for width in range(least, most):
        if comb(len(every), width) > _MAX_LOOKED_AT:
            return most
        if any(_meets(sum(some), needs, devices) for some in combinations(every, width)):
            return width
    return max(least, most)


def fewest_near(allowed: int, devices: Sequence[int]) -> int:
    """The fewest of the *allowed* nodes that are close to all *devices*; one more than there are if all
    together are not."""
    return _fewest_for_all(allowed, (), devices, 1)


def _greedy(every: Sequence[int], needs: Sequence[Need], devices: Sequence[int]) -> int:
    """A set that meets all *needs*, of nodes that each bring most of what is lacking; 0 if all do not."""
    chosen, rest = 0, list(every)
    while not _meets(chosen, needs, devices):
        if not rest:
            return 0
        lacking = [(by_node, needed - _together(by_node, chosen)) for by_node, needed in needs]
        far = [near for near in devices if not near & chosen]

        def brings(node: int, far: Sequence[int] = far, lacking: Sequence[Need] = lacking) -> float:
            parts = [min(1.0, have.get(node, 0) / lack) for have, lack in lacking if lack > 0]
            return sum(parts) + max(1, len(lacking)) * sum([bool(near & node) for near in far])

        best = max(rest, key=brings)
        chosen |= best
        rest.remove(best)
    return chosen


def _meets(nodes: int, needs: Sequence[Need], devices: Sequence[int]) -> bool:
    close = all(near & nodes for near in devices)
    return close and all(_together(by_node, nodes) >= needed for by_node, needed in needs)


def _together(by_node: Mapping[int, int], nodes: int) -> int:
    return sum([by_node.get(node, 0) for node in bits(nodes)])


def most_on_empty(by_node: Mapping[int, int], nodes: NodeSet, widest: int) -> tuple[int, NodeSet]:
    """The most of something that *widest* of *nodes* have together on an empty machine, and the nodes
    that have it, the lowest ids of equal ones."""
    largest = sorted(bits(nodes.mask), key=lambda node: (-by_node.get(node, 0), node))[:widest]
    return sum(by_node.get(node, 0) for node in largest), NodeSet.of_mask(sum(largest))


def fewest(haves: Iterable[int], needed: int) -> int:
    """How many of *haves*, the largest first, sum up to *needed*; one more than there are if all do not."""
    left, used = needed, 0
    for have in sorted(haves, reverse=True):
        if left <= 0:
            break
        left, used = left - have, used + 1
    return used if left <= 0 else used + 1

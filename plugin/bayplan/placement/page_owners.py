"""Where the memory of a container may lie, what it is promised there, and whether its pages may be moved.

What the ledger says of one container, put together with what was counted of its pages. Pure.
"""

from collections.abc import Mapping
from typing import Final

from bayplan.engines.exact.unconfined import open_mems
from bayplan.model.decision import MemoryPolicyMode, QosClass, Request
from bayplan.model.ledger import Entry
from bayplan.model.machine import MEMORY, Machine
from bayplan.placement.page_placement import ContainerPages
from bayplan.quantity import MIB
from bayplan.sets import NodeSet

_RANKS: Final = {QosClass.BEST_EFFORT: 0, QosClass.BURSTABLE: 1, QosClass.GUARANTEED: 2}
_SMALLEST_BAND_BYTES: Final = 32 * MIB
_SMALL_NODE: Final = 64
_LARGE_NODE: Final = 256


def container_pages(
    machine: Machine,
    entry: Entry,
    held_bytes: Mapping[int, int],
    movable_bytes: Mapping[int, int],
    cache_bytes: Mapping[int, int],
) -> ContainerPages:
    """The container of *entry*, which holds *held_bytes* by node that cannot be reclaimed, beside its page
    cache; *movable_bytes* of them could be moved by what they are."""
    request, placement = entry.decision.request, entry.decision.placement
    if placement.claim is not None:
        nodes = placement.claim.nodes
        promised_bytes = placement.claim.amounts_bytes.get(MEMORY, 0)
    else:
        nodes = request.pinned_mems or placement.mems or open_mems(machine, request) or machine.memory_nodes
        promised_bytes = sum(row.get(MEMORY, 0) for row in placement.booked_bytes.values())
    may_move = len(nodes) > 1 and not stays(entry)
    return ContainerPages(
        entry.container_id,
        request.name,
        nodes,
        promised_bytes,
        held_bytes,
        {node: amount for node, amount in movable_bytes.items() if node in nodes} if may_move else {},
        _RANKS[request.qos],
        {} if request.opted_out else cache_bytes,
    )


def outside_pages(
    machine: Machine,
    path: str,
    mems: NodeSet,
    held_bytes: Mapping[int, int],
    movable_bytes: Mapping[int, int],
    cache_bytes: Mapping[int, int],
) -> ContainerPages:
    """Services of the machine itself in the cgroup *path*, which may use the nodes *mems*: they are promised
    nothing, and are moved like containers that may lie anywhere."""
    nodes = mems & machine.ordinary_nodes
    movable = {node: amount for node, amount in movable_bytes.items() if node in nodes}
    rank = _RANKS[QosClass.BURSTABLE]
    return ContainerPages(
        path, path, nodes, 0, held_bytes, movable if len(nodes) > 1 else {}, rank, cache_bytes
    )


def stays(entry: Entry) -> bool:
    """Whether nobody may move pages of the container: it opted out or keeps its pages, somebody else
    pinned it, or it asked for a memory policy that says where its pages have to be."""
    request = entry.decision.request
    kept = request.opted_out or request.keeps_pages
    return kept or request.pinned_mems is not None or _is_bound_by_policy(request)


def start_bytes(machine: Machine) -> dict[int, int]:
    """By node, what is kept free beside the promises before pages are moved: 1 GiB on a node of 256 GiB."""
    return {node.id: _band_bytes(node.memory_bytes) for node in machine.nodes if node.memory_bytes}


def goal_bytes(machine: Machine) -> dict[int, int]:
    """By node, what is free beside the promises once pages were moved."""
    return {node: 2 * band for node, band in start_bytes(machine).items()}


def _band_bytes(memory_bytes: int) -> int:
    return max(min(_SMALLEST_BAND_BYTES, memory_bytes // _SMALL_NODE), memory_bytes // _LARGE_NODE)


def _is_bound_by_policy(request: Request) -> bool:
    policy = request.memory_policy
    return policy is not None and policy.mode in (
        MemoryPolicyMode.BIND,
        MemoryPolicyMode.INTERLEAVE,
        MemoryPolicyMode.WEIGHTED_INTERLEAVE,
    )

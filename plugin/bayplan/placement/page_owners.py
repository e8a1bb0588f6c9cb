"""Where the memory of a container may lie, what it is promised there, and whether its pages may be moved.

What the ledger says of one container, put together with what was counted of its pages. Pure.
"""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from bayplan.model.decision import Decision, MemoryPolicyMode, QosClass, Reason, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.memory_kinds import open_mems
from bayplan.model.pod_as_a_whole import takes_from_pod
from bayplan.placement.page_placement import ContainerPages, LivePages
from bayplan.quantity import MIB, format_bytes
from bayplan.sets import NodeSet, nodes_text

PAGES_TO_MOVE: Final = "pages-to-move"
"""Code of the reason that a promise relies on pages that have to be moved first."""

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
    nodes = allowed_nodes(machine, entry.decision)
    if placement.claim is not None:
        promised_bytes = placement.claim.amounts_bytes.get(MEMORY, 0)
    else:
        promised_bytes = sum(row.get(MEMORY, 0) for row in placement.booked_bytes.values())
    return ContainerPages(
        entry.container_id,
        request.name,
        nodes,
        promised_bytes,
        held_bytes,
        {} if stays(entry) else {node: amount for node, amount in movable_bytes.items() if node in nodes},
        _RANKS[request.qos],
        {} if request.opted_out else cache_bytes,
    )


def with_pods_shared_out(ledger: Ledger, pages: Mapping[str, ContainerPages]) -> dict[str, ContainerPages]:
    """*pages* of the containers of *ledger* as if each container of a pod with resources as a whole were
    promised what it holds, and the first of them the rest: only together they have a promise."""
    pods: dict[str, list[ContainerPages]] = {}
    for key, one in sorted(pages.items()):
        request = ledger.entries[key].decision.request
        if takes_from_pod(request):
            pods.setdefault(request.pod_id, []).append(one)
    found = dict(pages)
    for members in pods.values():
        left_bytes = sum(one.promised_bytes for one in members)
        first, *others = members
        for one in others:
            part_bytes = min(one.used_bytes, left_bytes)
            left_bytes -= part_bytes
            found[one.container_id] = replace(one, promised_bytes=part_bytes)
        found[first.container_id] = replace(first, promised_bytes=left_bytes)
    return found


def allowed_nodes(machine: Machine, decision: Decision) -> NodeSet:
    """Where the memory of the container may lie."""
    request, placement = decision.request, decision.placement
    if placement.claim is not None:
        # What is to leave nodes may lie there until it has.
        return placement.claim.nodes | (placement.leaving or NodeSet())
    return request.pinned_mems or placement.mems or open_mems(machine, request) or machine.memory_nodes


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


def pages_in_the_way(machine: Machine, live: LivePages, decision: Decision) -> Reason | None:
    """The reason that says of a container on nodes of its own how much of its promise is not free there yet,
    because others' pages lie there which may lie elsewhere."""
    claim = decision.placement.claim
    if claim is None or machine.ordinary_nodes <= claim.nodes:
        return None
    there = [node for node in claim.nodes if node in live.nodes]
    room_bytes = sum(
        max(
            0,
            live.nodes[node].free_bytes
            + live.nodes[node].reclaimable_bytes
            - live.plan.expected_bytes.get(node, 0),
        )
        for node in there
    )
    lacking_bytes = claim.amounts_bytes.get(MEMORY, 0) - room_bytes
    if lacking_bytes <= 0:
        return None
    others = [one for one in live.containers.values() if not one.nodes <= claim.nodes]
    movable_bytes = sum(one.movable_bytes.get(node, 0) for one in others for node in there)
    if movable_bytes <= 0:
        return None
    amount, where = format_bytes(min(lacking_bytes, movable_bytes)), nodes_text(claim.nodes)
    text = f"{amount} of what it is promised on {where} are not free yet: pages of others are being moved"
    return Reason(PAGES_TO_MOVE, text)


def stays(entry: Entry) -> bool:
    """Whether nobody may move pages of the container: it opted out or keeps its pages, somebody else
    pinned it, or it asked for a memory policy that says where its pages have to be."""
    request = entry.decision.request
    kept = request.opted_out or request.keeps_pages
    return kept or request.pinned_mems is not None or _is_bound_by_policy(request)


def start_bytes(machine: Machine) -> dict[int, int]:
    """By node, what is kept free beside the promises before pages are moved: 1 GiB on a node with 256 GiB of
    ordinary memory, beside huge pages."""
    return {
        node.id: _band_bytes(node.capacity_bytes()[MEMORY]) for node in machine.nodes if node.memory_bytes
    }


def goal_bytes(machine: Machine) -> dict[int, int]:
    """By node, what is free beside the promises once pages were moved."""
    return {node: 2 * band for node, band in start_bytes(machine).items()}


def _band_bytes(memory_bytes: int) -> int:
    return max(min(_SMALLEST_BAND_BYTES, memory_bytes // _SMALL_NODE), memory_bytes // _LARGE_NODE)


def _is_bound_by_policy(request: Request) -> bool:
    policy = request.memory_policy or request.given_policy
    return policy is not None and policy.mode in (
        MemoryPolicyMode.BIND,
        MemoryPolicyMode.INTERLEAVE,
        MemoryPolicyMode.WEIGHTED_INTERLEAVE,
    )

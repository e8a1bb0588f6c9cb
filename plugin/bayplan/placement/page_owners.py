"""Where the memory of a container may lie, what it is promised there, whether its pages may be moved, and
where they should begin to lie.

What the ledger says of one container, put together with what was counted of its pages. Pure.

The kernel takes a page from the node of the CPU that touches it first, whoever that memory was promised to.
Where a node has too little left beside what is outstanding there, pages that may lie on any node would only
have to be moved again. So their container starts with a memory policy that prefers the other nodes
(preferred-many): it costs no memory it may have, as the kernel goes on to the rest once they are full. Only
nodes without room are left out, because the bandwidth of the others has to do for theirs too.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.model.claims import sum_of
from bayplan.model.decision import (
    STATIC,
    Booking,
    Claim,
    Decision,
    MemoryPolicyMode,
    MemoryPolicySetting,
    QosClass,
    Reason,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.memory_kinds import open_mems
from bayplan.model.pod_as_a_whole import takes_from_pod
from bayplan.placement.memory_policy import MemoryPolicyAbility
from bayplan.placement.page_placement import ContainerPages, LivePages, unpromised_bytes
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
    of_processes_bytes: Mapping[int, int] = {},
) -> ContainerPages:
    """The container of *entry* as relief sees it. By node, in bytes: it holds *held_bytes* that cannot be
    reclaimed, and *cache_bytes* of page cache; *movable_bytes* of the former could be moved by their kind,
    and *of_processes_bytes* are not the kernel's."""
    request, mems = entry.decision.request, entry.decision.placement.mems
    nodes = allowed_nodes(machine, entry.decision)
    # Where nothing restricts it, none are astray; nor are those that the kernel demotes to a slower tier.
    forbidden = NodeSet() if mems is None else machine.ordinary_nodes - mems - nodes
    astray = {node: amount for node, amount in of_processes_bytes.items() if amount and node in forbidden}
    return ContainerPages(
        entry.container_id,
        request.name,
        nodes,
        entry.decision.promised_bytes,
        held_bytes,
        {} if stays(entry) else {node: amount for node, amount in movable_bytes.items() if node in nodes},
        _RANKS[request.qos],
        {} if request.opted_out else cache_bytes,
        {} if stays(entry) else astray,
    )


def with_pods_shared_out(ledger: Ledger, pages: Mapping[str, ContainerPages]) -> dict[str, ContainerPages]:
    """*pages* of the containers of *ledger*. The containers of a pod with resources as a whole have one
    promise together; here each is promised what it holds, and the first of them the rest."""
    pods: dict[str, list[ContainerPages]] = {}
    for key, container in sorted(pages.items()):
        request = ledger.entries[key].decision.request
        if takes_from_pod(request):
            pods.setdefault(request.pod_id, []).append(container)
    shared_out = dict(pages)
    for members in pods.values():
        left_bytes = sum(one.promised_bytes for one in members)
        first, *others = members
        for container in others:
            part_bytes = min(container.used_bytes, left_bytes)
            left_bytes -= part_bytes
            shared_out[container.container_id] = replace(container, promised_bytes=part_bytes)
        shared_out[first.container_id] = replace(first, promised_bytes=left_bytes)
    return shared_out


def with_claims_shared_out(
    ledger: Ledger, pages: Mapping[str, ContainerPages]
) -> tuple[dict[str, ContainerPages], tuple[ContainerPages, ...]]:
    """*pages* of the containers of *ledger*, and what no container may use yet of each resource claim. The
    containers of a claim have its memory together; here each is promised what it holds of it, and the first
    of those that may hold more the rest."""
    shared_out, idle = dict(pages), list[ContainerPages]()
    decisions = (ledger.entries[key].decision for key in sorted(pages))
    users = [one for one in decisions if one.request.claimed is not None]
    most_bytes = {one.request.container_id: one.promised_bytes for one in users}
    for one in users:
        key = one.request.container_id
        shared_out[key] = replace(shared_out[key], promised_bytes=one.own_bytes)
    for held in ledger.resource_claims.values():
        claim = held.claim
        left_bytes = claim.amounts_bytes.get(MEMORY, 0)
        having = [one.request.container_id for one in users if claim.uid in _uids(one)]
        for wants_rest in (False, True):
            for key in having if left_bytes else ():
                page = shared_out[key]
                most = most_bytes[key] if wants_rest else min(most_bytes[key], page.used_bytes)
                if (part_bytes := min(left_bytes, most - page.promised_bytes)) > 0:
                    left_bytes -= part_bytes
                    shared_out[key] = replace(page, promised_bytes=page.promised_bytes + part_bytes)
        if left_bytes:
            name, nodes = f"{claim.namespace}/{claim.name}", NodeSet(held.by_node())
            idle.append(ContainerPages(claim.key, name, nodes, left_bytes))
    return shared_out, tuple(idle)


def _uids(decision: Decision) -> tuple[str, ...]:
    share = decision.request.claimed
    return () if share is None else share.uids


def allowed_nodes(machine: Machine, decision: Decision) -> NodeSet:
    """Where the memory of the container may lie."""
    request, placement = decision.request, decision.placement
    if isinstance(promise := placement.promise, Claim):
        # What is to leave nodes may lie there until it has.
        return promise.nodes | (placement.leaving or NodeSet())
    return request.pinned_mems or placement.mems or open_mems(machine, request) or machine.memory_nodes


def outside_pages(
    machine: Machine,
    path: str,
    mems: NodeSet,
    held_bytes: Mapping[int, int],
    movable_bytes: Mapping[int, int],
    cache_bytes: Mapping[int, int],
) -> ContainerPages:
    """Services of the machine itself in the cgroup *path*, which may use the nodes *mems*. Nothing is
    promised to them, and they are moved as containers that may lie anywhere are. The bytes are by node, as in
    `container_pages`."""
    nodes = mems & machine.ordinary_nodes
    movable = {node: amount for node, amount in movable_bytes.items() if node in nodes}
    rank = _RANKS[QosClass.BURSTABLE]
    return ContainerPages(
        path, path, nodes, 0, held_bytes, movable if len(nodes) > 1 else {}, rank, cache_bytes
    )


def pages_in_the_way(machine: Machine, live: LivePages, decision: Decision) -> Reason | None:
    """The reason that says how much of the promise of a container on nodes of its own is not free there yet,
    because pages of others lie there which may lie elsewhere; None if all is free."""
    claim = decision.placement.promise
    if isinstance(claim, Booking) or machine.ordinary_nodes <= claim.nodes:
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
    """Whether the container's pages may not be moved at all: it opted out or keeps its pages, somebody else
    pinned it, or a memory policy says where its pages have to be."""
    request = entry.decision.request
    kept = request.opted_out or request.keeps_pages
    return kept or request.pinned_mems is not None or _is_bound_by_policy(entry.decision)


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


def _is_bound_by_policy(decision: Decision) -> bool:
    request, chosen = decision.request, decision.placement.memory_policy
    policy = request.memory_policy or request.given_policy or chosen
    return policy is not None and policy.mode in (
        MemoryPolicyMode.BIND,
        MemoryPolicyMode.INTERLEAVE,
        MemoryPolicyMode.WEIGHTED_INTERLEAVE,
    )


STARTS_ELSEWHERE: Final = "starts-elsewhere"
"""Code of the reason that a container starts with a memory policy for the sake of others' promises."""


class StartingRoom(Struct, frozen=True):
    """What one look says to all containers that start after it. By node: ``room_bytes`` that are promised to
    no confined container, and ``to_come_bytes`` that are outstanding to containers that are not confined."""

    room_bytes: Mapping[int, int]
    to_come_bytes: int

    @classmethod
    def of(cls, machine: Machine, live: LivePages) -> "StartingRoom":
        """What *live* says of *machine*. Goes through all containers."""
        anywhere, confined = list[ContainerPages](), list[ContainerPages]()
        for one in live.containers.values():
            (anywhere if machine.ordinary_nodes <= one.nodes else confined).append(one)
        room_bytes = unpromised_bytes(live.nodes, confined, goal_bytes(machine))
        return cls(room_bytes, sum(one.outstanding_bytes for one in anywhere))


def with_starting_nodes(
    machine: Machine, room: StartingRoom, ability: MemoryPolicyAbility, decision: Decision
) -> Decision:
    """*decision* with the memory policy that its container should start with, by what was seen last.

    A container gets none if it asked for another one, if somebody else placed it, or where the runtime passes
    none on. The kernel has preferred-many from 5.15 on; that it has weighted interleave, which can be seen,
    shows 6.9 or later.
    """
    request = decision.request
    taken = request.opted_out or request.memory_policy is not None or request.pinned_mems is not None
    taken = taken or request.given_policy is not None
    if taken or decision.placement.memory_policy is not None or not (ability.runtime and ability.weighted):
        return decision
    nodes = _starting_nodes(machine, room, decision)
    if nodes is None:
        return decision
    left_out = (machine.ordinary_nodes & NodeSet(room.room_bytes)) - nodes
    text = f"starts on {nodes_text(nodes)}: what is free on {nodes_text(left_out)} is promised to others"
    setting = MemoryPolicySetting(MemoryPolicyMode.PREFERRED_MANY, nodes, STATIC)
    return replace(
        decision,
        placement=replace(decision.placement, memory_policy=setting),
        reasons=(*decision.reasons, Reason(STARTS_ELSEWHERE, text)),
    )


def _starting_nodes(machine: Machine, room: StartingRoom, decision: Decision) -> NodeSet | None:
    """The nodes to prefer; None for no policy: the container is confined, or every node has room for its part
    of what the container claims, or none has.

    The kernel fills nodes by where processes run. So each node is assumed to get the same part of what is
    still to come from all containers that are not confined; where some nodes are left out, the others get
    more.
    """
    everywhere = machine.ordinary_nodes & NodeSet(room.room_bytes)
    if not machine.ordinary_nodes <= allowed_nodes(machine, decision):
        return None
    claimed = sum_of(amounts for _, amounts in decision.placement.promise.claimed_parts)
    to_come_bytes = room.to_come_bytes + claimed.get(MEMORY, 0)
    nodes, before = everywhere, NodeSet()
    while nodes and nodes != before:
        before = nodes
        nodes = NodeSet(node for node in nodes if room.room_bytes[node] * len(nodes) > to_come_bytes)
    return None if not nodes or nodes == everywhere else nodes

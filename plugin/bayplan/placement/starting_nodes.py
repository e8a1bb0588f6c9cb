"""On which nodes the pages of a container should begin to lie that may lie on any.

The kernel takes a page from the node of the CPU that touches it first, whoever that memory was promised to.
Where a node has too little left beside what is outstanding there, such pages would only have to be moved
again. So the container starts with a memory policy that prefers the other nodes (preferred-many): it costs no
memory it may have, as the kernel goes on to the rest once they are full. Only nodes without room are left
out, because the bandwidth of the others has to do for theirs too. Pure.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.model.claims import sum_of
from bayplan.model.decision import STATIC, Decision, MemoryPolicyMode, MemoryPolicySetting, Reason
from bayplan.model.machine import MEMORY, Machine
from bayplan.placement.memory_policy import MemoryPolicyAbility
from bayplan.placement.page_owners import allowed_nodes, goal_bytes
from bayplan.placement.page_placement import ContainerPages, LivePages, unpromised_bytes
from bayplan.sets import NodeSet, nodes_text

STARTS_ELSEWHERE: Final = "starts-elsewhere"
"""Code of the reason that a container starts with a memory policy for the sake of others' promises."""


class StartingRoom(Struct, frozen=True):
    """What one look says to all that start after it: by node, ``room_bytes`` that no confined container is
    promised, and ``to_come_bytes`` that are outstanding to those that are not confined."""

    room_bytes: Mapping[int, int]
    to_come_bytes: int

    @classmethod
    def of(cls, machine: Machine, live: LivePages) -> "StartingRoom":
        """Goes through all containers."""
        anywhere, confined = list[ContainerPages](), list[ContainerPages]()
        for one in live.containers.values():
            (anywhere if machine.ordinary_nodes <= one.nodes else confined).append(one)
        room_bytes = unpromised_bytes(live.nodes, confined, goal_bytes(machine))
        return cls(room_bytes, sum(one.outstanding_bytes for one in anywhere))


def with_starting_nodes(
    machine: Machine, room: StartingRoom, ability: MemoryPolicyAbility, decision: Decision
) -> Decision:
    """*decision* with the memory policy that its container should start with by what was seen last.

    Nobody gets one that asked for another, that is placed by somebody else, or where the runtime passes none
    on. The kernel has preferred-many from 5.15 on; weighted interleave, which can be looked for, from 6.9.
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
    of what it claims, or none has.

    The kernel spreads what is touched first by where processes run, so each node is taken to get the same
    part of what is still to come of all that are not confined; where some are left out, the others get more.
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

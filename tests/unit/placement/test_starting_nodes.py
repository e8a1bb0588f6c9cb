"""Where containers start that may lie anywhere: off the nodes where what is free is promised to others."""

import pytest
from msgspec.structs import replace

from bayplan.model.decision import (
    Claim,
    Decision,
    Interval,
    MemoryPolicyMode,
    MemoryPolicySetting,
    MemoryPolicyWish,
    Outcome,
    Placement,
    QosClass,
    QosSource,
    Request,
)
from bayplan.placement.memory_policy import MemoryPolicyAbility
from bayplan.placement.page_owners import (
    STARTS_ELSEWHERE,
    StartingRoom,
    goal_bytes,
    start_bytes,
    with_starting_nodes,
)
from bayplan.placement.page_placement import ContainerPages, LivePages, NodeMemory, plan
from bayplan.quantity import GIB
from bayplan.sets import NodeSet
from support.machines import machine

MACHINE = machine(4)
EVERYWHERE = MACHINE.ordinary_nodes
ABLE = MemoryPolicyAbility()


def live(free_gib: dict[int, int], *containers: ContainerPages) -> LivePages:
    nodes = {node: NodeMemory(amount * GIB) for node, amount in free_gib.items()}
    made = plan(nodes, containers, start_bytes(MACHINE), goal_bytes(MACHINE), MACHINE.distance)
    return LivePages(0, nodes, {one.container_id: one for one in containers}, made)


def promised(name: str, nodes: NodeSet, gib: int) -> ContainerPages:
    return ContainerPages(name, name, nodes, gib * GIB)


def decision(claimed_gib: int = 0, nodes: NodeSet = EVERYWHERE) -> Decision:
    qos = QosClass.BURSTABLE if claimed_gib else QosClass.BEST_EFFORT
    request = Request("c", "p", "default/p/c", qos, QosSource.INFERRED, Interval(0, 0, "none"))
    claim = Claim(nodes, {"memory": claimed_gib * GIB} if claimed_gib else {})
    return Decision(request, Outcome.PLACED, Placement(claim=claim))


def starting(seen: LivePages, one: Decision) -> NodeSet | None:
    found = with_starting_nodes(MACHINE, StartingRoom.of(MACHINE, seen), ABLE, one).placement.memory_policy
    assert found is None or (found.mode, found.flags) == (MemoryPolicyMode.PREFERRED_MANY, ("static_nodes",))
    return None if found is None else found.nodes


FULL = dict.fromkeys(EVERYWHERE, 10)
ON_1, ON_0_AND_1 = NodeSet([1]), NodeSet([0, 1])


@pytest.mark.parametrize(
    ("claimed_gib", "containers", "expected"),
    [
        # All have room: the kernel's own way, near the CPUs, is the best one.
        (0, [promised("a", ON_1, 5)], None),
        (0, [promised("a", ON_1, 10)], NodeSet([0, 2, 3])),
        (0, [promised("a", ON_0_AND_1, 20)], NodeSet([2, 3])),
        # A quarter of the claim has to have room on each node, a third where there are three.
        (7, [promised("a", ON_1, 8)], None),
        (9, [promised("a", ON_1, 8)], NodeSet([0, 2, 3])),
        (9, [promised("a", ON_1, 8), promised("b", NodeSet([2]), 6)], NodeSet([0, 2, 3])),
        (9, [promised("a", ON_1, 8), promised("b", NodeSet([2]), 7)], NodeSet([0, 3])),
        # What is still to come of others that may lie anywhere has to have room as well.
        (0, [promised("a", ON_1, 8), promised("w", EVERYWHERE, 9)], NodeSet([0, 2, 3])),
        # Nowhere is room: nothing is better than anything else.
        (0, [promised("a", EVERYWHERE - NodeSet([3]), 30), promised("b", NodeSet([3]), 10)], None),
    ],
)
def test_nodes_without_room_for_their_part_are_left_out(
    claimed_gib: int, containers: list[ContainerPages], expected: NodeSet | None
) -> None:
    assert starting(live(FULL, *containers), decision(claimed_gib)) == expected


def test_it_is_said_why() -> None:
    room = StartingRoom.of(MACHINE, live(FULL, promised("a", ON_0_AND_1, 20)))
    found = with_starting_nodes(MACHINE, room, ABLE, decision())
    (reason,) = found.reasons
    assert reason.code == STARTS_ELSEWHERE
    assert reason.text == "starts on nodes 2-3: what is free on nodes 0-1 is promised to others"


def test_pages_on_the_node_count_as_they_are() -> None:
    """The owner uses what it was promised, and others have the rest of the node."""
    used = ContainerPages("a", "a", ON_1, 5 * GIB, {1: 5 * GIB})
    assert starting(live({**FULL, 1: 0}, used), decision()) == NodeSet([0, 2, 3])
    assert starting(live({**FULL, 1: 5}, used), decision()) is None


def asks(**fields: object) -> Decision:
    one = decision()
    return replace(one, request=replace(one.request, **fields))


@pytest.mark.parametrize(
    ("one", "ability"),
    [
        (decision(), MemoryPolicyAbility(runtime=False)),
        (decision(), MemoryPolicyAbility(weighted=False)),
        (decision(nodes=ON_1), ABLE),
        (asks(opted_out=True), ABLE),
        (asks(pinned_mems=NodeSet([1])), ABLE),
        (asks(memory_policy=MemoryPolicyWish(MemoryPolicyMode.LOCAL)), ABLE),
        (
            replace(
                decision(),
                placement=Placement(
                    memory_policy=MemoryPolicySetting(MemoryPolicyMode.PREFERRED, NodeSet([1]))
                ),
            ),
            ABLE,
        ),
    ],
)
def test_nobody_else_gets_one(one: Decision, ability: MemoryPolicyAbility) -> None:
    room = StartingRoom.of(MACHINE, live(FULL, promised("a", ON_1, 10)))
    assert with_starting_nodes(MACHINE, room, ability, one) == one

"""Where pages should lie, against brute force over all sets of nodes: Hall's condition on live numbers."""

from collections.abc import Mapping, Sequence

from hypothesis import given
from msgspec.structs import replace

from bayplan.placement.page_placement import ContainerPages, NodeMemory, Plan
from bayplan.sets import NodeSet
from support.page_scenes import IDS, NOTHING, Scene, moved, promised_on_single_nodes, scenes


def violation(room: Mapping[int, int], containers: Sequence[ContainerPages], *, movable: bool) -> int:
    """The largest amount by which some set of nodes is asked for more than it can give."""
    ids, worst = sorted(room), 0
    for mask in range(1 << len(ids)):
        there = NodeSet(node for place, node in enumerate(ids) if mask >> place & 1)
        asked = sum(one.outstanding_bytes for one in containers if one.nodes <= there)
        given = sum(room[node] for node in there)
        if movable:
            for one in containers:
                own = {node: amount for node, amount in one.movable_bytes.items() if node in one.nodes}
                given += sum(amount for node, amount in own.items() if node in there)
                asked += sum(own.values()) if one.nodes <= there else 0
        worst = max(worst, asked - given)
    return worst


@given(scenes())
def test_nothing_is_moved_unless_some_set_cannot_give_what_is_outstanding(scene: Scene) -> None:
    made = scene.planned()
    lacks_start = violation(scene.room(scene.start_bytes), scene.containers, movable=False) > 0
    lacks_all = violation(scene.room(NOTHING), scene.containers, movable=False) > 0
    assert bool(made.risks) == (lacks_all or (lacks_start and bool(made.moves)))
    if not made.risks:
        assert (made.moves, made.unmet_bytes) == ((), 0)


@given(scenes())
def test_what_has_no_place_is_what_the_worst_set_lacks(scene: Scene) -> None:
    made = scene.planned()
    if made.risks:
        assert made.unmet_bytes == violation(scene.room(NOTHING), scene.containers, movable=True)


@given(scenes())
def test_moves_can_be_made_and_suffice(scene: Scene) -> None:
    made = scene.planned()
    after = moved(scene, made)
    by_id = {one.container_id: one for one in scene.containers}
    for move in made.moves:
        one = by_id[move.container_id]
        assert move.amount_bytes > 0
        assert move.source != move.target
        assert NodeSet([move.source, move.target]) <= one.nodes
    assert all(amount >= 0 for one in after.containers for amount in one.movable_bytes.values())
    assert all(one.reclaimable_bytes >= 0 for one in after.nodes.values())
    if made.risks:
        at_risk = NodeSet(node for risk in made.risks for node in risk.nodes)
        room_before, room_after = (each.room(kept_bytes(scene, made), at_risk) for each in (scene, after))
        lacking = violation(room_after, after.containers, movable=False)
        assert lacking == violation(room_before, scene.containers, movable=True)


@given(scenes())
def test_who_may_lie_on_few_nodes_gets_room_before_those_who_may_lie_on_more(scene: Scene) -> None:
    """However much all of them lack together."""
    made = scene.planned()
    if not made.risks:
        return
    after = moved(scene, made)
    at_risk = NodeSet(node for risk in made.risks for node in risk.nodes)
    room_before, room_after = (each.room(kept_bytes(scene, made), at_risk) for each in (scene, after))
    for width in range(1, len(IDS)):
        lacking = violation(room_after, promised_within(width, after), movable=False)
        assert lacking == violation(room_before, promised_within(width, scene), movable=True)


def kept_bytes(scene: Scene, made: Plan) -> dict[int, int]:
    """What is to be left beside the promises: nothing where not even all of these have a place."""
    return NOTHING if made.unmet_bytes else scene.goal_bytes


def promised_within(width: int, scene: Scene) -> list[ContainerPages]:
    """The containers of *scene*, of which those are promised nothing who may lie on more nodes than that."""
    return [one if len(one.nodes) <= width else replace(one, promised_bytes=0) for one in scene.containers]


@given(scenes())
def test_what_was_moved_is_not_moved_again(scene: Scene) -> None:
    after = moved(scene, scene.planned())
    assert after.planned().moves == ()


@given(scenes())
def test_no_more_leaves_a_node_than_has_to(scene: Scene) -> None:
    """With a byte less of any move something that is promised, or the band beside it, would lack it."""
    made = scene.planned()
    if not made.risks:
        return
    at_risk = NodeSet(node for risk in made.risks for node in risk.nodes)

    def lacking(after: Scene) -> list[int]:
        return [
            violation(after.room(kept, at_risk), promised_within(width, after), movable=False)
            for kept in (scene.goal_bytes, scene.start_bytes, NOTHING)
            for width in range(1, len(IDS) + 1)
        ]

    least = lacking(moved(scene, made))
    for move in made.moves:
        less = replace(move, amount_bytes=move.amount_bytes - 1)
        moves = tuple(less if one == move else one for one in made.moves)
        after = moved(scene, replace(made, moves=moves))
        short = any(one.reclaimable_bytes < 0 for one in after.nodes.values())
        assert short or any(more > before for more, before in zip(lacking(after), least, strict=True))


@given(promised_on_single_nodes())
def test_nothing_goes_far_as_long_as_there_is_room_nearer(scene: Scene) -> None:
    made = scene.planned()
    after = moved(scene, made)
    by_id = {one.container_id: one for one in scene.containers}
    for move in made.moves:
        for nearer in by_id[move.container_id].nodes:
            if scene.distance(move.source, nearer) < scene.distance(move.source, move.target):
                due = [one.outstanding_bytes for one in scene.containers if one.nodes == NodeSet([nearer])]
                assert nearer == move.source or after.nodes[nearer].free_bytes <= sum(due)


@given(scenes())
def test_a_risk_names_a_set_that_lacks_memory_and_who_is_concerned(scene: Scene) -> None:
    made, room = scene.planned(), scene.room(scene.start_bytes)
    names = {one.name: one for one in scene.containers}
    for risk in made.risks:
        owners = [one for one in scene.containers if one.nodes <= risk.nodes]
        assert risk.outstanding_bytes == sum(one.outstanding_bytes for one in owners)
        assert risk.outstanding_bytes > sum(room[node] for node in risk.nodes if node in room)
        assert risk.lacking_bytes == max(0, risk.outstanding_bytes - risk.room_bytes)
        assert all(names[name].nodes <= risk.nodes for name in risk.owners)
        assert all(any(node in risk.nodes for node in names[name].held_bytes) for name in risk.occupants)


def test_the_measured_case() -> None:
    """Two confined containers have grown to half of their promise; unconfined pages lie on their nodes."""
    free = NodeSet([0, 1, 2])
    scene = Scene(
        {0: NodeMemory(360), 1: NodeMemory(20, 30), 2: NodeMemory(0, 40)},
        [
            ContainerPages("g1", "g1", NodeSet([1]), 200, {1: 100}),
            ContainerPages("g2", "g2", NodeSet([2]), 200, {2: 100}),
            ContainerPages("b", "b", free, 150, {0: 20, 1: 100, 2: 30}, {1: 100, 2: 30}, 1),
            ContainerPages("x", "x", free, 0, {1: 10, 2: 80}, {1: 10, 2: 80}, 0),
        ],
        dict.fromkeys(free, 0),
        dict.fromkeys(free, 10),
    )
    made = scene.planned()
    assert made.unmet_bytes == 0
    moves = {(move.container_id, move.source, move.target): move.amount_bytes for move in made.moves}
    # 100 are outstanding on each node, and 10 are to be left: BestEffort goes first.
    assert moves == {("x", 1, 0): 10, ("b", 1, 0): 50, ("x", 2, 0): 70}
    assert [(str(risk.nodes), risk.lacking_bytes) for risk in made.risks] == [("1", 50), ("2", 60)]
    assert made.risks[0].owners == ("g1",)
    assert made.risks[0].occupants == ("b", "x")


def test_a_node_is_relieved_also_if_not_everything_has_a_place() -> None:
    """30 are left for 50, all on node 0: who must stay on node 1 would be killed with these 30 still free."""
    scene = Scene(
        {0: NodeMemory(30), 1: NodeMemory(0)},
        [
            ContainerPages("g", "g", NodeSet([1]), 20),
            ContainerPages("b", "b", NodeSet([0, 1]), 50, {1: 20}, {1: 20}),
        ],
        NOTHING,
        NOTHING,
    )
    made = scene.planned()
    assert made.unmet_bytes == 20
    assert [(one.container_id, one.source, one.target, one.amount_bytes) for one in made.moves] == [
        ("b", 1, 0, 20)
    ]


def test_pages_go_to_the_nearest_node_that_has_room() -> None:
    """Nodes 0 and 5 are a socket, 1 and 2 the other one; nodes 0 and 2 are promised."""
    sockets = ((0, 5), (1, 2))
    near = {pair: 12 for one, other in sockets for pair in ((one, other), (other, one))}
    scene = Scene(
        {0: NodeMemory(0), 1: NodeMemory(100), 2: NodeMemory(0), 5: NodeMemory(30)},
        [
            ContainerPages("g", "g", NodeSet([0]), 50),
            ContainerPages("h", "h", NodeSet([2]), 20),
            ContainerPages("x", "x", NodeSet(IDS), 0, {0: 60, 2: 60}, {0: 60, 2: 60}),
        ],
        NOTHING,
        NOTHING,
        near,
    )
    moves = {(move.source, move.target): move.amount_bytes for move in scene.planned().moves}
    assert moves == {(0, 5): 30, (0, 1): 20, (2, 1): 20}


def test_who_may_not_be_moved_is_named() -> None:
    scene = Scene(
        {0: NodeMemory(100), 1: NodeMemory(0)},
        [
            ContainerPages("g", "g", NodeSet([1]), 50),
            ContainerPages("o", "o", NodeSet([0, 1]), 0, {1: 80}),
        ],
        {0: 0, 1: 0},
        {0: 0, 1: 0},
    )
    made = scene.planned()
    assert (made.moves, made.unmet_bytes) == ((), 50)
    assert made.risks[0].occupants == ("o",)


@given(scenes())
def test_every_outstanding_byte_is_expected_of_a_node(scene: Scene) -> None:
    made = scene.planned()
    on_nodes = [one for one in scene.containers if any(node in scene.nodes for node in one.nodes)]
    assert sum(made.expected_bytes.values()) == sum(one.outstanding_bytes for one in on_nodes)
    for node, amount in made.expected_bytes.items():
        alone = (one.outstanding_bytes for one in scene.containers if one.nodes == NodeSet([node]))
        assert amount >= sum(alone)


@given(scenes())
def test_what_is_reclaimed_is_there_and_is_expected(scene: Scene) -> None:
    made = scene.planned()
    for node, amount in made.reclaim_bytes.items():
        one = scene.nodes[node]
        assert 0 < amount <= one.reclaimable_bytes
        assert one.free_bytes < scene.start_bytes[node]
        assert one.free_bytes + amount <= min(scene.goal_bytes[node], made.expected_bytes[node])

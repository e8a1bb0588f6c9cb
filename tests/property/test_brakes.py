"""What those who are slowed down may take together is there, on whichever node the kernel takes it."""

from hypothesis import given
from hypothesis import strategies as st

from bayplan.placement.brakes import allowed_growth, grown, unbacked
from bayplan.placement.page_placement import ContainerPages, LivePages, NodeMemory, Plan, short_nodes
from bayplan.quantity import MIB
from bayplan.sets import NodeSet
from support.page_scenes import Scene, scenes


def seen(scene: Scene) -> LivePages:
    """In MiB, as who took less than some is not growing."""
    nodes = {
        node: NodeMemory(one.free_bytes * MIB, one.reclaimable_bytes * MIB)
        for node, one in scene.nodes.items()
    }
    containers = [
        ContainerPages(
            one.container_id,
            one.name,
            one.nodes,
            one.promised_bytes * MIB,
            {node: amount * MIB for node, amount in one.held_bytes.items()},
        )
        for one in scene.containers
    ]
    return LivePages(0, nodes, {one.container_id: one for one in containers}, Plan())


@given(scenes())
def test_owners_that_lack_memory_never_get_more_than_there_is(scene: Scene) -> None:
    live = seen(scene)
    allowed, short = allowed_growth(live, {}), short_nodes(live.nodes, live.containers.values())
    assert allowed.keys() <= unbacked(live)
    for node in short & NodeSet(live.nodes):
        here = [key for key in unbacked(live) if node in live.containers[key].nodes]
        together = sum(allowed.get(key, live.containers[key].outstanding_bytes) for key in here)
        assert together <= live.nodes[node].room_bytes


@given(scenes())
def test_nobody_is_slowed_down_where_there_is_enough_for_all(scene: Scene) -> None:
    live = seen(scene)
    outstanding = sum(one.outstanding_bytes for one in live.containers.values())
    if all(one.room_bytes >= outstanding for one in live.nodes.values()):
        assert allowed_growth(live, {}, live.containers.keys()) == {}


@given(scenes(), st.integers(0, 5))
def test_who_starts_leaves_what_others_need_who_cannot_go_elsewhere(scene: Scene, number: int) -> None:
    live = seen(scene)
    keys = sorted(live.containers)
    if not keys:
        return
    one = live.containers[keys[number % len(keys)]]
    if one.container_id in unbacked(live) or not one.outstanding_bytes or unbacked(live):
        return
    may_take = allowed_growth(live, {}, (one.container_id,)).get(one.container_id, one.outstanding_bytes)
    others = [other for other in live.containers.values() if other is not one]
    for node in one.nodes & NodeSet(live.nodes):
        left = dict(live.nodes)
        left[node] = NodeMemory(max(0, live.nodes[node].room_bytes - may_take))
        needing = [other for other in others if not one.nodes <= other.nodes]
        # Up to what it always gets, from where it is seen in whose way it is.
        if may_take > 4 * MIB:
            assert not short_nodes(left, needing)


def test_what_was_moved_to_a_node_was_not_taken_there() -> None:
    nodes = {0: NodeMemory(0), 1: NodeMemory(0)}

    def held(amounts: dict[int, int]) -> LivePages:
        one = ContainerPages("c", "c", NodeSet([0, 1]), 0, amounts)
        return LivePages(0, nodes, {"c": one}, Plan())

    assert grown(None, held({0: 5})) == {}
    assert grown(held({0: 5}), held({0: 7, 1: 3})) == {"c": {0: 2, 1: 3}}

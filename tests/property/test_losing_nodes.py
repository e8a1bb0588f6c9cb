"""Relief begins earlier on nodes that lose memory, and on no others."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.placement.page_placement import (
    LEAD_S,
    LEAST_S,
    ContainerPages,
    LivePages,
    NodeMemory,
    Plan,
    plan,
    soon_lost_bytes,
    widened,
)
from bayplan.sets import NodeSet
from support.page_scenes import Scene, moved, promised_on_single_nodes

MOST = 1000
BYTES = st.integers(0, 2 * MOST)
BANDS = st.fixed_dictionaries({0: BYTES, 1: BYTES})


def look(scene: Scene) -> LivePages:
    return LivePages(0, scene.nodes, {one.container_id: one for one in scene.containers}, scene.planned())


@given(BYTES, BYTES, st.floats(0, 60))
def test_what_a_node_lost_it_is_expected_to_lose_on(was: int, now: int, passed_s: float) -> None:
    before = LivePages(0, {0: NodeMemory(was)}, {}, Plan())
    found = soon_lost_bytes(before, {0: NodeMemory(now), 7: NodeMemory(0)}, {}, passed_s, MOST)
    if was <= now:
        assert found == {}
    else:
        assert found == {0: min(MOST, round((was - now) * LEAD_S / max(passed_s, LEAST_S)))}


@given(promised_on_single_nodes(), st.floats(0, 60))
def test_what_was_moved_as_planned_is_lost_nowhere(scene: Scene, passed_s: float) -> None:
    before = look(scene)
    after = look(moved(scene, before.plan))
    assert soon_lost_bytes(before, after.nodes, after.plan.expected_bytes, passed_s, MOST) == {}


@given(st.integers(0, 50), st.integers(0, 50), st.floats(0, 60))
def test_what_an_owner_uses_of_its_promise_is_not_lost(promised: int, used: int, passed_s: float) -> None:
    owner = ContainerPages("o", "o", NodeSet([0]), promised)
    nodes = {0: NodeMemory(100)}
    before = LivePages(0, nodes, {"o": owner}, plan(nodes, [owner], {}, {}, lambda *_: 20))
    now = {0: NodeMemory(100 - used)}
    expected = plan(now, [replace(owner, held_bytes={0: used})], {}, {}, lambda *_: 20).expected_bytes
    # What it uses beyond its promise is.
    lost = (
        {0: min(MOST, round((used - promised) * LEAD_S / max(passed_s, LEAST_S)))} if used > promised else {}
    )
    assert soon_lost_bytes(before, now, expected, passed_s, MOST) == lost


@given(BANDS, BANDS, BANDS)
def test_bands_are_as_wide_as_what_is_soon_lost_and_keep_their_distance(
    start: dict[int, int], further: dict[int, int], lost: dict[int, int]
) -> None:
    goal = {node: band + further[node] for node, band in start.items()}
    wide_start, wide_goal = widened(start, goal, lost)
    for node, band in start.items():
        assert wide_start[node] == max(band, lost[node])
        assert wide_goal[node] - wide_start[node] == further[node]
    assert widened(start, goal, {}) == (start, goal)

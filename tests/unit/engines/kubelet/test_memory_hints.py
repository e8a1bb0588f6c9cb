"""Hints by description against hints by enumeration, as kubelet makes them."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.engines.kubelet.hint_merge import best_hint
from bayplan.engines.kubelet.memory_manager import fitting, regenerated, violates_groups
from bayplan.engines.kubelet.memory_state import Block, MemoryTable, NumaNodeState
from bayplan.engines.kubelet.topology_hints import Hint, HintSet
from bayplan.sets import NodeSet

RESOURCES = ("memory", "hugepages-2Mi", "hugepages-1Gi")


def node(free: dict[str, int], assignments: int = 0, group=(), allocatable: dict[str, int] | None = None):
    sizes = allocatable or free
    tables = {
        name: MemoryTable(sizes[name], 0, sizes[name], sizes[name] - size, size)
        for name, size in free.items()
    }
    return NumaNodeState(tables, assignments, NodeSet(group))


def enumerated(nodes, wanted, reusable):
    """The rules one after the other for every set of nodes, in kubelet's order."""
    smallest, found = len(nodes), []
    for size in range(1, len(nodes) + 1):
        for ids in combinations(sorted(nodes), size):
            members = [nodes[each] for each in ids]
            if any(sum(m.allocatable_bytes(r) for m in members) < need for r, need in wanted.items()):
                continue
            smallest = min(smallest, size)
            if size == 1 and len(members[0].group) > 1:
                continue
            if size > 1 and any(
                m.assignments > 0 and (len(m.group) == 1 or tuple(m.group) != ids) for m in members
            ):
                continue
            extra = reusable.get(NodeSet(ids), {})
            if any(sum(m.free_bytes(r) for m in members) + extra.get(r, 0) < n for r, n in wanted.items()):
                continue
            found.append(ids)
    return [Hint(NodeSet(ids), preferred=len(ids) == smallest) for ids in found]


@st.composite
def situations(draw):
    """Nodes with sparse ids in any state, also in states that no history leads to; reusable memory only on
    nodes in use, where alone it can be."""
    ids = sorted(draw(st.sets(st.integers(0, 70), min_size=1, max_size=5)))
    names = RESOURCES[: draw(st.integers(1, 3))]
    nodes = {}
    for each in ids:
        total = {name: draw(st.integers(0, 6)) for name in names}
        free = {name: draw(st.integers(0, total[name])) for name in names}
        group = draw(st.sampled_from([[each], [each], ids[:2], ids[-2:], ids, []]))
        nodes[each] = node(free, draw(st.integers(0, 2)), group, total)
    wanted = {name: draw(st.integers(0, 8)) for name in names}
    used = [each for each in ids if nodes[each].assignments]
    masks = [NodeSet([each]) for each in used] + [NodeSet(used)] * (len(used) > 1)
    reusable = {mask: {draw(st.sampled_from(names)): draw(st.integers(0, 4))} for mask in masks[:2]}
    return nodes, wanted, reusable


@given(situations())
def test_describes_what_kubelet_lists(situation):
    nodes, wanted, reusable = situation
    assert list(fitting(nodes, wanted, reusable).listed()) == enumerated(nodes, wanted, reusable)


@given(situations(), st.data())
def test_best_hint_is_the_best_of_the_list(situation, data):
    nodes, wanted, reusable = situation
    containing = NodeSet(data.draw(st.sets(st.sampled_from(sorted(nodes)))))
    listed = [hint for hint in enumerated(nodes, wanted, reusable) if containing <= hint.nodes]
    best = min(listed, key=lambda hint: (not hint.preferred, len(hint.nodes), hint.nodes.mask), default=None)
    assert best_hint(fitting(nodes, wanted, reusable), containing) == best


def test_a_full_node_does_not_make_larger_sets_preferred():
    nodes = {0: node({"memory": 1}, 1, [0], {"memory": 8}), 1: node({"memory": 4}), 2: node({"memory": 4})}
    hints = fitting(nodes, {"memory": 6}, {}).listed()
    assert hints == (Hint(NodeSet([1, 2]), preferred=False),)


def test_64_nodes_are_described_by_one_region():
    nodes = {each: node({"memory": 100 + each, "hugepages-2Mi": 10}) for each in range(64)}
    hints = fitting(nodes, {"memory": 3000, "hugepages-2Mi": 200}, {})
    assert (len(hints.hints), len(hints.regions)) == (0, 1)
    best = best_hint(hints)
    assert best.preferred
    assert len(best.nodes) == 20


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ((("memory", 2),), None),
        ((("memory", 2), ("hugepages-2Mi", 1)), None),
        ((("memory", 3), ("hugepages-1Gi", 1)), None),
        ((("memory", 3), ("memory", 3)), {"memory": 2, "hugepages-2Mi": 0}),
        ((("memory", 3), ("hugepages-2Mi", 1)), {"memory": 1, "hugepages-2Mi": 1}),
    ],
)
def test_hints_of_a_container_that_has_its_memory(blocks, expected):
    where = NodeSet([1, 4])
    found = regenerated(
        tuple(Block(where, name, size) for name, size in blocks), {"memory": 3, "hugepages-2Mi": 1}
    )
    hint = Hint(where, preferred=True)
    assert found == (expected and {name: HintSet((hint,) * count) for name, count in expected.items()})


@pytest.mark.parametrize(
    ("where", "violates"), [([0], False), ([0, 1], False), ([0, 2], True), ([2, 3], True), ([3, 4], False)]
)
def test_only_larger_sets_can_violate_groups(where, violates):
    nodes = {
        0: node({"memory": 1}, 1, [0, 1]),
        1: node({"memory": 1}, 1, [0, 1]),
        2: node({"memory": 1}, 1, [2]),
        3: node({"memory": 1}, 0, [3]),
        4: node({"memory": 1}, 0, [4]),
    }
    assert violates_groups(nodes, NodeSet(where)) is violates

"""The merge against kubelet's own way of doing it: the cross product of fully listed hints."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from bayplan.engines.kubelet.hint_merge import best_hint, merge, narrowest_size
from bayplan.engines.kubelet.topology_hints import (
    ANYWHERE,
    NOWHERE,
    Distances,
    Hint,
    HintSet,
    NodeAmounts,
    OfSize,
    Region,
    Touching,
)
from bayplan.sets import NodeSet


def closer(candidate, current, distances):
    """Whether kubelet takes *candidate* instead of *current*, both equally preferred."""
    if len(candidate) != len(current):
        return len(candidate) < len(current)
    if distances is not None:
        far, near = (distances.total(one.mask) for one in (current, candidate))
        if far != near:
            return near < far
    return candidate.mask < current.mask


def replaces(candidate, current, wanted, distances):
    """Kubelet's comparison of two merged hints."""
    if candidate.preferred != current.preferred:
        return candidate.preferred
    better = closer(candidate.nodes, current.nodes, distances)
    size, new_size = len(current.nodes), len(candidate.nodes)
    if current.preferred or size > wanted:
        return better
    if size == wanted:
        return new_size == wanted and better
    return new_size <= wanted and (new_size > size or (new_size == size and better))


def by_product(sets, everything, distances):
    """Kubelet's merge: every combination of the fully listed hints, one after the other."""
    lists = [hints.listed() for hints in sets]
    wanted = max((min((len(h.nodes) for h in hints if h.nodes), default=0) for hints in lists), default=0)
    best = None
    for combination in product(*lists):
        masks = [hint.nodes for hint in combination if hint.nodes is not None]
        nodes = everything
        for mask in masks:
            nodes &= mask
        preferred = all(hint.preferred for hint in combination) and len(set(masks)) <= 1
        merged = Hint(nodes, preferred)
        if nodes and (best is None or replaces(merged, best, wanted, distances)):
            best = merged
    return best or Hint(everything, preferred=False)


NODES = st.sampled_from([(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (0, 2, 5, 9), (0, 1, 2, 3, 4)])


@st.composite
def node_sets(draw, ids, smallest=1):
    return NodeSet(draw(st.sets(st.sampled_from(ids), min_size=smallest)))


@st.composite
def regions(draw, ids):
    ground = draw(node_sets(ids))
    demands = []
    for _ in range(draw(st.integers(0, 2))):
        amounts = {node: draw(st.integers(0, 4)) for node in ids if draw(st.booleans())}
        shared = tuple(
            (draw(node_sets(ids)), draw(st.integers(0, 3))) for _ in range(draw(st.integers(0, 2)))
        )
        demands.append(NodeAmounts(amounts, draw(st.integers(0, 8)), shared))
    if draw(st.integers(0, 3)):
        preferred = OfSize(draw(st.integers(1, len(ids))))
    else:
        cut = draw(st.integers(1, len(ids)))
        blocks = (NodeSet(ids[:cut]), NodeSet(ids[cut:]))
        preferred = Touching(blocks, draw(st.integers(0, 2)))
    must = draw(node_sets(ids)) if not draw(st.integers(0, 3)) else NodeSet()
    return Region(ground, tuple(demands), preferred, must)


@st.composite
def hint_sets(draw, ids, explicit_only=False):
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.sampled_from([ANYWHERE, NOWHERE, HintSet()]))
    hints = []
    for _ in range(draw(st.integers(0, 4 if explicit_only or kind < 4 else 1))):
        nodes = draw(node_sets(ids)) if draw(st.integers(0, 7)) else None
        hints.append(Hint(nodes, draw(st.booleans())))
    found = () if explicit_only or kind < 3 else draw(st.lists(regions(ids), max_size=2))
    return HintSet(tuple(hints), tuple(found))


@st.composite
def cases(draw, explicit_only=False):
    ids = draw(NODES)
    sets = draw(st.lists(hint_sets(ids, explicit_only), max_size=4))
    if sets and draw(st.booleans()):
        sets.append(sets[0])
    distances = None
    if draw(st.booleans()):
        distance = st.sampled_from([11, 12, 20])
        distances = Distances({a: {b: 10 if a == b else draw(distance) for b in ids} for a in ids})
    return tuple(sets), NodeSet(ids), distances


@given(cases())
def test_gives_the_answer_of_the_cross_product(case):
    sets, everything, distances = case
    merged = merge(sets, everything, distances)
    assert merged.exact
    assert merged.hint == by_product(sets, everything, distances)


@given(cases(explicit_only=True))
def test_gives_the_answer_of_the_cross_product_for_plain_lists(case):
    sets, everything, distances = case
    assert merge(sets, everything, distances).hint == by_product(sets, everything, distances)


@given(NODES.flatmap(lambda ids: st.tuples(hint_sets(ids), st.one_of(st.just(NodeSet()), node_sets(ids)))))
def test_best_hint_of_one_set(case):
    hints, containing = case
    listed = [hint for hint in hints.listed() if hint.nodes is not None and containing <= hint.nodes]
    expected = min(
        listed, key=lambda hint: (not hint.preferred, len(hint.nodes), hint.nodes.mask), default=None
    )
    assert best_hint(hints, containing) == expected


@given(NODES.flatmap(regions))
def test_narrowest_size(region):
    sizes = [len(hint.nodes) for hint in HintSet(regions=(region,)).listed()]
    assert narrowest_size(region) == (min(sizes) if sizes else None)


def additive(amounts, needed, preferred=1):
    """A region of all nodes, which hold these amounts."""
    nodes = dict(enumerate(amounts))
    return Region(NodeSet(nodes), (NodeAmounts(nodes, needed),), OfSize(preferred))


def test_many_nodes_give_the_lowest_pair_that_all_prefer():
    amounts = [3] * 64
    amounts[0] = 1
    sets = (HintSet(regions=(additive(amounts, 6, 2),)), HintSet(regions=(additive([5] * 64, 10, 2),)))
    assert merge(sets, NodeSet(range(64))).hint == Hint(NodeSet([1, 2]), preferred=True)


def test_an_answer_that_nobody_asked_for_is_still_kubelets():
    """One provider needs node 2, the other node 3; kubelet intersects {0,2} with {0,3} and answers node 0."""
    sets = (
        HintSet(regions=(additive([0, 0, 5, 0], 5),)),
        HintSet(regions=(additive([0, 0, 0, 5], 5),)),
    )
    assert merge(sets, NodeSet(range(4))).hint == Hint(NodeSet([0]), preferred=False)


def test_a_search_that_is_cut_short_says_so_and_gives_an_intersection():
    amounts = [[(7 * node + 3 * salt) % 11 for node in range(40)] for salt in range(4)]
    sets = tuple(HintSet(regions=(additive(each, sum(each) // 3, 40),)) for each in amounts)
    everything = NodeSet(range(40))
    near = Distances({a: {b: 10 + (a ^ b) for b in range(40)} for a in range(40)})
    merged = merge(sets, everything, near, steps=500)
    assert not merged.exact
    assert not merged.hint.preferred
    assert merged.hint.nodes
    assert merged.hint.nodes <= everything

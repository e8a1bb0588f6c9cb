"""The balanced split against kubelet's own search: every combination, every subset."""

from itertools import combinations
from math import floor, sqrt

from hypothesis import given
from hypothesis import strategies as st

from bayplan.engines.kubelet.cpu_assignment import Split, best_split


def by_search(free, count, share, group, extra):
    """kubelet's loops, without those subsets on which they never end."""
    best, found = None, None
    for members in combinations(range(len(free)), count):
        if any(free[place] < share for place in members):
            continue
        left = [cpus - share * (place in members) for place, cpus in enumerate(free)]
        balance, remainder = best_remainder(left, members, group, extra)
        if balance is not None and (best is None or balance < best):
            best, found = balance, Split(members, remainder)
    return found


def best_remainder(left, members, group, extra):
    if not extra:
        return deviation(left), ()
    givers = [place for place in members if left[place] >= group]
    best, found = None, None
    for size in range(len(givers), 0, -1):
        for subset in combinations(givers, size):
            if sum(left[place] // group for place in subset) >= extra:
                balance = deviation(after_rounds(left, subset, group, extra))
                if best is None or balance < best:
                    best, found = balance, subset
    return best, found


def after_rounds(left, subset, group, extra):
    left = list(left)
    while extra:
        for place in subset:
            if extra and left[place] >= group:
                left[place] -= group
                extra -= 1
    return left


def deviation(values):
    mean = rounded(sum(values) / len(values))
    return rounded(sqrt(sum((value - mean) ** 2 for value in values) / len(values)))


def rounded(value):
    return floor(value * 1000 + 0.5) / 1000


@st.composite
def problems(draw, nodes):
    group = draw(st.sampled_from([1, 2, 4]))
    most = draw(st.sampled_from([3, 8, 24, 9_999]))
    free = draw(st.lists(st.integers(1, most), min_size=1, max_size=nodes))
    if draw(st.booleans()):
        free.sort()
    count = draw(st.integers(1, len(free)))
    share = draw(st.integers(1, max(1, most // group // 2))) * group
    return free, count, share, group, draw(st.integers(0, count - 1))


@given(problems(nodes=6))
def test_split_is_the_one_that_the_whole_search_finds(problem):
    assert best_split(*problem) == by_search(*problem)


def test_equal_nodes_share_in_their_order():
    split = best_split([16] * 64, count=48, share=10, group=2, extra=31)

    assert split == Split(tuple(range(48)), tuple(range(48)))


def test_fullest_nodes_are_drained_first():
    assert best_split([4, 16, 16, 4], count=2, share=4, group=1, extra=0) == Split((1, 2), ())


def test_remainder_comes_from_one_node_where_rounds_over_both_would_drain_the_emptier_one():
    assert best_split([2, 3, 12], count=3, share=1, group=1, extra=2) == Split((0, 1, 2), (2,))


def test_no_split_where_too_few_nodes_can_give_the_share():
    assert best_split([8, 1, 1], count=2, share=4, group=1, extra=0) is None


def test_no_split_where_the_remainder_would_break_groups():
    assert best_split([3, 3], count=2, share=2, group=2, extra=1) is None


def test_deviations_that_round_to_the_same_tie_and_the_first_combination_wins():
    """The second node is the fuller one, but the third makes the difference too small to be seen."""
    free = [2, 3, 10_000]

    assert best_split(free, count=2, share=1, group=1, extra=0) == Split((0, 2), ())
    assert by_search(free, 2, 1, 1, 0) == Split((0, 2), ())


def test_a_tie_goes_to_the_first_combination_that_has_a_remainder_to_give():
    assert best_split([1, 1, 10_000], count=2, share=1, group=1, extra=1) == Split((0, 2), (2,))


@given(st.lists(st.integers(1, 16), min_size=24, max_size=64), st.data())
def test_many_nodes_are_split_into_what_was_asked_for(free, data):
    count = data.draw(st.integers(1, len(free)))
    extra = data.draw(st.integers(0, count - 1))

    split = best_split(free, count, 1, 1, extra)

    if split is not None:
        assert len(split.members) == count
        assert set(split.remainder) <= set(split.members)
        assert sum(free[place] - 1 for place in split.remainder) >= extra

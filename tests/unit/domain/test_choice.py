"""Which nodes and which CPUs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.domain.cpus import take_cpus
from bayplan.domain.node_choice import book, choose_nodes, covers, narrowest_width
from bayplan.quantity import GIB
from bayplan.sets import CpuSet, NodeSet
from bayplan.testing.machines import machine


def no_penalty(_: NodeSet) -> int:
    return 0


def memory(*amounts: int) -> dict[int, dict[str, int]]:
    return {node: {"memory": amount} for node, amount in enumerate(amounts)}


@pytest.mark.parametrize(
    ("free", "need", "chosen"),
    [
        ((5, 5, 5, 5), 5, "0"),
        ((4, 5, 5, 5), 5, "1"),
        ((4, 4, 4, 4), 5, "0-1"),
        ((1, 4, 1, 4), 8, "1,3"),
        ((4, 4, 4, 4), 16, "0-3"),
        ((4, 4, 4, 4), 17, None),
        ((0, 0, 0, 0), 0, "0"),
    ],
)
def test_fewest_nodes_then_lowest_ids(free: tuple[int, ...], need: int, chosen: str | None) -> None:
    nodes = choose_nodes(machine(4), memory(*free), {"memory": need}, no_penalty)
    assert (None if nodes is None else str(nodes)) == chosen


def test_nearest_nodes_win_over_lower_ids() -> None:
    hardware = machine(4, distances={(0, 2): 12, (2, 0): 12, (1, 3): 12, (3, 1): 12})
    assert choose_nodes(hardware, memory(4, 4, 4, 4), {"memory": 8}, no_penalty) == NodeSet([0, 2])


def test_asymmetric_distances_count_in_both_directions() -> None:
    one_way = {(0, 1): 11, (1, 0): 40, (0, 2): 21, (2, 0): 21}
    chosen = choose_nodes(machine(3, distances=one_way), memory(4, 4, 4), {"memory": 8}, no_penalty)
    assert chosen == NodeSet([1, 2])


def test_a_penalty_comes_before_the_distance() -> None:
    chosen = choose_nodes(machine(2), memory(4, 4), {"memory": 4}, lambda nodes: 0 in nodes)
    assert chosen == NodeSet([1])


def test_all_resources_must_fit_together() -> None:
    free = {0: {"memory": 9, "cpu": 0}, 1: {"memory": 2, "cpu": 4}, 2: {"memory": 5, "cpu": 2}}
    assert choose_nodes(machine(3), free, {"memory": 5, "cpu": 2}, no_penalty) == NodeSet([2])
    assert choose_nodes(machine(3), free, {"memory": 5, "cpu": 4}, no_penalty) == NodeSet([0, 1])


def test_many_nodes_do_not_mean_all_subsets() -> None:
    big = machine(64, cpus_per_node=1)
    chosen = choose_nodes(big, memory(*[1] * 64), {"memory": 20}, no_penalty)
    assert chosen is not None
    assert len(chosen) == 20


amounts = st.lists(st.integers(0, 9), min_size=1, max_size=6)


@given(amounts, st.integers(0, 40))
def test_no_narrower_set_would_do(free: list[int], need: int) -> None:
    have, want = memory(*free), {"memory": need}
    width, chosen = narrowest_width(have, want), choose_nodes(machine(len(free)), have, want, no_penalty)
    assert (chosen is None) == (need > sum(free))
    if chosen is not None:
        assert covers(have, chosen, want)
        assert len(chosen) == width
        assert sum(sorted(free)[len(free) - len(chosen) + 1 :]) < max(need, 1)


@given(amounts, st.integers(0, 40))
def test_a_booking_sums_to_the_need_and_exceeds_no_node(free: list[int], need: int) -> None:
    have = memory(*free)
    booked = book(have, NodeSet(have), {"memory": need})
    assert sum(row["memory"] for row in booked.values()) == min(need, sum(free))
    assert all(booked[node]["memory"] <= have[node]["memory"] for node in booked)


SMT = machine(2, cpus_per_node=8, threads_per_core=2)


@pytest.mark.parametrize(
    ("available", "count", "preferred", "taken"),
    [
        ("0-15", 2, "0", "0-1"),
        ("0-15", 4, "1", "8-11"),
        ("0-15", 3, "0", "0-2"),
        ("1-15", 1, "0", "1"),
        ("1-15", 2, "0", "2-3"),
        ("0-15", 10, "0", "0-9"),
        ("1,3,5", 2, "0", "1,3"),
        ("0-15", 16, "", "0-15"),
        ("4-5", 4, "0", "4-5"),
    ],
)
def test_whole_cores_first_and_near(available: str, count: int, preferred: str, taken: str) -> None:
    assert str(take_cpus(SMT, CpuSet.parse(available), count, NodeSet.parse(preferred))) == taken


@given(st.sets(st.integers(0, 15)), st.integers(0, 20), st.sets(st.integers(0, 1)))
def test_never_more_and_never_others(available: set[int], count: int, preferred: set[int]) -> None:
    taken = take_cpus(SMT, CpuSet(available), count, NodeSet(preferred))
    assert set(taken) <= available
    assert len(taken) == min(count, len(available))


def test_the_next_nearest_node_helps_out() -> None:
    near = {(0, 2): 12, (2, 0): 12}
    cpus = take_cpus(machine(3, 2, GIB, distances=near), CpuSet(range(6)), 3, NodeSet([0]))
    assert str(cpus) == "0-1,4"


def test_far_nodes_are_found_on_large_machines_too() -> None:
    free = memory(*([0] * 200))
    free[3], free[190] = {"memory": 4}, {"memory": 4}
    chosen = choose_nodes(machine(200, cpus_per_node=1), free, {"memory": 8}, no_penalty)
    assert chosen == NodeSet([3, 190])
    free = memory(*([1] * 200))
    free[3], free[190] = {"memory": 4}, {"memory": 4}
    assert choose_nodes(machine(200, cpus_per_node=1), free, {"memory": 8}, no_penalty) == NodeSet([3, 190])

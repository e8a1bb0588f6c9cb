"""Bounds of distances, and nodes that could change places: compared with all sets and all nodes."""

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.engines.exact.flow import Flow
from bayplan.engines.exact.search import BoundedDemand, Supply
from bayplan.engines.exact.topology import NearestNodes, NodeTopology
from support.machines import machine

Distances = dict[tuple[int, int], int]


def ring(nodes: int) -> Distances:
    return {
        (one, other): 10 + min((one - other) % nodes, (other - one) % nodes)
        for one in range(nodes)
        for other in range(nodes)
        if one != other
    }


def boards(nodes: int) -> Distances:
    """Two nodes to a socket, two sockets to a board."""
    return {
        (one, other): 12 if one // 2 == other // 2 else 21 if one // 4 == other // 4 else 31
        for one in range(nodes)
        for other in range(nodes)
        if one != other
    }


def anyhow(nodes: int, seed: int) -> Distances:
    draw = random.Random(seed)
    return {
        (one, other): draw.choice([11, 12, 20, 31])
        for one in range(nodes)
        for other in range(nodes)
        if one != other
    }


MACHINES = [ring(8), boards(8), *(anyhow(7, seed) for seed in range(20))]


def nearest(distances: Distances) -> tuple[NodeTopology, NearestNodes, int]:
    nodes = max(max(pair) for pair in distances) + 1
    topology = NodeTopology(machine(nodes, distances=distances))
    return topology, topology.nearest_nodes((1 << nodes) - 1, nodes), nodes


@pytest.mark.parametrize("distances", MACHINES)
def test_no_set_is_nearer_than_the_nearest_nodes(distances: Distances) -> None:
    topology, found, nodes = nearest(distances)
    for width in range(1, nodes + 1):
        for members in combinations([1 << node for node in range(nodes)], width):
            for node in members:
                others = sum(topology.pairs[node][other] for other in members if other != node)
                assert found.nearest[node][width - 1] <= others


@pytest.mark.parametrize("distances", MACHINES)
def test_a_representative_is_as_far_from_every_other_node(distances: Distances) -> None:
    topology, found, _ = nearest(distances)
    for node, twin in found.representative.items():
        others = topology.pairs.keys() - {node, twin}
        assert all(topology.pairs[node][other] == topology.pairs[twin][other] for other in others)


def test_nodes_of_a_socket_have_one_representative_and_those_of_a_ring_have_none() -> None:
    assert nearest(boards(4))[1].representative == {1: 1, 2: 1, 4: 4, 8: 4}
    assert len(set(nearest(ring(8))[1].representative.values())) == 8


@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=6),
    st.integers(0, 12),
    st.integers(0, 4),
    st.data(),
)
def test_a_node_is_useful_if_a_set_that_reaches_the_target_has_it(
    adds: list[int], target: int, held: int, data: st.DataObject
) -> None:
    """Held against all sets of so many nodes."""
    most = {1 << position: add for position, add in enumerate(adds)}
    missing = data.draw(st.integers(1, len(adds)))
    supply = Supply(BoundedDemand(target, most, most), held, None)
    reaching = [
        members for members in combinations(most, missing) if held + sum(map(most.get, members)) >= target
    ]
    assert set(supply.useful(list(most), missing)) == {node for members in reaching for node in members}


def test_a_supply_is_never_more_than_the_target_and_leaves_those_before_it_as_they_are() -> None:
    flow = Flow({1: 5, 2: 5})
    for trial in (None, flow.trial()):
        demand = BoundedDemand(7, {1: 5, 2: 5}, {1: 5, 2: 5}, trial)
        none = Supply.none(demand)
        first = none.with_node(1)
        both = first.with_node(2)
        assert [supply.held for supply in (none, first, both)] == [0, 5, 7]
        assert [supply.lacking for supply in (none, first, both)] == [7, 2, 0]
        assert both.with_node(4) is both
        assert Supply.none(demand).with_node(1).held == 5
        assert first.with_node(2).held == 7


def test_only_allowed_nodes_count() -> None:
    topology = NodeTopology(machine(8, distances=boards(8)))
    found = topology.nearest_nodes(0b10110001, 4)
    assert found.nearest.keys() == found.representative.keys() == {1, 16, 32, 128}
    # A distance is that there and back.
    assert found.nearest[16] == [0, 2 * 12, 2 * (12 + 21), 2 * (12 + 21 + 31)]

"""Lower bounds of distances, and nodes that could change places: held against all sets and all nodes."""

import random
from itertools import combinations

import pytest

from bayplan.engines.exact.nearness import Nearness
from bayplan.engines.exact.sites import Site
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


def bounds(distances: Distances) -> tuple[Site, Nearness, int]:
    nodes = max(max(pair) for pair in distances) + 1
    site = Site(machine(nodes, distances=distances))
    ground = (1 << nodes) - 1
    return site, site.nearness(ground, nodes), nodes


@pytest.mark.parametrize("distances", MACHINES)
def test_no_set_is_nearer_than_the_bounds(distances: Distances) -> None:
    site, nearness, nodes = bounds(distances)
    for width in range(1, nodes + 1):
        for members in combinations([1 << node for node in range(nodes)], width):
            assert nearness.least[width] <= site.distance(sum(members))
            for node in members:
                others = sum(site.pairs[node][other] for other in members if other != node)
                assert nearness.nearby[node][width - 1] <= others


def test_on_boards_with_sockets_the_bound_is_what_the_nearest_sets_have() -> None:
    site, nearness, nodes = bounds(boards(8))
    masks = [1 << node for node in range(nodes)]
    for width in range(1, nodes + 1):
        nearest = min(site.distance(sum(members)) for members in combinations(masks, width))
        assert nearness.least[width] == nearest


@pytest.mark.parametrize("distances", MACHINES)
def test_twins_are_as_far_from_every_other_node(distances: Distances) -> None:
    site, nearness, _ = bounds(distances)
    for node, twin in nearness.twins.items():
        others = site.pairs.keys() - {node, twin}
        assert all(site.pairs[node][other] == site.pairs[twin][other] for other in others)


def test_nodes_of_a_socket_are_twins_and_those_of_a_ring_are_not() -> None:
    assert bounds(boards(4))[1].twins == {1: 1, 2: 1, 4: 4, 8: 4}
    assert len(set(bounds(ring(8))[1].twins.values())) == 8

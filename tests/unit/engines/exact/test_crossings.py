"""Crossed sets by the masks of the nodes: compared with one claimed set after the other."""

import random
from itertools import combinations

import pytest

from bayplan.engines.exact.flow import bits, crosses
from bayplan.engines.exact.question import ClaimedSets

NODES = 7
EVERYWHERE = (1 << NODES) - 1


def claimed(seed: int) -> tuple[int, ...]:
    """Sets of several nodes; nodes that are in none of them are common."""
    draw = random.Random(seed)
    wide = [mask for mask in range(1, EVERYWHERE + 1) if mask.bit_count() > 1]
    return tuple(draw.sample(wide, draw.randint(0, 5)))


@pytest.mark.parametrize("seed", range(20))
def test_the_sets_that_cross_some_nodes_are_counted(seed: int) -> None:
    sets = claimed(seed)
    for nodes in range(1, EVERYWHERE + 1):
        assert ClaimedSets(sets).crossed(nodes) == sum(crosses(nodes, other) for other in sets)


@pytest.mark.parametrize("seed", range(20))
def test_what_a_branch_crosses_is_crossed_by_all_of_its_sets(seed: int) -> None:
    sets, draw = ClaimedSets(claimed(seed)), random.Random(seed)
    allowed = draw.randint(1, EVERYWHERE)
    width = draw.randint(1, allowed.bit_count())
    chosen = [sum(some) for some in combinations(bits(allowed), width)]
    crossings, included, excluded = sets.undecided(allowed, width), 0, 0
    for node in draw.sample(list(bits(allowed)), allowed.bit_count()):
        within = [nodes for nodes in chosen if included == included & nodes and not excluded & nodes]
        assert all(crossings.crossed <= sets.crossed(nodes) for nodes in within)
        if included.bit_count() < width and draw.random() < 0.5:
            included |= node
            crossings = crossings.including(sets.by_node.get(node, 0))
        else:
            excluded |= node
            crossings = crossings.excluding(sets.by_node.get(node, 0))
    if included.bit_count() == width:
        assert crossings.crossed == sets.crossed(included)

"""How near to each other so many nodes of a ground can be at best, and which nodes stand in for each other.

Only of the machine, so worked out once for a ground. Distances are sums of both directions. Every number here
is a lower bound: no set of nodes is nearer.
"""

from collections import defaultdict
from collections.abc import Mapping
from itertools import accumulate, compress
from typing import Final

FAR: Final = 1 << 62
"""Farther than any set of nodes: 1024 of them, at the largest distance there is (255), are 2**28."""
_MOST_KINDS: Final = 64
"""Each node is held against so many kinds of nodes at most; not to see that two are alike only costs time."""

Pairs = Mapping[int, Mapping[int, int]]
"""Distance between two nodes, both masks with one bit and in the order of the ids."""


class Nearness:
    """The bounds for sets of up to *width* nodes of *ground*.

    ``least[r]`` is less than or equal to the distance of any r nodes; ``nearby[node][r]`` to that between the
    node and any r others. ``twins`` maps each node to a node that all others are as far from as from it.
    """

    __slots__ = ("least", "nearby", "twins", "width")

    def __init__(self, pairs: Pairs, ground: int, width: int) -> None:
        self.width = width
        rows = rows_on(pairs, ground)
        nodes = list(rows)
        self.nearby: dict[int, list[int]] = {}
        for index, node in enumerate(nodes):
            row = rows[node]
            others = sorted(row[:index] + row[index + 1 :])
            self.nearby[node] = list(accumulate(others[:width], initial=0))
        self.twins = _twins(nodes, rows)
        self.least = _least(rows, nodes, width)


def rows_on(pairs: Pairs, ground: int) -> dict[int, list[int]]:
    """The distances from each node of *ground* to all of them, in the order of the ids.

    By position, because to look up as many as a million pairs of large bitmasks takes a second.
    """
    there = [node & ground != 0 for node in pairs]
    return {node: list(compress(row.values(), there)) for node, row in pairs.items() if node & ground}


def _twins(nodes: list[int], rows: Mapping[int, list[int]]) -> dict[int, int]:
    """The lowest node that each node could change places with, as far as distances go."""
    position = {node: index for index, node in enumerate(nodes)}
    kinds: dict[tuple[int, ...], list[int]] = defaultdict(list)
    found = {}
    for node in nodes:
        mine, here = rows[node], position[node]
        alike = kinds[tuple(sorted(mine))]
        for other in alike:
            theirs, there = rows[other].copy(), position[other]
            theirs[here], theirs[there] = mine[here], mine[there]
            if mine == theirs:
                found[node] = other
                break
        else:
            found[node] = node
            if len(alike) < _MOST_KINDS:
                alike.append(node)
    return found


def _least(rows: Mapping[int, list[int]], nodes: list[int], width: int) -> list[int]:
    """The distance of the nearest r nodes, by r, if two nodes were as far apart as the longest step on the
    way between them with the shortest steps (single linkage): never farther than they are, and as far
    wherever distances are a hierarchy of boards, sockets and their parts."""
    clusters = {node: [0, 0] for node in nodes}
    leader = {node: node for node in nodes}

    def lead(node: int) -> int:
        while leader[node] != node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    for step, one, other in _spanning_tree(rows, nodes):
        first, second = lead(one), lead(other)
        leader[second] = first
        clusters[first] = _joined(clusters[first], clusters.pop(second), step, width)
    (least,) = clusters.values()
    return least


def _joined(one: list[int], other: list[int], step: int, width: int) -> list[int]:
    """The least distances by count of two clusters together, all of whose nodes are *step* apart."""
    most = min(width, len(one) + len(other) - 2)
    joined = [FAR] * (most + 1)
    few, many = sorted((one, other), key=len)
    for first, near in enumerate(few[: most + 1]):
        for second, far in enumerate(many[: most + 1 - first]):
            joined[first + second] = min(joined[first + second], near + far + first * second * step)
    return joined


def _spanning_tree(rows: Mapping[int, list[int]], nodes: list[int]) -> list[tuple[int, int, int]]:
    """The shortest steps that connect all *nodes*, shortest first, each with its two nodes."""
    steps = []
    nearest, tied = rows[nodes[0]].copy(), [nodes[0]] * len(nodes)
    nearest[0] = FAR  # as all that are connected
    for _ in nodes[1:]:
        step = min(nearest)
        index = nearest.index(step)
        node = nodes[index]
        steps.append((step, tied[index], node))
        nearest[index] = FAR
        for other, (known, far) in enumerate(zip(nearest, rows[node], strict=True)):
            if far < known < FAR:
                nearest[other], tied[other] = far, node
    return sorted(steps)

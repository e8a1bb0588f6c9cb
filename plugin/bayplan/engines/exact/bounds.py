"""The bounds by which a branch of the search ends: room and CPUs, distances; `crossings` has that of crossed
sets.

Each bound holds for every set of a branch, however it is completed: a node never adds more than its bound
(`Demand`, `Supply`), and no set is nearer (`NearestNodes`).
Example: 10 GiB are asked for on 3 nodes, and the one that is included has 4. If no two of the others add more
than 5 together, then nothing that contains the first node will do, whichever they are.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate, compress
from typing import Final

from msgspec import Struct

from bayplan.engines.exact.flow import Trial

_MOST_KINDS: Final = 64
"""Each node is compared with so many kinds of nodes at most; to miss that two are alike only costs time."""

Pairs = Mapping[int, Mapping[int, int]]
"""Distance between two nodes, both masks with one bit and in the order of the ids."""


# Room and CPUs.


class Demand(Struct, frozen=True):
    """So much of something that a set must have. ``most`` bounds what each node adds to any set; without a
    *trial* it is what each node adds (CPUs). ``own`` is what each has for itself once the claims within it
    are kept."""

    target: int
    most: Mapping[int, int]
    own: Mapping[int, int]
    trial: Trial | None = None


class Supply(Struct, frozen=True):
    """What a set of nodes has of a demand: ``held``, at most the target.

    For memory and huge pages it is the value of a maximum flow, which is submodular: a node never adds more
    to a set than it has room for alone.
    """

    demand: Demand
    held: int
    trial: Trial | None

    @classmethod
    def none(cls, demand: Demand) -> "Supply":
        """What no nodes have."""
        return cls(demand, 0, None if demand.trial is None else demand.trial.copy())

    @property
    def steps(self) -> int:
        """What the last node cost."""
        return 0 if self.trial is None else self.trial.steps

    @property
    def lacking(self) -> int:
        """What is missing to the target."""
        return self.demand.target - self.held

    def with_node(self, node: int) -> "Supply":
        """What the set has with *node*."""
        lacking = self.lacking
        if lacking <= 0:
            return self
        if self.trial is None:
            return Supply(self.demand, self.held + min(lacking, self.demand.most.get(node, 0)), None)
        trial = self.trial.copy()
        return Supply(self.demand, self.held + trial.push(node, lacking), trial)

    def useful(self, nodes: Sequence[int], missing: int) -> Sequence[int]:
        """Those of *nodes* that a set with *missing* of them may contain that reaches the target, if each
        adds what it adds at most. None of them if no set does.

        Example: 6 are lacking, 2 nodes are missing, and the nodes add 5, 2 and 0. With the best one (5) the
        other has to add at least 1, so that the third node is in no set that reaches the target.
        """
        lacking = self.lacking
        if lacking <= 0:
            return nodes
        adds = [self.demand.most.get(node, 0) for node in nodes]
        most = sorted(adds, reverse=True)
        least = lacking - sum(most[: missing - 1])
        if most[missing - 1] < least:
            return ()
        if most[-1] >= least:
            return nodes
        return [node for node, add in zip(nodes, adds, strict=True) if add >= least]


# Distances. They depend on the machine alone, so that they are worked out once for a set of allowed nodes.


class NearestNodes:
    """``nearest[node][r]`` is the sum of the distances from the node to the r nearest other *allowed* nodes,
    for r up to *width*. ``representative`` maps a node to a representative with identical distances: the
    lowest node that it could change places with."""

    __slots__ = ("nearest", "representative", "width")

    def __init__(self, pairs: Pairs, allowed: int, width: int) -> None:
        self.width = width
        rows = rows_on(pairs, allowed)
        nodes = list(rows)
        self.nearest: dict[int, list[int]] = {}
        for index, node in enumerate(nodes):
            row = rows[node]
            others = sorted(row[:index] + row[index + 1 :])
            self.nearest[node] = list(accumulate(others[:width], initial=0))
        self.representative = _representatives(nodes, rows)


def rows_on(pairs: Pairs, allowed: int) -> dict[int, list[int]]:
    """The distances from each of the *allowed* nodes to all of them, in the order of the ids.

    By position, because to look up as many as a million pairs of large bitmasks takes a second.
    """
    there = [node & allowed != 0 for node in pairs]
    return {node: list(compress(row.values(), there)) for node, row in pairs.items() if node & allowed}


def _representatives(nodes: list[int], rows: Mapping[int, list[int]]) -> dict[int, int]:
    """See `NearestNodes`. Two nodes can change places if their rows are equal once the two columns of these
    nodes are exchanged in one of them: with distances 12 within a socket and 21 between sockets, all nodes of
    a socket can."""
    position = {node: index for index, node in enumerate(nodes)}
    kinds: dict[tuple[int, ...], list[int]] = defaultdict(list)
    found = {}
    for node in nodes:
        row, here = rows[node], position[node]
        kind = kinds[tuple(sorted(row))]
        for other in kind:
            exchanged, there = rows[other].copy(), position[other]
            exchanged[here], exchanged[there] = row[here], row[there]
            if row == exchanged:
                found[node] = other
                break
        else:
            found[node] = node
            if len(kind) < _MOST_KINDS:
                kind.append(node)
    return found

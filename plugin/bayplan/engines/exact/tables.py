"""What all sets of a few nodes have room for, and how many sets with promises each crosses: all at once.

A table is a list with an item for each set, by the set's positions as a bitmask. Sums over all subsets of a
set, and least values over all sets around it, are gained node by node; on 12 nodes that takes some 4 ms.
"""

from collections.abc import Callable, Iterable, Sequence
from operator import add, sub
from typing import Final

from bayplan.engines.exact.flow import Flow, bits

MOST_NODES: Final = 12
"""Of more nodes there are too many sets."""

Table = list[int]


class Positions:
    """The places of sets of *nodes* in a table: other nodes than these are passed over."""

    __slots__ = ("_everything", "_of_node", "nodes", "sets")

    def __init__(self, nodes: Sequence[int]) -> None:
        self.nodes, self.sets = nodes, 1 << len(nodes)
        self._of_node = {node: 1 << position for position, node in enumerate(nodes)}
        # Where the ids are 0 to n-1, a set is its own place.
        self._everything = sum(nodes) if all(node == place for node, place in self._of_node.items()) else 0

    def of(self, nodes: int) -> int:
        """The place of the set *nodes*."""
        if self._everything:
            return nodes & self._everything
        return sum([self._of_node.get(node, 0) for node in bits(nodes)])


class TableTrial:
    """What nodes have room for that are added to a set one by one: a `Trial` that looks it up."""

    __slots__ = ("_nodes", "_positions", "_table", "seen", "steps", "touched")

    def __init__(self, table: Table, positions: Positions, nodes: int = 0) -> None:
        self._table, self._positions, self._nodes = table, positions, nodes
        self.seen = self.touched = -1
        self.steps = 1

    def copy(self) -> "TableTrial":
        """An independent trial with the same nodes."""
        return TableTrial(self._table, self._positions, self._nodes)

    def push(self, nodes: int, amount: int) -> int:
        """How much of *amount* the set has room for in addition with *nodes*, and add them."""
        before = self._table[self._positions.of(self._nodes)] if self._nodes else 0
        self._nodes |= nodes
        return min(amount, self._table[self._positions.of(self._nodes)] - before)


def room_table(flow: Flow, positions: Positions) -> Table:
    """`Flow.room` of every set: by min-cut max-flow the least that is left of any set around it, less what
    is unmet anyway."""
    slack = [0]
    for node in positions.nodes:
        capacity_bytes = flow.capacity.get(node, 0)
        slack += [capacity_bytes + less for less in slack]
    within = [0] * positions.sets
    for nodes, claimed_bytes in flow.claimed.items():
        within[positions.of(nodes)] += claimed_bytes
    _gather(within, add)
    slack = list(map(sub, slack, within))
    unmet = min(slack)
    _gather(slack, min, from_wider=True)
    return [left - unmet for left in slack]


def crossing_table(claimed: Iterable[int], positions: Positions) -> Table:
    """How many of *claimed* cross every set: those that it shares nodes with, without those that lie within
    it or contain it."""
    everything, known = positions.sets - 1, sum(positions.nodes)
    counts, inside = [0] * positions.sets, [0] * positions.sets
    for nodes in claimed:
        place = positions.of(nodes)
        counts[place] += 1
        inside[place] += not nodes & ~known
    around, disjoint, within, same = counts.copy(), counts, inside.copy(), inside
    _gather(around, add, from_wider=True)
    _gather(disjoint, add)
    _gather(within, add)
    total = disjoint[everything]
    return [
        total - disjoint[everything ^ place] - within[place] - around[place] + same[place]
        for place in range(positions.sets)
    ]


def _gather(table: Table, join: Callable[[int, int], int], *, from_wider: bool = False) -> None:
    """Join into every item those of all subsets of its set, or of all sets around it."""
    size, step = len(table), 1
    while step < size:
        # Few long slices instead of many short ones.
        if step * step * 2 > size:
            pairs = [
                (slice(first, first + step), slice(first + step, first + 2 * step))
                for first in range(0, size, 2 * step)
            ]
        else:
            pairs = [
                (slice(first, None, 2 * step), slice(first + step, None, 2 * step)) for first in range(step)
            ]
        for without, with_node in pairs:
            target = without if from_wider else with_node
            table[target] = map(join, table[without], table[with_node])
        step *= 2

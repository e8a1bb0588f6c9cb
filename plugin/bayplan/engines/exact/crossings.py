"""Which claimed sets a set of nodes crosses, and which ones every set of a branch crosses.

A mask of claimed sets has a bit for each. Instead of comparing a set of nodes with every claimed set, the
masks of its nodes are combined: that takes a step for each node, however many sets are claimed.
"""

from collections.abc import Iterable
from functools import cached_property

from msgspec import Struct

from bayplan.engines.exact.flow import bits


class ClaimedSets:
    """The sets of several nodes with promises."""

    def __init__(self, sets: Iterable[int]) -> None:
        self.sets = tuple(sets)

    @cached_property
    def by_node(self) -> dict[int, int]:
        """For each node of any of them the mask of those that it is in."""
        found: dict[int, int] = {}
        for number, nodes in enumerate(self.sets):
            for node in bits(nodes):
                found[node] = found.get(node, 0) | 1 << number
        return found

    def crossed(self, nodes: int) -> int:
        """How many cross *nodes*: share nodes with it, and neither contain it nor lie within it."""
        touched = outside = seen = 0
        around = (1 << len(self.sets)) - 1
        for node, sets in self.by_node.items():
            if node & nodes:
                touched |= sets
                around &= sets
                seen |= node
            else:
                outside |= sets
        if seen != nodes:
            around = 0  # a node that is in none of them
        return (touched & ~around & outside).bit_count()

    def undecided(self, allowed: int, width: int) -> "Crossings":
        """Where no node of *allowed* is included or excluded yet, of which *width* will be chosen."""
        around = leaves = 0
        for number, nodes in enumerate(self.sets):
            if (nodes & allowed).bit_count() >= width:
                around |= 1 << number
            if nodes & ~allowed or nodes.bit_count() > width:
                leaves |= 1 << number
        return Crossings(0, around, leaves)


class Crossings(Struct, frozen=True):
    """The state of each claimed set in a branch, a bit for each set in each of three masks.

    ``touched``: it has an included node. ``around``: it contains all included nodes, and could still contain
    the whole choice. ``leaves``: it has a node that will not be chosen, so that it cannot lie within the
    choice. A set is crossed whatever is chosen if it is touched, not around, and leaves. No set ever leaves
    that state as nodes are included or excluded.
    """

    touched: int
    around: int
    leaves: int

    @property
    def crossed(self) -> int:
        """How many sets are crossed whatever is chosen."""
        return (self.touched & ~self.around & self.leaves).bit_count()

    def crossed_with(self, sets: int) -> int:
        """How many are crossed whatever is chosen beside a node that is in *sets*."""
        return ((self.touched | sets) & ~(self.around & sets) & self.leaves).bit_count()

    def begun_with(self, sets: int) -> int:
        """How many sets have to be chosen as a whole, or are crossed, with a node that is in *sets*."""
        return ((self.touched | sets) & ~(self.around & sets)).bit_count()

    def including(self, sets: int) -> "Crossings":
        """With a node included that is in *sets*."""
        return Crossings(self.touched | sets, self.around & sets, self.leaves)

    def excluding(self, sets: int) -> "Crossings":
        """With a node excluded that is in *sets*."""
        return Crossings(self.touched, self.around, self.leaves | sets)

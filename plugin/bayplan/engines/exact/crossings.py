"""How many sets with promises every set of a branch crosses: bookkeeping in bits, one for each set.

A set is crossed if it shares nodes with the chosen ones, and neither contains all of them nor lies within
them. Invariant: `crossed` never falls as nodes are included or excluded.
"""

from collections.abc import Iterable

from msgspec import Struct

from bayplan.engines.exact.flow import bits


class Crossable:
    """The sets that some set of *width* nodes of *ground* could cross. ``sets_of`` has for each node a bit
    for each of these that it is in."""

    __slots__ = ("sets_of", "start")

    def __init__(self, claimed: Iterable[int], ground: int, width: int) -> None:
        # No set of this ground crosses one that contains all of it, or has one node.
        crossable = [nodes for nodes in claimed if nodes & (nodes - 1) and ground & ~nodes and ground & nodes]
        self.sets_of = {
            node: sum(1 << number for number, nodes in enumerate(crossable) if nodes & node)
            for node in bits(ground)
        }
        around = sum(1 << n for n, nodes in enumerate(crossable) if (nodes & ground).bit_count() >= width)
        apart = sum(
            1 << n for n, nodes in enumerate(crossable) if nodes & ~ground or nodes.bit_count() > width
        )
        self.start = Crossings(0, around, apart)


class Crossings(Struct, frozen=True):
    """Sets by bits: ``touched`` share nodes with the included ones, ``around`` could still contain all that
    is chosen, ``apart`` can no longer lie within it."""

    touched: int
    around: int
    apart: int

    @property
    def crossed(self) -> int:
        """How many sets are crossed whatever is chosen."""
        return (self.touched & ~self.around & self.apart).bit_count()

    def crossed_with(self, sets: int) -> int:
        """How many are crossed whatever is chosen beside a node that is in *sets*."""
        return ((self.touched | sets) & ~(self.around & sets) & self.apart).bit_count()

    def begun_with(self, sets: int) -> int:
        """How many sets have to be chosen as a whole, or are crossed, with a node that is in *sets*."""
        return ((self.touched | sets) & ~(self.around & sets)).bit_count()

    def including(self, sets: int) -> "Crossings":
        """With a node included that is in *sets*."""
        return Crossings(self.touched | sets, self.around & sets, self.apart)

    def excluding(self, sets: int) -> "Crossings":
        """With a node excluded that is in *sets*."""
        return Crossings(self.touched, self.around, self.apart | sets)

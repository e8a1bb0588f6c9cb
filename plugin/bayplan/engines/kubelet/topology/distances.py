"""Distances between NUMA nodes as kubelet's option prefer-closest-numa-nodes compares them.

Only the comparison; the distances come from the machine. Among sets of equal size the one with
the smaller average distance is closer; a node's distance to itself counts.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate

from msgspec import Struct

from bayplan.engines.kubelet.topology.hints import bits
from bayplan.model.machine import LOCAL_DISTANCE, REMOTE_DISTANCE, Machine


class Distances(Struct, frozen=True, dict=True):
    """``rows`` maps every node id to the distances from it, by node id; the kernel's defaults stand in for
    distances that are left out. Distances may be asymmetric."""

    rows: Mapping[int, Mapping[int, int]]

    @classmethod
    def of(cls, machine: Machine) -> "Distances":
        """The distances of *machine*."""
        return cls({node.id: node.distances for node in machine.nodes})

    def between(self, source: int, target: int) -> int:
        """The distance from one node to another, or to itself."""
        default = LOCAL_DISTANCE if source == target else REMOTE_DISTANCE
        return self.rows.get(source, {}).get(target, default)

    def total(self, mask: int) -> int:
        """The sum over all ordered pairs of nodes, each node with itself included. It orders sets of equal
        size as the average does."""
        members = bits(mask)
        return sum(self.between(a, b) for a in members for b in members)

    def average(self, mask: int) -> float:
        """The average that kubelet compares; 0 for the empty set."""
        return self.total(mask) / mask.bit_count() ** 2 if mask else 0.0

    def added(self, costs: Sequence[int], ids: Sequence[int], chosen: int) -> Sequence[int]:
        """What each of the nodes before position *chosen* adds to a total once that node is in the set;
        *costs* says what each added before."""
        node = ids[chosen]
        return [costs[index] + self._pair(ids[index], node) for index in range(chosen)]

    def nearest(self, node: int, count: int) -> int:
        """The sum of the distances between a node and the *count* nodes nearest to it, both ways."""
        return self._nearest[node][count]

    @cached_property
    def _nearest(self) -> Mapping[int, Sequence[int]]:
        return {
            node: list(
                accumulate(sorted(self._pair(node, other) for other in self.rows if other != node), initial=0)
            )
            for node in self.rows
        }

    def _pair(self, a: int, b: int) -> int:
        return self.between(a, b) + self.between(b, a)

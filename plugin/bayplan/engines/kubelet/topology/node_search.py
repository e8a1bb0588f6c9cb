"""The least set of nodes of a given size under a rule: a depth-first search that cuts what cannot succeed.

Candidates are visited in ascending order of their masks as integers (highest node first, lowest choice
first). So the first one found is the narrowest by kubelet's rule, and among equally close ones the first
stays.
"""

from collections.abc import Sequence
from heapq import nsmallest
from itertools import accumulate

from bayplan.engines.kubelet.topology.demand_bounds import DemandBounds, together
from bayplan.engines.kubelet.topology.distances import Distances
from bayplan.engines.kubelet.topology.hints import Region, bits
from bayplan.engines.kubelet.topology.node_rules import Budget, Members, Rule

Candidate = tuple[int, int]
"""A set found by a search: the total of its distances (0 if they don't matter) and its mask. The smaller of
two candidates of the same size is the one that kubelet keeps."""


def least(
    rule: Rule, size: int, distances: Distances | None, budget: Budget, best: Candidate | None = None
) -> Candidate | None:
    """The least set of *size* nodes that obeys *rule*, if it is less than *best*; otherwise *best*."""
    if not 0 < size <= rule.base.bit_count() or rule.must.bit_count() > size:
        return best
    if not rule.can_succeed(0, rule.base, size):
        return best
    if distances is None:
        narrowest = _Narrowest(rule, budget, best)
        narrowest.visit(0, len(narrowest.ids), size)
        return narrowest.best
    closest = _Closest(rule, size, distances, budget, best)
    closest.visit(0, len(closest.ids), size, 0, 0, [distances.between(node, node) for node in closest.ids])
    return closest.best


def fewest(region: Region, budget: Budget) -> int:
    """How many nodes the smallest set of a region has; 0 if the region is empty.

    The richest nodes are enough to bound the number from both sides. For one additive demand the bounds meet;
    otherwise sets of the sizes between them are searched for, and with the budget used up the upper bound is
    the answer.
    """
    if not region:
        return 0
    must, base = region.must.mask, region.ground.mask
    bounds = [DemandBounds(demand, base) for demand in region.demands]
    lower = max(1, must.bit_count(), *(bound.fewest(must) for bound in bounds), 0)
    if len(bounds) == 1 and not bounds[0].shared:
        return lower
    weights = DemandBounds(together(region.demands), base).weights
    taken = must
    for node in sorted(bits(base & ~must), key=lambda node: -weights[node]):
        if taken and all(bound.reaches(taken, 0, 0) for bound in bounds):
            break
        taken |= 1 << node
    upper = taken.bit_count()
    if lower == upper:
        return lower
    rule = Members((region,))
    sizes = range(lower, upper)
    return next((size for size in sizes if least(rule, size, None, budget) is not None), upper)


class _Search:
    """What both orders of a search share. ``lowest[n]`` are the first n nodes of the base."""

    __slots__ = ("best", "budget", "ids", "lowest", "rule")

    def __init__(self, rule: Rule, budget: Budget, best: Candidate | None) -> None:
        self.rule = rule
        self.budget = budget
        self.best = best
        self.ids = bits(rule.base)
        self.lowest = list(accumulate((1 << node for node in self.ids), initial=0))

    def hopeless(self, taken: int, index: int, picks: int) -> bool:
        """Whether *taken* with *picks* of the first *index* nodes cannot obey the rule."""
        below = self.lowest[index]
        missing = self.rule.must & ~taken
        return (
            bool(missing & ~below)
            or missing.bit_count() > picks
            or not self.rule.can_succeed(taken, below, picks)
        )


class _Narrowest(_Search):
    """The lowest mask wins: the search is over with the first set found."""

    __slots__ = ()

    def visit(self, chosen: int, limit: int, picks: int) -> bool:
        """Try every set that adds *picks* of the first *limit* nodes to *chosen*, in ascending order; whether
        the search is over."""
        for index in range(picks - 1, limit):
            taken = chosen | 1 << self.ids[index]
            if self.best is not None and taken | self.lowest[picks - 1] >= self.best[1]:
                return True
            if not self.budget.spend(len(self.ids)):
                return True
            if self.hopeless(taken, index, picks - 1):
                continue
            if picks == 1:
                self.best = (0, taken)
                return True
            if self.visit(taken, index, picks - 1):
                return True
        return False


class _Closest(_Search):
    """The smallest total of distances wins.

    A total has two lower bounds, both doubled here to stay whole. Every node of the set adds at least the
    distances to its nearest neighbours, where a pair counts half for each of its nodes. And a node still to
    be picked adds exactly its distances to the chosen ones, and at least those to its nearest neighbours for
    the other picks.
    """

    __slots__ = ("_cheapest", "distances", "floors")

    def __init__(
        self, rule: Rule, size: int, distances: Distances, budget: Budget, best: Candidate | None
    ) -> None:
        super().__init__(rule, budget, best)
        self.distances = distances
        self.floors = [
            2 * distances.between(node, node) + distances.nearest(node, size - 1) for node in self.ids
        ]
        self._cheapest: dict[tuple[int, int], int] = {}

    def visit(
        self, chosen: int, limit: int, picks: int, total: int, floor: int, costs: Sequence[int]
    ) -> bool:
        """Try every set that adds *picks* of the first *limit* nodes to *chosen*; whether the search is over.

        *total* is the total of the chosen nodes, *floor* their share of the first bound, and *costs* says
        what each node would add to the total.
        """
        for index in range(picks - 1, limit):
            taken = chosen | 1 << self.ids[index]
            lowest = taken | self.lowest[picks - 1]
            added, raised = total + costs[index], floor + self.floors[index]
            if self._too_far(raised + self._cheapest_floors(index, picks - 1), lowest):
                continue
            if not self.budget.spend(len(self.ids)):
                return True
            nearer = self.distances.added(costs, self.ids, index)
            if self._too_far(2 * added + self._cheapest_picks(nearer, picks - 1), lowest):
                continue
            if self.hopeless(taken, index, picks - 1):
                continue
            if picks == 1:
                self.best = (added, taken)
            elif self.visit(taken, index, picks - 1, added, raised, nearer):
                return True
        return False

    def _too_far(self, doubled: int, lowest: int) -> bool:
        """Whether no set with that bound and that lowest mask beats the best one."""
        return self.best is not None and (doubled, lowest) >= (2 * self.best[0], self.best[1])

    def _cheapest_floors(self, index: int, picks: int) -> int:
        key = (index, picks)
        if key not in self._cheapest:
            self._cheapest[key] = sum(nsmallest(picks, self.floors[:index]))
        return self._cheapest[key]

    def _cheapest_picks(self, nearer: Sequence[int], picks: int) -> int:
        if not picks:
            return 0
        distances, ids = self.distances, self.ids
        if picks == 1:
            return 2 * min(nearer)
        return sum(
            nsmallest(
                picks, (2 * cost + distances.nearest(ids[i], picks - 1) for i, cost in enumerate(nearer))
            )
        )

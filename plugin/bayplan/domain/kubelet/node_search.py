"""The least set of nodes of a given size under a rule: a depth-first search that cuts what cannot succeed.

Candidates are visited in ascending order of their masks as integers (highest node first, lowest choice
first), so that the first one found is the narrowest by kubelet's rule and ties need no further thought.
A rule says for a partial choice whether it can still succeed; the two rules are `Members` (the set itself
lies in regions) and `Split` (the nodes left out can be shared out among several regions).

Two demands of one region, or two regions in a Split, make this a knapsack problem, which has no polynomial
algorithm. The bounds used here are exact for one additive demand; beyond that a search is cut short after
STEPS, and says so. For up to 8 nodes and 7 regions, STEPS is above anything a search can need.
"""

from collections.abc import Iterator, Sequence
from heapq import nsmallest
from itertools import accumulate
from typing import Final, Protocol

from bayplan.domain.kubelet.distances import Distances
from bayplan.domain.kubelet.hints import Demand, Region, Touching, bits

STEPS: Final = 100_000
"""Steps of one merge before it settles for the best set found so far; about 0.2 s."""


class Budget:
    """The steps that one search may still take. Once they are used up nothing more is found, and ``cut``
    says that something may have been missed."""

    __slots__ = ("left",)

    def __init__(self, steps: int = STEPS) -> None:
        self.left = steps

    def spend(self) -> bool:
        """Take one step; whether there was one left."""
        self.left -= 1
        return self.left >= 0

    @property
    def cut(self) -> bool:
        """Whether a step was wanted that wasn't there."""
        return self.left < 0


class Rule(Protocol):
    """Which sets a search may return. ``base`` holds all of them; ``must`` lies in all of them."""

    base: int
    must: int

    def hopeful(self, chosen: int, below: int, picks: int) -> bool:
        """Whether *chosen* with *picks* more nodes out of *below* could obey the rule; with no picks left
        the answer is exact. Every node of the base in neither is left out."""


class _Scale:
    """A demand over the nodes of a base, once what lies outside the base (``rest``) has been counted."""

    __slots__ = ("_best", "needed", "shared", "slack", "weights")

    def __init__(self, demand: Demand, base: int, rest: int) -> None:
        self.needed = demand.needed - sum(demand.amounts.get(node, 0) for node in bits(rest))
        self.weights = {node: demand.amounts.get(node, 0) for node in bits(base)}
        self.shared: list[tuple[int, int]] = []
        for where, amount in demand.shared:
            inside = where.mask & base
            if where.mask & rest:
                self.needed -= amount
            elif inside.bit_count() == 1:
                self.weights[inside.bit_length() - 1] += amount
            elif inside:
                self.shared.append((inside, amount))
        held = sum(self.weights.values()) + sum(amount for _, amount in self.shared)
        self.slack = held - self.needed
        self._best: dict[int, list[int]] = {}

    def reaches(self, chosen: int, below: int, picks: int) -> bool:
        """Whether *chosen* and the best *picks* nodes of *below* could hold enough: a bound, and exact
        without shared amounts or without picks."""
        total = 0
        for node in bits(chosen):
            total += self.weights[node]
        if self.shared:
            within = chosen | below if picks else chosen
            total += sum(amount for where, amount in self.shared if where & within)
        if total >= self.needed or not picks:
            return total >= self.needed
        best = self._best.get(below)
        if best is None:
            ranked = sorted((self.weights[node] for node in bits(below)), reverse=True)
            best = self._best[below] = list(accumulate(ranked, initial=0))
        return total + best[min(picks, len(best) - 1)] >= self.needed

    def can_spare(self, out: int) -> bool:
        """Whether the demand is still met without the nodes *out*."""
        left = self.slack
        for node in bits(out):
            left -= self.weights[node]
        if self.shared:
            left -= sum(amount for where, amount in self.shared if not where & ~out)
        return left >= 0

    def costs_nothing(self, node: int) -> bool:
        """Whether leaving that node out loses nothing, whatever else is left out."""
        return not self.weights[node] and not any(where >> node & 1 for where, _ in self.shared)

    def most(self, nodes: Sequence[int]) -> int:
        """How many of *nodes* can be spared at once, at most."""
        left = self.slack
        for count, weight in enumerate(sorted(self.weights[node] for node in nodes)):
            left -= weight
            if left < 0:
                return count
        return len(nodes)


class Members:
    """The sets that lie in all of some regions, and touch the wanted number of blocks."""

    __slots__ = ("_scales", "_touching", "base", "must")

    def __init__(self, regions: Sequence[Region], touching: Sequence[Touching] = (), must: int = 0) -> None:
        base = -1
        for region in regions:
            base &= region.ground.mask
            must |= region.must.mask
        self.base = base
        self.must = must
        self._scales = [_Scale(demand, base, 0) for region in regions for demand in region.demands]
        self._touching = [([block.mask for block in rule.blocks], rule.count) for rule in touching]

    @classmethod
    def within(cls, base: int, region: Region) -> "Members":
        """The sets that a base (inside the region's ground) and one set of the region have in common, for
        all sets of the region."""
        self = cls((region,))
        rest = region.ground.mask & ~base
        self.base = base
        self.must &= base
        self._scales = [_Scale(demand, base, rest) for demand in region.demands]
        return self

    def hopeful(self, chosen: int, below: int, picks: int) -> bool:
        """See `Rule`."""
        for blocks, count in self._touching:
            touched = sum(1 for block in blocks if block & chosen)
            more = sum(1 for block in blocks if block & below and not block & chosen) if picks else 0
            if not touched <= count <= touched + min(more, picks):
                return False
        return all(scale.reaches(chosen, below, picks) for scale in self._scales)


class Split:
    """The sets M whose remainder (base without M) several regions can leave out between them.

    Each region may leave out its own share of the remainder, as long as its demands are met by the rest of
    its ground; M is then the intersection of what the regions keep. Leaving out is monotone: a part of a
    share that can be left out can be left out as well.
    """

    __slots__ = ("_budget", "_known", "_musts", "_regions", "base", "must")

    def __init__(self, base: int, regions: Sequence[Region], budget: Budget) -> None:
        self.base = base
        self.must = 0
        self._budget = budget
        self._musts = [region.must.mask & base for region in regions]
        self._regions = [
            [_Scale(demand, base, region.ground.mask & ~base) for demand in region.demands]
            for region in regions
        ]
        self._known: dict[tuple[int, int], bool] = {}

    def hopeful(self, chosen: int, below: int, picks: int) -> bool:
        """See `Rule`."""
        kept = chosen | below if picks else chosen
        return self._shared_out(self.base & ~kept, 0)

    def _shared_out(self, out: int, first: int) -> bool:
        """Whether the regions from *first* on can leave all of *out* out between them."""
        later = range(first, len(self._regions))
        if any(self._can_leave(out, region) for region in later):
            return True
        if first + 1 >= len(self._regions):
            return False
        key = (out, first)
        if key not in self._known:
            known = self._enough(out, first) and any(
                self._shared_out(out & ~share, first + 1) for share in self._shares(out, first)
            )
            self._known[key] = known
        return self._known[key]

    def _can_leave(self, out: int, region: int) -> bool:
        return not out & self._musts[region] and all(scale.can_spare(out) for scale in self._regions[region])

    def _enough(self, out: int, first: int) -> bool:
        """Whether every node can be left out by some region, and all of them by count: bounds only."""
        count = 0
        reachable = 0
        for region in range(first, len(self._regions)):
            alone = [node for node in bits(out) if self._can_leave(1 << node, region)]
            reachable |= sum(1 << node for node in alone)
            count += min((scale.most(alone) for scale in self._regions[region]), default=len(alone))
        return reachable == out and count >= out.bit_count()

    def _shares(self, out: int, region: int) -> Iterator[int]:
        """The shares of *out* that *region* can leave out and that no node can be added to."""
        later = range(region + 1, len(self._regions))
        free, bound, choice = 0, 0, []
        for node in bits(out & ~self._musts[region]):
            bit = 1 << node
            if not self._can_leave(bit, region):
                continue
            if not any(self._can_leave(bit, other) for other in later):
                bound |= bit
            elif all(scale.costs_nothing(node) for scale in self._regions[region]):
                free |= bit
            else:
                choice.append(node)
        choice.sort(key=lambda node: sum(scale.weights[node] for scale in self._regions[region]))
        if self._can_leave(free | bound, region):
            yield from self._grow(free | bound, choice, 0, region, [])

    def _grow(
        self, share: int, choice: Sequence[int], index: int, region: int, skipped: list[int]
    ) -> Iterator[int]:
        if not self._budget.spend():
            return
        if index == len(choice):
            if not any(self._can_leave(share | 1 << node, region) for node in skipped):
                yield share
            return
        bit = 1 << choice[index]
        if self._can_leave(share | bit, region):
            yield from self._grow(share | bit, choice, index + 1, region, skipped)
        skipped.append(choice[index])
        yield from self._grow(share, choice, index + 1, region, skipped)
        skipped.pop()


Candidate = tuple[int, int]
"""A set found by a search: the total of its distances (0 if they don't matter) and its mask. The smaller of
two candidates of the same size is the one that kubelet keeps."""


def least(
    rule: Rule, size: int, distances: Distances | None, budget: Budget, best: Candidate | None = None
) -> Candidate | None:
    """The least set of *size* nodes that obeys *rule*, if it is less than *best*; otherwise *best*."""
    if not rule.must.bit_count() <= size <= rule.base.bit_count() or not size:
        return best
    if not rule.hopeful(0, rule.base, size):
        return best
    search = _Search(rule, distances, budget, best)
    search.visit(
        0, len(search.ids), size, 0, [distances.alone(node) for node in search.ids] if distances else []
    )
    return search.best


class _Search:
    """One run of `least`: what is fixed, and the best set so far."""

    __slots__ = ("best", "budget", "distances", "ids", "lowest", "rule")

    def __init__(
        self, rule: Rule, distances: Distances | None, budget: Budget, best: Candidate | None
    ) -> None:
        self.rule = rule
        self.distances = distances
        self.budget = budget
        self.best = best
        self.ids = bits(rule.base)
        self.lowest = list(accumulate((1 << node for node in self.ids), initial=0))

    def visit(self, chosen: int, limit: int, picks: int, total: int, costs: Sequence[int]) -> bool:
        """Try every set that adds *picks* of the first *limit* nodes to *chosen*, in ascending order.

        ``costs`` says what each node adds to the total of distances. Returns whether nothing that comes
        later can be better.
        """
        rule, distances = self.rule, self.distances
        for index in range(picks - 1, limit):
            node = self.ids[index]
            below = self.lowest[index]
            taken = chosen | 1 << node
            missing = rule.must & ~taken
            if missing & ~below or missing.bit_count() >= picks:
                continue
            added = total
            nearer: Sequence[int] = ()
            if distances is None:
                bound = 0
            else:
                added += costs[index]
                nearer = distances.added(costs, self.ids, index) if picks > 1 else ()
                bound = added + sum(nsmallest(picks - 1, nearer)) + distances.least_within(picks - 1)
            if self.best is not None and (bound, taken | self.lowest[picks - 1]) >= self.best:
                if distances is None:
                    return True
                continue
            if not self.budget.spend():
                return True
            if not rule.hopeful(taken, below, picks - 1):
                continue
            if picks == 1:
                self.best = (added, taken)
                if distances is None:
                    return True
            elif self.visit(taken, index, picks - 1, added, nearer):
                return True
        return False

"""The Topology Manager's merge: one hint out of the hint sets of all providers, kubelet's answer exactly.

kubelet takes the cross product of the lists, intersects the masks of each combination, and keeps the best
intersection. With L1..Lk the lists and "all" the machine's nodes, its answer can be said without the
product:

1. A combination is preferred when its hints are preferred and its masks equal. So a preferred answer X
exists exactly if X is preferred in every list, where a list with a preferred hint for any node allows
every X. The best is the one with the fewest nodes; then the closest, if asked for; then the lowest
integer. 2. Otherwise let B be the largest of the lists' smallest masks. Among all non-empty intersections
the best has B nodes if there is one, else the most below B, else the fewest above B; ties as before.

Intersections without the product. Choose one element of each list: a mask, "any node", or a region. What
the masks and the grounds of the chosen regions have in common is a *base*. Each region of ground G can
leave out further nodes E, as long as G without E is in the region; the intersection is the base without
all those E. Regions are monotone. So the intersections M of that choice are the sets whose remainder,
base without M, the regions can share out among them (`SetsLeftOut`; with one region it suffices that M, with
the ground outside of the base, holds enough: `SetsWithin`). And with M every larger set inside the base is
an intersection too, so that a base gives all sizes from some smallest one up to its own: step 2 needs
only a search of size B; without a hit there, every base lies below B or begins above it. Of choices with
equal bases only those with most regions count, since a region never has to leave anything out.

The search (`least`) is for the least set of nodes of a given size under a rule: depth first, it cuts
what cannot succeed. Candidates are visited in ascending order of their masks as integers (highest node
first, lowest choice first). So the first one found is the narrowest by kubelet's rule, and among equally
close ones the first stays. A rule (`SetsWithin`, `SetsLeftOut`) says of a partial choice whether it can still
succeed, by bounds on what the nodes of a base hold, could hold, or can spare. They work on bare masks for
speed, and each is exact for one demand without shared amounts.

Cost: polynomial in nodes and providers when every region has one additive demand and few masks are listed
one by one. Two demands of one region, or two regions of a `SetsLeftOut`, make this a knapsack problem; the
bounds are then no longer exact before the last node is chosen.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import accumulate, product
from math import inf, prod
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.kubelet.topology_hints import (
    Distances,
    Hint,
    HintSet,
    NodeAmounts,
    OfSize,
    Region,
    Touching,
    bits,
)
from bayplan.sets import NodeSet


class DemandBounds:
    """One demand over the nodes of ``base``, once what lies outside of it (``rest``) has been counted.

    ``weights`` maps the base's nodes to their amounts, ``shared`` lists (nodes, amount) that count once, and
    ``slack`` is what may be missing from the base.
    """

    __slots__ = ("_best", "needed", "shared", "slack", "weights")

    def __init__(self, demand: NodeAmounts, base: int, rest: int = 0) -> None:
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

    def fewest(self, must: int) -> int:
        """How many nodes are needed at least, those of *must* included; exact without shared amounts, if the
        base holds enough at all."""
        missing = self.needed - sum(self.weights[node] for node in bits(must))
        missing -= sum(amount for _, amount in self.shared)
        count = must.bit_count()
        for weight in sorted(
            (each for node, each in self.weights.items() if not must >> node & 1), reverse=True
        ):
            if missing <= 0:
                break
            missing -= weight
            count += 1
        return count

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


def together(demands: Sequence[NodeAmounts]) -> NodeAmounts:
    """One demand that follows from all of *demands*: their weighted sum, each weighed by 1/needed.

    Where every demand by itself could be met by some nodes, but not by the same ones, their sum often shows
    it. The weights are brought to whole numbers, so that nothing is rounded.
    """
    real = [demand for demand in demands if demand.needed > 0]
    factors = [prod(other.needed for other in real if other is not demand) for demand in real]
    amounts: dict[int, int] = {}
    shared: list[tuple[NodeSet, int]] = []
    for demand, factor in zip(real, factors, strict=True):
        for node, amount in demand.amounts.items():
            amounts[node] = amounts.get(node, 0) + factor * amount
        shared.extend((where, factor * amount) for where, amount in demand.shared)
    needed = sum(demand.needed * factor for demand, factor in zip(real, factors, strict=True))
    return NodeAmounts(amounts, needed, tuple(shared))


ALWAYS_EXACT: Final = 8
"""Up to so many nodes (kubelet's default limit) no search is ever cut short."""

STEPS: Final = 400_000
"""Looks at a node that the search of a merge may take on larger machines, before it settles for the best
found so far: about 0.3 s. Answers of up to 4 nodes out of 64 were found in less than a tenth of that."""


class Budget:
    """The steps that one merge may still take. Once they are used up nothing more is found, and ``cut`` says
    that something may have been missed."""

    __slots__ = ("left",)

    def __init__(self, nodes: int, steps: int | None = None) -> None:
        """For a machine of so many *nodes*; *steps* overrides what is usual."""
        self.left: float = steps if steps is not None else STEPS if nodes > ALWAYS_EXACT else inf

    def spend(self, steps: int) -> bool:
        """Take some steps; whether they were left."""
        self.left -= steps
        return self.left >= 0

    @property
    def cut(self) -> bool:
        """Whether more steps were wanted than there were."""
        return self.left < 0


class Rule(Protocol):
    """Which sets a search may return. ``base`` holds all of them; ``must`` lies in all of them."""

    base: int
    must: int

    def can_succeed(self, chosen: int, below: int, picks: int) -> bool:
        """Whether *chosen* with *picks* more nodes out of *below* could obey the rule; with no picks left
        the answer is exact. Every node of the base in neither is left out."""


class SetsWithin:
    """The sets that lie in all of some regions, and touch the wanted number of blocks."""

    __slots__ = ("_bounds", "_touching", "base", "must")

    def __init__(self, regions: Sequence[Region], touching: Sequence[Touching] = (), must: int = 0) -> None:
        base = -1
        for region in regions:
            base &= region.ground.mask
            must |= region.must.mask
        self.base = base
        self.must = must
        demands = [demand for region in regions for demand in region.demands]
        if len(demands) > 1:
            demands.insert(0, together(demands))
        self._bounds = [DemandBounds(demand, base) for demand in demands]
        self._touching = [([block.mask for block in rule.blocks], rule.count) for rule in touching]

    @classmethod
    def within(cls, base: int, region: Region) -> "SetsWithin":
        """The sets that a base (inside the region's ground) and one set of the region have in common, for
        all sets of the region."""
        self = cls((region,))
        rest = region.ground.mask & ~base
        self.base = base
        self.must &= base
        self._bounds = [DemandBounds(demand, base, rest) for demand in region.demands]
        return self

    def can_succeed(self, chosen: int, below: int, picks: int) -> bool:
        """See `Rule`."""
        for blocks, count in self._touching:
            touched = sum(1 for block in blocks if block & chosen)
            more = sum(1 for block in blocks if block & below and not block & chosen) if picks else 0
            if not touched <= count <= touched + min(more, picks):
                return False
        return all(bound.reaches(chosen, below, picks) for bound in self._bounds)


class SetsLeftOut:
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
            [DemandBounds(demand, base, region.ground.mask & ~base) for demand in region.demands]
            for region in regions
        ]
        self._known: dict[tuple[int, int], bool] = {}

    def can_succeed(self, chosen: int, below: int, picks: int) -> bool:
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
        return not out & self._musts[region] and all(bound.can_spare(out) for bound in self._regions[region])

    def _enough(self, out: int, first: int) -> bool:
        """Whether every node can be left out by some region, and all of them by count: bounds only."""
        count = 0
        reachable = 0
        for region in range(first, len(self._regions)):
            alone = [node for node in bits(out) if self._can_leave(1 << node, region)]
            reachable |= sum(1 << node for node in alone)
            count += min((bound.most(alone) for bound in self._regions[region]), default=len(alone))
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
            elif all(bound.costs_nothing(node) for bound in self._regions[region]):
                free |= bit
            else:
                choice.append(node)
        choice.sort(key=lambda node: sum(bound.weights[node] for bound in self._regions[region]))
        if self._can_leave(free | bound, region):
            yield from self._grow(free | bound, choice, 0, region, [])

    def _grow(
        self, share: int, choice: Sequence[int], index: int, region: int, skipped: list[int]
    ) -> Iterator[int]:
        if not self._budget.spend(len(choice)):
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
    rule = SetsWithin((region,))
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


class Merged(Struct, frozen=True):
    """The merged hint. ``exact`` is False if the search was cut short: the hint is then an intersection of
    the providers' hints like any other, but kubelet might have found a better one."""

    hint: Hint
    exact: bool = True


def merge(
    sets: Sequence[HintSet],
    everything: NodeSet,
    distances: Distances | None = None,
    steps: int | None = None,
) -> Merged:
    """Merge hint sets, one per resource as `bayplan.engines.kubelet.topology_hints.flatten` gives them.

    *everything* are the machine's nodes; regions must lie inside it, single hints are cut down to it. With
    *distances* closer sets win among those of equal size. Without any common set the answer is everything,
    not preferred; without any list it is everything, preferred. *steps* limits the search.
    """
    lists = [_List(hints) for hints in sets]
    budget = Budget(len(everything), steps)
    found = _preferred(lists, everything.mask, distances, budget)
    preferred = found is not None
    exact = not budget.cut
    if found is None:
        budget = Budget(len(everything), steps)
        found = _Intersections(lists, everything.mask, distances, budget).best()
        exact = exact and not budget.cut
    hint = Hint(everything if found is None else NodeSet.of_mask(found[1]), preferred=preferred)
    return Merged(hint, exact)


def best_hint(hints: HintSet, containing: NodeSet = NodeSet()) -> Hint | None:
    """The best hint of one set by itself, among those that contain some nodes: preferred before not
    preferred, then the narrowest. None if there is none. Hints for any node are left out."""
    choice = _List(hints)
    budget = Budget(max((len(region.ground) for region in choice.regions), default=0))
    must = containing.mask
    best = _narrowest(mask for mask in choice.preferred if not must & ~mask)
    for region in choice.regions:
        best = _better(best, _preferred_members([region], None, budget, must))
    if best is not None:
        return Hint(NodeSet.of_mask(best[1]), preferred=True)
    best = _narrowest(mask for mask in choice.masks if not must & ~mask)
    for region in choice.regions:
        narrower = replace(region, must=region.must | containing)
        size = fewest(narrower, budget)
        best = _better(best, least(SetsWithin([narrower]), size, None, budget))
    return None if best is None else Hint(NodeSet.of_mask(best[1]), preferred=False)


def narrowest_size(region: Region) -> int | None:
    """How many nodes the smallest set of a region has; None if the region is empty. kubelet's managers call
    the size of the smallest set that could ever do, on an empty machine, the preferred one."""
    return fewest(region, Budget(len(region.ground))) or None


def rank(hint: Hint, wanted: int = 0, distances: Distances | None = None) -> tuple[bool, int, int, int, int]:
    """The key by which kubelet prefers one merged hint to another: the smaller one wins.

    Preferred hints come first, the fewer nodes the better. The others come in the order of step 2, with
    *wanted* for its B. Ties are broken by distance, if *distances* count, then by the lower integer.
    """
    mask = hint.nodes.mask if hint.nodes is not None else 0
    size, total, mask = _width((_total(mask, distances), mask))
    group = 0 if hint.preferred or size == wanted else 1 if size < wanted else 2
    return not hint.preferred, group, -size if group == 1 else size, total, mask


def largest_of_smallest(sets: Sequence[HintSet]) -> int:
    """B of step 2: the size of the smallest set that each hint set has, the largest of these; 0 if none
    names any nodes."""
    return _wanted([_List(hints) for hints in sets], Budget(0, None))


class _List:
    """One hint set as bare masks."""

    __slots__ = ("any_node", "any_preferred", "masks", "preferred", "regions")

    def __init__(self, hints: HintSet) -> None:
        self.any_node = any(hint.nodes is None for hint in hints.hints)
        self.any_preferred = any(hint.nodes is None and hint.preferred for hint in hints.hints)
        self.masks = {hint.nodes.mask for hint in hints.hints if hint.nodes is not None}
        self.preferred = {
            hint.nodes.mask for hint in hints.hints if hint.nodes is not None and hint.preferred
        }
        self.regions = [region for region in hints.regions if region]

    def prefers(self, mask: int) -> bool:
        """Whether that set of nodes is preferred here."""
        if self.any_preferred or mask in self.preferred:
            return True
        nodes = NodeSet.of_mask(mask)
        return any(region.preferred.holds(nodes) and nodes in region for region in self.regions)

    def smallest(self, budget: Budget) -> int:
        """The size of the smallest set listed; 0 if none is."""
        sizes = [mask.bit_count() for mask in self.masks]
        sizes.extend(fewest(region, budget) for region in self.regions)
        return min(sizes, default=0)


def _preferred(
    lists: Sequence[_List], everything: int, distances: Distances | None, budget: Budget
) -> Candidate | None:
    """The best set that every list prefers (step 1 of the module's text)."""
    constrained = [choice for choice in lists if not choice.any_preferred]
    best: Candidate | None = None
    if not constrained:
        best = (_total(everything, distances), everything)
        for choice in lists:
            best = _better(best, _preferred_by_all([choice], everything, distances, budget))
        return best
    return _preferred_by_all(constrained, everything, distances, budget)


def _preferred_by_all(
    lists: Sequence[_List], everything: int, distances: Distances | None, budget: Budget
) -> Candidate | None:
    plain = [choice for choice in lists if not choice.regions]
    listed = min(plain, key=lambda choice: len(choice.preferred)).preferred if plain else set[int]()
    if not plain:
        listed = listed.union(*(choice.preferred for choice in lists))
    best: Candidate | None = None
    for mask in listed:
        met = mask & everything
        if met and all(choice.prefers(mask) for choice in lists):
            best = _better(best, (_total(met, distances), met))
    if not plain:
        for regions in product(*(choice.regions for choice in lists)):
            best = _better(best, _preferred_members(regions, distances, budget))
    return best


def _preferred_members(
    regions: Sequence[Region], distances: Distances | None, budget: Budget, must: int = 0
) -> Candidate | None:
    """The best set that all *regions* hold and prefer."""
    sizes = {region.preferred.size for region in regions if isinstance(region.preferred, OfSize)}
    if len(sizes) > 1:
        return None
    touching = [region.preferred for region in regions if isinstance(region.preferred, Touching)]
    rule = SetsWithin(regions, touching, must)
    for size in sizes or range(1, rule.base.bit_count() + 1):
        found = least(rule, size, distances, budget)
        if found is not None:
            return found
    return None


class _Intersections:
    """The best intersection where none is preferred (step 2 of the module's text)."""

    def __init__(
        self, lists: Sequence[_List], everything: int, distances: Distances | None, budget: Budget
    ) -> None:
        self._lists = lists
        self._everything = everything
        self._distances = distances
        self._budget = budget

    def best(self) -> Candidate | None:
        """The best intersection; None if all of them are empty."""
        bases = self._bases()
        wanted = _wanted(self._lists, self._budget)
        found = self._of_size(bases, wanted) or self._next_best(bases, wanted)
        if found is None and bases:
            widest = max(bases, key=lambda base: (base.bit_count(), -base))
            found = (_total(widest, self._distances), widest)
        return found

    def _next_best(self, bases: dict[int, list[tuple[Region, ...]]], wanted: int) -> Candidate | None:
        """The best one when none has the wanted size."""
        below = [base for base in bases if base.bit_count() < wanted]
        if below:
            size = max(base.bit_count() for base in below)
            return self._of_size({base: [()] for base in below if base.bit_count() == size}, size)
        for size in range(wanted + 1, self._everything.bit_count() + 1):
            found = self._of_size(bases, size)
            if found is not None:
                return found
        return None

    def _bases(self) -> dict[int, list[tuple[Region, ...]]]:
        """Every base, with the choices of regions that lead to it and aren't dominated by another.

        The lists are taken one after the other. From each base so far, an element of the list leads to a
        narrower one: "any node" leaves it as it is, a mask cuts it, a region cuts it to the region's ground
        and joins the regions that may leave out more. Empty bases are dropped.

        Example, nodes 0-3: the first list is one region R, all sets inside 0-3 with 2 GiB; the second has the
        masks 0-1 and 2-3. The bases are 0-3 with (), then 0-3 with (R), then 0-1 and 2-3, each with (R). With
        1 GiB free on each node, 0-1 is an intersection (R leaves out nothing, or 2-3), and so is node 0: R
        has the set 0,2-3, and with the mask 0-1 only node 0 is common.
        """
        regions: list[Region] = []
        bases: dict[int, set[tuple[int, ...]]] = {self._everything: {()}}
        for choice in self._lists:
            grounds = [(region.ground.mask, _number(region, regions)) for region in choice.regions]
            wider: dict[int, set[tuple[int, ...]]] = {}
            for base, used in bases.items():
                if choice.any_node:
                    wider.setdefault(base, set()).update(used)
                for mask in choice.masks:
                    if base & mask:
                        wider.setdefault(base & mask, set()).update(used)
                for ground, number in grounds:
                    if base & ground:
                        more = wider.setdefault(base & ground, set())
                        more.update(tuple(sorted((*numbers, number))) for numbers in used)
            bases = {base: _undominated(used) for base, used in wider.items()}
        return {
            base: [tuple(regions[number] for number in numbers) for numbers in used]
            for base, used in bases.items()
        }

    def _of_size(self, bases: dict[int, list[tuple[Region, ...]]], size: int) -> Candidate | None:
        """The best intersection of *size* nodes, if there is one.

        A base of that size is one itself, as no region has to leave anything out. A larger base has one if
        its regions can leave out the rest; that takes a search, which is not begun where even the lowest
        nodes of the base would lose to the best one so far. A smaller base has none.
        """
        best: Candidate | None = None
        for base, choices in sorted(bases.items()):
            if base.bit_count() == size:
                best = _better(best, (_total(base, self._distances), base))
            elif base.bit_count() > size and (
                best is None or self._distances or _lowest(base, size) < best[1]
            ):
                for rule in self._rules(base, choices):
                    best = least(rule, size, self._distances, self._budget, best)
        return best

    def _rules(self, base: int, choices: Iterable[tuple[Region, ...]]) -> Iterator[Rule]:
        for regions in choices:
            if len(regions) == 1:
                yield SetsWithin.within(base, regions[0])
            elif regions:
                yield SetsLeftOut(base, regions, self._budget)


def _wanted(lists: Sequence[_List], budget: Budget) -> int:
    return max((choice.smallest(budget) for choice in lists), default=0)


def _number(region: Region, known: list[Region]) -> int:
    """The number of a region, the same for regions of the same sets: a provider's resources often share
    theirs, or two differ only in what they prefer."""
    for number, other in enumerate(known):
        same = other.ground == region.ground and other.must == region.must
        if other is region or (same and other.demands == region.demands):
            return number
    known.append(region)
    return len(known) - 1


def _undominated(used: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Without those choices of which another has all regions and more."""
    if len(used) == 1:
        return used
    return {
        numbers
        for numbers in used
        if not any(len(other) > len(numbers) and _contains(other, numbers) for other in used)
    }


def _contains(more: tuple[int, ...], fewer: tuple[int, ...]) -> bool:
    return all(fewer.count(number) <= more.count(number) for number in fewer)


def _better(best: Candidate | None, other: Candidate | None) -> Candidate | None:
    """The choice among equally preferred sets: fewer nodes, then closer, then the lower integer."""
    if best is None or other is None:
        return best or other
    return min(best, other, key=_width)


def _width(candidate: Candidate) -> tuple[int, int, int]:
    total, mask = candidate
    return mask.bit_count(), total, mask


def _narrowest(masks: Iterable[int]) -> Candidate | None:
    found = min(masks, key=lambda mask: (mask.bit_count(), mask), default=None)
    return None if found is None else (0, found)


def _lowest(mask: int, count: int) -> int:
    """The first *count* members of a mask."""
    return sum(1 << node for node in bits(mask)[:count])


def _total(mask: int, distances: Distances | None) -> int:
    return distances.total(mask) if distances else 0

"""The Topology Manager's merge: one hint out of the hint sets of all providers, kubelet's answer exactly.

kubelet takes the cross product of the lists, intersects the masks of each combination, and keeps the best
intersection. With L1..Lk the lists and "all" the machine's nodes, its answer can be said without the product:

1. A combination is preferred when its hints are preferred and its masks equal. So a preferred answer X exists
   exactly if X is preferred in every list, where a list with a preferred hint for any node allows every X.
   The best is the one with the fewest nodes; then the closest, if asked for; then the lowest integer.
2. Otherwise let B be the largest of the lists' smallest masks. Among all non-empty intersections the best has
   B nodes if there is one, else the most below B, else the fewest above B; ties as before.

Intersections without the product. Choose one element of each list: a mask, "any node", or a region. What the
masks and the grounds of the chosen regions have in common is a *base*. Each region of ground G can leave out
further nodes E, as long as G without E is in the region; the intersection is the base without all those E.
Regions are monotone. So the intersections M of that choice are the sets whose remainder, base without M, the
regions can share out among them (`LeftOut`; with one region it suffices that M, with the ground outside of
the base, holds enough: `Members`). And with M every larger set inside the base is an intersection too, so
that a base gives all sizes from some smallest one up to its own: step 2 needs only a search of size B;
without a hit there, every base lies below B or begins above it. Of choices with equal bases only those with
most regions count, since a region never has to leave anything out.

Cost: polynomial in nodes and providers when every region has one additive demand and few masks are listed one
by one. See `bayplan.engines.kubelet.topology.node_rules` for the bound in all other cases.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.kubelet.topology.distances import Distances
from bayplan.engines.kubelet.topology.hints import Hint, HintSet, OfSize, Region, Touching, bits
from bayplan.engines.kubelet.topology.node_rules import Budget, LeftOut, Members, Rule
from bayplan.engines.kubelet.topology.node_search import Candidate, fewest, least
from bayplan.sets import NodeSet


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
    """Merge hint sets, one per resource as `bayplan.engines.kubelet.topology.hints.flatten` gives them.

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
        best = _better(best, least(Members([narrower]), size, None, budget))
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
    rule = Members(regions, touching, must)
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
                yield Members.within(base, regions[0])
            elif regions:
                yield LeftOut(base, regions, self._budget)


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

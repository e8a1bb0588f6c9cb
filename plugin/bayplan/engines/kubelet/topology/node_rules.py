"""Which sets of nodes a search for an answer of the merge may return.

A rule says of a partial choice whether it can still succeed. `Members`: the set itself lies in regions.
`LeftOut`: the nodes left out can be shared out among several regions. Two demands of one region, or two
regions of a LeftOut, make this a knapsack problem; the bounds are then no longer exact before the last node
is chosen.
"""

from collections.abc import Iterator, Sequence
from math import inf
from typing import Final, Protocol

from bayplan.engines.kubelet.topology.demand_bounds import DemandBounds, together
from bayplan.engines.kubelet.topology.hints import Region, Touching, bits

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


class Members:
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
    def within(cls, base: int, region: Region) -> "Members":
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


class LeftOut:
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

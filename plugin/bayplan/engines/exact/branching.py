"""The best set of nodes of one width among too many to look at each: branch and bound.

Nodes are added one by one. A branch ends where no choice of the rest can do (`demands`), or none can be
better than what is known: sets that are crossed already (`crossings`), and the distances that so many
nodes have at best (`nearness`). Of nodes that could change places the roomier one is tried first, and the
other only beside it. Invariant: what was not found does not exist, unless `Effort.ended`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from operator import le
from typing import Final

from msgspec import Struct

from bayplan.engines.exact.criteria import Question, overlapping_sets
from bayplan.engines.exact.crossings import Crossable, Crossings
from bayplan.engines.exact.demands import Gains, Holding, demands_of
from bayplan.engines.exact.flow import bits

Limit = tuple[int, int]
"""Crossed sets and distance that a set has to beat."""

QUICK_BRANCHES: Final = 64
"""After so many branches it pays to ask in every branch what each of the rest would add there."""
_STEPS_OF_A_BRANCH: Final = 40
_SETS_A_STEP: Final = 16
"""What a branch costs beside its flows and the nodes that are left in it, and to see what is crossed."""


class _Branch(Struct):
    """All sets that contain ``included`` and otherwise only nodes of ``rest``, which are in the order of
    trying. ``near`` maps each of these to its distance from ``included``. ``excluded`` are the nodes of the
    ground that are neither."""

    included: int
    missing: int
    holdings: tuple[Holding, ...]
    gains: tuple[Gains, ...]
    rest: Sequence[int]
    near: Mapping[int, int]
    distance: int
    crossings: Crossings
    excluded: int
    position: int = 0


class Branching:
    """The sets of *width* nodes of *ground* that contain *core*, and what *question* asks of them."""

    def __init__(
        self, question: Question, ground: int, core: int, width: int, quick_branches: int = QUICK_BRANCHES
    ) -> None:
        self.question, self.ground, self.core, self.width = question, ground, core, width
        self.quick_branches = quick_branches
        self.effort, self.pairs = question.effort, question.site.pairs
        self.nearness = question.site.nearness(ground, width)
        self.demands = demands_of(question)
        self.crossable = Crossable(question.lookup.claimed, ground, width)
        self.limit: Limit | None = None
        self.branches = 0

    def any_set(self, *, at_all: bool = False) -> int:
        """A set that fits, roomy nodes first; 0 if there is none. *at_all*: then nothing else would fit."""
        self.limit = None
        self.effort.begin_proof(at_all=at_all)
        return next(self._leaves(), 0)

    def better_sets(self, limit: Limit) -> Iterator[int]:
        """Sets that fit and are better than *limit*, each better than those before."""
        self.limit = limit
        self.effort.begin_proof()
        for nodes in self._leaves():
            self.effort.take(len(self.question.lookup.claimed) // _SETS_A_STEP)
            found = overlapping_sets(self.question, nodes), self.question.site.distance(nodes)
            if found < self.limit:
                self.limit = found
                yield nodes

    def _leaves(self) -> Iterator[int]:
        """Every set that fits and was not ruled out."""
        self.branches = 0
        trunk = self._trunk()
        stack = [] if trunk is None else [trunk]
        while stack:
            branch = stack[-1]
            if not branch.missing:
                stack.pop()
                yield branch.included
                continue
            node = self._next(branch)
            if not node:
                stack.pop()
                continue
            steps_of_a_node = 1 if self.limit is None else 2
            if not self.effort.take(
                _STEPS_OF_A_BRANCH + steps_of_a_node * (len(branch.rest) - branch.position)
            ):
                return
            child = self._with_node(branch, node)
            if child is not None:
                stack.append(child)

    def _trunk(self) -> _Branch | None:
        """All sets there are."""
        holdings = tuple(map(Holding.none, self.demands))
        crossings, sets_of = self.crossable.start, self.crossable.sets_of
        for node in bits(self.core):
            holdings = tuple(holding.with_node(node) for holding in holdings)
            crossings = crossings.including(sets_of[node])
        # Ties are broken by this order, so that equal nodes are tried with the roomiest first.
        rest = sorted(
            bits(self.ground & ~self.core),
            key=lambda node: (*(-demand.most.get(node, 0) for demand in self.demands), node),
        )
        near = {node: sum(self.pairs[node][other] for other in bits(self.core)) for node in rest}
        gains = tuple(Gains(demand.most) for demand in self.demands)
        distance = self.question.site.distance(self.core)
        return self._branch(self.core, holdings, gains, rest, near, distance, crossings)

    def _next(self, branch: _Branch) -> int:
        """The next node to include, all before it being excluded; 0 if nothing is left to try."""
        while len(branch.rest) - branch.position >= branch.missing:
            if branch.position:
                before = branch.rest[branch.position - 1]
                branch.excluded |= before
                branch.crossings = branch.crossings.excluding(self.crossable.sets_of[before])
            rest = branch.rest[branch.position :]
            branch.position += 1
            if self._better_twins[rest[0]] & branch.excluded:
                continue
            if branch.excluded and self._ruled_out(branch, rest):
                break
            return rest[0]
        return 0

    def _ruled_out(self, branch: _Branch, rest: Sequence[int]) -> bool:
        """Whether no choice of *rest* will do."""
        return any(
            not holding.useful(rest, branch.missing, gains)
            for holding, gains in zip(branch.holdings, branch.gains, strict=True)
        ) or self._too_far(branch.crossings.crossed, branch.distance, branch.near, rest, branch.missing)

    def _with_node(self, branch: _Branch, node: int) -> _Branch | None:
        self.branches += 1
        included, rest, row = branch.included | node, branch.rest[branch.position :], self.pairs[node]
        holdings = tuple([holding.with_node(node) for holding in branch.holdings])
        gains = branch.gains
        self.effort.take(sum([holding.steps for holding in holdings]))
        if self.branches > self.quick_branches and len(rest) >= branch.missing - 1 > 0:
            # What the rest added before bounds what it adds now: that may already be too little.
            rest = self._useful(holdings, gains, rest, branch.missing - 1)
            gains = tuple(
                holding.gains_of(rest, before) for holding, before in zip(holdings, gains, strict=True)
            )
            self.effort.take(sum([each.steps for each in gains]))
        near = {other: branch.near[other] + row[other] for other in rest}
        crossings = branch.crossings.including(self.crossable.sets_of[node])
        distance = branch.distance + branch.near[node]
        return self._branch(included, holdings, gains, rest, near, distance, crossings)

    def _branch(
        self,
        included: int,
        holdings: tuple[Holding, ...],
        gains: tuple[Gains, ...],
        rest: Sequence[int],
        near: Mapping[int, int],
        distance: int,
        crossings: Crossings,
    ) -> _Branch | None:
        """The branch, without nodes that no set of it can contain; None if no set of it will do."""
        missing = self.width - included.bit_count()
        if not missing:
            rest = ()
            done = all(holding.lacking <= 0 for holding in holdings)
            far = self._too_far(crossings.crossed, distance, near, rest, 0)
            if far or not done or any(not hint & included for hint in self.question.hard_hints):
                return None
            return _Branch(included, 0, holdings, gains, rest, near, distance, crossings, 0)
        rest = self._useful(holdings, gains, rest, missing)
        if self.limit is not None:
            rest, crossings = self._uncrossed(rest, near, distance, crossings, self.limit)
        reachable = included | sum(rest)
        if len(rest) < missing or any(not hint & reachable for hint in self.question.hard_hints):
            return None
        if self._too_far(crossings.crossed, distance, near, rest, missing):
            return None
        rest = self._in_order(holdings, gains, rest, near, missing, crossings)
        excluded = self.ground & ~included & ~sum(rest)
        return _Branch(included, missing, holdings, gains, rest, near, distance, crossings, excluded)

    @staticmethod
    def _useful(
        holdings: tuple[Holding, ...], gains: tuple[Gains, ...], rest: Sequence[int], missing: int
    ) -> Sequence[int]:
        """Those of *rest* that a set of *missing* of them may contain that has all that is asked for."""
        for holding, each in zip(holdings, gains, strict=True):
            if len(rest) < missing:
                break
            rest = holding.useful(rest, missing, each)
        return rest

    def _uncrossed(
        self,
        rest: Sequence[int],
        near: Mapping[int, int],
        distance: int,
        crossings: Crossings,
        limit: Limit,
    ) -> tuple[Sequence[int], Crossings]:
        """*rest* without nodes that cross too many sets already, or are too far."""
        sets_of = self.crossable.sets_of
        while True:
            kept = []
            for node in rest:
                if (crossings.crossed_with(sets_of[node]), distance + near[node]) < limit:
                    kept.append(node)
                else:
                    crossings = crossings.excluding(sets_of[node])
            if len(kept) == len(rest):
                return rest, crossings
            rest = kept

    def _too_far(
        self, crossed: int, distance: int, near: Mapping[int, int], rest: Sequence[int], missing: int
    ) -> bool:
        """Whether no choice of *missing* nodes of *rest* beats the limit."""
        if self.limit is None or crossed < self.limit[0]:
            return False
        if crossed > self.limit[0] or distance >= self.limit[1]:
            return True
        if not missing:
            return False
        steps = sorted([near[node] for node in rest])[:missing]
        if distance + sum(steps) + self.nearness.least[missing] >= self.limit[1]:
            return True
        nearby = self.nearness.nearby
        # Each distance between two of the rest counts for both.
        twice = sorted([2 * near[node] + nearby[node][missing - 1] for node in rest])[:missing]
        return 2 * distance + sum(twice) >= 2 * self.limit[1]

    def _in_order(
        self,
        holdings: tuple[Holding, ...],
        gains: tuple[Gains, ...],
        rest: Sequence[int],
        near: Mapping[int, int],
        missing: int,
        crossings: Crossings,
    ) -> Sequence[int]:
        """*rest* with the most promising nodes first: the roomiest as long as anything will do, then those
        that cross least, then the nearest."""
        lacking = [(holding.lacking, each) for holding, each in zip(holdings, gains, strict=True)]
        lacking = [(lack, each) for lack, each in lacking if lack > 0]
        nearby, sets_of = self.nearness.nearby, self.crossable.sets_of
        if self.limit is None and len(lacking) == 1:
            _, only = lacking[0]
            return sorted(rest, key=lambda node: -only.adds.get(node, 0))
        if self.limit is None and lacking:
            return sorted(
                rest,
                key=lambda node: -sum([min(1.0, each.adds.get(node, 0) / lack) for lack, each in lacking]),
            )
        far = {node: 2 * near[node] + nearby[node][missing - 1] for node in rest}
        if self.limit is None or not self.limit[0]:
            return sorted(rest, key=far.__getitem__)

        def crossing(node: int) -> tuple[int, int, int]:
            sets = sets_of[node]
            return crossings.crossed_with(sets), crossings.begun_with(sets), far[node]

        return sorted(rest, key=crossing)

    @cached_property
    def _better_twins(self) -> dict[int, int]:
        """For each node those that can stand in for it in every set, and have no less: where one of them is
        excluded, it is not needed either.

        They are at the same distances, in the same sets with promises and close to the same devices.
        """
        haves = [demand.own for demand in self.demands]
        alike: dict[tuple[int, ...], list[tuple[list[int], int]]] = {}
        for node in bits(self.ground):
            close = sum(1 << n for n, nodes in enumerate(self.question.hard_hints) if nodes & node)
            kind = self.nearness.twins[node], self.crossable.sets_of[node], close
            alike.setdefault(kind, []).append(([-have.get(node, 0) for have in haves], node))
        found = {}
        for rows in alike.values():
            before: list[tuple[list[int], int]] = []
            for lacks, node in sorted(rows):
                # By the first demand those before have no less; where it is the only one, that is all.
                found[node] = sum(
                    other for theirs, other in before if len(haves) == 1 or all(map(le, theirs, lacks))
                )
                before.append((lacks, node))
        return found

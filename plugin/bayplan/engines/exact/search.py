"""The best set of nodes that fits: candidates in the order of the criteria, and how the winner won.

Up to a number of sets of one width every one of them is looked at. Above it only good ones are
(`NodeTopology.ranked`), and branch and bound finds what those miss: a set that fits at all, and one that
crosses less or is nearer. Whether that took more steps than it may, so that something better may exist, is in
the question's `StepBudget`.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.engines.exact.branching import Branching, Limit
from bayplan.engines.exact.claiming import fewest
from bayplan.engines.exact.flow import bits, crosses
from bayplan.engines.exact.question import Question, criteria_of, values
from bayplan.model.decision import Advantage, Candidate
from bayplan.quantity import counted, format_bytes
from bayplan.sets import NodeSet

KEPT: Final = 3
"""How many sets that fit a decision lists."""
KEPT_OBSTACLES: Final = 2
"""How many sets that do not fit it lists beside them."""
_STEPS_OF_A_SET: Final = 3
"""What it costs to look at a set, beside what is asked of the flows."""
_FEW_CROSSING: Final = 16
"""Around so many sets that cross others one is sought that does not, where the search had to end."""
_STEPS_OF_A_RANK: Final = 6
"""What it costs to grow a set."""
_FEW: Final = 64
"""Up to so many sets of the next width are looked at, for a runner-up to show."""


class Area(Struct, frozen=True):
    """Where to look: subsets of the ``allowed`` nodes with at least ``narrowest`` and at most ``widest`` of
    them that contain ``core``; only all of them if ``exactly``."""

    allowed: int
    widest: int
    core: int = 0
    exactly: bool = False
    narrowest: int = 1


class Found(Struct, frozen=True):
    """The chosen nodes, with what the decision shows of the choice. ``overlapping`` counts crossed sets."""

    nodes: int
    overlapping: int
    candidates: tuple[Candidate, ...]
    advantage: Advantage | None


_Key = tuple[tuple[int, ...], tuple[int, ...], int]
"""The values of the criteria, the nodes in the order of their ids, and the set itself."""


def search(question: Question, area: Area) -> Found | None:
    """The best set of *area* that fits *question*, None if none of them does.

    Wider sets are looked at as long as every narrower one that fits crosses a set with promises.
    """
    return _Search(question).run(area)


class _Search(Struct):
    """One search: what was found so far. ``clean``: how many of the fitting sets cross none. ``fallback``:
    crossed sets and width of the best set that crosses others."""

    question: Question
    fitting: list[_Key] = field(default_factory=list)
    obstacles: list[int] = field(default_factory=list)
    clean: int = 0
    fallback: tuple[int, int] | None = None

    def run(self, area: Area) -> Found | None:
        """Look at one width after the other, then choose the best of all that fits.

        Example: a request for 10 GiB on nodes with 8 GiB free each. The least width is 2. If some pair fits
        and crosses no set, the search ends there, because wider sets can only be worse: the criterion that
        counts most, crossed sets, cannot get better than 0. If all pairs that fit cross sets, triples are
        looked at, and so on up to the widest that the policy allows; a triple that crosses none wins then.

        What fits on some nodes fits on more. So nothing fits where all allowed nodes together have no room;
        and where a width has too many sets, the proof that nothing fits on any width is made once, for the
        last one (`_proof_of_any`). The set that it finds is only taken where nothing narrower was found.
        What is to lie evenly on the nodes of a set has one width only, and is looked for on nodes that each
        have the room at best.
        """
        if self.question.even:
            area = replace(area, allowed=_able_nodes(self.question, area))
        if area.core & ~area.allowed or not self._fits_on_all(area):
            return None
        fits_on_last_width = self._look_by_width(area)
        if not self.fitting and fits_on_last_width:
            self._look_at([fits_on_last_width])
        if not self.fitting:
            return None
        if self.question.budget.ended and not self.clean:
            self._look_at(self._clean_around(area))
        self.fitting.sort()
        return _found(self.question, self.fitting, self.obstacles)

    def _fits_on_all(self, area: Area) -> bool:
        question, before = self.question, self.question.counted.steps
        together = ((area.allowed, question.amounts),)
        fits = question.plausible(area.allowed) and question.counted.fits(together)
        question.budget.spent += question.counted.steps - before
        return fits

    def _look_by_width(self, area: Area) -> int:
        """Look at the sets of each width in turn, until one crosses none or too much was spent.

        Returns:
            A set of the last width that fits, where it had to be sought; 0 if there is none.
        """
        topology, budget = self.question.topology, self.question.budget
        fits_on_last_width: int | None = None
        for width in _widths(self.question, area):
            enough = self.clean > 0
            if budget.exhausted and (self.fitting or fits_on_last_width is not None):
                budget.ended |= not enough
                break
            many = not area.exactly and topology.too_many(area.allowed, width)
            rows = _rows(self.question, area, width)
            if enough and len(rows) > _FEW:
                break
            budget.spent += _STEPS_OF_A_RANK * len(rows) if many else 0
            many = not self._look_at(rows) or many
            if many and not enough:
                if not self.fitting and fits_on_last_width is None:
                    fits_on_last_width = self._proof_of_any(area)
                    if not fits_on_last_width and not budget.ended:
                        break
                # Where the last width was given up already, it would be given up again.
                if self.fitting or fits_on_last_width or width < _last_width(area):
                    self._branch(area, width)
            if enough or self.clean > 1:
                break
        return fits_on_last_width or 0

    def _proof_of_any(self, area: Area) -> int:
        """A set of the last width that fits, 0 if there is none."""
        width = _last_width(area)
        if width == area.allowed.bit_count():
            return area.allowed
        return Branching(self.question, area.allowed, area.core, width).any_set(at_all=True)

    def _branch(self, area: Area, width: int) -> None:
        """Look for what is better than all that was found, among the sets of *width* nodes."""
        branching = Branching(self.question, area.allowed, area.core, width)
        if not self.fitting:
            self._look_at([nodes for nodes in [branching.any_set()] if nodes])
        if self.fitting:
            self._look_at(list(branching.better_sets(self._limit(width))))

    def _clean_around(self, area: Area) -> list[int]:
        """The sets that cross none, around the best that were found: with everything that these cross."""
        claimed, found = self.question.counted.claimed.sets, set()
        for _, _, nodes in sorted(self.fitting)[:_FEW_CROSSING]:
            wide, before = nodes, 0
            while wide != before:
                before = wide
                for other in claimed:
                    if crosses(wide, other):
                        wide |= other
            if not wide & ~area.allowed and area.narrowest <= wide.bit_count() <= _last_width(area):
                found.add(wide)
        return sorted(found, key=lambda nodes: (nodes.bit_count(), nodes))

    def _limit(self, width: int) -> Limit:
        """What a set of *width* nodes has to beat: narrower ones do if they cross as few."""
        return min(
            (by_criteria[0], by_criteria[2] if by_criteria[1] == width else -1)
            for by_criteria, _, _ in self.fitting
        )

    def _look_at(self, rows: Sequence[int]) -> bool:
        """Whether it did not take too much to look at all of *rows*."""
        question, last_rank = self.question, None
        counted, complete = question.counted, True
        begun, most = counted.steps, counted.steps + question.budget.for_one_width
        for nodes in rows:
            counted.steps += _STEPS_OF_A_SET
            if counted.steps - _STEPS_OF_A_SET > most:
                complete = False
                break
            if self.fallback is not None and self._hopeless(nodes, self.fallback):
                continue
            if not (question.plausible(nodes) and question.fits(nodes)):
                if len(self.obstacles) < KEPT_OBSTACLES:
                    self.obstacles.append(nodes)
                continue
            by_criteria = values(question, nodes)
            rank = (by_criteria[2], by_criteria[3])
            # Rows come by distance and initiators: what follows cannot be better than two found before.
            if self.clean > 1 and last_rank is not None and rank > last_rank:
                break
            ids = (nodes,) if by_criteria[1] == 1 else tuple(bits(nodes))
            self.fitting.append((by_criteria, ids, nodes))
            if by_criteria[0]:
                crossed_and_width = (by_criteria[0], by_criteria[1])
                self.fallback = min(self.fallback or crossed_and_width, crossed_and_width)
            else:
                self.clean, last_rank = self.clean + 1, rank
        question.budget.spent += counted.steps - begun
        return complete

    def _hopeless(self, nodes: int, fallback: tuple[int, int]) -> bool:
        """Whether *nodes* cross more sets than one that fits already, or as many and are wider. To know
        whether they fit would take a flow each."""
        return (self.question.counted.crossed(nodes), nodes.bit_count()) > fallback


def _last_width(area: Area) -> int:
    return min(area.widest, area.allowed.bit_count())


def _widths(question: Question, area: Area) -> Iterable[int]:
    last = _last_width(area)
    if area.exactly:
        return range(area.allowed.bit_count(), last + 1)
    return range(max(area.narrowest, area.core.bit_count(), _least_width(question, area)), last + 1)


def _able_nodes(question: Question, area: Area) -> int:
    """Those of the allowed nodes that have room for their part of what is to lie evenly on a set, each taken
    alone."""
    each = {resource: amount // area.narrowest for resource, amount in question.even.items()}
    rooms = [(question.rooms[resource], amount) for resource, amount in each.items()]
    return sum(
        node for node in bits(area.allowed) if all(room.get(node, 0) >= amount for room, amount in rooms)
    )


def _least_width(question: Question, area: Area) -> int:
    """How many nodes it takes at least, if each has the room at best that it has alone.

    What several nodes have room for together is never more than the sum over them, because the value of a
    maximum flow is submodular in its sources.
    """
    least = 1
    for resource, amount_bytes in question.amounts.items():
        rooms = question.rooms[resource]
        least = max(least, fewest([rooms.get(node, 0) for node in bits(area.allowed)], amount_bytes))
    return least


def _rows(question: Question, area: Area, width: int) -> Sequence[int]:
    """The sets of one width in the order of distance and initiators."""
    if area.exactly:
        return [area.allowed]
    # What is asked for first decides: memory, else huge pages, else CPUs.
    first = next(iter(question.amounts), None)
    rooms = question.free_cpus if first is None else question.rooms[first]
    rows = question.topology.ranked(area.allowed, width, rooms)
    return [nodes for nodes in rows if not area.core & ~nodes] if area.core else rows


def _found(question: Question, fitting: Sequence[_Key], obstacles: Sequence[int]) -> Found:
    criteria = criteria_of(question)
    candidates = [
        Candidate(NodeSet.of_mask(nodes), dict(zip(criteria, by_criteria, strict=True)))
        for by_criteria, _, nodes in fitting[:KEPT]
    ]
    candidates += [Candidate(NodeSet.of_mask(nodes), {}, _obstacle(question, nodes)) for nodes in obstacles]
    won, _, nodes = fitting[0]
    advantage = None
    if len(fitting) > 1:
        lost, _, runner_up = fitting[1]
        name, mine, other = "id", 0, 1
        for criterion, first, second in zip(criteria, won, lost, strict=True):
            if first != second:
                name, mine, other = criterion, first, second
                break
        advantage = Advantage(name, mine, NodeSet.of_mask(runner_up), other)
    return Found(nodes, won[0], tuple(candidates), advantage)


def _obstacle(question: Question, nodes: int) -> str:
    """Why *nodes* cannot be taken."""
    if question.cpus and question.cpus_on(nodes) < question.cpus:
        return f"{question.cpus_on(nodes)} of {counted(question.cpus, 'CPU')}"
    room = question.counted.flows.room(nodes, question.amounts)
    for resource, amount_bytes in question.amounts.items():
        left = room.get(resource, 0)
        if left < amount_bytes:
            return f"room for {format_bytes(left)} of {format_bytes(amount_bytes)} {resource}"
    return "no device of the container is close"

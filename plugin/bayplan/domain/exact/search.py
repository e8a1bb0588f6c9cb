"""The best set of nodes that fits: candidates in the order of the criteria, and how the winner won.

Feasibility is exact for every set that is looked at, and the largest set is always looked at. Where the sets
of one size are too many to enumerate, only good ones of that size are (`sites`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Final

from bayplan.domain.decision import Advantage, Candidate
from bayplan.domain.exact.criteria import CRITERIA, Question, overlapping_sets, values
from bayplan.domain.exact.flow import bits
from bayplan.domain.exact.sites import MAX_COMBINATIONS
from bayplan.quantity import format_bytes
from bayplan.sets import NodeSet

KEPT: Final = 3
"""How many sets that fit a decision lists."""
KEPT_OBSTACLES: Final = 2
"""How many sets that do not fit it lists beside them."""
_FEW: Final = 64
"""So many sets are looked at for a runner-up that nobody needs."""


@dataclass(frozen=True, slots=True)
class Area:
    """Where to look: subsets of ``ground`` with at most ``widest`` nodes that contain ``core``; only the
    whole ground if ``exactly``."""

    ground: int
    widest: int
    core: int = 0
    exactly: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The chosen nodes, with what the decision shows of the choice. ``overlapping`` counts crossed sets."""

    nodes: int
    overlapping: int
    candidates: tuple[Candidate, ...]
    advantage: Advantage | None


_Key = tuple[tuple[int, ...], tuple[int, ...], int]
"""The values of the criteria, the ids, and the set itself."""


def search(question: Question, area: Area) -> Found | None:
    """The best set of *area* that fits *question*, None if none of them does.

    Wider sets are looked at as long as every narrower one that fits crosses a set with promises.
    """
    return _Search(question).run(area)


class _Search:
    """One search: what was found so far."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.fitting: list[_Key] = []
        self.obstacles: list[int] = []
        self.clean = 0
        # Crossed sets and width of the best set that crosses others.
        self.fallback: tuple[int, int] | None = None

    def run(self, area: Area) -> Found | None:
        for width in _widths(self.question, area):
            rows = _rows(self.question, area, width)
            enough = self.clean > 0
            if enough and len(rows) > _FEW:
                break
            self._look_at(rows)
            if enough or self.clean > 1:
                break
        if not self.fitting:
            self._look_further(area)
        if not self.fitting:
            return None
        self.fitting.sort()
        return _found(self.question, self.fitting, self.obstacles)

    def _look_further(self, area: Area) -> None:
        """Before the policy's width is a refusal on a machine with too many sets to look at all of them."""
        width = min(area.widest, area.ground.bit_count())
        if area.exactly or area.core or comb(area.ground.bit_count(), width) <= MAX_COMBINATIONS:
            return
        site, rooms = self.question.site, _decisive_rooms(self.question)
        for nodes in site.among_roomiest(area.ground, width, rooms):
            if self.question.plausible(nodes):
                self._look_at([nodes])
                if self.fitting:
                    return

    def _look_at(self, rows: Sequence[int]) -> None:
        question, last_rank = self.question, (0, 0)
        for nodes in rows:
            if self._hopeless(nodes):
                continue
            if not question.plausible(nodes) or not question.books.fits(nodes, question.amounts):
                if len(self.obstacles) < KEPT_OBSTACLES:
                    self.obstacles.append(nodes)
                continue
            by_criteria = values(question, nodes)
            rank = (by_criteria[2], by_criteria[3])
            # Rows come by distance and initiators: what follows cannot be better than two found before.
            if self.clean > 1 and rank > last_rank:
                break
            self.fitting.append((by_criteria, tuple(NodeSet.of_mask(nodes)), nodes))
            if by_criteria[0]:
                crossed_and_width = (by_criteria[0], by_criteria[1])
                self.fallback = min(self.fallback or crossed_and_width, crossed_and_width)
            else:
                self.clean, last_rank = self.clean + 1, rank

    def _hopeless(self, nodes: int) -> bool:
        """Whether *nodes* cross more sets than one that fits already, or as many and are wider. To know
        whether they fit would take a flow each."""
        if self.fallback is None:
            return False
        return (overlapping_sets(self.question, nodes), nodes.bit_count()) > self.fallback


def _widths(question: Question, area: Area) -> Iterable[int]:
    last = min(area.widest, area.ground.bit_count())
    if area.exactly:
        return range(area.ground.bit_count(), last + 1)
    return range(max(1, area.core.bit_count(), _least_width(question, area)), last + 1)


def _least_width(question: Question, area: Area) -> int:
    """How many nodes it takes at least, if each has the room at best that it has alone.

    What several nodes have room for together is never more than the sum over them, because the value of a
    maximum flow is submodular in its sources.
    """
    least = 1
    for resource, amount_bytes in question.amounts.items():
        rooms = question.rooms[resource]
        left = amount_bytes
        used = 0
        for have in sorted((rooms.get(node, 0) for node in bits(area.ground)), reverse=True):
            if left <= 0:
                break
            left, used = left - have, used + 1
        least = max(least, used) if left <= 0 else area.ground.bit_count() + 1
    return least


def _rows(question: Question, area: Area, width: int) -> Sequence[int]:
    """The sets of one width in the order of distance and initiators."""
    if area.exactly:
        return [area.ground]
    rows = [row.nodes for row in question.site.ranked(area.ground, width, _decisive_rooms(question))]
    return [nodes for nodes in rows if not area.core & ~nodes] if area.core else rows


def _decisive_rooms(question: Question) -> Mapping[int, int]:
    """The room by node of what is asked for first: memory, else huge pages, else CPUs."""
    resource = next(iter(question.amounts), None)
    return question.free_cpus if resource is None else question.rooms[resource]


def _found(question: Question, fitting: Sequence[_Key], obstacles: Sequence[int]) -> Found:
    candidates = [
        Candidate(NodeSet.of_mask(nodes), dict(zip(CRITERIA, by_criteria, strict=True)))
        for by_criteria, _, nodes in fitting[:KEPT]
    ]
    candidates += [Candidate(NodeSet.of_mask(nodes), {}, _obstacle(question, nodes)) for nodes in obstacles]
    won, _, nodes = fitting[0]
    advantage = None
    if len(fitting) > 1:
        lost, _, runner_up = fitting[1]
        name, mine, other = "id", 0, 1
        for criterion, first, second in zip(CRITERIA, won, lost, strict=True):
            if first != second:
                name, mine, other = criterion, first, second
                break
        advantage = Advantage(name, mine, NodeSet.of_mask(runner_up), other)
    return Found(nodes, won[0], tuple(candidates), advantage)


def _obstacle(question: Question, nodes: int) -> str:
    """Why *nodes* cannot be taken."""
    if question.cpus and question.cpus_on(nodes) < question.cpus:
        return f"{question.cpus_on(nodes)} of {question.cpus} CPUs"
    room = question.books.room(nodes, question.amounts)
    for resource, amount_bytes in question.amounts.items():
        left = room.get(resource, 0)
        if left < amount_bytes:
            return f"room for {format_bytes(left)} of {format_bytes(amount_bytes)} {resource}"
    return "no device of the container is close"

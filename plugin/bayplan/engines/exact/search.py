"""The best set of nodes that fits: candidates in the order of the criteria, and how the winner won.

Up to a number of sets of one width every one of them is looked at. Above it only good ones are
(`NodeTopology.ranked`), and branch and bound finds what those miss: a set that fits at all, and one that
crosses less or is nearer. Whether that took more steps than it may, so that something better may exist, is in
the question's `StepBudget`.

*Branch and bound* (`Branching`). Nodes are included one by one. A branch ends where no choice of the rest can
do, or none can be better than what is known. Each bound holds for every set of a branch, however it is
completed: a node never adds more than its bound (`BoundedDemand`, `Supply`), no set is nearer
(`NearestNodes`) or crosses fewer (`Crossings`). Of nodes that could change places the roomier one is tried
first, and the other only beside it. Invariant: what was not found does not exist, unless `StepBudget.ended`.

Example: 3 of the nodes 0 to 4. The root includes none; its first child includes node 0 and may add 1 to 4,
the second one includes node 1 and may add 2 to 4, because all sets with node 0 were in the first. The third
one includes node 2 and adds both of 3 and 4; there is no fourth. This is a depth-first walk with a stack of
branches, each of which knows its next child.
Example of a bound: 10 GiB are asked for on 3 nodes, and the one that is included has 4. If no two of the
others add more than 5 together, then nothing that contains the first node will do, whichever they are.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import le
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.engines.exact.claiming import fewest
from bayplan.engines.exact.flow import Trial, bits, crosses
from bayplan.engines.exact.question import Crossings, Question, criteria_of, values
from bayplan.model.decision import Advantage, Candidate
from bayplan.quantity import counted, format_bytes
from bayplan.sets import NodeSet

Limit = tuple[int, int]
"""Crossed sets and distance that a set has to beat."""

_STEPS_OF_A_BRANCH: Final = 24
_SETS_A_STEP: Final = 16
"""What a branch costs beside its flows and the nodes that are left in it, and to see what is crossed."""


class BoundedDemand(Struct, frozen=True):
    """So much of something that a set must have. ``most`` bounds what each node adds to any set; without a
    *trial* it is what each node adds (CPUs). ``own`` is what each has for itself once the claims within it
    are kept."""

    target: int
    most: Mapping[int, int]
    own: Mapping[int, int]
    trial: Trial | None = None


class Supply(Struct, frozen=True):
    """What a set of nodes has of a demand: ``held``, at most the target.

    For memory and huge pages it is the value of a maximum flow, which is submodular: a node never adds more
    to a set than it has room for alone.
    """

    demand: BoundedDemand
    held: int
    trial: Trial | None

    @classmethod
    def none(cls, demand: BoundedDemand) -> "Supply":
        """The supply of an empty set of nodes."""
        return cls(demand, 0, None if demand.trial is None else demand.trial.copy())

    @property
    def steps(self) -> int:
        """What the last node cost."""
        return 0 if self.trial is None else self.trial.steps

    @property
    def lacking(self) -> int:
        """What is missing to the target."""
        return self.demand.target - self.held

    def with_node(self, node: int) -> "Supply":
        """What the set has with *node*."""
        lacking = self.lacking
        if lacking <= 0:
            return self
        if self.trial is None:
            return Supply(self.demand, self.held + min(lacking, self.demand.most.get(node, 0)), None)
        trial = self.trial.copy()
        return Supply(self.demand, self.held + trial.push(node, lacking), trial)

    def useful(self, nodes: Sequence[int], missing: int) -> Sequence[int]:
        """Those of *nodes* that a set with *missing* of them may contain that reaches the target, if each
        adds what it adds at most. None of them if no set does.

        Example: 6 are lacking, 2 nodes are missing, and the nodes add 5, 2 and 0. With the best one (5) the
        other has to add at least 1, so that the third node is in no set that reaches the target.
        """
        lacking = self.lacking
        if lacking <= 0:
            return nodes
        adds = [self.demand.most.get(node, 0) for node in nodes]
        most = sorted(adds, reverse=True)
        least = lacking - sum(most[: missing - 1])
        if most[missing - 1] < least:
            return ()
        if most[-1] >= least:
            return nodes
        return [node for node, add in zip(nodes, adds, strict=True) if add >= least]


class _Branch(Struct):
    """All sets that contain ``included`` and ``missing`` nodes of ``rest``, which are in the order of trying;
    those before ``position`` were tried. ``supplies`` has one item for each demand. ``near`` maps each of the
    rest to the sum of its distances to the included nodes, whose own distances sum to ``distance``.
    ``excluded`` are the allowed nodes that are neither included nor still to be tried."""

    included: int
    missing: int
    supplies: tuple[Supply, ...]
    rest: Sequence[int]
    near: Mapping[int, int]
    distance: int
    crossings: Crossings
    excluded: int = 0
    position: int = 0


class Branching:
    """The sets of *width* of the *allowed* nodes that contain *core*, and what *question* asks of them."""

    def __init__(self, question: Question, allowed: int, core: int, width: int) -> None:
        self.question, self.allowed, self.core, self.width = question, allowed, core, width
        self.budget, self.pairs = question.budget, question.topology.pairs
        self.nearest_nodes = question.topology.nearest_nodes(allowed, width)
        self.demands = _demands_of(question)
        by_node = question.counted.claimed.by_node
        self.sets_of = {node: by_node.get(node, 0) for node in bits(allowed)}
        self.limit: Limit | None = None

    def any_set(self, *, at_all: bool = False) -> int:
        """A set that fits, roomy nodes first; 0 if there is none. *at_all*: then nothing else would fit."""
        self.limit = None
        self.budget.begin_proof(at_all=at_all)
        return next(self._leaves(), 0)

    def better_sets(self, limit: Limit) -> Iterator[int]:
        """Sets that fit and are better than *limit*, each better than those before."""
        self.limit = limit
        self.budget.begin_proof()
        for nodes in self._leaves():
            self.budget.take(len(self.question.counted.claimed.sets) // _SETS_A_STEP)
            found = self.question.counted.crossed(nodes), self.question.topology.distance(nodes)
            if found < self.limit:
                self.limit = found
                yield nodes

    def _leaves(self) -> Iterator[int]:
        """Every set that fits and was not ruled out."""
        root = self._root()
        stack = [] if root is None else [root]
        while stack:
            branch = stack[-1]
            if not branch.missing:
                stack.pop()
                if self._fits_evenly(branch.included):
                    yield branch.included
                continue
            node = self._next(branch)
            if not node:
                stack.pop()
                continue
            steps_of_a_node = 1 if self.limit is None else 2
            if not self.budget.take(
                _STEPS_OF_A_BRANCH + steps_of_a_node * (len(branch.rest) - branch.position)
            ):
                return
            child = self._with_node(branch, node)
            if child is not None:
                stack.append(child)

    def _fits_evenly(self, nodes: int) -> bool:
        """Whether *nodes*, which have room for everything together, have room for what is to lie evenly."""
        question, before = self.question, self.question.counted.steps
        fits = not question.even or question.fits(nodes)
        self.budget.take(question.counted.steps - before)
        return fits

    def _root(self) -> _Branch | None:
        """The branch that contains every set; None if no set of it can fit."""
        supplies = tuple(map(Supply.none, self.demands))
        crossings = self.question.counted.claimed.undecided(self.allowed, self.width)
        for node in bits(self.core):
            supplies = tuple(supply.with_node(node) for supply in supplies)
            crossings = crossings.including(self.sets_of[node])
        # Ties are broken by this order, so that equal nodes are tried with the roomiest first.
        rest = sorted(
            bits(self.allowed & ~self.core),
            key=lambda node: (*(-demand.most.get(node, 0) for demand in self.demands), node),
        )
        near = {node: sum(self.pairs[node][other] for other in bits(self.core)) for node in rest}
        distance = self.question.topology.distance(self.core)
        missing = self.width - self.core.bit_count()
        return self._pruned(_Branch(self.core, missing, supplies, rest, near, distance, crossings))

    def _next(self, branch: _Branch) -> int:
        """The next node to include, all before it being excluded; 0 if nothing is left to try."""
        while len(branch.rest) - branch.position >= branch.missing:
            if branch.position:
                before = branch.rest[branch.position - 1]
                branch.excluded |= before
                branch.crossings = branch.crossings.excluding(self.sets_of[before])
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
        short = any(not supply.useful(rest, branch.missing) for supply in branch.supplies)
        return short or self._too_far(branch, rest)

    def _with_node(self, branch: _Branch, node: int) -> _Branch | None:
        """The branch of *branch* that includes *node*; None if no set of it will do."""
        missing, rest, row = branch.missing - 1, branch.rest[branch.position :], self.pairs[node]
        supplies = tuple([supply.with_node(node) for supply in branch.supplies])
        self.budget.take(sum([supply.steps for supply in supplies]))
        near = {other: branch.near[other] + row[other] for other in rest}
        crossings = branch.crossings.including(self.sets_of[node])
        distance = branch.distance + branch.near[node]
        return self._pruned(
            _Branch(branch.included | node, missing, supplies, rest, near, distance, crossings)
        )

    def _pruned(self, branch: _Branch) -> _Branch | None:
        """*branch* without nodes that no set of it can contain, the rest in the order of trying; None if no
        set of it will do.

        Where no node is missing, the one set that is left has to have everything. Else each bound is asked in
        turn, the cheapest that rules out most first: what the rest can add (which also shortens it), required
        devices, crossed sets and distance. Whatever was dropped from the rest is excluded from then on.
        """
        if not branch.missing:
            branch.rest = ()
            lacks = any(supply.lacking > 0 for supply in branch.supplies)
            return None if lacks or self._devices_missed(branch) or self._too_far(branch, ()) else branch
        branch.rest = _useful(branch.supplies, branch.rest, branch.missing)
        if len(branch.rest) < branch.missing or self._devices_missed(branch):
            return None
        if self._too_far(branch, branch.rest):
            return None
        branch.rest = self._in_order(branch)
        branch.excluded = self.allowed & ~branch.included & ~sum(branch.rest)
        return branch

    def _devices_missed(self, branch: _Branch) -> bool:
        """Whether no set of *branch* is close to all required devices."""
        hints = self.question.required_hints
        reachable = branch.included | sum(branch.rest) if hints else 0
        return any(not hint & reachable for hint in hints)

    def _too_far(self, branch: _Branch, rest: Sequence[int]) -> bool:
        """Whether *branch* with any choice of *rest* fails to beat the limit.

        Crossed sets are compared first; only where they are equal the distance decides. A set that adds the
        nodes a and b to the included ones is as far apart as these, plus ``near[a] + near[b]``, plus the
        distance between a and b. Of each added node at least ``near`` and its distances to the
        ``missing - 1`` nearest nodes of all are part of that sum; the latter count half, because a distance
        between two added nodes belongs to both. So everything is compared twice as large: the ``missing``
        smallest of ``2 * near + nearest`` are what the choice adds at least.
        """
        if self.limit is None:
            return False
        crossed, limit_crossed, limit_distance = branch.crossings.crossed, *self.limit
        if crossed != limit_crossed:
            return crossed > limit_crossed
        missing, near, nearest = branch.missing, branch.near, self.nearest_nodes.nearest
        twice = sorted([2 * near[node] + nearest[node][missing - 1] for node in rest])[:missing]
        return 2 * branch.distance + sum(twice) >= 2 * limit_distance

    def _in_order(self, branch: _Branch) -> Sequence[int]:
        """The rest with the most promising nodes first: the roomiest as long as anything will do, then those
        that cross least, then the nearest."""
        rest, near, crossings = branch.rest, branch.near, branch.crossings
        if self.limit is None:
            lacking = [(one.lacking, one.demand.most) for one in branch.supplies if one.lacking > 0]
            if lacking:
                return sorted(
                    rest,
                    key=lambda node: -sum([min(1.0, most.get(node, 0) / lack) for lack, most in lacking]),
                )
        nearest, sets_of = self.nearest_nodes.nearest, self.sets_of
        far = {node: 2 * near[node] + nearest[node][branch.missing - 1] for node in rest}
        if self.limit is None or not self.limit[0]:
            return sorted(rest, key=far.__getitem__)

        def crossing(node: int) -> tuple[int, int, int]:
            sets = sets_of[node]
            return crossings.crossed_with(sets), crossings.begun_with(sets), far[node]

        return sorted(rest, key=crossing)

    @cached_property
    def _better_twins(self) -> dict[int, int]:
        """For each node a set of its better twins: where one of them is excluded, the node is not needed.

        Twins are at the same distances from all others, in the same claimed sets and close to the same
        devices; a twin is better if it has no less of anything (of equal ones: the lower id). In every set
        with the node and without the better twin these two can change places, and the set that comes of it
        is as good and was looked at before. Example: nodes 0 to 3 of a socket have 8, 8, 6 and 4 GiB free.
        The better twins of node 2 are 0 and 1; once all sets with node 0 were looked at, none of 1 to 3
        is tried any more without it.
        """
        haves = [demand.own for demand in self.demands]
        alike: dict[tuple[int, ...], list[tuple[list[int], int]]] = {}
        for node in bits(self.allowed):
            close = sum(1 << n for n, nodes in enumerate(self.question.required_hints) if nodes & node)
            kind = self.nearest_nodes.representative[node], self.sets_of[node], close
            alike.setdefault(kind, []).append(([-have.get(node, 0) for have in haves], node))
        found = {}
        for rows in alike.values():
            # Those with the most of the first demand come first; where it is the only one, that is all.
            rows.sort()
            for index, (lacks, node) in enumerate(rows):
                found[node] = sum(
                    other for theirs, other in rows[:index] if len(haves) == 1 or all(map(le, theirs, lacks))
                )
        return found


def _useful(supplies: Sequence[Supply], rest: Sequence[int], missing: int) -> Sequence[int]:
    """Those of *rest* that a set with *missing* of them may contain that has all that is asked for."""
    for supply in supplies:
        if len(rest) < missing:
            break
        rest = supply.useful(rest, missing)
    return rest


def _demands_of(question: Question) -> list[BoundedDemand]:
    """Everything that *question* asks of a set, apart from devices."""
    demands = [
        BoundedDemand(
            amount_bytes,
            question.rooms[resource],
            question.counted.flows.flow(resource).slack,
            question.counted.trial(resource),
        )
        for resource, amount_bytes in question.amounts.items()
    ]
    if question.cpus:
        demands.append(BoundedDemand(question.cpus, question.free_cpus, question.free_cpus))
    return demands


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
    """The chosen nodes, and what the decision shows of the choice; ``overlapping`` counts the crossed
    sets."""

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
    """The allowed nodes, as a mask, each of which alone has room for its part of what is to lie evenly on a
    set."""
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

"""What a set of nodes is wanted for (`Question`), by what sets are compared (`values`), and what it takes to
find out (`StepBudget`).

The kernel fills nodes by first touch and knows no limit per node. Nothing makes it keep promises on sets that
cross each other, so that sets that are nested or disjoint come before everything else (`ClaimedSets`). The
strategy decides only between sets that are alike in all that; so it changes neither what fits nor how narrow
it is.

Work is counted in steps and not measured: a question always has the same answer. A step is about a
microsecond. What each part of a search costs was measured once; the constants beside the code that is
charged for (`_STEPS_OF_...`) come from there. Invariant: steps depend on the claims alone, never on the order
in which they came, although which node carries what does.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from heapq import nlargest
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.exact.claiming import fewest
from bayplan.engines.exact.cpu_choice import Fit
from bayplan.engines.exact.flow import Flow, Trial, bits
from bayplan.engines.exact.resources import Parts, ResourceFlows, by_resource
from bayplan.engines.exact.topology import EIGHTHS, NodeTopology
from bayplan.model.basis import SeenSize
from bayplan.model.claims import Amounts, divided
from bayplan.model.decision import ROOM_TAKEN, SHARE_TAKEN
from bayplan.model.machine import MEMORY
from bayplan.sets import NodeSet

MAX_STEPS: Final = 40_000
"""Steps of one decision, so that with everything around it none takes more than 100 ms of CPU
(tests/bench/worst.py): for so long no timer of the event loop runs."""
SHARE_OF_MOVES: Final = 1 / 4
"""What of a decision's steps is kept for moves of others."""
_SHARE_OF_REFUSALS: Final = 7 / 8
_SHARE_OF_PROOFS: Final = 1 / 2
_SHARE_OF_A_WIDTH: Final = 1 / 6

_STEPS_OF_A_FLOW: Final = 20
_SETS_A_STEP_OF_A_FLOW: Final = 2
_SETS_A_STEP: Final = 10
_SIZES_A_STEP: Final = 4


class StepBudget:
    """The steps that are left for one question.

    Of what is left each time the proof that nothing fits at all may take seven eighths, other proofs (that
    nothing fits on so few nodes, or is better) half, and to look at the sets of a width one by one a sixth.
    ``ended``: a proof was given up.
    """

    __slots__ = ("_until", "ended", "most", "spent")

    def __init__(self, most: int = MAX_STEPS) -> None:
        self.most = most
        self.spent = 0
        self.ended = False
        self._until = most

    def begin_proof(self, *, at_all: bool = False) -> None:
        """Start to look for what fits on so many nodes or is better; *at_all*: for anything that fits."""
        left = max(0, self.most - self.spent)
        self._until = self.spent + int(left * (_SHARE_OF_REFUSALS if at_all else _SHARE_OF_PROOFS))

    @property
    def for_one_width(self) -> int:
        """What it may take to look at the sets of a width one by one."""
        return int(max(0, self.most - self.spent) * _SHARE_OF_A_WIDTH)

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left."""
        return self.spent >= self.most

    def rest(self) -> "StepBudget":
        """What is left for another question of the same decision."""
        return StepBudget(max(0, self.most - self.spent))

    def take(self, steps: int) -> bool:
        """Account for *steps*; False once the proof has to be given up."""
        self.spent += steps
        if self.spent > self._until:
            self.ended = True
            return False
        return True


# ---- Which claimed sets are crossed. A mask of claimed sets has a bit for each: instead of comparing a set
# of nodes with every claimed set, the masks of its nodes are combined, a step for each node. --------------


class ClaimedSets(Struct, frozen=True, dict=True):
    """The sets of several nodes with promises."""

    sets: tuple[int, ...]

    @cached_property
    def by_node(self) -> dict[int, int]:
        """For each node of any of these sets, the mask of the sets that contain it."""
        found: dict[int, int] = {}
        for number, nodes in enumerate(self.sets):
            for node in bits(nodes):
                found[node] = found.get(node, 0) | 1 << number
        return found

    def crossed(self, nodes: int) -> int:
        """How many cross *nodes*: share nodes with it, and neither contain it nor lie within it."""
        touched = outside = seen = 0
        around = (1 << len(self.sets)) - 1
        for node, sets in self.by_node.items():
            if node & nodes:
                touched |= sets
                around &= sets
                seen |= node
            else:
                outside |= sets
        if seen != nodes:
            around = 0  # a node that is in none of them
        return (touched & ~around & outside).bit_count()

    def undecided(self, allowed: int, width: int) -> "Crossings":
        """Where no node of *allowed* is included or excluded yet, of which *width* will be chosen."""
        around = leaves = 0
        for number, nodes in enumerate(self.sets):
            if (nodes & allowed).bit_count() >= width:
                around |= 1 << number
            if nodes & ~allowed or nodes.bit_count() > width:
                leaves |= 1 << number
        return Crossings(0, around, leaves)


class Crossings(Struct, frozen=True):
    """The state of each claimed set in a branch, a bit for each set in each of three masks.

    ``touched``: it has an included node. ``around``: it contains all included nodes, and could still contain
    the whole choice. ``leaves``: it has a node that will not be chosen, so that it cannot lie within the
    choice. A set is crossed whatever is chosen if it is touched, not around, and leaves. No set ever leaves
    that state as nodes are included or excluded.
    """

    touched: int
    around: int
    leaves: int

    @property
    def crossed(self) -> int:
        """How many sets are crossed whatever is chosen."""
        return (self.touched & ~self.around & self.leaves).bit_count()

    def crossed_with(self, sets: int) -> int:
        """How many are crossed whatever is chosen beside a node that is in *sets*."""
        return ((self.touched | sets) & ~(self.around & sets) & self.leaves).bit_count()

    def begun_with(self, sets: int) -> int:
        """How many sets have to be chosen as a whole, or are crossed, with a node that is in *sets*."""
        return ((self.touched | sets) & ~(self.around & sets)).bit_count()

    def including(self, sets: int) -> "Crossings":
        """With a node included that is in *sets*."""
        return Crossings(self.touched | sets, self.around & sets, self.leaves)

    def excluding(self, sets: int) -> "Crossings":
        """With a node excluded that is in *sets*."""
        return Crossings(self.touched, self.around, self.leaves | sets)


# ---- What the flows of one decision are asked --------------------------------------------------------


class CountedFlows:
    """Questions of one decision to *flows* as they are now. ``steps`` is what the answers have cost so far;
    whoever asks takes the difference from a `StepBudget`."""

    __slots__ = ("_asked", "_crossing_cost", "_trials", "claimed", "flows", "memory", "steps")

    def __init__(self, flows: ResourceFlows) -> None:
        self.flows, self.claimed, self.steps = flows, ClaimedSets(flows.claimed_sets()), 0
        self.memory = flows.flow(MEMORY)
        self._asked: dict[str, tuple[Flow, int]] = {}
        self._crossing_cost = 1 + len(self.claimed.sets) // _SETS_A_STEP
        self._trials: dict[str, Trial] = {}

    def fits(self, parts: Parts) -> bool:
        """Whether all *parts* can be claimed beside everything that is claimed."""
        if len(parts) > 1:
            return self._fit_together(parts)
        ((nodes, amounts),) = parts
        for resource, amount_bytes in amounts.items():
            flow, cost = self._asked.get(resource) or self._flow_and_cost(resource)
            self.steps += cost
            if flow.room(nodes, amount_bytes) < amount_bytes:
                return False
        return True

    def steps_on_one(self, amounts: Amounts) -> int:
        """What it costs to know whether *amounts* fit on a single node; 0 where the room that the node has
        alone does not say it."""
        total = 0
        for resource in amounts:
            flow, cost = self._asked.get(resource) or self._flow_and_cost(resource)
            if flow.crossings or flow.unmet:
                return 0
            total += cost
        return total

    def _fit_together(self, parts: Parts) -> bool:
        for resource, claims in by_resource(parts).items():
            flow, cost = self._asked.get(resource) or self._flow_and_cost(resource)
            self.steps += cost * len(claims)
            if not flow.fits(claims):
                return False
        return True

    def crossed(self, nodes: int) -> int:
        """How many claimed sets cross *nodes*."""
        if not nodes & (nodes - 1):
            return 0  # a single node lies within every set that it shares a node with
        self.steps += self._crossing_cost
        return self.claimed.crossed(nodes)

    def trial(self, resource: str) -> Trial:
        """What nodes have room for that are added one by one, from loads that are rebuilt in a fixed order,
        because what a trial costs depends on the loads."""
        found = self._trials.get(resource)
        if found is None:
            flow = self.flows.flow(resource)
            found = self._trials[resource] = flow.rebuilt()
            self.steps += _STEPS_OF_A_FLOW * len(flow.claimed)
        return found.copy()

    def _flow_and_cost(self, resource: str) -> tuple[Flow, int]:
        """The flow of *resource*, and what each answer about it costs. Whether one really takes a flow
        depends on which node carries what, so that all count alike."""
        flow = self.flows.flow(resource)
        cost = 1 + len(flow.claimed) // _SETS_A_STEP
        if flow.crossings or flow.unmet:
            cost += _STEPS_OF_A_FLOW + len(flow.claimed) // _SETS_A_STEP_OF_A_FLOW
        self._asked[resource] = flow, cost
        return flow, cost


# ---- How much of each node is taken already: what the strategy `spread` compares sets by. A claim on several
# nodes counts as if it lay evenly on them: which node carries it is the witness's, and may change, and where
# the kernel puts its pages is not known. Worked out once for an attempt. ---------------------------------

THOUSANDTHS: Final = 1000


class TakenOf(Struct, frozen=True):
    """What of one resource each node has promised, and what it can promise; nodes are masks with one bit."""

    promised: Mapping[int, int]
    capacity: Mapping[int, int]


class Shares(Struct, frozen=True):
    """The resources that count for one attempt: memory, what is asked for beside it, and exclusive CPUs."""

    resources: tuple[TakenOf, ...]

    @classmethod
    def of(cls, topology: NodeTopology, flows: ResourceFlows, asked: Iterable[str]) -> "Shares":
        """The shares that *flows* promise, and those of the CPUs that containers have to themselves."""
        found = [_promised(flows, resource) for resource in dict.fromkeys((MEMORY, *asked))]
        cpus = topology.counted(flows.basis.allocatable.exclusive_cpus.mask)
        free = topology.counted(flows.basis.exclusive_candidates().mask)
        owned = {node: count - free.get(node, 0) for node, count in cpus.items()}
        return cls((*found, TakenOf(owned, cpus)))

    def of_set(self, nodes: int) -> int:
        """The share of *nodes* together that is taken of the resource of which the most is, in
        thousandths."""
        return max(_share(one, nodes) for one in self.resources)


def _promised(flows: ResourceFlows, resource: str) -> TakenOf:
    promised: dict[int, int] = {}
    for nodes, amount_bytes in flows.flow(resource).claimed.items():
        width = nodes.bit_count()
        for node in bits(nodes):
            promised[node] = promised.get(node, 0) + amount_bytes // width
    return TakenOf(promised, flows.capacity.get(resource, {}))


def _share(one: TakenOf, nodes: int) -> int:
    capacity = sum(one.capacity.get(node, 0) for node in bits(nodes))
    promised = sum(one.promised.get(node, 0) for node in bits(nodes))
    return promised * THOUSANDTHS // capacity if capacity > 0 else 0


# ---- What requests of late need: how many of them would still fit, as far as each node by itself says it.
# Sets that fit are alike in all that counts for the request itself. Which of them is taken decides what the
# next one finds. Worked out once for an attempt. ------------------------------------------------------


class SeenRooms(Struct, frozen=True):
    """How much room there is for requests like those of late. ``rooms`` is what each node has left of a
    resource, ``cpus`` how many CPUs of it can become exclusive. ``fitting`` has the sizes that fit now, each
    with the least number of nodes that it takes, and, if that is one, the nodes with room for it."""

    rooms: Mapping[str, Mapping[int, int]]
    cpus: Mapping[int, int]
    fitting: tuple[tuple[SeenSize, int, int], ...]

    @classmethod
    def of(cls, topology: NodeTopology, flows: ResourceFlows) -> "SeenRooms | None":
        """What the promises of *flows* leave; None if no such request fits anywhere, or none was seen."""
        basis, ordinary = flows.basis, topology.machine.ordinary_nodes.mask
        resources = {resource: None for one in basis.seen for resource in one.amounts_bytes}
        rooms = {
            resource: {node: room for node, room in flows.rooms_by_node(resource).items() if node & ordinary}
            for resource in resources
        }
        every = topology.counted(basis.allocatable.exclusive_cpus.mask)
        most = {node: count for node, count in every.items() if node & ordinary}
        free = topology.counted(basis.exclusive_candidates().mask)
        found = cls(rooms, {node: free.get(node, 0) for node in most}, ())
        fitting = []
        for one in basis.seen:
            least = [
                fewest([flows.capacity.get(resource, {}).get(node, 0) for node in rooms[resource]], amount)
                for resource, amount in one.amounts_bytes.items()
            ]
            width = max([1, *least, fewest(most.values(), one.cpus) if one.cpus else 0])
            able = found.able(one) if width == 1 else 0
            if able or (width > 1 and found.fits(one, width)):
                fitting.append((one, width, able))
        return replace(found, fitting=tuple(fitting)) if fitting else None

    @property
    def steps(self) -> int:
        """What it costs to ask about a set."""
        return 1 + len(self.fitting) // _SIZES_A_STEP

    def lost_on(self, nodes: int, amounts: Amounts, cpus: int) -> int:
        """How many of the requests of late fit no more once *nodes* have *amounts* and *cpus* as well."""
        lost, after = 0, None
        for one, width, able in self.fitting:
            if able & ~nodes:
                continue  # another node has room for it
            after = after or self._after(nodes, amounts, cpus)
            fits = after.able(one, able) if width == 1 else after.fits(one, width)
            lost += 0 if fits else one.count
        return lost

    def able(self, one: SeenSize, among: int = -1) -> int:
        """The nodes *among* these that have room for it alone."""
        found = 0
        for node, free in self.cpus.items():
            if node & among and free >= one.cpus:
                found |= node
        for resource, amount in one.amounts_bytes.items():
            rooms = self.rooms[resource]
            found &= sum([node for node in bits(found & among) if rooms.get(node, 0) >= amount])
        return found

    def fits(self, one: SeenSize, width: int) -> bool:
        """Whether the *width* nodes with most room for it have all of it: of each resource, and of CPUs."""
        has = [(rooms_of.values(), amount) for rooms_of, amount in self._asked(one)]
        return all(sum(nlargest(width, rooms)) >= amount for rooms, amount in has)

    def _asked(self, one: SeenSize) -> Iterable[tuple[Mapping[int, int], int]]:
        yield from ((self.rooms[resource], amount) for resource, amount in one.amounts_bytes.items())
        yield self.cpus, one.cpus

    def _after(self, nodes: int, amounts: Amounts, cpus: int) -> "SeenRooms":
        """What is left: on several nodes the fullest ones are filled up first, as what is promised on a set
        may lie there."""
        rooms = {
            resource: _taken_from(has, nodes, amounts.get(resource, 0))
            for resource, has in self.rooms.items()
        }
        return SeenRooms(rooms, _taken_from(self.cpus, nodes, cpus), ())


def _taken_from(has: Mapping[int, int], nodes: int, amount: int) -> Mapping[int, int]:
    if not amount:
        return has
    left, left_over = amount, dict(has)
    for node in sorted((node for node in has if node & nodes), key=lambda one: (has[one], one)):
        taken = min(left, has[node])
        left_over[node], left = has[node] - taken, left - taken
    return left_over


# ---- The criteria, in their order; smaller is better -------------------------------------------------

OPENED_CACHES: Final = "opened caches"
"""What decides last with the strategy `pack` only."""

_PLACE: Final = (
    "overlapping sets",  # how many sets with promises cross the nodes
    "nodes",  # how many they are
    "distance",  # the kernel's over all ordered pairs, so that asymmetric ones count both ways
    # How many are reached best from CPUs that are not on them: HMAT access0, else nodes without CPUs.
    "remote initiators",
    "devices elsewhere",  # how many of the container's devices are close to none of them
)
_CPUS: Final = (
    "broken cores",  # whole ones of which the container's CPUs are a part
    "split cores",  # those that it shares with others
)
# How many caches have nobody's CPUs yet, and will have some of the container's and some that are free: whole
# ones stay for those that need one. And what caches lose of becoming whole again (keepWhole: cache).
_WHOLE_CACHES: Final = (OPENED_CACHES,)
_LOST_CACHES: Final = ("lost caches",)
# Over how many its CPUs lie at least; before the two others where these are whole ones.
_CACHES: Final = ("L3 caches",)
# What others have less of or lack, of huge pages and devices that are not asked for: they cannot do without.
_SCARCE: Final = ("scarce resources",)
# How many of the requests of late would fit no more, and what nodes lose of becoming empty again (keepWhole:
# node).
LOST_REQUESTS: Final = "lost requests"
_SEEN: Final = (LOST_REQUESTS,)
_WHOLE_NODES: Final = ("lost nodes",)
# Bytes that are not promised to containers of single nodes: the less, the more stays in one piece elsewhere
# for a large request.
_PACK: Final = (ROOM_TAKEN,)
# How much is taken by others, in thousandths: of memory, of what is asked for beside it, or of CPUs that can
# be exclusive, whichever is the most.
_SPREAD: Final = (SHARE_TAKEN,)
_LASTS: Final = 3 * 1000
_BEGUN: Final = 1000
"""What counts of a node: see `bayplan.engines.exact.cpu_choice.Occupation.lost_by`."""


class Question(Struct, frozen=True):
    """What a set of nodes is wanted for.

    ``rooms`` maps each resource to `ResourceFlows.rooms_by_node`. ``cpus`` is the number of exclusive CPUs
    that the set must have, ``free_cpus`` how many each node has. ``hints`` are the sets of nodes that devices
    are close to; the set must touch all ``required_hints``.
    ``counted`` has the answers about these flows. ``budget`` is what the search may take, and has taken.
    ``shares`` are what is taken of each node, for the strategy `spread`; None for `pack`.
    ``even`` are those of the amounts that are to lie evenly on the nodes of the set. ``scarce`` is what each
    node has more than others of what is not asked for, see `NodeTopology.scarce`. ``cpu_fit`` is what
    the best CPUs on a set cost; None where it does not matter which CPUs of a node are taken.
    ``cpus_on_empty`` says how many such CPUs each node would have were there no containers.
    ``cpus_together`` is how many CPUs a set has where nodes have some in common, of which ``free_cpus`` then
    counts each for each. ``steps_on_one`` are the steps of an answer about a single node where its room alone
    is exact, else 0. ``residents`` is how many containers are confined to sets with each node, where whole
    nodes are kept; None where not. ``keeps_caches``: what L3 caches lose by ``cpu_fit`` counts.
    ``whole_caches``: as many CPUs as whole L3 caches have are asked for. ``seen``: where
    requests like those of late would fit; None where nothing was learned.
    """

    topology: NodeTopology
    amounts: Amounts
    rooms: Mapping[str, Mapping[int, int]]
    cpus: int
    free_cpus: Mapping[int, int]
    hints: tuple[int, ...]
    required_hints: tuple[int, ...]
    counted: CountedFlows
    budget: StepBudget
    shares: Shares | None = None
    even: Amounts = MappingProxyType({})
    scarce: Mapping[int, int] = MappingProxyType({})
    cpu_fit: Callable[[int], Fit] | None = None
    cpus_together: Callable[[int], int] | None = None
    cpus_on_empty: Callable[[], Mapping[int, int]] = dict
    steps_on_one: int = 0
    residents: Mapping[int, int] | None = None
    keeps_caches: bool = False
    whole_caches: bool = False
    seen: "SeenRooms | None" = None

    def plausible(self, nodes: int) -> bool:
        """Whether *nodes* have CPUs and devices, and as much room as the nodes have one by one at best."""
        if self.cpus and self.free_cpus.get(nodes, -1) < self.cpus and self.cpus_on(nodes) < self.cpus:
            return False
        if self.required_hints and any(not hint & nodes for hint in self.required_hints):
            return False
        for resource, amount_bytes in self.amounts.items():
            rooms = self.rooms[resource]
            have_bytes = rooms.get(nodes)  # most sets have one node
            if have_bytes is None:
                have_bytes = sum(rooms.get(node, 0) for node in bits(nodes))
            if have_bytes < amount_bytes:
                return False
        return True

    def has_room(self, nodes: int) -> bool:
        """Whether *nodes* are plausible, and there is room for all of it there."""
        return self.plausible(nodes) and self.fits(nodes)

    def parts(self, nodes: int) -> Parts:
        """What is asked for if the set is *nodes*, on each set by itself."""
        if not self.even:
            return ((nodes, self.amounts),)
        every = divided(NodeSet.of_mask(nodes), self.amounts, self.even)
        return [(part.mask, amounts) for part, amounts in every]

    def fits(self, nodes: int) -> bool:
        """Whether there is room for all of it on *nodes*, which are plausible."""
        if self.steps_on_one and not nodes & (nodes - 1):
            # Where no claimed sets cross and nothing is unmet, the room of a node alone is what it has.
            self.counted.steps += self.steps_on_one
            return True
        return self.counted.fits(self.parts(nodes) if self.even else ((nodes, self.amounts),))

    def on(self, flows: ResourceFlows) -> "Question":
        """The same question of other *flows*."""
        return replace(
            self,
            rooms={resource: flows.rooms_by_node(resource) for resource in self.amounts},
            counted=CountedFlows(flows),
            steps_on_one=0,
        )

    def cpus_on(self, nodes: int) -> int:
        """How many CPUs that could become exclusive are on *nodes*."""
        if self.cpus_together is not None:
            return self.cpus_together(nodes)
        return sum([count for node, count in self.free_cpus.items() if node & nodes])


def criteria_of(question: Question) -> Sequence[str]:
    """What sets of nodes are compared by, in this order; after these the lowest ids decide."""
    spread, found = question.shares is not None, [*_PLACE]
    if question.cpu_fit is not None:
        kept = () if spread else (*_WHOLE_CACHES, *(_LOST_CACHES if question.keeps_caches else ()))
        found += (*_CPUS, *((*_CACHES, *kept) if question.whole_caches else (*kept, *_CACHES)))
    found += (*_SCARCE, *(() if question.seen is None else _SEEN))
    found += () if question.residents is None else _WHOLE_NODES
    return (*found, *(_SPREAD if spread else _PACK))


def values(question: Question, nodes: int) -> tuple[int, ...]:
    """*nodes* by all criteria, in the order of `criteria_of`."""
    counted, fit = question.counted, None if question.cpu_fit is None else question.cpu_fit(nodes)
    width, distance, remote = question.topology.places.get(nodes) or question.topology.place(nodes)
    crossed = counted.crossed(nodes) if width > 1 else 0
    row = [crossed, width, distance, remote, sum([not hint & nodes for hint in question.hints])]
    if fit is not None:
        lost = (fit.lost,) if question.keeps_caches else ()
        kept = () if question.shares is not None else (fit.opened, *lost)
        caches = (fit.caches, *kept) if question.whole_caches else (*kept, fit.caches)
        row += (fit.broken, fit.split, *caches)
    scarce = question.scarce
    row.append(sum([more for node, more in scarce.items() if node & nodes]))
    if question.seen is not None:
        counted.steps += question.seen.steps
        row.append(question.seen.lost_on(nodes, question.amounts, question.cpus))
    residents = question.residents
    if residents is not None:
        there = [residents.get(node, 0) for node in bits(nodes)]
        row.append(sum([_LASTS // (1 + count) + (0 if count else _BEGUN) for count in there]))
    if question.shares is not None:
        row.append(question.shares.of_set(nodes))
        return tuple(row)
    # In eighths of a node, all nodes taken to be as large as the largest: they differ by what their kernel
    # took at boot, and empty ones are to be filled in the order of their ids.
    capacity, slack = counted.memory.capacity, counted.memory.slack
    capacity_bytes = capacity.get(nodes, 0)  # most sets have one node
    free_bytes = slack[nodes] if capacity_bytes else 0
    if not capacity_bytes:
        for node in bits(nodes):
            capacity_bytes += capacity.get(node, 0)
            free_bytes += max(0, slack.get(node, 0))
    taken = free_bytes * EIGHTHS // capacity_bytes if free_bytes > 0 and capacity_bytes else 0
    row.append(taken * (counted.flows.largest_node_bytes // EIGHTHS))
    return tuple(row)

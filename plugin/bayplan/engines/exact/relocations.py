"""Which containers would have to go to other nodes, with their CPUs and their memory, so that a request fits
that does not: the fewest, and of these the ones with the fewest bytes.

What is free in sum can be in pieces. Then some set of nodes is *short*: asked for more than it has, of
memory, of huge pages or of CPUs. A shortage ends only if somebody leaves the set who lies within it. So the
search takes one, and tries everybody who could leave on all nodes outside of it, until nothing is short or
`MAX_RELOCATIONS` have moved. That misses nothing: while a part of some plan is carried out, each shortage
that is left is ended by one that is still to move.

Invariants: everybody who moves is afterwards on no more nodes than before, no farther apart, no farther from
its devices and on no more without CPUs; what it was promised is promised still, and its CPUs are its own.
Nobody else is touched.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import chain, islice
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.exact.attempts import Attempt
from bayplan.engines.exact.claiming import is_confined
from bayplan.engines.exact.exclusive_cpus import ExclusiveCpus
from bayplan.engines.exact.flow import Loads, bits, crosses
from bayplan.engines.exact.question import StepBudget
from bayplan.engines.exact.resources import ResourceFlows
from bayplan.engines.exact.topology import NodeTopology
from bayplan.model.claims import Amounts
from bayplan.model.decision import (
    Claim,
    Decision,
    Move,
    Outcome,
    Placement,
    Relocation,
    RelocationPlan,
    Request,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.pod_as_a_whole import is_member
from bayplan.sets import CpuSet, NodeSet

MAX_RELOCATIONS: Final = 3
"""How many containers a plan moves at most: people have to read it, and each is disturbed."""
PLAN_STEPS: Final = 20_000
"""Steps of one plan, of what its decision has left; see `bayplan.engines.exact.question`."""
_MOST_TARGETS: Final = 256
"""So many sets of nodes are tried for the request; on up to 8 nodes this is all of them."""

_SHORTAGES_COMPARED: Final = 4
"""To end one of them is enough to go on; which of more is tried first makes little difference."""

_STEPS_OF_A_TRIAL: Final = 2
_STEPS_OF_A_FLOW: Final = 20
_STEPS_OF_A_PLAN: Final = 200
_SETS_A_STEP: Final = 8
_HOLDERS_A_STEP: Final = 8
"""What it costs to try something, as measured."""

Demand = tuple[tuple[str, int, int], ...]
"""Resource, set of nodes, and how much of it is asked for within the set. CPUs of one kind are a resource."""


class OverfullSet(NamedTuple):
    """A set of nodes that is asked for ``excess`` more than it has of a resource."""

    resource: str
    nodes: int
    excess: int


class Movable(Struct, frozen=True):
    """A container that may go elsewhere. ``holds`` is what it has now; ``amounts`` are bytes that go with it,
    ``cpus`` CPUs that do, of the kind ``pool``. ``hints`` are the nodes that its devices are close to. Two
    containers of the same ``kind`` can stand in for each other. ``place`` is its index in the list of all,
    sorted by size."""

    entry: Entry
    home: int
    holds: Demand
    amounts: Amounts
    cpus: int
    pool: str
    hints: tuple[int, ...]
    kind: int
    place: int = 0

    @property
    def size_bytes(self) -> int:
        """The bytes that go with it, of all resources."""
        return sum(self.amounts.values())

    def asks_on(self, nodes: int) -> Demand:
        """What it asks for where it goes to *nodes*."""
        return _demand(nodes, self.amounts, self.pool, self.cpus)


def moves_of(plan: RelocationPlan, ledger: Ledger, newcomer: str) -> tuple[Move, ...]:
    """*plan* as moves out of *ledger* for *newcomer*. What has memory on any node moves its CPUs alone."""
    moves = []
    for relocation in plan.relocations:
        placement = ledger.entries[relocation.container_id].decision.placement
        before, after = relocation.before, relocation.after
        if placement.mems is None:
            before = after = placement.claimed.nodes
        moves.append(
            Move(
                relocation.container_id,
                relocation.name,
                before,
                after,
                relocation.moved_bytes,
                relocates=True,
                cpus=relocation.cpus_after,
                newcomer=newcomer,
            )
        )
    return tuple(moves)


def may_relocate(entry: Entry, ledger: Ledger) -> bool:
    """Whether the container of *entry* may go to other nodes for the sake of others: its place was chosen by
    us and not by a wish, its pages are not bound by a memory policy, and no move of it is under way. A
    container is relocated once only, so that none goes back and forth. Where its pod is aligned as a whole it
    has to be the only container of the pod."""
    placement = entry.decision.placement
    claim = placement.promise
    settled = (
        is_relocatable(entry.decision.request)
        and entry.decision.outcome is not Outcome.ADOPTED
        and placement.original_nodes is None
        and placement.memory_policy is None
        and not placement.beside_cpus
        and placement.claimed_cpus is None
        and not placement.relocated
        and not entry.ended
        and isinstance(claim, Claim)
        and not claim.short_bytes
        and not claim.shares
    )
    if not settled:
        return False
    affinity = placement.affinity
    if affinity is None:
        return True
    return not affinity.whole and sum(1 for _ in ledger.of_pod(entry.decision.request.pod_id)) == 1


def is_relocatable(request: Request) -> bool:
    """Whether the container may go to other nodes by what it asks for."""
    return (
        request.may_move
        and not request.pool
        and not request.opted_out
        and not request.keeps_pages
        and not is_member(request)
        and request.pinned_cpus is None
        and request.pinned_mems is None
        and request.memory_policy is None
        and request.given_policy is None
        and not request.wishes_nodes
    )


class Rooms:
    """What is left of each set of nodes, while containers are tried elsewhere.

    ``slack`` has it by resource, for every node and every set that something is claimed on, as
    `bayplan.engines.exact.flow.Flow` has; below zero the set is short. Where claimed sets cross, another set
    may be short all the same: then a flow finds it.
    """

    __slots__ = ("_capacity", "_claims", "_crossing", "slack", "steps")

    def __init__(self, flows: ResourceFlows, cpus: Mapping[str, Mapping[int, int]]) -> None:
        self._capacity: dict[str, Mapping[int, int]] = {}
        self._claims: dict[str, dict[int, int]] = {}
        self.slack: dict[str, dict[int, int]] = {}
        self._crossing, self.steps = set[str](), 0
        for resource, flow in flows.by_resource.items():
            self._capacity[resource], self._claims[resource] = flow.capacity, dict(flow.claimed)
            self.slack[resource] = dict(flow.slack)
            if flow.crossings:
                self._crossing.add(resource)
        for pool, free in cpus.items():
            self._capacity[pool], self._claims[pool], self.slack[pool] = free, {}, dict(free)

    def change(self, demand: Demand, sign: int) -> None:
        """Add *demand* to what is asked for (*sign* 1), or take it away (-1)."""
        for resource, nodes, amount in demand:
            slack, claims = self.slack[resource], self._claims[resource]
            self.steps += 1 + len(slack) // _SETS_A_STEP
            if nodes not in slack:
                self._watch(resource, nodes)
            difference = sign * amount
            claims[nodes] = claims.get(nodes, 0) + difference
            for watched in slack:
                if not nodes & ~watched:
                    slack[watched] -= difference

    def have_in_sum(self, demand: Demand) -> bool:
        """Whether all nodes together have as much as is asked for."""
        asked = Counter[str]()
        for resource, _, amount in demand:
            asked[resource] += amount
        return all(amount <= self._left(resource) for resource, amount in asked.items())

    def _left(self, resource: str) -> int:
        return sum(self._capacity[resource].values()) - sum(self._claims[resource].values())

    def fits(self, demand: Demand) -> bool:
        """Whether no set would be short by *demand* that can be told without a flow."""
        for resource, nodes, amount in demand:
            slack = self.slack[resource]
            if slack.get(nodes, amount) < amount:
                return False
            for watched, left in slack.items():
                if left < amount and not nodes & ~watched:
                    return False
        return True

    def shortages(self) -> list[OverfullSet]:
        """The sets that are short; at least one of them if any is."""
        found = []
        for resource, slack in self.slack.items():
            found += [OverfullSet(resource, nodes, -left) for nodes, left in slack.items() if left < 0]
        self.steps += len(self.slack)
        if found or not self._crossing:
            return found
        for resource in self._crossing:
            cut = self._cut(resource)
            if cut:
                self._watch(resource, cut)
                return [OverfullSet(resource, cut, -self.slack[resource][cut])]
        return []

    def _watch(self, resource: str, nodes: int) -> None:
        capacity, claims = self._capacity[resource], self._claims[resource]
        if any(crosses(nodes, other) for other in claims if other & (other - 1)):
            self._crossing.add(resource)
        held = sum([capacity.get(node, 0) for node in bits(nodes)])
        within = sum([amount for claimed, amount in claims.items() if not claimed & ~nodes])
        self.slack[resource][nodes] = held - within

    def _cut(self, resource: str) -> int:
        """A set that is short, found by a flow; 0 if there is none."""
        capacity, claims = self._capacity[resource], self._claims[resource]
        # What containers hold of CPUs is no claim here: it is not among the free ones.
        free = {node: self._empty(resource, node) for node in capacity}
        loads = Loads(free, {node: {} for node in capacity}, {})
        self.steps += _STEPS_OF_A_FLOW + len(claims) * _STEPS_OF_A_TRIAL
        for nodes in sorted(claims, key=lambda each: (each.bit_count(), each)):
            if nodes & (nodes - 1) and loads.push(nodes, claims[nodes]) < claims[nodes]:
                return loads.reached(nodes)
        return 0

    def _empty(self, resource: str, node: int) -> int:
        """What *node* has beside what is claimed on it alone."""
        return self._capacity[resource][node] - self._claims[resource].get(node, 0)


class RelocationSearch:
    """A search for plans, for one attempt after the other. *exclusive* has the CPUs of the request; *budget*
    bounds what is tried for all of them. No container with more than *most_bytes* is moved (None: no limit);
    ``too_large`` says that one was passed over for that."""

    def __init__(
        self,
        topology: NodeTopology,
        flows: ResourceFlows,
        request: Request,
        exclusive: ExclusiveCpus,
        budget: StepBudget,
        most_bytes: int | None = None,
    ) -> None:
        self._most_bytes = most_bytes
        self.too_large = False
        self._topology, self._flows, self._ledger = topology, flows, flows.ledger
        self._request, self._exclusive, self._budget = request, exclusive, budget
        self._free: dict[str, Mapping[int, int]] = {}
        self._targets_of: dict[tuple[int, tuple[int, ...], bool], tuple[tuple[int, ...], bool]] = {}
        self._kinds: dict[tuple[Demand, tuple[int, ...]], int] = {}
        # Where there are too many sets of nodes to try each, no plan is proven to be the best.
        self._incomplete = False
        found = sorted(self._found_movables(), key=_by_size)
        self._movables = [replace(movable, place=place) for place, movable in enumerate(found)]
        self._holders: dict[str, list[tuple[int, int, int]]] = {}
        for movable in self._movables:
            for resource, nodes, amount in movable.holds:
                self._holders.setdefault(resource, []).append((movable.place, nodes, amount))
        self._chosen: list[tuple[Movable, int]] = []
        self._best: tuple[int, RelocationPlan] | None = None

    def plan(self, attempt: Attempt) -> RelocationPlan | None:
        """The plan after which *attempt* would have a set of nodes; None if there is none, or none was found
        until the budget ended."""
        if self._is_in_vain():
            return None
        asked = self._asked(attempt)
        self._rooms = Rooms(self._flows, self._free)
        # Moves leave the sum of what is free as it is.
        asked = {nodes: demand for nodes, demand in asked.items() if self._rooms.have_in_sum(demand)}
        for count in range(1, MAX_RELOCATIONS + 1):
            for nodes, demand in asked.items():
                self._rooms.change(demand, 1)
                self._search(nodes, count, 0)
                self._rooms.change(demand, -1)
                if self._budget.ended:
                    break
            if self._best is not None or self._budget.ended:
                break
        if self._best is None:
            return None
        return replace(self._best[1], proven=not (self._budget.ended or self._incomplete))

    def _is_in_vain(self) -> bool:
        """Whether nothing may move, the budget has ended, or more is promised than there is."""
        unmet = any(flow.unmet for flow in self._flows.by_resource.values())
        return not self._movables or self._budget.ended or unmet

    def _asked(self, attempt: Attempt) -> dict[int, Demand]:
        """What *attempt* asks for on each of the sets that it may end on."""
        question, area = attempt.question, attempt.area
        pool = self._pool_of(self._request, CpuSet.of_mask(self._exclusive.free)) if question.cpus else ""
        unasked = replace(attempt, question=replace(question, cpus=0))
        targets = list(islice(unasked.targets(), _MOST_TARGETS + 1))
        width = min(area.widest, area.allowed.bit_count())
        self._incomplete = len(targets) > _MOST_TARGETS or self._topology.too_many(area.allowed, width)
        asked = {}
        for nodes in targets[:_MOST_TARGETS]:
            parts = [_demand(mask, amounts, "", 0) for mask, amounts in question.parts(nodes)]
            asked[nodes] = (*chain.from_iterable(parts), *_demand(nodes, {}, pool, question.cpus))
        return asked

    def _search(self, nodes: int, left: int, moved_bytes: int) -> None:
        """Try all plans with up to *left* more moves, while the request is on *nodes* and *moved_bytes* have
        been moved."""
        short = self._rooms.shortages()
        if not self._budget.take(self._spent()):
            return
        if not short:
            if self._chosen:
                self._take(nodes, moved_bytes)
            return
        found = self._helpers(short, left)
        if found is None:
            return
        shortage, helpers = found
        tried = set[int]()
        for movable in helpers:
            if movable.kind not in tried and not self._budget.ended:
                tried.add(movable.kind)
                self._rooms.change(movable.holds, -1)
                if left > 1 or not self._rooms.shortages():
                    self._try_elsewhere(movable, shortage, nodes, left, moved_bytes)
                self._rooms.change(movable.holds, 1)

    def _try_elsewhere(
        self, movable: Movable, shortage: OverfullSet, nodes: int, left: int, moved_bytes: int
    ) -> None:
        """Try *movable*, which is taken from where it is, on all nodes that end the *shortage*."""
        for target in self._targets(movable):
            more_bytes = self._moved_bytes(movable, target)
            if self._most_bytes is not None and more_bytes > self._most_bytes:
                self.too_large = True
                continue
            total_bytes = moved_bytes + more_bytes
            if not target & ~shortage.nodes or (self._best is not None and total_bytes >= self._best[0]):
                continue
            if not self._budget.take(_STEPS_OF_A_TRIAL + self._spent()):
                return
            demand = movable.asks_on(target)
            if left > 1 or self._rooms.fits(demand):
                self._chosen.append((movable, target))
                self._rooms.change(demand, 1)
                self._search(nodes, left - 1, total_bytes)
                self._rooms.change(demand, -1)
                self._chosen.pop()

    def _helpers(self, short: Iterable[OverfullSet], left: int) -> tuple[OverfullSet, list[Movable]] | None:
        """The shortage that the fewest containers can end, with these containers; None if some shortage
        cannot be ended by *left* of them."""
        best = None
        for shortage in sorted(short, key=lambda one: (one.nodes.bit_count(), one))[:_SHORTAGES_COMPARED]:
            have = self._within(shortage)
            largest = nlargest(left, have.values())
            if sum(largest) < shortage.excess:
                return None
            # The others together have no more than the largest.
            least = shortage.excess - sum(largest[: left - 1])
            able = [place for place, amount in have.items() if amount >= least]
            if best is None or len(able) < len(best[1]):
                best = shortage, able
        if best is None:
            return None
        return best[0], [self._movables[place] for place in sorted(best[1])]

    def _within(self, shortage: OverfullSet) -> dict[int, int]:
        """How much of what is short the containers that have not moved hold within the set, by their
        ``place``."""
        holders, outside, have = self._holders.get(shortage.resource, ()), ~shortage.nodes, dict[int, int]()
        self._rooms.steps += 1 + len(holders) // _HOLDERS_A_STEP
        for place, nodes, amount in holders:
            if not nodes & outside:
                have[place] = have.get(place, 0) + amount
        for movable, _ in self._chosen:
            have.pop(movable.place, None)
        return have

    def _spent(self) -> int:
        """What the rooms have cost since the last time."""
        steps, self._rooms.steps = self._rooms.steps, 0
        return steps

    def _take(self, nodes: int, moved_bytes: int) -> None:
        """Remember the moves made so far as the best plan, if they are better than all before and the CPUs
        can be had as they were counted."""
        if self._best is not None and moved_bytes >= self._best[0]:
            return
        self._budget.take(_STEPS_OF_A_PLAN)
        relocations = self._with_cpus(nodes)
        if relocations is not None:
            self._best = moved_bytes, RelocationPlan(NodeSet.of_mask(nodes), relocations)

    def _with_cpus(self, nodes: int) -> tuple[Relocation, ...] | None:
        """The moves with the CPUs that each container gets, while the request has its own CPUs on *nodes*;
        None if some cannot be had."""
        basis = self._flows.basis
        ledger = self._ledger
        for movable, _ in self._chosen:
            ledger = ledger.without(movable.entry.container_id)
        coming = [(target, movable) for movable, target in self._chosen]
        cpus_by_id: dict[str, CpuSet] = {}
        asking: list[tuple[int, Movable | None]] = [*coming, (nodes, None)]
        for target, mover in sorted(asking, key=lambda each: each[0].bit_count()):
            request = self._request if mover is None else mover.entry.decision.request
            count = self._exclusive.count if mover is None else mover.cpus
            if not count:
                continue
            exclusive = ExclusiveCpus(self._topology, basis.with_ledger(ledger), request, None)
            mems = NodeSet.of_mask(target)
            taken = exclusive.take(mems)
            away = exclusive.away_from(mems, taken.cpus)
            if taken.lacking is not None or len(taken.cpus) != count or away:
                return None
            cpus_by_id[request.container_id] = taken.cpus
            placement = Placement(mems, taken.cpus, claim=Claim(mems))
            ledger = ledger.with_entry(Entry(Decision(request, Outcome.PLACED, placement)))
        return tuple(
            Relocation(
                movable.entry.container_id,
                movable.entry.decision.request.name,
                NodeSet.of_mask(movable.home),
                NodeSet.of_mask(target),
                movable.entry.decision.placement.exclusive_cpus,
                cpus_by_id.get(movable.entry.container_id, CpuSet()),
                self._moved_bytes(movable, target),
            )
            for movable, target in sorted(self._chosen, key=lambda one: one[0].entry.container_id)
        )

    def _found_movables(self) -> Iterator[Movable]:
        for entry in self._ledger.entries.values():
            request, placement = entry.decision.request, entry.decision.placement
            own = placement.exclusive_cpus
            confined = is_confined(request) and placement.mems is not None
            if not (confined or own) or not may_relocate(entry, self._ledger):
                continue
            yield from self._movable(entry, own, confined=confined)

    def _movable(self, entry: Entry, own: CpuSet, *, confined: bool) -> Iterator[Movable]:
        """*entry* as one that may go elsewhere: with its memory if that is *confined*, else its *own* CPUs
        alone."""
        promise, pool = entry.decision.placement.promise, ""
        amounts = promise.amounts_bytes if confined else {}
        home = promise.nodes.mask if amounts else self._topology.nodes_near(own).mask
        holds = [(resource, home, amount) for resource, amount in amounts.items()]
        if own:
            if not own <= self._topology.machine.online_cpus:
                return
            pool = self._pool_of(entry.decision.request, own)
            there = self._topology.counted(own.mask)
            holds += [(pool, node, count) for node, count in there.items() if count]
        hints = tuple(hint.nodes.mask for hint in entry.decision.request.hints)
        kind = self._kinds.setdefault((tuple(holds), hints), len(self._kinds))
        yield Movable(entry, home, tuple(holds), amounts, len(own), pool, hints, kind)

    def _targets(self, movable: Movable) -> tuple[int, ...]:
        """Where *movable* would be as well off: on as many nodes or fewer, which are no farther apart and no
        farther from its devices, with as few that are reached from CPUs elsewhere; on the same ones where it
        is the CPUs that can lie otherwise."""
        home, hints, key = movable.home, movable.hints, (movable.home, movable.hints, bool(movable.cpus))
        if key not in self._targets_of:
            topology, width = self._topology, home.bit_count()
            allowed, far = topology.machine.ordinary_nodes.mask, _far(home, hints)
            farthest, sets, incomplete = topology.distance(home), list[int](), False
            for count in range(1, width + 1):
                incomplete |= topology.too_many(allowed, count)
                ranked = topology.ranked(allowed, count, {})
                sets += ranked[: bisect_right(ranked, farthest, key=topology.distance)]
            if hints:
                sets = [nodes for nodes in sets if _far(nodes, hints) <= far]
            remote = topology.remote_initiators(home)
            sets = [nodes for nodes in sets if topology.remote_initiators(nodes) <= remote]
            if home in sets and not (movable.cpus and width > 1):
                sets.remove(home)
            self._rooms.steps += len(sets) // _SETS_A_STEP
            self._targets_of[key] = tuple(sets), incomplete
        targets, incomplete = self._targets_of[key]
        self._incomplete |= incomplete
        return targets

    def _moved_bytes(self, movable: Movable, nodes: int) -> int:
        """How much of it cannot stay where it lies, at most, on *nodes*."""
        left = movable.home & ~nodes
        if left == movable.home:
            return movable.size_bytes
        capacity = self._flows.capacity
        return sum(
            [
                min(amount, sum([capacity.get(resource, {}).get(node, 0) for node in bits(left)]))
                for resource, amount in movable.amounts.items()
            ]
        )

    def _pool_of(self, request: Request, cpus: CpuSet) -> str:
        """The resource that the CPUs of *request* are, of which it has or may have *cpus*; what is free of it
        is noted."""
        machine, policy, isolated = self._topology.machine, self._flows.policy, request.wishes_isolated_cpus
        kind = next((name for name, some in machine.cpus_by_kind.items() if cpus <= some), "")
        pool = f"cpus {kind}{' isolated' if isolated else ''}"
        if pool not in self._free:
            free = self._flows.basis.exclusive_candidates(isolated=isolated)
            mask = (free & machine.cpus_by_kind.get(kind, free)).mask
            if policy.cpu_alignment.full_pcpus_only:
                mask = self._topology.cpu_layout.whole_cores(mask)
            self._free[pool] = self._topology.counted(mask)
        return pool


def _demand(nodes: int, amounts: Amounts, pool: str, cpus: int) -> Demand:
    asked = [(resource, nodes, amount) for resource, amount in amounts.items()]
    if cpus:
        asked.append((pool, nodes, cpus))
    return tuple(asked)


def _far(nodes: int, hints: Sequence[int]) -> int:
    """How many devices are close to none of *nodes*."""
    return sum([not hint & nodes for hint in hints])


def _by_size(movable: Movable) -> tuple[int, str]:
    return movable.size_bytes, movable.entry.container_id

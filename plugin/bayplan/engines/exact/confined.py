"""A set of nodes for one container: wishes first, then the best ordinary set, then moves, then the second
best.

What is tried, in this order: the nodes it has already, if it runs; those of its pod, under the scope pod;
those it wishes; the ordinary ones. Where the policy is strict or the wish is required, other containers
become wider for it; if that does not help it is refused. Otherwise it is placed as well as possible, and the
decision says why.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple

from msgspec.structs import replace

from bayplan.engines.device_hints import device_shares
from bayplan.engines.exact.attempts import (
    MAX_TARGETS,
    Attempt,
    amounts_text,
    area_of,
    chosen,
    not_granted,
    overlap,
    refused,
    unproven_best,
)
from bayplan.engines.exact.claiming import (
    STRICT,
    Asking,
    CandidateNodes,
    is_bounded,
    nodes_of_pod,
    wished_nodes,
    without,
)
from bayplan.engines.exact.exclusive_cpus import ExclusiveCpus, Taken
from bayplan.engines.exact.flow import bits, crosses
from bayplan.engines.exact.moves import RoomSearch, measured, movers_of, moves_to, with_all_widened
from bayplan.engines.exact.question import (
    LOST_REQUESTS,
    SHARE_OF_MOVES,
    CountedFlows,
    Question,
    SeenRooms,
    Shares,
    StepBudget,
)
from bayplan.engines.exact.relocations import PLAN_STEPS, RelocationSearch, moves_of
from bayplan.engines.exact.resources import ResourceFlows, overcommitted, parts_of, shortage
from bayplan.engines.exact.search import Found, search
from bayplan.engines.exact.topology import DEVICES, NodeTopology
from bayplan.engines.exact.unconfined import place_in_part, place_unconfined
from bayplan.engines.exact.witness import share
from bayplan.engines.interface import AS_WISHED, WISH_NOT_GRANTED
from bayplan.model.basis import Basis
from bayplan.model.claims import Amounts, hugepages_of
from bayplan.model.decision import (
    MOVES_WAIT,
    STATIC,
    Affinity,
    Claim,
    Decision,
    MemoryPolicyMode,
    MemoryPolicySetting,
    Outcome,
    Placement,
    Reason,
    RelocationPlan,
)
from bayplan.model.ledger import Entry
from bayplan.model.machine import MEMORY
from bayplan.model.memory_kinds import device_nodes, open_mems
from bayplan.model.policy import Defragment, KeepWhole, PlacementStrategy, TopologyPolicy, TopologyScope
from bayplan.model.sentences import keeps_room, relocated, relocation_plan, too_large_to_move, verb_after
from bayplan.quantity import MILLI_PER_CPU, counted
from bayplan.sets import CpuSet, NodeSet, cpus_text, nodes_text

KEEPS_ROOM: Final = "keeps-room"
"""Code of the reason that a set was taken because requests like those of late fit beside it."""
PLAN_ENDED: Final = "plan-ended"
"""Code of the reason that no plan of moves was found before the search for one was given up."""


class AskedRoom(NamedTuple):
    """What a set of nodes is to have: bytes by resource, and a number of CPUs."""

    amounts: Amounts
    cpus: int


class Missed(NamedTuple):
    """An attempt that found no room, and the reasons that there were before it was made."""

    attempt: Attempt
    notes: tuple[Reason, ...]


class Confinement:
    """One decision about one container."""

    def __init__(
        self,
        topology: NodeTopology,
        flows: ResourceFlows,
        asking: Asking,
        scope: TopologyScope,
        current: Placement | None,
        max_steps: int,
        near_pool: NodeSet = NodeSet(),
    ) -> None:
        self.topology, self.flows, self.ledger = topology, flows, flows.ledger
        self.machine, self.policy, request = flows.machine, flows.policy, asking.request
        self.asking, self.request, self.amounts, self.current = asking, request, asking.amounts, current
        self.near_pool = near_pool & flows.machine.ordinary_nodes if near_pool.mask else near_pool
        self.even = hugepages_of(self.amounts) if request.even_hugepages is not None else {}
        # Where somebody else chose the CPUs, memory goes where it is wished, and is not confined otherwise.
        self.bounded = asking.bounded and request.pinned_cpus is None
        self.strict = self.policy.topology in STRICT
        self.aligned = self.policy.topology is not TopologyPolicy.NONE
        # Where the most is taken; else the container goes where the least is.
        self.packed = (request.strategy or self.policy.strategy) is PlacementStrategy.PACK
        self.exclusive = ExclusiveCpus(topology, flows.basis, request, current)
        # How many CPUs the set must have.
        self.cpus = self.exclusive.count
        self.own = AskedRoom(self.amounts, self.cpus)
        self.by_pod = scope is TopologyScope.POD and self.aligned
        self.most_for_moves = int(max_steps * SHARE_OF_MOVES)
        self.budget = StepBudget(max_steps - self.most_for_moves)
        self.counted = CountedFlows(flows)
        self.notes: list[Reason] = []
        # The attempts that found no room, in their order.
        self._missed: list[Missed] = []

    @cached_property
    def for_moves(self) -> StepBudget:
        """The steps that are kept for finding moves of other containers."""
        return StepBudget(self.most_for_moves)

    def decide(self) -> Decision:
        """The decision, with what would have to move where it is not as asked."""
        decision = self._decided()
        if not self._missed or decision.outcome is Outcome.PLACED or decision.moves:
            return decision
        return self._with_plan(decision)

    def with_plan_on(self, decision: Decision, nodes: NodeSet) -> Decision:
        """*decision* to leave the container on *nodes*, which somebody else chose, with the moves of others
        after which all of it can be promised there."""
        candidates = CandidateNodes(nodes, exactly=True, required=True, of_pod=True)
        self._miss(self._attempt(candidates, AskedRoom(self.amounts, 0)))
        return self._with_plan(decision)

    def _decided(self) -> Decision:
        kept, request = None if self.current is None else self._kept(), self.request
        if kept is not None:
            return kept
        wishes = request.nodes is not None or request.tier is not None
        wished = wished_nodes(self.machine, request) if wishes else None
        if not self.asking.confined:
            return self._with_cpus_only(place_unconfined(self.flows, self.asking))
        passed_over: list[Attempt] = []
        for candidates in self._options(wished):
            attempt, decision = self._on(candidates)
            if decision is None:
                self._miss(attempt)
            if decision is None and candidates.required:
                decision = (
                    self._with_moves(attempt)
                    or self._with_moves_elsewhere([*passed_over, *self._attempts_where_it_is()])
                    or self._kept(cpus_elsewhere=True)
                    or self._refused(attempt)
                )
            if decision is not None:
                return decision
            if candidates.why:
                self.notes.append(not_granted(attempt))
            passed_over.append(attempt)
        if self.bounded and self.aligned:
            return self._second_best()
        return self._with_cpus_only(place_unconfined(self.flows, self.asking))

    def _options(self, wished: CandidateNodes | None) -> list[CandidateNodes]:
        """The nodes that are tried one after the other: those of its pod, those that it wishes, those where
        the CPUs of its named pool are, and all ordinary ones."""
        of_pod = (
            nodes_of_pod(self.ledger, self.request, required=self.strict and self.bounded)
            if self.by_pod
            else None
        )
        options = [candidates for candidates in (of_pod, wished) if candidates is not None]
        if self.near_pool.mask and self.bounded:
            why = f"prefers {nodes_text(self.near_pool)}, where the CPUs of its pool are"
            options.append(CandidateNodes(self.near_pool, required=self.strict, why=why))
        anywhere = (self.bounded and (self.aligned or self.cpus > 0)) or bool(self.even)
        if anywhere and not any(candidates.required for candidates in options):
            required = self.strict or bool(self.even)
            options.append(CandidateNodes(self.machine.ordinary_nodes, required=required))
        return options

    def _on(self, candidates: CandidateNodes) -> tuple[Attempt, Decision | None]:
        """The last attempt on *candidates*, and the decision if there is one: for the whole pod, else for the
        container, where nothing is refused."""
        for asked in self._asked_together(candidates):
            attempt = self._attempt(candidates, asked)
            decision = self._best_set(attempt)
            if decision is not None:
                return attempt, decision
        if attempt.of_whole_pod and not self.strict:
            self._miss(attempt)
            self.notes.append(Reason("pod-apart", "no set has room for the whole pod"))
            attempt = self._attempt(candidates, self.own)
            decision = self._best_set(attempt)
        if decision is None and (candidates.required or self.even) and self.cpus and not self.aligned:
            # The policy none refuses nothing for CPUs: they are elsewhere, and the decision says so.
            decision = self._with_moves(attempt)
            if decision is None:
                self._miss(attempt)
                where, has = nodes_text(candidates.nodes), verb_after(candidates.nodes, "has")
                lacking = f"{where} {has} not {amounts_text({}, self.cpus)} free"
                are = "CPU is" if self.cpus == 1 else "CPUs are"
                self.notes.append(Reason("apart", f"its {are} elsewhere: {lacking}"))
                attempt = self._attempt(candidates, AskedRoom(self.amounts, 0))
                decision = self._best_set(attempt)
        return attempt, decision

    def _kept(self, *, cpus_elsewhere: bool = False) -> Decision | None:
        """The decision to leave a running container on its nodes; None if it cannot stay. It stays if what it
        asks for now fits there. It also stays if it asks for no more than it was promised: its nodes may have
        lost memory since, or it was found on nodes that hold less than is claimed there; then a reason says
        that it does not fit.

        Its CPUs must be on these nodes too. With *cpus_elsewhere* they are not, and are kept if the container
        asks for no more of anything: that is never refused.
        """
        current = self.current
        if current is None:
            return None
        had = current.claimed
        nodes, evenly = had.nodes, had.even_hugepages
        no_more = not without(self.amounts, had.amounts_bytes) and nodes <= self.machine.memory_nodes
        claim = self._claim_on(nodes, evenly=evenly)
        cut = self.flows.cut(parts_of(claim))
        if not no_more and (cpus_elsewhere or cut is not None):
            return None
        taken = self._kept_cpus(nodes, elsewhere=cpus_elsewhere)
        if taken is None:
            return None
        cpus, lacking, remarks = taken
        short = None if cut is None else shortage(self.flows, cut)
        if short is None:
            notes = [Reason("kept", f"fits where it is, on {nodes_text(nodes)}")]
        else:
            text = f"stays where it is, on {nodes_text(nodes)}, as it asks for no more than before"
            notes = [Reason("kept", text), overcommitted(short)]
        if cpus_elsewhere:
            are = f"{cpus_text(cpus)} {verb_after(cpus, 'is')}"
            text = f"its {are} not on {nodes_text(nodes)}, and no others are free there"
            notes.append(Reason("apart", text))
        if lacking is not None:
            notes.append(lacking)
        wished = wished_nodes(self.machine, self.request)
        if wished is not None and not nodes <= wished.nodes:
            notes.append(Reason(WISH_NOT_GRANTED, wished.why))
        if self.even and not evenly:
            notes.append(Reason(WISH_NOT_GRANTED, "its huge pages are not promised evenly"))
        placement = self._with_witness(replace(current, claim=claim, exclusive_cpus=cpus), self.flows.basis)
        outcome = Outcome.PLACED if len(notes) == 1 else Outcome.DEGRADED
        return Decision(self.request, outcome, placement, (*notes, *remarks), shortage=short)

    def _kept_cpus(self, nodes: NodeSet, *, elsewhere: bool) -> Taken | None:
        """The CPUs with which a running container stays on *nodes*, and the reason if these are the shared
        ones; None if it cannot stay. With *elsewhere* its CPUs are on other nodes, and it gets no more than
        it has."""
        taken = self.exclusive.take(nodes if self.cpus else NodeSet())
        cpus = taken.cpus
        if taken.lacking is not None and self.strict:
            return None
        if cpus != self.exclusive.own and not self.asking.confined:
            return None
        away = bool(self.cpus and self.exclusive.away_from(nodes, cpus))
        more = len(cpus) > len(self.exclusive.own)
        return None if away != elsewhere or (elsewhere and more) else taken

    def _asked_together(self, candidates: CandidateNodes) -> list[AskedRoom]:
        """What a set of nodes must have room for, the largest first: under the scope pod, and for the first
        container of the pod, all that the pod asks for.

        The sums of a pod do not say how many of its CPUs are exclusive. So a set with enough CPUs for all of
        the pod is tried first, then one with enough for this container.
        """
        totals = self.request.pod_totals
        if not self.by_pod or totals is None or candidates.of_pod:
            return [self.own]
        amounts = {
            resource: max(amount, self.amounts.get(resource, 0))
            for resource, amount in {**self.amounts, **totals.amounts_bytes}.items()
        }
        if totals.exclusive_cpus is not None:
            return [AskedRoom(amounts, max(self.cpus, totals.exclusive_cpus))]
        rest = max(0, totals.cpu_milli - self.request.cpu_milli) // MILLI_PER_CPU
        return [AskedRoom(amounts, self.cpus + rest), *([AskedRoom(amounts, self.cpus)] if rest else [])]

    def _attempt(self, candidates: CandidateNodes, asked: AskedRoom) -> Attempt:
        amounts, cpus = asked.amounts, asked.cpus
        if self.budget.spent:
            self.budget = self.budget.rest()
        every_hint = tuple(hint.nodes.mask for hint in self.request.hints)
        required = tuple(hint.nodes.mask for hint in self.request.hints if hint.required)
        question = Question(
            self.topology,
            amounts,
            {resource: self.flows.rooms_by_node(resource) for resource in amounts},
            cpus,
            self.exclusive.free_by_node() if cpus else {},
            every_hint,
            every_hint if self.strict else required,
            self.counted,
            self.budget,
            None if self.packed else Shares.of(self.topology, self.flows, amounts),
            self.even,
            self.topology.scarce({*self.request.hugepages_bytes, *([DEVICES] if every_hint else [])}),
            self.exclusive.fit(cpus),
            self.exclusive.free_on if self.policy.cpu_alignment.align_by_socket else None,
            self.exclusive.assignable_by_node,
            0 if self.even else self.counted.steps_on_one(amounts),
            self._residents if self.packed and self.policy.keep_whole is KeepWhole.NODE else None,
            self.exclusive.keeps_caches,
            self.topology.cpu_layout.in_whole_caches(cpus),
            self._seen_rooms if self.packed and self.flows.basis.seen else None,
        )
        area = area_of(question, candidates, self.request.even_hugepages)
        more = cpus > self.cpus or (amounts is not self.amounts and bool(without(amounts, self.amounts)))
        return Attempt(candidates, area, question, of_whole_pod=more)

    @cached_property
    def _seen_rooms(self) -> SeenRooms | None:
        """Where requests like those of late would fit now."""
        return SeenRooms.of(self.topology, self.flows)

    @cached_property
    def _residents(self) -> Mapping[int, int]:
        """How many containers are confined to sets with each node."""
        found = Counter[int]()
        for entry in self.ledger.entries.values():
            if is_bounded(entry.decision.request):
                found.update(bits(entry.decision.placement.promise.nodes.mask))
        return found

    def _best_set(self, attempt: Attempt) -> Decision | None:
        """The decision for the best set of *attempt*; for a running container the best of those that keep
        most of its place. None if no set fits."""
        if not attempt.area.allowed:
            return None
        for core in [0] if self.current is None else self._cores(self.current):
            if not core & ~attempt.area.allowed:
                found = search(attempt.question, replace(attempt.area, core=core))
                if found is not None:
                    return self._placed(attempt, found)
        return None

    def _cores(self, current: Placement) -> list[int]:
        """The nodes that a set should contain, as masks, the most wished for first: all nodes of a running
        container, then those of its CPUs, so that these need not change."""
        nodes = current.claimed.nodes
        with_cpus = self.topology.nodes_near(self.exclusive.own) if self.cpus else NodeSet()
        return list(dict.fromkeys([nodes.mask, (nodes & with_cpus).mask, 0]))

    def _placed(self, attempt: Attempt, winner: Found) -> Decision:
        nodes = NodeSet.of_mask(winner.nodes)
        cpus, lacking, remarks = self.exclusive.take(nodes if self.cpus else NodeSet())
        own = self._placement(nodes, cpus, bool(winner.overlapping))
        placement = self._with_witness(own, self.flows.basis)
        notes = [*self.notes, chosen(nodes.mask)]
        if attempt.candidates.why:
            notes.append(Reason(AS_WISHED, attempt.candidates.why))
        if winner.overlapping:
            notes.append(overlap(nodes, winner.overlapping))
        if winner.advantage is not None and winner.advantage.criterion == LOST_REQUESTS:
            notes.append(Reason(KEEPS_ROOM, keeps_room(winner.advantage, self.flows.basis.seen)))
        if attempt.question.budget.ended:
            notes.append(unproven_best(attempt.question.budget))
        notes += remarks
        if lacking is not None:
            notes.append(lacking)
        degraded = lacking is not None or bool(self.notes)
        return Decision(
            self.request,
            Outcome.DEGRADED if degraded else Outcome.PLACED,
            placement,
            tuple(notes),
            candidates=winner.candidates,
            advantage=winner.advantage,
        )

    def _placement(self, nodes: NodeSet, cpus: CpuSet, overlapping: bool) -> Placement:
        mems = nodes | device_nodes(self.machine, self.request) if self.request.hints else nodes
        return Placement(
            mems=mems,
            exclusive_cpus=cpus,
            affinity=Affinity(nodes, preferred=True) if self.by_pod else None,
            claim=self._claim_on(nodes, evenly=bool(self.even)),
            booked_bytes=_on_one(nodes, self.amounts),
            overlapping=overlapping,
        )

    def _claim_on(self, nodes: NodeSet, *, evenly: bool) -> Claim:
        """What is claimed on *nodes*: by the devices of a container that stays there, if there is room for it
        on each of them; else on all of them as a whole."""
        flexible = self.asking.flexible
        claim = Claim(nodes, self.amounts, flexible, even_hugepages=evenly)
        if evenly or flexible or not nodes.mask & (nodes.mask - 1):
            return claim
        shares = device_shares(self.request.hints, nodes)
        if len(shares) < len(nodes):
            return claim
        divided = replace(claim, shares=shares)
        return divided if self.flows.fits(parts_of(divided)) else claim

    def _with_witness(self, placement: Placement, beside: Basis) -> Placement:
        """*placement* with what it has on each node *beside* others, and the main node as memory policy where
        its set crosses others: the kernel fills nodes by first touch, and should not start on another
        container's part."""
        if placement.mems is None:
            return placement
        # As in `ExactEngine.decide`.
        claim = placement.claim or placement.claimed
        if not claim.nodes.mask & (claim.nodes.mask - 1):
            booked = _on_one(claim.nodes, claim.amounts_bytes)
            return placement if placement.booked_bytes == booked else replace(placement, booked_bytes=booked)
        after = beside.ledger.with_entry(Entry(Decision(self.request, Outcome.PLACED, placement)))
        spread = share(beside.with_ledger(after), self.request.container_id)
        setting = None
        if placement.overlapping and spread:
            main = min(spread, key=lambda node: (-spread[node].get(MEMORY, 0), node))
            setting = MemoryPolicySetting(MemoryPolicyMode.PREFERRED, NodeSet([main]), STATIC)
        return replace(placement, booked_bytes=spread, memory_policy=setting)

    def _with_moves(self, attempt: Attempt) -> Decision | None:
        """The set that takes the fewest moves of others, if there is one."""
        question, budget = attempt.question, self.for_moves
        movers = movers_of(self.flows)
        if not movers:
            return None
        room = RoomSearch(self.topology, self.flows, movers, budget)
        best = None
        relaxed = with_all_widened(self.flows, movers)
        for nodes in islice(attempt.reachable(relaxed, budget), MAX_TARGETS):
            sets = room.make(nodes, question.amounts, question.parts(nodes))
            if sets and (best is None or len(sets) < len(best[1])):
                best = nodes, sets
            if budget.exhausted:
                budget.ended = True
                break
        question.budget.ended |= budget.ended
        if best is None:
            return None
        nodes, sets = best
        planned = moves_to(self.ledger, sets)
        moved = self.flows.basis.with_ledger(self.ledger.moved(planned))
        claimed = {other.mask for other in moved.ledger.claimed_bytes}
        found = Found(nodes, sum(crosses(nodes, other) for other in claimed), (), None)
        decision = self._placed(attempt, found)
        placement = self._with_witness(decision.placement, moved)
        after = moved.ledger.with_entry(Entry(replace(decision, placement=placement)))
        moves = measured(planned, moved.with_ledger(after))
        names = ", ".join(f"{move.name} to {nodes_text(move.after)}" for move in moves)
        reason = Reason("moved-others", f"fits because others get more nodes: {names}")
        return replace(decision, placement=placement, moves=moves, reasons=(*decision.reasons, reason))

    def _attempts_where_it_is(self) -> list[Attempt]:
        """A running container on the nodes that it has, however many a new one would be allowed."""
        if self.current is None:
            return []
        candidates = CandidateNodes(self.current.claimed.nodes, exactly=True, of_pod=True)
        return [self._attempt(candidates, self.own)]

    def _with_moves_elsewhere(self, passed_over: Iterable[Attempt]) -> Decision | None:
        """The decision to place the container on nodes that were only preferred, or where it runs already, if
        other containers become wider for it; None if that is not possible. It comes before a refusal."""
        notes, self.notes = self.notes, []
        for attempt in passed_over:
            decision = self._with_moves(
                replace(attempt, question=replace(attempt.question, budget=self.budget))
            )
            if decision is not None:
                return decision
        self.notes = notes
        return None

    def _second_best(self) -> Decision:
        """A place for what fits nowhere as asked, under a policy that refuses nothing: CPUs elsewhere,
        devices elsewhere, or as much memory as there is."""
        asked = amounts_text(self.amounts, self.cpus)
        devices = " and its devices" if self.request.hints else ""
        note = Reason("apart", f"no set of nodes has {asked}{devices}; memory alone fits")
        ordinary = CandidateNodes(self.machine.ordinary_nodes)
        attempt = self._attempt(ordinary, AskedRoom(self.amounts, 0))
        relaxed = replace(attempt, question=replace(attempt.question, required_hints=()))
        self.notes.append(note)
        decision = self._best_set(relaxed)
        if decision is not None:
            return decision
        self.notes.remove(note)
        cpus, lacking, remarks = self.exclusive.take(NodeSet())
        nodes = self.machine.ordinary_nodes
        placement = replace(
            self._placement(nodes, cpus, overlapping=False), mems=open_mems(self.machine, self.request)
        )
        decision = place_in_part(self.flows, self.request, placement)
        notes = (*self.notes, *remarks, *([lacking] if lacking is not None else []))
        if self.cpus and self.exclusive.away_from(nodes, cpus):
            notes = (*notes, note)
        return replace(decision, reasons=(*decision.reasons, *notes))

    def _refused(self, attempt: Attempt) -> Decision:
        return refused(attempt, self.request, self.current, self.exclusive.obstacle)

    def _miss(self, attempt: Attempt) -> None:
        self._missed.append(Missed(attempt, tuple(self.notes)))

    def _with_plan(self, decision: Decision) -> Decision:
        """*decision* with the moves of other containers after which a missed attempt would fit: the first one
        that moves can help."""
        missed = [one for one in self._missed if self._may_be_helped(one.attempt)]
        if self.policy.defragment is Defragment.OFF or not missed:
            return decision
        left = self.budget.rest().most + self.for_moves.rest().most
        budget = StepBudget(min(PLAN_STEPS, left))
        refused = decision.outcome is Outcome.REFUSED
        carried_out = self.policy.defragment is Defragment.MOVE and refused and self.current is None
        search = self._moves_within(budget, self.policy.return_most_bytes if carried_out else None)
        helped = _first_helped(missed, search)
        if helped is not None and carried_out:
            return self._after_relocations(*helped)
        if helped is None and search.too_large:
            # A container with more than may be moved at once is not moved here; an operator may see to it.
            budget = budget.rest()
            helped = _first_helped(missed, self._moves_within(budget, None))
        plan = None if helped is None else helped[1]
        if plan is not None:
            text = relocation_plan(plan, self.policy.page_move_rate_bytes, decision.outcome)
            reasons = [Reason("fits-after-moves", text)]
            if search.too_large:
                text = too_large_to_move(plan, self.policy.return_most_bytes)
                reasons.append(Reason(MOVES_WAIT, text))
        elif budget.ended:
            after = counted(budget.spent, "step")
            reasons = [Reason(PLAN_ENDED, f"the search for moves that make room ended after {after}")]
        else:
            return decision
        return replace(decision, reasons=(*decision.reasons, *reasons), plan=plan)

    def _may_be_helped(self, attempt: Attempt) -> bool:
        """Whether moves of others may help *attempt*: it has nodes, and CPUs if it asks for any."""
        out_of_cpus = attempt.question.cpus and self.exclusive.obstacle is not None
        return bool(attempt.area.allowed) and not out_of_cpus

    def _moves_within(self, budget: StepBudget, most_bytes: int | None) -> RelocationSearch:
        """A search for moves of containers with at most so many bytes each."""
        return RelocationSearch(self.topology, self.flows, self.request, self.exclusive, budget, most_bytes)

    def _after_relocations(self, missed: Missed, plan: RelocationPlan) -> Decision:
        """The decision about the *missed* attempt on the machine as it is once *plan* is carried out."""
        candidates = missed.attempt.candidates
        moves = moves_of(plan, self.ledger, self.request.name)
        after = self.flows.basis.with_ledger(self.ledger.moved(moves))
        exclusive = ExclusiveCpus(self.topology, after, self.request, None)
        cpus, _, remarks = exclusive.take(plan.nodes if self.cpus else NodeSet())
        mask = plan.nodes.mask
        crossed = sum(crosses(mask, other.mask) for other in after.ledger.claimed_bytes)
        placement = self._with_witness(self._placement(plan.nodes, cpus, bool(crossed)), after)
        notes = [
            Reason("moved-others", relocated(plan, self.policy.page_move_rate_bytes)),
            chosen(plan.nodes.mask),
        ]
        if candidates.why:
            notes.append(Reason(AS_WISHED, candidates.why))
        if crossed:
            notes.append(overlap(plan.nodes, crossed))
        reasons = (*missed.notes, *notes, *remarks)
        outcome = Outcome.DEGRADED if missed.notes else Outcome.PLACED
        return Decision(self.request, outcome, placement, reasons, moves=moves, plan=plan)

    def _with_cpus_only(self, decision: Decision) -> Decision:
        """The decision about a container whose memory is not confined, with its exclusive CPUs."""
        winner, own = None, self.exclusive.own
        if self.cpus and len(own) != self.cpus and (self.strict or not own):
            candidates = CandidateNodes(self.machine.ordinary_nodes, required=self.strict)
            attempt = self._attempt(candidates, AskedRoom({}, self.cpus))
            winner = search(attempt.question, attempt.area)
            if winner is None:
                self._miss(attempt)
            if winner is None and self.strict:
                return self._refused(attempt)
        near = self.topology.nodes_near(own)
        if not own and winner is not None:
            near = NodeSet.of_mask(winner.nodes)
        cpus, lacking, remarks = self.exclusive.take(near)
        placement = replace(decision.placement, exclusive_cpus=cpus)
        decision = replace(decision, reasons=(*decision.reasons, *remarks))
        notes = [*self.notes, *([lacking] if lacking is not None else [])]
        if not notes:
            return replace(decision, placement=placement)
        reasons = (*decision.reasons, *notes)
        return replace(decision, outcome=Outcome.DEGRADED, placement=placement, reasons=reasons)


def _first_helped(missed: Sequence[Missed], search: RelocationSearch) -> tuple[Missed, RelocationPlan] | None:
    """The first of the *missed* attempts for which the *search* has a plan, with it."""
    for one in missed:
        plan = search.plan(one.attempt)
        if plan is not None:
            return one, plan
    return None


def _on_one(nodes: NodeSet, amounts: Amounts) -> dict[int, Amounts]:
    """The witness of *amounts* on a single node; empty where there is more to it than that."""
    mask = nodes.mask
    return {mask.bit_length() - 1: amounts} if mask.bit_count() == 1 and amounts else {}

"""The `exact` engine: refuse only what cannot be kept, never promise twice, always say why.

All classes are accounted. Guaranteed containers are confined to the best set of nodes, the others claim on
every ordinary node; wishes come before both. Here is who decides and in which order things are tried; how a
set of nodes is found for a container that is to be confined is in `confined`.
"""

from collections.abc import Collection, Mapping
from functools import partial

from msgspec.structs import replace

from bayplan.engines.exact.claiming import Asking, claim_in_full, is_flexible, without
from bayplan.engines.exact.confined import Confinement
from bayplan.engines.exact.cpu_pools import decide_for_member, resized_pools
from bayplan.engines.exact.moves import moves_back
from bayplan.engines.exact.question import MAX_STEPS
from bayplan.engines.exact.resources import ResourceFlows
from bayplan.engines.exact.topology import MAX_COMBINATIONS, NodeTopology
from bayplan.engines.exact.unconfined import (
    beside_pinned_cpus,
    completed_claims,
    is_left_alone,
    left_alone,
    place_unconfined,
    widened_placements,
)
from bayplan.engines.exact.whole_pods import decide_in_pod
from bayplan.engines.interface import EXACT, EngineKind
from bayplan.model.basis import Basis
from bayplan.model.decision import (
    Claim,
    Decision,
    Move,
    Outcome,
    Placement,
    QosClass,
    Request,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.pod_as_a_whole import is_member
from bayplan.model.policy import TopologyScope
from bayplan.sets import CpuSet, NodeSet


class ExactEngine:
    """See the module. It keeps the flows of the last ledger it saw, which changes no answer."""

    kind = EngineKind.of(EXACT)
    name: str = EXACT

    def __init__(
        self,
        scope: TopologyScope = TopologyScope.CONTAINER,
        *,
        max_combinations: int = MAX_COMBINATIONS,
        max_steps: int = MAX_STEPS,
    ) -> None:
        """Up to *max_combinations* sets of one width are all looked at; *max_steps* bounds the search beyond
        that. Other values than the usual ones are for tests."""
        self.scope = scope
        self._max_combinations, self._max_steps = max_combinations, max_steps
        self._flows: ResourceFlows | None = None
        self._topology: NodeTopology | None = None

    def separate_copy(self) -> "ExactEngine":
        """See `Engine.separate_copy`."""
        return ExactEngine(self.scope, max_combinations=self._max_combinations, max_steps=self._max_steps)

    def decide(self, basis: Basis, request: Request, current: Placement | None = None) -> Decision:
        """See `Engine.decide`. A running container whose request changed is refused only where a new one
        would be, and never if it asks for no more than before."""
        machine, ledger = basis.machine, basis.ledger
        if request.score is not None and (request.pod_id, request.score) in ledger.ids_by_score:
            ledger = ledger.as_if_newest(request)
            if ledger is not basis.ledger:
                basis = basis.with_ledger(ledger)
        flows = self._followed(basis)
        pinned = request.pinned_cpus is not None or request.pinned_mems is not None
        if (pinned or request.opted_out) and is_left_alone(request):
            return self._left_alone(flows, request, current)
        if request.pod_level and is_member(request):
            decide, topology = partial(self._placed, flows), self._topology_of(machine)
            decision = decide_in_pod(topology, flows, request, current, decide)
        elif request.cpus is not None and request.pool:

            def near(asking: Request, nodes: NodeSet) -> Decision:
                return self._placed(flows, asking, current, nodes)

            decision = decide_for_member(self._topology_of(machine), basis, request, current, near)
        else:
            decision = self._placed(flows, request, current)
        if request.cpus is not None or decision.placement.beside_cpus.mask:
            decision = _with_beside(machine, decision)
        if decision.outcome is Outcome.PLACED and not decision.moves:
            # Asked only of a booking: a call less on the way of each creation.
            claim = decision.placement.claim or decision.placement.claimed
            if current is None or without(claim.amounts_bytes, current.promise.amounts_bytes):
                flows.check(claim)
        return decision

    def _left_alone(self, flows: ResourceFlows, request: Request, current: Placement | None) -> Decision:
        """The decision about a container whose nodes or CPUs somebody else chose."""
        decision = left_alone(self._topology_of(flows.machine), flows, request, current)
        if decision.shortage is None or request.pinned_mems is None or request.opted_out:
            return decision
        confinement = self._confinement(flows, Asking.of(flows.policy, request), current)
        return confinement.with_plan_on(decision, request.pinned_mems)

    def _placed(
        self,
        flows: ResourceFlows,
        request: Request,
        current: Placement | None,
        near: NodeSet = NodeSet(),
    ) -> Decision:
        asking = Asking.of(flows.policy, request)
        if not (asking.confined or request.exclusive_cpus):
            return place_unconfined(flows, asking)
        topology = self._topology_of(flows.machine)
        decision = self._confinement(flows, asking, current, near).decide()
        if request.pinned_cpus is not None:
            decision = beside_pinned_cpus(topology, decision)
        if current is not None and asking.bounded and decision.outcome is not Outcome.REFUSED:
            decision = _with_original_nodes(topology, decision, current)
        return decision

    def _confinement(
        self,
        flows: ResourceFlows,
        asking: Asking,
        current: Placement | None,
        near: NodeSet = NodeSet(),
    ) -> Confinement:
        topology = self._topology_of(flows.machine)
        return Confinement(topology, flows, asking, self.scope, current, self._max_steps, near)

    def adopt(self, basis: Basis, request: Request, mems: NodeSet | None) -> Placement:
        """See `Engine.adopt`: claimed in full, whether or not it fits, because it is there."""
        nodes = mems or basis.machine.ordinary_nodes
        claim = claim_in_full(request, nodes, flexible=is_flexible(basis.policy, request))
        amounts = claim.amounts_bytes
        booked = dict.fromkeys(mems or (), amounts) if len(mems or ()) == 1 and amounts else {}
        return Placement(booked_bytes=booked, claim=claim)

    def moves_back(self, basis: Basis, staying: Collection[str] = ()) -> tuple[Move, ...]:
        """See `Engine.moves_back`."""
        entries = basis.ledger.entries.values()
        placements = [entry.decision.placement for entry in entries]
        if not any(one.original_nodes or one.leaving for one in placements):
            return ()
        return moves_back(self._followed(basis), staying)

    def widened_placements(self, basis: Basis) -> dict[str, Placement]:
        """See `Engine.widened_placements`."""
        return widened_placements(basis)

    def completed_claims(self, basis: Basis) -> dict[str, Claim]:
        """See `Engine.completed_claims`: in the order of the ids."""
        return completed_claims(self._followed(basis).copy()) if basis.ledger.short_ids else {}

    def resized_pools(self, basis: Basis) -> Mapping[str, CpuSet]:
        """See `Engine.resized_pools`."""
        return resized_pools(self._topology_of(basis.machine), basis) if basis.ledger.pool_ids else {}

    def converted(self, basis: Basis) -> Ledger:
        """See `Engine.converted`: a container without a claim gets the one that the rules give."""
        machine, ledger = basis.machine, basis.ledger
        entries = ledger.entries.values()
        if all(isinstance(entry.decision.placement.promise, Claim) for entry in entries):
            return ledger
        claiming = [
            replace(entry, decision=replace(entry.decision, placement=_with_claim(machine, entry)))
            for entry in entries
        ]
        return Ledger.of([*claiming, *ledger.retained.values()])

    def _followed(self, basis: Basis) -> ResourceFlows:
        flows = self._flows
        if flows is None or flows.machine is not basis.machine or flows.policy is not basis.policy:
            flows = self._flows = ResourceFlows(basis)
        elif flows.basis.ledger is not basis.ledger or flows.basis.seen is not basis.seen:
            flows.follow(basis)
        return flows

    def _topology_of(self, machine: Machine) -> NodeTopology:
        if self._topology is None or self._topology.machine is not machine:
            self._topology = NodeTopology(machine, self._max_combinations)
        return self._topology


def _with_original_nodes(topology: NodeTopology, decision: Decision, current: Placement) -> Decision:
    """*decision* with the nodes that a container which became wider goes back to when there is room again:
    none if its CPUs would be left behind."""
    placement = decision.placement
    claim, before = placement.claimed, current.claimed
    original_nodes = current.original_nodes or before.nodes
    returns_later = original_nodes <= claim.nodes and original_nodes != claim.nodes
    if not placement.exclusive_cpus <= topology.cpus_near(original_nodes):
        returns_later = False
    placement = replace(
        placement,
        original_nodes=original_nodes if returns_later else None,
        previous_mems=placement.previous_mems if claim.nodes == before.nodes else current.mems,
    )
    return replace(decision, placement=placement)


def _with_beside(machine: Machine, decision: Decision) -> Decision:
    """*decision* with the CPUs of which the container uses the shared ones beside its own: those of the nodes
    where its own are."""
    placement, beside = decision.placement, None
    if decision.request.cpus is not None and decision.request.shares_rest and placement.exclusive_cpus:
        beside = machine.cpus_of(machine.nodes_of(placement.exclusive_cpus))
    if beside is None and not placement.beside_cpus.mask:
        return decision
    beside = beside or CpuSet()
    return replace(decision, placement=replace(placement, beside_cpus=beside))


def _with_claim(machine: Machine, entry: Entry) -> Placement:
    """The placement of *entry* with a claim, also if another engine made it."""
    request, placement = entry.decision.request, entry.decision.placement
    if isinstance(placement.promise, Claim):
        return placement
    nodes = placement.mems or request.pinned_mems
    if nodes is None and request.qos is QosClass.GUARANTEED and placement.booked_bytes:
        nodes = NodeSet(placement.booked_bytes)
    return replace(placement, claim=claim_in_full(request, nodes or machine.ordinary_nodes))

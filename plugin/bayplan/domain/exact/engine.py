"""The `exact` engine: refuse only what cannot be kept, never promise twice, always say why.

All classes are accounted. Guaranteed containers are confined to the best set of nodes, the others claim on
every ordinary node; wishes come before both. Here is who decides and in which order things are tried; how a
set of nodes is found for a container that is to be confined is in `confining`.
"""

from dataclasses import replace

from bayplan.domain.claims import OPTED_OUT
from bayplan.domain.decision import Claim, Decision, Move, Outcome, Placement, QosClass, Reason, Request
from bayplan.domain.exact.books import Books
from bayplan.domain.exact.claiming import claimed_amounts, is_bounded, wished_ground
from bayplan.domain.exact.confining import Confining
from bayplan.domain.exact.moves import returns
from bayplan.domain.exact.sites import Site
from bayplan.domain.exact.unconfined import everywhere
from bayplan.domain.exact.witness import witness
from bayplan.domain.kubelet.topology_options import Scope
from bayplan.domain.ledger import Entry, Ledger
from bayplan.domain.policy import Policy
from bayplan.domain.topology import Machine
from bayplan.sets import NodeSet


class ExactEngine:
    """See the module. It keeps the flows of the last ledger it saw, which changes no answer."""

    name: str = "exact"

    def __init__(self, scope: Scope = Scope.CONTAINER) -> None:
        self.scope = scope
        self._books: Books | None = None
        self._site: Site | None = None

    def decide(
        self,
        machine: Machine,
        policy: Policy,
        ledger: Ledger,
        request: Request,
        current: Placement | None = None,
    ) -> Decision:
        """See `Engine.decide`. A changed request that cannot be promised is refused under every policy: the
        container keeps what it has."""
        books = self._followed(machine, policy, ledger)
        if request.pinned_cpus is not None or request.pinned_mems is not None or request.opted_out:
            return _left_alone(machine, request)
        if is_bounded(request) or wished_ground(machine, request) is not None or request.exclusive_cpus:
            site = self._site_of(machine)
            decision = Confining(site, books, ledger, request, self.scope, current).decide()
        else:
            decision = everywhere(books, ledger, request, current)
        claim = decision.placement.claim
        if claim is not None and decision.outcome is Outcome.PLACED and not decision.moves:
            books.check(claim)
        return decision

    def adopt(self, machine: Machine, policy: Policy, ledger: Ledger, request: Request) -> Placement:
        """See `Engine.adopt`: claimed in full, whether or not it fits, because it is there."""
        del policy, ledger
        return _left_alone(machine, request).placement

    def returns(self, machine: Machine, policy: Policy, ledger: Ledger) -> tuple[Move, ...]:
        """See `Engine.returns`."""
        if not any(entry.decision.placement.home for entry in ledger.entries.values()):
            return ()
        return returns(self._followed(machine, policy, ledger), ledger)

    def restored(self, machine: Machine, policy: Policy, ledger: Ledger) -> Ledger:
        """See `Engine.restored`: whoever has no claim yet gets the one that the rules give."""
        del policy
        changed = [
            replace(entry, decision=replace(entry.decision, placement=_with_claim(machine, entry)))
            for entry in ledger.entries.values()
            if entry.decision.placement.claim is None
        ]
        for entry in changed:
            ledger = ledger.with_entry(entry)
        return ledger

    def _followed(self, machine: Machine, policy: Policy, ledger: Ledger) -> Books:
        books = self._books
        if books is None or books.machine is not machine or books.policy is not policy:
            books = self._books = Books(machine, policy)
        books.follow(ledger)
        return books

    def _site_of(self, machine: Machine) -> Site:
        if self._site is None or self._site.machine is not machine:
            self._site = Site(machine)
        return self._site


def settled_by_node(machine: Machine, policy: Policy, ledger: Ledger) -> Ledger:
    """*ledger* for an engine that knows no claims: each becomes what the witness has of it on each node."""
    spreads = witness(machine, policy, ledger)
    for container_id, entry in ledger.entries.items():
        placement = entry.decision.placement
        if placement.claim is not None:
            placement = replace(placement, claim=None, booked_bytes=spreads[container_id])
            ledger = ledger.with_entry(replace(entry, decision=replace(entry.decision, placement=placement)))
    return ledger


def _left_alone(machine: Machine, request: Request) -> Decision:
    """Keep what somebody else set in the spec, or what is there because the container opted out, and claim
    what it uses, so that nobody else is promised it."""
    nodes = request.pinned_mems if request.pinned_mems is not None else machine.ordinary_nodes
    amounts = claimed_amounts(request)
    placement = Placement(claim=Claim(nodes, amounts))
    if request.pinned_cpus is None and request.pinned_mems is None:
        return Decision(request, Outcome.PLACED, placement, (OPTED_OUT,))
    whose = " and ".join(
        f"{name} {pinned}"
        for name, pinned in (("cpuset.cpus", request.pinned_cpus), ("cpuset.mems", request.pinned_mems))
        if pinned is not None
    )
    reason = Reason("pinned", f"the spec already had {whose}; left as it is")
    return Decision(request, Outcome.PLACED, placement, (reason,))


def _with_claim(machine: Machine, entry: Entry) -> Placement:
    """The placement of *entry*, which another engine made, with a claim."""
    request, placement = entry.decision.request, entry.decision.placement
    nodes = placement.mems or request.pinned_mems
    if nodes is None and request.qos is QosClass.GUARANTEED and placement.booked_bytes:
        nodes = NodeSet(placement.booked_bytes)
    claim = Claim(nodes or machine.ordinary_nodes, claimed_amounts(request))
    return replace(placement, claim=claim)

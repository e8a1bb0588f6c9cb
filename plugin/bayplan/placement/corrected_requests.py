"""A container of which it becomes known what it requests, after it was placed. Pure.

Nothing moves for it: it stays on its nodes, and so do all others. What it claims too much is free again; what
it claims too little is promised as far as there is room, and the rest is made up for when others are gone.
"""

from msgspec.structs import replace

from bayplan.engines.interface import Engine
from bayplan.model.decision import OVERCOMMITTED, Claim, Reason, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.placement.after_removal import with_completed_claims
from bayplan.quantity import format_bytes


def with_corrected_request(
    machine: Machine, policy: PlacementPolicy, engine: Engine, ledger: Ledger, entry: Entry, request: Request
) -> Ledger:
    """*ledger* after the container of *entry* turned out to ask for *request*."""
    decision = replace(entry.decision, request=request)
    claim = decision.placement.claim
    if claim is None:
        return ledger.with_entry(replace(entry, decision=decision))
    wanted = engine.adopt(machine, policy, ledger, request, claim.nodes).claim
    assert wanted is not None, "an engine that claims for some claims for all"
    claim = _up_to(claim, wanted)
    decision = replace(decision, placement=replace(decision.placement, claim=claim, booked_bytes={}))
    corrected = ledger.with_entry(replace(entry, decision=decision))
    corrected, _ = with_completed_claims(machine, policy, engine, corrected)
    return _marked(corrected, entry.container_id)


def _up_to(claim: Claim, wanted: Claim) -> Claim:
    """*claim* with the amounts that are *wanted*: what it has of them already, and the rest short."""
    amounts = {
        resource: min(amount, claim.amounts_bytes.get(resource, 0))
        for resource, amount in wanted.amounts_bytes.items()
    }
    short = {
        resource: amount - amounts[resource]
        for resource, amount in wanted.amounts_bytes.items()
        if amount > amounts[resource]
    }
    kept = {resource: amount for resource, amount in amounts.items() if amount}
    return replace(claim, amounts_bytes=kept, short_bytes=short, explained_bytes=0)


def _marked(ledger: Ledger, container_id: str) -> Ledger:
    """*ledger* with the reason why not all that the container requests is promised, if that is so."""
    entry = ledger.entries[container_id]
    decision, claim = entry.decision, entry.decision.placement.claim
    kept = tuple(reason for reason in decision.reasons if reason.code != OVERCOMMITTED)
    if claim is not None and claim.short_bytes:
        lacking = ", ".join(f"{format_bytes(amount)} {name}" for name, amount in claim.short_bytes.items())
        reason = Reason(OVERCOMMITTED, f"{lacking} of what it requests could not be promised yet")
        decision = replace(decision, reasons=(*kept, reason))
    if decision == entry.decision:
        return ledger
    return ledger.with_entry(replace(entry, decision=decision))

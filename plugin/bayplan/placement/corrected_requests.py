"""Containers of which it becomes known what they request, after they were placed. Pure.

Nothing moves for it: they stay on their nodes, and so do all others. What they claim too much is free again;
what they claim too little is promised as far as there is room, the rest when others are gone.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from bayplan.engines.interface import Engine
from bayplan.model.basis import Basis
from bayplan.model.decision import OVERCOMMITTED, Claim, Reason, Request
from bayplan.model.ledger import Ledger
from bayplan.placement.after_removal import with_completed_claims
from bayplan.quantity import format_bytes


def with_corrected_requests(
    basis: Basis,
    engine: Engine,
    requests: Mapping[str, Request],
) -> Ledger:
    """The ledger after containers turned out to ask for these *requests*, by their ids."""
    ledger = basis.ledger
    for container_id, request in requests.items():
        entry = ledger.entries[container_id]
        placement = entry.decision.placement
        if isinstance(before := placement.promise, Claim):
            wanted = engine.adopt(basis.with_ledger(ledger), request, before.nodes).promise
            assert isinstance(wanted, Claim), "an engine that claims for some claims for all"
            placement = replace(placement, claim=_up_to(before, wanted), booked_bytes={})
        decision = replace(entry.decision, request=request, placement=placement)
        ledger = ledger.with_entry(replace(entry, decision=decision))
    ledger, _ = with_completed_claims(basis.with_ledger(ledger), engine)
    for container_id in requests:
        ledger = _marked(ledger, container_id)
    return ledger


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
    return replace(claim, amounts_bytes=kept, short_bytes=short, explained_bytes=0, shares={})


def _marked(ledger: Ledger, container_id: str) -> Ledger:
    """*ledger* with the reason why not all that the container requests is promised, if that is so."""
    entry = ledger.entries[container_id]
    decision, short_bytes = entry.decision, entry.decision.placement.promise.short_bytes
    kept = tuple(reason for reason in decision.reasons if reason.code != OVERCOMMITTED)
    if short_bytes:
        lacking = ", ".join(f"{format_bytes(amount)} {name}" for name, amount in short_bytes.items())
        reason = Reason(OVERCOMMITTED, f"{lacking} of what it requests could not be promised yet")
        decision = replace(decision, reasons=(*kept, reason))
    if decision == entry.decision:
        return ledger
    return ledger.with_entry(replace(entry, decision=decision))

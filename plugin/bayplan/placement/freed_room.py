"""Room that became free: a container was removed, or it became known that it requests something else.

Short claims are completed first, then containers that were moved go back. A container goes back to its
original nodes together with its pages; where these cannot be moved it stays on more nodes, and its decision
says why.

Nothing moves for a request that is corrected after its container was placed: that stays on its nodes, and so
do all others. What was claimed too much is free again; what was claimed too little is promised as far as
there is room, the rest when others are gone. Pure.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from bayplan.engines.interface import Engine
from bayplan.model.basis import Basis
from bayplan.model.decision import OVERCOMMITTED, STAYS_WIDE, Claim, Move, Reason, Request
from bayplan.model.ledger import Ledger
from bayplan.quantity import format_bytes
from bayplan.sets import nodes_text


def after_removal(basis: Basis, engine: Engine) -> tuple[Ledger, tuple[Move, ...], tuple[str, ...]]:
    """The ledger of *basis*, after a removal, with all that follows where no pages have to be moved.

    Returns:
        The ledger, the moves, and the ids of the containers that are promised more.
    """
    left, _ = with_widened_placements(basis, engine)
    left, promised = with_completed_claims(basis.with_ledger(left), engine)
    found, tried = list[Move](), set[str]()
    while moves := engine.moves_back(basis.with_ledger(left), tried):
        left = left.moved(moves)
        found += moves
        tried |= {move.container_id for move in moves}
    return left, tuple(found), promised


def with_widened_placements(basis: Basis, engine: Engine) -> tuple[Ledger, tuple[str, ...]]:
    """The ledger on a machine that may have got more ordinary nodes, and the ids of the containers that may
    use these as well."""
    ledger, placements = basis.ledger, engine.widened_placements(basis)
    for container_id, placement in placements.items():
        entry = ledger.entries[container_id]
        decision = replace(entry.decision, placement=placement)
        ledger = ledger.with_entry(replace(entry, decision=decision))
    return ledger, tuple(sorted(placements))


def with_completed_claims(basis: Basis, engine: Engine) -> tuple[Ledger, tuple[str, ...]]:
    """The ledger with the promises that can be made up for now, and the ids of the containers concerned; and
    with as many CPUs in each named pool as its members request."""
    claims = engine.completed_claims(basis)
    ledger = basis.ledger.with_claims(claims)
    return with_resized_pools(basis.with_ledger(ledger), engine), tuple(sorted(claims))


def with_resized_pools(basis: Basis, engine: Engine) -> Ledger:
    """The ledger in which the named pools have as many CPUs as their members request, as far as there is
    room."""
    ledger = basis.ledger
    for name, cpus in engine.resized_pools(basis).items() if ledger.pool_ids else ():
        ledger = ledger.with_pool_cpus(name, cpus)
    return ledger


def moved_back(ledger: Ledger, move: Move) -> Ledger:
    """*ledger* after the container of *move* went back."""
    return _with_reasons(ledger.moved([move]), move.container_id)


def not_moved_back(ledger: Ledger, move: Move, why: str) -> Ledger:
    """*ledger* with the reason *why* the container of *move* stays where it is."""
    there, here = nodes_text(move.after), nodes_text(move.before)
    text = f"there is room on {there} again, but it stays on {here}: {why}"
    return _with_reasons(ledger, move.container_id, Reason(STAYS_WIDE, text))


def _with_reasons(ledger: Ledger, container_id: str, *more: Reason) -> Ledger:
    entry = ledger.entries[container_id]
    kept = tuple(reason for reason in entry.decision.reasons if reason.code != STAYS_WIDE)
    if (*kept, *more) == entry.decision.reasons:
        return ledger
    return ledger.with_entry(replace(entry, decision=replace(entry.decision, reasons=(*kept, *more))))


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

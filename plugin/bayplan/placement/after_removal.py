"""Room that is free after a container was removed: short claims are completed, moved containers go back.

Claims are completed first. A container goes back to its original nodes together with its pages; where these
cannot be moved it stays on more nodes, and its decision says why.
"""

from msgspec.structs import replace

from bayplan.engines.interface import Engine
from bayplan.model.basis import Basis
from bayplan.model.decision import STAYS_WIDE, Move, Reason
from bayplan.model.ledger import Ledger
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

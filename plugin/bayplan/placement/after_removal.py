"""Room that is free after a container was removed: short claims are completed, moved containers go back.

Claims are completed first. A container goes back to its original nodes together with its pages; where these
cannot be moved it stays on more nodes, and its decision says why.
"""

from msgspec.structs import replace

from bayplan.engines.interface import Engine
from bayplan.model.decision import STAYS_WIDE, Move, Reason
from bayplan.model.ledger import Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.sets import nodes_text


def after_removal(
    machine: Machine, policy: PlacementPolicy, engine: Engine, left: Ledger
) -> tuple[Ledger, tuple[Move, ...], tuple[str, ...]]:
    """*left*, the ledger after a removal, with all that follows where no pages have to be moved.

    Returns:
        The ledger, the moves, and the ids of the containers that are promised more.
    """
    left, _ = with_widened_placements(machine, policy, engine, left)
    left, promised = with_completed_claims(machine, policy, engine, left)
    found, tried = list[Move](), set[str]()
    while moves := engine.moves_back(machine, policy, left, tried):
        left = left.moved(moves)
        found += moves
        tried |= {move.container_id for move in moves}
    return left, tuple(found), promised


def with_widened_placements(
    machine: Machine, policy: PlacementPolicy, engine: Engine, ledger: Ledger
) -> tuple[Ledger, tuple[str, ...]]:
    """*ledger* on a machine that may have got more ordinary nodes, and the ids of the containers that may use
    these as well."""
    placements = engine.widened_placements(machine, policy, ledger)
    for container_id, placement in placements.items():
        entry = ledger.entries[container_id]
        decision = replace(entry.decision, placement=placement)
        ledger = ledger.with_entry(replace(entry, decision=decision))
    return ledger, tuple(sorted(placements))


def with_completed_claims(
    machine: Machine, policy: PlacementPolicy, engine: Engine, left: Ledger
) -> tuple[Ledger, tuple[str, ...]]:
    """*left* with the promises that can be made up for now, and the ids of the containers concerned."""
    claims = engine.completed_claims(machine, policy, left)
    return left.with_claims(claims), tuple(sorted(claims))


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

"""A plan of moves as if somebody had carried it out."""

from msgspec.structs import replace

from bayplan.model.decision import RelocationPlan
from bayplan.model.ledger import Ledger


def carried_out(ledger: Ledger, plan: RelocationPlan) -> Ledger:
    """*ledger* once all containers of *plan* are where it has them."""
    moved = []
    for move in plan.relocations:
        entry = ledger.entries[move.container_id]
        placement = entry.decision.placement
        changes: dict[str, object] = {"exclusive_cpus": move.cpus_after}
        if placement.mems is not None and placement.claim is not None:
            beside = placement.mems - placement.claim.nodes
            changes |= {"mems": move.after | beside, "claim": replace(placement.claim, nodes=move.after)}
            changes |= {"booked_bytes": {}}
        decision = replace(entry.decision, placement=replace(placement, **changes))
        ledger = ledger.without(move.container_id)
        moved.append(replace(entry, decision=decision))
    for entry in moved:
        ledger = ledger.with_entry(entry)
    return ledger

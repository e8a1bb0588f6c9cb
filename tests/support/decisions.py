"""What tests assert of a decision: codes and amounts, not sentences."""

from bayplan.model.decision import Decision, Shortage


def codes(decision: Decision) -> list[str]:
    """The codes of its reasons, in their order."""
    return [reason.code for reason in decision.reasons]


def cut(found: Shortage | None) -> tuple[str, int, int, int, list[str]]:
    """Of a shortage: its nodes, the bytes there, promised and asked for, and the ids of the holders."""
    assert found is not None
    holders = [holder.container_id for holder in found.holders]
    return str(found.nodes), found.capacity_bytes, found.promised_bytes, found.asked_bytes, holders

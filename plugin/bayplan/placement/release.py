"""Containers that are given back: from then on they are left as they are, as if they had opted out.

What they use stays accounted, so that it is not promised again. Pure.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.model.decision import Reason
from bayplan.model.ledger import Entry
from bayplan.sets import CpuSet

RELEASED: Final = Reason("released", "given back by bayplan release; it has its parent's CPUs and nodes")


class GivenBack(Struct, frozen=True):
    """A container, and which of its cpusets are ours to give back."""

    container_id: str
    name: str
    cpus: bool
    mems: bool


def to_give_back(entry: Entry) -> GivenBack | None:
    """What of a container is to be given back; None for nothing. A container that was given back before is
    given back again: whoever did that may have died in between."""
    request = entry.decision.request
    if entry.ended or (request.opted_out and RELEASED not in entry.decision.reasons):
        return None
    cpus, mems = request.pinned_cpus is None, request.pinned_mems is None
    return GivenBack(entry.container_id, request.name, cpus, mems) if cpus or mems else None


def given_back(entry: Entry) -> Entry:
    """*entry* once its container was given back."""
    decision = entry.decision
    placement = replace(
        decision.placement.staying(),
        mems=None,
        exclusive_cpus=CpuSet(),
        claimed_cpus=None,
        pool_cpus=CpuSet(),
        original_nodes=None,
        previous_mems=None,
    )
    reasons = decision.reasons if RELEASED in decision.reasons else (*decision.reasons, RELEASED)
    request = replace(decision.request, opted_out=True)
    released = replace(decision, request=request, placement=placement, reasons=reasons)
    return replace(entry, decision=released, notified_cpus=None)

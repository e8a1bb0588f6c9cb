"""The decisions in which kubelet's managers have no choice.

CPUs and nodes that somebody else pinned stay as they are, and containers that are not Guaranteed share the
CPUs and may use every node. Nothing here looks for room.
"""

from msgspec.structs import replace

from bayplan.engines.interface import OPTED_OUT, pinned_reason
from bayplan.engines.kubelet.booking import book, memory_need
from bayplan.model.basis import Basis
from bayplan.model.decision import Decision, Outcome, Placement, QosClass, Reason, Request
from bayplan.sets import CpuSet, NodeSet


def trivial_decision(
    basis: Basis,
    request: Request,
    current: Placement | None = None,
) -> Decision | None:
    """The answer to a request that leaves nothing to decide; None for a Guaranteed one that nobody pinned.

    *current* is the placement of a running container: what nobody pinned of it stays promised.
    """
    if request.opted_out and request.pinned_cpus is None and request.pinned_mems is None:
        return Decision(request, Outcome.PLACED, Placement(), (OPTED_OUT,))
    if request.pinned_cpus is not None or request.pinned_mems is not None:
        return _respect_pins(basis, request, current or Placement())
    if request.qos is not QosClass.GUARANTEED:
        text = f"{request.qos.value} containers share the CPUs and may use every node"
        reason = Reason("shared-pool", text)
        return Decision(request, Outcome.PLACED, Placement(), (reason,))
    return None


def _respect_pins(basis: Basis, request: Request, current: Placement) -> Decision:
    """Keep what somebody else set, and book what it uses, so that nobody else is promised it."""
    reason = pinned_reason(request)
    placement = current if request.pinned_mems is None else replace(current, mems=None, claim=None)
    if request.pinned_cpus is not None:
        placement = replace(placement, exclusive_cpus=CpuSet())
    nodes = request.pinned_mems or placement.mems or NodeSet(placement.booked_bytes)
    if request.qos is QosClass.GUARANTEED:
        need = memory_need(request)
        claim = None if placement.claim is None else replace(placement.claim, amounts_bytes=need)
        booked = book(basis.free_bytes, nodes, need)
        placement = replace(placement, booked_bytes=booked, claim=claim)
    return Decision(request, Outcome.PLACED, placement, (reason,))

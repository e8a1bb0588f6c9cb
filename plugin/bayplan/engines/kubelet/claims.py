"""What a request claims of kubelet's managers, and the answers in which they have no choice.

What somebody else pinned stays as it is, and containers that are not Guaranteed share the CPUs and may use
every node. Nothing here looks for room. What the engine `exact` claims is in `domain.exact.claiming`.
"""

from typing import Final

from msgspec.structs import replace

from bayplan.engines.interface import free_bytes
from bayplan.engines.kubelet.booking import book
from bayplan.model.decision import Decision, Outcome, Placement, QosClass, Reason, Request
from bayplan.model.ledger import Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.sets import CpuSet, NodeSet

OPTED_OUT: Final = Reason("opted-out", "opted out by annotation; left as it is")


def memory_need(request: Request) -> dict[str, int]:
    """The memory resources that a Guaranteed request claims: its limit and its huge pages.

    A Guaranteed container whose limit is not visible claims no ordinary memory.
    """
    memory_bytes = request.memory.high_bytes if request.memory.exact else 0
    need = {MEMORY: memory_bytes, **request.hugepages_bytes}
    return {resource: amount for resource, amount in need.items() if amount}


def undisputed(
    machine: Machine,
    policy: PlacementPolicy,
    ledger: Ledger,
    request: Request,
    current: Placement | None = None,
) -> Decision | None:
    """The answer to a request that leaves nothing to decide; None to a Guaranteed one that nobody pinned.

    *current* is the placement of a running container: what nobody pinned of it stays promised.
    """
    if request.opted_out and request.pinned_cpus is None and request.pinned_mems is None:
        return Decision(request, Outcome.PLACED, Placement(), (OPTED_OUT,))
    if request.pinned_cpus is not None or request.pinned_mems is not None:
        return _respect_pins(machine, policy, ledger, request, current or Placement())
    if request.qos is not QosClass.GUARANTEED:
        text = f"{request.qos.value} containers share the CPUs and may use every node"
        reason = Reason("shared-pool", text)
        return Decision(request, Outcome.PLACED, Placement(), (reason,))
    return None


def pinned_reason(request: Request) -> Reason:
    """What somebody else set, and where."""
    whose = " and ".join(
        f"{name} {pinned}"
        for name, pinned in (("cpuset.cpus", request.pinned_cpus), ("cpuset.mems", request.pinned_mems))
        if pinned is not None
    )
    who = "an update set" if request.pinned_by_update else "the spec already had"
    return Reason("pinned", f"{who} {whose}; left as it is")


def _respect_pins(
    machine: Machine, policy: PlacementPolicy, ledger: Ledger, request: Request, current: Placement
) -> Decision:
    """Keep what somebody else set, and book what it uses, so that nobody else is promised it."""
    reason = pinned_reason(request)
    placement = current if request.pinned_mems is None else replace(current, mems=None, claim=None)
    if request.pinned_cpus is not None:
        placement = replace(placement, exclusive_cpus=CpuSet())
    nodes = request.pinned_mems or placement.mems or NodeSet(placement.booked_bytes)
    if request.qos is QosClass.GUARANTEED:
        need = memory_need(request)
        claim = None if placement.claim is None else replace(placement.claim, amounts_bytes=need)
        booked = book(free_bytes(machine, policy, ledger), nodes, need)
        placement = replace(placement, booked_bytes=booked, claim=claim)
    return Decision(request, Outcome.PLACED, placement, (reason,))

"""Containers that are confined to no set, and claims that could not be promised in full.

Never refused: their use is not bounded by their claim, so that a refusal would protect no other container.
The decision says what could not be promised, with the minimum cut.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from bayplan.engines.exact.claiming import Asking, is_confined, is_flexible, without
from bayplan.engines.exact.resources import ResourceFlows, parts_of, shortage
from bayplan.model.claim_parts import sum_of
from bayplan.model.decision import OVERCOMMITTED, Claim, Decision, Outcome, Placement, Reason, Request
from bayplan.model.ledger import Ledger
from bayplan.model.machine import Machine
from bayplan.model.memory_kinds import device_nodes
from bayplan.sets import NodeSet


def place_unconfined(flows: ResourceFlows, ledger: Ledger, asking: Asking) -> Decision:
    """The decision about a container without a set of its own."""
    machine, request, amounts = flows.machine, asking.request, asking.amounts
    nodes = machine.ordinary_nodes
    claim = Claim(nodes, amounts, is_flexible(flows.policy, request))
    placement = Placement(open_mems(machine, request), claim=claim)
    if not amounts:
        text = f"{request.qos.value}, claims nothing; it may use every ordinary node"
        return Decision(request, Outcome.PLACED, placement, (Reason("nothing-claimed", text),))
    if flows.fits(parts_of(claim)):
        text = f"{request.qos.value}: claims on all ordinary nodes, and may use every one of them"
        return Decision(request, Outcome.PLACED, placement, (Reason("unconfined", text),))
    return place_in_part(flows, ledger, request, placement)


def place_in_part(flows: ResourceFlows, ledger: Ledger, request: Request, placement: Placement) -> Decision:
    """The decision where the claim of *placement* does not fit: as much of it as can be promised."""
    claim = placement.claim
    assert claim is not None
    cut = flows.cut(parts_of(claim))
    assert cut is not None
    lacking = shortage(flows, ledger, cut)
    promised = flows.room(claim.nodes.mask, claim.amounts_bytes)
    partial = Claim(claim.nodes, promised, claim.flexible, without(claim.amounts_bytes, promised))
    reason = Reason(OVERCOMMITTED, f"{lacking.sentence()}; placed without a promise for all of it")
    degraded = replace(placement, claim=partial)
    return Decision(request, Outcome.DEGRADED, degraded, (reason,), shortage=lacking)


def completed_claims(flows: ResourceFlows, ledger: Ledger, short_ids: Iterable[str]) -> dict[str, Claim]:
    """The claims of *short_ids* for which there is room by now, with what can be promised of the rest.
    *flows* are changed."""
    found = {}
    for container_id in short_ids:
        claim = ledger.entries[container_id].decision.placement.claim
        assert claim is not None
        more = flows.room(claim.nodes.mask, claim.short_bytes)
        if not more:
            continue
        flows.change(Claim(claim.nodes, more))
        promised = sum_of([claim.amounts_bytes, more])
        rest = without(claim.short_bytes, more)
        found[container_id] = replace(claim, amounts_bytes=promised, short_bytes=rest, shares={})
    return found


def widened_placements(machine: Machine, ledger: Ledger) -> dict[str, Placement]:
    """The placements of those that are confined to no set, on all ordinary nodes that *machine* has now; only
    those that had fewer, and none that lost some."""
    nodes, found = machine.ordinary_nodes, {}
    for container_id, entry in ledger.entries.items():
        request, placement = entry.decision.request, entry.decision.placement
        claim = placement.claim
        if claim is None or claim.nodes == nodes or not claim.nodes <= nodes or is_confined(request):
            continue
        mems = None if placement.mems is None else open_mems(machine, request)
        found[container_id] = replace(
            placement,
            mems=mems,
            claim=replace(claim, nodes=nodes),
            booked_bytes={},
            previous_mems=placement.mems,
        )
    return found


def open_mems(machine: Machine, request: Request) -> NodeSet | None:
    """The cpuset.mems of a container that may use all ordinary memory: None where that is all there is."""
    nodes = machine.ordinary_nodes
    if request.hints:
        nodes |= device_nodes(machine, request)
    return None if nodes == machine.memory_nodes else nodes

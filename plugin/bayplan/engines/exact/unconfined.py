"""Containers whose nodes nobody chooses here: those that are confined to no set, those whose cpusets somebody
else chose, and those that opted out; and claims that could not be promised in full.

What is confined to no set is never refused: its use is not bounded by its claim, so that a refusal would
protect no other container. The decision says what could not be promised, with the minimum cut.

What somebody else chose stays, and is claimed. A wish counts beside a pin as far as the pin leaves it open.
Of one whose CPUs alone are pinned the memory is ours to place, so that wishes for nodes, tiers and huge pages
are granted as for any other container. Of one whose nodes are pinned they can only be held against these
nodes: a required one that they do not meet is refused, because otherwise the container would run where its
author ruled out; CPUs of its own it gets near them. What opted out is never refused.
"""

from msgspec.structs import replace

from bayplan.engines.exact.attempts import UNCHANGED
from bayplan.engines.exact.claiming import Asking, claim_in_full, is_confined, without
from bayplan.engines.exact.exclusive_cpus import ExclusiveCpus, Taken
from bayplan.engines.exact.resources import ResourceFlows, overcommitted, parts_of, shortage
from bayplan.engines.exact.topology import NodeTopology
from bayplan.engines.interface import OPTED_OUT, pinned_reason, pinned_text, unmet_wish
from bayplan.model.basis import Basis
from bayplan.model.claims import sum_of
from bayplan.model.decision import (
    OVERCOMMITTED,
    Booking,
    Claim,
    Decision,
    Outcome,
    Placement,
    Reason,
    Request,
)
from bayplan.model.memory_kinds import open_mems
from bayplan.model.policy import TopologyPolicy
from bayplan.model.sentences import verb_after
from bayplan.sets import CpuSet, NodeSet, cpus_text, nodes_text


def place_unconfined(flows: ResourceFlows, asking: Asking) -> Decision:
    """The decision about a container without a set of its own."""
    machine, request, amounts = flows.machine, asking.request, asking.amounts
    nodes = machine.ordinary_nodes
    claim = Claim(nodes, amounts, asking.flexible)
    mems = open_mems(machine, request) if request.hints or machine.has_closed_memory else None
    placement = Placement(mems, claim=claim)
    if not amounts:
        text = f"{request.qos.value}, claims nothing; it may use every ordinary node"
        return Decision(request, Outcome.PLACED, placement, (Reason("nothing-claimed", text),))
    if flows.fits(((nodes.mask, amounts),)):
        text = f"{request.qos.value}: claims on all ordinary nodes, and may use every one of them"
        return Decision(request, Outcome.PLACED, placement, (Reason("unconfined", text),))
    return place_in_part(flows, request, placement)


def place_in_part(flows: ResourceFlows, request: Request, placement: Placement) -> Decision:
    """The decision where the claim of *placement* does not fit: as much of it as can be promised."""
    claim = placement.claimed
    cut = flows.cut(parts_of(claim))
    assert cut is not None
    lacking = shortage(flows, cut)
    promised = flows.room(claim.nodes.mask, claim.amounts_bytes)
    partial = Claim(claim.nodes, promised, claim.flexible, without(claim.amounts_bytes, promised))
    reason = Reason(OVERCOMMITTED, f"{lacking.sentence()}; placed without a promise for all of it")
    degraded = replace(placement, claim=partial)
    return Decision(request, Outcome.DEGRADED, degraded, (reason,), shortage=lacking)


def completed_claims(flows: ResourceFlows) -> dict[str, Claim]:
    """What each short claim becomes if some of what it lacks can be promised now, in the order of the ids:
    with what can be promised, the rest stays short. *flows* are changed."""
    found, ledger = {}, flows.ledger
    for container_id in sorted(ledger.short_ids):
        claim = ledger.entries[container_id].decision.placement.claimed
        more = flows.room(claim.nodes.mask, claim.short_bytes)
        if not more:
            continue
        flows.change(Claim(claim.nodes, more))
        promised = sum_of([claim.amounts_bytes, more])
        rest = without(claim.short_bytes, more)
        found[container_id] = replace(claim, amounts_bytes=promised, short_bytes=rest, shares={})
    return found


def widened_placements(basis: Basis) -> dict[str, Placement]:
    """New placements on all ordinary nodes that there are now, for the containers that are confined to no
    set: only for those that had fewer of these nodes, and lose none."""
    machine, ledger = basis.machine, basis.ledger
    nodes, placements = machine.ordinary_nodes, {}
    for container_id, entry in ledger.entries.items():
        request, placement = entry.decision.request, entry.decision.placement
        claim = placement.promise
        if (
            isinstance(claim, Booking)
            or is_confined(request)
            or claim.nodes == nodes
            or not claim.nodes <= nodes
        ):
            continue
        mems = None if placement.mems is None else open_mems(machine, request)
        placements[container_id] = replace(
            placement,
            mems=mems,
            claim=replace(claim, nodes=nodes),
            booked_bytes={},
            previous_mems=placement.mems,
        )
    return placements


def is_left_alone(request: Request) -> bool:
    """Whether nothing about the container's memory is left to decide."""
    if request.pinned_mems is not None or request.opted_out:
        return True
    return request.pinned_cpus is not None and not request.wishes_nodes


def left_alone(
    topology: NodeTopology,
    flows: ResourceFlows,
    request: Request,
    current: Placement | None,
) -> Decision:
    """The decision that keeps pinned values (all values, if the container opted out) and claims what the
    container uses, in full, whether or not it fits, so that it is promised to no other container.

    Only a new container is refused; one that already runs on the pinned nodes is not, whatever it wishes.
    """
    kept = current or Placement()
    has = "it opted out" if request.opted_out else pinned_text(request)
    unmet = unmet_wish(flows.machine, request, request.pinned_mems, has)
    if unmet is not None and unmet.required and not request.opted_out:
        known = kept.promise.nodes == request.pinned_mems
        if not known:
            notes = [unmet.reason, *([] if current is None else [UNCHANGED])]
            return Decision(request, Outcome.REFUSED, reasons=tuple(notes))
    own = None if request.pinned_mems is not None or request.opted_out else kept.claim
    nodes = request.pinned_mems or (flows.machine.ordinary_nodes if own is None else own.nodes)
    claim = claim_in_full(request, nodes)
    cut = flows.cut(parts_of(claim))
    lacking = None if cut is None else shortage(flows, cut)
    mems = None if own is None else kept.mems
    if mems is None and request.pinned_mems is None and not request.opted_out:
        mems = open_mems(flows.machine, request)
    taken = Taken(kept.exclusive_cpus)
    if request.pinned_cpus is not None:
        taken = Taken(CpuSet())
    elif request.pinned_mems is not None and not request.opted_out:
        aligned = flows.policy.topology is not TopologyPolicy.NONE
        exclusive = ExclusiveCpus(topology, flows.basis, request, current)
        taken = exclusive.take(nodes if aligned else NodeSet())
    placement = Placement(mems=mems, exclusive_cpus=taken.cpus, claim=claim)
    notes = [OPTED_OUT] if request.opted_out else []
    if request.pinned_cpus is not None or request.pinned_mems is not None:
        notes.append(pinned_reason(request))
    notes += [] if unmet is None else [unmet.reason]
    notes += taken.remarks if taken.lacking is None else [taken.lacking]
    if lacking is not None:
        notes.append(overcommitted(lacking))
    as_asked = lacking is None and unmet is None and taken.lacking is None
    outcome = Outcome.PLACED if as_asked else Outcome.DEGRADED
    return Decision(request, outcome, placement, tuple(notes), shortage=lacking)


def beside_pinned_cpus(topology: NodeTopology, decision: Decision) -> Decision:
    """*decision* about the memory of a container whose CPUs somebody else chose, with a reason if none of
    these CPUs is near the nodes that it got. A node without CPUs is near to no CPU."""
    request, placement = decision.request, decision.placement
    pinned, nodes = request.pinned_cpus, placement.promise.nodes
    if pinned is None or decision.outcome is Outcome.REFUSED:
        return decision
    reasons, outcome = (*decision.reasons, pinned_reason(request)), decision.outcome
    near = topology.cpus_near(nodes)
    if near and near.isdisjoint(pinned):
        where = topology.nodes_near(pinned)
        theirs = f"{cpus_text(pinned)}, which somebody else chose, {verb_after(pinned, 'is')} on"
        on = nodes_text(where) if where else "none of its nodes"
        text = f"its memory is on {nodes_text(nodes)}, and {theirs} {on}"
        reasons, outcome = (*reasons, Reason("apart", text)), Outcome.DEGRADED
    return replace(decision, outcome=outcome, reasons=reasons)

"""Containers whose cpusets somebody else chose, or that opted out: what they have stays, and is claimed.

A wish counts beside a pin as far as the pin leaves it open. Of one whose CPUs alone are pinned the memory is
ours to place, so that wishes for nodes, tiers and huge pages are granted as for any other container. Of one
whose nodes are pinned they can only be held against these nodes: a required one that they do not meet is
refused, because otherwise the container would run where its author ruled out; CPUs of its own it gets near
them. Who opted out is never refused.
"""

from msgspec.structs import replace

from bayplan.engines.exact.attempts import UNCHANGED
from bayplan.engines.exact.claiming import claim_in_full
from bayplan.engines.exact.exclusive_cpus import ExclusiveCpus, Taken
from bayplan.engines.exact.resources import ResourceFlows, overcommitted, parts_of, shortage
from bayplan.engines.exact.topology import NodeTopology
from bayplan.engines.exact.unconfined import open_mems
from bayplan.engines.interface import OPTED_OUT, pinned_reason, pinned_text, unmet_wish
from bayplan.model.decision import Decision, Outcome, Placement, Reason, Request
from bayplan.model.ledger import Ledger
from bayplan.model.policy import TopologyPolicy
from bayplan.sets import CpuSet, NodeSet, nodes_text


def is_left_alone(request: Request) -> bool:
    """Whether nothing about the container's memory is left to decide."""
    if request.pinned_mems is not None or request.opted_out:
        return True
    return request.pinned_cpus is not None and not request.wishes_nodes


def left_alone(
    topology: NodeTopology,
    flows: ResourceFlows,
    ledger: Ledger,
    request: Request,
    current: Placement | None,
) -> Decision:
    """Keep pinned values, or all of them where the container opted out, and claim what it uses: in full,
    whether or not it fits, so that no other container is promised it.

    Refused is only what is new: a container that runs on the pinned nodes already is not, whatever it wishes.
    """
    kept = current or Placement()
    has = "it opted out" if request.opted_out else pinned_text(request)
    unmet = unmet_wish(flows.machine, request, request.pinned_mems, has)
    if unmet is not None and unmet.required and not request.opted_out:
        known = kept.claim is not None and kept.claim.nodes == request.pinned_mems
        if not known:
            notes = [unmet.reason, *([] if current is None else [UNCHANGED])]
            return Decision(request, Outcome.REFUSED, reasons=tuple(notes))
    own = None if request.pinned_mems is not None or request.opted_out else kept.claim
    nodes = request.pinned_mems or (flows.machine.ordinary_nodes if own is None else own.nodes)
    claim = claim_in_full(request, nodes)
    cut = flows.cut(parts_of(claim))
    lacking = None if cut is None else shortage(flows, ledger, cut)
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
    """*decision* about the memory of a container whose CPUs somebody else chose, with what is to be said of
    these: none of them may be near the nodes that it got. Nodes without CPUs are near to none."""
    request, placement = decision.request, decision.placement
    pinned, claim = request.pinned_cpus, placement.claim
    if pinned is None or decision.outcome is Outcome.REFUSED:
        return decision
    reasons, outcome = (*decision.reasons, pinned_reason(request)), decision.outcome
    near = CpuSet() if claim is None else topology.cpus_near(claim.nodes)
    if claim is not None and near and near.isdisjoint(pinned):
        where = topology.nodes_near(pinned)
        text = (
            f"its memory is on {nodes_text(claim.nodes)}, and the CPUs {pinned} that somebody else chose "
            f"{'are on ' + nodes_text(where) if where else 'are on none of its nodes'}"
        )
        reasons, outcome = (*reasons, Reason("apart", text)), Outcome.DEGRADED
    return replace(decision, outcome=outcome, reasons=reasons)

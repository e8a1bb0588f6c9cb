"""A decision as plain values ready for JSON, with its sentences: what status, explain and what-if show of it.

The same rules as in `bayplan.views.status`: fields are added, never renamed; bytes are integers, sets are
text, null means "none" or "not known".
"""

from collections.abc import Sequence
from typing import Any

from bayplan.model import sentences
from bayplan.model.decision import Decision, Outcome, RelocationPlan, Request, Shortage
from bayplan.sets import NodeSet

View = dict[str, Any]


def decision_view(decision: Decision, also_of: Sequence[str] = ()) -> View:
    """Everything in a decision. ``refusal`` is the text that the runtime was given. *also_of* are the names
    of the other containers whose cpusets have some of its exclusive CPUs now."""
    refused = decision.outcome is Outcome.REFUSED
    return {
        "id": decision.request.container_id,
        "podId": decision.request.pod_id,
        "name": decision.request.name,
        "outcome": decision.outcome.value,
        "summary": sentences.summary(decision),
        "asked": _asked(decision.request),
        "placement": None if refused else _placement(decision, also_of),
        "refusal": str(sentences.refusal(decision)) if refused else None,
        "reasons": [{"code": reason.code, "text": reason.text} for reason in decision.reasons],
        "candidates": [
            {
                "nodes": str(one.nodes),
                "criteria": dict(one.criteria),
                "texts": {name: sentences.criterion(name, value) for name, value in one.criteria.items()},
                "obstacle": one.obstacle or None,
            }
            for one in decision.candidates
        ],
        "advantage": _advantage(decision),
        "moves": [
            {
                "id": one.container_id,
                "name": one.name,
                "before": _nodes(one.before),
                "after": _nodes(one.after),
                "movedBytes": one.moved_bytes,
                "text": sentences.move(one),
            }
            for one in decision.moves
        ],
        "shortage": None if decision.shortage is None else _shortage(decision.shortage),
        "plan": None if decision.plan is None else _plan(decision.plan),
    }


def _asked(request: Request) -> View:
    return {
        "qosClass": request.qos.value,
        "qosSource": request.qos_source.value,
        "memory": {
            "requestLowBytes": request.memory.low_bytes,
            "requestLikelyLowBytes": request.memory.likely_low_bytes,
            "requestHighBytes": request.memory.high_bytes,
            "requestExact": request.memory.exact,
            "requestSource": request.memory.source,
            "limitBytes": request.memory_limit_bytes,
        },
        "hugepagesBytes": dict(request.hugepages_bytes),
        "cpuMilli": request.cpu_milli,
        "cpuWeighed": request.cpu_weighed,
        "exclusiveCpus": request.exclusive_cpus,
        "cpuPool": request.pool or None,
        "wishes": sentences.wishes(request),
        "optedOut": request.opted_out,
        "pinnedCpus": None if request.pinned_cpus is None else str(request.pinned_cpus),
        "pinnedMems": _nodes(request.pinned_mems),
        "lines": sentences.asked(request),
    }


def _placement(decision: Decision, also_of: Sequence[str]) -> View:
    placement = decision.placement
    policy, claim = placement.memory_policy, placement.claim
    return {
        "mems": _nodes(placement.mems),
        "exclusiveCpus": str(placement.own_cpus),
        "poolCpus": str(placement.pool_cpus),
        "cpusAlsoOf": list(also_of),
        "bookedBytes": {str(node): dict(row) for node, row in sorted(placement.booked_bytes.items())},
        "claim": None
        if claim is None
        else {
            "nodes": str(claim.nodes),
            "amountsBytes": dict(claim.amounts_bytes),
            "shortBytes": dict(claim.short_bytes),
            "explainedBytes": claim.explained_bytes,
            "flexible": claim.flexible,
            "evenHugepages": claim.even_hugepages,
        },
        "home": _nodes(placement.original_nodes),
        "leaving": _nodes(placement.leaving),
        "overlapping": placement.overlapping,
        "memoryPolicy": None if policy is None else sentences.policy_text(policy),
        "lines": sentences.placed(decision, also_of),
    }


def _advantage(decision: Decision) -> View | None:
    found = decision.advantage
    if found is None:
        return None
    winner = decision.candidates[0].nodes if decision.candidates else decision.placement.mems
    return {
        "criterion": found.criterion,
        "winner": found.winner,
        "runnerUpNodes": str(found.runner_up_nodes),
        "runnerUp": found.runner_up,
        "text": sentences.advantage(winner, found),
    }


def _shortage(shortage: Shortage) -> View:
    return {
        "resource": shortage.resource,
        "nodes": str(shortage.nodes),
        "capacityBytes": shortage.capacity_bytes,
        "promisedBytes": shortage.promised_bytes,
        "askedBytes": shortage.asked_bytes,
        "holders": [
            {"id": one.container_id, "name": one.name, "heldBytes": one.held_bytes}
            for one in shortage.holders
        ],
        "moreHolders": shortage.more_holders,
        "text": shortage.sentence(),
    }


def _plan(plan: RelocationPlan) -> View:
    return {
        "nodes": str(plan.nodes),
        "proven": plan.proven,
        "movedBytes": plan.moved_bytes,
        "moves": [
            {
                "id": one.container_id,
                "name": one.name,
                "before": str(one.before),
                "after": str(one.after),
                "cpusBefore": str(one.cpus_before),
                "cpusAfter": str(one.cpus_after),
                "movedBytes": one.moved_bytes,
                "text": sentences.relocation(one),
            }
            for one in plan.relocations
        ],
    }


def _nodes(nodes: NodeSet | None) -> str | None:
    return None if nodes is None else str(nodes)

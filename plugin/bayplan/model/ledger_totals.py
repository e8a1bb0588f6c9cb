"""The totals of a ledger after a placement came or went, and ids of certain containers. Each is immutable; a
change copies it."""

from collections.abc import Mapping
from typing import TypeVar

from bayplan.model.decision import Claim, Decision, Placement, QosSource, Request
from bayplan.sets import IdSet, NodeSet

Ids = TypeVar("Ids", bound=IdSet)


def with_booking(
    totals: Mapping[int, Mapping[str, int]], placement: Placement, sign: int
) -> Mapping[int, Mapping[str, int]]:
    """The totals after *placement* came (+1) or went (-1)."""
    if not placement.booked_bytes or placement.claim is not None:
        return totals
    changed = dict(totals)
    for node, resources in placement.booked_bytes.items():
        row = dict(changed.get(node, {}))
        for resource, amount_bytes in resources.items():
            row[resource] = row.get(resource, 0) + sign * amount_bytes
        changed[node] = row
    return changed


def with_claim(
    totals: Mapping[NodeSet, Mapping[str, int]], placement: Placement, sign: int
) -> Mapping[NodeSet, Mapping[str, int]]:
    """The totals after the claim of *placement* came (+1) or went (-1). Sets without a claim are left out."""
    claim = placement.claim
    if claim is None or not claim.amounts_bytes:
        return totals
    changed = dict(totals)
    for nodes, amounts_bytes in claim.parts:
        row = dict(changed.get(nodes, {}))
        for resource, amount_bytes in amounts_bytes.items():
            row[resource] = row.get(resource, 0) + sign * amount_bytes
        if any(row.values()):
            changed[nodes] = row
        else:
            changed.pop(nodes, None)
    return changed


def with_count(counts: Mapping[Ids, int], ids: Ids | None, sign: int) -> Mapping[Ids, int]:
    """The numbers of containers per set after one with *ids*, if it has any, came (+1) or went (-1)."""
    if ids is None:
        return counts
    count = counts.get(ids, 0) + sign
    rest = {one: others for one, others in counts.items() if one != ids}
    return {**rest, ids: count} if count else rest


def with_shared_milli(
    totals: Mapping[QosSource, int], decision: Decision, sign: int
) -> Mapping[QosSource, int]:
    """What containers on the shared CPUs ask for, by what their class is known from, after that of *decision*
    came (+1) or went (-1)."""
    source, milli = decision.request.qos_source, decision.pool_milli
    return {**totals, source: totals.get(source, 0) + sign * milli} if milli else totals


def with_member(
    ids: Mapping[str, frozenset[str]], request: Request, *, belongs: bool
) -> Mapping[str, frozenset[str]]:
    """The members of each named pool with that of *request* if it *belongs* there, else without it."""
    if not request.pool:
        return ids
    members = with_id(ids.get(request.pool, frozenset()), request.container_id, belongs=belongs)
    others = {pool: one for pool, one in ids.items() if pool != request.pool}
    return {**others, request.pool: members} if members else others


def with_id(ids: frozenset[str], container_id: str, *, belongs: bool) -> frozenset[str]:
    """*ids* with that of the container if it *belongs* there, else without it."""
    if (container_id in ids) == belongs:
        return ids
    return ids | {container_id} if belongs else ids - {container_id}


def is_short(claim: Claim | None) -> bool:
    """Whether not all of *claim* could be promised."""
    return claim is not None and bool(claim.short_bytes)

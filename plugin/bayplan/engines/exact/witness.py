"""The witness of the promises: so many bytes of this container on that node.

Worked out from the claims alone, in a fixed order, so that the same ledger always has the same witness.
Summed over the nodes it is each container's claim, and no node carries more than it has; only claims that
came without us or lost their capacity can be short of that.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from bayplan.engines.exact.flow import Flow, bits
from bayplan.engines.exact.resources import (
    Cut,
    ResourceFlows,
    capacity_by_resource,
    parts_of,
    shortage,
    totals,
)
from bayplan.model.basis import Basis
from bayplan.model.decision import Booking, Claim, Placement, Shortage
from bayplan.model.ledger import Ledger
from bayplan.model.pod_as_a_whole import is_member
from bayplan.sets import NodeSet

Spread = Mapping[int, Mapping[str, int]]
"""Node id -> resource -> bytes."""


def witness(basis: Basis) -> dict[str, Spread]:
    """What every container has on each node: container id -> node id -> resource -> bytes.

    Placements without a claim have what was booked for them.
    """
    ledger = basis.ledger
    loads = _loads(basis)
    found: dict[str, Spread] = {}
    for container_id, entry in sorted(ledger.entries.items()):
        match entry.decision.placement.promise:
            case Booking(by_node):
                found[container_id] = by_node
            case claim:
                found[container_id] = _taken(loads, claim)
    return found


def by_node(spreads: Iterable[Spread]) -> dict[int, dict[str, int]]:
    """The sum of *spreads* on each node."""
    sums: dict[int, dict[str, int]] = {}
    for spread in spreads:
        for node, row in spread.items():
            total = sums.setdefault(node, {})
            for resource, amount_bytes in row.items():
                total[resource] = total.get(resource, 0) + amount_bytes
    return sums


def settled_by_node(basis: Basis) -> Ledger:
    """The ledger for an engine that knows no claims: each becomes what the witness has of it on each node."""
    ledger = basis.ledger
    spreads = witness(basis)
    entries = []
    for container_id, entry in ledger.entries.items():
        placement = entry.decision.placement
        placement = replace(placement, claim=None, booked_bytes=spreads[container_id])
        entries.append(replace(entry, decision=replace(entry.decision, placement=placement)))
    # What is kept for a pod that has resources as a whole is a claim too, and there are none any more. Those
    # of resource claims are node by node already.
    kept = [one for one in ledger.retained.values() if one.is_of_claim or not is_member(one.decision.request)]
    return Ledger.of([*entries, *kept])


def share(basis: Basis, container_id: str) -> Spread:
    """The witness of one container."""
    ledger = basis.ledger
    promise = ledger.entries[container_id].decision.placement.promise
    if isinstance(promise, Booking):
        return promise.by_node
    loads = _loads(basis)
    beside = [
        key
        for key, entry in ledger.entries.items()
        if key < container_id and _claims_on(entry.decision.placement, promise)
    ]
    for key in sorted(beside):
        _taken(loads, ledger.entries[key].decision.placement.claimed)
    return _taken(loads, promise)


def shortages(basis: Basis) -> tuple[Shortage, ...]:
    """The sets of nodes whose capacity is below what is claimed there: the smallest ones, each resource.

    This happens when capacity goes away (hotplug, a larger reservation), or where containers came without us.
    """
    flows, found = ResourceFlows(basis), []
    for resource, flow in sorted(flows.by_resource.items()):
        seen: set[int] = set()
        for nodes in sorted(flow.unmet):
            reached = flow.cut([(nodes, 1)])
            if reached not in seen:
                seen.add(reached)
                found.append(shortage(flows, Cut(resource, NodeSet.of_mask(reached))))
    return tuple(found)


def _claims_on(placement: Placement, claim: Claim) -> bool:
    """Whether a claim has a part on a set that *claim* has a part on."""
    return any(nodes == other for nodes, _ in placement.promise.claimed_parts for other, _ in claim.parts)


def _loads(basis: Basis) -> dict[str, Flow]:
    """A flow for each resource, from nothing: narrow sets first, then by ids."""
    flows = {resource: Flow(row) for resource, row in capacity_by_resource(basis.allocatable).items()}
    claimed = totals(basis.ledger)
    for nodes in sorted(claimed, key=lambda each: (len(each), each.mask)):
        for resource, amount_bytes in claimed[nodes].items():
            if amount_bytes:
                flows.setdefault(resource, Flow({})).carry(nodes.mask, amount_bytes)
    return flows


def _taken(flows: Mapping[str, Flow], claim: Claim) -> Spread:
    """Take *claim* out of what the *flows* carry for its set, lowest node first."""
    spread: dict[int, dict[str, int]] = {}
    for nodes, amounts in parts_of(claim):
        for resource, amount_bytes in amounts.items():
            carried = flows[resource].carried if resource in flows else {}
            left = amount_bytes
            for node in bits(nodes):
                load = carried.get(node, {})
                part = min(left, load.get(nodes, 0))
                if part:
                    load[nodes] -= part
                    left -= part
                    spread.setdefault(node.bit_length() - 1, {})[resource] = part
    return spread

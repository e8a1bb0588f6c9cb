"""What a container could still have on each node alone: the table beside a refusal, "the largest that fits",
and what `bayplan nodes` and NodeResourceTopology say is left.

For both engines by the promises alone: a claim on several nodes counts on a node only as far as it cannot lie
on the others. Pure.
"""

from bayplan.engines.exact.claiming import claimed_amounts
from bayplan.engines.exact.resources import ResourceFlows
from bayplan.model.basis import Basis
from bayplan.model.claim_parts import sum_of
from bayplan.model.decision import Request
from bayplan.model.machine import MEMORY, union
from bayplan.quantity import MIB
from bayplan.views.decision_view import View


def free_bytes_by_node(basis: Basis) -> dict[int, dict[str, int]]:
    """What each node alone can still be promised: node id -> resource -> bytes."""
    flows = ResourceFlows(basis)
    return {
        node.id: {
            resource: flows.flow(resource).room(1 << node.id, by_node.get(1 << node.id, 0))
            for resource, by_node in flows.capacity.items()
        }
        for node in basis.machine.nodes
    }


def free_cpus_by_node(basis: Basis) -> dict[int, int]:
    """How many CPUs of each node one container could still have to itself."""
    machine = basis.machine
    candidates = basis.exclusive_candidates()
    room = max(0, basis.exclusive_room())
    return {node.id: min(room, len(node.cpus & candidates)) for node in machine.nodes}


def claimable_by_node(basis: Basis) -> dict[int, dict[str, int]]:
    """What resource claims have and can still have of each node alone: node id -> resource -> bytes, and
    ``cpu`` -> CPUs."""
    free_bytes, free_cpus = free_bytes_by_node(basis), free_cpus_by_node(basis)
    held = list(basis.ledger.resource_claims.values())
    rows = [one.by_node() for one in held]
    own = union(one.cpus_of() for one in held)
    return {
        node.id: sum_of(
            [
                {"cpu": free_cpus[node.id] + len(own & node.cpus)},
                free_bytes[node.id] if node.memory_bytes else {},
                *(row.get(node.id, {}) for row in rows),
            ]
        )
        for node in basis.machine.nodes
    }


def node_rooms(basis: Basis, request: Request | None = None) -> list[View]:
    """For each node with memory what it may promise, has promised and has left, and how many CPUs could
    become exclusive there; with a *request* also by how much it is short of that on the node alone."""
    free_by_node, allocatable = free_bytes_by_node(basis), basis.allocatable.bytes_by_node
    cpus_by_node = free_cpus_by_node(basis)
    rows = []
    for node in basis.machine.nodes:
        if not node.memory_bytes:
            continue
        free = free_by_node[node.id]
        capacity = {resource: allocatable[node.id].get(resource, 0) for resource in free}
        free_cpus = cpus_by_node[node.id]
        rows.append(
            {
                "id": node.id,
                "resources": {
                    resource: {
                        "allocatableBytes": most,
                        "promisedBytes": most - free[resource],
                        "freeBytes": free[resource],
                    }
                    for resource, most in capacity.items()
                    if most or resource == MEMORY
                },
                "freeCpus": free_cpus,
                "largest": {"memoryBytes": free.get(MEMORY, 0) // MIB * MIB, "cpus": free_cpus},
                "short": None if request is None else _short(request, free, free_cpus),
            }
        )
    return rows


def _short(request: Request, free_bytes: dict[str, int], free_cpus: int) -> View:
    lacking = {
        resource: amount - free_bytes.get(resource, 0)
        for resource, amount in claimed_amounts(request).items()
    }
    return {
        "bytes": {resource: amount for resource, amount in lacking.items() if amount > 0},
        "cpus": max(0, request.exclusive_cpus - free_cpus),
    }

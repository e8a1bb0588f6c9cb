"""What a container could still have on each node alone: the table beside a refusal, "the largest that fits",
and what `bayplan nodes` and NodeResourceTopology say is left.

For both engines by the promises alone: a claim on several nodes counts on a node only as far as it cannot lie
on the others. Pure.
"""

from bayplan.engines.exact.claiming import claimed_amounts
from bayplan.engines.exact.resources import ResourceFlows
from bayplan.engines.interface import allocatable_bytes, exclusive_candidates, exclusive_room
from bayplan.model.decision import Request
from bayplan.model.ledger import Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.quantity import MIB
from bayplan.views.decision_view import View


def free_bytes_by_node(
    machine: Machine, policy: PlacementPolicy, ledger: Ledger
) -> dict[int, dict[str, int]]:
    """What each node alone can still be promised beside *ledger*: node id -> resource -> bytes."""
    flows = ResourceFlows(machine, policy)
    flows.follow(ledger)
    return {
        node.id: {
            resource: flows.flow(resource).room(1 << node.id, by_node.get(1 << node.id, 0))
            for resource, by_node in flows.capacity.items()
        }
        for node in machine.nodes
    }


def free_cpus_by_node(machine: Machine, policy: PlacementPolicy, ledger: Ledger) -> dict[int, int]:
    """How many CPUs of each node one container could still have to itself."""
    candidates = exclusive_candidates(machine, policy, ledger)
    room = max(0, exclusive_room(machine, policy, ledger))
    return {node.id: min(room, len(node.cpus & candidates)) for node in machine.nodes}


def claimable_by_node(machine: Machine, policy: PlacementPolicy, ledger: Ledger) -> dict[int, dict[str, int]]:
    """What resource claims can have of each node alone: node id -> resource -> bytes, and ``cpu`` -> CPUs."""
    free_bytes = free_bytes_by_node(machine, policy, ledger)
    free_cpus = free_cpus_by_node(machine, policy, ledger)
    return {
        node: {"cpu": free_cpus[node], **(free_bytes[node] if machine.node_by_id[node].memory_bytes else {})}
        for node in free_cpus
    }


def node_rooms(
    machine: Machine, policy: PlacementPolicy, ledger: Ledger, request: Request | None = None
) -> list[View]:
    """For each node with memory what it may promise, has promised and has left, and how many CPUs could
    become exclusive there; with a *request* also by how much it is short of that on the node alone."""
    free_by_node = free_bytes_by_node(machine, policy, ledger)
    allocatable = allocatable_bytes(machine, policy)
    cpus_by_node = free_cpus_by_node(machine, policy, ledger)
    rows = []
    for node in machine.nodes:
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

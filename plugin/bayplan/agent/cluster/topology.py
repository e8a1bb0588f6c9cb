"""The node's NodeResourceTopology object (`topology.node.k8s.io/v1alpha2`), by which schedulers know its
room; with the fingerprint of the pods, by which a scheduler sees whether it and the publisher know the
same ones. Pure.

What is available on a node is what one more container could still be promised there alone, as `bayplan
what-if` says it. A promise on several nodes counts on one of them only as far as it cannot be kept on the
others, so that the sum over the nodes may be more than what is left of them together.

Source of the fingerprint: podfingerprint, version v001, which scheduler-plugins and NFD use: the XXH64 of
each pod's name, with that of its namespace as the seed; sorted; together the XXH64 of these as
little-endian words of 64 bits.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from xxhash import xxh64, xxh64_intdigest

from bayplan.agent.cluster.pods import PodName
from bayplan.model.basis import Allocatable, Basis
from bayplan.model.ledger import Ledger
from bayplan.model.machine import Machine, Node
from bayplan.model.workload import parts_in_pod
from bayplan.views.node_room import free_cpus_by_node, node_rooms
from bayplan.views.snapshot import Snapshot

_PREFIX: Final = "pfp0v001"


def pod_fingerprint(pods: Iterable[tuple[str, str]]) -> str:
    """The fingerprint of *pods*, each a namespace and a name, in whatever order.

    >>> pod_fingerprint([])
    'pfp0v001ef46db3751d8e999'
    """
    hashes = sorted(
        xxh64_intdigest(name.encode(), seed=xxh64_intdigest(namespace.encode())) for namespace, name in pods
    )
    together = xxh64()
    for one in hashes:
        together.update(one.to_bytes(8, "little"))
    return f"{_PREFIX}{together.hexdigest()}"


API_GROUP: Final = "topology.node.k8s.io"
API_VERSION: Final = "v1alpha2"
RESOURCE: Final = "noderesourcetopologies"

_SCOPE: Final = "container"
"""Containers are decided about one by one."""

Object = dict[str, Any]


def topology_object(
    node_name: str, node_uid: str, snapshot: Snapshot, awaited: frozenset[PodName] = frozenset()
) -> Object:
    """The object of the node *node_name*, whose own object has *node_uid* and takes it along when it is
    deleted. *awaited* are pods that are still to be promised something."""
    attributes = {
        "topologyManagerPolicy": snapshot.policy.topology.value,
        "topologyManagerScope": _SCOPE,
        "nodeTopologyPodsFingerprint": pod_fingerprint(pods_of(snapshot.ledger) | awaited),
        "nodeTopologyPodsFingerprintMethod": "all",
    }
    owner = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid}
    return {
        "apiVersion": f"{API_GROUP}/{API_VERSION}",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node_name, "ownerReferences": [owner]},
        "attributes": [{"name": name, "value": value} for name, value in attributes.items()],
        "zones": list(_zones(snapshot)),
    }


def pods_of(ledger: Ledger) -> set[PodName]:
    """Namespace and name of each pod that something is promised to."""
    entries = (*ledger.entries.values(), *ledger.retained.values())
    named = (parts_in_pod(entry.decision.request.name) for entry in entries)
    return {(parts[0], parts[1]) for parts in named if parts is not None}


def _zones(snapshot: Snapshot) -> Iterator[Object]:
    """A zone for each node whose memory or CPUs a container gets without asking for them."""
    machine = snapshot.machine
    rooms = {room["id"]: room for room in node_rooms(Basis(machine, snapshot.policy, snapshot.ledger))}
    free_cpus = free_cpus_by_node(Basis(machine, snapshot.policy, snapshot.ledger))
    for node in machine.nodes:
        if node.id in machine.ordinary_nodes or node.cpus:
            yield {
                "name": _zone_name(node),
                "type": "Node",
                "costs": [
                    {"name": _zone_name(other), "value": machine.distance(node.id, other.id)}
                    for other in machine.nodes
                ],
                "resources": [
                    *_cpus(snapshot, node, free_cpus[node.id]),
                    *_memory(machine, node, rooms.get(node.id)),
                ],
            }


def _cpus(snapshot: Snapshot, node: Node, available: int) -> Iterator[Object]:
    if node.cpus:
        allocatable = node.cpus & Allocatable(snapshot.machine, snapshot.policy).exclusive_cpus
        yield _resource("cpu", len(node.cpus), len(allocatable), available)


def _memory(machine: Machine, node: Node, room: Object | None) -> Iterator[Object]:
    if room is not None and node.id in machine.ordinary_nodes:
        capacity_bytes = node.capacity_bytes()
        for resource, amounts in room["resources"].items():
            yield _resource(
                resource, capacity_bytes[resource], amounts["allocatableBytes"], amounts["freeBytes"]
            )


def _resource(name: str, capacity: int, allocatable: int, available: int) -> Object:
    amounts = {"capacity": capacity, "allocatable": allocatable, "available": available}
    return {"name": name, **{key: str(amount) for key, amount in amounts.items()}}


def _zone_name(node: Node) -> str:
    return f"node-{node.id}"

"""What the API server has of the node that the agent is on: its Node object, and its NodeResourceTopology
(`topology.node.k8s.io/v1alpha2`), by which schedulers know its room.

Two agents of different machines under one name would go on replacing each other's room: the Node has the boot
id of its machine, once kubelet has said it.

What is available on a node is what one more container could still be promised there alone, as `bayplan
what-if` says it. A promise on several nodes counts on one of them only as far as it cannot be kept on the
others, so that the sum over the nodes may be more than what is left of them together.

By the fingerprint of the pods a scheduler sees whether it and the publisher know the same ones. Source:
podfingerprint, version v001, which scheduler-plugins and NFD use: the XXH64 of each pod's name, with that of
its namespace as the seed; sorted; together the XXH64 of these as little-endian words of 64 bits.
"""

import asyncio
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from xxhash import xxh64, xxh64_intdigest

from bayplan.agent.cluster.api import Api, ApiError
from bayplan.agent.cluster.pods import PodName
from bayplan.agent.mirror import DaemonLink
from bayplan.backoff import drawn
from bayplan.errors import ConfigError, Problem, UnavailableError
from bayplan.logs import Condition
from bayplan.model.basis import Allocatable, Basis
from bayplan.model.ledger import Ledger
from bayplan.model.machine import Machine, Node
from bayplan.model.workload import parts_in_pod
from bayplan.views.node_room import free_cpus_by_node, node_rooms
from bayplan.views.snapshot import Snapshot

ASK_INTERVAL_S: Final = 300.0
"""At most, at least half of it; a kubelet is changed once in months."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class _Metadata(Struct):
    uid: str


class _NodeInfo(Struct, frozen=True):
    bootID: str = ""  # noqa: N815 - Kubernetes' name
    kubeletVersion: str = ""  # noqa: N815 - likewise


class _Status(Struct, frozen=True):
    nodeInfo: _NodeInfo = _NodeInfo()  # noqa: N815 - likewise
    declaredFeatures: tuple[str, ...] = ()  # noqa: N815 - likewise


class _Node(Struct):
    metadata: _Metadata
    status: _Status = _Status()


class OwnNode(Struct, frozen=True):
    """The Node of this machine. ``features`` are those that its kubelet has declared to have."""

    uid: str
    features: tuple[str, ...] = ()


async def own_node(api: Api, node_name: str) -> OwnNode:
    """The Node *node_name*; ConfigError if it is another machine's. Raises ApiError, UnavailableError."""
    found = await _own_node(api, node_name)
    return OwnNode(found.metadata.uid, found.status.declaredFeatures)


class KubeletVersionWatch:
    """Tells the daemon over *link* which kubelet the node *node_name* has; asks every *interval_s*."""

    def __init__(
        self, api: Api, node_name: str, link: DaemonLink, interval_s: float = ASK_INTERVAL_S
    ) -> None:
        self._api = api
        self._node_name = node_name
        self._link = link
        self._interval_s = interval_s
        self._condition = Condition("kubelet's version is not known", "kubelet's version is known again")

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            try:
                node = await _own_node(self._api, self._node_name)
            except (ApiError, ConfigError, UnavailableError) as error:
                self._condition.holds(str(error))
            else:
                self._condition.over()
                if node.status.nodeInfo.kubeletVersion:
                    self._link.know_kubelet(node.status.nodeInfo.kubeletVersion)
            await asyncio.sleep(drawn(random.random, self._interval_s / 2, self._interval_s))


async def _own_node(api: Api, node_name: str) -> _Node:
    # From what the API server has in memory, as kubelet asks for it: etcd is not asked for 10 kB each time.
    node = await api.get(f"/api/v1/nodes/{node_name}?resourceVersion=0", _Node)
    own = _BOOT_ID.read_text().strip()
    if (found := node.status.nodeInfo.bootID) not in {"", own}:
        problem = Problem(
            node_name, f"another machine, whose boot id is {found}", f"this one, whose is {own}"
        )
        raise ConfigError("--node-name", (problem,))
    return node


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

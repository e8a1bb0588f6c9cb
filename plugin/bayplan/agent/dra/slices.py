"""The node's ResourceSlices (`resource.k8s.io/v1`): one device for each NUMA node, by which the scheduler
knows what a claim can still have there. Pure.

Kubernetes subtracts what it has allocated to claims from a device's capacity. So the capacity is what the
node holds less what containers without a claim hold; what claims hold is part of it. A promise on several
nodes counts on one of them only as far as it cannot be kept on the others, as in NodeResourceTopology: what
several devices have together may be more than claims can have there at once. Once a claim was refused for
that, only what they can have at once is published for a while.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from bayplan.model.machine import CORE_KINDS, MEMORY, Machine, Node, hugepage_size_bytes
from bayplan.model.memory_kinds import tier_ranks
from bayplan.model.resource_claim import DRIVER
from bayplan.quantity import MIB, format_page_size
from bayplan.sets import NodeSet
from bayplan.views.node_room import claimable_by_node
from bayplan.views.snapshot import Snapshot

API_GROUP: Final = "resource.k8s.io"
API_VERSION: Final = "v1"
RESOURCE: Final = "resourceslices"
CONTENT: Final = f"{DRIVER}/content"
"""Annotation of a slice: a digest of its devices, by which it is seen whether they are others now. Quantities
come back from the API server in another form."""

CPU: Final = "cpu"
MEMORY_STEP_BYTES: Final = MIB
"""What a claim asks for is rounded up to it, and what is left down: a change of less is none."""
_DEVICES_PER_SLICE: Final = 64
"""Kubernetes takes 128, and 64 where one of them has a taint."""
_MOST_GROUPINGS: Final = 8
"""A device has 32 attributes and capacities at most."""
_MOST_ROOTS: Final = 24
"""A device has 48 values of attributes at most, those of lists counted, and others here are 15 at most. With
more roots the list is left out: one that lacks some says of these that they are elsewhere."""
_NAME_BYTES: Final = 253
"""Of a Kubernetes object's name."""

Object = dict[str, Any]


def device_name(node: int) -> str:
    """The device that stands for a NUMA node, the same for ever."""
    return f"numa-{node}"


def node_of_device(name: str) -> int | None:
    """The NUMA node that the device *name* stands for, None if none."""
    prefix, _, digits = name.partition("-")
    return int(digits) if prefix == "numa" and digits.isdecimal() and digits.isascii() else None


def capacity_key(resource: str) -> str:
    """The name of a resource among a device's capacities, where names are identifiers of C: no dashes."""
    return resource.replace("-", "")


def resource_of_key(key: str) -> str:
    """The resource of a name that `capacity_key` made, with or without its domain."""
    _, _, name = key.rpartition("/")
    size = name.removeprefix("hugepages")
    return name if size == name else f"hugepages-{size}"


def step_of(resource: str) -> int:
    """Of what a claim gets a multiple."""
    if resource == CPU:
        return 1
    return MEMORY_STEP_BYTES if resource == MEMORY else hugepage_size_bytes(resource)


def devices_of(snapshot: Snapshot, *, jointly: bool = False) -> list[Object]:
    """A device for each node with CPUs, or with memory that is not a device's own. *jointly*: claims can have
    all of their capacities at once."""
    machine, rooms = snapshot.machine, claimable_by_node(snapshot.basis, jointly=jointly)
    groupings = tuple(_groupings(machine))
    return [
        {
            "name": device_name(node.id),
            "attributes": dict(_attributes(machine, node, groupings)),
            "capacity": dict(_capacity(rooms[node.id])),
            "allowMultipleAllocations": True,
        }
        for node in machine.nodes
        if node.cpus or (node.memory_bytes and not node.owner)
    ]


def resource_slices(node_name: str, node_uid: str, devices: list[Object], generation: int) -> list[Object]:
    """The slices of the pool of the node *node_name*, whose own object has *node_uid* and takes them along
    when it is deleted; none without devices."""
    parts = [devices[at : at + _DEVICES_PER_SLICE] for at in range(0, len(devices), _DEVICES_PER_SLICE)]
    owner = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid}
    return [
        {
            "apiVersion": f"{API_GROUP}/{API_VERSION}",
            "kind": "ResourceSlice",
            "metadata": {
                "name": _slice_name(node_name, number),
                "ownerReferences": [owner],
                "annotations": {CONTENT: _digest(part)},
            },
            "spec": {
                "driver": DRIVER,
                "nodeName": node_name,
                "pool": {"name": node_name, "generation": generation, "resourceSliceCount": len(parts)},
                "devices": part,
            },
        }
        for number, part in enumerate(parts)
    ]


def with_mapping(device: Object) -> Object:
    """*device* that says which resources of its Kubernetes node it is made of (KEP-5517, as Kubernetes 1.37
    has it): so a claim counts as a request of its pod, where `DRANodeAllocatableResources` is on."""
    mapped = {
        resource_of_key(key): {"mapping": {"capacityKey": key, "capacityMultiplier": "1"}}
        for key in device["capacity"]
    }
    return {**device, "nodeAllocatableResources": mapped} if mapped else device


def without_lists(device: Object) -> Object:
    """*device* without the attributes that are lists, which an API server takes where the feature
    `DRAListTypeAttributes` is on. Elsewhere it drops the list, and refuses what has no value then."""
    kept = {key: value for key, value in device["attributes"].items() if "strings" not in value}
    return {**device, "attributes": kept}


def _slice_name(node_name: str, number: int) -> str:
    name = f"{node_name}-{DRIVER}-{number}"
    if len(name) <= _NAME_BYTES:
        return name
    digest = hashlib.sha256(node_name.encode()).hexdigest()[:32]
    return f"{digest}-{DRIVER}-{number}"


def _digest(devices: list[Object]) -> str:
    return hashlib.sha256(json.dumps(devices, sort_keys=True).encode()).hexdigest()


def _capacity(room: Mapping[str, int]) -> Iterator[tuple[str, Object]]:
    """What is left, as far as a claim can have some of it: the API server takes no policy whose step is more
    than the value, and a claim finds no room in a capacity that is not there."""
    for resource, amount in room.items():
        step = step_of(resource)
        if amount >= step:
            policy = {"default": "0", "validRange": {"min": "0", "step": _quantity(resource, step)}}
            yield (
                f"{DRIVER}/{capacity_key(resource)}",
                {"value": _quantity(resource, amount // step * step), "requestPolicy": policy},
            )


def _quantity(resource: str, amount: int) -> str:
    return str(amount) if resource == CPU else format_page_size(amount)


def _attributes(
    machine: Machine, node: Node, groupings: tuple[tuple[str, Mapping[int, int]], ...]
) -> Iterator[tuple[str, Object]]:
    """What claims can select devices by, and align them by with those of other drivers."""
    yield "resource.kubernetes.io/numaNode", {"int": node.id}
    socket = _socket(machine, node)
    if socket is not None:
        yield f"{DRIVER}/socket", {"int": socket}
    yield f"{DRIVER}/memoryTier", {"string": _tier(machine, node)}
    for name, group_of in groupings:
        yield f"{DRIVER}/{name}", {"int": group_of[node.id]}
    kinds = {cpu.kind for cpu in machine.cpus if cpu.id in node.cpus and cpu.kind in CORE_KINDS}
    if kinds:
        yield f"{DRIVER}/coreKind", {"string": kinds.pop() if len(kinds) == 1 else "mixed"}
    caches = {cpu.l3_cache_id for cpu in machine.cpus if cpu.id in node.cpus} - {None}
    if len(caches) > 1:
        yield f"{DRIVER}/l3Caches", {"int": len(caches)}
    if 0 < len(node.pcie_roots) <= _MOST_ROOTS:
        yield "resource.kubernetes.io/pcieRoot", {"strings": list(node.pcie_roots)}


def _socket(machine: Machine, node: Node) -> int | None:
    """The socket of the node's CPUs; of a node without, of those that reach its memory best."""
    near = NodeSet([node.id]) if node.cpus else node.initiators
    sockets = {machine.cpu_by_id[cpu].socket_id for cpu in machine.cpus_of(near)}
    return sockets.pop() if len(sockets) == 1 else None


def _tier(machine: Machine, node: Node) -> str:
    """``dram`` for ordinary memory, ``fast`` and ``slow`` for tiers beside the CPUs' own, ``none`` without
    memory: a selector fails where an attribute is missing."""
    if not node.memory_bytes:
        return "none"
    if node.id in machine.ordinary_nodes:
        return "dram"
    own = tier_ranks(machine).get("dram")
    if own is None or node.tier is None:
        return "slow"
    return "fast" if node.tier < own else "slow"


def _groupings(machine: Machine) -> Iterator[tuple[str, Mapping[int, int]]]:
    """The ways in which nodes fall into groups by their distances: the name of the attribute, and for each
    node the lowest id of its group. ``within12``: the nodes of a group are at a distance of 12 at most from
    each other, and from no others. Where such groups would overlap there are none."""
    ids = [node.id for node in machine.nodes]
    apart = {
        (one, other): max(machine.distance(one, other), machine.distance(other, one))
        for one in ids
        for other in ids
    }
    found = 0
    for limit in sorted(set(apart.values()))[:-1]:
        near = {one: frozenset(other for other in ids if apart[one, other] <= limit) for one in ids}
        groups = set(near.values())
        disjoint = sum(len(group) for group in groups) == len(ids)
        if disjoint and 1 < len(groups) < len(ids) and found < _MOST_GROUPINGS:
            found += 1
            yield f"within{limit}", {one: min(near[one]) for one in ids}

"""The node's ResourceSlices (`resource.k8s.io/v1`): one device for each NUMA node, by which the scheduler
knows what a claim can still have there; published on each change, at most once a second.

Kubernetes subtracts what it has allocated to claims from a device's capacity. So the capacity is what the
node holds less what containers without a claim hold; what claims hold is part of it. A promise on several
nodes counts on one of them only as far as it cannot be kept on the others, as in NodeResourceTopology: what
several devices have together may be more than claims can have there at once. Once a claim was refused for
that, only what they can have at once is published for a while.

kubelet deletes them when it starts, and when the driver was away for half a minute: they are watched, and
made again at once. Each change has a higher generation of the pool, as the scheduler takes the devices of the
highest one; the first is above all that the API server has of it.
"""

import asyncio
import hashlib
import json
import random
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

import msgspec
from msgspec import Struct, field

from bayplan.agent.cluster.api import Api, ApiError, Object
from bayplan.agent.cluster.node_objects import own_node
from bayplan.agent.cluster.publisher import AGAIN_AFTER_S, LEAST_INTERVAL_S, Publisher, first_of, is_same_room
from bayplan.agent.mirror import Mirror
from bayplan.backoff import Backoff
from bayplan.engines.interface import EXACT
from bayplan.errors import ConfigError, Problem, UnavailableError
from bayplan.logs import Condition
from bayplan.model.claims import DRIVER, is_claim_key
from bayplan.model.machine import MEMORY, Machine, Node, hugepage_size_bytes
from bayplan.model.memory_kinds import tier_ranks
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
    all of their capacities at once. All have the same capacities, whatever is left: a selector that reads one
    which a single device of the cluster lacks ends the scheduling of its pod with an error."""
    machine, rooms = snapshot.machine, claimable_by_node(snapshot.basis, jointly=jointly)
    groupings = tuple(_groupings(machine))
    resources = tuple(dict.fromkeys(resource for room in rooms.values() for resource in room))
    return [
        {
            "name": device_name(node.id),
            "attributes": dict(_attributes(machine, node, groupings)),
            "capacity": {
                f"{DRIVER}/{capacity_key(resource)}": _capacity(resource, rooms[node.id].get(resource, 0))
                for resource in resources
            },
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


def _capacity(resource: str, amount: int) -> Object:
    """What is left. Of less than a step nothing can be claimed: the API server takes no step that is more
    than the value, but the one value 0. Without a policy a claim would get what it says, and the API server
    of Kubernetes 1.37 takes claims of less than 0 (kubernetes#140468), which the scheduler of 1.36 then has
    as room."""
    step = step_of(resource)
    if amount < step:
        return {"value": "0", "requestPolicy": {"default": "0", "validValues": ["0"]}}
    policy = {"default": "0", "validRange": {"min": "0", "step": _quantity(resource, step)}}
    return {"value": _quantity(resource, amount // step * step), "requestPolicy": policy}


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
    here = [cpu for cpu in machine.cpus if cpu.id in node.cpus]
    kinds = {cpu.kind or "uniform" for cpu in here} or {"none"}
    yield f"{DRIVER}/coreKind", {"string": kinds.pop() if len(kinds) == 1 else "mixed"}
    yield f"{DRIVER}/l3Caches", {"int": len({cpu.l3_cache_id for cpu in here} - {None})}
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


COLLECTION: Final = f"/apis/{API_GROUP}/{API_VERSION}/{RESOURCE}"
WATCH_S: Final = 240
MAPPING_FEATURE: Final = "DRANodeAllocatableResources"
"""What a kubelet declares (from 1.37 on, if the gate is on): else the API server, which is never older, takes
no slice of its node that says what devices are made of (``plugin/pkg/admission/nodedeclaredfeatures``)."""
CAREFUL_US: Final = 600_000_000
"""So long after a refused claim only what all devices have together is published: the scheduler would send
the next one, as it adds up what each of them has alone."""


class _Pool(Struct, frozen=True, rename="camel"):
    generation: int = 0


class _Spec(Struct, frozen=True, rename="camel"):
    pool: _Pool = _Pool()


class _Metadata(Struct, frozen=True, rename="camel"):
    name: str = ""
    resource_version: str = ""
    annotations: dict[str, str] = field(default_factory=dict)


class _Slice(Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()


class _Slices(Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    items: tuple[_Slice, ...] = ()


class _Event(Struct, frozen=True):
    type: str
    object: _Slice


class _Room(Struct, frozen=True):
    """What is published; *jointly* as for `devices_of`."""

    snapshot: Snapshot
    jointly: bool

    def is_that_of(self, other: "_Room") -> bool:
        """Whether both have the same."""
        return is_same_room(self.snapshot, other.snapshot) and self.jointly == other.jointly


class SlicePublisher(Publisher[_Room]):
    """Publishes the room that *mirror* knows as devices of the node *node_name*. Nothing is published while
    another engine than `exact` decides: only that one keeps promises to claims."""

    def __init__(
        self,
        api: Api,
        mirror: Mirror,
        node_name: str,
        least_interval_s: float = LEAST_INTERVAL_S,
        again_after_s: float = AGAIN_AFTER_S,
        backoff: Backoff | None = None,
    ) -> None:
        condition = Condition(
            "the node's devices are not published", "the node's devices are published again"
        )
        super().__init__(condition, least_interval_s, again_after_s, backoff)
        self._api = api
        self._mirror = mirror
        self._node_name = node_name
        self._selector = urlencode({"fieldSelector": f"spec.nodeName={node_name},spec.driver={DRIVER}"})
        self._node_uid = ""
        self._maps = False
        self._takes_lists = True
        self._published: dict[str, str] | None = None
        """The digests of the slices that are there, by name; None while that is not known."""
        self._generation = 0
        self._version = ""
        self._listed = asyncio.Event()
        self._disturbed = asyncio.Event()

    async def run(self) -> None:
        """Publish until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run())
            tasks.create_task(self._watch())

    async def _next_basis(self, last: _Room | None) -> _Room:
        while True:
            seen, snapshot = self._mirror.revision, self._mirror.snapshot
            if self._disturbed.is_set():
                self._forget()
                last = None
            if snapshot is not None:
                room = _Room(snapshot, self._was_refused_lately())
                if last is None or not room.is_that_of(last):
                    return room
            await first_of(self._mirror.wait_for_change(seen), self._disturbed.wait())

    def _was_refused_lately(self) -> bool:
        """Whether what was published was more than claims can have at once."""
        since_us = time.time_ns() // 1000 - CAREFUL_US
        return any(
            one.at_us > since_us and is_claim_key(one.decision.request.container_id)
            for one in self._mirror.refusals
        )

    async def _publish(self, room: _Room) -> None:
        try:
            await self._write(room)
        except ApiError as error:
            if error.status != HTTPStatus.UNPROCESSABLE_ENTITY or not self._takes_lists:
                raise
            self._takes_lists = False
            await self._write(room)

    async def _write(self, room: _Room) -> None:
        basis = room.snapshot
        devices = (
            [] if basis.engine != EXACT else await asyncio.to_thread(devices_of, basis, jointly=room.jointly)
        )
        if self._published is None:
            node = await own_node(self._api, self._node_name)
            self._node_uid = node.uid
            self._maps = MAPPING_FEATURE in node.features
            await self._list()
        assert self._published is not None
        if not self._takes_lists:
            devices = [without_lists(device) for device in devices]
        if self._maps:
            devices = [with_mapping(device) for device in devices]
        wanted = self._slices(devices)
        if {name: _content(one) for name, one in wanted.items()} != self._published:
            self._generation += 1
            # All slices of a pool have one generation. Until the last of them has it the pool is incomplete.
            for name, one in self._slices(devices).items():
                # Before: the watch may tell of it sooner than the answer comes.
                self._published[name] = _content(one)
                await self._api.apply(f"{COLLECTION}/{name}", one, _Slice)
            for name in sorted(self._published.keys() - wanted.keys()):
                await self._delete(name)
        if basis.engine != EXACT:
            found = Problem("engine", basis.engine, f"{EXACT}, which alone keeps promises to claims")
            raise ConfigError("--cluster-tasks claims", (found,))

    def _slices(self, devices: list[Object]) -> dict[str, Object]:
        made = resource_slices(self._node_name, self._node_uid, devices, self._generation)
        return {one["metadata"]["name"]: one for one in made}

    async def _list(self) -> None:
        self._disturbed.clear()
        listed = await self._api.get(f"{COLLECTION}?{self._selector}", _Slices)
        known, newest = self._generation, max((one.spec.pool.generation for one in listed.items), default=0)
        self._generation = max(known, newest)
        # What has a generation that was never written here is somebody else's, whatever it says of itself.
        ours = not known or newest <= known
        self._published = {
            one.metadata.name: one.metadata.annotations.get(CONTENT, "")
            if ours and one.spec.pool.generation == self._generation
            else ""
            for one in listed.items
        }
        self._version = listed.metadata.resource_version
        self._listed.set()

    async def _delete(self, name: str) -> None:
        assert self._published is not None
        del self._published[name]
        try:
            await self._api.delete(f"{COLLECTION}/{name}")
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def _forget(self) -> None:
        self._published = None

    async def _watch(self) -> None:
        """See that what others delete or change is put right."""
        backoff = Backoff(random.random, first_s=1.0, limit_s=10.0)
        while True:
            await self._listed.wait()
            query = f"{self._selector}&{urlencode({'resourceVersion': self._version})}"
            try:
                await self._api.watch(COLLECTION, query, self._take, WATCH_S)
                backoff.reset()
            except (ApiError, UnavailableError, msgspec.ValidationError):
                # What happened meanwhile is not known: all is listed again, and said there if it cannot be.
                self._listed.clear()
                self._disturbed.set()
                await asyncio.sleep(backoff.next_s())

    def _take(self, told: Object) -> None:
        if told.get("type") == "ERROR":
            status = told.get("object") or {}
            raise ApiError(COLLECTION, int(status.get("code") or 0), str(status.get("message")))
        event = msgspec.convert(told, _Event)
        metadata = event.object.metadata
        self._version = metadata.resource_version or self._version
        known = self._published
        if event.type == "BOOKMARK" or known is None:
            return
        gone = event.type == "DELETED" and metadata.name in known
        newer = event.type != "DELETED" and event.object.spec.pool.generation > self._generation
        other = (
            event.type != "DELETED"
            and event.object.spec.pool.generation == self._generation
            and metadata.annotations.get(CONTENT) != known.get(metadata.name)
        )
        if gone or newer or other:
            self._disturbed.set()


def _content(one: Object) -> str:
    return str(one["metadata"]["annotations"][CONTENT])

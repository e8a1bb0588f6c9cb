"""Publishes the node's ResourceSlices: on each change of what claims can have, at most once a second.

kubelet deletes them when it starts, and when the driver was away for half a minute: they are watched, and
made again at once. Each change has a higher generation of the pool, as the scheduler takes the devices of the
highest one; the first is above all that the API server has of it.
"""

import asyncio
import random
import time
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

import msgspec
from msgspec import Struct, field

from bayplan.agent.cluster.api import Api, ApiError, Object
from bayplan.agent.cluster.own_node import own_node
from bayplan.agent.cluster.publisher import AGAIN_AFTER_S, LEAST_INTERVAL_S, Publisher, first_of, is_same_room
from bayplan.agent.condition import Condition
from bayplan.agent.dra.slices import (
    API_GROUP,
    API_VERSION,
    CONTENT,
    RESOURCE,
    devices_of,
    resource_slices,
    with_mapping,
    without_lists,
)
from bayplan.agent.mirror import Mirror
from bayplan.backoff import Backoff
from bayplan.engines.interface import EXACT
from bayplan.errors import ConfigError, Problem, UnavailableError
from bayplan.model.resource_claim import DRIVER, is_claim_key
from bayplan.views.snapshot import Snapshot

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

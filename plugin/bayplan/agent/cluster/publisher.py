"""Publishes the node's room and pods: on each change, at most once a second, and now and then again.

What others changed or deleted is thereby put right within minutes. Where it cannot go on it says so once
and tries again, less and less often; nothing is queued, since the next object says everything. That
others write the object too, as another agent under the same name does, is seen by its generation.
"""

import asyncio
import random
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from bayplan.agent.cluster.api import Api, ApiError, Object, pause_s
from bayplan.agent.cluster.events import NOT_PUBLISHED, OVERWRITTEN, Happening, on_node
from bayplan.agent.cluster.node_objects import API_GROUP, API_VERSION, RESOURCE, own_node, topology_object
from bayplan.agent.cluster.pods import AwaitedPods, PodName
from bayplan.agent.mirror import Mirror
from bayplan.backoff import Backoff, drawn
from bayplan.errors import ConfigError, UnavailableError
from bayplan.logs import Condition
from bayplan.views.snapshot import Snapshot


class _Metadata(Struct, frozen=True):
    uid: str = ""
    generation: int = 0


class Written(Struct, frozen=True):
    """What the API server answers to a write."""

    metadata: _Metadata = _Metadata()


class OtherWriters:
    """Whether others write the object too, seen by each write of one's own. *report* is called with *problem*
    when there is another writer; it is over when nobody else has written for *quiet_s*.

    The API server raises an object's generation by one with each change of its content. Between two writes of
    one's own it rises by one at most.
    """

    def __init__(self, problem: str, report: Callable[[str], None], quiet_s: float) -> None:
        self._problem = problem
        self._report = report
        self._quiet_s = quiet_s
        self._condition = Condition(
            "the node's room is written by others, too", "the node's room is written by nobody else any more"
        )
        self._last = _Metadata()
        self._seen_s = float("-inf")

    def wrote(self, written: Written) -> None:
        """Take the answer to a write of one's own."""
        last, self._last = self._last, written.metadata
        now_s = time.monotonic()
        if last.uid == self._last.uid and last.generation + 1 < self._last.generation:
            self._seen_s = now_s
            if self._condition.holds(self._problem) == 1:
                self._report(self._problem)
        elif self._seen_s + self._quiet_s <= now_s:
            self._condition.over()

    def failed(self) -> None:
        """A write failed, and may have been carried out all the same: the next one says nothing about
        others."""
        self._last = _Metadata()


LEAST_INTERVAL_S: Final = 1.0
AGAIN_AFTER_S: Final = 300.0
RETRY_LIMIT_S: Final = 10.0

_REPORTED_AT: Final = 2
"""In a row: an API server that starts denies everything until it has read its roles."""
_QUIET_INTERVALS: Final = 3
"""Without another writer, which writes in each as this one does."""
_GROUP_PATH: Final = f"/apis/{API_GROUP}"
_COLLECTION: Final = f"{_GROUP_PATH}/{API_VERSION}/{RESOURCE}"


class _GroupVersion(Struct):
    version: str


class _Group(Struct):
    versions: list[_GroupVersion]


Basis = TypeVar("Basis")


class Publisher(ABC, Generic[Basis]):
    """Publishes what follows from a basis, as soon as there is another one: at most once in
    *least_interval_s*, after a failure less and less often, and from nothing again within *again_after_s*, as
    others may have changed what is published; not sooner than after half of it, drawn each time."""

    def __init__(
        self,
        condition: Condition,
        least_interval_s: float = LEAST_INTERVAL_S,
        again_after_s: float = AGAIN_AFTER_S,
        backoff: Backoff | None = None,
    ) -> None:
        self._condition = condition
        self._least_interval_s = least_interval_s
        self._again_after_s = again_after_s
        self._backoff = backoff or Backoff(random.random, first_s=1.0, limit_s=RETRY_LIMIT_S)

    async def run(self) -> None:
        """Publish until cancelled."""
        last: Basis | None = None
        while True:
            try:
                again_s = drawn(random.random, self._again_after_s / 2, self._again_after_s)
                async with asyncio.timeout(again_s):
                    last = await self._next_basis(last)
            except TimeoutError:
                last = None
                self._forget()
                continue
            try:
                await self._publish(last)
            except (ApiError, ConfigError, UnavailableError) as error:
                await self._not_published(error)
                last = None
                self._forget()
                await asyncio.sleep(pause_s(self._backoff, error))
            else:
                self._condition.over()
                self._backoff.reset()
                await asyncio.sleep(self._least_interval_s)

    @abstractmethod
    async def _next_basis(self, last: Basis | None) -> Basis:
        """The basis, once it is another one than *last*."""

    @abstractmethod
    async def _publish(self, basis: Basis) -> None:
        """Publish what follows from *basis*, unless that is published."""

    @abstractmethod
    def _forget(self) -> None:
        """Have the next basis published whatever is published now."""

    async def _not_published(self, error: ApiError | ConfigError | UnavailableError) -> None:
        self._condition.holds(str(error))


def is_same_room(one: Snapshot, two: Snapshot) -> bool:
    """Whether both are the same values for what is published: each change makes another object."""
    return one.machine is two.machine and one.policy is two.policy and one.ledger is two.ledger


class _Basis(Struct, frozen=True):
    """All that the published object is made of."""

    snapshot: Snapshot
    awaited: frozenset[PodName]

    def is_that_of(self, other: "_Basis") -> bool:
        """Whether both have the same."""
        return is_same_room(self.snapshot, other.snapshot) and self.awaited == other.awaited


class TopologyPublisher(Publisher[_Basis]):
    """Publishes what *mirror* and *awaited* know as the room and pods of the node *node_name*. *report* is
    called with what an operator has to put right."""

    def __init__(
        self,
        api: Api,
        mirror: Mirror,
        awaited: AwaitedPods,
        node_name: str,
        report: Callable[[Happening], None] | None = None,
        least_interval_s: float = LEAST_INTERVAL_S,
        again_after_s: float = AGAIN_AFTER_S,
        backoff: Backoff | None = None,
    ) -> None:
        condition = Condition("the node's room is not published", "the node's room is published again")
        super().__init__(condition, least_interval_s, again_after_s, backoff)
        self._api = api
        self._mirror = mirror
        self._awaited = awaited
        self._node_name = node_name
        self._report = report
        self._others = OtherWriters(
            f"{_COLLECTION}/{node_name}: changed in between; has another agent this --node-name?",
            lambda problem: self._report_problem(OVERWRITTEN, problem),
            _QUIET_INTERVALS * again_after_s,
        )
        self._node_uid = ""
        self._published: Object | None = None

    async def _next_basis(self, last: _Basis | None) -> _Basis:
        while True:
            seen, snapshot, awaited = self._mirror.revision, self._mirror.snapshot, self._awaited.names
            if snapshot is not None:
                basis = _Basis(snapshot, awaited)
                if last is None or not basis.is_that_of(last):
                    return basis
            await first_of(self._mirror.wait_for_change(seen), self._awaited.wait_for_change(awaited))

    async def _publish(self, basis: _Basis) -> None:
        if self._published is None:
            # Another node object of this name has another uid, and would leave this one to be collected.
            self._node_uid = (await own_node(self._api, self._node_name)).uid
        wanted = await asyncio.to_thread(
            topology_object, self._node_name, self._node_uid, basis.snapshot, basis.awaited
        )
        if wanted != self._published:
            written = await self._api.apply(f"{_COLLECTION}/{self._node_name}", wanted, Written)
            self._published = wanted
            self._others.wrote(written)

    def _forget(self) -> None:
        self._published = None

    async def _not_published(self, error: ApiError | ConfigError | UnavailableError) -> None:
        self._others.failed()
        problem = await self._explained(error)
        times = self._condition.holds(problem)
        if times == _REPORTED_AT and not isinstance(error, UnavailableError):
            self._report_problem(NOT_PUBLISHED, problem)

    def _report_problem(self, reason: str, problem: str) -> None:
        """Say which agent it is: perhaps not the node's own."""
        if self._report is not None:
            note = f"bayplan-agent on {socket.gethostname()}: {problem}"
            self._report(on_node(self._node_name, reason, note))

    async def _explained(self, error: ApiError | ConfigError | UnavailableError) -> str:
        if isinstance(error, ApiError) and error.path.startswith(_GROUP_PATH):
            if error.status == HTTPStatus.NOT_FOUND:
                return await self._missing()
            if error.status == HTTPStatus.CONFLICT:
                return f"{error}; is another publisher of {RESOURCE} at work?"
        return str(error)

    async def _missing(self) -> str:
        """Why the API server has no such resource."""
        try:
            group = await self._api.get(_GROUP_PATH, _Group)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                return str(error)
            return f"the cluster has no {RESOURCE}.{API_GROUP}: install its CustomResourceDefinition"
        except UnavailableError as error:
            return str(error)
        served = ", ".join(one.version for one in group.versions)
        return f"the cluster serves {RESOURCE}.{API_GROUP} as {served}, not as {API_VERSION}"


async def remove_topology(api: Api, node_name: str) -> bool:
    """Delete the object of the node *node_name*; whether there was one. Raises ApiError, UnavailableError."""
    try:
        await api.delete(f"{_COLLECTION}/{node_name}")
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return False
    return True


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of them is done."""
    tasks = [asyncio.create_task(one) for one in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()

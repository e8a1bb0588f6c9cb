"""Events (events.k8s.io/v1): on pods that containers were refused, placed less well than asked, or moved,
and that the pod is evicted; on the Node that its room is not published as it should be.

Rate-limited: of each container and reason one request in half a minute, in which repetitions are counted; in
all 25 requests at once and then one in five seconds, five a second at most. What the API server cannot take
now is reported later, for the latest containers; what it refuses is not reported again, nor what happened
before the agent knew the daemon.
"""

import asyncio
import contextlib
import datetime as dt
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from http import HTTPStatus
from typing import Final

from msgspec import Struct

from bayplan.agent.cluster.api import Api, ApiError, Object, pause_s
from bayplan.agent.mirror import Mirror
from bayplan.agent_protocol import Evicted
from bayplan.backoff import Allowance, Backoff
from bayplan.errors import UnavailableError
from bayplan.logs import Condition
from bayplan.model.decision import MOVED_OVER, RELOCATED, Decision, Outcome
from bayplan.model.kubelet_requests import ContainerKind, PodFacts
from bayplan.model.ledger import Ledger
from bayplan.model.sentences import summary
from bayplan.model.workload import parts_in_pod
from bayplan.quantity import US_PER_S

REFUSED: Final = "PlacementRefused"
DEGRADED: Final = "PlacementDegraded"
MOVED: Final = "PlacementMoved"
EVICTED: Final = "Evicted"
"""kubelet's own word."""
NOT_PUBLISHED: Final = "TopologyNotPublished"
OVERWRITTEN: Final = "TopologyOverwritten"


class Happening(Struct, frozen=True):
    """What happened to the container *container* of the pod *name*, or to all of the pod if that is empty, or
    to the Node *name* if *namespace* is, too: *reason* is a word for programs, *note* a sentence, of pods the
    one that `bayplan explain` has for it."""

    namespace: str
    name: str
    container: str
    reason: str
    note: str
    annotations: Mapping[str, str] = {}


def refused(decision: Decision) -> Iterator[Happening]:
    """That a container was refused by *decision*."""
    yield from _of(decision, REFUSED, summary(decision))


def evicted(message: Evicted) -> Iterator[Happening]:
    """That a pod is evicted, with kubelet's message."""
    parts = parts_in_pod(message.record.name)
    if parts is not None:
        namespace, pod, _ = parts
        yield Happening(namespace, pod, "", EVICTED, message.record.message.strip(), message.annotations)


def on_node(node_name: str, reason: str, note: str) -> Happening:
    """Something that concerns a whole node."""
    return Happening("", node_name, "", reason, note)


def between(before: Ledger, after: Ledger) -> Iterator[Happening]:
    """What happened to containers when *before* became *after*."""
    for container_id in sorted(after.entries.differing_keys(before.entries)):
        entry, former = after.entries.get(container_id), before.entries.get(container_id)
        if entry is None:
            continue
        decision, earlier = entry.decision, None if former is None else former.decision
        if decision.outcome is Outcome.DEGRADED and (
            earlier is None or earlier.outcome is not decision.outcome
        ):
            yield from _of(decision, DEGRADED, summary(decision))
        moved = _moved(decision)
        if moved and (earlier is None or _moved(earlier) != moved):
            yield from _of(decision, MOVED, moved)


def _moved(decision: Decision) -> str:
    return next((reason.text for reason in decision.reasons if reason.code in (MOVED_OVER, RELOCATED)), "")


def _of(decision: Decision, reason: str, sentence: str) -> Iterator[Happening]:
    """What happened to the container of *decision*; nothing of a container that is in no pod."""
    parts = parts_in_pod(decision.request.name)
    if parts is not None:
        namespace, pod, container = parts
        yield Happening(namespace, pod, container, reason, f"container {container}: {sentence}")


SERIES_INTERVAL_S: Final = 30.0
LEAST_INTERVAL_S: Final = 0.2
AT_ONCE: Final = 25
PER_S: Final = 0.2
"""What a deployment that no node can have costs a cluster while it lasts: with 10,000 nodes 2,000 writes a
second. Of client-go's recorder one object has 25 at once, too."""
MAX_SERIES: Final = 1000
RETRY_LIMIT_S: Final = 30.0

_NS_PER_US: Final = 1000
_CONTROLLER: Final = "bayplan.dev/agent"
_NAMESPACE_OF_NODES: Final = "default"
"""Of events on what has no namespace; source: legacyValidateEvent, in the same file as the next one."""
_MAX_NOTE_BYTES: Final = 1024
"""Of the API server; source: ValidateEventCreate, pkg/apis/core/validation/events.go."""

_ACTIONS: Final = {
    REFUSED: "CreateContainer",
    DEGRADED: "CreateContainer",
    MOVED: "MoveContainer",
    EVICTED: "EvictPod",
    NOT_PUBLISHED: "PublishTopology",
    OVERWRITTEN: "PublishTopology",
}


class _Series(Struct):
    """A happening and its repetitions, *count* in all. The API server knows of *reported* of them, in an
    event called *name*, since *reported_s* (monotonic)."""

    latest: Happening
    first_us: int
    last_us: int
    count: int = 1
    reported: int = 0
    reported_s: float = float("-inf")

    @property
    def name(self) -> str:
        return f"{self.latest.name}.{self.first_us:x}"

    @property
    def namespace(self) -> str:
        return self.latest.namespace or _NAMESPACE_OF_NODES


class EventRecorder:
    """Reports as events what *mirror* learns about the pods of the node *node_name*, and what is passed to
    `report`. *pod_named* gives what else is known of a pod."""

    def __init__(
        self,
        api: Api,
        mirror: Mirror,
        node_name: str,
        pod_named: Callable[[str, str], PodFacts | None],
        series_interval_s: float = SERIES_INTERVAL_S,
        backoff: Backoff | None = None,
    ) -> None:
        self._api = api
        self._mirror = mirror
        self._node_name = node_name
        self._pod_named = pod_named
        self._series_interval_s = series_interval_s
        self._backoff = backoff or Backoff(random.random, first_s=0.5, limit_s=RETRY_LIMIT_S)
        self._allowance = Allowance(PER_S, AT_ONCE)
        self._condition = Condition("events are not recorded", "events are recorded again")
        self._series: dict[tuple[str, ...], _Series] = {}
        self._news = asyncio.Event()
        self._was_away = False
        """Whether the API server has taken nothing since it did not answer."""
        self._ledger: Ledger | None = None
        self._refused: Collection[tuple[int, str]] = ()
        """What is known already: the ledger, and refusals and evictions by their moment and container."""
        self._evicted: Collection[tuple[int, str]] = ()

    async def run(self) -> None:
        """Report until cancelled."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._notice_all())
            both.create_task(self._tell_all())

    def report(self, happened: Happening) -> None:
        """Report what has just happened."""
        self._notice(_now_us(), happened)

    async def _notice_all(self) -> None:
        while True:
            seen, snapshot = self._mirror.revision, self._mirror.snapshot
            if snapshot is not None:
                self._compare(snapshot.ledger)
            await self._mirror.wait_for_change(seen)

    def _compare(self, ledger: Ledger) -> None:
        """Notice what is new since the last time; the first time nothing is."""
        refusals = {(one.at_us, one.decision.request.container_id): one for one in self._mirror.refusals}
        evictions = {(one.record.at_us, one.record.container_id): one for one in self._mirror.evictions}
        if self._ledger is not None:
            for key, one in refusals.items():
                if key not in self._refused:
                    self._notice(one.at_us, *refused(one.decision))
            for key, eviction in evictions.items():
                if key not in self._evicted:
                    self._notice(eviction.record.at_us, *evicted(eviction))
            if self._ledger is not ledger:
                self._notice(_now_us(), *between(self._ledger, ledger))
        self._ledger, self._refused, self._evicted = ledger, refusals.keys(), evictions.keys()

    def _notice(self, at_us: int, *happened: Happening) -> None:
        for one in happened:
            key = (one.namespace, one.name, one.container, one.reason)
            series = self._series.pop(key, None)
            if series is None:
                series = _Series(one, at_us, at_us)
            elif series.latest == one:
                series.count, series.last_us = series.count + 1, at_us
            else:
                # Its words cannot be changed; a new event, no sooner than the old one could be.
                series = _Series(one, at_us, at_us, reported_s=series.reported_s)
            self._series[key] = series
            if len(self._series) > MAX_SERIES:
                del self._series[next(iter(self._series))]
            self._news.set()

    async def _tell_all(self) -> None:
        while True:
            self._news.clear()
            unreported = [series for series in self._series.values() if series.reported < series.count]
            now_s = time.monotonic()
            due = [one for one in unreported if one.reported_s + self._series_interval_s <= now_s]
            for series in due:
                await self._tell_or_keep(series)
            if not due:
                soonest_s = min(
                    (one.reported_s + self._series_interval_s - now_s for one in unreported), default=None
                )
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(soonest_s):
                        await self._news.wait()

    async def _tell_or_keep(self, series: _Series) -> None:
        reported = series.count
        try:
            await self._tell(series)
        except UnavailableError as error:
            self._was_away = True
            await self._wait(error)
            return
        except ApiError as error:
            if self._may_pass(error):
                await self._wait(error)
                return
            self._condition.holds(str(error))
        else:
            self._was_away = False
            self._condition.over()
            self._backoff.reset()
        series.reported, series.reported_s = reported, time.monotonic()
        await asyncio.sleep(max(LEAST_INTERVAL_S, self._allowance.wait_s(1, time.monotonic())))

    def _may_pass(self, error: ApiError) -> bool:
        """Whether the API server may take it later. One that has just started knows no roles yet."""
        return (
            error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
            or error.status == HTTPStatus.TOO_MANY_REQUESTS
            or (self._was_away and error.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
        )

    async def _wait(self, error: ApiError | UnavailableError) -> None:
        self._condition.holds(str(error))
        await asyncio.sleep(pause_s(self._backoff, error))

    async def _tell(self, series: _Series) -> None:
        collection = f"/apis/events.k8s.io/v1/namespaces/{series.namespace}/events"
        if not series.reported and (await self._created(collection, series) or series.count == 1):
            return
        try:
            await self._api.merge(f"{collection}/{series.name}", _repeated(series))
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            # The API server keeps events for an hour only.
            series.first_us = series.last_us
            await self._created(collection, series)

    async def _created(self, collection: str, series: _Series) -> bool:
        """Make the event; False if it is there, as the answer to an earlier attempt was lost."""
        try:
            await self._api.create(collection, self._event(series))
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            return False
        return True

    def _event(self, series: _Series) -> Object:
        one = series.latest
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"namespace": series.namespace, "name": series.name} | _annotations(one),
            "eventTime": _micro_time(series.first_us),
            "reportingController": _CONTROLLER,
            "reportingInstance": self._node_name,
            "action": _ACTIONS[one.reason],
            "reason": one.reason,
            "regarding": self._regarding(one),
            "note": _cut(one.note),
            "type": "Normal" if one.reason == MOVED else "Warning",
            **(_repeated(series) if series.count > 1 else {}),
        }

    def _regarding(self, one: Happening) -> Object:
        if not one.namespace:
            # As kubelet has it, where `kubectl describe node` finds it.
            return {"apiVersion": "v1", "kind": "Node", "name": one.name, "uid": one.name}
        regarding = {"apiVersion": "v1", "kind": "Pod", "namespace": one.namespace, "name": one.name}
        pod = self._pod_named(one.namespace, one.name)
        return regarding if pod is None else regarding | {"uid": pod.uid} | _field_path(pod, one.container)


def _now_us() -> int:
    return time.time_ns() // _NS_PER_US


def _repeated(series: _Series) -> Object:
    return {"series": {"count": series.count, "lastObservedTime": _micro_time(series.last_us)}}


def _annotations(one: Happening) -> Object:
    return {"annotations": dict(one.annotations)} if one.annotations else {}


def _field_path(pod: PodFacts, container: str) -> Object:
    if not container:
        return {}
    known = pod.container(container)
    init = known is not None and known.kind is not ContainerKind.MAIN
    return {"fieldPath": f"spec.{'initContainers' if init else 'containers'}{{{container}}}"}


def _micro_time(at_us: int) -> str:
    moment = dt.datetime.fromtimestamp(at_us // US_PER_S, dt.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_us % US_PER_S:06}Z"


def _cut(note: str) -> str:
    encoded = note.encode()
    if len(encoded) <= _MAX_NOTE_BYTES:
        return note
    return encoded[: _MAX_NOTE_BYTES - 3].decode(errors="ignore") + "..."

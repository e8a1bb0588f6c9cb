"""This node's pods at the API server: listed, then each change, as a watch tells them; and evicted
(policy/v1), where the daemon decided so: a controller makes another one, and disruption budgets are
respected.

What kubelet says itself is nearer to what runs, so that nothing is said to the daemon while another source
knows more; the pods are followed all the same, to be known at once when they are needed, and for their uids.
While the API server is away, what it said last stays known.

Only what the daemon asks for is evicted, one after the other, each answered once. An answer comes before the
daemon has done with waiting (`bayplan.daemon.eviction.ANSWER_S`): a pod that could not be evicted in time is
ended by the daemon.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import Final, Protocol
from urllib.parse import quote, urlencode

import msgspec

from bayplan.agent.cluster.api import Api, ApiError, Object, pause_s
from bayplan.agent.kubelet_pods import PodKeeper, pod_of_object
from bayplan.agent.mirror import DaemonLink
from bayplan.agent_protocol import EvictionAnswer, EvictionOutcome, EvictPod
from bayplan.backoff import Backoff
from bayplan.errors import ParseError, UnavailableError
from bayplan.logs import Condition
from bayplan.model.kubelet_requests import PodFacts

AWAITED_LIMIT_S: Final = 60.0
"""Then a pod is counted no more: one that never starts would keep the scheduler from comparing at all."""

PodName = tuple[str, str]
"""Namespace and name."""


class AwaitedPods:
    """Pods that are bound to this node and hold no promise yet, since their containers are still to be
    created. ``names`` are the present ones, each for *limit_s* at most.

    A scheduler that compares fingerprints counts what it has placed itself until the publisher knows the same
    pods. It compares with running pods only: were these pods not in the fingerprint, it would stop counting a
    pod between its binding and its creation, and give its room to another one.
    """

    def __init__(self, limit_s: float = AWAITED_LIMIT_S) -> None:
        self.names: frozenset[PodName] = frozenset()
        self._limit_s = limit_s
        self._pending: dict[str, PodName | None] = {}
        """By uid; None after the limit."""
        self._news = asyncio.Event()

    def keep(self, pending: Mapping[str, PodName]) -> None:
        """Take over *pending*, all pods of the node that are pending, by uid."""
        for uid in pending.keys() - self._pending.keys():
            asyncio.get_running_loop().call_later(self._limit_s, self._give_up, uid)
        self._pending = {uid: self._pending.get(uid, name) for uid, name in pending.items()}
        self._look()

    async def wait_for_change(self, seen: frozenset[PodName]) -> None:
        """Wait until ``names`` are not *seen*."""
        while self.names == seen:
            await self._news.wait()

    def _give_up(self, uid: str) -> None:
        if uid in self._pending:
            self._pending[uid] = None
            self._look()

    def _look(self) -> None:
        names = frozenset(name for name in self._pending.values() if name is not None)
        if names != self.names:
            self.names = names
            self._news.set()
            self._news = asyncio.Event()


logger = logging.getLogger(__name__)

WATCH_S: Final = 240
"""To twice as long; then the server ends the watch, and the next one goes on where it was."""

RETRY_AWAITED_LIMIT_S: Final = 30.0
_PODS: Final = "/api/v1/pods"
_ANY: Final = "0"
_TOO_LARGE: Final = "ResourceVersionTooLarge"
"""Source: CauseTypeResourceVersionTooLarge, apimachinery, pkg/apis/meta/v1/types.go."""
_PENDING: Final = "Pending"
_MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of the API server's copy of a static pod: the uid by which kubelet and the runtime know it."""


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Status(msgspec.Struct):
    phase: str = ""


class _Item(msgspec.Struct):
    metadata: _Metadata
    status: _Status | None = None


class _List(_Item):
    items: list[Object] | None = None


class _Event(msgspec.Struct):
    type: str
    object: Object


class ObjectKeeper(Protocol):
    """Takes pods as the API server has them, with the uids by which kubelet knows them."""

    def know(self, pod: Object) -> None:
        """Take over *pod* as it is now."""

    def forget(self, uid: str) -> None:
        """The pod with that uid is gone."""

    def keep(self, uids: Collection[str]) -> None:
        """All pods but those with these uids are gone."""


class ApiPodWatch:
    """Follows the pods of the node *node_name*: into *keeper*, unless *needless* says that another source
    knows more; those that are pending into *awaited*; and all as objects into *objects*."""

    def __init__(
        self,
        api: Api,
        node_name: str,
        keeper: PodKeeper,
        awaited: AwaitedPods,
        needless: Callable[[], bool] = lambda: False,
        backoff: Backoff | None = None,
        objects: ObjectKeeper | None = None,
    ) -> None:
        self._api = api
        self._objects = objects
        self._query = urlencode({"fieldSelector": f"spec.nodeName={node_name}"})
        self._keeper = keeper
        self._awaited = awaited
        self._needless = needless
        self._backoff = backoff or Backoff(random.random, first_s=0.5, limit_s=RETRY_AWAITED_LIMIT_S)
        self._condition = Condition(
            "the API server's pods are not followed", "the API server's pods are followed again"
        )
        self._pods: dict[str, PodFacts] = {}
        self._pending: dict[str, PodName] = {}
        self._version = ""
        """The resourceVersion up to which everything is known, empty if that is to be listed."""
        self._newest = _ANY

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            error: Exception | None = None
            try:
                await self._follow()
            except (ApiError, UnavailableError, msgspec.ValidationError) as problem:
                error = problem
                self._not_followed(problem)
            await asyncio.sleep(pause_s(self._backoff, error))

    def _not_followed(self, error: ApiError | UnavailableError | msgspec.ValidationError) -> None:
        if isinstance(error, ApiError) and error.status == HTTPStatus.GONE:
            self._version = ""  # It does not have the changes since then any more.
        elif isinstance(error, msgspec.ValidationError):
            self._condition.holds(f"{_PODS}: not what an API server answers: {error}")
        else:
            self._condition.holds(str(error))

    async def _follow(self) -> None:
        if not self._version:
            await self._list_anew()
        query = f"{self._query}&{urlencode({'resourceVersion': self._version})}"
        await self._api.watch(_PODS, query, self._take, WATCH_S)

    async def _list_anew(self) -> None:
        """List all pods, from what the API server has in memory, no older than what was known. Without a
        version, API servers before Kubernetes 1.31 read the pods of the whole cluster from etcd, for each
        node."""
        query = f"{self._query}&{urlencode({'resourceVersion': self._newest})}"
        try:
            self._list(await self._api.get(f"{_PODS}?{query}", _List))
        except ApiError as error:
            if _TOO_LARGE in error.causes:
                self._newest = _ANY  # As after etcd was restored from a backup.
            raise

    def _list(self, listed: _List) -> None:
        self._pods, self._pending = {}, {}
        for item in listed.items or ():
            self._know(item, msgspec.convert(item, _Item))
        if self._objects is not None:
            self._objects.keep(self._pods.keys())
        self._progress(listed.metadata)

    def _take(self, told: Object) -> None:
        event = msgspec.convert(told, _Event)
        if event.type == "ERROR":
            raise ApiError(_PODS, int(event.object.get("code") or 0), str(event.object.get("message")))
        one = msgspec.convert(event.object, _Item)
        if event.type in {"ADDED", "MODIFIED"}:
            self._know(event.object, one)
        elif event.type == "DELETED":
            self._pods.pop(_uid(one.metadata), None)
            self._pending.pop(_uid(one.metadata), None)
            if self._objects is not None:
                self._objects.forget(_uid(one.metadata))
        self._progress(one.metadata)

    def _know(self, item: Object, one: _Item) -> None:
        """Take over the pod *item*, which was decoded as *one*. A pod that cannot be read does not hide
        others."""
        item["metadata"]["uid"] = uid = _uid(one.metadata)
        try:
            self._pods[uid] = pod = pod_of_object(item)
        except ParseError as error:
            logger.warning("a pod cannot be read", extra={"problem": str(error)})
            return
        if self._objects is not None:
            self._objects.know(item)
        self._pending.pop(uid, None)
        if one.status is not None and one.status.phase == _PENDING:
            self._pending[uid] = (pod.namespace, pod.name)

    def _progress(self, metadata: _Metadata) -> None:
        """Note that everything up to the version in *metadata* is known."""
        self._version = self._newest = metadata.resource_version or self._version
        self._condition.over()
        self._backoff.reset()
        self._awaited.keep(self._pending)
        if not self._needless():
            self._keeper.keep(dict(self._pods))


def _uid(metadata: _Metadata) -> str:
    return (metadata.annotations or {}).get(_MIRROR) or metadata.uid


EVICTION_TIMEOUT_S: Final = 4.0
"""For the API server: less than the daemon waits."""

_BUDGET: Final = "DisruptionBudget"
"""Source: DisruptionBudgetCause, k8s.io/api/policy/v1/types.go."""


class PodEvictions:
    """Answers on *link* what *api* says of each eviction."""

    def __init__(self, api: Api, link: DaemonLink) -> None:
        self._api = api
        self._link = link
        self._asked: asyncio.Queue[EvictPod] = asyncio.Queue()
        link.evict = self._asked.put_nowait

    async def run(self) -> None:
        """Carry out what is asked for until cancelled."""
        while True:
            asked = await self._asked.get()
            self._link.answer(await self._evict(asked))

    async def _evict(self, asked: EvictPod) -> EvictionAnswer:
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": asked.namespace, "name": asked.name},
            # Another pod may have got the name.
            "deleteOptions": {"gracePeriodSeconds": asked.grace_s, "preconditions": {"uid": asked.uid}},
        }
        path = f"/api/v1/namespaces/{quote(asked.namespace, '')}/pods/{quote(asked.name, '')}/eviction"
        try:
            await self._api.create(path, eviction)
        except ApiError as error:
            # By its status alone it might as well be an API server with too much to do.
            later = _BUDGET in error.causes
            outcome = EvictionOutcome.LATER if later else EvictionOutcome.REFUSED
            return EvictionAnswer(asked.uid, outcome, str(error))
        except UnavailableError as error:
            return EvictionAnswer(asked.uid, EvictionOutcome.REFUSED, str(error))
        return EvictionAnswer(asked.uid, EvictionOutcome.ACCEPTED)

"""This node's pods as the API server has them: listed, then each change, as a watch tells them.

What kubelet says itself is nearer to what runs, so that nothing is said to the daemon while another source
knows more; the pods are followed all the same, to be there at once, and for their uids. While the API server
is away, what it said last stays known.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Final, Protocol
from urllib.parse import urlencode

import msgspec

from bayplan.agent.cluster.api import Api, ApiError, Object
from bayplan.agent.cluster.awaited_pods import AwaitedPods, PodName
from bayplan.agent.condition import Condition
from bayplan.agent.kubelet_pods.pod_spec import pod_of_object
from bayplan.agent.kubelet_pods.watch import PodKeeper
from bayplan.backoff import Backoff
from bayplan.errors import ParseError, UnavailableError
from bayplan.model.pod_facts import PodFacts

logger = logging.getLogger(__name__)

WATCH_S: Final = 240
"""The server ends the watch after this time; the next one continues where it was."""

RETRY_LIMIT_S: Final = 30.0
_PODS: Final = "/api/v1/pods"
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
        """The pod is so now."""

    def forget(self, uid: str) -> None:
        """There is no such pod any more."""

    def keep(self, uids: Collection[str]) -> None:
        """There are no others."""


class ApiPodWatch:
    """Follows the pods of the node *node_name* into *keeper*, unless that is *needless*, as another source
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
        self._backoff = backoff or Backoff(random.random, first_s=0.5, limit_s=RETRY_LIMIT_S)
        self._condition = Condition(
            "the API server's pods are not followed", "the API server's pods are followed again"
        )
        self._pods: dict[str, PodFacts] = {}
        self._pending: dict[str, PodName] = {}
        self._version = ""
        """The resourceVersion up to which everything is known, empty if that is to be listed."""

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self._follow()
            except (ApiError, UnavailableError) as error:
                if isinstance(error, ApiError) and error.status == HTTPStatus.GONE:
                    self._version = ""  # It does not have the changes since then any more.
                else:
                    self._condition.holds(str(error))
            except msgspec.ValidationError as error:
                self._condition.holds(f"{_PODS}: not what an API server answers: {error}")
            await asyncio.sleep(self._backoff.next_s())

    async def _follow(self) -> None:
        if not self._version:
            self._list(await self._api.get(f"{_PODS}?{self._query}", _List))
        query = f"{self._query}&{urlencode({'resourceVersion': self._version})}"
        await self._api.watch(_PODS, query, self._take, WATCH_S)

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
        """Take over the pod *item*, which is *one*. One that cannot be read hides no other one."""
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
        """Everything up to the version in *metadata* is known; say it."""
        self._version = metadata.resource_version or self._version
        self._condition.over()
        self._backoff.reset()
        self._awaited.keep(self._pending)
        if not self._needless():
            self._keeper.keep(dict(self._pods))


def _uid(metadata: _Metadata) -> str:
    return (metadata.annotations or {}).get(_MIRROR) or metadata.uid

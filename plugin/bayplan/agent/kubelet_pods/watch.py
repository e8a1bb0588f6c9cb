"""kubelet's Pods service (KEP-4188, feature gate PodsAPI): all pods, then each change of one as it comes.

kubelet ends the stream of a client that is slow, and of every client when it stops; it is opened again. A pod
that cannot be read is reported and passed over: one odd pod must not hide all others.
"""

import asyncio
import logging
import random
from pathlib import Path
from typing import Any, Final, Protocol

import grpc

from bayplan._proto.pods import api_pb2 as pb
from bayplan.agent.kubelet_pods.pod_spec import pod_of_bytes
from bayplan.agent.protobuf import decoded
from bayplan.backoff import Backoff
from bayplan.errors import ParseError
from bayplan.model.pod_facts import PodFacts

logger = logging.getLogger(__name__)

MAX_EVENT_BYTES: Final = 4 << 20
"""etcd takes no pod of more than 1.5 MiB."""

RETRY_LIMIT_S: Final = 10.0
_KEEPALIVE_MS: Final = 30_000
_WATCH: Final = "/v1alpha1.Pods/WatchPods"


class PodKeeper(Protocol):
    """Takes what kubelet says of pods."""

    def know(self, pod: PodFacts) -> None:
        """Kubelet says this of *pod* now."""

    def forget(self, uid: str) -> None:
        """Kubelet does not have that pod any more."""

    def keep(self, pods: dict[str, PodFacts]) -> None:
        """These, by uid, are all pods that kubelet has."""


class PodWatch:
    """Follows the service at *socket* into *keeper*. ``in_sync``: all pods are known, and every change
    comes."""

    def __init__(self, socket: Path, keeper: PodKeeper, backoff: Backoff | None = None) -> None:
        self.in_sync = False
        self._socket = socket
        self._keeper = keeper
        self._backoff = backoff or Backoff(random.random, limit_s=RETRY_LIMIT_S)
        self._noted = ""

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self._follow()
                self._note("kubelet ended the stream")
            except grpc.aio.AioRpcError as error:
                self._note(f"{error.code().name}: {error.details()}")
            except ParseError as error:
                self._note(f"an event cannot be read: {error}")
            finally:
                self.in_sync = False
            await asyncio.sleep(self._backoff.next_s())

    async def _follow(self) -> None:
        options = [
            ("grpc.max_receive_message_length", MAX_EVENT_BYTES),
            ("grpc.enable_http_proxy", 0),
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ]
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel:
            watch = channel.unary_stream(_WATCH, request_serializer=pb.WatchPodsRequest.SerializeToString)
            await self._take(watch(pb.WatchPodsRequest()))

    async def _take(self, events: Any) -> None:
        found: dict[str, PodFacts] | None = {}
        """All pods of the first list, until that is complete."""
        async for encoded in events:
            event = decoded(pb.WatchPodsEvent, encoded)
            if event.type == pb.INITIAL_SYNC_COMPLETE:
                self._keeper.keep(found or {})
                found, self.in_sync, self._noted = None, True, ""
                self._backoff.reset()
                logger.info("following kubelet's pods", extra={"socket": str(self._socket)})
                continue
            try:
                pod = pod_of_bytes(event.pod)
            except ParseError as error:
                logger.warning("a pod cannot be read", extra={"problem": str(error)})
                continue
            if event.type == pb.DELETED:
                self._keeper.forget(pod.uid)
            else:
                self._keeper.know(pod)
                if found is not None:
                    found[pod.uid] = pod

    def _note(self, problem: str) -> None:
        """Log *problem*, unless it is the last one again."""
        if problem != self._noted:
            self._noted = problem
            logger.info("kubelet's Pods API is not there", extra={"problem": problem})

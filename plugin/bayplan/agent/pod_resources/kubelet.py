"""kubelet's own PodResources service, asked for what only kubelet knows.

All who ask at the same moment get the same answer of kubelet, which limits how often it is asked. A failure
holds for a moment too, so that not each of many clients waits for the deadline.
"""

import asyncio
import os
from pathlib import Path
from typing import Any, Final

import grpc

from bayplan._proto.podresources import api_pb2 as pb
from bayplan.agent.condition import Condition
from bayplan.agent.protobuf import decoded
from bayplan.errors import ParseError, UnavailableError

DEADLINE_S: Final = 2.0
FAILURE_HOLDS_S: Final = 1.0
MAX_ANSWER_BYTES: Final = 16 << 20
"""What kubelet's clients allow; grpc's own limit is 4 MiB."""

_LIST: Final = "/v1.PodResourcesLister/List"
_ALLOCATABLE: Final = "/v1.PodResourcesLister/GetAllocatableResources"


class KubeletPodResources:
    """The client of the service at *socket*. Without one, where nobody serves there, or where this user may
    not connect, the answers are empty. A kubelet that is there and does not answer is an error: without its
    devices an answer would say that they are free."""

    def __init__(
        self,
        socket: Path | None,
        deadline_s: float = DEADLINE_S,
        failure_holds_s: float = FAILURE_HOLDS_S,
    ) -> None:
        self._socket = socket
        self._deadline_s = deadline_s
        self._failure_holds_s = failure_holds_s
        self._channel: Any = None
        self._calls: dict[str, asyncio.Task[Any]] = {}
        self._failure: UnavailableError | None = None
        self._failed_at_s = 0.0
        self._condition = Condition(
            "kubelet's PodResources are missing", "kubelet's PodResources are there again"
        )

    async def pods(self) -> pb.ListPodResourcesResponse:
        """What the containers of all pods have.

        Raises:
            UnavailableError: kubelet is there and does not answer.
        """
        if not self._reachable():
            return pb.ListPodResourcesResponse()
        answer: pb.ListPodResourcesResponse = await self._shared_call(
            _LIST, pb.ListPodResourcesRequest(), pb.ListPodResourcesResponse
        )
        return answer

    async def allocatable(self) -> pb.AllocatableResourcesResponse:
        """What containers can be assigned; raises like `pods`."""
        if not self._reachable():
            return pb.AllocatableResourcesResponse()
        answer: pb.AllocatableResourcesResponse = await self._shared_call(
            _ALLOCATABLE, pb.AllocatableResourcesRequest(), pb.AllocatableResourcesResponse
        )
        return answer

    async def close(self) -> None:
        """Give up what is under way, and disconnect."""
        calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    def _reachable(self) -> bool:
        if self._socket is None:
            return False
        if os.access(self._socket, os.R_OK | os.W_OK):
            return True
        self._condition.holds(f"{self._socket}: not there, or not for this user; devices are not passed on")
        return False

    async def _shared_call(self, method: str, request: Any, answer_type: Any) -> Any:
        """The answer to the call under way, or to a new one. It goes on for the others if one caller is
        gone."""
        loop = asyncio.get_running_loop()
        if self._failure is not None and loop.time() < self._failed_at_s + self._failure_holds_s:
            raise UnavailableError(self._failure.what, self._failure.problem)
        call = self._calls.get(method)
        if call is None:
            call = self._calls[method] = loop.create_task(self._call(method, request, answer_type))
            call.add_done_callback(lambda done: self._ended(method, done))
        return await asyncio.shield(call)

    def _ended(self, method: str, call: asyncio.Task[Any]) -> None:
        del self._calls[method]
        if not call.cancelled():
            call.exception()  # read here too, as perhaps nobody waits for it any more

    async def _call(self, method: str, request: Any, answer_type: Any) -> Any:
        if self._channel is None:
            options = [("grpc.max_receive_message_length", MAX_ANSWER_BYTES), ("grpc.enable_http_proxy", 0)]
            self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=options)
        call = self._channel.unary_unary(method, request_serializer=type(request).SerializeToString)
        try:
            answer = decoded(answer_type, await call(request, timeout=self._deadline_s))
        except grpc.aio.AioRpcError as error:
            self._failure = self._failed(f"kubelet does not answer: {error.code().name}: {error.details()}")
            raise self._failure from error
        except ParseError as error:
            self._failure = self._failed(f"kubelet's answer cannot be read: {error}")
            raise self._failure from error
        self._failure = None
        self._condition.over()
        return answer

    def _failed(self, problem: str) -> UnavailableError:
        failure = UnavailableError(str(self._socket), problem)
        self._failed_at_s = asyncio.get_running_loop().time()
        self._condition.holds(str(failure))
        return failure

"""The PodResources service on a unix socket of the agent.

Made for a handful of readers that ask every few seconds. Whoever sends something else than HTTP/2, or
nothing, is disconnected; calls beyond the limit are answered with RESOURCE_EXHAUSTED at once. Who may connect
is decided by the socket's mode and directory.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc

from bayplan._proto.podresources import api_pb2 as pb
from bayplan.agent.pod_resources.answers import allocatable_answer, get_answer, list_answer
from bayplan.agent.pod_resources.kubelet import KubeletPodResources
from bayplan.agent.protobuf import unary_method
from bayplan.agent.socket_file import for_owner_and_group, make_place
from bayplan.errors import HostError, UnavailableError
from bayplan.views.snapshot import Snapshot

logger = logging.getLogger(__name__)

SERVICE: Final = "v1.PodResourcesLister"

MAX_CALLS: Final = 64
MAX_REQUEST_BYTES: Final = 4096
"""A request names one pod at most."""

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.max_metadata_size", MAX_REQUEST_BYTES),
    ("grpc.server_handshake_timeout_ms", 5_000),
    # Clients connect again by themselves when they have something to ask.
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.so_reuseport", 0),
)
_GRACE_S: Final = 1.0


class PodResourcesService:
    """Serves `v1.PodResourcesLister` at *path* from `start` to `close`.

    *snapshot* is the daemon's state as it is known, None while it is not. *kubelet* adds what only kubelet
    knows.
    """

    def __init__(
        self, path: Path, snapshot: Callable[[], Snapshot | None], kubelet: KubeletPodResources
    ) -> None:
        self._path = path
        self._snapshot = snapshot
        self._kubelet = kubelet
        self._server: Any = None

    async def start(self) -> None:
        """Make the socket and serve.

        Raises:
            UnavailableError: another process serves there, or the path is a file that is not a socket.
            HostError: the socket cannot be made.
        """
        make_place(self._path)
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
        server.add_generic_rpc_handlers((self._handlers(),))
        try:
            with for_owner_and_group():
                server.add_insecure_port(f"unix:{self._path}")
        except RuntimeError as error:
            raise HostError(str(self._path), f"the PodResources socket cannot be made: {error}") from error
        await server.start()
        self._server = server

    async def close(self) -> None:
        """Finish the calls under way, or give them up after a second; remove the socket."""
        if self._server is not None:
            await self._server.stop(_GRACE_S)
            self._server = None
        await self._kubelet.close()

    def _handlers(self) -> Any:
        handlers = {
            "List": unary_method(self._list, pb.ListPodResourcesRequest),
            "Get": unary_method(self._get, pb.GetPodResourcesRequest),
            "GetAllocatableResources": unary_method(self._allocatable, pb.AllocatableResourcesRequest),
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def _list(self, _: pb.ListPodResourcesRequest, context: Any) -> pb.ListPodResourcesResponse:
        snapshot = await self._known(context)
        try:
            return list_answer(snapshot.ledger, await self._kubelet.pods())
        except UnavailableError as error:
            await _unavailable(context, str(error))

    async def _get(self, request: pb.GetPodResourcesRequest, context: Any) -> pb.GetPodResourcesResponse:
        pod = request.pod_namespace, request.pod_name
        found = get_answer(await self._list(pb.ListPodResourcesRequest(), context), pod)
        if found is None:
            text = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
            raise AssertionError(text)
        return found

    async def _allocatable(
        self, _: pb.AllocatableResourcesRequest, context: Any
    ) -> pb.AllocatableResourcesResponse:
        snapshot = await self._known(context)
        try:
            kubelet = await self._kubelet.allocatable()
        except UnavailableError as error:
            await _unavailable(context, str(error))
        return allocatable_answer(snapshot.machine, snapshot.policy, kubelet)

    async def _known(self, context: Any) -> Snapshot:
        snapshot = self._snapshot()
        if snapshot is None:
            await _unavailable(context, "baypland has not said yet what it promised")
        return snapshot


async def _unavailable(context: Any, text: str) -> NoReturn:
    await context.abort(grpc.StatusCode.UNAVAILABLE, text)
    raise AssertionError(text)  # abort() raises

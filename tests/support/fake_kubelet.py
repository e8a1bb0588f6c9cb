"""A kubelet that serves its pods as the real one does: the Pods service over gRPC, /pods over HTTP or
HTTPS."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc

from bayplan._proto.pods import api_pb2 as pb
from bayplan.model.kubelet_requests import PodFacts
from support.conditions import until
from support.http_server import Handler, serving

RECORDED: Final = Path(__file__).parents[1] / "data" / "kubelet_pods"
TOKEN: Final = "secret"


def recorded(name: str) -> bytes:
    """A pod as protobuf."""
    return (RECORDED / f"{name}.pb").read_bytes()


class FakePodsService:
    """The service at *socket*. What is in ``pods`` is listed first; `tell` sends an event to all clients."""

    def __init__(self, socket: Path, *pods: bytes) -> None:
        self.pods = list(pods)
        self.clients: set[asyncio.Queue[bytes | None]] = set()
        self._socket = socket
        self._server: Any = None

    async def start(self) -> None:
        """Serve."""
        self._socket.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        handler = grpc.unary_stream_rpc_method_handler(self._watch, pb.WatchPodsRequest.FromString)
        service = grpc.method_handlers_generic_handler("v1alpha1.Pods", {"WatchPods": handler})
        self._server.add_generic_rpc_handlers((service,))
        self._server.add_insecure_port(f"unix:{self._socket}")
        await self._server.start()

    async def stop(self) -> None:
        """Go away in the middle of whatever is said."""
        await self._server.stop(None)

    def tell(self, kind: "pb.EventType.ValueType", pod: bytes = b"") -> None:
        """Send this event."""
        self.tell_bytes(pb.WatchPodsEvent(type=kind, pod=pod).SerializeToString())

    def tell_bytes(self, encoded: bytes) -> None:
        """Send what may be no event."""
        for client in self.clients:
            client.put_nowait(encoded)

    def end_streams(self) -> None:
        """End the stream of every client, as kubelet does with slow ones."""
        for client in self.clients:
            client.put_nowait(None)

    async def _watch(self, _: pb.WatchPodsRequest, context: Any) -> AsyncIterator[bytes]:
        events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.clients.add(events)
        try:
            for pod in self.pods:
                yield pb.WatchPodsEvent(type=pb.ADDED, pod=pod).SerializeToString()
            yield pb.WatchPodsEvent(type=pb.INITIAL_SYNC_COMPLETE).SerializeToString()
            while (event := await events.get()) is not None:
                yield event
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "watch client channel closed")
        finally:
            self.clients.discard(events)


class FakeEndpoint:
    """What /pods answers: ``body`` with ``status``; ``asked`` counts, and has the tokens that came."""

    def __init__(self) -> None:
        self.body, self.status = (RECORDED / "pods.json").read_bytes(), 200
        self.asked: list[str | None] = []
        self.url = ""

    @contextmanager
    def serving(self, *, tls: bool = False) -> Iterator[None]:
        """Serve until the end."""
        fake = self

        class Pods(Handler):
            def do_GET(self) -> None:  # noqa: N802 - http.server names it
                fake.asked.append(self.headers["Authorization"])
                allowed = not tls or self.headers["Authorization"] == f"Bearer {TOKEN}"
                self.send_response(fake.status if allowed and self.path == "/pods" else 401)
                self.end_headers()
                self.wfile.write(fake.body)

        with serving(Pods, certificates=RECORDED if tls else None) as port:
            self.url = f"http{'s' if tls else ''}://127.0.0.1:{port}/pods"
            yield


class Keeper:
    """Remembers what it was told, as the link to the daemon does."""

    def __init__(self) -> None:
        self.pods: dict[str, PodFacts] = {}
        self.kept = 0

    def know(self, pod: PodFacts) -> None:
        """Kubelet says this of *pod* now."""
        self.pods[pod.uid] = pod

    def forget(self, uid: str) -> None:
        """Kubelet does not have that pod any more."""
        self.pods.pop(uid, None)

    def keep(self, pods: dict[str, PodFacts]) -> None:
        """These are all."""
        self.pods = dict(pods)
        self.kept += 1

    async def has(self, *names: str) -> None:
        """Wait until it knows the pods of these names, and no others."""
        await until(lambda: set(self.pods) == {f"uid-{name}" for name in names})

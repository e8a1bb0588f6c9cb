"""kubelet's PodResources service for tests: a gRPC server that answers what it is given."""

import asyncio
from pathlib import Path
from typing import Any, Self

import grpc

from bayplan._proto.podresources import api_pb2 as pb


class KubeletService:
    """Serves at *path* within its context. It answers *pods* and *allocatable*, or *garbage*, or fails with
    *failure*; with *hold* it first waits until that is set. ``calls`` are the methods that were called."""

    def __init__(
        self,
        path: Path,
        pods: pb.ListPodResourcesResponse | None = None,
        allocatable: pb.AllocatableResourcesResponse | None = None,
    ) -> None:
        self.calls: list[str] = []
        self.failure: grpc.StatusCode | None = None
        self.garbage: bytes | None = None
        self.hold: asyncio.Event | None = None
        self._path = path
        self._answers = {
            "List": pods or pb.ListPodResourcesResponse(),
            "GetAllocatableResources": allocatable or pb.AllocatableResourcesResponse(),
        }
        self._server: Any = None

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server()
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._answering(name)) for name in self._answers
        }
        handler = grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers)
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix:{self._path}")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    def _answering(self, name: str) -> Any:
        async def answer(_: bytes, context: Any) -> bytes:
            self.calls.append(name)
            if self.hold is not None:
                await self.hold.wait()
            if self.failure is not None:
                await context.abort(self.failure, "as the test wants")
            return self._answers[name].SerializeToString() if self.garbage is None else self.garbage

        return answer

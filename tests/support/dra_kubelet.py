"""kubelet's side of a DRA driver: it finds the registrar's socket, asks who is there, and has claims
prepared, over real gRPC on unix sockets; as k8s.io/kubernetes/pkg/kubelet/{pluginmanager,cm/dra} do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from bayplan._proto.dra import api_pb2 as pb
from bayplan._proto.dra import health_pb2
from bayplan._proto.plugin_registration import api_pb2 as registration

CALL_S = 45
"""kubelet's own patience."""
PLUGIN = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


def found_sockets(registry: Path) -> list[Path]:
    """What its watcher finds: sockets in the directory and all below, but for names that begin with a dot."""
    return sorted(one for one in registry.rglob("*") if one.is_socket() and not one.name.startswith("."))


async def call(channel: Any, method: str, request: Any, answer: Any, *, again: bool = False) -> Any:
    """The answer to one call; *again*: tried until there is a connection."""
    made = channel.unary_unary(
        method, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
    )
    return await made(request, timeout=CALL_S, wait_for_ready=again)


class DraKubelet:
    """A kubelet that has registered the driver; ``info`` is what that said of itself."""

    def __init__(self, info: registration.PluginInfo, channel: Any) -> None:
        self.info = info
        self._channel = channel

    async def prepare(self, *claims: pb.Claim) -> dict[str, pb.NodePrepareResourceResponse]:
        """What is answered for each claim, by uid."""
        request = pb.NodePrepareResourcesRequest(claims=claims)
        answer = await call(
            self._channel, f"/{PLUGIN}/NodePrepareResources", request, pb.NodePrepareResourcesResponse
        )
        assert set(answer.claims) == {claim.uid for claim in claims}
        return dict(answer.claims)

    async def unprepare(self, *claims: pb.Claim) -> dict[str, str]:
        """The problem with each claim, by uid."""
        request = pb.NodeUnprepareResourcesRequest(claims=claims)
        answer = await call(
            self._channel, f"/{PLUGIN}/NodeUnprepareResources", request, pb.NodeUnprepareResourcesResponse
        )
        assert set(answer.claims) == {claim.uid for claim in claims}
        return {uid: one.error for uid, one in answer.claims.items()}

    async def health(self) -> AsyncIterator[dict[tuple[str, str], tuple[int, str]]]:
        """Health and message of each device, each time that the driver tells them."""
        watch = self._channel.unary_stream(
            "/v1.DRAResourceHealth/NodeWatchResources",
            request_serializer=health_pb2.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=health_pb2.NodeWatchResourcesResponse.FromString,
        )
        async for answer in watch(health_pb2.NodeWatchResourcesRequest()):
            yield {
                (one.device.pool_name, one.device.device_name): (one.health, one.message)
                for one in answer.devices
            }


@asynccontextmanager
async def registered(registry: Path, *, refuses: str = "") -> AsyncIterator[DraKubelet]:
    """A kubelet that finds the driver's socket in *registry*, and takes the driver unless it *refuses* it."""
    while not (sockets := found_sockets(registry)):  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.001)
    (socket,) = sockets
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        info = await call(
            channel,
            "/pluginregistration.Registration/GetInfo",
            registration.InfoRequest(),
            registration.PluginInfo,
            again=True,  # kubelet does so, too: a socket is there before it takes connections.
        )
        status = registration.RegistrationStatus(plugin_registered=not refuses, error=refuses)
        await call(
            channel,
            "/pluginregistration.Registration/NotifyRegistrationStatus",
            status,
            registration.RegistrationStatusResponse,
        )
        assert info.type == "DRAPlugin"
        assert Path(info.endpoint).is_absolute()
        async with grpc.aio.insecure_channel(f"unix:{info.endpoint}") as driver:
            yield DraKubelet(info, driver)

"""The driver's two sockets: one where kubelet finds it, and one where kubelet has claims prepared.

kubelet looks through the directory of its plugins' sockets and all below. So the first socket is in a
directory of the driver's own there, which is all that an agent without privileges needs to be given. A
socket that is gone means for kubelet that the driver is gone, and half a minute later its slices are.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Final, Protocol

import grpc

from bayplan._proto.dra import api_pb2 as pb
from bayplan._proto.dra import health_pb2
from bayplan._proto.plugin_registration import api_pb2 as registration
from bayplan.agent.condition import Condition
from bayplan.agent.dra.slices import device_name
from bayplan.agent.grpc_sockets import for_owner_and_group, make_place, unary_method
from bayplan.agent.mirror import Mirror
from bayplan.errors import BayplanError, HostError
from bayplan.model.resource_claim import DRIVER
from bayplan.placement.shortfall import overclaims
from bayplan.views.snapshot import Snapshot

logger = logging.getLogger(__name__)

PLUGIN: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
HEALTH: Final = "v1.DRAResourceHealth"
REGISTRATION: Final = "pluginregistration.Registration"
VERSIONS: Final = ("v1.DRAPlugin", "v1.DRAResourceHealth")

REPEAT_S: Final = 10.0
"""Health that kubelet has not heard of for three times as long is unknown to it."""
MOST_MESSAGE: Final = 1024
_MAX_REQUEST_BYTES: Final = 1 << 20
_MAX_CALLS: Final = 256
"""kubelet asks for each pod by itself."""
_GRACE_S: Final = 1.0


class Claims(Protocol):
    """What answers kubelet about claims."""

    async def prepare(self, claims: Iterable[pb.Claim]) -> pb.NodePrepareResourcesResponse:
        """An answer for each of *claims*."""
        ...

    async def unprepare(self, claims: Iterable[pb.Claim]) -> pb.NodeUnprepareResourcesResponse:
        """An answer for each of *claims*."""
        ...


class DraService:
    """Serves kubelet from `start` to `close` as the driver *name*: registration below *registry*, the driver
    below *plugins*, in our own directories both. The health of devices is told of our own ones."""

    def __init__(
        self,
        plugins: Path,
        registry: Path,
        node_name: str,
        driver: Claims,
        mirror: Mirror,
        repeat_s: float = REPEAT_S,
        name: str = DRIVER,
    ) -> None:
        self.endpoint = plugins / DRIVER / ("dra.sock" if name == DRIVER else f"{name}.sock")
        self.registrar = registry / DRIVER / f"{name}-reg.sock"
        self._name = name
        self._node_name = node_name
        self._driver = driver
        self._mirror = mirror
        self._repeat_s = repeat_s
        self._condition = Condition(
            "kubelet does not take the DRA driver", "kubelet takes the DRA driver again"
        )
        self._servers: list[Any] = []

    async def start(self) -> None:
        """Make the sockets and serve: first what kubelet connects to when it finds the other.

        Raises:
            UnavailableError: another process serves there, or a path is a file that is not a socket.
            HostError: a socket cannot be made.
        """
        services = {
            PLUGIN: {
                "NodePrepareResources": unary_method(self._prepare, pb.NodePrepareResourcesRequest),
                "NodeUnprepareResources": unary_method(self._unprepare, pb.NodeUnprepareResourcesRequest),
            },
        }
        if self._name == DRIVER:
            services[HEALTH] = {"NodeWatchResources": _stream(self._health)}
        try:
            await self._serve(self.endpoint, services)
            await self._serve(self.registrar, {REGISTRATION: self._registrar()})
        except BayplanError:
            await self.close()
            raise

    def _registrar(self) -> dict[str, Any]:
        return {
            "GetInfo": unary_method(self._info, registration.InfoRequest),
            "NotifyRegistrationStatus": unary_method(self._registered, registration.RegistrationStatus),
        }

    async def close(self) -> None:
        """Finish the calls under way, or give them up after a second; remove the sockets."""
        while self._servers:
            await self._servers.pop().stop(_GRACE_S)

    async def _serve(self, path: Path, services: dict[str, dict[str, Any]]) -> None:
        make_place(path)
        options = (("grpc.max_receive_message_length", _MAX_REQUEST_BYTES), ("grpc.so_reuseport", 0))
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=_MAX_CALLS)
        self._servers.append(server)
        handlers = (grpc.method_handlers_generic_handler(name, one) for name, one in services.items())
        server.add_generic_rpc_handlers(tuple(handlers))
        try:
            with for_owner_and_group():
                server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise HostError(str(path), f"the DRA driver's socket cannot be made: {error}") from error
        await server.start()

    async def _info(self, _: registration.InfoRequest, __: Any) -> registration.PluginInfo:
        return registration.PluginInfo(
            type="DRAPlugin",
            name=self._name,
            endpoint=str(self.endpoint),
            supported_versions=VERSIONS if self._name == DRIVER else VERSIONS[:1],
        )

    async def _registered(
        self, status: registration.RegistrationStatus, _: Any
    ) -> registration.RegistrationStatusResponse:
        if status.plugin_registered:
            logger.info("kubelet has registered the DRA driver")
            self._condition.over()
        else:
            self._condition.holds(status.error)
        return registration.RegistrationStatusResponse()

    async def _prepare(
        self, asked: pb.NodePrepareResourcesRequest, _: Any
    ) -> pb.NodePrepareResourcesResponse:
        return await self._driver.prepare(asked.claims)

    async def _unprepare(
        self, asked: pb.NodeUnprepareResourcesRequest, _: Any
    ) -> pb.NodeUnprepareResourcesResponse:
        return await self._driver.unprepare(asked.claims)

    async def _health(self) -> AsyncIterator[health_pb2.NodeWatchResourcesResponse]:
        """All devices, whenever something is new, and now and then again."""
        said: dict[str, str] | None = None
        while True:
            seen, snapshot = self._mirror.revision, self._mirror.snapshot
            if snapshot is not None and self._mirror.connected:
                problems = await asyncio.to_thread(device_problems, snapshot)
                if problems != said:
                    said = problems
                    yield _health_answer(self._node_name, problems)
            try:
                async with asyncio.timeout(self._repeat_s):
                    await self._mirror.wait_for_change(seen)
            except TimeoutError:
                said = None


def device_problems(snapshot: Snapshot) -> dict[str, str]:
    """What is wrong with each device of *snapshot*, and of those that claims hold something of; empty for
    nothing: its node is gone, or was promised more than it has."""
    machine, ledger = snapshot.machine, snapshot.ledger
    held = {node for claim in ledger.resource_claims.values() for node in claim.by_node()}
    problems = dict.fromkeys(sorted({*machine.node_ids, *held}), "")
    for one in overclaims(snapshot.basis):
        for node in one.shortage.nodes:
            if node in problems:
                problems[node] = problems[node] or str(one)
    for node in problems.keys() - set(machine.node_ids):
        problems[node] = problems[node] or f"node {node} is gone"
    return {device_name(node): problem for node, problem in problems.items()}


def _health_answer(pool: str, problems: dict[str, str]) -> health_pb2.NodeWatchResourcesResponse:
    answer, now_s = health_pb2.NodeWatchResourcesResponse(), int(time.time())
    for name, problem in problems.items():
        one = answer.devices.add(
            health=health_pb2.UNHEALTHY if problem else health_pb2.HEALTHY,
            last_updated_time=now_s,
            message=problem[:MOST_MESSAGE],
        )
        one.device.pool_name, one.device.device_name = pool, name
    return answer


def _stream(answers: Any) -> Any:
    async def answer_bytes(_: bytes, __: Any) -> AsyncIterator[Any]:
        async for one in answers():
            yield one

    return grpc.unary_stream_rpc_method_handler(
        answer_bytes, response_serializer=lambda message: message.SerializeToString()
    )

"""Daemon and agent of a node as a DRA driver, with kubelet's directories and an API server: what the
scheduler allocates, and the containers that the runtime creates by the CDI specs."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from bayplan._proto.dra import api_pb2 as pb
from bayplan.agent.dra.driver import ClaimDriver, DraService
from bayplan.agent.dra.slices import SlicePublisher
from bayplan.agent.mirror import DaemonLink, Mirror
from bayplan.backoff import Backoff
from bayplan.control.resource_claims import ResourceClaims
from bayplan.host.devices import ClaimSpecs
from bayplan.model.decision import QosClass
from bayplan.model.workload import Container, Pod
from support.agents import serving
from support.conditions import running
from support.controllers import Controlled, controlled, here
from support.fake_api_server import NODE, FakeApiServer
from support.machines import container, pod
from support.resource_claims import UID, environment

POD: Final = pod("web", QosClass.BEST_EFFORT)


def result(node: int, request: str = "near", **consumed: str) -> dict[str, Any]:
    """What the scheduler allocates on a node."""
    return {
        "request": request,
        "driver": "bayplan.dev",
        "pool": NODE,
        "device": f"numa-{node}",
        "shareID": f"share-{node}",
        "consumedCapacity": {f"bayplan.dev/{key}": value for key, value in consumed.items()},
    }


def resource_claim(
    *results: dict[str, Any], uid: str = UID, pods: tuple[str, ...] = ("web",)
) -> dict[str, Any]:
    """The object, as the scheduler leaves it."""
    reserved = [{"resource": "pods", "name": one, "uid": one} for one in pods]
    status = {"allocation": {"devices": {"results": list(results)}}, "reservedFor": reserved}
    return {"metadata": {"name": "memory", "namespace": "default", "uid": uid}, "status": status}


class DraNode:
    """Daemon and agent of a node, with all that is between kubelet, API server and runtime."""

    def __init__(self, directory: Path, api: FakeApiServer) -> None:
        self.directory = directory
        self.api = api
        self.registry = directory / "plugins_registry"
        self.specs = directory / "cdi"
        self.look_s = 3600.0
        self.publish_s = 0.01
        self.registry.mkdir(exist_ok=True)

    @asynccontextmanager
    async def daemon(self) -> AsyncIterator[Controlled]:
        """A daemon that has restored what is recorded."""
        async with controlled(self.directory / "state") as one:
            self.claims = ResourceClaims(
                one.controller.state, one.controller.placements, ClaimSpecs(self.specs), here
            )
            await self.claims.restore()
            await self.claims.sweep()
            async with serving(one, self.directory / "agent.sock", claims=self.claims):
                yield one

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Mirror]:
        """An agent that has nothing of an earlier one."""
        mirror, quick = Mirror(), Backoff(lambda: 0.0, first_s=0.01, limit_s=0.01)
        link = DaemonLink(self.directory / "agent.sock", mirror, backoff=quick)
        api = self.api.api()
        driver = ClaimDriver(api, link, mirror, NODE, self.look_s)
        service = DraService(self.directory / "plugins", self.registry, NODE, driver, mirror, repeat_s=0.05)
        await service.start()
        try:
            async with AsyncExitStack() as parts:
                for part in (link, driver, SlicePublisher(api, mirror, NODE, self.publish_s, 3600, quick)):
                    await parts.enter_async_context(running(part))
                yield mirror
        finally:
            await service.close()

    def create(
        self,
        container_id: str,
        answer: pb.NodePrepareResourceResponse,
        *requests: str,
        owner: Pod = POD,
    ) -> Container:
        """The container as the runtime is about to create it: kubelet hands on the CDI devices of its
        requests, and the runtime puts what their specs say into its spec."""
        wanted = [one for one in answer.devices if not requests or set(one.request_names) & set(requests)]
        env = environment(self.specs, [name for one in wanted for name in one.cdi_device_ids])
        return replace(container(container_id, owner), resource_claims=env)

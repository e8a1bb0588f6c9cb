"""The daemon's side of the OCI socket, served over a real one, on a node that is a directory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bayplan.control.state import Transaction
from bayplan.host.hierarchy import Hierarchy
from bayplan.model.ledger import Entry
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.oci.protocol import OciServer
from bayplan.oci.request_handler import OciRequestHandler, OciRequestSettings
from bayplan.oci.runtime_update import RuntimeUpdater
from support.controllers import MACHINE, Controlled, controlled
from support.oci_client import ask
from support.oci_node import OciNode

ID: Final = "c1" * 32
OTHER: Final = "d2" * 32
SLICE: Final = "kubepods-pod1.slice"
SYSTEMD: Final = f"{SLICE}:crio:{ID}"
SCOPE: Final = f"/kubepods.slice/{SLICE}/crio-{ID}.scope"
BEST_EFFORT: Final = f"kubepods-besteffort-pod2.slice:crio:{OTHER}"
BEST_EFFORT_SCOPE: Final = (
    f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod2.slice/crio-{OTHER}.scope"
)
CRIO: Final = {
    "io.kubernetes.cri-o.ContainerType": "container",
    "io.kubernetes.cri-o.SandboxID": "5a" * 32,
    "io.kubernetes.pod.name": "web",
    "io.kubernetes.pod.namespace": "default",
    "io.kubernetes.pod.uid": "1",
    "io.kubernetes.container.name": "main",
}


@dataclass
class ServedOciSocket:
    """The OCI socket, the handler of its requests, and everything around them."""

    node: OciNode
    path: Path
    handler: OciRequestHandler
    around: Controlled
    server: OciServer

    async def ask(self, verb: str, body: bytes) -> tuple[str, str]:
        """The answer to one request, as text."""
        status, answer = await ask(self.path, verb, body)
        return status, answer.decode()

    async def quiet(self) -> None:
        """Wait until everybody who connected before has been dealt with."""
        await self.ask("delete", b"nobody")
        while self.server.clients:
            await asyncio.wait(self.server.clients)
        await self.handler.settled()

    def tells_its_start(self, container_id: str) -> bool:
        """Whether the wrapper sees that it is to ask before that container starts; docs/oci-hook.md has the
        path."""
        return (self.path.parent / f"{self.path.name}.starts" / container_id).exists()

    @property
    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """The turn at the controller."""
        return self.around.controller.state.transaction()

    @property
    def entries(self) -> dict[str, Entry]:
        """The ledger's entries now."""
        return dict(self.around.controller.state.ledger.entries)


@asynccontextmanager
async def oci_socket(
    directory: Path,
    policy: PlacementPolicy = PlacementPolicy(),
    settings: OciRequestSettings = OciRequestSettings(deadline_s=60),
    runtime_updater: RuntimeUpdater | None = None,
    hierarchy: Hierarchy | None = None,
    on: Machine = MACHINE,
) -> AsyncIterator[ServedOciSocket]:
    """A handler that restored what *directory* has, with no NRI session beside it; with a *hierarchy* on that
    kernel instead of a directory."""
    node = OciNode(directory / "root")
    kernel = hierarchy or node.hierarchy
    async with controlled(directory / "state", policy, nri=None, on=on, cgroup_v2=kernel.unified) as around:
        path = directory / "oci.sock"
        cpusets = around.on(kernel, path)
        one = OciRequestHandler(around.controller, kernel, cpusets, settings, runtime_updater)
        server = OciServer(path, one.serve)
        await server.start()
        try:
            yield ServedOciSocket(node, path, one, around, server)
        finally:
            await server.close()
            await one.close()

"""The smallest plugin: ``python -m support.minimal_plugin [SOCKET]`` pins every container to node 0.

Also what a runtime can launch from its plugin directory; it then needs no argument and no environment but
the runtime's. It decides nothing and remembers nothing: what the session alone costs is measured with it.
"""

import asyncio
import os
import sys
from collections.abc import Sequence

from bayplan.model.resources import Resources
from bayplan.model.workload import Adjustment, Container, Pod, Update
from bayplan.nri import DEFAULT_SOCKET, Event, Identity, Runtime, Session, UnixSocket, launched_by_runtime
from bayplan.sets import NodeSet

_PINNED = Adjustment(cpuset_mems=NodeSet([0]))


class PinToNode0:
    """The same answer for all."""

    def events(self, runtime: Runtime) -> frozenset[Event]:
        """Creations only."""
        return frozenset({Event.CREATE_CONTAINER})

    def connected(self, runtime: Runtime) -> None:
        """Nothing to do."""

    def disconnected(self, why: str) -> None:
        """Nothing to do."""

    async def synchronize(
        self,
        pods: Sequence[Pod],
        containers: Sequence[Container],
    ) -> Sequence[Update]:
        """What runs stays as it is."""
        return ()

    async def create_container(
        self,
        pod: Pod,
        container: Container,
    ) -> tuple[Adjustment, Sequence[Update]]:
        """Node 0."""
        return _PINNED, ()

    async def update_container(
        self,
        pod: Pod,
        container: Container,
        resources: Resources,
    ) -> Sequence[Update]:
        """Not subscribed to."""
        return ()

    async def stop_container(self, pod: Pod, container: Container) -> Sequence[Update]:
        """Not subscribed to."""
        return ()

    async def state_changed(self, event: Event, pod: Pod, container: Container | None) -> None:
        """Not subscribed to."""

    def refuses_undecided(self) -> bool:
        return False

    def fallback_adjustment(self, pod: Pod, container: Container) -> Adjustment:
        """Node 0."""
        return _PINNED

    def missed(self, event: Event, container_id: str, why: str, _: object = None) -> None:
        """Nothing to do."""


async def serve(path: str) -> None:
    """Serve the runtime that launched us, else the one at *path*, for ever."""
    identity, endpoint = launched_by_runtime(os.environ) or (Identity("pin-to-0", "50"), UnixSocket(path))
    await Session(PinToNode0(), identity, endpoint).run()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_SOCKET))

"""Writes what a container runtime says over NRI, a JSON object for each event: ``python nri_events.py
[SOCKET]``.

Fields: milliseconds since the start, the event, the container's id, name and pod, its state and its first
process as the runtime describes them. It decides nothing.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence

from bayplan.model.resources import Resources
from bayplan.model.workload import Adjustment, Container, Pod, Update
from bayplan.nri import DEFAULT_SOCKET, Event, Identity, Runtime, Session, UnixSocket

BEGUN_S = time.monotonic()


class Log:
    """A handler that writes what it is asked, and leaves everything as it is."""

    def events(self, runtime: Runtime) -> frozenset[Event]:
        """All that the runtime knows."""
        return frozenset(Event)

    def connected(self, runtime: Runtime) -> None:
        """Write it."""
        _write(runtime=runtime.name, version=runtime.version)

    def disconnected(self, why: str) -> None:
        """Write it."""
        _write(disconnected=why)

    async def synchronize(self, pods: Sequence[Pod], containers: Sequence[Container]) -> Sequence[Update]:
        """Write what is listed."""
        for one in containers:
            _of_container("LISTED", Pod(one.pod_id), one)
        _write(event="SYNCHRONIZED")
        return ()

    async def create_container(self, pod: Pod, container: Container) -> tuple[Adjustment, Sequence[Update]]:
        """Write it."""
        _of_container("CREATE_CONTAINER", pod, container)
        return Adjustment(), ()

    async def update_container(
        self, pod: Pod, container: Container, resources: Resources
    ) -> Sequence[Update]:
        """Write it."""
        _of_container("UPDATE_CONTAINER", pod, container)
        return ()

    async def stop_container(self, pod: Pod, container: Container) -> Sequence[Update]:
        """Write it."""
        _of_container("STOP_CONTAINER", pod, container)
        return ()

    async def state_changed(self, event: Event, pod: Pod, container: Container | None) -> None:
        """Write it."""
        if container is None:
            _write(event=event.name, pod=pod.id)
        else:
            _of_container(event.name, pod, container)

    def refuses_undecided(self) -> bool:
        return False

    def fallback_adjustment(self, pod: Pod, container: Container) -> Adjustment:
        """Nothing."""
        return Adjustment()

    def missed(self, event: Event, container_id: str, why: str, _: object = None) -> None:
        """Write it."""
        _write(event=event.name, id=container_id, missed=why)


def _of_container(event: str, pod: Pod, container: Container) -> None:
    _write(
        event=event,
        id=container.id,
        name=container.name,
        pod=pod.id,
        state=container.state.value,
        pid=container.pid,
    )


def _write(**fields: object) -> None:
    print(json.dumps({"at_ms": round((time.monotonic() - BEGUN_S) * 1000), **fields}), flush=True)


async def _follow(path: str) -> None:
    await Session(Log(), Identity("events", "91"), UnixSocket(path)).run()


if __name__ == "__main__":
    asyncio.run(_follow(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_SOCKET))

"""A handler that remembers what it was asked and does as it is told, and a session around it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from bayplan.model.resources import Resources
from bayplan.model.workload import Adjustment, Container, Pod, Update
from bayplan.nri import Clock, Endpoint, Event, Identity, Runtime, Session, Timeouts

Creation = tuple[Adjustment, Sequence[Update]]

IDENTITY = Identity("bayplan", "90")
UNHURRIED = Timeouts(answer_s=60.0)
"""For sessions on the real clock: a disk that takes a second for a commit makes no answer late."""


class RecordingHandler:
    """Assign the ``on_...`` attributes to change what it answers.

    ``heard`` is what it was told, in words, in order; ``ends`` is why each connection ended; ``begun`` and
    ``ended`` count coroutines; ``overlaps`` counts how often one began before the last one ended, which must
    never happen.
    """

    def __init__(self) -> None:
        self.wanted = frozenset(Event) - {Event.SYNCHRONIZE}
        self.heard: list[str] = []
        self.ends: list[str] = []
        self.misses: list[tuple[Event, str, str]] = []
        self.runtimes: list[Runtime] = []
        self.pods: Sequence[Pod] = ()
        self.containers: Sequence[Container] = ()
        self.resources: list[Resources] = []
        self.begun = 0
        self.ended = 0
        self.overlaps = 0
        self.fallback = Adjustment()
        self.on_synchronize: Callable[[], Awaitable[Sequence[Update]]] = _nothing
        self.on_create: Callable[[Pod, Container], Awaitable[Creation]] = _unchanged
        self.on_update: Callable[[Container, Resources], Awaitable[Sequence[Update]]] = _nothing
        self.on_stop: Callable[[Container], Awaitable[Sequence[Update]]] = _nothing
        self.on_event: Callable[[Event], Awaitable[object]] = _nothing

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        self.overlaps += self.begun != self.ended
        self.begun += 1
        self.heard.append(what)
        try:
            yield
        finally:
            self.ended += 1

    def events(self, runtime: Runtime) -> frozenset[Event]:
        """Everything that is ``wanted``."""
        return self.wanted

    def connected(self, runtime: Runtime) -> None:
        """Remember the runtime."""
        self.runtimes.append(runtime)
        self.heard.append(f"connected to {runtime.name}")

    def disconnected(self, why: str) -> None:
        """Remember the reason."""
        self.heard.append("disconnected")
        self.ends.append(why)

    async def synchronize(self, pods: Sequence[Pod], containers: Sequence[Container]) -> Sequence[Update]:
        """Remember what there is."""
        with self._alone(f"synchronize {len(pods)} {len(containers)}"):
            self.pods, self.containers = pods, containers
            return await self.on_synchronize()

    async def create_container(self, pod: Pod, container: Container) -> Creation:
        """Do as told."""
        with self._alone(f"create {container.name}"):
            return await self.on_create(pod, container)

    async def update_container(
        self,
        pod: Pod,
        container: Container,
        resources: Resources,
    ) -> Sequence[Update]:
        """Do as told."""
        with self._alone(f"update {container.name}"):
            self.resources.append(resources)
            return await self.on_update(container, resources)

    async def stop_container(self, pod: Pod, container: Container) -> Sequence[Update]:
        """Do as told."""
        with self._alone(f"stop {container.name}"):
            return await self.on_stop(container)

    async def state_changed(self, event: Event, pod: Pod, container: Container | None) -> None:
        """Do as told."""
        with self._alone(f"{event.name} {pod.name if container is None else container.name}"):
            await self.on_event(event)

    def refuses_undecided(self) -> bool:
        return False

    def fallback_adjustment(self, pod: Pod, container: Container) -> Adjustment:
        """The ``fallback``."""
        return self.fallback

    def missed(self, event: Event, container_id: str, why: str, _: object = None) -> None:
        """Remember it."""
        self.misses.append((event, container_id, why))
        self.heard.append(f"missed {event.name}")


class Gate:
    """A place where a handler waits until a test lets it go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def wait(self) -> None:
        """Say that it is reached, and wait."""
        self.reached.set()
        await self.opened.wait()


@asynccontextmanager
async def serving(
    handler: RecordingHandler,
    endpoint: Endpoint,
    *,
    clock: Clock | None = None,
    timeouts: Timeouts | None = None,
) -> AsyncIterator[Session]:
    """A session that runs until the end of the block, with delays that are the same each time. On the real
    clock it is in no hurry, unless *timeouts* says otherwise."""
    session = Session(
        handler,
        IDENTITY,
        endpoint,
        timeouts=timeouts or (UNHURRIED if clock is None else Timeouts()),
        clock=clock,
        jitter=lambda: 0.0,
    )
    running = asyncio.create_task(session.run())
    try:
        yield session
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _nothing(*_: object) -> Sequence[Update]:
    return ()


async def _unchanged(pod: Pod, container: Container) -> Creation:
    return Adjustment(), ()

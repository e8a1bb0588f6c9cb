"""The daemon's end of the agent socket around a controller with a real store, and clients that speak its
bytes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from bayplan.admin.agent_server import AgentServer, Answering, KnowClaimed, PodReceiver, claiming, everything
from bayplan.admin.questions import recorded_questions, rehearsing
from bayplan.admin.snapshot_source import snapshot_of
from bayplan.agent.mirror import Mirror
from bayplan.agent_protocol import (
    MAX_DAEMON_MESSAGE_BYTES,
    QUESTIONS,
    FromAgent,
    FromDaemon,
    Observed,
    Subscribe,
    UpToDate,
    Welcome,
    decode_from_daemon,
    encode,
)
from bayplan.control.commit_listeners import ChangeLog
from bayplan.control.resource_claims import ResourceClaims
from bayplan.control.state import Current
from bayplan.placement.memory_policy import MemoryPolicyAbility
from bayplan.views.snapshot import Observation
from support.controllers import Controlled
from support.coroutines import PATIENCE_S


@asynccontextmanager
async def serving(
    one: Controlled,
    path: Path,
    group: int | None = None,
    client_timeout_s: float = PATIENCE_S,
    pods: PodReceiver | None = None,
    claims: ResourceClaims | None = None,
    know: KnowClaimed = lambda _, __: None,
) -> AsyncIterator[AgentServer]:
    """Serve agents of the controller *one* at *path*. What they say goes to it, or to *pods*; of resource
    claims to *claims*, where there are any, and of claimed devices to *know*."""
    controller = one.controller

    def observe() -> Observation:
        return snapshot_of(controller.state, 0, ()).observation

    server = AgentServer(
        path,
        group,
        controller.state.changes,
        lambda: controller.state.basis,
        observe,
        pods or controller.state.kubelet_pods,
        client_timeout_s,
    )
    asked = {
        **recorded_questions(controller.state.recorder),
        "what-if": rehearsing(lambda: controller.state.basis.engine, MemoryPolicyAbility),
    }

    def answering(verb: str) -> Answering:
        return lambda request: asked[verb](snapshot_of(controller.state, 0, ()), request)

    server.questions = {verb: answering(verb) for verb in QUESTIONS}
    if claims is not None:
        server.questions = {**server.questions, **claiming(claims, know)}
    await server.start()
    try:
        yield server
    finally:
        await server.close()


class Follower:
    """An agent's mirror that is fed from a change log at once, without a socket; the bytes are the real
    ones."""

    def __init__(self) -> None:
        self.mirror = Mirror()

    def catch_up(self, changes: ChangeLog, basis: Current) -> list[str]:
        """Take what changed since the last time; in what the mirror differs from *basis* then."""
        later = changes.since(self.mirror.position) if self.mirror.epoch == changes.epoch else None
        messages: list[FromDaemon] = [Welcome(changes.epoch, later is not None)]
        if later is None:
            messages += everything(basis, tuple(changes.refusals), changes.position)
        messages += [
            *(later or ()),
            UpToDate(changes.position),
            Observed(Observation(taken_us=0, started_us=0)),
        ]
        for message in messages:
            self.mirror.take(decode_from_daemon(encode(message)))
        known = self.mirror.snapshot
        assert known is not None
        pairs = {
            "entries": (dict(known.ledger.entries), dict(basis.ledger.entries)),
            "claims": (known.ledger.claimed_bytes, basis.ledger.claimed_bytes),
            "room kept for pods": (known.ledger.retained, basis.ledger.retained),
            "machine": (known.machine, basis.machine),
            "policy": (known.policy, basis.policy),
            "engine": (known.engine, basis.engine.name),
        }
        return [f"a follower has other {name}" for name, (theirs, ours) in pairs.items() if theirs != ours]


class AgentClient:
    """A client that says what it is told to and reads what comes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def say(self, message: FromAgent | bytes) -> None:
        """Send *message*."""
        self.writer.write(message if isinstance(message, bytes) else encode(message))
        await self.writer.drain()

    async def hear(self) -> FromDaemon:
        """The next message; EOFError at the end."""
        async with asyncio.timeout(PATIENCE_S):
            return decode_from_daemon(await self.reader.readuntil(b"\n"))

    async def hear_until(self, wanted: Callable[[FromDaemon], bool]) -> list[FromDaemon]:
        """All messages up to the first one that is *wanted*, which is the last."""
        heard = [await self.hear()]
        while not wanted(heard[-1]):
            heard.append(await self.hear())
        return heard


@asynccontextmanager
async def connected(path: Path, *first: FromAgent | bytes) -> AsyncIterator[AgentClient]:
    """A client that is connected at *path* and has said *first*, by default that it wants everything."""
    reader, writer = await asyncio.open_unix_connection(path, limit=MAX_DAEMON_MESSAGE_BYTES)
    client = AgentClient(reader, writer)
    try:
        for message in first or (Subscribe(),):
            await client.say(message)
        yield client
    finally:
        writer.transport.abort()

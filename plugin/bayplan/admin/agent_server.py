"""The agent socket: lets the agent follow what decisions depend on, takes what it knows of pods, and holds
the resource claims that it asks for as a DRA driver.

The messages: `bayplan.agent_protocol`. Nothing waits for an agent. What is sent is taken from the change log
when the client has room for it, so that a slow one costs no memory: it is disconnected and may resume. What a
client says is bounded in size, and in how fast it is read. Of evictions an agent is asked to carry out what
was decided here, and what it answers counts only for that.

Questions about claims change promises, and so are asked at the agent socket alone. What an agent says of a
claim is checked here: it is decided about like everything that comes from outside.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, TypeAlias

import msgspec
from msgspec import Meta, Struct

from bayplan.admin_protocol import API_VERSION, printable_answer
from bayplan.agent_protocol import (
    CLAIMED_DEVICES,
    MAX_AGENT_MESSAGE_BYTES,
    MAX_DAEMON_MESSAGE_BYTES,
    PREPARE_CLAIM,
    UNPREPARE_CLAIM,
    Answered,
    Asked,
    Change,
    EvictionAnswer,
    EvictPod,
    Failed,
    FromDaemon,
    Observed,
    PodGone,
    PodKnown,
    PodWanted,
    Refused,
    Subscribe,
    Unusable,
    UpToDate,
    Welcome,
    decode_from_agent,
    encode,
)
from bayplan.backoff import Allowance
from bayplan.control.commit_listeners import ChangeLog
from bayplan.control.resource_claims import ResourceClaims
from bayplan.control.state import Current
from bayplan.control.threads import until_one_ends
from bayplan.errors import BayplanError, ConfigError, ParseError, Problem
from bayplan.host.unix_socket import Peer, SocketPath, SocketServer
from bayplan.model.claims import ClaimedDevice, HeldClaim, ResourceClaim, cdi_name, is_request, is_uid
from bayplan.model.kubelet_requests import MAX_CONTAINERS, Name, PodFacts
from bayplan.model.machine import MEMORY
from bayplan.printable import printable, printable_lines
from bayplan.quantity import UNLIMITED_BYTES
from bayplan.views.decision_view import View
from bayplan.views.snapshot import Observation

logger = logging.getLogger(__name__)

CLIENT_TIMEOUT_S: Final = 5.0
"""For a client to send its first message, and then to take each one of ours."""

OBSERVE_INTERVAL_S: Final = 2.0
MAX_CLIENTS: Final = 16
MAX_AGENTS: Final = 4
"""Of the clients, those that are sent everything. A node has one agent."""

MESSAGES_PER_S: Final = 100
MESSAGES_AT_ONCE: Final = 1000
"""A node has some hundreds of pods, and an agent that has just started says what it knows of all of them."""
BYTES_PER_S: Final = 1 << 20
BYTES_AT_ONCE: Final = 16 << 20

Answer: TypeAlias = asyncio.Future[EvictionAnswer | None]

_ENTRIES_AT_ONCE: Final = 50
"""In one message of what holds: a tenth of a millisecond of the loop that a runtime waits for."""
_MAX_NOTES: Final = 1000
MOST_QUESTIONS: Final = 4
"""Of one agent at a time. A what-if of many pods takes a second of a thread."""

Answering: TypeAlias = Callable[[Mapping[str, object]], Awaitable[View]]
"""Answers one of `bayplan.agent_protocol.QUESTIONS`, given the fields of a request; raises BayplanError."""


Note: TypeAlias = PodWanted | Unusable | EvictPod | Answered


class PodReceiver(Protocol):
    """Receives what an agent says of pods."""

    def update(self, pod: PodFacts) -> object:
        """Kubelet says this of *pod* now."""

    def forget(self, uid: str) -> None:
        """Kubelet does not have the pod *uid* any more."""


class _EndedError(BayplanError):
    """The connection ends with this sentence for the client."""


class AgentServer(SocketServer):
    """Serves the agent socket at *path*, to members of *group* too, from `start` to `close`.

    *basis* and *observe* give what holds at the moment; *changes* has what became different. ``kubelet_said``
    is called with kubelet's version whenever an agent says another one than before; ``questions`` are
    those that an agent may ask.
    """

    def __init__(
        self,
        path: Path,
        group: int | None,
        changes: ChangeLog,
        basis: Callable[[], Current],
        observe: Callable[[], Observation],
        pods: PodReceiver,
        client_timeout_s: float = CLIENT_TIMEOUT_S,
    ) -> None:
        super().__init__(SocketPath(path, "agent socket", group), MAX_AGENT_MESSAGE_BYTES, MAX_CLIENTS)
        self._group = group
        self._changes = changes
        self._basis = basis
        self._observe = observe
        self._pods = pods
        self._client_timeout_s = client_timeout_s
        self.questions: Mapping[str, Answering] = {}
        self.kubelet_said: Callable[[str], object] = lambda _: None
        self._kubelet_version = ""
        self._agents: set[_Agent] = set()
        self._observed: tuple[float, bytes] = (float("-inf"), b"")

    def say(self, note: PodWanted | Unusable) -> None:
        """Send *note* to every agent that is connected. It is not repeated to one that comes later."""
        for agent in self._agents:
            agent.say(note)

    async def evict(self, asked: EvictPod, limit_s: float) -> EvictionAnswer | None:
        """Have an agent carry out an eviction; its answer, or None if there is none within *limit_s*, or no
        agent that can."""
        agent = next((one for one in self._agents if one.evicts), None)
        if agent is None:
            return None
        answer: Answer = asyncio.get_running_loop().create_future()
        agent.answers[asked.uid] = answer
        agent.say(asked)
        try:
            async with asyncio.timeout(limit_s):
                return await answer
        except TimeoutError:
            return None
        finally:
            del agent.answers[asked.uid]

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve_agent(reader, writer)
        except (_EndedError, ParseError) as error:
            logger.warning("an agent was disconnected", extra={"problem": printable(str(error))})
            with suppress(OSError, TimeoutError):
                await self._send(writer, encode(Failed(printable(str(error)))))
                writer.close()
                async with asyncio.timeout(self._client_timeout_s):
                    await writer.wait_closed()
        except (OSError, EOFError) as error:
            logger.info("an agent disconnected", extra={"problem": repr(error)})
        except Exception:
            logger.exception("serving an agent failed")
        finally:
            writer.transport.abort()

    async def _serve_agent(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        peer = Peer.of(connection)
        try:
            async with asyncio.timeout(self._client_timeout_s):
                first = decode_from_agent(await _line(reader))
        except TimeoutError as error:
            raise _EndedError(f"no message within {self._client_timeout_s:g} seconds") from error
        self.request_received()
        if (refused := peer.why_refused(connection, self._group)) is not None:
            raise _EndedError(refused)
        if not isinstance(first, Subscribe):
            raise _EndedError("the first message has to be Subscribe")
        if first.api_version != API_VERSION:
            raise _EndedError(f"api_version: found {first.api_version!r}, expected {API_VERSION!r}")
        if len(self._agents) >= MAX_AGENTS:
            raise _EndedError(f"{MAX_AGENTS} agents are connected already")
        agent = _Agent(first.evicts)
        self._agents.add(agent)
        self._changes.listeners.add(agent.due.set)
        if first.kubelet_version not in {"", self._kubelet_version}:
            self._kubelet_version = first.kubelet_version
            self.kubelet_said(first.kubelet_version)
        logger.info("an agent connected", extra={"pid": peer.pid, "version": first.agent})
        try:
            await until_one_ends(self._receive(reader, agent), self._follow(writer, agent, first))
        finally:
            self._changes.listeners.discard(agent.due.set)
            self._agents.discard(agent)
            agent.left()

    async def _receive(self, reader: asyncio.StreamReader, agent: "_Agent") -> None:
        """Take what the client says, no faster than it may."""
        now_s = asyncio.get_running_loop().time
        messages = Allowance(MESSAGES_PER_S, MESSAGES_AT_ONCE)
        volume = Allowance(BYTES_PER_S, BYTES_AT_ONCE)
        while True:
            line = await _line(reader)
            match decode_from_agent(line):
                case PodKnown(pod):
                    self._pods.update(pod)
                case PodGone(uid):
                    self._pods.forget(uid)
                case EvictionAnswer() as answer:
                    agent.answered(answer)
                case Asked() as asked:
                    agent.ask(asked, self.questions)
                case Subscribe():
                    raise _EndedError("Subscribe may be sent only once")
            await asyncio.sleep(max(messages.wait_s(1, now_s()), volume.wait_s(len(line), now_s())))

    async def _follow(self, writer: asyncio.StreamWriter, agent: "_Agent", since: Subscribe) -> None:
        """Send what the client lacks, then all that follows."""
        changes, loop = self._changes, asyncio.get_running_loop()
        resumed = since.epoch == changes.epoch and changes.since(since.position) is not None
        await self._send(writer, encode(Welcome(changes.epoch, resumed, answers=tuple(self.questions))))
        position = since.position
        if not resumed:
            position = changes.position
            for message in everything(self._basis(), tuple(changes.refusals), position):
                await self._send(writer, encode(message))
        started = False
        while True:
            agent.due.clear()
            later = changes.since(position)
            if later is None:
                raise _EndedError("too slow: changes were lost; connect again")
            for item in later:
                line = encode(item)
                if len(line) > MAX_DAEMON_MESSAGE_BYTES:
                    raise _EndedError("a change is too large for a message; connect again for all that holds")
                await self._send(writer, line)
                position = item.position
            if not started:
                await self._send(writer, encode(UpToDate(position)))
                started = True
            while agent.notes:
                await self._send(writer, encode(agent.notes.popleft()))
            next_s = await self._send_observation(writer, agent)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(max(next_s, loop.time())):
                    await agent.due.wait()

    async def _send_observation(self, writer: asyncio.StreamWriter, agent: "_Agent") -> float:
        """Send the client the latest observation, if it is due; the moment when the next one is. All clients
        get the same."""
        now_s = asyncio.get_running_loop().time()
        made_s, line = self._observed
        if now_s >= made_s + OBSERVE_INTERVAL_S:
            made_s, line = self._observed = now_s, encode(Observed(self._observe()))
        if agent.observed_s != made_s:
            agent.observed_s = made_s
            await self._send(writer, line)
        return made_s + OBSERVE_INTERVAL_S

    async def _send(self, writer: asyncio.StreamWriter, line: bytes) -> None:
        writer.write(line)
        try:
            async with asyncio.timeout(self._client_timeout_s):
                await writer.drain()
        except TimeoutError as error:
            raise ConnectionAbortedError(f"took nothing for {self._client_timeout_s:g} seconds") from error


class _Agent:
    """A connected client that follows. ``due``: there may be something to send; ``notes`` are kept for this
    client alone. ``answers`` are waited for, by the pod's uid; None when the client has left. *evicts*: see
    `Subscribe`."""

    def __init__(self, evicts: bool) -> None:
        self.evicts = evicts
        self.due = asyncio.Event()
        self.notes: deque[Note] = deque(maxlen=_MAX_NOTES)
        self.answers: dict[str, Answer] = {}
        self._asked: set[asyncio.Task[None]] = set()
        self.observed_s = float("-inf")

    def ask(self, asked: Asked, questions: Mapping[str, Answering]) -> None:
        """Have the question answered while all else goes on."""
        if len(self._asked) >= MOST_QUESTIONS:
            self.say(Answered(asked.number, problem=f"{MOST_QUESTIONS} questions are being answered already"))
            return
        task = asyncio.create_task(self._answer(asked, questions))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def _answer(self, asked: Asked, questions: Mapping[str, Answering]) -> None:
        answering = questions.get(asked.verb)
        if answering is None:
            expected = ", ".join(questions)
            self.say(
                Answered(asked.number, problem=f"verb: found {asked.verb!r}, expected one of {expected}")
            )
            return
        try:
            answer = await answering(asked.request)
            # As at the admin socket: tens of milliseconds, not in the loop that a runtime waits for.
            self.say(Answered(asked.number, await asyncio.to_thread(printable_answer, answer)))
        except BayplanError as error:
            self.say(Answered(asked.number, problem=printable_lines(str(error))))
        except Exception:
            logger.exception("a question of an agent failed")
            self.say(Answered(asked.number, problem="it failed inside the daemon; its log says why"))

    def say(self, note: Note) -> None:
        self.notes.append(note)
        self.due.set()

    def answered(self, answer: EvictionAnswer) -> None:
        """Pass the answer on to what asked, if that still waits."""
        waiting = self.answers.get(answer.uid)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def left(self) -> None:
        for task in self._asked:
            task.cancel()
        for waiting in self.answers.values():
            if not waiting.done():
                waiting.set_result(None)


def everything(basis: Current, refusals: tuple[Refused, ...], position: int) -> Iterator[FromDaemon]:
    """Messages that say what *basis* has, at *position*."""
    yield Change(position, machine=basis.machine, policy=basis.policy, engine=basis.engine.name)
    entries = iter((*basis.ledger.entries.values(), *basis.ledger.retained.values()))
    while some := tuple(islice(entries, _ENTRIES_AT_ONCE)):
        yield Change(position, some)
    yield from refusals


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError as error:
        raise _EndedError(f"a message of more than {MAX_AGENT_MESSAGE_BYTES} bytes") from error


MOST_DEVICES: Final = 32
"""Of a claim: Kubernetes allocates no more."""
MOST_PODS: Final = 256
"""That a claim may be reserved for."""
_MOST_NAME: Final = 253
_MOST_CPUS: Final = 1 << 16

KnowClaimed = Callable[[str, Mapping[str, tuple[ClaimedDevice, ...]]], None]


class _DevicesOfPod(Struct, frozen=True):
    uid: Name
    containers: Annotated[
        dict[Name, Annotated[tuple[ClaimedDevice, ...], Meta(max_length=MOST_DEVICES)]],
        Meta(max_length=MAX_CONTAINERS),
    ]


def claiming(claims: ResourceClaims, know: KnowClaimed) -> dict[str, Answering]:
    """The questions ``prepare-claim``, whose ``claim`` has the fields of `ResourceClaim`, and
    ``unprepare-claim`` with a ``uid``. The first answers with the CDI device of each request. And
    ``claimed-devices``: *know* hears what the ``containers`` of the pod with a ``uid`` have of other drivers,
    each a list of `ClaimedDevice`."""

    async def prepare(request: Mapping[str, object]) -> View:
        return _prepared(await claims.prepare(_claim(request.get("claim"))))

    async def unprepare(request: Mapping[str, object]) -> View:
        uid = request.get("uid")
        if not isinstance(uid, str) or not is_uid(uid):
            raise ConfigError(UNPREPARE_CLAIM, (Problem("uid", repr(uid), "the uid of a claim"),))
        return _document("UnpreparedClaim", uid=uid, wasHeld=await claims.release(uid))

    async def devices(request: Mapping[str, object]) -> View:
        pod = _devices_of_pod(request)
        know(pod.uid, pod.containers)
        return _document("ClaimedDevices", uid=pod.uid)

    return {PREPARE_CLAIM: prepare, UNPREPARE_CLAIM: unprepare, CLAIMED_DEVICES: devices}


def _devices_of_pod(request: Mapping[str, object]) -> _DevicesOfPod:
    try:
        return msgspec.convert(request, _DevicesOfPod)
    except msgspec.ValidationError as error:
        raise ConfigError(CLAIMED_DEVICES, (Problem("request", str(error), "uid and containers"),)) from error


def _document(kind: str, **content: Any) -> View:
    return {"apiVersion": API_VERSION, "kind": kind, **content}


def _prepared(held: HeldClaim) -> View:
    claim = held.claim
    return _document(
        "PreparedClaim",
        uid=claim.uid,
        cdiDevices={request: cdi_name(claim.uid, request) for request in claim.requests},
        cpus=[str(cpus) for cpus in held.cpus],
    )


def _claim(given: object) -> ResourceClaim:
    """The claim that an agent describes.

    Raises:
        ConfigError: with everything that is wrong with it.
    """
    try:
        claim = msgspec.convert(given, ResourceClaim)
    except msgspec.ValidationError as error:
        raise ConfigError(PREPARE_CLAIM, (Problem("claim", str(error), "a claim's fields"),)) from error
    problems = [
        Problem(f"claim.{name}", found, expected)
        for name, found, expected, good in (
            ("uid", claim.uid, "the uid of a claim", is_uid(claim.uid)),
            ("namespace", claim.namespace, "a name", 0 < len(claim.namespace) <= _MOST_NAME),
            ("name", claim.name, "a name", 0 < len(claim.name) <= _MOST_NAME),
            (
                "devices",
                str(len(claim.devices)),
                f"1 to {MOST_DEVICES}",
                0 < len(claim.devices) <= MOST_DEVICES,
            ),
            ("pod_uids", str(len(claim.pod_uids)), f"at most {MOST_PODS}", len(claim.pod_uids) <= MOST_PODS),
        )
        if not good
    ]
    for number, device in enumerate(claim.devices[:MOST_DEVICES]):
        path = f"claim.devices[{number}]"
        if not is_request(device.request):
            problems.append(Problem(f"{path}.request", device.request, "the name of a request"))
        if not 0 <= device.cpus < _MOST_CPUS:
            problems.append(Problem(f"{path}.cpus", str(device.cpus), "a number of CPUs"))
        for resource, amount in device.amounts_bytes.items():
            known = resource == MEMORY or resource.startswith("hugepages-")
            if not known or not 0 <= amount < UNLIMITED_BYTES:
                expected = "bytes of memory or hugepages-SIZE"
                problems.append(Problem(f"{path}.amounts_bytes", f"{resource} {amount}", expected))
    if problems:
        raise ConfigError(PREPARE_CLAIM, tuple(problems))
    return claim

"""The daemon's state as the agent knows it, and the connection that keeps it up to date: made again and
again, for ever, and resumed where it was.

Consumers take ``mirror.snapshot``, which is immutable and of one moment, make what they need of it (with
`bayplan.views`, for instance), and wait with `wait_for_change` until it is worth looking again. While the
daemon is away the last state stays; ``connected`` says so.

Messages of the daemon go to the mirror. What is known of pods is sent once, and all of it again after each
new connection, because a daemon that was started again knows nothing of it. Only the latest of each pod is
kept here. After a message that cannot be read everything is asked for again: to ask only for what follows
would bring the same message.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from bayplan.agent_protocol import (
    MAX_AGENT_MESSAGE_BYTES,
    MAX_DAEMON_MESSAGE_BYTES,
    Answered,
    Asked,
    Change,
    Evicted,
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
    decode_from_daemon,
    encode,
)
from bayplan.backoff import Backoff
from bayplan.errors import BayplanError, UnavailableError
from bayplan.model.kubelet_requests import PodFacts
from bayplan.model.ledger import Ledger, with_changes
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.views.snapshot import Observation, Snapshot

MAX_REFUSALS: Final = 1000
"""The latest; some hundred bytes each."""
MAX_EVICTIONS: Final = 100


class _State(Struct):
    """What the changes up to *position* come to."""

    machine: Machine | None = None
    policy: PlacementPolicy = PlacementPolicy()
    engine: str = ""
    ledger: Ledger = Ledger()
    position: int = 0
    refusals: tuple[Refused, ...] = ()

    def take(self, change: Change) -> None:
        """Take over *change*."""
        self.machine = change.machine or self.machine
        self.policy = change.policy or self.policy
        self.engine = self.engine if change.engine is None else change.engine
        self.ledger = with_changes(self.ledger, change.entries, change.gone)
        self.position = change.position


class Mirror:
    """See the module. ``epoch`` and ``position`` are where the daemon may resume.

    ``revision`` rises with everything that is new; ``refusals`` and ``evictions`` are the latest ones, the
    oldest first, the latter since the agent's start.
    """

    def __init__(self) -> None:
        self.epoch = ""
        self.connected = False
        self.revision = 0
        self.refusals: deque[Refused] = deque(maxlen=MAX_REFUSALS)
        self.evictions: deque[Evicted] = deque(maxlen=MAX_EVICTIONS)
        self._current = _State()
        self._next: _State | None = None
        """What is being sent in place of all that was known; it becomes visible once it is complete."""
        self._next_epoch = ""
        self._observation: Observation | None = None
        self._snapshot: Snapshot | None = None
        self._news = asyncio.Event()

    @property
    def position(self) -> int:
        """The position of what is known."""
        return self._current.position

    @property
    def snapshot(self) -> Snapshot | None:
        """The daemon's state, as in the daemon itself; None before the first one is complete."""
        state, observation = self._current, self._observation
        if self._snapshot is None and state.machine is not None and observation is not None:
            self._snapshot = Snapshot(
                **asdict(observation),
                machine=state.machine,
                policy=state.policy,
                ledger=state.ledger,
                engine=state.engine,
            )
        return self._snapshot

    async def wait_for_change(self, seen: int) -> int:
        """Wait until ``revision`` is not *seen*; what it is then. Disconnection is a change, too."""
        while self.revision == seen:
            await self._news.wait()
        return self.revision

    def disconnected(self) -> None:
        """The daemon is away. What is known stays; what was sent in part is dropped."""
        self._next = None
        if self.connected:
            self.connected = False
            self._publish()

    def take(self, message: FromDaemon) -> None:
        """Take over a message of the daemon; messages about other things are passed over."""
        match message:
            case Welcome(epoch, resumed):
                self._next, self._next_epoch = None if resumed else _State(), epoch
            case UpToDate(position):
                if self._next is not None:
                    self._current, self._next, self.epoch = self._next, None, self._next_epoch
                    self._current.position = position
                    self.refusals = deque(self._current.refusals, MAX_REFUSALS)
                    self._current.refusals = ()
                self.connected = True
                self._publish()
            case Change() if self._next is not None:
                self._next.take(message)
            case Change():
                self._current.take(message)
                self._publish()
            case Refused() if self._next is not None:
                self._next.refusals = (*self._next.refusals, message)
            case Refused():
                self.refusals.append(message)
                self._current.position = message.position
                self._publish()
            case Evicted():
                self.evictions.append(message)
                (self._next or self._current).position = message.position
                self._publish()
            case Observed(observation):
                self._observation = observation
                self._publish()

    def _publish(self) -> None:
        self.revision += 1
        self._snapshot = None
        self._news.set()
        self._news = asyncio.Event()


logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 30.0
"""The daemon sends something every two seconds; after this time without it the connection is made anew."""

ANSWER_TIMEOUT_S: Final = 10.0
"""For the daemon to answer a question."""

MOST_OF_PROBLEM: Final = 1000
"""Characters of what an API server says against an eviction."""


class QuestionError(BayplanError):
    """What the daemon says is wrong with a question."""


class DaemonLink:
    """Follows the daemon at *path* into *mirror*. ``wanted`` is called for each pod that the daemon asks
    about; each of ``connected`` when the daemon may have asked about others before; ``evict`` for each pod
    that is to be evicted, if there is a part that can do that. ``unusable`` counts what the daemon did not
    use."""

    def __init__(
        self,
        path: Path,
        mirror: Mirror,
        wanted: Callable[[PodWanted], None] = lambda _: None,
        backoff: Backoff | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.unusable = 0
        self._path = path
        self._mirror = mirror
        self.wanted = wanted
        self.connected: set[Callable[[], None]] = set()
        self.evict: Callable[[EvictPod], None] | None = None
        self._backoff = backoff or Backoff(random.random, limit_s=5.0)
        self._timeout_s = timeout_s
        self._pods: dict[str, PodFacts] = {}
        self._unsaid: dict[str, PodKnown | PodGone] = {}
        self._answers: deque[EvictionAnswer] = deque()
        self._number = 0
        self._answerable: tuple[str, ...] = ()
        self._unasked: deque[Asked] = deque()
        self._waiting: dict[int, asyncio.Future[Answered]] = {}
        self._to_say = asyncio.Event()
        self._kubelet_version = ""
        self._kubelet_changed = asyncio.Event()

    def know_kubelet(self, version: str) -> None:
        """Connect anew to tell the daemon which kubelet the node has, unless it has been told. Only a
        connection's first message says so: an older daemon ends it over a message that it does not know."""
        if version != self._kubelet_version:
            self._kubelet_version = version
            self._kubelet_changed.set()

    def know(self, pod: PodFacts) -> None:
        """Send the daemon what kubelet says of *pod*, unless it has that already."""
        if self._pods.get(pod.uid) != pod:
            self._pods[pod.uid] = pod
            self._say(pod.uid, PodKnown(pod))

    def forget(self, uid: str) -> None:
        """Send the daemon that kubelet does not have this pod any more."""
        if self._pods.pop(uid, None) is not None:
            self._say(uid, PodGone(uid))

    def keep(self, pods: dict[str, PodFacts]) -> None:
        """Send the daemon what is different, where *pods*, by uid, are all that kubelet has."""
        for uid in self._pods.keys() - pods.keys():
            self.forget(uid)
        for pod in pods.values():
            self.know(pod)

    def answer(self, answer: EvictionAnswer) -> None:
        """Tell the daemon what became of an eviction. The daemon has given up one that it asked for over an
        earlier connection."""
        self._answers.append(replace(answer, problem=answer.problem[:MOST_OF_PROBLEM]))
        self._to_say.set()

    async def ask(self, verb: str, /, **request: Any) -> dict[str, Any]:
        """The daemon's answer, as the admin socket gives it.

        Raises:
            UnavailableError: it is not there, cannot be asked that, or does not answer in time.
            QuestionError: it says what is wrong with the question.
        """
        if verb not in self._answerable:
            why = "is another version, which cannot be asked" if self._mirror.connected else "does not answer"
            raise UnavailableError("baypland", why)
        self._number += 1
        number = self._number
        answer: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._unasked.append(Asked(number, verb, request))
        self._to_say.set()
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answered = await answer
        except TimeoutError as error:
            raise UnavailableError("baypland", f"no answer within {ANSWER_TIMEOUT_S:g} seconds") from error
        finally:
            del self._waiting[number]
        if answered.problem:
            raise QuestionError(answered.problem)
        return answered.view

    def pod_named(self, namespace: str, name: str) -> PodFacts | None:
        """What is known of that pod."""
        return next(
            (pod for pod in self._pods.values() if (pod.namespace, pod.name) == (namespace, name)), None
        )

    async def run(self) -> None:
        """Follow the daemon until cancelled."""
        while True:
            try:
                await self._follow()
                continue
            except (OSError, EOFError, BayplanError, TimeoutError) as error:
                why = str(error) or type(error).__name__
                log = logger.warning if self._mirror.connected or not self._backoff.attempts else logger.debug
                log("the daemon is not there", extra={"socket": str(self._path), "problem": why})
                if isinstance(error, BayplanError):
                    # To resume would be to read the same once more.
                    self._mirror.epoch = ""
            finally:
                self._answerable = ()
                self._unasked.clear()
                for waiting in self._waiting.values():
                    if not waiting.done():
                        waiting.set_result(Answered(0, problem="baypland ended the connection"))
                self._mirror.disconnected()
            await asyncio.sleep(self._backoff.next_s())

    async def _follow(self) -> None:
        """Follow until the connection ends, which is an error, or until another one has to begin."""
        reader, writer = await asyncio.open_unix_connection(self._path, limit=MAX_DAEMON_MESSAGE_BYTES)
        try:
            mirror, evicts = self._mirror, self.evict is not None
            self._kubelet_changed.clear()
            said = Subscribe(
                epoch=mirror.epoch,
                position=mirror.position,
                evicts=evicts,
                kubelet_version=self._kubelet_version,
            )
            writer.write(encode(said))
            self._answers.clear()
            self._unsaid = {uid: PodKnown(pod) for uid, pod in self._pods.items()}
            self._to_say.set()
            saying = asyncio.create_task(self._say_all(writer))
            listening = asyncio.create_task(self._listen(reader))
            changed = asyncio.create_task(self._kubelet_changed.wait())
            try:
                await asyncio.wait((listening, changed), return_when=asyncio.FIRST_COMPLETED)
                if listening.done():
                    await listening
            finally:
                for task in (tasks := (saying, listening, changed)):
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            writer.transport.abort()

    def _tell_connected(self) -> None:
        for listener in self.connected:
            listener()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while True:
            try:
                async with asyncio.timeout(self._timeout_s):
                    line = await reader.readuntil(b"\n")
                message = decode_from_daemon(line)
            except asyncio.LimitOverrunError as error:
                problem = f"a message of more than {MAX_DAEMON_MESSAGE_BYTES} bytes"
                raise UnavailableError(str(self._path), problem) from error
            self._mirror.take(message)
            match message:
                case Welcome(answers=answers):
                    self._answerable = answers
                case Answered(number) if number in self._waiting and not self._waiting[number].done():
                    self._waiting[number].set_result(message)
                case UpToDate():
                    self._backoff.reset()
                    logger.info("following the daemon", extra={"position": self._mirror.position})
                    self._tell_connected()
                case PodWanted():
                    self.wanted(message)
                case EvictPod() if self.evict is not None:
                    self.evict(message)
                case Unusable(uid, container, problem):
                    self.unusable += 1
                    fields = {"pod_uid": uid, "container": container, "problem": problem}
                    logger.warning("the daemon does not use what kubelet says", extra=fields)
                case Failed(text):
                    raise UnavailableError(str(self._path), text)

    def _say(self, uid: str, message: PodKnown | PodGone) -> None:
        self._unsaid[uid] = message
        self._to_say.set()

    async def _say_all(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._to_say.wait()
            self._to_say.clear()
            while self._answers:
                writer.write(encode(self._answers.popleft()))
                await writer.drain()
            while self._unasked:
                writer.write(encode(self._unasked.popleft()))
                await writer.drain()
            while self._unsaid:
                uid = next(iter(self._unsaid))
                line = encode(self._unsaid.pop(uid))
                if len(line) > MAX_AGENT_MESSAGE_BYTES:
                    # The daemon would end the connection, each time again, and hear of no other pod.
                    fields = {"uid": uid, "bytes": len(line), "most": MAX_AGENT_MESSAGE_BYTES}
                    logger.warning("a pod is too large to be passed on", extra=fields)
                    continue
                writer.write(line)
                await writer.drain()

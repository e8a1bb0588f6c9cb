"""The agent's connection to the daemon: made again and again, for ever; resumed where it was.

What the daemon says goes to the mirror. What is known of pods is said once, and all of it again after each
new connection, because a daemon that was started again knows nothing of it. Nothing is kept here but the
latest of each pod. After something that cannot be read everything is asked for again, and not only what
follows: that would be the same once more.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from bayplan.agent.mirror import Mirror
from bayplan.agent_protocol import (
    MAX_AGENT_MESSAGE_BYTES,
    MAX_DAEMON_MESSAGE_BYTES,
    Answered,
    Asked,
    EvictionAnswer,
    EvictPod,
    Failed,
    PodGone,
    PodKnown,
    PodWanted,
    Subscribe,
    Unusable,
    UpToDate,
    Welcome,
    decode_from_daemon,
    encode,
)
from bayplan.backoff import Backoff
from bayplan.errors import BayplanError, UnavailableError
from bayplan.model.pod_facts import PodFacts

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
    about, each of ``connected`` when it could have asked about others before, ``evict`` for each pod that is
    to be evicted, if somebody can do that; ``unusable`` counts what the daemon did not use.
    """

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
        """Tell the daemon what became of an eviction. One that was asked for over an earlier connection is
        over for it."""
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

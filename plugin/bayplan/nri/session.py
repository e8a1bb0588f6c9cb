"""A plugin's life: connect, register, serve, and when the connection ends, all over again.

Never two connections at once: a runtime keeps both, and two plugins of the same name conflict in every
container. The next attempt begins when the socket of the last one is closed.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Final

from bayplan.errors import UnavailableError
from bayplan.nri.backoff import Backoff
from bayplan.nri.clock import Clock, Timer, wait
from bayplan.nri.conversation import Conversation, Patience
from bayplan.nri.handler import Handler
from bayplan.nri.lane import Lane
from bayplan.nri.transport import Endpoint, Identity
from bayplan.nri.versions import Runtime

logger = logging.getLogger(__name__)

_PATIENCE = Patience()

_RESYNCHRONIZE_FIRST_S: Final = 1.0
_RESYNCHRONIZE_LIMIT_S: Final = 60.0
"""Each attempt takes us out of the runtime's list for a moment."""

_LASTING_S: Final = 10.0
"""A connection that was of use for so long starts the delays from the beginning; a runtime that drops us at
the first event does not."""


class Session:
    """Serves one runtime with one handler. Create it and use it within one event loop.

    *clock* is the loop's own unless a test moves the time itself; *jitter* gives numbers from 0 to below 1.
    """

    def __init__(
        self,
        handler: Handler,
        identity: Identity,
        endpoint: Endpoint,
        *,
        patience: Patience = _PATIENCE,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._handler = handler
        self._identity = identity
        self._endpoint = endpoint
        self._patience = patience
        self._clock: Clock = clock if clock is not None else asyncio.get_running_loop()
        self._lane = Lane(self._clock)
        self._backoff = Backoff(jitter)
        self._resynchronize = Backoff(jitter, _RESYNCHRONIZE_FIRST_S, _RESYNCHRONIZE_LIMIT_S)
        self._conversation: Conversation | None = None
        self._synchronized_at: float | None = None
        self._pause: asyncio.Future[None] | None = None
        self._closing = asyncio.Event()
        self._retry: Timer | None = None
        self._last_failure = ""

    @property
    def runtime(self) -> Runtime | None:
        """The runtime that we are connected to."""
        return self._conversation.runtime if self._conversation is not None else None

    @property
    def synchronized(self) -> bool:
        """Whether the handler knows what the runtime has, so that its decisions are asked for."""
        return self._conversation is not None and self._conversation.synchronized

    async def run(self) -> None:
        """Serve until `close`; with an endpoint that is good once, until its connection ends."""
        async with asyncio.TaskGroup() as group:
            lane = group.create_task(self._lane.run(), name="nri-lane")
            try:
                await self._serve()
            finally:
                lane.cancel()

    async def close(self) -> None:
        """End the session: answer what has been asked, then close the connection and let `run` return.

        Containers stay as they are. It takes no longer than a deadline.
        """
        self._closing.set()
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)
        await wait(self._lane.when_idle(), self._patience.answer_s, self._clock)
        conversation = self._conversation
        if conversation is not None:
            conversation.link.close("we end the session")
            if not await wait(conversation.ended, self._patience.answer_s, self._clock):
                conversation.link.abort("the runtime does not read")

    def reconnect(self, why: str) -> None:
        """Give the connection up and get another, with a fresh Synchronize."""
        if self._conversation is not None:
            self._conversation.link.abort(why)

    async def _serve(self) -> None:
        while not self._closing.is_set():
            why = await self._converse()
            if self._closing.is_set():
                return
            if not self._endpoint.again:
                extra = {"endpoint": str(self._endpoint), "why": why}
                logger.warning("the only connection to the container runtime has ended", extra=extra)
                return
            delay_s = self._backoff.next_s()
            if why != self._last_failure:
                self._last_failure = why
                logger.warning(
                    "no connection to the container runtime",
                    extra={
                        "endpoint": str(self._endpoint),
                        "why": why,
                        "next_attempt_ms": int(delay_s * 1000),
                    },
                )
            self._pause = asyncio.get_running_loop().create_future()
            await wait(self._pause, delay_s, self._clock)
            self._pause = None

    async def _converse(self) -> str:
        """One connection from its beginning to its end; why it ended."""
        conversation = Conversation(
            self._handler, self._identity, self._lane, self._clock, self._patience, self._concluded
        )
        try:
            await self._endpoint.connect(conversation.link)
        except UnavailableError as error:
            return str(error)
        self._conversation = conversation
        self._synchronized_at = None
        try:
            if not self._closing.is_set():
                conversation.register()
                await asyncio.shield(conversation.ended)
        finally:
            conversation.link.abort("we end the session")
            why = await conversation.ended
            await self._leave(conversation, why)
        return why

    async def _leave(self, conversation: Conversation, why: str) -> None:
        """Wind up after a connection has ended."""
        if self._retry is not None:
            self._retry.cancel()
        self._lane.abandon("the connection ended")
        if not await wait(self._lane.when_idle(), self._patience.answer_s, self._clock):
            logger.error("a handler goes on although it was cancelled")
        self._conversation = None
        if self._synchronized_at is not None:
            self._last_failure = ""
            if self._clock.time() - self._synchronized_at >= _LASTING_S:
                self._backoff.reset()
        if conversation.runtime is not None:
            try:
                self._handler.disconnected(why)
            except Exception:
                logger.exception("handler failed", extra={"event": "disconnected"})

    def _concluded(self, well: bool) -> None:
        """A Synchronize of the current connection has ended."""
        if self._retry is not None:
            self._retry.cancel()
        if well:
            self._synchronized_at = self._clock.time()
            self._resynchronize.reset()
            return
        delay_s = self._resynchronize.next_s()
        logger.error(
            "could not synchronize: all requests are answered by default",
            extra={"next_attempt_ms": int(delay_s * 1000)},
        )
        again = partial(self.reconnect, "to synchronize again")
        self._retry = self._clock.call_at(self._clock.time() + delay_s, again)

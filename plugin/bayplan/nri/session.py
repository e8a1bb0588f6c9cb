"""Connect to the runtime, register, serve, and when the connection ends, start again.

Never two connections at once: a runtime keeps both, and two plugins of the same name conflict in every
container. The next attempt begins when the socket of the last one is closed.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Final

from bayplan.backoff import Backoff
from bayplan.errors import UnavailableError
from bayplan.nri.clock import Clock, Timer, wait
from bayplan.nri.handler import Handler
from bayplan.nri.request_queue import RequestQueue, Timeouts
from bayplan.nri.runtime_connection import RuntimeConnection
from bayplan.nri.transport import Endpoint, Identity
from bayplan.nri.versions import Runtime

logger = logging.getLogger(__name__)

_TIMEOUTS = Timeouts()

_RESYNCHRONIZE_FIRST_S: Final = 1.0
_RESYNCHRONIZE_LIMIT_S: Final = 60.0
"""Each attempt takes us out of the runtime's list for a moment."""

_LASTING_S: Final = 10.0
"""A connection that was of use for so long starts the delays from the beginning; a runtime that drops us at
the first event does not."""


class Session:
    """Serves one runtime with one handler. Create it and use it within one event loop.

    *clock* is the loop's own unless a test moves the time itself; *jitter* gives numbers from 0 to below 1.
    *replied* is called with the seconds from the arrival of each request to its answer.
    """

    def __init__(
        self,
        handler: Handler,
        identity: Identity,
        endpoint: Endpoint,
        *,
        timeouts: Timeouts = _TIMEOUTS,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
        replied: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._handler = handler
        self._identity = identity
        self._endpoint = endpoint
        self._timeouts = timeouts
        self._clock: Clock = clock if clock is not None else asyncio.get_running_loop()
        self._queue = RequestQueue(handler, self._clock, timeouts, replied)
        self._backoff = Backoff(jitter)
        self._resynchronize = Backoff(jitter, _RESYNCHRONIZE_FIRST_S, _RESYNCHRONIZE_LIMIT_S)
        self._connection: RuntimeConnection | None = None
        self._synchronized_at: float | None = None
        self._pause: asyncio.Future[None] | None = None
        self._closing = asyncio.Event()
        self._retry: Timer | None = None
        self._last_failure = ""

    @property
    def runtime(self) -> Runtime | None:
        """The runtime that we are connected to."""
        return self._connection.runtime if self._connection is not None else None

    @property
    def synchronized(self) -> bool:
        """Whether the handler knows what the runtime has, so that its decisions are asked for."""
        return self._connection is not None and self._connection.synchronized

    async def run(self) -> None:
        """Serve until `close`; with an endpoint that is good once, until its connection ends."""
        while not self._closing.is_set():
            why = await self._serve_connection()
            if self._closing.is_set():
                return
            if not self._endpoint.again:
                extra = {"endpoint": str(self._endpoint), "why": why}
                logger.warning("the only connection to the container runtime has ended", extra=extra)
                return
            await self._wait_to_reconnect(why)

    async def close(self) -> None:
        """End the session: answer what has been asked, then close the connection and let `run` return.

        Containers stay as they are. It takes no longer than a deadline.
        """
        self._closing.set()
        if self._pause is not None and not self._pause.done():
            self._pause.set_result(None)
        await wait(self._queue.when_idle(), self._timeouts.answer_s, self._clock)
        connection = self._connection
        if connection is not None:
            connection.close("we end the session")
            if not await wait(connection.ended, self._timeouts.answer_s, self._clock):
                connection.abort("the runtime does not read")

    def reconnect(self, why: str) -> None:
        """Give the connection up and get another, with a fresh Synchronize."""
        if self._connection is not None:
            self._connection.abort(why)

    async def _wait_to_reconnect(self, why: str) -> None:
        """Wait before the next attempt; a reason is logged once, however often it repeats."""
        delay_s = self._backoff.next_s()
        if why != self._last_failure:
            self._last_failure = why
            extra = {"endpoint": str(self._endpoint), "why": why, "next_attempt_ms": int(delay_s * 1000)}
            logger.warning("no connection to the container runtime", extra=extra)
        self._pause = asyncio.get_running_loop().create_future()
        await wait(self._pause, delay_s, self._clock)
        self._pause = None

    async def _serve_connection(self) -> str:
        """One connection from its beginning to its end; why it ended."""
        connection = RuntimeConnection(
            self._handler,
            self._identity,
            self._queue,
            self._clock,
            self._timeouts.registration_s,
            self._synchronization_ended,
        )
        try:
            await self._endpoint.connect(connection)
        except UnavailableError as error:
            return str(error)
        self._connection = connection
        self._synchronized_at = None
        try:
            if not self._closing.is_set():
                connection.register()
                await asyncio.shield(connection.ended)
        finally:
            connection.abort("we end the session")
            why = await connection.ended
            await self._leave(connection, why)
        return why

    async def _leave(self, connection: RuntimeConnection, why: str) -> None:
        """End what was begun on a connection that has ended."""
        if self._retry is not None:
            self._retry.cancel()
        self._queue.abandon("the connection ended")
        if not await wait(self._queue.when_idle(), self._timeouts.answer_s, self._clock):
            logger.error("a handler continues although it was cancelled")
        self._connection = None
        if self._synchronized_at is not None:
            self._last_failure = ""
            if self._clock.time() - self._synchronized_at >= _LASTING_S:
                self._backoff.reset()
        if connection.runtime is not None:
            try:
                self._handler.disconnected(why)
            except Exception:
                logger.exception("handler failed", extra={"event": "disconnected"})

    def _synchronization_ended(self, succeeded: bool) -> None:
        """A Synchronize of the current connection has ended; after one that failed, connect again."""
        if self._retry is not None:
            self._retry.cancel()
        if succeeded:
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

"""Requests of the runtime that a handler decides about: one at a time, in the order of arrival, each
answered exactly once and none after its deadline.

At the deadline a timer answers by default, whatever the handler is doing, and cancels the handler's task.
The next request begins when that task has ended. The runtime gets no error for failures, except for a
refusal that a user should read: an error status would stop a container for a fault of ours.

Everything that waits in this package waits on a `Clock`: what an asyncio loop offers, and nothing else,
so that tests move the time themselves.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from msgspec import Struct

from bayplan.errors import LocalProtocolError, PlacementError
from bayplan.nri.handler import Handler
from bayplan.nri.translate import Operation
from bayplan.nri.versions import Event
from bayplan.nri.wire import Code, TtrpcResponse
from bayplan.printable import printable


class Timer(Protocol):
    """Something that will happen, unless it is cancelled."""

    def cancel(self) -> object:
        """Make sure that it does not happen. Harmless afterwards."""


class Clock(Protocol):
    """Seconds from some moment on, never going back, and callbacks at some of them."""

    def time(self) -> float:
        """Now."""

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        """Have *callback* called at *when*, or at once if that is over; never from within this call."""


async def wait(future: "asyncio.Future[Any]", seconds: float, clock: Clock) -> bool:
    """Wait for *future*, at most so long, and say whether it is done. The future itself is left alone."""
    if future.done():
        return True
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = clock.call_at(clock.time() + seconds, wake)
    future.add_done_callback(wake)
    try:
        await waiter
    finally:
        timer.cancel()
        future.remove_done_callback(wake)
    return future.done()


logger = logging.getLogger(__name__)

REFUSED = Code.FAILED_PRECONDITION
"""The status of a refusal. Runtimes show the message and do nothing with the code, except that
UNIMPLEMENTED means an old plugin and makes them ask again in another way."""

_NS: Final = 1_000_000_000


class Timeouts(Struct, frozen=True):
    """How long we wait, and how long we let a runtime wait, in seconds.

    ``answer_s``: for an answer of ours, at most; NRI's own limit is 2 s, after which the runtime drops us.
    ``margin_s``: less than the runtime allows, for the transfer of request and answer.
    ``registration_s``: for the reply to our registration, which other plugins can delay: each is given 5 s to
    register and 2 s to synchronize, one after the other.
    """

    answer_s: float = 1.0
    margin_s: float = 0.25
    registration_s: float = 60.0

    def budget_s(self, timeout_ns: int) -> float:
        """The time for an answer when the runtime allows *timeout_ns*, 0 meaning any. The margin never takes
        more than half of what a runtime with short timeouts allows."""
        if timeout_ns == 0:
            return self.answer_s
        allowed_s = timeout_ns / _NS
        return max(0.0, min(self.answer_s, allowed_s - min(self.margin_s, allowed_s / 2)))


class Requester(Protocol):
    """The connection on which a request came."""

    synchronized: bool
    """Whether the handler knows what the runtime has, so that it can decide."""

    def send(self, response: TtrpcResponse) -> bool:
        """Write an answer; False if the connection has ended."""

    def synchronization_ended(self, *, succeeded: bool) -> None:
        """A Synchronize of this connection was answered and the handler has ended."""


class _Pending(Struct, eq=False):
    """A request that waits or is being decided. ``arrived_s``: when it came, by the clock; ``problem``: why
    the handler's result was not the answer."""

    operation: Operation
    requester: Requester
    stream_id: int
    budget_s: float
    arrived_s: float
    answered: bool = False
    cancelled: bool = False
    problem: str = ""
    task: "asyncio.Task[None] | None" = None
    timer: Timer | None = None

    def fields(self, why: str) -> dict[str, object]:
        """The fields of a log line about it."""
        return {"event": self.operation.event.name, "id": self.operation.container_id, "why": why}


class RequestQueue:
    """The requests of all connections of a session: one at a time, also across a lost connection. *replied*
    is called with the seconds that each waited for its answer."""

    def __init__(
        self,
        handler: Handler,
        clock: Clock,
        timeouts: Timeouts,
        replied: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._replied = replied
        self._handler = handler
        self._clock = clock
        self._timeouts = timeouts
        self._waiting: deque[_Pending] = deque()
        self._running: _Pending | None = None
        self._idle: list[asyncio.Future[None]] = []

    def put(self, operation: Operation, requester: Requester, stream_id: int, timeout_ns: int) -> None:
        """Queue a request that the runtime waits for no longer than *timeout_ns*, 0 meaning any time."""
        budget_s = self._timeouts.budget_s(timeout_ns)
        now_s = self._clock.time()
        one = _Pending(operation, requester, stream_id, budget_s, now_s)
        one.timer = self._clock.call_at(now_s + budget_s, partial(self._expire, one))
        if self._running is None:
            self._begin(one)
        else:
            self._waiting.append(one)

    @property
    def busy(self) -> bool:
        """Whether a request is being decided, and perhaps others wait."""
        return self._running is not None

    def when_idle(self) -> "asyncio.Future[None]":
        """Done as soon as no request is being decided and none waits."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._running is None:
            future.set_result(None)
        else:
            self._idle.append(future)
        return future

    def abandon(self, why: str) -> None:
        """Answer everything by default: what waits is not begun, what runs is cancelled."""
        while self._waiting:
            self._end(self._waiting.popleft(), why)
        if self._running is not None:
            self._stop(self._running, why)

    # ---- One request ---------------------------------------------------------------------------------

    def _begin(self, one: _Pending) -> None:
        self._running = one
        one.task = asyncio.get_running_loop().create_task(self._decide(one), name="nri-request")
        one.task.add_done_callback(self._ended)

    async def _decide(self, pending: _Pending) -> None:
        """Let the handler decide, and answer with its result unless the default was answered meanwhile."""
        if not (pending.requester.synchronized or pending.operation.event is Event.SYNCHRONIZE):
            self._answer_by_default(pending, "not synchronized with the runtime")
            return
        try:
            payload = await pending.operation.perform(self._handler)
        except PlacementError as error:
            if pending.operation.refusable:
                self._answer(pending, TtrpcResponse(pending.stream_id, REFUSED, printable(str(error))))
            else:
                self._failed(pending, error)
        except Exception as error:  # noqa: BLE001 - whatever a handler does, the runtime gets its answer
            self._failed(pending, error)
        else:
            self._answer(pending, TtrpcResponse(pending.stream_id, payload=payload))

    def _expire(self, one: _Pending) -> None:
        """The deadline has passed."""
        if one is self._running:
            self._stop(one, f"no answer within {one.budget_s * 1000:.0f} ms")
        elif one in self._waiting:
            self._waiting.remove(one)
            self._end(one, f"waited {one.budget_s * 1000:.0f} ms behind another request")

    def _stop(self, one: _Pending, why: str) -> None:
        """Answer the running request by default and cancel its task, once: it may take its time to end, and
        may even return a result, which is dropped."""
        self._answer_by_default(one, why)
        if one.timer is not None:
            one.timer.cancel()
        if one.task is not None and not one.cancelled:
            one.cancelled = True
            one.task.cancel()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """The task of the running request has ended; the next one begins after everything about this one."""
        one = self._running
        assert one is not None
        stopped = task.cancelled()
        self._end(one, "something that it waited for was cancelled" if stopped else "ended without an answer")
        self._running = None
        if self._waiting:
            self._begin(self._waiting.popleft())
        elif self._idle:
            self._set_idle()

    def _end(self, pending: _Pending, why: str) -> None:
        """Make sure that the request is answered, and tell the handler if its result was not the answer."""
        if pending.timer is not None:
            pending.timer.cancel()
        if not pending.answered:
            self._answer_by_default(pending, why)
        operation = pending.operation
        try:
            if operation.event is Event.SYNCHRONIZE:
                pending.requester.synchronization_ended(succeeded=not pending.problem)
            if pending.problem:
                self._handler.missed(
                    operation.event, operation.container_id, pending.problem, operation.described
                )
        except Exception:
            logger.exception("handler failed", extra=pending.fields("missed"))

    def _set_idle(self) -> None:
        for future in self._idle:
            if not future.done():
                future.set_result(None)
        self._idle.clear()

    # ---- Answers -------------------------------------------------------------------------------------

    def _answer(self, pending: _Pending, response: TtrpcResponse) -> None:
        """Send the one answer; where it cannot be sent, the default."""
        if pending.answered:
            return
        pending.answered = True
        try:
            sent = pending.requester.send(response)
        except LocalProtocolError as error:
            # Nothing was sent, so that the request still waits for an answer.
            logger.exception("an answer cannot be sent", extra=pending.fields(str(error)))
            pending.problem = pending.problem or f"unsendable answer: {error}"
            sent = pending.requester.send(self._default(pending))
        self._replied(self._clock.time() - pending.arrived_s)
        if not sent:
            pending.problem = pending.problem or "the connection ended before the answer"

    def _answer_by_default(self, one: _Pending, why: str) -> None:
        if not one.answered:
            one.problem = why
            logger.warning("answered by default", extra=one.fields(why))
            self._answer(one, self._default(one))

    def _failed(self, one: _Pending, error: Exception) -> None:
        logger.error("handler failed", exc_info=error, extra=one.fields(str(error)))
        self._answer_by_default(one, f"failed: {type(error).__name__}: {error}")

    def _default(self, one: _Pending) -> TtrpcResponse:
        try:
            return TtrpcResponse(one.stream_id, payload=one.operation.default(self._handler))
        except PlacementError as error:
            return TtrpcResponse(one.stream_id, REFUSED, printable(str(error)))
        except Exception:
            logger.exception("handler failed", extra=one.fields("fallback"))
            return TtrpcResponse(one.stream_id)

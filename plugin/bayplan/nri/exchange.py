"""One request of the runtime, from its arrival to its answer: answered exactly once, whatever happens.

What the runtime gets to hear of failures is decided here: nothing, except for a refusal that a user should
read. An error status would stop a container for a fault of ours.
"""

import logging
from collections.abc import Callable

from bayplan.errors import LocalProtocolError, PlacementError
from bayplan.nri.handler import Handler
from bayplan.nri.operations import Operation
from bayplan.nri.wire import Code, Response
from bayplan.printable import printable

logger = logging.getLogger(__name__)

REFUSED = Code.FAILED_PRECONDITION
"""The status of a refusal. Runtimes show the message and do nothing with the code, except that
UNIMPLEMENTED means an old plugin and makes them ask again in another way."""


class Exchange:
    """A job of the lane: lets the handler decide about an operation and answers the runtime.

    *send* writes an answer and says whether the connection was still there to take it. *ready* says, when the
    turn comes, whether the handler knows enough to decide. *concluded* is told whether it did.
    """

    __slots__ = ("_answered", "_concluded", "_handler", "_operation", "_ready", "_send", "_stream_id", "_why")

    def __init__(
        self,
        operation: Operation,
        stream_id: int,
        handler: Handler,
        send: Callable[[Response], bool],
        ready: Callable[[], bool],
        concluded: Callable[[bool], None] | None = None,
    ) -> None:
        self._operation = operation
        self._stream_id = stream_id
        self._handler = handler
        self._send = send
        self._ready = ready
        self._concluded = concluded
        self._answered = False
        self._why = ""

    async def run(self) -> None:
        """Let the handler decide, if it can."""
        if not self._ready():
            self.give_up("not synchronized with the runtime")
            return
        try:
            payload = await self._operation.perform(self._handler)
        except PlacementError as error:
            if self._operation.refusable:
                self._answer(Response(self._stream_id, REFUSED, printable(str(error))))
            else:
                self._failed(error)
        except Exception as error:  # noqa: BLE001 - whatever a handler does, the runtime gets its answer
            self._failed(error)
        else:
            self._answer(Response(self._stream_id, payload=payload))

    def give_up(self, why: str) -> None:
        """Answer by default, now."""
        if self._answered:
            return
        self._why = why
        logger.warning("answered by default", extra=self._fields(why))
        self._answer(Response(self._stream_id, payload=self._default()))

    def ended(self) -> None:
        """Tell the handler if its result did not reach the runtime."""
        try:
            if self._concluded is not None:
                self._concluded(not self._why)
            if self._why:
                one = self._operation
                self._handler.missed(one.event, one.container_id, self._why, one.news)
        except Exception:
            logger.exception("handler failed", extra=self._fields("missed"))

    def _failed(self, error: Exception) -> None:
        logger.error("handler failed", exc_info=error, extra=self._fields(str(error)))
        self.give_up(f"failed: {type(error).__name__}: {error}")

    def _answer(self, response: Response) -> None:
        if self._answered:
            return
        self._answered = True
        try:
            sent = self._send(response)
        except LocalProtocolError as error:
            # Nothing was sent, so that the request still waits for an answer.
            logger.exception("unsendable answer", extra=self._fields(str(error)))
            self._why = self._why or f"unsendable answer: {error}"
            sent = self._send(Response(self._stream_id, payload=self._default()))
        if not sent:
            self._why = self._why or "the connection ended before the answer"

    def _default(self) -> bytes:
        try:
            return self._operation.default(self._handler)
        except Exception:
            logger.exception("handler failed", extra=self._fields("fallback"))
            return b""

    def _fields(self, why: str) -> dict[str, object]:
        return {"event": self._operation.event.name, "id": self._operation.container_id, "why": why}

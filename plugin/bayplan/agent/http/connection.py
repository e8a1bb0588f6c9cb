"""One client's connection: requests and answers, one after the other, as h11 has the protocol.

A request has no body and arrives within some seconds; an answer, or each part of a stream, is taken within
some seconds. Everything else ends the connection, with a sentence where one can still be sent.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, Protocol
from urllib.parse import parse_qsl

import h11

from bayplan import __version__
from bayplan.agent.http.exchange import PageRequest, Response, text

MAX_REQUEST_BYTES: Final = 16 << 10
IDLE_TIMEOUT_S: Final = 75.0
"""Between two requests. Prometheus asks every 15 to 60 s."""

_READ_BYTES: Final = 4096
_HEAD: Final = b"HEAD"
_METHODS: Final = (b"GET", _HEAD)
_ALWAYS: Final = (
    ("Server", f"bayplan/{__version__}"),
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
)


class _UnusableError(Exception):
    """A request that is answered with a sentence, after which the connection ends."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class SetWaiting(Protocol):
    """Called when a client begins or ends to wait for its own next request."""

    def __call__(self, *, waiting: bool) -> None:
        """It begins, or ends."""


class ClientConnection:
    """Serves a client with the answers of *answer*, until it is gone or does what it should not.
    *set_waiting* is called with whether the client has nothing to be answered."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: Callable[[PageRequest], Awaitable[Response]],
        set_waiting: SetWaiting,
        timeout_s: float,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self._set_waiting = set_waiting
        self._timeout_s = timeout_s
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST_BYTES)

    async def serve(self) -> None:
        """Serve to the end.

        Raises:
            TimeoutError: the client was too slow.
            OSError: the connection broke.
        """
        wait_s = self._timeout_s
        while True:
            try:
                head = await self._next_request(wait_s)
            except _UnusableError as error:
                await self._send(error.response, last=True)
                return
            if head is None:
                return
            self._set_waiting(waiting=False)
            await self._send(await self._answer(_request(head)), head_only=head.method == _HEAD)
            if self._protocol.our_state is not h11.DONE or self._protocol.their_state is not h11.DONE:
                return
            self._protocol.start_next_cycle()
            self._set_waiting(waiting=True)
            wait_s = IDLE_TIMEOUT_S

    async def _next_request(self, wait_s: float) -> h11.Request | None:
        """The next one, None if the client has no more."""
        head: h11.Request | None = None
        begun = False
        async with asyncio.timeout(wait_s) as limit:
            while True:
                event = self._next_event()
                if event is h11.NEED_DATA:
                    self._protocol.receive_data(await self._reader.read(_READ_BYTES))
                    if not begun:
                        begun = True
                        limit.reschedule(asyncio.get_running_loop().time() + self._timeout_s)
                elif isinstance(event, h11.Request):
                    if event.method not in _METHODS:
                        raise _UnusableError(
                            text(405, "only GET and HEAD are answered", ("Allow", "GET, HEAD"))
                        )
                    head = event
                elif isinstance(event, h11.EndOfMessage):
                    return head
                elif isinstance(event, h11.ConnectionClosed):
                    return None
                else:
                    raise _UnusableError(text(413, "a request without a body is expected"))

    def _next_event(self) -> object:
        try:
            return self._protocol.next_event()
        except h11.RemoteProtocolError as error:
            raise _UnusableError(text(error.error_status_hint, f"not a request: {error}")) from error

    async def _send(self, response: Response, *, head_only: bool = False, last: bool = False) -> None:
        framing = (
            ("Content-Length", str(len(response.body)))
            if response.chunks is None
            else ("Transfer-Encoding", "chunked")
        )
        headers = [("Content-Type", response.content_type), framing, *_ALWAYS, *response.headers]
        if last:
            headers.append(("Connection", "close"))
        await self._write(h11.Response(status_code=response.status, headers=headers))
        if not head_only:
            await self._send_body(response)
        await self._write(h11.EndOfMessage())

    async def _send_body(self, response: Response) -> None:
        if response.chunks is None:
            await self._write(h11.Data(data=response.body))
            return
        async with contextlib.aclosing(response.chunks) as chunks:
            async for chunk in chunks:
                await self._write(h11.Data(data=chunk))

    async def _write(self, event: h11.Event) -> None:
        data = self._protocol.send(event)
        if data:
            async with asyncio.timeout(self._timeout_s):
                self._writer.write(data)
                await self._writer.drain()


def _request(head: h11.Request) -> PageRequest:
    path, _, query = head.target.decode("ascii").partition("?")
    headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
    return PageRequest(path, headers, dict(parse_qsl(query)))

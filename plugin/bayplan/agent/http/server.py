"""A small HTTP/1.1 server for a few pages, with limits for everything.

No more than `MAX_CLIENTS` are connected, with those in the middle of a TLS handshake: the next one takes
the place of the one that has waited longest without anything to be answered, or is sent away where there is
none.

A connection has requests and answers, one after the other, as h11 has the protocol. A request has no body
and arrives within some seconds; an answer, or each part of a stream, is taken within some seconds.
Everything else ends the connection, with a sentence where one can still be sent. So memory is bounded,
whatever clients do.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from typing import Final, Protocol, TypeAlias
from urllib.parse import parse_qsl

import h11
from msgspec import Struct

from bayplan import __version__
from bayplan.errors import HostError

TEXT: Final = "text/plain; charset=utf-8"


class PageRequest(Struct, frozen=True):
    """A GET or HEAD request; the names of ``headers`` are in lower case."""

    path: str
    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}


class HttpResponse(Struct, frozen=True):
    """An answer. ``chunks`` are sent one after the other until the client is gone, in place of ``body``."""

    body: bytes = b""
    content_type: str = TEXT
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    chunks: AsyncGenerator[bytes, None] | None = None


Route: TypeAlias = Callable[[PageRequest], Awaitable[HttpResponse]]
"""Answers the requests for one path."""


def plain_text(status: int, sentence: str, *headers: tuple[str, str]) -> HttpResponse:
    """An answer that is a sentence."""
    return HttpResponse(f"{sentence}\n".encode(), status=status, headers=headers)


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

    def __init__(self, response: HttpResponse) -> None:
        super().__init__(response.status)
        self.response = response


class SetWaiting(Protocol):
    """Called when a client begins to wait for its own next request, and when that wait ends."""

    def __call__(self, *, waiting: bool) -> None:
        """The wait begins (True) or ends."""


class ClientConnection:
    """Serves a client with the answers of *answer*, until it is gone or does what it should not.
    *set_waiting* is called with whether the client has nothing to be answered."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: Callable[[PageRequest], Awaitable[HttpResponse]],
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
                            plain_text(405, "only GET and HEAD are answered", ("Allow", "GET, HEAD"))
                        )
                    head = event
                elif isinstance(event, h11.EndOfMessage):
                    return head
                elif isinstance(event, h11.ConnectionClosed):
                    return None
                else:
                    raise _UnusableError(plain_text(413, "a request without a body is expected"))

    def _next_event(self) -> object:
        try:
            return self._protocol.next_event()
        except h11.RemoteProtocolError as error:
            raise _UnusableError(plain_text(error.error_status_hint, f"not a request: {error}")) from error

    async def _send(self, response: HttpResponse, *, head_only: bool = False, last: bool = False) -> None:
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

    async def _send_body(self, response: HttpResponse) -> None:
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


logger = logging.getLogger(__name__)

MAX_CLIENTS: Final = 128
CLIENT_TIMEOUT_S: Final = 10.0
_TURNS_OF_AN_ACCEPT: Final = 3
"""So many turns of the loop asyncio needs from a connection to its protocol; of a server that is closed
meanwhile it leaves the connection open, and tells nobody."""

Check = Callable[[PageRequest], HttpResponse | None]
"""The answer to somebody who may not ask, None for others."""


class HttpServer:
    """Serves *routes* (path -> who answers) at *host* and *port* from `start` to `close`, with *tls* if it is
    given. *check* is asked about each request first."""

    def __init__(
        self,
        host: str,
        port: int,
        routes: Mapping[str, Route],
        tls: ssl.SSLContext | None = None,
        check: Check = lambda _: None,
        *,
        max_clients: int = MAX_CLIENTS,
        client_timeout_s: float = CLIENT_TIMEOUT_S,
    ) -> None:
        self._host = host
        self._port = port
        self._routes = routes
        self._tls = tls
        self._check = check
        self._max_clients = max_clients
        self._client_timeout_s = client_timeout_s
        self._server: asyncio.Server | None = None
        self._closed = False
        self._clients: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Task[None], None] = {}
        """The clients that have nothing to be answered, first those that have waited longest."""

    @property
    def address(self) -> tuple[str, int]:
        """The host and port where it listens; the port that it was given, for port 0."""
        assert self._server is not None
        host, port, *_ = self._server.sockets[0].getsockname()
        return host, port

    async def start(self) -> None:
        """Listen.

        Raises:
            HostError: that address cannot be had.
        """
        try:
            # Without TLS: a client that has not finished the handshake counts too (`_serve`).
            self._server = await asyncio.start_server(
                self._accept, self._host, self._port, limit=MAX_REQUEST_BYTES
            )
        except (OSError, OverflowError) as error:
            raise HostError(f"{self._host}:{self._port}", f"cannot be listened at: {error}") from error

    async def close(self) -> None:
        """Disconnect all clients, also those that were accepted and are not served yet."""
        self._closed = True
        if self._server is not None:
            for listener in self._server.sockets:
                asyncio.get_running_loop().remove_reader(listener)
            for _ in range(_TURNS_OF_AN_ACCEPT):
                await asyncio.sleep(0)
            self._server.close()
            for client in self._clients:
                client.cancel()
            await asyncio.gather(*self._clients, return_exceptions=True)
            await self._server.wait_closed()
            self._server = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:
            writer.transport.abort()
            return
        client = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._clients.add(client)
        # What is cancelled before its first step runs nothing of its own.
        client.add_done_callback(partial(self._disconnected, writer))
        self._set_waiting(client, waiting=True)
        self._make_room()

    def _disconnected(self, writer: asyncio.StreamWriter, client: asyncio.Task[None]) -> None:
        self._clients.discard(client)
        self._waiting.pop(client, None)
        writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = asyncio.current_task()
        assert client is not None
        connection = ClientConnection(
            reader,
            writer,
            self._answer,
            partial(self._set_waiting, client),
            self._client_timeout_s,
        )
        try:
            if self._tls is not None:
                await writer.start_tls(self._tls, ssl_handshake_timeout=self._client_timeout_s)
            await connection.serve()
            async with asyncio.timeout(self._client_timeout_s):
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            # Cancelled for the sake of another client, or at the end; nothing waits for more of it.
            logger.debug("an HTTP client is disconnected", extra={"why": repr(error)})

    def _set_waiting(self, client: asyncio.Task[None], *, waiting: bool) -> None:
        self._waiting.pop(client, None)
        if waiting:
            self._waiting[client] = None

    def _make_room(self) -> None:
        """Disconnect the client that has waited longest if there are too many: perhaps the newest itself."""
        if len(self._clients) > self._max_clients:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.cancel()

    async def _answer(self, request: PageRequest) -> HttpResponse:
        route = self._routes.get(request.path)
        if route is None:
            return plain_text(404, f"expected one of {', '.join(self._routes)}")
        refused = self._check(request)
        if refused is not None:
            return refused
        try:
            return await route(request)
        except Exception:
            logger.exception("an HTTP request failed", extra={"path": request.path})
            return plain_text(500, "the request failed inside the agent; its log says why")

"""A small HTTP/1.1 server for a few pages, with limits for everything.

No more than `MAX_CLIENTS` are connected, with those in the middle of a TLS handshake: the next one takes the
place of the one that has waited longest without anything to be answered, or is sent away where there is none.
Each is given seconds for its part (`bayplan.agent.http.connection`). So memory is bounded, whatever clients
do.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from bayplan.agent.http.connection import MAX_REQUEST_BYTES, ClientConnection
from bayplan.agent.http.exchange import PageRequest, Response, Route, text
from bayplan.errors import HostError

logger = logging.getLogger(__name__)

MAX_CLIENTS: Final = 128
CLIENT_TIMEOUT_S: Final = 10.0

Check = Callable[[PageRequest], Response | None]
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
        self._clients: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Task[None], None] = {}
        """The clients that have nothing to be answered, first those that have waited longest."""

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens, with the port that it was given for port 0."""
        assert self._server is not None
        host, port, *_ = self._server.sockets[0].getsockname()
        return host, port

    async def start(self) -> None:
        """Listen.

        Raises:
            HostError: that address cannot be had.
        """
        try:
            # Without TLS: who has not finished the handshake is a client too (`_connected`).
            self._server = await asyncio.start_server(
                self._connected, self._host, self._port, limit=MAX_REQUEST_BYTES
            )
        except (OSError, OverflowError) as error:
            raise HostError(f"{self._host}:{self._port}", f"cannot be listened at: {error}") from error

    async def close(self) -> None:
        """Disconnect everybody."""
        if self._server is not None:
            self._server.close()
            for client in self._clients:
                client.cancel()
            await asyncio.gather(*self._clients, return_exceptions=True)
            await self._server.wait_closed()
            self._server = None

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = asyncio.current_task()
        assert client is not None
        self._clients.add(client)
        self._set_waiting(client, waiting=True)
        connection = ClientConnection(
            reader,
            writer,
            self._answer,
            partial(self._set_waiting, client),
            self._client_timeout_s,
        )
        try:
            self._make_room()
            if self._tls is not None:
                await writer.start_tls(self._tls, ssl_handshake_timeout=self._client_timeout_s)
            await connection.serve()
            async with asyncio.timeout(self._client_timeout_s):
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.CancelledError) as error:
            # Cancelled for the sake of another client, or at the end; nobody waits for more of it.
            logger.debug("an HTTP client is disconnected", extra={"why": repr(error)})
        finally:
            self._clients.discard(client)
            self._waiting.pop(client, None)
            writer.transport.abort()

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

    async def _answer(self, request: PageRequest) -> Response:
        route = self._routes.get(request.path)
        if route is None:
            return text(404, f"expected one of {', '.join(self._routes)}")
        refused = self._check(request)
        if refused is not None:
            return refused
        try:
            return await route(request)
        except Exception:
            logger.exception("an HTTP request failed", extra={"path": request.path})
            return text(500, "the request failed inside the agent; its log says why")

"""A client of one HTTP or HTTPS server: an answer as a whole, or line by line as it comes.

Each request has a connection of its own, so that a server that was replaced, a renewed token and a renewed
certificate need no care. Everything has an end: what is sent, how much may come, and how long it may take.
"""

import asyncio
import contextlib
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import h11
from msgspec import Struct

from bayplan import __version__
from bayplan.errors import UnavailableError

OK: Final = 200
TIMEOUT_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 64 << 20
MAX_TOKEN_BYTES: Final = 64 << 10
MAX_RETRY_AFTER_S: Final = 60
_READ_BYTES: Final = 64 << 10
_PORTS: Final = {"http": 80, "https": 443}


class Server(Struct, frozen=True):
    """A server at *url*, and how it is asked; what is a path is read for each request.

    *ca* has the certificates (PEM) that its own is checked by, the system's if it is None; *server_name* is
    the name that is expected in it, the URL's own where it is empty. *token* is sent as a bearer token,
    *certificate* (PEM, with its key) shown, if they are there.
    """

    url: str
    ca: Path | bytes | None = None
    server_name: str = ""
    token: Path | bytes | None = None
    certificate: Path | bytes | None = None
    key: Path | bytes | None = None


class HttpAnswer(Struct, frozen=True):
    """Status and body of an answer that came whole, and for how long the server wants to be left alone."""

    status: int
    reason: str
    body: bytes
    retry_after_s: float = 0.0


class SentRequest(Struct, frozen=True):
    """A request for *target* (path and query below the server's URL), with a *body* of *content_type*."""

    target: str = ""
    method: str = "GET"
    body: bytes = b""
    content_type: str = ""


async def ask(
    server: Server,
    request: SentRequest,
    timeout_s: float = TIMEOUT_S,
    take_line: Callable[[bytes], None] | None = None,
) -> HttpAnswer:
    """The answer to *request*. With *take_line* the lines of an answer with status 200 go there as they come,
    and not into its body.

    Raises:
        UnavailableError: the answer is not complete within *timeout_s*, or it, or one line of it, has more
            than `MAX_ANSWER_BYTES`.
    """
    try:
        async with asyncio.timeout(timeout_s), _answered(server, request) as (head, chunks):
            body = await _taken(chunks, take_line if head.status_code == OK else None)
            return HttpAnswer(head.status_code, head.reason.decode("latin-1"), body, _retry_after_s(head))
    except TimeoutError as error:
        raise UnavailableError(server.url, f"no answer within {timeout_s:g} s") from error
    except (OSError, h11.ProtocolError, ValueError) as error:
        raise UnavailableError(server.url, f"it does not answer: {error}") from error


def _retry_after_s(head: h11.Response) -> float:
    """The seconds in a Retry-After header; 0 for its other form, a moment in time."""
    said = next((value for name, value in head.headers if name == b"retry-after"), b"")
    return float(min(int(said), MAX_RETRY_AFTER_S)) if said.isdigit() else 0.0


async def _taken(chunks: AsyncIterator[bytes], take_line: Callable[[bytes], None] | None) -> bytes:
    """All of *chunks*, or what follows the last line of them."""
    rest = bytearray()
    async for chunk in chunks:
        rest += chunk
        if take_line is not None and b"\n" in chunk:
            *lines, rest = rest.split(b"\n")
            for line in lines:
                take_line(bytes(line))
        if len(rest) > MAX_ANSWER_BYTES:
            raise ValueError(f"more than {MAX_ANSWER_BYTES} bytes")
    return bytes(rest)


@contextlib.asynccontextmanager
async def _answered(
    server: Server, request: SentRequest
) -> AsyncIterator[tuple[h11.Response, AsyncIterator[bytes]]]:
    parts = urlsplit(server.url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    context = await asyncio.to_thread(_context, server) if parts.scheme == "https" else None
    reader, writer = await asyncio.open_connection(
        host, port, ssl=context, server_hostname=(server.server_name or host) if context else None
    )
    try:
        protocol = h11.Connection(h11.CLIENT)
        head = h11.Request(
            method=request.method, target=parts.path + request.target, headers=_headers(server, request)
        )
        for event in (head, h11.Data(data=request.body), h11.EndOfMessage()):
            writer.write(protocol.send(event) or b"")
        await writer.drain()
        response = await _next_event(protocol, reader)
        while isinstance(response, h11.InformationalResponse):
            response = await _next_event(protocol, reader)
        assert isinstance(response, h11.Response)
        yield response, _chunks(protocol, reader)
    finally:
        writer.transport.abort()


async def _chunks(protocol: h11.Connection, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while isinstance(event := await _next_event(protocol, reader), h11.Data):
        yield bytes(event.data)


async def _next_event(protocol: h11.Connection, reader: asyncio.StreamReader) -> object:
    while (event := protocol.next_event()) is h11.NEED_DATA:
        protocol.receive_data(await reader.read(_READ_BYTES))
    return event


def _headers(server: Server, request: SentRequest) -> list[tuple[str, str]]:
    headers = [
        ("Host", urlsplit(server.url).netloc),
        ("User-Agent", f"bayplan-agent/{__version__}"),
        ("Accept", "application/json"),
        ("Connection", "close"),
    ]
    if server.token is not None:
        token = _content(server.token)[:MAX_TOKEN_BYTES].decode("ascii").strip()
        headers.append(("Authorization", f"Bearer {token}"))
    if request.method != "GET":
        headers += [("Content-Type", request.content_type), ("Content-Length", str(len(request.body)))]
    return headers


def _context(server: Server) -> ssl.SSLContext:
    """What a connection is secured with. Reads files."""
    if server.ca is None:
        context = ssl.create_default_context()
    else:
        context = ssl.create_default_context(cadata=_content(server.ca).decode("ascii"))
    if server.certificate is not None and server.key is not None:
        # OpenSSL takes these from files only.
        with tempfile.NamedTemporaryFile() as both:
            both.write(_content(server.certificate) + b"\n" + _content(server.key))
            both.flush()
            context.load_cert_chain(both.name)
    return context


def _content(given: Path | bytes) -> bytes:
    return given.read_bytes() if isinstance(given, Path) else given

"""The OCI socket: one request, one answer, then the end. Its form is made so that a client needs no JSON.

A request is the line ``bayplan-oci/1 VERB LENGTH`` and LENGTH bytes of body; an answer is a line with a
status and a length, and the body. A client that reads another first line is connected to another program.

Only root and the daemon's own user are answered.
No client can block the daemon or fill its memory: sizes, times and the number of clients have limits.
"""

import asyncio
import logging
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

from msgspec import Struct

from bayplan.host.unix_socket import Peer, SocketPath, SocketServer
from bayplan.oci.documents import OciError, check_id, parse_state
from bayplan.printable import pattern, printable
from bayplan.quantity import counted

MAX_HEADER_BYTES: Final = 64
MAX_BODY_BYTES: Final = 16 << 20
"""A spec with a long seccomp profile and many mounts is about 100 kB."""

MAX_STATE_BYTES: Final = 1 << 20
"""Of everything that is not a whole spec; a state has the container's annotations in it."""

MAX_TEXT_BYTES: Final = 4096
_HEADER: Final = pattern(rb"bayplan-oci/1 ([A-Za-z]{1,16}) ([0-9]{1,9})\n")


class Verb(Enum):
    """What a client asks for. `bayplan.oci.request_handler` describes the bodies."""

    CREATE_RUNTIME = "createRuntime"
    POSTSTOP = "poststop"
    PRECREATE = "precreate"
    CREATE = "create"
    UPDATE = "update"
    START = "start"
    DELETE = "delete"


class Status(Enum):
    """OK: done, or nothing was to be done. REFUSED: by a decision; the container must not be created. ERROR:
    no decision could be made or carried out; the client's own configuration says what that means."""

    OK = "ok"
    REFUSED = "refused"
    ERROR = "error"


class Header(Struct, frozen=True):
    """The first line of a request."""

    verb: Verb
    body_bytes: int


class Answer(Struct, frozen=True):
    """The answer to a request; ``body`` of a refusal or an error is its text."""

    status: Status
    body: bytes = b""

    @classmethod
    def saying(cls, status: Status, text: str) -> "Answer":
        """An answer whose body is *text* as one printable line of bounded length."""
        line = printable(" ".join(text.split())).encode()
        if len(line) > MAX_TEXT_BYTES:
            line = line[: MAX_TEXT_BYTES - 3].decode("utf-8", "ignore").encode() + b"..."
        return cls(status, line)

    def encode(self) -> bytes:
        """The answer as it is sent."""
        return b"%s %d\n%s" % (self.status.value.encode(), len(self.body), self.body)


def parse_header(line: bytes) -> Header:
    """The header in the first *line* of a request, its end included.

    Raises:
        OciError: it is none, has an unknown verb, or announces a body that is too long.
    """
    match = _HEADER.fullmatch(line)
    if match is None:
        raise OciError("request", f"found {line[:MAX_HEADER_BYTES]!r}, expected 'bayplan-oci/1 VERB LENGTH'")
    word, length = match[1].decode(), int(match[2])
    try:
        verb = Verb(word)
    except ValueError:
        known = ", ".join(verb.value for verb in Verb)
        raise OciError("request", f"found the verb {word!r}, expected one of {known}") from None
    limit = MAX_BODY_BYTES if verb is Verb.PRECREATE else MAX_STATE_BYTES
    if length > limit:
        raise OciError("request", f"announces {length} bytes for {word}, expected at most {limit}")
    return Header(verb, length)


def texts(body: bytes, number: int, expected: str) -> list[str]:
    """The *number* texts of a body that has zero bytes between them.

    Raises:
        OciError: it has another number of parts, or is not UTF-8.
    """
    parts = body.split(b"\0")
    if len(parts) != number:
        raise OciError("request", f"has {counted(len(parts), 'part')}, expected {number}: {expected}")
    try:
        return [part.decode() for part in parts]
    except UnicodeDecodeError as error:
        raise OciError("request", f"is not UTF-8: {error}") from error


def id_and_rest(body: bytes) -> tuple[str, bytes]:
    """The container's id before the first zero byte of a body, and what follows it.

    Raises:
        OciError: it is no id.
    """
    container_id, _, rest = body.partition(b"\0")
    return check_id(container_id.decode("ascii", "backslashreplace")), rest


def container_id_in(verb: Verb, body: bytes) -> str:
    """The id of the container that a request is about, for people; empty where it does not say."""
    try:
        if verb in (Verb.CREATE_RUNTIME, Verb.POSTSTOP):
            return parse_state(body).id
        parts = body.split(b"\0", 2)
        return "" if verb is Verb.PRECREATE else check_id(parts[1 if verb is Verb.CREATE else 0].decode())
    except (OciError, IndexError, UnicodeDecodeError):
        return ""


logger = logging.getLogger(__name__)

CLIENT_TIMEOUT_S: Final = 5.0
"""For a client to send its request, and then for it to take the answer."""

MAX_CLIENTS: Final = 256
"""After a boot kubelet starts all pods of a node at once: 110 by default, up to 250 on large nodes."""
_PIECE_BYTES: Final = 1 << 16


class Serve(Protocol):
    """Handles a request. Raises nothing: a failure is an Answer too."""

    async def __call__(self, verb: Verb, body: bytes, peer: Peer) -> Answer:
        """The answer to the request that *peer* made."""


class OciServer(SocketServer):
    """Serves the OCI socket at *path* from `start` to `close`."""

    def __init__(self, path: Path, serve: Serve, client_timeout_s: float = CLIENT_TIMEOUT_S) -> None:
        super().__init__(SocketPath(path, "OCI socket"), MAX_HEADER_BYTES, MAX_CLIENTS)
        self._serve = serve
        self._client_timeout_s = client_timeout_s

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(reader, writer)
            async with asyncio.timeout(self._client_timeout_s):
                writer.write(answer.encode())
                await writer.drain()
                await _drain(reader, writer)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            logger.info("an OCI client disconnected before its answer", extra={"problem": repr(error)})
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Answer:
        try:
            peer = Peer.of(writer.get_extra_info("socket"))
            async with asyncio.timeout(self._client_timeout_s):
                header = parse_header(await reader.readuntil(b"\n"))
                self.request_received()
                refused = peer.why_refused()
                if refused is not None:
                    return Answer.saying(Status.ERROR, refused)
                body = await reader.readexactly(header.body_bytes)
        except OciError as error:
            return Answer.saying(Status.ERROR, str(error))
        except asyncio.LimitOverrunError:
            problem = f"request: has no first line within {MAX_HEADER_BYTES} bytes"
            return Answer.saying(Status.ERROR, problem)
        except TimeoutError:
            return Answer.saying(Status.ERROR, f"no request within {self._client_timeout_s:g} seconds")
        return await self._serve(header.verb, body, peer)


async def _drain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """End the answer and read the rest of a request that was answered before all of it was read: closing with
    unread bytes resets the connection, and the client might never see its answer."""
    writer.write_eof()
    while await reader.read(_PIECE_BYTES):
        pass

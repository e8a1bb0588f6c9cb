"""The OCI socket: reads the requests of hooks and runtime wrappers, one per connection, and sends the
answers.

The form of both: `bayplan.oci.protocol`. Only root and the daemon's own user are answered.
No client can block the daemon or fill its memory: sizes, times and the number of clients have limits.
"""

import asyncio
import logging
from pathlib import Path
from typing import Final, Protocol

from bayplan.host.unix_socket import Peer, SocketPath, SocketServer
from bayplan.oci.errors import OciError
from bayplan.oci.protocol import MAX_HEADER_BYTES, Answer, Status, Verb, parse_header

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

"""The OCI socket: takes requests of hooks and runtime wrappers to the daemon, one per connection.

The form of requests and answers: `bayplan.oci.protocol`. Only root and the daemon's own user are answered.
No client can block the daemon or fill its memory: sizes, times and the number of clients have limits.
"""

import asyncio
import logging
from pathlib import Path
from typing import Final, Protocol

from bayplan.host.unix_socket import Peer, Place, SocketServer
from bayplan.oci.errors import OciError
from bayplan.oci.protocol import MAX_HEADER_BYTES, Answer, Status, Verb, parse_header

logger = logging.getLogger(__name__)

CLIENT_TIMEOUT_S: Final = 5.0
"""For a client to send its request, and then for it to take the answer."""

MAX_CLIENTS: Final = 256
"""After a boot kubelet starts all pods of a node at once: 110 by default, up to 250 on large nodes."""
_PIECE_BYTES: Final = 1 << 16


class Serve(Protocol):
    """What the daemon does with a request. Raises nothing: what goes wrong is an Answer."""

    async def __call__(self, verb: Verb, body: bytes, peer: Peer) -> Answer:
        """The answer to the request that *peer* made."""


class OciServer(SocketServer):
    """Serves the OCI socket at *path* from `start` to `close`."""

    def __init__(self, path: Path, serve: Serve, client_timeout_s: float = CLIENT_TIMEOUT_S) -> None:
        super().__init__(Place(path, "OCI socket"), MAX_HEADER_BYTES, MAX_CLIENTS)
        self._serve = serve
        self._client_timeout_s = client_timeout_s

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(reader, writer)
            async with asyncio.timeout(self._client_timeout_s):
                writer.write(answer.encode())
                await writer.drain()
                await _hear_out(reader, writer)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            logger.info("an OCI client went away without its answer", extra={"problem": repr(error)})
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Answer:
        try:
            peer = Peer.of(writer.get_extra_info("socket"))
            async with asyncio.timeout(self._client_timeout_s):
                header = parse_header(await reader.readuntil(b"\n"))
                self.heard()
                unwelcome = peer.why_unwelcome()
                if unwelcome is not None:
                    return Answer.saying(Status.ERROR, unwelcome)
                body = await reader.readexactly(header.body_bytes)
        except OciError as error:
            return Answer.saying(Status.ERROR, str(error))
        except asyncio.LimitOverrunError:
            problem = f"request: has no first line within {MAX_HEADER_BYTES} bytes"
            return Answer.saying(Status.ERROR, problem)
        except TimeoutError:
            return Answer.saying(Status.ERROR, f"no request within {self._client_timeout_s:g} seconds")
        return await self._serve(header.verb, body, peer)


async def _hear_out(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read what a client still says that was answered early: closing on unread bytes resets the connection,
    and the client might never see its answer."""
    writer.write_eof()
    while await reader.read(_PIECE_BYTES):
        pass

"""The admin socket: answers the `bayplan` command with views of the daemon. See `bayplan.admin_protocol`.

Only root and the daemon's own user are answered: the file has mode 0600, and the kernel says who the peer is.
No client can block the daemon or fill its memory: sizes, times and the number of clients have limits.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from bayplan.admin.questions import Question
from bayplan.admin_protocol import API_VERSION, LOG_LEVELS, MAX_REQUEST_BYTES, printable_answer
from bayplan.errors import BayplanError
from bayplan.host.unix_socket import Peer, SocketPath, SocketServer
from bayplan.views.metrics import metrics_view
from bayplan.views.snapshot import Snapshot
from bayplan.views.status import View, nodes_view, ping_view, status_view

logger = logging.getLogger(__name__)

CLIENT_TIMEOUT_S: Final = 5.0
"""For a client to send its line, and then for it to take the answer."""

MAX_CLIENTS: Final = 16
_VIEWS: Final[Mapping[str, Callable[[Snapshot], View]]] = {
    "ping": ping_view,
    "status": status_view,
    "nodes": nodes_view,
    "metrics": metrics_view,
}
_LOG_LEVEL: Final = "log-level"
VERBS: Final = (*_VIEWS, _LOG_LEVEL)


class _BadRequestError(BayplanError):
    """The client asked for something that there is not."""


class AdminServer(SocketServer):
    """Serves the admin socket at *path* from `start` to `close`.

    *snapshot* is called in the event loop for each request; *level* sets the log level, or leaves it if it is
    given None, and returns the one in force; *questions* are further verbs.
    """

    def __init__(
        self,
        path: Path,
        snapshot: Callable[[], Snapshot],
        level: Callable[[str | None], str],
        client_timeout_s: float = CLIENT_TIMEOUT_S,
        questions: Mapping[str, Question] = MappingProxyType({}),
    ) -> None:
        super().__init__(SocketPath(path, "admin socket"), MAX_REQUEST_BYTES, MAX_CLIENTS)
        self._client_timeout_s = client_timeout_s
        self._snapshot = snapshot
        self._level = level
        self._questions = questions

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(reader, writer)
            async with asyncio.timeout(self._client_timeout_s):
                writer.write(answer + b"\n")
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError) as error:
            logger.debug("an admin client disconnected before its answer", extra={"problem": repr(error)})
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        try:
            # The request is read even if it will be turned down: closing on unread bytes resets the
            # connection, and the client might never see the answer.
            async with asyncio.timeout(self._client_timeout_s):
                line = await _read_line(reader)
            self.request_received()
            self._check_peer(writer)
            return await self._serve_request(_parse(line))
        except _BadRequestError as error:
            return _error("BadRequest", str(error))
        except TimeoutError:
            return _error("Timeout", f"no request within {self._client_timeout_s:g} seconds")
        except (OSError, asyncio.IncompleteReadError):
            raise
        except Exception:
            logger.exception("an admin request failed")
            return _error("Internal", "the request failed inside the daemon; its log says why")

    async def _serve_request(self, request: Mapping[str, object]) -> bytes:
        verb = request.get("verb")
        if verb == _LOG_LEVEL:
            level = request.get("level")
            if level is not None and level not in LOG_LEVELS:
                raise _BadRequestError(f"level: found {level!r}, expected one of {', '.join(LOG_LEVELS)}")
            in_force = self._level(None if level is None else str(level))
            return _encode({"apiVersion": API_VERSION, "kind": "LogLevel", "level": in_force})
        if isinstance(verb, str) and verb in self._questions:
            snapshot = self._snapshot()
            try:
                answer = await self._questions[verb](snapshot, request)
                return await asyncio.to_thread(_of_daemon, answer, snapshot)
            except BayplanError as error:
                raise _BadRequestError(str(error)) from error
        if not isinstance(verb, str) or verb not in _VIEWS:
            known = (*VERBS, *self._questions)
            raise _BadRequestError(f"verb: found {verb!r}, expected one of {', '.join(known)}")
        # A view of 1000 containers takes tens of milliseconds: not in the loop that a runtime waits for.
        snapshot, view = self._snapshot(), _VIEWS[verb]
        return await asyncio.to_thread(lambda: _of_daemon(view(snapshot), snapshot))

    @staticmethod
    def _check_peer(writer: asyncio.StreamWriter) -> None:
        refused = Peer.of(writer.get_extra_info("socket")).why_refused()
        if refused is not None:
            raise _BadRequestError(refused)


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError as error:
        raise _BadRequestError(f"a request of more than {MAX_REQUEST_BYTES} bytes") from error


def _parse(line: bytes) -> Mapping[str, object]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _BadRequestError(f"the request is not JSON: {error}") from error
    if not isinstance(request, dict):
        raise _BadRequestError("the request is not a JSON object")
    version = request.get("apiVersion", API_VERSION)
    if version != API_VERSION:
        raise _BadRequestError(f"apiVersion: found {version!r}, expected {API_VERSION!r}")
    return request


def _error(code: str, message: str) -> bytes:
    return _encode({"apiVersion": API_VERSION, "kind": "Error", "code": code, "message": message})


def _of_daemon(answer: View, snapshot: Snapshot) -> bytes:
    """An answer about what is decided says whether that is applied."""
    return _encode({**answer, "shadow": snapshot.shadow})


def _encode(answer: View) -> bytes:
    return msgspec.json.encode(printable_answer(answer))

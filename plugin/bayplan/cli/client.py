"""The client's end of the admin socket: one question, one answer."""

import json
import socket
import stat
import time
from pathlib import Path
from typing import Any, Final

from bayplan.admin_protocol import API_VERSION, MAX_ANSWER_BYTES
from bayplan.errors import SubjectError, UnavailableError
from bayplan.files import check_kind

TIMEOUT_S: Final = 10.0
_CHUNK_BYTES: Final = 1 << 16
_BUSY_PAUSE_S: Final = 0.01


class AnswerError(SubjectError):
    """The daemon at a socket answered, but not with what was asked for."""

    def __str__(self) -> str:
        return f"the daemon at {self.subject} answered: {self.problem}"


def ask(socket_path: Path, verb: str, timeout_s: float = TIMEOUT_S, **fields: object) -> dict[str, Any]:
    """The daemon's answer to *verb* with *fields*.

    Raises:
        UnavailableError: no daemon answers there, or not in time, or not to this user.
        ConfigError: what is there is no socket.
        AnswerError: the daemon refuses, or it is not a bayplan daemon of this version.
    """
    request = {"apiVersion": API_VERSION, "verb": verb, **fields}
    try:
        line = _exchange(socket_path, json.dumps(request).encode() + b"\n", timeout_s)
    except OSError as error:
        if isinstance(error, ConnectionRefusedError):
            check_kind(socket_path, stat.S_IFSOCK, "the daemon's socket")
        raise UnavailableError(f"no daemon answers at {socket_path}", _advice(error)) from error
    if not line.endswith(b"\n"):
        raise UnavailableError(
            f"no daemon answers at {socket_path}", "the connection ended before the answer"
        )
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise AnswerError(str(socket_path), f"something that is not JSON ({error})") from error
    if not isinstance(answer, dict) or answer.get("apiVersion") != API_VERSION:
        found = answer.get("apiVersion") if isinstance(answer, dict) else answer
        raise AnswerError(str(socket_path), f"apiVersion {found!r}, expected {API_VERSION!r}")
    if answer.get("kind") == "Error":
        raise AnswerError(str(socket_path), str(answer.get("message")))
    return answer


def _exchange(socket_path: Path, request: bytes, timeout_s: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        deadline_s = time.monotonic() + timeout_s
        _connect(connection, socket_path, deadline_s)
        connection.sendall(request)
        answer = bytearray()
        while not answer.endswith(b"\n") and len(answer) <= MAX_ANSWER_BYTES:
            # Nor is a daemon waited for that sends a byte now and then; 0 would mean not to wait at all.
            connection.settimeout(max(deadline_s - time.monotonic(), _BUSY_PAUSE_S))
            chunk = connection.recv(_CHUNK_BYTES)
            if not chunk:
                break
            answer += chunk
        return bytes(answer)


def _connect(connection: socket.socket, socket_path: Path, deadline_s: float) -> None:
    """Connect; the full queue of a busy daemon gives EAGAIN at once, and is tried again."""
    while True:
        try:
            connection.connect(str(socket_path))
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise TimeoutError from None
            time.sleep(_BUSY_PAUSE_S)
        else:
            return


def _advice(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return (
            "there is no such socket. Start the daemon (systemctl start bayplan), or name its socket with "
            "--admin-socket"
        )
    if isinstance(error, PermissionError):
        return "only root and the daemon's own user may ask. Try again as root"
    if isinstance(error, ConnectionRefusedError):
        return "the daemon that made it is gone. Start it (systemctl start bayplan)"
    if isinstance(error, TimeoutError):
        return "it took too long. Its log may say why (journalctl -u bayplan)"
    return f"{error.strerror or error}"

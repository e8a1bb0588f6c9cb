"""gRPC of the agent's: messages that somebody else has encoded, methods that take them, and the place of a
unix socket that gRPC makes by itself.
"""

import contextlib
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from bayplan.errors import HostError, ParseError, UnavailableError

Decoded = TypeVar("Decoded", bound=Message)


def decoded(kind: type[Decoded], encoded: bytes, what: str = "message") -> Decoded:
    """The message of that *kind* in *encoded*. gRPC itself is given no deserializer: what cannot be read it
    logs as a defect of ours, with a traceback.

    Raises:
        ParseError: it is none; *what* it was to be.
    """
    try:
        return kind.FromString(encoded)
    except (DecodeError, UnicodeDecodeError, RecursionError) as error:
        expected = f"a {kind.DESCRIPTOR.full_name} in protobuf ({error})"
        raise ParseError(what, repr(encoded[:100]), expected) from error


def unary_method(answer: Callable[..., Awaitable[Message]], request: type[Message]) -> Any:
    """A method of a gRPC server that answers one message of the kind *request* with another one."""

    async def answer_bytes(encoded: bytes, context: Any) -> Message:
        try:
            asked = decoded(request, encoded)
        except ParseError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError from error  # abort() raises
        return await answer(asked, context)

    return grpc.unary_unary_rpc_method_handler(
        answer_bytes, response_serializer=lambda message: message.SerializeToString()
    )


_PROBE_S: Final = 1.0
_NOT_FOR_OTHERS: Final = 0o117


def make_place(path: Path) -> None:
    """See to it that a socket can be made at *path*. What an agent that is gone left there is removed.

    Raises:
        UnavailableError: somebody serves there, or there is a file that is not a socket.
        HostError: the directory cannot be made, or not be used.
    """
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not stat.S_ISSOCK(path.lstat().st_mode):
            problem = "there is a file that is not a socket; remove it or choose another path"
            raise UnavailableError(str(path), problem)
        if _is_served(path):
            raise UnavailableError(str(path), "another process serves there")
        path.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise HostError(str(path), f"a socket cannot be made there: {error.strerror}") from error


@contextlib.contextmanager
def for_owner_and_group() -> Iterator[None]:
    """Files that are made meanwhile have no rights for others. Of the whole process: for its start only."""
    mask = os.umask(_NOT_FOR_OTHERS)
    try:
        yield
    finally:
        os.umask(mask)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except TimeoutError:
            pass
        return True

"""What goes in and out of a connection: plain values, without rules.

Stream ids appear in Request and Response only to pair one with the other.
"""

import enum
from typing import Final, TypeAlias

from msgspec import Struct


class Role(enum.Enum):
    """Which end of the connection we are. The value is the logical connection on which we serve."""

    PLUGIN = 1
    RUNTIME = 2

    @property
    def peer(self) -> "Role":
        """The other end."""
        return Role.RUNTIME if self is Role.PLUGIN else Role.PLUGIN


class Code(enum.IntEnum):
    """The status codes of gRPC, which ttRPC uses."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Request(Struct, frozen=True):
    """A call: one that the peer makes, or one of ours, made by ``Connection.request``.

    ``timeout_ns`` is the time left when it was sent; 0 means no limit, less than 0 that it is over.
    """

    stream_id: int
    service: str
    method: str
    payload: bytes = b""
    timeout_ns: int = 0
    metadata: tuple[tuple[str, str], ...] = ()


class Response(Struct, frozen=True):
    """The answer to a call: a payload, or a code with a message for a human.

    When one arrives, a code that gRPC does not define has become ``UNKNOWN``. A message is only sent with a
    code other than ``OK``, and what UTF-8 cannot express in it is replaced.
    """

    stream_id: int
    code: Code = Code.OK
    message: str = ""
    payload: bytes = b""


class Refused(Struct, frozen=True):
    """A message of the peer that the connection itself turned down; the connection is still good.

    Write ``reply`` to the peer as it is; it tells it the code and the message. The caller has nothing else
    to do, and must not answer the stream.
    """

    stream_id: int
    code: Code
    message: str
    reply: bytes


class ConnectionClosed(Struct, frozen=True):
    """The peer closed the connection between two messages. Repeated for as long as it is asked for."""


class NeedData(enum.Enum):
    """The type of ``NEED_DATA``."""

    NEED_DATA = "NEED_DATA"


NEED_DATA: Final = NeedData.NEED_DATA
"""There is no complete event: hand in more bytes."""

Incoming: TypeAlias = Request | Response | Refused | ConnectionClosed | NeedData

"""What goes in and out of a connection, what can go wrong on the wire, and every limit of the codec: plain
values, without rules.

Stream ids appear in Request and Response only to pair one with the other.

Errors are by who made them. After a local error nothing was sent and nothing has changed. After a remote
error the connection can't be read any more, and says the same thing each time it is asked.

What a peer may make us keep is bounded by the limits alone, each with the reason for its value: one
message under way and the unanswered requests on each of two logical connections, and the bytes that the
caller has handed in and not yet drained.
"""

import enum
from typing import Final, TypeAlias

from msgspec import Struct

from bayplan.errors import LocalProtocolError

FRAME_HEADER_BYTES: Final = 8
"""Multiplexer header: connection id and payload length, 32 bits each."""

MESSAGE_HEADER_BYTES: Final = 10
"""ttRPC header: length 32 bits, stream id 32 bits, type 8 bits, flags 8 bits."""

MAX_MESSAGE_BYTES: Final = 4 << 20
"""The body of a ttRPC message: the limit of the protocol's own documentation, checked by both sides."""

FIRST_FRAME_BYTES: Final = 4096
"""How the Go side reads: through a buffer of this size, which takes a frame larger than itself only when it
is empty and the frame is exactly the rest of the message. Any other large frame ends the connection."""

MAX_FRAME_BYTES: Final = 1 << 24
"""The payload of an incoming frame. NRI up to 0.6.1 refuses to send more; newer ones stop at 4 MiB + 10.
Frames are never buffered whole: this only finds out a peer that speaks something else."""

MAX_UNANSWERED_REQUESTS: Final = 64
"""Requests of the peer that wait for our answer. A runtime has one outstanding at a time; HTTP/2 advises not
to go below 100 streams for peers that run many, gRPC servers commonly allow that many."""

MAX_UNANSWERED_BYTES: Final = 4 * MAX_MESSAGE_BYTES
"""Their bodies together, so that 64 requests of 4 MiB do not make 256 MiB. Synchronize sends its chunks one
after the other, each when the last is answered."""

MAX_OUTSTANDING_CALLS: Final = 64
"""Our own unanswered calls. The Go multiplexer closes the trunk when 256 frames wait for a reader; a call
takes at most two."""

MAX_CONSECUTIVE_REFUSALS: Final = 256
"""Requests refused one after another until we stop answering and give the peer up. A peer that does not read
its answers would make them pile up on our side; its own queue has this length."""

MAX_ENVELOPE_FIELDS: Final = 1024
"""Protobuf fields in one Request or Response. Five and a handful of metadata (trace ids) are normal; 4 MiB
of two-byte metadata entries would become 250 MiB of objects and seconds of work."""

MAX_NESTED_FIELDS: Final = 64
"""Fields in a message inside an envelope: two or three, and the details of a status, which we skip."""

MAX_BACKLOG_BYTES: Final = 4 * MAX_MESSAGE_BYTES
"""Bytes handed to receive_data while as many or more wait to be drained are refused. A caller that drains
after each read never holds more than one read."""

MAX_STREAM_ID: Final = 0xFFFF_FFFF
"""The last odd id of a connection; never reached: at one call per millisecond it takes 24 days, and a plugin
makes a handful in its life."""


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


class TtrpcRequest(Struct, frozen=True):
    """A call: one that the peer makes, or one of ours, made by ``Connection.request``.

    ``timeout_ns`` is the time left when it was sent; 0 means no limit, less than 0 that it is over.
    """

    stream_id: int
    service: str
    method: str
    payload: bytes = b""
    timeout_ns: int = 0
    metadata: tuple[tuple[str, str], ...] = ()


class TtrpcResponse(Struct, frozen=True):
    """The answer to a call: a payload, or a code with a message for a human.

    When one arrives, a code that gRPC does not define has become ``UNKNOWN``. A message is only sent with a
    code other than ``OK``, and what UTF-8 cannot express in it is replaced.
    """

    stream_id: int
    code: Code = Code.OK
    message: str = ""
    payload: bytes = b""


class RefusedMessage(Struct, frozen=True):
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

Incoming: TypeAlias = TtrpcRequest | TtrpcResponse | RefusedMessage | ConnectionClosed | NeedData


class MessageTooLargeError(LocalProtocolError):
    """A message of ours is over the limit. A request was not sent; a response can be replaced by an error."""

    def __init__(self, stream_id: int, size_bytes: int, limit_bytes: int) -> None:
        problem = f"message of {size_bytes} bytes, expected at most {limit_bytes}; nothing was sent"
        super().__init__(f"stream {stream_id}", problem)
        self.stream_id = stream_id
        self.size_bytes = size_bytes

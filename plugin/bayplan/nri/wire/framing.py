"""From bytes to ttRPC messages and back: the multiplexer's frames, the messages in them, and every rule
about streams.

One byte stream carries several logical connections. It is cut into frames, each an 8-byte header
(connection, length) and a payload. The payloads of one connection, joined, are its messages, each a
10-byte header and a body; a message may span frames, and a frame may hold several. Headers are judged
before any byte after them is kept: what nobody reads is dropped as it arrives. What a body says is
decided by ``envelope``.

Streams: which message may come when, and what becomes of one that may not. What depends on stream ids,
message types or how much is under way is decided in this file, which knows headers only: it never sees a
body and does not know which role we play. The rules are those of the Go implementation, except that we
bound what waits for an answer.
"""

import enum
import struct
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from msgspec import Struct

from bayplan.nri.wire.connection_events import (
    FIRST_FRAME_BYTES,
    FRAME_HEADER_BYTES,
    MAX_FRAME_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_OUTSTANDING_CALLS,
    MAX_STREAM_ID,
    MAX_UNANSWERED_BYTES,
    MAX_UNANSWERED_REQUESTS,
    MESSAGE_HEADER_BYTES,
    Code,
    FrameTooLargeError,
    MessageTooLargeError,
    StreamError,
    TooManyCallsError,
)


class MessageType(enum.IntEnum):
    """The types that exist; all others are ignored, for those that may come."""

    REQUEST = 1
    RESPONSE = 2
    DATA = 3


class Header(NamedTuple):
    """The header of a ttRPC message. Flags only matter to streaming calls, which NRI does not use."""

    length: int
    stream_id: int
    type: int
    flags: int


class Verdict(enum.Enum):
    """What to do with a message once its header is known."""

    READ = enum.auto()
    """Collect the body."""
    IGNORE = enum.auto()
    """Drop the body and say nothing."""
    REFUSE = enum.auto()
    """Drop the body, then tell the peer."""
    FAIL = enum.auto()
    """Drop the body; the call of ours that it belongs to has failed."""


class Ruling(Struct, frozen=True):
    """A verdict; for REFUSE and FAIL with the status that it leads to."""

    verdict: Verdict
    code: Code = Code.OK
    message: str = ""


_READ = Ruling(Verdict.READ)
_IGNORE = Ruling(Verdict.IGNORE)
_EVEN_ID = Ruling(Verdict.REFUSE, Code.INVALID_ARGUMENT, "the stream id of a client must be odd")
_OLD_ID = Ruling(Verdict.REFUSE, Code.INVALID_ARGUMENT, "stream ids must increase")
_NO_STREAM = Ruling(Verdict.REFUSE, Code.INVALID_ARGUMENT, "data for a stream that is not active")
_TOO_MANY = Ruling(
    Verdict.REFUSE,
    Code.RESOURCE_EXHAUSTED,
    f"{MAX_UNANSWERED_REQUESTS} requests wait for an answer and no more may",
)
_TOO_MUCH = Ruling(
    Verdict.REFUSE,
    Code.RESOURCE_EXHAUSTED,
    f"the requests that wait for an answer would exceed {MAX_UNANSWERED_BYTES} bytes",
)


def _oversize(verdict: Verdict, length: int) -> Ruling:
    message = f"message of {length} bytes, expected at most {MAX_MESSAGE_BYTES}"
    return Ruling(verdict, Code.RESOURCE_EXHAUSTED, message)


class ServedStreams:
    """The streams on which the peer calls and we answer."""

    def __init__(self) -> None:
        self._last_id = 0
        self._unanswered: dict[int, int] = {}
        self._unanswered_bytes = 0

    def judge(self, header: Header) -> Ruling:
        """Rule on a header. A request that is to be read counts as unanswered from here on."""
        if header.type == MessageType.DATA:
            # A client's end of stream may follow the request of a unary call; anything else has no stream.
            return _IGNORE if header.stream_id in self._unanswered else _NO_STREAM
        if header.type != MessageType.REQUEST:
            return _IGNORE
        if header.length > MAX_MESSAGE_BYTES:
            return _oversize(Verdict.REFUSE, header.length)
        if header.stream_id % 2 == 0:
            return _EVEN_ID
        if header.stream_id <= self._last_id:
            return _OLD_ID
        self._last_id = header.stream_id
        if len(self._unanswered) >= MAX_UNANSWERED_REQUESTS:
            return _TOO_MANY
        if self._unanswered_bytes + header.length > MAX_UNANSWERED_BYTES:
            return _TOO_MUCH
        self._unanswered[header.stream_id] = header.length
        self._unanswered_bytes += header.length
        return _READ

    def close(self, stream_id: int) -> None:
        """The request has its answer.

        Raises:
            StreamError: no request waits for one.
        """
        length = self._unanswered.pop(stream_id, None)
        if length is None:
            raise StreamError(stream_id, "no request waits for this response")
        self._unanswered_bytes -= length


class CalledStreams:
    """The streams on which we call and the peer answers."""

    def __init__(self) -> None:
        self._next_id = 1
        self._last_sent = 0
        self._outstanding: set[int] = set()

    def allocate(self) -> int:
        """A fresh stream id.

        Raises:
            StreamError: all ids of this connection are used up.
        """
        stream_id = self._next_id
        if stream_id > MAX_STREAM_ID:
            raise StreamError(stream_id, f"stream ids end at {MAX_STREAM_ID}")
        self._next_id += 2
        return stream_id

    def check_open(self, stream_id: int) -> None:
        """Make sure that a request on this stream may be sent now.

        Raises:
            StreamError: the id was not allocated here, or it or a later one was sent before.
            TooManyCallsError: too many calls wait for an answer.
        """
        if not 0 < stream_id < self._next_id or stream_id % 2 == 0:
            raise StreamError(stream_id, "not allocated by this connection")
        if stream_id <= self._last_sent:
            raise StreamError(stream_id, f"stream {self._last_sent} was sent before, and ids must increase")
        if len(self._outstanding) >= MAX_OUTSTANDING_CALLS:
            raise TooManyCallsError(len(self._outstanding))

    def open(self, stream_id: int) -> None:
        """The request is on its way."""
        self._last_sent = stream_id
        self._outstanding.add(stream_id)

    def judge(self, header: Header) -> Ruling:
        """Rule on a header. The call is not closed by it: the body has yet to come."""
        if header.stream_id not in self._outstanding:
            return _IGNORE  # the late answer to a call that was given up
        if header.type == MessageType.RESPONSE:
            return _READ if header.length <= MAX_MESSAGE_BYTES else _oversize(Verdict.FAIL, header.length)
        if header.type in (MessageType.REQUEST, MessageType.DATA):
            name = MessageType(header.type).name
            return Ruling(Verdict.FAIL, Code.INTERNAL, f"a unary call was answered with a {name} message")
        return _IGNORE

    def close(self, stream_id: int) -> bool:
        """The call is over. False when it was given up before."""
        if stream_id not in self._outstanding:
            return False
        self._outstanding.remove(stream_id)
        return True


_FRAME_HEADER = struct.Struct(">II")
_MESSAGE_HEADER = struct.Struct(">IIBB")


def message(connection_id: int, stream_id: int, kind: MessageType, parts: Sequence[bytes]) -> bytes:
    """A message whose body is given in parts, framed and ready to be written.

    Raises:
        MessageTooLargeError: the body is over ``MAX_MESSAGE_BYTES``.
    """
    length = sum(map(len, parts))
    if length > MAX_MESSAGE_BYTES:
        raise MessageTooLargeError(stream_id, length, MAX_MESSAGE_BYTES)
    return frames(connection_id, (_MESSAGE_HEADER.pack(length, stream_id, kind, 0), *parts))


def frames(connection_id: int, parts: Sequence[bytes]) -> bytes:
    """One message, given in parts, as frames: one, or exactly two when it does not fit in the first.

    Nothing else survives the way the Go side reads (``FIRST_FRAME_BYTES``).
    """
    size = sum(map(len, parts))
    if size <= FIRST_FRAME_BYTES:
        return b"".join((_FRAME_HEADER.pack(connection_id, size), *parts))
    message = b"".join(parts)
    with memoryview(message) as view:
        return b"".join(
            (
                _FRAME_HEADER.pack(connection_id, FIRST_FRAME_BYTES),
                view[:FIRST_FRAME_BYTES],
                _FRAME_HEADER.pack(connection_id, size - FIRST_FRAME_BYTES),
                view[FIRST_FRAME_BYTES:],
            )
        )


class FrameReader:
    """Stores bytes as they come and hands out the payloads of the connections that are read, in order.

    What was read is given back when bytes come or none are left, not after each message: deleting from the
    front of a bytearray only moves its start, so that the work is linear in the bytes, however they are cut.
    """

    def __init__(self, connection_ids: Collection[int]) -> None:
        self._connection_ids = frozenset(connection_ids)
        self._backlog = bytearray()
        self._start = 0
        self._current = 0
        self._left_bytes = 0

    @property
    def backlog_bytes(self) -> int:
        """Bytes received and not yet taken or dropped."""
        return len(self._backlog) - self._start

    @property
    def between_frames(self) -> bool:
        """Whether the bytes so far end where a frame ends."""
        return self._left_bytes == 0 and self.backlog_bytes == 0

    def receive(self, data: bytes) -> None:
        """Store bytes."""
        self._compact()
        self._backlog += data

    def connection(self) -> int | None:
        """The connection whose payload is next, with at least one byte of it there; None: nothing is.

        Raises:
            FrameTooLargeError: a header announces more than ``MAX_FRAME_BYTES``.
        """
        while True:
            if not self._left_bytes:
                if len(self._backlog) - self._start < FRAME_HEADER_BYTES:
                    self._compact()
                    return None
                connection_id, size = _FRAME_HEADER.unpack_from(self._backlog, self._start)
                if size > MAX_FRAME_BYTES:
                    raise FrameTooLargeError(connection_id, size, MAX_FRAME_BYTES)
                self._start += FRAME_HEADER_BYTES
                self._current, self._left_bytes = connection_id, size
            elif len(self._backlog) == self._start:
                self._compact()
                return None
            elif self._current in self._connection_ids:
                return self._current
            else:
                self.skip(self._left_bytes)

    def take(self, limit_bytes: int) -> bytearray:
        """At most so many bytes of the current payload; fewer where the frame or the store ends."""
        size = min(limit_bytes, self._left_bytes, len(self._backlog) - self._start)
        start = self._start
        self._start += size
        self._left_bytes -= size
        return self._backlog[start : start + size]

    def skip(self, limit_bytes: int) -> int:
        """Drop at most so many bytes of the current payload and say how many there were."""
        size = min(limit_bytes, self._left_bytes, len(self._backlog) - self._start)
        self._start += size
        self._left_bytes -= size
        return size

    def _compact(self) -> None:
        if self._start:
            del self._backlog[: self._start]
            self._start = 0


class MessageReader:
    """Cuts the bytes of one logical connection into messages, however they are framed."""

    def __init__(self, judge: Callable[[Header], Ruling]) -> None:
        self._judge = judge
        self._head = bytearray()
        self._body = bytearray()
        self._under_way: tuple[Header, Ruling] | None = None
        self._missing_bytes = 0

    @property
    def between_messages(self) -> bool:
        """Whether the bytes so far end where a message ends."""
        return self._under_way is None and not self._head

    def read(self, source: FrameReader) -> tuple[Header, Ruling, bytearray] | None:
        """Take from the current frame what belongs to the next message; the message, once it is complete.

        Its body is empty when the ruling was not to read it.
        """
        if self._under_way is None:
            self._head += source.take(MESSAGE_HEADER_BYTES - len(self._head))
            if len(self._head) < MESSAGE_HEADER_BYTES:
                return None
            header = Header._make(_MESSAGE_HEADER.unpack(self._head))
            self._head.clear()
            self._missing_bytes = header.length
            self._under_way = header, self._judge(header)
        header, ruling = self._under_way
        if ruling.verdict is not Verdict.READ:
            self._missing_bytes -= source.skip(self._missing_bytes)
        elif self._body:
            self._body += (more := source.take(self._missing_bytes))
            self._missing_bytes -= len(more)
        else:
            self._body = source.take(self._missing_bytes)
            self._missing_bytes -= len(self._body)
        if self._missing_bytes:
            return None
        body, self._body, self._under_way = self._body, bytearray(), None
        return header, ruling, body

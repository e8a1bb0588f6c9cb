"""From bytes to ttRPC messages and back: the multiplexer's frames, and the messages in them.

One byte stream carries several logical connections. It is cut into frames, each an 8-byte header (connection,
length) and a payload. The payloads of one connection, joined, are its messages, each a 10-byte header and a
body; a message may span frames, and a frame may hold several. Headers are judged before any byte after them
is kept: what nobody reads is dropped as it arrives. Which messages those are is decided by ``streams``, what
a body says by ``envelope``.
"""

import struct
from collections.abc import Callable, Collection, Sequence

from bayplan.nri.wire.errors import FrameTooLargeError, MessageTooLargeError
from bayplan.nri.wire.limits import (
    FIRST_FRAME_BYTES,
    FRAME_HEADER_BYTES,
    MAX_FRAME_BYTES,
    MAX_MESSAGE_BYTES,
    MESSAGE_HEADER_BYTES,
)
from bayplan.nri.wire.streams import Header, MessageType, Ruling, Verdict

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

"""The multiplexer: logical connections inside one byte stream, each frame an 8-byte header and a payload.

Frames only carry bytes; where messages begin and end is not known here. A header is judged before any byte
of its payload is kept, and the payload of a connection that nobody reads is dropped as it arrives.
"""

import struct
from collections.abc import Collection, Sequence

from bayplan.nri.wire.errors import FrameTooLargeError
from bayplan.nri.wire.limits import FIRST_FRAME_BYTES, FRAME_HEADER_BYTES, MAX_FRAME_BYTES

_HEADER = struct.Struct(">II")


def frames(connection_id: int, parts: Sequence[bytes]) -> bytes:
    """One message, given in parts, as frames: one, or exactly two when it does not fit in the first.

    Nothing else survives the way the Go side reads (``FIRST_FRAME_BYTES``).
    """
    size = sum(map(len, parts))
    if size <= FIRST_FRAME_BYTES:
        return b"".join((_HEADER.pack(connection_id, size), *parts))
    message = b"".join(parts)
    with memoryview(message) as view:
        return b"".join(
            (
                _HEADER.pack(connection_id, FIRST_FRAME_BYTES),
                view[:FIRST_FRAME_BYTES],
                _HEADER.pack(connection_id, size - FIRST_FRAME_BYTES),
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
                if self.backlog_bytes < FRAME_HEADER_BYTES:
                    self._compact()
                    return None
                connection_id, size = _HEADER.unpack_from(self._backlog, self._start)
                if size > MAX_FRAME_BYTES:
                    raise FrameTooLargeError(connection_id, size, MAX_FRAME_BYTES)
                self._start += FRAME_HEADER_BYTES
                self._current, self._left_bytes = connection_id, size
            elif not self.backlog_bytes:
                self._compact()
                return None
            elif self._current in self._connection_ids:
                return self._current
            else:
                self.skip(self._left_bytes)

    def take(self, limit_bytes: int) -> bytearray:
        """At most so many bytes of the current payload; fewer where the frame or the store ends."""
        size = min(limit_bytes, self._left_bytes, self.backlog_bytes)
        start = self._start
        self._start += size
        self._left_bytes -= size
        return self._backlog[start : start + size]

    def skip(self, limit_bytes: int) -> int:
        """Drop at most so many bytes of the current payload and say how many there were."""
        size = min(limit_bytes, self._left_bytes, self.backlog_bytes)
        self._start += size
        self._left_bytes -= size
        return size

    def _compact(self) -> None:
        if self._start:
            del self._backlog[: self._start]
            self._start = 0

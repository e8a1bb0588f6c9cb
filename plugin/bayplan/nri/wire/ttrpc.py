"""The ttRPC layer: messages of a 10-byte header and a body, inside the bytes of one logical connection.

The header is judged as soon as it is complete; the body of a message that will not be delivered is dropped
as it arrives. Which messages those are is decided by ``streams``, what a body says by ``envelope``.
"""

import struct
from collections.abc import Callable, Sequence

from bayplan.nri.wire.errors import MessageTooLargeError
from bayplan.nri.wire.limits import MAX_MESSAGE_BYTES, MESSAGE_HEADER_BYTES
from bayplan.nri.wire.mux import FrameReader, frames
from bayplan.nri.wire.streams import Header, MessageType, Ruling, Verdict

_HEADER = struct.Struct(">IIBB")


def message(connection_id: int, stream_id: int, kind: MessageType, parts: Sequence[bytes]) -> bytes:
    """A message whose body is given in parts, framed and ready to be written.

    Raises:
        MessageTooLargeError: the body is over ``MAX_MESSAGE_BYTES``.
    """
    length = sum(map(len, parts))
    if length > MAX_MESSAGE_BYTES:
        raise MessageTooLargeError(stream_id, length, MAX_MESSAGE_BYTES)
    return frames(connection_id, (_HEADER.pack(length, stream_id, kind, 0), *parts))


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
            header = Header._make(_HEADER.unpack(self._head))
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

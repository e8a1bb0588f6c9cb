"""Every rule about streams: which message may come when, and what becomes of one that may not.

Rule 1: what depends on stream ids, message types or how much is under way is decided in this file.
Rule 2: this file knows headers only; it never sees a body and does not know which role we play.

The rules are those of the Go implementation, except that we bound what waits for an answer.
"""

import enum
from typing import NamedTuple

from msgspec import Struct

from bayplan.nri.wire.connection_events import Code
from bayplan.nri.wire.errors import StreamError, TooManyCallsError
from bayplan.nri.wire.limits import (
    MAX_MESSAGE_BYTES,
    MAX_OUTSTANDING_CALLS,
    MAX_STREAM_ID,
    MAX_UNANSWERED_BYTES,
    MAX_UNANSWERED_REQUESTS,
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

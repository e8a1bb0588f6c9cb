"""One connection between a plugin and a runtime: the multiplexer, the messages in it, every rule about
streams, and both ttRPC directions.

One byte stream carries several logical connections. It is cut into frames, each an 8-byte header
(connection, length) and a payload. The payloads of one connection, joined, are its messages, each a
10-byte header and a body; a message may span frames, and a frame may hold several. Headers are judged
before any byte after them is kept: what nobody reads is dropped as it arrives. What a body says is
decided by ``Request`` and ``Response``, protobuf's envelopes of ttRPC, without the protobuf library.

    Request     1 service, 2 method, 3 payload, 4 timeout_nano, 5 metadata: pairs of 1 key, 2 value
    Response    1 status: 1 code, 2 message, 3 details; 2 payload

The library would copy the payload twice more and turn 4 MiB of tiny fields into a quarter of a gigabyte of
objects before we could count them. What is accepted here is what the library accepts, except groups, which
no writer of these messages produces, and more fields than the limits allow. The tests hold the two side by
side.

Streams: which message may come when, and what becomes of one that may not. The rules are those of the Go
implementation, except that we bound what waits for an answer. They know headers only, and not which role we
play.

Bytes go in with ``receive_data``, events come out of ``next_event``, bytes to write come out of ``send``.
No socket, no clock and no lock: the caller owns all three. Data is decoded when an event is asked for and
never before, so that what nobody asks for costs no more than its bytes.
"""

import enum
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct, field

from bayplan.errors import LocalProtocolError, RemoteProtocolError
from bayplan.nri.wire.connection_events import (
    FIRST_FRAME_BYTES,
    FRAME_HEADER_BYTES,
    MAX_BACKLOG_BYTES,
    MAX_CONSECUTIVE_REFUSALS,
    MAX_ENVELOPE_FIELDS,
    MAX_FRAME_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_NESTED_FIELDS,
    MAX_OUTSTANDING_CALLS,
    MAX_STREAM_ID,
    MAX_UNANSWERED_BYTES,
    MAX_UNANSWERED_REQUESTS,
    MESSAGE_HEADER_BYTES,
    NEED_DATA,
    Code,
    ConnectionClosed,
    Incoming,
    MessageTooLargeError,
    RefusedMessage,
    Role,
    TtrpcRequest,
    TtrpcResponse,
)

# Wire types, and the sizes of the two fixed ones. 3 and 4 are groups.
_VARINT: Final = 0
_LENGTH: Final = 2
_FIXED_SIZES: Final = {1: 8, 5: 4}

# Tags: field number and wire type. A known field that comes with another wire type is an unknown field.
_REQUEST_SERVICE: Final = 0x0A
_REQUEST_METHOD: Final = 0x12
_REQUEST_PAYLOAD: Final = 0x1A
_REQUEST_TIMEOUT: Final = 0x20
_REQUEST_METADATA: Final = 0x2A
_RESPONSE_STATUS: Final = 0x0A
_RESPONSE_PAYLOAD: Final = 0x12
_STATUS_CODE: Final = 0x08
_STATUS_MESSAGE: Final = 0x12
_KEY: Final = 0x0A
_VALUE: Final = 0x12

_CODES: Final = {int(code): code for code in Code}
_NO_UTF8: Final = "text that is not UTF-8"
_NOTHING: Final = memoryview(b"")
_MORE: Final = 0x80
"""The bit of a byte of a number that says that more follow; most tags and sizes have one byte."""


class UndecodableError(Exception):
    """The bytes are not the envelope they should be. Never leaves the package: it becomes a status."""


# ---- Reading -----------------------------------------------------------------------------------------


def request_from(stream_id: int, body: bytearray) -> TtrpcRequest:
    """Read a Request.

    Raises:
        UndecodableError: these bytes are none.
    """
    service = method = ""
    payload = b""
    timeout_ns = 0
    metadata: list[tuple[str, str]] = []
    try:
        for tag, number, content in _fields(memoryview(body), MAX_ENVELOPE_FIELDS):
            if tag == _REQUEST_SERVICE:
                service = str(content, "utf-8")
            elif tag == _REQUEST_METHOD:
                method = str(content, "utf-8")
            elif tag == _REQUEST_PAYLOAD:
                payload = bytes(content)
            elif tag == _REQUEST_TIMEOUT:
                timeout_ns = number - (1 << 64) if number >> 63 else number
            elif tag == _REQUEST_METADATA:
                metadata.append(_pair(content))
    except UnicodeDecodeError as error:
        raise UndecodableError(_NO_UTF8) from error
    return TtrpcRequest(stream_id, service, method, payload, timeout_ns, tuple(metadata))


def response_from(stream_id: int, body: bytearray) -> TtrpcResponse:
    """Read a Response. The details of a status are skipped.

    Raises:
        UndecodableError: these bytes are none.
    """
    code = 0
    message = ""
    payload = b""
    try:
        for tag, _, content in _fields(memoryview(body), MAX_ENVELOPE_FIELDS):
            if tag == _RESPONSE_STATUS:
                for inner_tag, number, inner in _fields(content, MAX_NESTED_FIELDS):
                    if inner_tag == _STATUS_CODE:
                        code = number & 0xFFFF_FFFF
                    elif inner_tag == _STATUS_MESSAGE:
                        message = str(inner, "utf-8")
            elif tag == _RESPONSE_PAYLOAD:
                payload = bytes(content)
    except UnicodeDecodeError as error:
        raise UndecodableError(_NO_UTF8) from error
    return TtrpcResponse(stream_id, _CODES.get(code, Code.UNKNOWN), message, payload)


def _fields(view: memoryview, limit: int) -> Iterator[tuple[int, int, memoryview]]:
    """Each field as its tag, its number if it is a varint, its content if it has a length."""
    at, end = 0, len(view)
    while at < end:
        limit -= 1
        if limit < 0:
            raise UndecodableError("too many fields")
        tag = view[at]
        tag, at = (tag, at + 1) if tag < _MORE else _varint(view, at, 5)
        wire_type = tag & 7
        if tag >> 32 or not tag >> 3:
            raise UndecodableError("a field number that cannot be")
        if wire_type == _LENGTH:
            size = view[at] if at < end else _MORE
            size, at = (size, at + 1) if size < _MORE else _varint(view, at, 5)
            if size > end - at:
                raise UndecodableError("a field longer than the message")
            yield tag, 0, view[at : at + size]
            at += size
        elif wire_type == _VARINT:
            number, at = _varint(view, at, 10)
            yield tag, number, _NOTHING
        elif wire_type in _FIXED_SIZES:
            at += _FIXED_SIZES[wire_type]
            if at > end:
                raise UndecodableError("a field longer than the message")
        else:
            raise UndecodableError(f"wire type {wire_type}")


def _varint(view: memoryview, at: int, limit_bytes: int) -> tuple[int, int]:
    """The lower 64 bits of a number of at most so many bytes, and where it ends."""
    number = 0
    for shift in range(0, 7 * limit_bytes, 7):
        if at >= len(view):
            raise UndecodableError("a number longer than the message")
        byte = view[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < _MORE:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at
    raise UndecodableError("a number too long")


def _pair(content: memoryview) -> tuple[str, str]:
    key = value = ""
    for tag, _, inner in _fields(content, MAX_NESTED_FIELDS):
        if tag == _KEY:
            key = str(inner, "utf-8")
        elif tag == _VALUE:
            value = str(inner, "utf-8")
    return key, value


# ---- Writing: fields in the order of their numbers, zero and empty ones left out, as the Go side does ----


def request_parts(request: TtrpcRequest) -> tuple[bytes, ...]:
    """A Request, in parts that make up the envelope when joined. The payload is not copied.

    Raises:
        LocalProtocolError: a text is not expressible in UTF-8, or the timeout does not fit in 64 bits.
    """
    if not -(1 << 63) <= request.timeout_ns < 1 << 63:
        problem = f"found {request.timeout_ns}, expected a number of 64 bits; nothing was sent"
        raise LocalProtocolError("timeout_ns", problem)
    timeout = request.timeout_ns % (1 << 64)
    return (
        *_content(_REQUEST_SERVICE, _utf8("service", request.service)),
        *_content(_REQUEST_METHOD, _utf8("method", request.method)),
        *_content(_REQUEST_PAYLOAD, request.payload),
        *((bytes((_REQUEST_TIMEOUT,)), _number(timeout)) if timeout else ()),
        *(part for pair in request.metadata for part in _metadata(*pair)),
    )


def response_parts(response: TtrpcResponse) -> tuple[bytes, ...]:
    """A Response, in parts that make up the envelope when joined. The payload is not copied.

    Never fails: what UTF-8 cannot express in the message is replaced, because an answer must go out.
    """
    payload = _content(_RESPONSE_PAYLOAD, response.payload)
    if response.code is Code.OK:
        return payload
    message = response.message.encode("utf-8", "replace")
    status = b"".join((bytes((_STATUS_CODE, response.code)), *_content(_STATUS_MESSAGE, message)))
    return (*_content(_RESPONSE_STATUS, status), *payload)


def _content(tag: int, content: bytes) -> tuple[bytes, ...]:
    return (bytes((tag,)), _number(len(content)), content) if content else ()


def _metadata(key: str, value: str) -> tuple[bytes, ...]:
    pair = b"".join((*_content(_KEY, _utf8("metadata", key)), *_content(_VALUE, _utf8("metadata", value))))
    return bytes((_REQUEST_METADATA,)), _number(len(pair)), pair


def _number(number: int) -> bytes:
    out = bytearray()
    while number >= _MORE:
        out.append(number & 0x7F | _MORE)
        number >>= 7
    out.append(number)
    return bytes(out)


def _utf8(field: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        problem = f"found {text!a}, expected text that UTF-8 can express; nothing was sent"
        raise LocalProtocolError(field, problem) from error


_ENDED: Final = "the peer's side of the connection has ended"


class MessageType(enum.IntEnum):
    """The types that exist; all others are ignored, for those that may come."""

    REQUEST = 1
    RESPONSE = 2
    DATA = 3


class MessageHeader(NamedTuple):
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


READ = Ruling(Verdict.READ)
IGNORE = Ruling(Verdict.IGNORE)
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


def _unsendable(stream_id: int, problem: str) -> LocalProtocolError:
    return LocalProtocolError(f"stream {stream_id}", f"{problem}; nothing was sent")


class ServedStreams:
    """The streams on which the peer calls and we answer."""

    def __init__(self) -> None:
        self._last_id = 0
        self._unanswered: dict[int, int] = {}
        self._unanswered_bytes = 0

    def judge(self, header: MessageHeader) -> Ruling:
        """Rule on a header. A request that is to be read counts as unanswered from here on."""
        if header.type == MessageType.DATA:
            # A client's end of stream may follow the request of a unary call; anything else has no stream.
            return IGNORE if header.stream_id in self._unanswered else _NO_STREAM
        if header.type != MessageType.REQUEST:
            return IGNORE
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
        return READ

    def close(self, stream_id: int) -> None:
        """The request has its answer.

        Raises:
            LocalProtocolError: no request waits for one.
        """
        length = self._unanswered.pop(stream_id, None)
        if length is None:
            raise _unsendable(stream_id, "no request waits for this response")
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
            LocalProtocolError: all ids of this connection are used up.
        """
        stream_id = self._next_id
        if stream_id > MAX_STREAM_ID:
            raise _unsendable(stream_id, f"stream ids end at {MAX_STREAM_ID}")
        self._next_id += 2
        return stream_id

    def check_open(self, stream_id: int) -> None:
        """Make sure that a request on this stream may be sent now.

        Raises:
            LocalProtocolError: the id was not allocated here, it or a later one was sent before, or too many
                calls wait for an answer.
        """
        if not 0 < stream_id < self._next_id or stream_id % 2 == 0:
            raise _unsendable(stream_id, "not allocated by this connection")
        if stream_id <= self._last_sent:
            raise _unsendable(stream_id, f"stream {self._last_sent} was sent before, and ids must increase")
        if len(self._outstanding) >= MAX_OUTSTANDING_CALLS:
            waiting = len(self._outstanding)
            raise _unsendable(stream_id, f"{waiting} calls wait for an answer and no more may")

    def open(self, stream_id: int) -> None:
        """The request is on its way."""
        self._last_sent = stream_id
        self._outstanding.add(stream_id)

    def judge(self, header: MessageHeader) -> Ruling:
        """Rule on a header. The call is not closed by it: the body has yet to come."""
        if header.stream_id not in self._outstanding:
            return IGNORE  # the late answer to a call that was given up
        if header.type == MessageType.RESPONSE:
            return READ if header.length <= MAX_MESSAGE_BYTES else _oversize(Verdict.FAIL, header.length)
        if header.type in (MessageType.REQUEST, MessageType.DATA):
            name = MessageType(header.type).name
            return Ruling(Verdict.FAIL, Code.INTERNAL, f"a unary call was answered with a {name} message")
        return IGNORE

    def close(self, stream_id: int) -> bool:
        """The call is over. False when it was given up before."""
        if stream_id not in self._outstanding:
            return False
        self._outstanding.remove(stream_id)
        return True


_FRAME_HEADER = struct.Struct(">II")
_MESSAGE_HEADER = struct.Struct(">IIBB")


def message(connection_id: int, stream_id: int, kind: MessageType, parts: Sequence[bytes]) -> bytes:
    """A message whose body is given in parts, framed and ready to be written: as one frame, or as exactly two
    when it does not fit in the first.

    Nothing else survives the way the Go side reads (``FIRST_FRAME_BYTES``).

    Raises:
        MessageTooLargeError: the body is over ``MAX_MESSAGE_BYTES``.
    """
    length = sum(map(len, parts))
    if length > MAX_MESSAGE_BYTES:
        raise MessageTooLargeError(stream_id, length, MAX_MESSAGE_BYTES)
    size, head = MESSAGE_HEADER_BYTES + length, _MESSAGE_HEADER.pack(length, stream_id, kind, 0)
    if size <= FIRST_FRAME_BYTES:
        return b"".join((_FRAME_HEADER.pack(connection_id, size), head, *parts))
    whole = b"".join((head, *parts))
    with memoryview(whole) as view:
        return b"".join(
            (
                _FRAME_HEADER.pack(connection_id, FIRST_FRAME_BYTES),
                view[:FIRST_FRAME_BYTES],
                _FRAME_HEADER.pack(connection_id, size - FIRST_FRAME_BYTES),
                view[FIRST_FRAME_BYTES:],
            )
        )


class _Incoming(Struct):
    """What is there of the next message of a logical connection: a part of its header, or (with ``header``)
    the ruling on it, and what of the body has come and is ``missing_bytes``."""

    judge: Callable[[MessageHeader], Ruling]
    head: bytearray = field(default_factory=bytearray)
    header: MessageHeader | None = None
    ruling: Ruling = IGNORE
    body: bytearray = field(default_factory=bytearray)
    missing_bytes: int = 0


class MessageReader:
    """Stores bytes as they come and hands out the messages of the connections that are *judged*, in order,
    however they are framed.

    What was read is given back when bytes come or none are left, not after each message: deleting from the
    front of a bytearray only moves its start, so that the work is linear in the bytes, however they are cut.
    """

    def __init__(self, judged: Mapping[int, Callable[[MessageHeader], Ruling]]) -> None:
        self._incoming = {connection_id: _Incoming(judge) for connection_id, judge in judged.items()}
        self._backlog = bytearray()
        self._start = 0
        self._current = 0
        self._left_bytes = 0

    @property
    def between_frames(self) -> bool:
        """Whether the bytes so far end where a frame ends."""
        return self._left_bytes == 0 and len(self._backlog) == self._start

    @property
    def between_messages(self) -> bool:
        """Whether the bytes so far end where a message of each connection ends."""
        return all(one.header is None and not one.head for one in self._incoming.values())

    def receive(self, data: bytes) -> None:
        """Store bytes.

        Raises:
            LocalProtocolError: ``MAX_BACKLOG_BYTES`` or more wait already.
        """
        backlog_bytes = len(self._backlog) - self._start
        if backlog_bytes >= MAX_BACKLOG_BYTES:
            problem = f"{backlog_bytes} bytes wait for next_event, expected less than {MAX_BACKLOG_BYTES}"
            raise LocalProtocolError("receive_data", problem)
        if self._start:
            del self._backlog[: self._start]
            self._start = 0
        self._backlog += data

    def next_message(self) -> tuple[int, MessageHeader, Ruling, bytearray] | None:
        """The next complete message, with its connection; None: there is none. Its body is empty when the
        ruling was not to read it.

        Raises:
            RemoteProtocolError: a header announces more than ``MAX_FRAME_BYTES``.
        """
        while True:
            waiting_bytes = len(self._backlog) - self._start
            if not self._left_bytes:
                if waiting_bytes < FRAME_HEADER_BYTES:
                    break
                connection_id, size_bytes = _FRAME_HEADER.unpack_from(self._backlog, self._start)
                if size_bytes > MAX_FRAME_BYTES:
                    problem = f"peer sent a frame of {size_bytes} bytes, expected at most {MAX_FRAME_BYTES}"
                    raise RemoteProtocolError(f"connection {connection_id}", problem)
                self._start += FRAME_HEADER_BYTES
                self._current, self._left_bytes = connection_id, size_bytes
            elif not waiting_bytes:
                break
            elif (one := self._incoming.get(self._current)) is None:
                size_bytes = min(self._left_bytes, waiting_bytes)
                self._start += size_bytes
                self._left_bytes -= size_bytes
            elif (header := self._read(one, min(self._left_bytes, waiting_bytes))) is not None:
                body, one.body, one.header = one.body, bytearray(), None
                return self._current, header, one.ruling, body
        if self._start:
            del self._backlog[: self._start]
            self._start = 0
        return None

    def _read(self, incoming: _Incoming, available_bytes: int) -> MessageHeader | None:
        """Take of the current frame what belongs to the next message, at most so many bytes; its header, once
        it is complete."""
        backlog, start = self._backlog, self._start
        end, header = start + available_bytes, incoming.header
        if header is None:
            begun, start = start, min(end, start + MESSAGE_HEADER_BYTES - len(incoming.head))
            incoming.head += backlog[begun:start]
            if len(incoming.head) == MESSAGE_HEADER_BYTES:
                incoming.header = header = MessageHeader._make(_MESSAGE_HEADER.unpack(incoming.head))
                incoming.head.clear()
                incoming.missing_bytes, incoming.ruling = header.length, incoming.judge(header)
        if header is not None:
            begun, start = start, min(end, start + incoming.missing_bytes)
            if incoming.ruling.verdict is not Verdict.READ:
                pass
            elif incoming.body:
                incoming.body += backlog[begun:start]
            else:
                incoming.body = backlog[begun:start]
            incoming.missing_bytes -= start - begun
        self._left_bytes -= start - self._start
        self._start = start
        return None if incoming.missing_bytes else header


class Connection:
    """Either end of an NRI connection. Not thread-safe."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self._serving_id = role.value
        self._calling_id = role.peer.value
        self._served = ServedStreams()
        self._called = CalledStreams()
        self._messages = MessageReader(
            {self._serving_id: self._served.judge, self._calling_id: self._called.judge}
        )
        self._refusals = 0
        self._at_eof = False
        self._end: ConnectionClosed | RemoteProtocolError | None = None

    # ---- Receiving -----------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> None:
        """Store bytes that the peer sent, in any fragmentation; ``b""`` says that it closed the connection.

        Raises:
            LocalProtocolError: ``MAX_BACKLOG_BYTES`` or more wait already, and the caller must take the
                events first; or there are bytes after the end or after an error.

        Any other exception is a bug.
        """
        if not data:
            self._at_eof = True
            return
        if self._at_eof or self._end is not None:
            raise LocalProtocolError("receive_data", _ENDED)
        self._messages.receive(data)

    def next_event(self) -> Incoming:
        """The next thing that the peer did.

        ``TtrpcRequest`` and ``TtrpcResponse`` as they come; ``RefusedMessage`` for a message that the
        connection turned down, with the reply to write; ``NEED_DATA`` when more bytes are needed;
        ``ConnectionClosed``, again and again, after the end. What came before the end or before an error is
        always delivered first.

        A call of ours whose answer is unusable (too large, not decodable, streaming) gets a ``TtrpcResponse``
        made here, with code ``RESOURCE_EXHAUSTED`` or ``INTERNAL``. Messages of unknown type, on unknown
        logical connections and answers to calls that were given up are skipped.

        Raises:
            RemoteProtocolError: the peer broke the protocol; again and again from then on. The caller should
                close the connection.

        Any other exception is a bug.
        """
        if self._end is None:
            try:
                while (received := self._messages.next_message()) is not None:
                    connection_id, header, ruling, body = received
                    take = self._serve if connection_id == self._serving_id else self._conclude
                    if (event := take(header, ruling, body)) is not None:
                        return event
                if not self._at_eof:
                    return NEED_DATA
                self._end = self._closed()
            except RemoteProtocolError as error:
                self._end = error
        if isinstance(self._end, RemoteProtocolError):
            raise self._end.with_traceback(None)
        return self._end

    def _closed(self) -> ConnectionClosed:
        """The end that comes where a message and a frame end.

        Raises:
            RemoteProtocolError: they do not.
        """
        if not self._messages.between_messages:
            raise RemoteProtocolError("connection", "peer closed it inside a message")
        if not self._messages.between_frames:
            raise RemoteProtocolError("connection", "peer closed it inside a frame")
        return ConnectionClosed()

    def _serve(
        self, header: MessageHeader, ruling: Ruling, body: bytearray
    ) -> TtrpcRequest | RefusedMessage | None:
        """What a message on our serving side means."""
        if ruling.verdict is Verdict.IGNORE:
            return None
        if ruling.verdict is Verdict.REFUSE:
            return self._refuse(header.stream_id, ruling.code, ruling.message)
        try:
            request = request_from(header.stream_id, body)
        except UndecodableError as error:
            self._served.close(header.stream_id)
            return self._refuse(header.stream_id, Code.INVALID_ARGUMENT, f"not a ttRPC request: {error}")
        self._refusals = 0
        return request

    def _refuse(self, stream_id: int, code: Code, reason: str) -> RefusedMessage:
        self._refusals += 1
        if self._refusals > MAX_CONSECUTIVE_REFUSALS:
            problem = f"peer sent {self._refusals} refused messages in a row; the last: {reason}"
            raise RemoteProtocolError("connection", problem)
        parts = response_parts(TtrpcResponse(stream_id, code, reason))
        reply = message(self._serving_id, stream_id, MessageType.RESPONSE, parts)
        return RefusedMessage(stream_id, code, reason, reply)

    def _conclude(self, header: MessageHeader, ruling: Ruling, body: bytearray) -> TtrpcResponse | None:
        """What a message on our calling side means."""
        if ruling.verdict is Verdict.IGNORE or not self._called.close(header.stream_id):
            return None
        if ruling.verdict is Verdict.FAIL:
            return TtrpcResponse(header.stream_id, ruling.code, ruling.message)
        try:
            return response_from(header.stream_id, body)
        except UndecodableError as error:
            return TtrpcResponse(
                header.stream_id, Code.INTERNAL, f"the answer is not a ttRPC response: {error}"
            )

    # ---- Sending -------------------------------------------------------------------------------------

    def request(
        self,
        service: str,
        method: str,
        payload: bytes,
        timeout_ns: int = 0,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> TtrpcRequest:
        """A call of ours, with a fresh stream id. Calls must be sent in the order in which they were made.

        Raises:
            LocalProtocolError: all stream ids are used up.

        Any other exception is a bug.
        """
        return TtrpcRequest(self._called.allocate(), service, method, payload, timeout_ns, metadata)

    def send(self, event: TtrpcRequest | TtrpcResponse) -> bytes:
        """The bytes of a call of ours or of an answer, to be written to the peer in the order of these calls.

        Answers can be sent as long as the caller likes, also when the peer's side has ended: they go nowhere,
        and break nothing.

        Raises:
            MessageTooLargeError: over 4 MiB. A response can be replaced: the request still waits for one.
            LocalProtocolError: a response that no request waits for; or a request that is out of order, that
                has a text or a number which the wire cannot carry, beside `MAX_OUTSTANDING_CALLS` others, or
                when the peer's side has ended.

        After each of these nothing has been sent and nothing has changed. Any other exception is a bug.
        """
        if isinstance(event, TtrpcResponse):
            sent = message(self._serving_id, event.stream_id, MessageType.RESPONSE, response_parts(event))
            self._served.close(event.stream_id)
            return sent
        if self._at_eof or self._end is not None:
            raise LocalProtocolError(f"call of {event.method}", _ENDED)
        self._called.check_open(event.stream_id)
        sent = message(self._calling_id, event.stream_id, MessageType.REQUEST, request_parts(event))
        self._called.open(event.stream_id)
        return sent

    def forget(self, stream_id: int) -> None:
        """Give up a call of ours: a late answer will be skipped. The protocol has no way to tell the peer."""
        self._called.close(stream_id)

"""The protobuf envelopes of ttRPC, read and written without the protobuf library.

    Request     1 service, 2 method, 3 payload, 4 timeout_nano, 5 metadata: pairs of 1 key, 2 value
    Response    1 status: 1 code, 2 message, 3 details; 2 payload

The library would copy the payload twice more and turn 4 MiB of tiny fields into a quarter of a gigabyte of
objects before we could count them. What is accepted here is what the library accepts, except groups, which
no writer of these messages produces, and more fields than the limits allow. The tests hold the two side by
side.
"""

from collections.abc import Iterator
from typing import Final

from bayplan.nri.wire.connection_events import (
    MAX_ENVELOPE_FIELDS,
    MAX_NESTED_FIELDS,
    Code,
    FieldError,
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
        FieldError: a text is not expressible in UTF-8, or the timeout does not fit in 64 bits.
    """
    if not -(1 << 63) <= request.timeout_ns < 1 << 63:
        raise FieldError("timeout_ns", str(request.timeout_ns), "a number of 64 bits")
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
        raise FieldError(field, ascii(text), "text that UTF-8 can express") from error

"""The envelopes, side by side with the protobuf library."""

import pytest
from google.protobuf.message import DecodeError

from bayplan.errors import LocalProtocolError
from bayplan.nri.wire import Code, TtrpcRequest, TtrpcResponse
from bayplan.nri.wire.connection import (
    UndecodableError,
    request_from,
    request_parts,
    response_from,
    response_parts,
)
from bayplan.nri.wire.connection_events import MAX_ENVELOPE_FIELDS, MAX_NESTED_FIELDS
from support import ttrpc_messages

REQUESTS = [
    TtrpcRequest(1, "", ""),
    TtrpcRequest(1, "s", "m"),
    TtrpcRequest(1, "s", "m", b"payload", 1),
    TtrpcRequest(1, "s" * 200, "ü" * 70, b"\x00" * 300, (1 << 63) - 1),
    TtrpcRequest(1, "s", "m", b"", -1),
    TtrpcRequest(
        1, "s", "m", b"", -(1 << 63), (("traceparent", "00-1"), ("traceparent", ""), ("", "x"), ("", ""))
    ),
    TtrpcRequest(1, "s", "m", bytes(70_000)),
]
RESPONSES = [
    TtrpcResponse(1),
    TtrpcResponse(1, payload=b"p" * 127),
    TtrpcResponse(1, payload=b"p" * 128),
    TtrpcResponse(1, Code.UNIMPLEMENTED, "nope"),
    TtrpcResponse(1, Code.UNAUTHENTICATED),
    TtrpcResponse(1, Code.INTERNAL, "ü" * 5000, b"and a payload"),
]


def library_request(request):
    return ttrpc_messages.Request(
        service=request.service,
        method=request.method,
        payload=request.payload,
        timeout_nano=request.timeout_ns,
        metadata=[ttrpc_messages.KeyValue(key=key, value=value) for key, value in request.metadata],
    )


def library_response(response):
    message = ttrpc_messages.Response(payload=response.payload)
    if response.code:
        message.status.code = response.code
        message.status.message = response.message
    return message


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_is_written_as_the_library_writes_it_and_read_back(request_):
    written = b"".join(request_parts(request_))
    assert written == library_request(request_).SerializeToString(deterministic=True)
    assert request_from(1, bytearray(written)) == request_


@pytest.mark.parametrize("response", RESPONSES)
def test_a_response_is_written_as_the_library_writes_it_and_read_back(response):
    written = b"".join(response_parts(response))
    assert written == library_response(response).SerializeToString(deterministic=True)
    assert response_from(1, bytearray(written)) == response


def test_the_message_of_success_is_not_sent():
    assert response_parts(TtrpcResponse(1, Code.OK, "fine")) == ()


def test_a_message_for_humans_is_made_expressible():
    assert response_from(
        1, bytearray(b"".join(response_parts(TtrpcResponse(1, Code.UNKNOWN, "a\udcffb"))))
    ) == TtrpcResponse(1, Code.UNKNOWN, "a?b")


@pytest.mark.parametrize("code", [17, 99, -1, -(1 << 31), (1 << 31) - 1])
def test_a_code_that_nobody_defined_is_unknown(code):
    body = ttrpc_messages.Response(status=ttrpc_messages.Status(code=code, message="m")).SerializeToString()
    assert response_from(1, bytearray(body)) == TtrpcResponse(1, Code.UNKNOWN, "m")


def test_a_code_is_cut_to_32_bits():
    body = bytes.fromhex("0a06 08 8280808010")
    assert ttrpc_messages.Response.FromString(body).status.code == 2
    assert response_from(1, bytearray(body)) == TtrpcResponse(1, Code.UNKNOWN)
    body = bytes.fromhex("0a06 08 8880808010")
    assert response_from(1, bytearray(body)) == TtrpcResponse(1, Code.RESOURCE_EXHAUSTED)


def test_a_status_with_code_zero_is_success():
    body = ttrpc_messages.Response(status=ttrpc_messages.Status(), payload=b"p").SerializeToString()
    assert response_from(1, bytearray(body)) == TtrpcResponse(1, payload=b"p")


def test_details_are_skipped():
    status = ttrpc_messages.Status(code=2, message="m")
    status.details.add(type_url="t", value=b"v")
    body = ttrpc_messages.Response(status=status).SerializeToString()
    assert response_from(1, bytearray(body)) == TtrpcResponse(1, Code.UNKNOWN, "m")


UNKNOWN_FIELDS = {
    "varint": bytes.fromhex("f807 ffffffffffffffffff01"),
    "fixed 64": bytes.fromhex("f907 0102030405060708"),
    "length": bytes.fromhex("fa07 03 616263"),
    "fixed 32": bytes.fromhex("fd07 01020304"),
    "service as a number": bytes.fromhex("08 05"),
    "payload as fixed 32": bytes.fromhex("1d 01020304"),
    "timeout as text": bytes.fromhex("22 01 61"),
    "metadata as a number": bytes.fromhex("28 01"),
    "the highest field": bytes.fromhex("f8ffffff0f 00"),
    "a tag written too long": bytes.fromhex("8880808000 05"),
}


@pytest.mark.parametrize("name", UNKNOWN_FIELDS)
def test_unknown_fields_are_skipped(name):
    known = b"".join(request_parts(TtrpcRequest(1, "s", "m", b"p", 7, (("k", "v"),))))
    for body in (UNKNOWN_FIELDS[name] + known, known + UNKNOWN_FIELDS[name]):
        assert ttrpc_messages.Request.FromString(body).method == "m"
        assert request_from(1, bytearray(body)) == TtrpcRequest(1, "s", "m", b"p", 7, (("k", "v"),))


@pytest.mark.parametrize("body", ["1a0161 0a020802", "0a020802 1001", "0a07 220161 2801 0802"])
def test_unknown_fields_of_a_response_are_skipped(body):
    assert ttrpc_messages.Response.FromString(bytes.fromhex(body)).status.code == 2
    assert response_from(1, bytearray(bytes.fromhex(body))) == TtrpcResponse(1, Code.UNKNOWN)


def test_unknown_fields_in_metadata_are_skipped():
    body = bytes.fromhex("2a 09 0a016b 0801 2a00 1200")
    assert ttrpc_messages.Request.FromString(body).metadata[0].key == "k"
    assert request_from(1, bytearray(body)).metadata == (("k", ""),)


def test_the_last_of_equal_fields_wins():
    assert request_from(1, bytearray(bytes.fromhex("0a0161 0a0162 2001 2002"))) == TtrpcRequest(
        1, "b", "", b"", 2
    )


UNDECODABLE = {
    "tag that never ends": b"\x80",
    "tag of six bytes": bytes.fromhex("888080808000 05"),
    "tag over 32 bits": bytes.fromhex("8880808010 05"),
    "field number 0": bytes.fromhex("00 05"),
    "number that never ends": bytes.fromhex("20 80"),
    "number of eleven bytes": bytes.fromhex("20 8080808080808080808000"),
    "number missing": b"\x20",
    "length missing": b"\x0a",
    "length that lies": bytes.fromhex("0a 02 61"),
    "length that lies a lot": bytes.fromhex("0a ffffffff07 61"),
    "fixed 64 cut off": bytes.fromhex("f907 01020304050607"),
    "fixed 32 cut off": bytes.fromhex("fd07 010203"),
    "group ends": b"\x0c",
    "wire type 6": b"\x0e",
    "wire type 7": b"\x0f",
    "service not UTF-8": bytes.fromhex("0a 01 ff"),
    "method with a surrogate": bytes.fromhex("12 03 edb080"),
    "metadata that lies": bytes.fromhex("2a 02 0a05"),
    "metadata key not UTF-8": bytes.fromhex("2a 03 0a01c0"),
    "metadata value not UTF-8": bytes.fromhex("2a 03 1201c0"),
}


@pytest.mark.parametrize("name", UNDECODABLE)
def test_undecodable_requests(name):
    with pytest.raises(UndecodableError):
        request_from(1, bytearray(UNDECODABLE[name]))
    with pytest.raises(DecodeError):
        ttrpc_messages.Request.FromString(UNDECODABLE[name])


def test_a_number_is_cut_to_64_bits():
    body = bytes.fromhex("20 ffffffffffffffffff02")
    assert (
        request_from(1, bytearray(body)).timeout_ns
        == ttrpc_messages.Request.FromString(body).timeout_nano
        == (1 << 63) - 1
    )


def test_groups_are_not_read():
    with pytest.raises(UndecodableError, match="wire type 3"):
        request_from(1, bytearray(bytes.fromhex("f307 f407")))


@pytest.mark.parametrize(
    "body", ["0a 02 0a", "0a 05 1203 edb080", "12 05 61", "0a 04 1202 c080", "0a 02 0880"]
)
def test_undecodable_responses(body):
    with pytest.raises(UndecodableError):
        response_from(1, bytearray(bytes.fromhex(body)))


def test_fields_are_counted():
    assert len(request_from(1, bytearray(b"\x2a\x00" * MAX_ENVELOPE_FIELDS)).metadata) == MAX_ENVELOPE_FIELDS
    with pytest.raises(UndecodableError, match="too many"):
        request_from(1, bytearray(b"\x2a\x00" * (MAX_ENVELOPE_FIELDS + 1)))
    with pytest.raises(UndecodableError, match="too many"):
        response_from(1, bytearray(b"\x0a\x82\x01" + b"\x1a\x00" * (MAX_NESTED_FIELDS + 1)))


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (TtrpcRequest(1, "\ud800", "m"), "service"),
        (TtrpcRequest(1, "s", "\ud800"), "method"),
        (TtrpcRequest(1, "s", "m", metadata=(("\ud800", ""),)), "metadata"),
        (TtrpcRequest(1, "s", "m", metadata=(("", "\udcff"),)), "metadata"),
        (TtrpcRequest(1, "s", "m", timeout_ns=1 << 63), "timeout_ns"),
        (TtrpcRequest(1, "s", "m", timeout_ns=-(1 << 63) - 1), "timeout_ns"),
    ],
)
def test_what_the_wire_cannot_carry(request_, field):
    with pytest.raises(LocalProtocolError) as caught:
        request_parts(request_)
    assert caught.value.subject == field
    assert str(caught.value).startswith(f"{field}: found ")

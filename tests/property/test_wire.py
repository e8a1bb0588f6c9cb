"""What must hold for all bytes and all fragmentations."""

import random
import re
import struct
import tracemalloc

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from bayplan.errors import LocalProtocolError, RemoteProtocolError
from bayplan.nri.wire import (
    NEED_DATA,
    Code,
    Connection,
    ConnectionClosed,
    RefusedMessage,
    Role,
    TtrpcRequest,
    TtrpcResponse,
)
from bayplan.nri.wire.connection import (
    UndecodableError,
    request_from,
    request_parts,
    response_from,
    response_parts,
)
from bayplan.nri.wire.connection_events import (
    FIRST_FRAME_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_UNANSWERED_BYTES,
    MAX_UNANSWERED_REQUESTS,
)
from support import ttrpc_messages

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
PAYLOADS = st.binary(max_size=200) | st.integers(0, 20_000).map(bytes)
TIMEOUTS = st.integers(-(1 << 63), (1 << 63) - 1)
METADATA = st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple)
CALLS = st.tuples(TEXTS, TEXTS, PAYLOADS, TIMEOUTS, METADATA)
ANSWERS = st.builds(TtrpcResponse, st.just(0), st.sampled_from(Code), TEXTS, PAYLOADS)
FRAGMENTS = st.lists(st.integers(1, 5000), min_size=1, max_size=20)
ROLES = st.sampled_from(Role)


def deliver(connection, data, fragments):
    """Hand the bytes in, cut as told, over and over; everything that comes out."""
    events = []
    at = turn = 0
    while at < len(data):
        size = fragments[turn % len(fragments)]
        connection.receive_data(data[at : at + size])
        at, turn = at + size, turn + 1
        while (event := connection.next_event()) is not NEED_DATA:
            events.append(event)
    return events


def frames_of(data):
    while data:
        connection_id, size = struct.unpack(">II", data[:8])
        yield connection_id, data[8 : 8 + size]
        data = data[8 + size :]


@given(ROLES, st.lists(st.tuples(CALLS, ANSWERS), max_size=8), FRAGMENTS)
def test_what_goes_in_comes_out(role, exchanges, fragments):
    client, server = Connection(role), Connection(role.peer)
    calls = [client.request(*call) for call, _ in exchanges]
    assert deliver(server, b"".join(client.send(call) for call in calls), fragments) == calls
    answers = [
        TtrpcResponse(call.stream_id, answer.code, answer.message if answer.code else "", answer.payload)
        for call, (_, answer) in zip(calls, exchanges, strict=True)
    ]
    assert deliver(client, b"".join(server.send(answer) for answer in answers), fragments) == answers


@given(ROLES, st.integers(0, 20_000))
def test_every_message_is_framed_as_the_go_side_reads(role, size):
    connection = Connection(role)
    sent = connection.send(connection.request("s", "m", bytes(size)))
    frames = list(frames_of(sent))
    assert {connection_id for connection_id, _ in frames} == {role.peer.value}
    message = b"".join(payload for _, payload in frames)
    assert struct.unpack(">I", message[:4])[0] == len(message) - 10
    sizes = [len(payload) for _, payload in frames]
    assert (
        sizes == [len(message)]
        if len(message) <= 4096
        else [FIRST_FRAME_BYTES, len(message) - FIRST_FRAME_BYTES]
    )


# ---- Garbage -----------------------------------------------------------------------------------------

BODIES = (
    st.binary(max_size=60)
    | st.builds(lambda call: b"".join(request_parts(TtrpcRequest(1, *call))), CALLS)
    | st.builds(lambda answer: b"".join(response_parts(answer)), ANSWERS)
)


@st.composite
def messages(draw):
    """A ttRPC message, most of the time with a length that is true."""
    body = draw(BODIES)
    length = draw(st.just(len(body)) | st.integers(0, 300) | st.integers(0, (1 << 32) - 1))
    stream_id = draw(st.integers(0, 9) | st.integers(0, (1 << 32) - 1))
    return (
        struct.pack(
            ">IIBB", length, stream_id, draw(st.integers(0, 4) | st.integers(0, 255)), draw(st.integers(0, 7))
        )
        + body
    )


@st.composite
def garbage(draw):
    """Bytes that are wrong at every depth: as frames, as messages, as envelopes."""
    pieces = []
    for _ in range(draw(st.integers(1, 8))):
        payload = draw(messages() | st.binary(max_size=40))
        size = draw(st.just(len(payload)) | st.integers(0, 100) | st.integers(0, (1 << 32) - 1))
        pieces.append(
            draw(
                st.just(struct.pack(">II", draw(st.sampled_from((0, 1, 2, 3))), size)) | st.binary(max_size=8)
            )
        )
        pieces.append(payload)
    return b"".join(pieces)


def outcome(role, calls, data, fragments):
    """All events of some bytes and of the end after them, and the error if there was one."""
    connection = Connection(role)
    for _ in range(calls):
        connection.send(connection.request("s", "m", b""))
    events = []
    error = None
    try:
        at = turn = 0
        while at < len(data):
            size = fragments[turn % len(fragments)]
            connection.receive_data(data[at : at + size])
            at, turn = at + size, turn + 1
            while (event := connection.next_event()) is not NEED_DATA:
                events.append(event)
        connection.receive_data(b"")
        while not isinstance(event := connection.next_event(), ConnectionClosed):
            events.append(event)
    except RemoteProtocolError as broken:
        error = str(broken)
        with pytest.raises(RemoteProtocolError, match=re.escape(error)):
            connection.next_event()
    for event in events:
        assert isinstance(event, TtrpcRequest | TtrpcResponse | RefusedMessage)
        if isinstance(event, TtrpcRequest):
            assert connection.send(TtrpcResponse(event.stream_id, Code.UNIMPLEMENTED))
    return events, error


@given(ROLES, st.integers(0, 4), garbage(), FRAGMENTS)
def test_garbage_becomes_events_or_a_remote_error_and_the_same_in_every_fragmentation(
    role, calls, data, fragments
):
    whole = outcome(role, calls, data, [len(data)])
    assert outcome(role, calls, data, [1]) == whole
    assert outcome(role, calls, data, fragments) == whole


def test_random_changes_of_good_bytes_become_events_or_a_remote_error():
    source = random.Random(20_240_229)
    runtime = Connection(Role.RUNTIME)
    good = b"".join(runtime.send(runtime.request("service", "Method", b"x" * size)) for size in (0, 30, 5000))
    for _ in range(2000):
        bad = bytearray(good)
        for _ in range(source.randint(1, 4)):
            bad[source.randrange(len(bad)) if source.random() < 0.5 else source.randrange(60)] = (
                source.randrange(256)
            )
        outcome(Role.PLUGIN, 1, bytes(bad), [source.randint(1, 6000)])


# ---- Envelopes against the library -------------------------------------------------------------------


# Only groups (wire types 3 and 4) are the library's alone.
GROUP = re.compile("wire type 3")


def read(reader, body):
    """What we read; None for a group."""
    try:
        return reader(1, bytearray(body))
    except UndecodableError as error:
        if not GROUP.search(str(error)):
            raise
        return None


@given(st.binary(max_size=40) | BODIES)
def test_requests_are_read_as_the_library_reads_them(body):
    try:
        library = ttrpc_messages.Request.FromString(body)
    except DecodeError:
        with pytest.raises(UndecodableError):
            request_from(1, bytearray(body))
        return
    ours = read(request_from, body)
    if ours is None:
        return
    metadata = tuple((pair.key, pair.value) for pair in library.metadata)
    assert ours == TtrpcRequest(
        1, library.service, library.method, library.payload, library.timeout_nano, metadata
    )


@given(st.binary(max_size=40) | BODIES)
def test_responses_are_read_as_the_library_reads_them(body):
    try:
        library = ttrpc_messages.Response.FromString(body)
    except DecodeError:
        # We skip the details of a status, and with them what is wrong in there.
        try:
            response_from(1, bytearray(body))
        except UndecodableError:
            return
        assert b"\x1a" in body
        return
    ours = read(response_from, body)
    if ours is None:
        return
    code = Code(library.status.code) if library.status.code in list(Code) else Code.UNKNOWN
    assert ours == TtrpcResponse(1, code, library.status.message, library.payload)


# ---- Memory ------------------------------------------------------------------------------------------


def call(stream_id, body, length=None):
    message = struct.pack(">IIBB", len(body) if length is None else length, stream_id, 1, 0) + body
    return struct.pack(">II", 1, len(message)) + message


BIG = ttrpc_messages.Request(payload=bytes(MAX_MESSAGE_BYTES - 5)).SerializeToString()
MANY_FIELDS = b"\x2a\x00" * (MAX_MESSAGE_BYTES // 2)
FLOODS = {
    # name: (one message with this stream id, how many of them)
    "requests that nobody answers": (lambda stream_id: call(stream_id, b""), 20_000),
    "the largest requests that nobody answers": (lambda stream_id: call(stream_id, BIG), 40),
    "requests over the limit": (lambda stream_id: call(stream_id, bytes(5 << 20)), 40),
    "metadata without end": (lambda stream_id: call(stream_id, MANY_FIELDS), 20),
    "answers to nothing": (
        lambda _: struct.pack(">IIIIBB", 2, (1 << 20) + 10, 1 << 20, 1, 2, 0) + bytes(1 << 20),
        40,
    ),
    "frames of nobody": (lambda _: struct.pack(">II", 9, 1 << 20) + bytes(1 << 20), 40),
    "empty frames": (lambda _: struct.pack(">II", 1, 0), 20_000),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_does_not_grow_what_is_kept(flood):
    make, count = FLOODS[flood]
    connection = Connection(Role.PLUGIN)
    kept = []  # what an application that never answers would hold
    tracemalloc.start()
    try:
        for number in range(count):
            data = make(2 * number + 1)
            tracemalloc.reset_peak()
            for at in range(0, len(data), 1 << 18):
                connection.receive_data(data[at : at + (1 << 18)])
                while (event := connection.next_event()) is not NEED_DATA:
                    if isinstance(event, TtrpcRequest):
                        kept.append(event)
        peak = tracemalloc.get_traced_memory()[1]
    except RemoteProtocolError:
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(kept) <= MAX_UNANSWERED_REQUESTS
    assert sum(len(event.payload) for event in kept) <= MAX_UNANSWERED_BYTES
    # The unanswered requests, the message that the peer's bytes come from, and one that is put together.
    assert peak <= MAX_UNANSWERED_BYTES + 4 * MAX_MESSAGE_BYTES + (1 << 20)


def test_what_was_read_is_not_kept_by_a_caller_that_never_drains_to_the_end():
    connection = Connection(Role.PLUGIN)
    body = ttrpc_messages.Request(payload=bytes(20_000)).SerializeToString()
    connection.receive_data(call(1, body))
    tracemalloc.start()
    try:
        for number in range(1, 500):
            connection.receive_data(call(2 * number + 1, body))
            event = connection.next_event()
            assert event.stream_id == 2 * number - 1
            connection.send(TtrpcResponse(event.stream_id))
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


@given(ROLES, st.text(max_size=5), st.text(max_size=5), st.integers(), st.text(max_size=5))
def test_sending_gives_bytes_or_a_local_error(role, service, method, timeout_ns, key):
    connection = Connection(role)
    try:
        sent = connection.send(connection.request(service, method, b"", timeout_ns, ((key, ""),)))
    except LocalProtocolError:
        return
    peer = Connection(role.peer)
    peer.receive_data(sent)
    assert peer.next_event() == TtrpcRequest(1, service, method, b"", timeout_ns, ((key, ""),))

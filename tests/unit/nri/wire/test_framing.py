import re
import struct

import pytest

from bayplan.errors import RemoteProtocolError
from bayplan.nri.wire.connection import IGNORE, READ, MessageReader, MessageType, message
from bayplan.nri.wire.connection_events import (
    FIRST_FRAME_BYTES,
    MAX_BACKLOG_BYTES,
    MAX_FRAME_BYTES,
    MESSAGE_HEADER_BYTES,
)


def cut(data):
    """The frames in the bytes, read independently of the code under test."""
    found = []
    while data:
        connection_id, size = struct.unpack(">II", data[:8])
        found.append((connection_id, data[8 : 8 + size]))
        data = data[8 + size :]
    return found


def framed(connection_id, *parts):
    """The frames of a request on stream 7 whose body has these parts; each connection, and all bytes."""
    frames = cut(message(connection_id, 7, MessageType.REQUEST, parts))
    return frames, b"".join(payload for _, payload in frames)


FITTING = FIRST_FRAME_BYTES - MESSAGE_HEADER_BYTES


@pytest.mark.parametrize("size", [0, 1, 10, FITTING - 1, FITTING])
def test_what_fits_the_first_frame_is_one_frame(size):
    frames, whole = framed(1, b"x" * size)
    assert frames == [(1, whole)]
    assert whole == struct.pack(">IIBB", size, 7, 1, 0) + b"x" * size


@pytest.mark.parametrize("size", [FITTING + 1, 2 * FIRST_FRAME_BYTES, 2 * FIRST_FRAME_BYTES + 1, 4 << 20])
def test_anything_longer_is_exactly_two_frames_and_the_first_is_full(size):
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    frames, whole = framed(2, body[:10], body[10:])
    assert frames == [(2, whole[:FIRST_FRAME_BYTES]), (2, whole[FIRST_FRAME_BYTES:])]
    assert whole == struct.pack(">IIBB", size, 7, 1, 0) + body


def sent(stream_id, body=b""):
    """A request, without its frame."""
    return struct.pack(">IIBB", len(body), stream_id, 1, 0) + body


@pytest.fixture
def reader():
    return MessageReader({1: lambda _: READ, 2: lambda header: READ if header.stream_id else IGNORE})


def taken(reader):
    """Connection, stream and body of the next message, None without one."""
    found = reader.next_message()
    return None if found is None else (found[0], found[1].stream_id, bytes(found[3]))


def test_nothing_is_next_before_its_last_byte_is_there(reader, raw):
    for byte in raw.frame(1, sent(5, b"abc"))[:-1]:
        reader.receive(bytes((byte,)))
        assert taken(reader) is None
        assert not (reader.between_frames and reader.between_messages)
    reader.receive(b"c")
    assert taken(reader) == (1, 5, b"abc")
    assert taken(reader) is None
    assert reader.between_frames
    assert reader.between_messages


def test_messages_are_joined_over_frames_and_cut_within_them(reader, raw):
    first, second, third = sent(1, b"abc"), sent(3), sent(5, b"def")
    reader.receive(raw.frame(1, first + second[:4]) + raw.frame(2, third) + raw.frame(1, second[4:]))
    assert [taken(reader) for _ in range(4)] == [(1, 1, b"abc"), (2, 5, b"def"), (1, 3, b""), None]


def test_what_is_not_to_be_read_is_dropped_as_it_arrives(reader, raw):
    reader.receive(raw.frame(2, sent(0, b"x" * 100)[:50]))
    assert taken(reader) is None
    assert not reader.between_messages
    reader.receive(raw.frame(2, b"x" * 60 + sent(9, b"y")))
    assert [taken(reader) for _ in range(2)] == [(2, 0, b""), (2, 9, b"y")]


def test_payload_for_unknown_connections_is_dropped_as_it_arrives(reader, raw):
    reader.receive(struct.pack(">II", 7, 40 * (MAX_BACKLOG_BYTES // 100)))
    for _ in range(40):
        reader.receive(b"x" * (MAX_BACKLOG_BYTES // 100))
        assert taken(reader) is None
    assert reader.between_frames
    reader.receive(raw.frame(0, b"reserved") + raw.frame(1, sent(3)))
    assert taken(reader) == (1, 3, b"")


def test_empty_frames_are_nothing(reader, raw):
    reader.receive(raw.frame(1, b"") * 150 + raw.frame(7, b"") + raw.frame(2, sent(1, b"a")))
    assert taken(reader) == (2, 1, b"a")


@pytest.mark.parametrize("connection_id", [0, 1, 7])
def test_a_frame_over_the_limit_is_rejected_on_its_header(reader, connection_id):
    reader.receive(struct.pack(">II", connection_id, MAX_FRAME_BYTES))
    assert taken(reader) is None
    fresh = MessageReader({})
    fresh.receive(struct.pack(">II", connection_id, MAX_FRAME_BYTES + 1))
    with pytest.raises(RemoteProtocolError) as caught:
        fresh.next_message()
    assert caught.value.subject == f"connection {connection_id}"
    assert {str(MAX_FRAME_BYTES), str(MAX_FRAME_BYTES + 1)} <= set(re.findall(r"\d+", caught.value.problem))

import struct

import pytest

from bayplan.nri.wire import FrameTooLargeError
from bayplan.nri.wire.connection_events import FIRST_FRAME_BYTES, MAX_FRAME_BYTES
from bayplan.nri.wire.framing import FrameReader, frames


def cut(data):
    """The frames in the bytes, read independently of the code under test."""
    found = []
    while data:
        connection_id, size = struct.unpack(">II", data[:8])
        found.append((connection_id, data[8 : 8 + size]))
        data = data[8 + size :]
    return found


@pytest.mark.parametrize("size", [0, 1, 10, FIRST_FRAME_BYTES - 1, FIRST_FRAME_BYTES])
def test_what_fits_the_first_frame_is_one_frame(size):
    assert cut(frames(1, (b"x" * size,))) == [(1, b"x" * size)]


@pytest.mark.parametrize(
    "size", [FIRST_FRAME_BYTES + 1, 2 * FIRST_FRAME_BYTES, 2 * FIRST_FRAME_BYTES + 1, 4 << 20]
)
def test_anything_longer_is_exactly_two_frames_and_the_first_is_full(size):
    message = bytes(range(256)) * (size // 256 + 1)
    message = message[:size]
    assert cut(frames(2, (message[:10], message[10:]))) == [
        (2, message[:FIRST_FRAME_BYTES]),
        (2, message[FIRST_FRAME_BYTES:]),
    ]


@pytest.fixture
def reader():
    return FrameReader((1, 2))


def test_nothing_is_next_before_a_byte_of_payload_is_there(reader):
    for byte in struct.pack(">II", 1, 3):
        reader.receive(bytes((byte,)))
        assert reader.connection() is None
    assert not reader.between_frames
    reader.receive(b"a")
    assert reader.connection() == 1
    assert reader.take(10) == b"a"
    assert reader.connection() is None


def test_take_never_crosses_a_frame(reader, raw):
    reader.receive(raw.frame(1, b"abc") + raw.frame(2, b"def"))
    assert reader.connection() == 1
    assert reader.take(2) == b"ab"
    assert reader.connection() == 1
    assert reader.take(2) == b"c"
    assert reader.connection() == 2
    assert reader.skip(2) == 2
    assert reader.take(9) == b"f"
    assert reader.connection() is None
    assert reader.between_frames


def test_payload_for_unknown_connections_is_dropped_as_it_arrives(reader, raw):
    reader.receive(struct.pack(">II", 7, 1_000_000))
    for _ in range(10):
        reader.receive(b"x" * 100_000)
        assert reader.connection() is None
        assert reader.backlog_bytes == 0
    assert reader.between_frames
    reader.receive(raw.frame(0, b"reserved") + raw.frame(1, b"a"))
    assert reader.connection() == 1


def test_empty_frames_are_nothing(reader, raw):
    reader.receive(raw.frame(1, b"") * 150 + raw.frame(7, b"") + raw.frame(2, b"a"))
    assert reader.connection() == 2
    assert reader.take(1) == b"a"


@pytest.mark.parametrize("connection_id", [0, 1, 7])
def test_a_frame_over_the_limit_is_rejected_on_its_header(reader, connection_id):
    reader.receive(struct.pack(">II", connection_id, MAX_FRAME_BYTES))
    assert reader.connection() is None
    fresh = FrameReader((1, 2))
    fresh.receive(struct.pack(">II", connection_id, MAX_FRAME_BYTES + 1))
    with pytest.raises(FrameTooLargeError) as caught:
        fresh.connection()
    assert (caught.value.connection_id, caught.value.size_bytes) == (connection_id, MAX_FRAME_BYTES + 1)
    assert str(MAX_FRAME_BYTES) in str(caught.value)

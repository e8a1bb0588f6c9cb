"""Two connections back to back, and bytes made by hand.

Every test that receives does so twice: all bytes at once and one at a time.
"""

import struct
from collections.abc import Callable

import pytest

from bayplan.nri.wire import (
    NEED_DATA,
    Connection,
    ConnectionClosed,
    Incoming,
    Role,
    TtrpcRequest,
    TtrpcResponse,
)

SERVE, CALL = 1, 2  # the logical connections of a plugin


def drain(connection: Connection) -> list[Incoming]:
    events = []
    while (event := connection.next_event()) is not NEED_DATA:
        events.append(event)
        if isinstance(event, ConnectionClosed):
            break
    return events


def at_once(connection: Connection, data: bytes) -> list[Incoming]:
    connection.receive_data(data)
    return drain(connection)


def byte_by_byte(connection: Connection, data: bytes) -> list[Incoming]:
    events = []
    for at in range(len(data)):
        connection.receive_data(data[at : at + 1])
        events += drain(connection)
    return events


Deliver = Callable[[Connection, bytes], list[Incoming]]


@pytest.fixture(params=[at_once, byte_by_byte], ids=["whole", "bytewise"])
def deliver(request: pytest.FixtureRequest) -> Deliver:
    return request.param


class ConnectionPair:
    """A plugin and a runtime; what one sends, the other decodes."""

    def __init__(self, deliver: Deliver) -> None:
        self.deliver = deliver
        self.ends = {role: Connection(role) for role in Role}

    def __getitem__(self, role: Role) -> Connection:
        return self.ends[role]

    def send(self, role: Role, event: TtrpcRequest | TtrpcResponse) -> list[Incoming]:
        """What the other end sees."""
        return self.deliver(self.ends[role.peer], self.ends[role].send(event))


@pytest.fixture
def pair(deliver: Deliver) -> ConnectionPair:
    return ConnectionPair(deliver)


@pytest.fixture
def plugin() -> Connection:
    return Connection(Role.PLUGIN)


def frame(connection_id: int, payload: bytes) -> bytes:
    return struct.pack(">II", connection_id, len(payload)) + payload


def message(stream_id: int, kind: int, body: bytes = b"", flags: int = 0, length: int | None = None) -> bytes:
    return struct.pack(">IIBB", len(body) if length is None else length, stream_id, kind, flags) + body


class Raw:
    """Bytes as they are on the wire, right or wrong."""

    REQUEST, RESPONSE, DATA = 1, 2, 3
    SERVE, CALL = SERVE, CALL
    frame = staticmethod(frame)
    message = staticmethod(message)
    drain = staticmethod(drain)

    @staticmethod
    def call(stream_id: int, body: bytes = b"\x0a\x01s\x12\x01m", **header: int) -> bytes:
        """A request to the plugin."""
        return frame(SERVE, message(stream_id, 1, body, **header))

    @staticmethod
    def answer(stream_id: int, body: bytes = b"", kind: int = 2, **header: int) -> bytes:
        """A response to the plugin."""
        return frame(CALL, message(stream_id, kind, body, **header))


@pytest.fixture
def raw() -> type[Raw]:
    return Raw

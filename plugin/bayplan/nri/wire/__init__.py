"""The wire protocol between a container runtime and an NRI plugin: a multiplexer and ttRPC, sans-IO.

This package turns bytes into events and events into bytes, for either end of a connection. It opens no
socket, starts no thread, reads no clock and never waits; timeouts, reconnecting and the order in which
things are written belong to the caller. It does not look into payloads: what a request asks for is the
business of ``bayplan.nri``. It does unary calls only, which is all that NRI uses.

    connection = Connection(Role.PLUGIN)
    connection.receive_data(data)                    # b"" when the peer closed
    while (event := connection.next_event()) is not NEED_DATA:
        match event:
            case Request():                          # answer: write(connection.send(Response(...)))
            case Response():                         # the answer to a call of ours
            case Refused():                          # write(event.reply)
            case ConnectionClosed():                 # stop

The package promises that no bytes of a peer lead to anything but these events or a
``RemoteProtocolError``, and that what it keeps is bounded (by the limits in ``connection_events``).
"""

from bayplan.nri.wire.connection import Connection
from bayplan.nri.wire.connection_events import (
    MAX_MESSAGE_BYTES,
    NEED_DATA,
    Code,
    ConnectionClosed,
    Incoming,
    MessageTooLargeError,
    NeedData,
    RefusedMessage,
    Role,
    TtrpcRequest,
    TtrpcResponse,
)

__all__ = [
    "MAX_MESSAGE_BYTES",
    "NEED_DATA",
    "Code",
    "Connection",
    "ConnectionClosed",
    "Incoming",
    "MessageTooLargeError",
    "NeedData",
    "RefusedMessage",
    "Role",
    "TtrpcRequest",
    "TtrpcResponse",
]

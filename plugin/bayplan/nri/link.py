"""A connection to the peer: bytes in, messages to whoever listens, messages out.

Whatever the listener does, what the peer sends is taken from the socket as it comes: a runtime that cannot
write blocks in the middle of its locks, beyond the reach of any timeout.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from bayplan.errors import RemoteProtocolError
from bayplan.nri.wire import (
    MAX_MESSAGE_BYTES,
    NEED_DATA,
    Connection,
    Refused,
    Request,
    Response,
    Role,
)

logger = logging.getLogger(__name__)

MAX_UNSENT_BYTES: Final = 2 * MAX_MESSAGE_BYTES
"""What may wait for a peer that does not read. Two answers of the largest size; there is rarely one."""


class Link(asyncio.Protocol):
    """One connection. *receive* gets each request and response, *ended* the reason, exactly once.

    ``ended`` is called when the transport has been closed for good, never before; after ``close`` or
    ``abort`` nothing more is received.
    """

    def __init__(
        self,
        role: Role,
        receive: Callable[[Request | Response], None],
        ended: Callable[[str], None],
    ) -> None:
        self.wire = Connection(role)
        self._receive = receive
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        self._why = ""

    @property
    def open(self) -> bool:
        """Whether messages can be sent."""
        return self._transport is not None and not self._why and not self._transport.is_closing()

    # ---- Called by asyncio ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the way out."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Deliver what these bytes complete."""
        if self._why:
            return
        try:
            self.wire.receive_data(data)
            while (event := self.wire.next_event()) is not NEED_DATA:
                if isinstance(event, Request | Response):
                    self._receive(event)
                elif isinstance(event, Refused):
                    logger.warning("request refused", extra={"code": event.code.name, "why": event.message})
                    self._write(event.reply)
                else:
                    self.abort("closed by the peer")
                if self._why:  # whoever received it has ended the connection
                    return
        except RemoteProtocolError as error:
            self.abort(str(error))
        except Exception:
            logger.exception("connection closed after an error of ours")
            self.abort("an error of ours")

    def eof_received(self) -> None:
        """The peer will send no more; it will not read either."""
        self.data_received(b"")

    def connection_lost(self, error: Exception | None) -> None:
        """The transport is closed."""
        self._transport = None
        if not self._why:
            self._why = str(error) if error is not None else "closed by the peer"
        self._ended(self._why)

    # ---- Called by the owner -------------------------------------------------------------------------

    def send(self, message: Request | Response) -> bool:
        """Write a message; False if there is nobody to write to any more.

        Raises:
            LocalProtocolError: the message cannot be sent; the connection is still good.
        """
        transport = self._transport
        if transport is None or not self.open:
            return False
        transport.write(self.wire.send(message))
        self._check_unsent(transport)
        return True

    def close(self, why: str) -> None:
        """End the connection once what was sent is written."""
        if not self._why:
            self._why = why
            if self._transport is not None:
                self._transport.close()

    def abort(self, why: str) -> None:
        """End the connection now."""
        self._why = self._why or why
        if self._transport is not None:
            self._transport.abort()

    def _write(self, reply: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(reply)
            self._check_unsent(self._transport)

    def _check_unsent(self, transport: asyncio.Transport) -> None:
        unsent_bytes = transport.get_write_buffer_size()
        if unsent_bytes > MAX_UNSENT_BYTES:
            self.abort(f"{unsent_bytes} bytes wait for the peer, which does not read")

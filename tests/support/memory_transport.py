"""Two transports that hand their bytes to each other: a connection without a socket.

What was written is delivered by the event loop, in order, whole or in pieces of a given size. ``written``
keeps every byte, so that a test can look at it.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from bayplan.errors import UnavailableError


class MemoryTransport(asyncio.Transport):
    """One end. Make them with `pair`."""

    def __init__(self, protocol: asyncio.Protocol, piece_bytes: int | None) -> None:
        super().__init__()
        self.written = bytearray()
        self.peer: MemoryTransport | None = None
        self._protocol = protocol
        self._piece_bytes = piece_bytes
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._paused = False
        self._closing = False
        self._scheduled = False

    # ---- What a protocol uses ------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes to the other end."""
        if self._closing or not data:
            return
        self.written += data
        if self.peer is not None:
            self.peer.take(bytes(data), self._piece_bytes)

    def is_closing(self) -> bool:
        """Whether it was closed from this end, or by the other."""
        return self._closing

    def close(self) -> None:
        """Close both ends; what was written before is still delivered."""
        if not self._closing:
            self._closing = True
            loop = asyncio.get_running_loop()
            loop.call_soon(self._protocol.connection_lost, None)
            if self.peer is not None:
                self.peer.take(b"", None)

    def abort(self) -> None:
        """The same: nothing waits on this side."""
        self.close()

    def get_write_buffer_size(self) -> int:
        """Bytes that the other end has not taken yet."""
        return self.peer.waiting_bytes if self.peer is not None else 0

    def pause_reading(self) -> None:
        """Leave what comes where it is."""
        self._paused = True

    def resume_reading(self) -> None:
        """Take it again."""
        self._paused = False
        self._schedule()

    # ---- What the other end uses ---------------------------------------------------------------------

    @property
    def waiting_bytes(self) -> int:
        """Bytes that have come and were not delivered."""
        return self._inbox_bytes

    def take(self, data: bytes, piece_bytes: int | None) -> None:
        """Queue bytes from the other end; none for its end."""
        size = piece_bytes or len(data) or 1
        self._inbox.extend(data[at : at + size] for at in range(0, max(len(data), 1), size))
        self._inbox_bytes += len(data)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self._paused and self._inbox:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        if self._paused or self._closing or not self._inbox:
            return
        piece = self._inbox.popleft()
        self._inbox_bytes -= len(piece)
        if piece:
            self._protocol.data_received(piece)
        else:
            self._protocol.eof_received()
            self.close()
        self._schedule()


def pair(
    one: asyncio.Protocol, other: asyncio.Protocol, piece_bytes: int | None = None
) -> tuple[MemoryTransport, MemoryTransport]:
    """Connect two protocols. Each write arrives in pieces of *piece_bytes*, else as it was written."""
    first, second = MemoryTransport(one, piece_bytes), MemoryTransport(other, piece_bytes)
    first.peer, second.peer = second, first
    one.connection_made(first)
    other.connection_made(second)
    return first, second


class MemoryEndpoint:
    """A way to a runtime without a socket: *accept* gives its end of a new connection; *piece_bytes* cuts
    what is sent in either direction."""

    def __init__(
        self, accept: Callable[[], asyncio.Protocol], piece_bytes: int | None = None, *, again: bool = True
    ) -> None:
        self._accept = accept
        self.refusing = False
        self.attempts = 0
        self.plugin_side: list[MemoryTransport] = []
        self.runtime_side: list[MemoryTransport] = []
        self._piece_bytes = piece_bytes
        self._again = again

    @property
    def again(self) -> bool:
        """Whether to connect again."""
        return self._again

    async def connect(self, protocol: asyncio.Protocol) -> None:
        """Connect to the runtime, unless it is ``refusing``."""
        self.attempts += 1
        if self.refusing:
            raise UnavailableError("memory", "nobody listens")
        mine, theirs = pair(protocol, self._accept(), self._piece_bytes)
        self.plugin_side.append(mine)
        self.runtime_side.append(theirs)

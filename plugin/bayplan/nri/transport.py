"""Where the runtime is, and the bytes to and from it: the only module here that names a socket; and the link
to the peer: bytes in, messages to whoever listens, messages out.

An OSError does not leave it: not being able to connect is an UnavailableError, losing a connection a
reason.

Whatever the listener does, what the peer sends is taken from the socket as it comes: a runtime that
cannot write blocks in the middle of its locks, beyond the reach of any timeout.
"""

import asyncio
import logging
import os
import re
import socket
import stat
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from msgspec import Struct

from bayplan.errors import ConfigError, Problem, RemoteProtocolError, UnavailableError
from bayplan.nri.wire import (
    MAX_MESSAGE_BYTES,
    NEED_DATA,
    Connection,
    RefusedMessage,
    Role,
    TtrpcRequest,
    TtrpcResponse,
)
from bayplan.quantity import whole_number

DEFAULT_SOCKET: Final = "/var/run/nri/nri.sock"

_SOURCE: Final = "plugin identity"
_LAUNCHER: Final = "environment given by the runtime"
_MAX_FD: Final = (1 << 31) - 1


class Identity(Struct, frozen=True):
    """The name under which a plugin registers. Runtimes ask plugins in the order of *index*, as text.

    Raises:
        ConfigError: NRI would not take it.
    """

    name: str
    index: str

    def __post_init__(self) -> None:
        problems = []
        if not re.fullmatch(r"[a-zA-Z0-9_.+-]+", self.name):
            problems.append(Problem("name", repr(self.name), "letters, digits and any of _.+-"))
        if not re.fullmatch(r"[0-9]{2}", self.index):
            problems.append(Problem("index", repr(self.index), "two digits"))
        if problems:
            raise ConfigError(_SOURCE, tuple(problems))

    def __str__(self) -> str:
        return f"{self.index}-{self.name}"


class Endpoint(Protocol):
    """A place to connect to."""

    @property
    def again(self) -> bool:
        """Whether it makes sense to connect more than once."""

    async def connect(self, protocol: asyncio.Protocol) -> None:
        """Connect, and pass what comes to *protocol*.

        Raises:
            UnavailableError: nothing listens there, or we are not allowed to connect.
        """


class UnixSocket(Struct, frozen=True):
    """The socket on which a runtime listens for plugins."""

    path: str = DEFAULT_SOCKET

    @property
    def again(self) -> bool:
        """The runtime may restart at any time."""
        return True

    async def connect(self, protocol: asyncio.Protocol) -> None:
        """Connect to the socket."""
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: protocol, self.path)
        except OSError as error:
            raise UnavailableError(self.path, _reason(error)) from error

    def __str__(self) -> str:
        return self.path


class InheritedSocket:
    """A connection that we were started with: good once."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._used = False

    @property
    def again(self) -> bool:
        """The runtime starts another process next time."""
        return False

    async def connect(self, protocol: asyncio.Protocol) -> None:
        """Take the connection."""
        if self._used:
            raise UnavailableError(str(self), "was used up")
        try:
            if not stat.S_ISSOCK(os.fstat(self._fd).st_mode):
                raise UnavailableError(str(self), "is not a socket")
            os.set_inheritable(self._fd, False)  # noqa: FBT003 - the only argument it has
            inherited = socket.socket(fileno=self._fd)
            if (inherited.family, inherited.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
                inherited.detach()
                raise UnavailableError(str(self), "is not a unix stream socket")
            inherited.setblocking(False)  # noqa: FBT003 - the standard library's signature
            self._used = True
            await asyncio.get_running_loop().create_unix_connection(lambda: protocol, sock=inherited)
        except OSError as error:
            raise UnavailableError(str(self), _reason(error)) from error

    def __str__(self) -> str:
        return f"file descriptor {self._fd}"


def launched_by_runtime(environment: Mapping[str, str]) -> tuple[Identity, InheritedSocket] | None:
    """What a runtime tells a plugin that it starts from its plugin directory; None: it did not start us.

    The environment has these three variables and nothing else: no PATH, no HOME.

    Raises:
        ConfigError: it did, and they are not what they should be.
    """
    text = environment.get("NRI_PLUGIN_SOCKET")
    if text is None:
        return None
    number = whole_number(text)
    if number is None or number > _MAX_FD:
        problem = Problem("NRI_PLUGIN_SOCKET", repr(text), "the number of a file descriptor")
        raise ConfigError(_LAUNCHER, (problem,))
    identity = Identity(environment.get("NRI_PLUGIN_NAME", ""), environment.get("NRI_PLUGIN_IDX", ""))
    return identity, InheritedSocket(number)


def _reason(error: OSError) -> str:
    """The system's words, without number and path."""
    return error.strerror or str(error)


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
        receive: Callable[[TtrpcRequest | TtrpcResponse], None],
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
        """Keep the transport to write to."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Deliver what these bytes complete."""
        if self._why:
            return
        try:
            self.wire.receive_data(data)
            while (event := self.wire.next_event()) is not NEED_DATA:
                if isinstance(event, TtrpcRequest | TtrpcResponse):
                    self._receive(event)
                elif isinstance(event, RefusedMessage):
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

    def send(self, message: TtrpcRequest | TtrpcResponse) -> bool:
        """Write a message; False if the connection has ended.

        Raises:
            LocalProtocolError: the message cannot be sent; the connection is still good.
        """
        transport = self._transport
        if transport is None or self._why or transport.is_closing():
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

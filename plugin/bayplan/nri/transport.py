"""Where the runtime is, and the bytes to and from it. The only module here that names a socket.

An OSError does not leave it: not being able to connect is an UnavailableError, losing a connection a reason.
"""

import asyncio
import os
import re
import socket
import stat
from collections.abc import Mapping
from typing import Final, Protocol

from msgspec import Struct

from bayplan.errors import ConfigError, Problem, UnavailableError
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
        """Connect, and let *protocol* have what comes.

        Raises:
            UnavailableError: there is nobody, or we are not allowed to.
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

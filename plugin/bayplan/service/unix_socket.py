"""A unix socket of the daemon's: its place in the file system, who is the peer, serving clients until closed.

Only root and the daemon's own user get in: the file has mode 0600, and the kernel says who connects. What
is spoken there: `bayplan.service.admin` and `bayplan.service.oci_socket`.
"""

import abc
import asyncio
import contextlib
import os
import socket
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bayplan.errors import HostError, UnavailableError

_PEER_CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred of unix(7): pid, uid, gid."""

_BACKLOG: Final = 256
"""Connections that wait to be accepted; one more is told EAGAIN at once."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected, as the kernel saw it then."""

    pid: int
    uid: int

    @classmethod
    def of(cls, connection: socket.socket) -> "Peer":
        """The peer of *connection*."""
        size = _PEER_CREDENTIALS.size
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        pid, uid, _ = _PEER_CREDENTIALS.unpack(credentials)
        return cls(pid, uid)

    def why_unwelcome(self) -> str | None:
        """Why this peer gets no answer; None if it gets one."""
        own = os.geteuid()
        if self.uid in (0, own):
            return None
        return f"user {self.uid} may not ask; root and user {own} may"


class Place:
    """The path of a listening socket. *name* is what messages call it, for instance "admin socket"."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self._name = name
        self._identity: tuple[int, int] | None = None

    def take(self) -> socket.socket:
        """A listening socket at the path.

        Raises:
            UnavailableError: a living daemon serves there, or something that is not a socket lies there.
            HostError: the place cannot be taken.
        """
        try:
            listener = self._listen()
            self._identity = self._found()
        except OSError as error:
            problem = f"the {self._name} cannot be made: {error.strerror}"
            raise HostError(str(self.path), problem) from error
        return listener

    def give_up(self) -> None:
        """Remove the socket file, unless it is somebody else's by now."""
        with contextlib.suppress(OSError):
            if self._found() == self._identity:
                self.path.unlink()

    def _listen(self) -> socket.socket:
        """It gets its name in one step, with its mode set: nobody else gets in."""
        self._check()
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh = self.path.with_name(f"{self.path.name}.new")
        fresh.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.bind(str(fresh))
            # Between bind and chmod nobody is let in: nothing listens yet.
            fresh.chmod(0o600)
            listener.listen()
            fresh.rename(self.path)
        except OSError:
            listener.close()
            fresh.unlink(missing_ok=True)
            raise
        return listener

    def _check(self) -> None:
        """Only nothing, or the socket of a daemon that is gone, may be replaced."""
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(status.st_mode):
            problem = "there is a file that is not a socket; remove it or choose another path"
            raise UnavailableError(str(self.path), problem)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(self.path))
            except ConnectionRefusedError:
                return
            except TimeoutError:
                pass
        raise UnavailableError(str(self.path), f"another daemon serves this {self._name}")

    def _found(self) -> tuple[int, int]:
        status = self.path.lstat()
        return status.st_dev, status.st_ino


class SocketServer(abc.ABC):
    """Serves clients at *place* from `start` to `close`, each in a task of its own. What they are told is the
    subclass's. No line of a client may be longer than *line_bytes*; ``clients`` are being served."""

    def __init__(self, place: Place, line_bytes: int, most_clients: int) -> None:
        self.clients: set[asyncio.Task[None]] = set()
        self._place = place
        self._line_bytes = line_bytes
        self._most_clients = most_clients
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Take the socket's place and begin to serve.

        Raises:
            UnavailableError: a living daemon serves there.
            HostError: the place cannot be taken.
        """
        listener = self._place.take()
        self._server = await asyncio.start_unix_server(
            self._accept, sock=listener, limit=self._line_bytes, backlog=_BACKLOG
        )

    async def close(self) -> None:
        """Stop serving, remove the socket file unless it is somebody else's by now, part from the clients."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        self._place.give_up()
        for client in self.clients:
            client.cancel()
        await asyncio.gather(*self.clients, return_exceptions=True)

    def why_full(self) -> str | None:
        """Why one client more is not served; None if it is."""
        full = len(self.clients) > self._most_clients
        return f"more than {self._most_clients} clients at once; try again" if full else None

    @abc.abstractmethod
    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client to its end. Raises nothing."""

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = asyncio.get_running_loop().create_task(self._meet(reader, writer))
        self.clients.add(client)
        client.add_done_callback(self.clients.discard)

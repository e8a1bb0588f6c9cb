"""A unix socket of the daemon's: its place in the file system, who is the peer, serving clients until closed.

Only root and the daemon's own user get in: the file has mode 0600, and the kernel says who connects. What
is spoken there: `bayplan.admin.server` and `bayplan.oci.server`.
"""

import abc
import asyncio
import contextlib
import logging
import os
import socket
import stat
import struct
from pathlib import Path
from typing import Final

from msgspec import Struct

from bayplan.errors import HostError, UnavailableError

logger = logging.getLogger(__name__)

_PEER_CREDENTIALS: Final = struct.Struct("3i")
"""struct ucred of unix(7): pid, uid, gid."""

_BACKLOG: Final = 256
"""Connections that wait to be accepted; one more is told EAGAIN at once."""

MOST_SILENCE_S: Final = 0.5
"""So long a client may say nothing while others wait for its place. Ours say everything at once."""

_ACCEPT_PAUSE_S: Final = 1.0
"""After the kernel had no descriptor or memory for another client."""


class Peer(Struct, frozen=True):
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
            listener.listen(_BACKLOG)
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
    subclass's. No line of a client may be longer than *line_bytes*.

    No more than *most_clients* are accepted at once, so that no more descriptors are taken. All others wait
    in the kernel's queue, and those who say nothing lose their places to them.
    """

    def __init__(
        self, place: Place, line_bytes: int, most_clients: int, most_silence_s: float = MOST_SILENCE_S
    ) -> None:
        self.clients: set[asyncio.Task[None]] = set()
        """Who is being served."""
        self._place = place
        self._line_bytes = line_bytes
        self._most_clients = most_clients
        self._most_silence_s = most_silence_s
        self._listener: socket.socket | None = None
        self._silent: dict[asyncio.Task[None], float] = {}
        """The clients that have not said what they want, with the loop's time of their coming; the first that
        came stand first."""
        self._pause: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Take the socket's place and begin to serve.

        Raises:
            UnavailableError: a living daemon serves there.
            HostError: the place cannot be taken.
        """
        self._listener = self._place.take()
        self._listen()

    async def close(self) -> None:
        """Stop serving, remove the socket file unless it is somebody else's by now, part from the clients."""
        listener = self._listener
        if listener is None:
            return
        self._do_not_listen()
        self._listener = None
        listener.close()
        self._place.give_up()
        for client in self.clients:
            client.cancel()
        await asyncio.gather(*self.clients, return_exceptions=True)

    def heard(self) -> None:
        """The client of this task has said what it wants, and keeps its place from now on."""
        client = asyncio.current_task()
        assert client is not None
        self._silent.pop(client, None)

    @abc.abstractmethod
    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client to its end, and say when it was `heard`. Raises nothing."""

    def _listen(self) -> None:
        self._pause = None
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _do_not_listen(self, pause_s: float | None = None) -> None:
        """Leave the others in the kernel's queue; for so long, if that is given."""
        loop = asyncio.get_running_loop()
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        assert self._listener is not None
        loop.remove_reader(self._listener)
        if pause_s is not None:
            self._pause = loop.call_later(pause_s, self._listen)

    def _accept(self) -> None:
        """Take in one client, or wait until there is a place for it."""
        loop = asyncio.get_running_loop()
        assert self._listener is not None
        if len(self.clients) >= self._most_clients:
            self._make_room(loop.time())
            return
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            logger.error("a client could not be accepted", extra={"problem": error.strerror})  # noqa: TRY400 - expected, so that a traceback says nothing
            self._do_not_listen(_ACCEPT_PAUSE_S)
            return
        connection.setblocking(False)  # noqa: FBT003 - the only argument it has
        client = loop.create_task(self._serve_client(connection))
        self.clients.add(client)
        self._silent[client] = loop.time()
        client.add_done_callback(self._parted)

    def _make_room(self, now_s: float) -> None:
        """Part from those who have been silent for too long, and listen again when there may be a place."""
        first_s = next(iter(self._silent.values()), None)
        if first_s is None:
            self._do_not_listen()  # until one that was heard is done
            return
        self._do_not_listen(max(0.0, first_s + self._most_silence_s - now_s))
        for client in [one for one, came_s in self._silent.items() if now_s - came_s >= self._most_silence_s]:
            del self._silent[client]
            client.cancel()

    async def _serve_client(self, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(sock=connection, limit=self._line_bytes)
        except BaseException:
            connection.close()
            raise
        await self._meet(reader, writer)

    def _parted(self, client: asyncio.Task[None]) -> None:
        self.clients.discard(client)
        self._silent.pop(client, None)
        if self._listener is not None:
            self._do_not_listen()
            self._listen()

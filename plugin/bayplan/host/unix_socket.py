"""A unix socket of the daemon's: its file, the user of the peer, and serving clients until it is closed.

Only root and the daemon's own user may connect, and where a socket has a group, its members: the file's mode
says so, and the kernel says who connects. The protocols on it: `bayplan.admin.server`,
`bayplan.admin.agent_server` and `bayplan.oci.protocol`.
"""

import abc
import asyncio
import contextlib
import errno
import functools
import grp
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

_PEER_GROUPS: Final = 59
"""SO_PEERGROUPS of Linux, which Python has no name for: the supplementary groups of the peer."""

_GROUPS_BYTES: Final = 1024
"""As many as Python reads: 256 groups. Of who has more only the first one is known."""

_BACKLOG: Final = 256
"""Connections that wait to be accepted; one more gets EAGAIN at once."""

MAX_REQUEST_WAIT_S: Final = 0.5
"""A client without a request is disconnected after this time if others wait to be accepted. Our own clients
send their request at once."""

_TURNS: Final = 8
"""Turns of the event loop after which all is read that a client had sent before the first of them, even where
it has just been accepted: its task starts, its transport is made and watched, bytes are read, it goes on."""

_ACCEPT_PAUSE_S: Final = 1.0
"""After the kernel had no descriptor or memory for another client."""


class Peer(Struct, frozen=True):
    """The process that connected, as the kernel saw it then."""

    pid: int
    uid: int

    @classmethod
    def of(cls, connection: socket.socket) -> "Peer":
        """The peer of *connection*."""
        pid, uid, _ = _credentials(connection)
        return cls(pid, uid)

    def why_refused(self, connection: socket.socket | None = None, group: int | None = None) -> str | None:
        """Why this peer gets no answer; None if it gets one. A sentence for the peer. Members of *group* get
        one, too: the groups are those that the peer had when it made its *connection*."""
        own = os.geteuid()
        if self.uid in (0, own):
            return None
        if group is None or connection is None:
            return f"user {self.uid} may not ask; root and user {own} may"
        if group in _groups(connection):
            return None
        return f"user {self.uid} may not ask; root, user {own} and members of group {group} may"


def group_id(name: str) -> int | None:
    """The id of the group *name*; None where there is none."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def _credentials(connection: socket.socket) -> tuple[int, int, int]:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    pid, uid, gid = _PEER_CREDENTIALS.unpack(raw)
    return pid, uid, gid


def _groups(connection: socket.socket) -> set[int]:
    """The groups of the peer of *connection*."""
    try:
        raw = connection.getsockopt(socket.SOL_SOCKET, _PEER_GROUPS, _GROUPS_BYTES)
    except OSError as error:
        if error.errno != errno.ERANGE:
            raise
        raw = b""
    return {_credentials(connection)[2], *struct.unpack(f"={len(raw) // 4}I", raw)}


class SocketPath:
    """The path of a listening socket. *name* is what messages call it, for instance "admin socket". Members
    of *group* may connect, too; without one only its owner and root."""

    def __init__(self, path: Path, name: str, group: int | None = None) -> None:
        self.path = path
        self.group = group
        self._name = name
        self._identity: tuple[int, int] | None = None

    def listen(self) -> socket.socket:
        """A listening socket at the path.

        Raises:
            UnavailableError: another daemon serves there, or the path is a file that is not a socket.
            HostError: the socket cannot be made.
        """
        try:
            listener = self._listen()
            self._identity = self._found()
        except OSError as error:
            problem = f"the {self._name} cannot be made: {error.strerror}"
            raise HostError(str(self.path), problem) from error
        return listener

    def remove(self) -> None:
        """Remove the socket file, unless it is somebody else's by now."""
        with contextlib.suppress(OSError):
            if self._found() == self._identity:
                self.path.unlink()

    def _listen(self) -> socket.socket:
        """Bound under another name and renamed once its mode is set: nobody else can connect in between."""
        self._check()
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh = self.path.with_name(f"{self.path.name}.new")
        fresh.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.bind(str(fresh))
            # Between bind and chmod no client can connect: nothing listens yet.
            fresh.chmod(0o600)
            if self.group is not None:
                os.chown(fresh, -1, self.group)
                fresh.chmod(0o660)
            listener.listen(_BACKLOG)
            fresh.rename(self.path)
        except OSError:
            listener.close()
            fresh.unlink(missing_ok=True)
            raise
        return listener

    def _check(self) -> None:
        """Only the socket of a daemon that is gone may be replaced."""
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
    """Serves clients at *path* from `start` to `close`, each in a task of its own; a subclass implements
    `_serve_client`. No line of a client may be longer than *line_bytes*.

    No more than *max_clients* are accepted at once, so that no more descriptors are open. All others wait in
    the kernel's queue; while they do, clients that have sent no request for *max_wait_s* are disconnected. A
    request that is there and was not read, as the loop was busy for so long, is a request.
    """

    def __init__(
        self, path: SocketPath, line_bytes: int, max_clients: int, max_wait_s: float = MAX_REQUEST_WAIT_S
    ) -> None:
        self.clients: set[asyncio.Task[None]] = set()
        """Who is being served."""
        self._path = path
        self._line_bytes = line_bytes
        self._max_clients = max_clients
        self._max_wait_s = max_wait_s
        self._listener: socket.socket | None = None
        self._unopened: set[socket.socket] = set()
        """The connections that no task has begun to serve: one that is cancelled before its first step runs
        nothing."""
        self._without_request: dict[asyncio.Task[None], float] = {}
        """The clients that have not sent a request, with the loop's time when they connected, oldest
        first."""
        self._pause: asyncio.Handle | None = None

    async def start(self) -> None:
        """Make the socket and begin to serve.

        Raises:
            UnavailableError: another daemon serves there.
            HostError: the socket cannot be made.
        """
        self._listener = self._path.listen()
        self._accept_again()

    async def close(self) -> None:
        """Stop serving, remove the socket file unless it is another daemon's by now, disconnect the
        clients."""
        listener = self._listener
        if listener is None:
            return
        self._stop_accepting()
        self._listener = None
        listener.close()
        self._path.remove()
        for client in self.clients:
            client.cancel()
        await asyncio.gather(*self.clients, return_exceptions=True)

    def request_received(self) -> None:
        """The client of this task has sent its request, and is not disconnected for others from now on."""
        client = asyncio.current_task()
        assert client is not None
        self._without_request.pop(client, None)

    @abc.abstractmethod
    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client to its end; call `request_received` as soon as there is a request. Raises
        nothing."""

    def _accept_again(self) -> None:
        self._pause = None
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _stop_accepting(self, pause_s: float | None = None) -> None:
        """Accept no more clients; if *pause_s* is given, only for that time."""
        loop = asyncio.get_running_loop()
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        assert self._listener is not None
        loop.remove_reader(self._listener)
        if pause_s is not None:
            self._pause = loop.call_later(pause_s, self._accept_again)

    def _accept(self) -> None:
        """Accept one client, or wait until one of those that are served has ended."""
        loop = asyncio.get_running_loop()
        assert self._listener is not None
        if len(self.clients) >= self._max_clients:
            self._drop_waiting_clients(loop.time())
            return
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            logger.error("a client could not be accepted", extra={"problem": error.strerror})  # noqa: TRY400 - expected, so that a traceback says nothing
            self._stop_accepting(_ACCEPT_PAUSE_S)
            return
        connection.setblocking(False)  # noqa: FBT003 - the only argument it has
        client = loop.create_task(self._serve_connection(connection))
        self.clients.add(client)
        self._unopened.add(connection)
        self._without_request[client] = loop.time()
        client.add_done_callback(functools.partial(self._client_ended, connection))

    def _drop_waiting_clients(self, now_s: float) -> None:
        """Have the clients disconnected that have sent no request for too long, and accept again when the
        next one will have."""
        first_s = next(iter(self._without_request.values()), None)
        if first_s is None:
            self._stop_accepting()  # until one that is served has ended
            return
        latest_s = now_s - self._max_wait_s
        late = [client for client, came_s in self._without_request.items() if came_s <= latest_s]
        if late:
            self._stop_accepting()
            self._drop_silent(late, _TURNS)
        else:
            self._stop_accepting(first_s - latest_s)

    def _drop_silent(self, late: list[asyncio.Task[None]], turns: int) -> None:
        """Disconnect those of *late* that have still sent no request after so many turns of the loop."""
        if turns:
            self._pause = asyncio.get_running_loop().call_soon(self._drop_silent, late, turns - 1)
            return
        for client in late:
            if self._without_request.pop(client, None) is not None:
                client.cancel()
        self._accept_again()

    async def _serve_connection(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=self._line_bytes)
        self._unopened.discard(connection)
        await self._serve_client(reader, writer)

    def _client_ended(self, connection: socket.socket, client: asyncio.Task[None]) -> None:
        if connection in self._unopened:
            self._unopened.discard(connection)
            connection.close()
        self.clients.discard(client)
        self._without_request.pop(client, None)
        if self._listener is not None:
            self._stop_accepting()
            self._accept_again()

"""Unix sockets of the guest as Unix sockets of this machine, so that clients run here, not emulated.

One virtio-serial port carries all connections, in frames: stream (4 bytes), kind (1), length of the payload
(4), all little-endian, and the payload. OPEN names the socket in the guest, SEND carries bytes, END closes.
The other end is in `guest/agent.py`. A connection that one side closes is closed on the other.
"""

import contextlib
import itertools
import socket
import struct
import threading
from pathlib import Path

FRAME = struct.Struct("<IBI")
OPEN, SEND, END = range(3)
CHUNK_BYTES = 1 << 16


class Forwarding:
    """`port` is connected to the agent's port; the sockets are made in `directory`, on first use."""

    def __init__(self, port: socket.socket, directory: Path) -> None:
        self._port = port
        self._directory = directory
        self._streams = itertools.count(1)
        # Nobody who reads from the port may wait for somebody who writes to it.
        self._writing = threading.Lock()
        self._opening = threading.Lock()
        self._connections: dict[int, socket.socket] = {}
        self._listeners: dict[str, socket.socket] = {}
        threading.Thread(target=self._receive, name="guest-streams", daemon=True).start()

    def forwarded(self, guest_path: str) -> Path:
        """The path here of a socket in the guest. Whether something listens there shows with the first
        connection: it is closed at once if not.
        """
        path = self._directory / guest_path.strip("/").replace("/", "-")
        with self._opening:
            if guest_path not in self._listeners:
                listener = self._listeners[guest_path] = socket.socket(socket.AF_UNIX)
                listener.bind(str(path))
                listener.listen()
                threading.Thread(target=self._accept, args=(listener, guest_path), daemon=True).start()
        return path

    def close(self) -> None:
        for one in (*self._listeners.values(), self._port):
            # shutdown() wakes who waits in accept() or recv(), close() alone would leave him there.
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self, listener: socket.socket, guest_path: str) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                stream = next(self._streams)
                self._connections[stream] = connection
                self._write(stream, OPEN, guest_path.encode())
                threading.Thread(target=self._send, args=(stream, connection), daemon=True).start()

    def _send(self, stream: int, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := connection.recv(CHUNK_BYTES):
                self._write(stream, SEND, chunk)
            self._write(stream, END, b"")
        self._forget(stream)

    def _receive(self) -> None:
        with contextlib.suppress(OSError), self._port.makefile("rb") as frames:
            while len(head := frames.read(FRAME.size)) == FRAME.size:
                stream, kind, length = FRAME.unpack(head)
                payload = frames.read(length)
                connection = self._connections.get(stream)
                if connection is None:
                    continue
                if kind == SEND:
                    # A client that left hears nothing more.
                    with contextlib.suppress(OSError):
                        connection.sendall(payload)
                else:
                    self._forget(stream)
        for stream in list(self._connections):
            self._forget(stream)

    def _forget(self, stream: int) -> None:
        connection = self._connections.pop(stream, None)
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _write(self, stream: int, kind: int, payload: bytes) -> None:
        with self._writing:
            self._port.sendall(FRAME.pack(stream, kind, len(payload)) + payload)

"""The daemon's end of the OCI socket as a real server that says what a test wants: right, late or nonsense.

It knows nothing of the daemon: clients are tested against the protocol as docs/oci-hook.md writes it down,
and not against the code that serves it.
"""

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

_CHUNK_BYTES = 1 << 16
_MAGIC = "bayplan-oci/1"


class Question(NamedTuple):
    """One request as it came in."""

    verb: str
    body: bytes


Reply = Callable[[Question], bytes]


def ok(body: bytes = b"") -> bytes:
    """The answer of a daemon that did it."""
    return b"ok %d\n" % len(body) + body


def refused(text: str) -> bytes:
    """The answer of a daemon that decided against it."""
    return b"refused %d\n" % len(text.encode()) + text.encode()


def error(text: str) -> bytes:
    """The answer of a daemon that could not do it."""
    return b"error %d\n" % len(text.encode()) + text.encode()


class OciDaemon:
    """Serves *path*, each connection in a thread of its own, until it is left (use it in a ``with``).

    ``reply`` makes the bytes of an answer; it may be replaced at any time. ``hold`` makes every answer wait
    for ``release``, so that a late daemon needs no clock. ``deaf`` hangs up as soon as somebody connects.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.questions: list[Question] = []
        self.reply: Reply = lambda _: ok()
        self.deaf = False
        self.asked = threading.Semaphore(0)
        """Released once for each question that came in whole."""
        self._released = threading.Event()
        self._released.set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> Self:
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._threads.append(threading.Thread(target=self._accept))
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
        # Closing alone would leave accept() waiting.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for thread in self._threads[1:]:
            thread.join()

    def hold(self) -> None:
        """Answer nobody until `release`."""
        self._released.clear()

    def release(self) -> None:
        """Answer those who wait, and all who come."""
        self._released.set()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                question = None if self.deaf else _read_question(connection)
                if question is None:
                    return
                self.questions.append(question)
                self.asked.release()
                self._released.wait()
                connection.sendall(self.reply(question))
            except OSError:
                return  # The client was killed, or did not wait.


def _read_question(connection: socket.socket) -> Question | None:
    """One whole request; None if the client hung up before."""
    received = b""
    while b"\n" not in received:
        chunk = connection.recv(_CHUNK_BYTES)
        if not chunk:
            return None
        received += chunk
    head, _, body = received.partition(b"\n")
    magic, verb, length = head.decode("ascii").split(" ")
    assert magic == _MAGIC
    while len(body) < int(length):
        chunk = connection.recv(_CHUNK_BYTES)
        if not chunk:
            return None
        body += chunk
    assert len(body) == int(length), "the client sent more than it announced"
    return Question(verb, body)

"""Requests to the agent in the guest and its replies, over a socket pair whose other end QEMU holds.

Any number of threads may call at once; one reader thread hands the replies out. When the guest dies,
everybody who waits is told so.
"""

import contextlib
import itertools
import json
import socket
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from testbed.errors import GuestError

# How long is waited for anything: beside other work a guest may take ten times as long as on an idle machine.
LIMIT_S = 300
REPLY_SLACK_S = 30


class Channel:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._closed = False
        threading.Thread(target=self._read, name="guest-channel", daemon=True).start()

    def call(self, op: str, *, limit_s: float, **fields: object) -> dict[str, Any]:
        """Ask the agent; `limit_s` is sent along, the wait here is a little longer.

        Raises GuestError when the guest is gone, did not answer in time or the operation failed.
        """
        reply: Future[dict[str, Any]] = Future()
        with self._lock:
            if self._closed:
                raise GuestError("the guest is gone")
            number = next(self._ids)
            self._waiting[number] = reply
            request = {"id": number, "op": op, "limit_s": limit_s, **fields}
            try:
                self._connection.sendall(json.dumps(request).encode() + b"\n")
            except OSError as error:
                raise GuestError(f"the guest is gone: {error}") from error
        try:
            answer = reply.result(limit_s + REPLY_SLACK_S)
        except FutureTimeoutError:
            raise GuestError(
                f"the guest did not answer `{op}` within {limit_s + REPLY_SLACK_S:.0f} s"
            ) from None
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        if "error" in answer:
            raise GuestError(f"in the guest, `{op}` failed: {answer['error']}")
        return answer

    def close(self) -> None:
        with self._lock:
            self._closed = True
        # shutdown() wakes the reader, close() alone would leave it in recv() for ever.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _read(self) -> None:
        # Joined once a line is whole: an answer may carry megabytes.
        pieces: list[bytes] = []
        while True:
            try:
                received = self._connection.recv(1 << 16)
            except OSError:
                received = b""
            if not received:
                break
            *ends, rest = received.split(b"\n")
            for end in ends:
                answer = json.loads(b"".join([*pieces, end]))
                pieces.clear()
                with self._lock:
                    waiting = self._waiting.get(answer["id"])
                if waiting is not None:
                    waiting.set_result(answer)
            pieces.append(rest)
        with self._lock:
            self._closed = True
            waiting_still = list(self._waiting.values())
        for waiting in waiting_still:
            if not waiting.done():
                waiting.set_exception(GuestError("the guest died"))

"""Sockets in other network namespaces.

For each socket a thread is started, enters the namespace, opens the socket and ends. A thread that did not
end would keep the namespace of a pod that is gone; one that hangs delays no other. All other threads of the
process stay in their namespace.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import threading
from collections.abc import Callable
from typing import Final

from bayplan.host.cpu_affinity import use_every_cpu
from bayplan.host.kernelfs import refusal
from bayplan.host.libc import libc

_CLONE_NEWNET: Final = 0x40000000
_OWN_NAMESPACES: Final = ("/proc/self/ns/net", "/proc/1/ns/net")
"""The host's, as seen from the host, and from a container with the host's process ids."""


async def socket_in(path: str, make: Callable[[], socket.socket]) -> socket.socket | None:
    """What *make* returns when it is called inside the network namespace *path*; None if that is the host's.

    Raises:
        HostError: there is no such namespace (any more), or entering it is not permitted.
    """
    loop = asyncio.get_running_loop()
    made: asyncio.Future[socket.socket | None] = loop.create_future()

    def settle(result: socket.socket | None, error: Exception | None) -> None:
        if made.done():
            _close(result)
        elif error is not None:
            made.set_exception(error)
        else:
            made.set_result(result)

    def work() -> None:
        result: socket.socket | None = None
        error: Exception | None = None
        use_every_cpu()
        try:
            result = _make_inside(path, make)
        except Exception as caught:  # noqa: BLE001 - whatever it is, somebody waits for an end
            error = caught
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:  # the loop is closed: no caller waits any more
            _close(result)

    threading.Thread(target=work, name="network-namespace", daemon=True).start()
    return await made


def _make_inside(path: str, make: Callable[[], socket.socket]) -> socket.socket | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            if _is_own(os.fstat(descriptor)):
                return None
            if libc().setns(descriptor, _CLONE_NEWNET) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
        finally:
            os.close(descriptor)
        return make()
    except OSError as error:
        raise refusal(path, "cannot be entered as a network namespace", error) from error


def _is_own(status: os.stat_result) -> bool:
    for path in _OWN_NAMESPACES:
        with contextlib.suppress(OSError):  # without CAP_SYS_PTRACE the second one may be hidden
            if os.path.samestat(status, os.stat(path)):  # noqa: PTH116 - the path is a text
                return True
    return False


def _close(result: socket.socket | None) -> None:
    if result is not None:
        result.close()

"""Inside the namespaces of other processes: sockets in their networks, mounts in a container being created.

For each socket a thread is started, enters the namespace, opens the socket and ends. A thread that did not
end would keep the namespace of a pod that is gone; one that hangs delays no other. All other threads of the
process stay in their namespace.

The container's root is an image's: any link in it may lead anywhere. So the place is looked up with
openat2(2) as if that root were ``/`` (RESOLVE_IN_ROOT, Linux 5.6), and what is mounted is attached to an open
directory, not to a path. It is a copy of one mount, read-only before anybody sees it (mount_setattr(2), Linux
5.12). setns(2) is for threads that share no root and working directory, so that it is done in a thread of its
own, which ends with it.
"""

import asyncio
import contextlib
import ctypes
import errno
import os
import socket
import threading
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Final

from bayplan.host import shadow_mode
from bayplan.host.kernelfs import RefusedError, refusal
from bayplan.host.libc import libc, use_every_cpu

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


# Numbers of system calls that came after 2019 are the same on all machines but alpha (asm-generic/unistd.h).
_OPEN_TREE: Final = 428
_MOVE_MOUNT: Final = 429
_OPENAT2: Final = 437
_MOUNT_SETATTR: Final = 442

_CLONE_FS: Final = 0x200
_CLONE_NEWNS: Final = 0x20000
_OPEN_TREE_CLONE: Final = 1
_AT_EMPTY_PATH: Final = 0x1000
_FROM_AND_TO_EMPTY_PATH: Final = 0x4 | 0x40
_RDONLY_NOSUID_NODEV_NOEXEC: Final = 0xF
_RESOLVE_IN_ROOT: Final = 0x10
_AT_FDCWD: Final = -100


class _OpenHow(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("flags", "mode", "resolve")]


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]


def mount_in_container(namespace: str, source: str, root: str, destination: str) -> None:
    """Mount the host's directory *source*, read-only, at *destination* of a container whose mount namespace
    is the file *namespace*, and whose root is the directory *root* there. Missing directories are made.

    Raises:
        RefusedError: the kernel refuses.
        ShadowModeError: nothing is mounted.
    """
    shadow_mode.check_off(destination)
    failures = list[OSError]()

    def work() -> None:
        try:
            _mount(namespace, source, root, PurePosixPath(destination).parts[1:])
        except OSError as error:
            failures.append(error)

    thread = threading.Thread(target=work, name="mount", daemon=True)
    thread.start()
    thread.join()
    for error in failures:
        problem = f"cannot be mounted in the container: {error.strerror}"
        raise RefusedError(destination, problem, error.errno or 0) from error


def _mount(namespace: str, source: str, root: str, names: tuple[str, ...]) -> None:
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
    tree = _call(_OPEN_TREE, _AT_FDCWD, source.encode(), flags)
    try:
        attributes = _MountAttributes(_RDONLY_NOSUID_NODEV_NOEXEC)
        size = ctypes.sizeof(attributes)
        _call(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, ctypes.byref(attributes), size)
        if libc().unshare(_CLONE_FS) < 0:
            raise _failure()
        opened = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc().setns(opened, _CLONE_NEWNS) < 0:
                raise _failure()
        finally:
            os.close(opened)
        place = _place(root, names)
        try:
            _call(_MOVE_MOUNT, tree, b"", place, b"", _FROM_AND_TO_EMPTY_PATH)
        finally:
            os.close(place)
    finally:
        os.close(tree)


def _place(root: str, names: tuple[str, ...]) -> int:
    """The open directory of *names* in *root*, made where it is missing."""
    base = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for count in range(1, len(names) + 1):
            if not _exists(base, "/".join(names[:count])):
                _make(base, names[:count])
        return _open(base, "/".join(names))
    finally:
        os.close(base)


def _exists(base: int, path: str) -> bool:
    try:
        os.close(_open(base, path))
    except FileNotFoundError:
        return False
    return True


def _make(base: int, names: tuple[str, ...]) -> None:
    parent = _open(base, "/".join(names[:-1]) or ".")
    try:
        os.mkdir(names[-1], 0o755, dir_fd=parent)
    finally:
        os.close(parent)


def _open(base: int, path: str) -> int:
    how = _OpenHow(os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
    return _call(_OPENAT2, base, path.encode(), ctypes.byref(how), ctypes.sizeof(how))


def _call(number: int, *arguments: object) -> int:
    as_longs = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result: int = libc().syscall(ctypes.c_long(number), *as_longs)
    if result < 0:
        raise _failure()
    return result


def _failure() -> OSError:
    number = ctypes.get_errno()
    if number == errno.ENOSYS:
        return OSError(number, "this kernel is older than Linux 5.12")
    return OSError(number, os.strerror(number))

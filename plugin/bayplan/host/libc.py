"""What Python's os module lacks of the C library, and where two threads of this process run.

A failed call leaves its number where ``ctypes.get_errno`` finds it, for the calling thread.

A thread that is woken on another CPU finds none of the other's work in its caches, and on a virtual machine
the wake-up itself is an interrupt to a halted CPU: a creation takes 1.06 ms instead of 1.27 on two virtual
CPUs. Which CPU it is stays the scheduler's choice, each time anew. Threads that are made meanwhile inherit
the one CPU: they `use_every_cpu`.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Final

from bayplan.sets import CpuSet

_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 128 * 1024
"""glibc's own threshold to begin with (mallopt(3))."""


@cache
def libc() -> ctypes.CDLL:
    """The library that this process is linked with."""
    return ctypes.CDLL(None, use_errno=True)


def give_large_blocks_back() -> None:
    """Have memory of large blocks go back to the kernel when they are freed, whatever was freed before.

    By itself glibc takes each such block for the usual size, and from then on keeps up to twice as much for
    the next one: 7 to 9 MiB after the messages of a Synchronize. Other C libraries keep none.
    """
    if hasattr(libc(), "mallopt"):
        libc().mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


_ONLINE: Final = Path("/sys/devices/system/cpu/online")
_MASK_BYTES: Final = 1024
"""8192 CPUs: the largest NR_CPUS that a kernel can be built with."""


class SharedCpu:
    """For a thread that waits and a *follower*, the thread id of the one that works meanwhile.

    Without effect where the kernel or the C library does not allow it. ``held``: both are on one CPU.
    """

    def __init__(self, follower: int) -> None:
        self._follower = follower
        self.held = False

    def hold(self) -> None:
        """Keep both on the CPU that runs the calling thread, until `release`."""
        if self.held:
            return
        cpu = libc().sched_getcpu()
        if cpu < 0:
            return
        mask = (1 << cpu).to_bytes(_MASK_BYTES, "little")
        _every_cpu()
        _set(0, mask)
        _set(self._follower, mask)
        self.held = True

    def release(self) -> None:
        """Let both run where they could before. For the thread that called `hold`."""
        if self.held:
            self.held = False
            _set(0, _every_cpu())
            _set(self._follower, _every_cpu())


def use_every_cpu() -> None:
    """Let the calling thread run on all CPUs that the process was given at its start, also if its creator was
    held on one CPU."""
    _set(0, _every_cpu())


@cache
def _every_cpu() -> bytes:
    """The CPUs of the first caller, before any thread is held, and all that are not online yet: the kernel
    ignores those that do not exist or that we may not use."""
    buffer = ctypes.create_string_buffer(_MASK_BYTES)
    if libc().sched_getaffinity(0, _MASK_BYTES, buffer) < 0:
        return b"\xff" * _MASK_BYTES
    missing = (1 << 8 * _MASK_BYTES) - 1 & ~CpuSet.parse(_ONLINE.read_text()).mask
    return (int.from_bytes(buffer.raw, "little") | missing).to_bytes(_MASK_BYTES, "little")


def _set(thread: int, mask: bytes) -> None:
    libc().sched_setaffinity(thread, _MASK_BYTES, mask)

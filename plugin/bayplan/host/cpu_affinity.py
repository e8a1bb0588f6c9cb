"""Where two threads of this process run: on one CPU, while the one waits for the other.

A thread that is woken on another CPU finds none of the other's work in its caches, and on a virtual machine
the wake-up itself is an interrupt to a halted CPU. Which CPU it is stays the scheduler's choice.
"""

import ctypes
from typing import Any, Final

_MASK_BYTES: Final = 1024
"""8192 CPUs: the largest NR_CPUS that a kernel can be built with."""


class SharedCpu:
    """For a thread that waits and a *follower*, the thread id of the one that works meanwhile.

    Without effect where the kernel or the C library does not allow it.
    """

    def __init__(self, follower: int) -> None:
        libc = ctypes.CDLL(None)
        self._get_cpu, self._get, self._set = (
            libc.sched_getcpu,
            libc.sched_getaffinity,
            libc.sched_setaffinity,
        )
        self._follower = follower
        self._follower_cpu = -1
        self._before = ctypes.create_string_buffer(_MASK_BYTES)
        self._masks: dict[int, Any] = {}

    def hold(self) -> None:
        """Keep the calling thread, and from now on the follower, on the CPU that runs the calling thread.

        `release` must follow. No thread and no process may be made before: it would inherit the one CPU.
        """
        cpu = self._get_cpu()
        if cpu < 0 or self._get(0, _MASK_BYTES, self._before) < 0:
            return
        mask = self._masks.get(cpu)
        if mask is None:
            mask = self._masks[cpu] = (1 << cpu).to_bytes(_MASK_BYTES, "little")
        self._set(0, _MASK_BYTES, mask)
        if cpu != self._follower_cpu:
            self._set(self._follower, _MASK_BYTES, mask)
            self._follower_cpu = cpu

    def release(self) -> None:
        """Let the calling thread run where it could before `hold`."""
        self._set(0, _MASK_BYTES, self._before)

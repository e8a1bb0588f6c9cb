"""The C library, for what Python's os module lacks.

A failed call leaves its number where ``ctypes.get_errno`` finds it, for the calling thread.
"""

import ctypes
from functools import cache
from typing import Final

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

"""The C library, for what Python's os module lacks.

A failed call leaves its number where ``ctypes.get_errno`` finds it, for the calling thread.
"""

import ctypes
from functools import cache


@cache
def libc() -> ctypes.CDLL:
    """The library that this process is linked with."""
    return ctypes.CDLL(None, use_errno=True)

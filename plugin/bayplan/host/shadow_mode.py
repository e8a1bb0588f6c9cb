"""Whether this process may change anything outside of itself: one switch, and the gate behind it.

All that changes the kernel's files, other processes or a bundle comes through a few functions, and each of
them calls `check_off` first. So a caller that forgot to ask `is_on` gets an error, and nothing is changed.
The switch is the process's own, because that is what the promise is about. The process's own settings, its
sockets and its records are its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Final

from bayplan.errors import HostError

NOTHING_APPLIED: Final = "shadow mode applies nothing"

_ON: Final = Event()


class ShadowModeError(HostError):
    """Something was to be changed outside of this process in shadow mode; nothing was."""


@contextmanager
def shadow_mode() -> Iterator[None]:
    """Change nothing outside of this process within."""
    _ON.set()
    try:
        yield
    finally:
        _ON.clear()


def is_on() -> bool:
    """Whether decisions are only recorded and reported. Any thread."""
    return _ON.is_set()


def check_off(thing: str) -> None:
    """Let *thing* be changed.

    Raises:
        ShadowModeError: it must not be.
    """
    if _ON.is_set():
        raise ShadowModeError(thing, f"left as it is: {NOTHING_APPLIED}")

"""The error for a state directory that cannot be written: what is in the way, and what to do.

SQLite's errors do not say it: with a full disk they are SQLITE_CANTOPEN ("unable to open database file"), or
SQLITE_IOERR_SHMSIZE ("disk I/O error"). So the file system itself is asked, by writing a little to it.
"""

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bayplan.errors import StateError

_PROBE_BYTES: Final = 256 << 10
"""Beside an old database SQLite needs the index of its log, and the log's begin, before the first commit."""

_OR_ELSEWHERE: Final = "or name another stateDirectory"
_ADVICE: Final[Mapping[int, str]] = {
    errno.ENOSPC: f"make room there (df and df -i show how much there is), {_OR_ELSEWHERE}",
    errno.EDQUOT: f"raise root's quota there, {_OR_ELSEWHERE}",
    errno.EROFS: f"mount it for writing, {_OR_ELSEWHERE}",
}


def unusable(directory: Path, problem: str, number: int | None = None) -> StateError:
    """The error for *directory*, where *problem* came up; *number* is the kernel's, where it is known."""
    number = obstacle(directory, number)
    if number is None:
        return StateError(str(directory), problem)
    cause, code = os.strerror(number), errno.errorcode[number]
    text = f"{problem} ({code})" if cause in problem else f"{cause} ({code}): {problem}"
    return StateError(str(directory), f"{text}; {_ADVICE[number]}")


def obstacle(directory: Path, number: int | None = None) -> int | None:
    """The kernel's number of what keeps files from being written there for now: no room, or a file system
    that is read-only. None for anything else. *number* is what is known already."""
    if number in _ADVICE:
        return number
    import tempfile  # noqa: PLC0415 - a daemon that starts does without

    try:
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return error.errno if error.errno in _ADVICE else None
    return None

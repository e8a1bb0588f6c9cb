"""The file of a recording: a regular file of its own, which replaces nothing but an earlier recording.

An earlier one is kept beside it, as ``FILE.1``, in place of one before that. Blocks.
"""

import os
import stat
from pathlib import Path
from typing import Final

from bayplan.errors import ConfigError, Problem
from bayplan.files import kind_of

OPENING: Final = b'{"kind":"Begin"'
"""The first bytes of each recording."""

_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_MODE: Final = 0o600
"""The names of pods are nobody else's business."""


class RecordingFile:
    """The file at *path*, which is new when this is made.

    Raises:
        ConfigError: something else is there, or the file cannot be made; all problems at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._earlier = path.with_name(f"{path.name}.1")
        problems = tuple(problem for one in (path, self._earlier) if (problem := _in_the_way(one)))
        if problems:
            raise ConfigError(str(path), problems)
        try:
            self._set_aside()
            self._descriptor = os.open(path, _FLAGS, _MODE)
        except OSError as error:
            found = error.strerror or str(error)
            raise ConfigError(str(path), (Problem("the file", found, "a file that can be made"),)) from error

    def write(self, lines: bytes) -> None:
        """Append *lines*; raises OSError."""
        rest = memoryview(lines)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def begin_anew(self) -> None:
        """Go on in a new file; raises OSError."""
        self._set_aside()
        full, self._descriptor = self._descriptor, os.open(self.path, _FLAGS, _MODE)
        os.close(full)

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)

    def _set_aside(self) -> None:
        if self.path.exists():
            self.path.replace(self._earlier)


def _in_the_way(path: Path) -> Problem | None:
    """What is at *path* if it is no recording."""
    expected = "nothing, or an earlier recording"
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return Problem(str(path), kind_of(status), expected)
        if status.st_size and _start(path) != OPENING:
            return Problem(str(path), "a file that is no recording", expected)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Problem(str(path), error.strerror or str(error), expected)
    return None


def _start(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return os.read(descriptor, len(OPENING))
    finally:
        os.close(descriptor)

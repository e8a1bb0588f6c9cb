"""Reading and writing the kernel's small text files (sysfs, procfs, cgroupfs).

Failures are of three kinds: the file is absent (any more), the kernel refuses, or the text is invalid. What a
file means is known to the modules that read it.
"""

import errno
import os
import re
from collections.abc import Callable
from typing import Final, TypeVar

from bayplan.errors import HostError, ParseError, excerpt
from bayplan.files import read_small_file
from bayplan.host import shadow_mode
from bayplan.quantity import counted

T = TypeVar("T")

_GONE: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.ESRCH, errno.ENOTDIR})
"""ENODEV: the cgroup was removed while we held it open. ESRCH: the process ended, same situation."""


class AbsentError(HostError):
    """The file, cgroup or process is not there, or not there any more."""


class RefusedError(HostError):
    """The kernel refused; ``errno`` is its error number."""

    def __init__(self, path: str, problem: str, errno: int) -> None:
        super().__init__(path, problem)
        self.errno = errno


def read_text(path: str | bytes, *, dir_fd: int | None = None, below: str = "") -> str:
    """The whole text of a file, read to its end: a cpulist may be longer than one page.

    *below* is the path of the directory *dir_fd*, for messages. Bytes outside ASCII are kept as escapes, so
    that garbage can be shown.

    Raises:
        AbsentError: there is no such file.
        RefusedError: the kernel refused to open or read it, it is no regular file (in a recorded tree), or it
            has more than 16 MiB; the longest, environments of processes, have 6 MiB.
    """
    try:
        content = read_small_file(path, dir_fd=dir_fd)
    except OSError as error:
        raise refusal(_name(path, below), "cannot be read", error) from error
    return content.decode("ascii", "backslashreplace")


def read_optional(path: str) -> str | None:
    """Like `read_text`, but None where there is no such file."""
    try:
        return read_text(path)
    except AbsentError:
        return None


def write_text(path: str | bytes, text: str, *, dir_fd: int | None = None, below: str = "") -> None:
    """Write *text* with one write(2): the kernel takes each write to such a file as a complete value.

    Raises:
        AbsentError: there is no such file (it is never created).
        RefusedError: the kernel refused the value, or took only a part of it.
        ShadowModeError: nothing is written.
    """
    shadow_mode.check_off(_name(path, below))
    value = text.encode("ascii")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, dir_fd=dir_fd)
        try:
            written = os.write(descriptor, value)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise refusal(_name(path, below), f"cannot take {text!r}", error) from error
    if written != len(value):
        problem = f"took {written} of the {counted(len(value), 'byte')} of {text!r}"
        raise RefusedError(_name(path, below), problem, errno.EIO)


def parse_file(path: str, parse: Callable[[str], T], text: str | None = None) -> T:
    """The parsed text of the file *path*; *text* where it has been read already.

    A NUL ends the text, as for programs in C: some kernels print one. *parse* raises ParseError, whose field
    ``expected`` goes into the message, or a plain ValueError (that is int() on thousands of digits).

    Raises:
        HostError: absent, refused, or garbage: then the message has the path and what was found.
    """
    content = read_text(path) if text is None else text
    try:
        return parse(content.partition("\0")[0])
    except ValueError as error:
        expected = error.expected if isinstance(error, ParseError) else "a shorter value"
        raise garbage(path, content, expected) from error


def parse_number(text: str) -> int:
    """A decimal number of 0 or more, with nothing else but white space around it.

    Raises:
        ParseError: anything else.
    """
    stripped = text.strip()
    if not (stripped.isascii() and stripped.isdigit()):
        raise ParseError("number", stripped, "a number of 0 or more")
    return int(stripped)


def numbered_entries(directory: str, pattern: re.Pattern[str]) -> list[int]:
    """The numbers in those entries of *directory* that match *pattern* (its first group), ascending; none if
    the directory is absent.

    Raises:
        RefusedError: the kernel refused to list it.
    """
    try:
        with os.scandir(directory) as entries:
            matches = [pattern.fullmatch(entry.name) for entry in entries]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise refusal(directory, "cannot be listed", error) from error
    return sorted(int(match[1]) for match in matches if match)


def garbage(path: str, found: str, expected: str) -> HostError:
    """The error for a file whose text cannot be: its path, what was found, what was expected."""
    return HostError(path, f"found {excerpt(found.strip())!r}, expected {expected}")


def refusal(path: str, problem: str, error: OSError) -> HostError:
    """The HostError for an OSError."""
    number = error.errno or errno.EIO
    if number in _GONE:
        return AbsentError(path, f"{problem}: it is not there ({os.strerror(number)})")
    return RefusedError(path, f"{problem}: {error.strerror or os.strerror(number)}", number)


def _name(path: str | bytes, below: str) -> str:
    name = os.fsdecode(path)
    return f"{below}/{name}" if below else name

"""The kernel's small text files (sysfs, procfs, cgroupfs): read and written by path, or relative to a
directory that was opened once, and watched for what they show.

Failures are of three kinds: the file is absent (any more), the kernel refuses, or the text is invalid. What a
file means is known to the modules that read it.

Watched files stay open: a pread(2) takes 1 us of a cgroup's file, and 7 with opening and closing it. The
kernel keeps a page for each. A descriptor leads to the file of the cgroup, or of the process, that was there
when it was opened: once that is gone, reading fails.

A cgroup that is removed and made again under the same name is another cgroup. The descriptor never leads to
the second one: every access to the removed directory fails as "not there".
"""

import errno
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

from bayplan.errors import HostError, ParseError, excerpt
from bayplan.files import read_small_file
from bayplan.host import shadow_mode
from bayplan.host.libc import libc
from bayplan.quantity import counted


class Descriptor:
    """A descriptor of this process. Close it, or use it in a ``with``."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Close the descriptor; a second time does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


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


def optional_number(path: str) -> int:
    """The number in the file *path*, 0 where there is no such file.

    Raises:
        HostError: refused, or garbage.
    """
    text = read_optional(path)
    return 0 if text is None else parse_file(path, parse_number, text)


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


_MOST_BYTES: Final = 4096
"""What is longer is compared as far as this: no list of CPUs that anybody gives to a container is."""


REREAD_S: Final = 60.0
"""So long at most nothing is read where nobody is seen to write. The kernel itself changes what a cgroup
shows without a word: when CPUs go, or the cgroup above it is given others."""
_IN_MODIFY: Final = 2
_EVENT_BYTES: Final = 65536


class WatchedFiles:
    """Files, each with what it showed when it was added. They are closed with it, or by `close`.

    As long as nobody writes into the directory of a file, as inotify(7) says, also for cgroups, and with one
    watch for a directory, it is read every `REREAD_S` only. Files without *dir_fd* are read each time: of
    /proc the kernel has another inode whenever it is asked.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._files: list[tuple[int, bytes]] = []
        self._unheard: list[tuple[int, bytes]] = []
        """Those whose changes are not heard of."""
        self._inotify = -1
        self._read_s = -REREAD_S

    def __del__(self) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._files) + len(self._unheard)

    def add(self, path: str | bytes, *, dir_fd: int | None = None, below: str = "") -> None:
        """Watch the file *path* from now on. *below* is the path of the directory *dir_fd*, for messages.

        Raises:
            AbsentError: there is no such file.
            RefusedError: it cannot be opened or read.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
            try:
                text = os.pread(descriptor, _MOST_BYTES, 0)
            except OSError:
                os.close(descriptor)
                raise
        except OSError as error:
            raise refusal(str(Path(below) / os.fsdecode(path)), "cannot be watched", error) from error
        heard = dir_fd is not None and not self._unheard_from(dir_fd)
        (self._files if heard else self._unheard).append((descriptor, text))

    def are_unchanged(self) -> bool:
        """Whether all of them still show the same."""
        now_s, written = self._clock_s(), self._is_written()
        if not _all_show(self._unheard):
            return False
        if not written and now_s - self._read_s < REREAD_S:
            return True
        if not _all_show(self._files):
            self._read_s = -REREAD_S
            return False
        self._read_s = now_s
        return True

    def close(self) -> None:
        """Watch none of them any more."""
        for files in (self._files, self._unheard):
            while files:
                os.close(files.pop()[0])
        if self._inotify >= 0:
            os.close(self._inotify)
        self._inotify, self._read_s = -1, -REREAD_S

    def _unheard_from(self, directory: int) -> bool:
        """Whether it is not to be heard when somebody writes into a file of *directory*: the host has no more
        instances or watches."""
        if self._inotify < 0:
            self._inotify = libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        path = b"/proc/self/fd/%d" % directory
        return self._inotify < 0 or libc().inotify_add_watch(self._inotify, path, _IN_MODIFY) < 0

    def _is_written(self) -> bool:
        written = False
        while self._inotify >= 0:
            try:
                os.read(self._inotify, _EVENT_BYTES)
            except BlockingIOError:
                break
            written = True
        return written


def _all_show(files: Iterable[tuple[int, bytes]]) -> bool:
    try:
        return all(os.pread(descriptor, _MOST_BYTES, 0) == text for descriptor, text in files)
    except OSError:
        return False


class CgroupIdentity(NamedTuple):
    """Different for every cgroup, also of the same name: cgroup v2 never uses an inode number again."""

    device: int
    inode: int


class Directory(Descriptor):
    """An open directory of a cgroup file system."""

    __slots__ = ("identity", "path")

    def __init__(self, descriptor: int, path: str) -> None:
        super().__init__(descriptor)
        self.path = path
        status = os.fstat(descriptor)
        self.identity = CgroupIdentity(status.st_dev, status.st_ino)

    @classmethod
    def open(cls, path: str) -> Self:
        """Open the directory *path*.

        Raises:
            AbsentError: there is no such cgroup.
            RefusedError: it can't be opened.
        """
        return cls(_open(path, path, None), path)

    def child(self, name: str) -> Self:
        """Open the directory *name* in this one; raises like `open`."""
        path = f"{self.path}/{name}"
        return type(self)(_open(name, path, self._descriptor), path)

    def read(self, name: bytes) -> str:
        """The text of a file of the cgroup, without white space around it."""
        return read_text(name, dir_fd=self._descriptor, below=self.path).strip()

    def watch(self, name: bytes, watched: WatchedFiles) -> None:
        """Have a file of the cgroup *watched*."""
        watched.add(name, dir_fd=self._descriptor, below=self.path)

    def write(self, name: bytes, text: str) -> None:
        """Write a file of the cgroup; see `bayplan.host.kernelfs.write_text`."""
        write_text(name, text, dir_fd=self._descriptor, below=self.path)

    def path_of(self, name: bytes) -> str:
        """The path of a file, for messages."""
        return f"{self.path}/{os.fsdecode(name)}"

    def is_current(self) -> bool:
        """Whether the path still leads to this very directory."""
        try:
            with Directory.open(self.path) as found:
                return found.identity == self.identity
        except AbsentError:
            return False

    def children(self) -> tuple[str, ...]:
        """The names of the cgroups directly below, sorted."""
        try:
            with os.scandir(self._descriptor) as entries:
                return tuple(sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False)))
        except OSError as error:
            raise refusal(self.path, "cannot be listed", error) from error


def _open(name: str, path: str, dir_fd: int | None) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError as error:
        raise refusal(path, "cannot be opened", error) from error

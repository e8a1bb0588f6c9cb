"""The state directory: who holds it, what must hold before anything in it is opened, what is set aside there,
and why it cannot be written.

*Held.* One instance holds it, with an advisory lock that the kernel releases when its holder ends. The lock
is on the directory itself: a lock *file* could be deleted while it is held, and a second instance would lock
its successor. A file in the directory names the holder, for people only.

*Before.* Nobody else may write there, and no file is a link. That is no damage: somebody made it so and has
to decide, because a good record may be behind the link.

*Aside.* A damaged database is renamed to a name that says why. SQLite finds a write-ahead log by the
database's name, so that the companions ``-wal`` and ``-shm`` always go with it. A few files of each kind are
kept; the oldest go, or a broken disk would fill up with them.

*Unusable*: what is in the way, and what to do. SQLite's errors do not say it: with a full disk they are
SQLITE_CANTOPEN ("unable to open database file"), or SQLITE_IOERR_SHMSIZE ("disk I/O error"). So the file
system itself is asked, by writing a little to it.
"""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from bayplan.errors import ConfigError, Problem, StateError, UnavailableError
from bayplan.files import kind_of, read_file
from bayplan.host.kernelfs import Descriptor, refusal

KEPT: Final = 5
COMPANIONS: Final = ("", "-wal", "-shm")


def move_aside(database: Path, mark: str) -> Path:
    """Rename *database* and its companions to ``<name>.<mark>``, numbered if that is taken; the new path.

    Raises:
        OSError: the directory does not allow it.
    """
    target = _next_name(database, mark)
    for companion in reversed(COMPANIONS):
        source = Path(f"{database}{companion}")
        if os.path.lexists(source):
            source.rename(f"{target}{companion}")
    _sync_directory(database.parent)
    _drop_oldest(database, mark)
    return target


def _next_name(database: Path, mark: str) -> Path:
    taken = _numbers(database, mark)
    if mark == "corrupt":
        return database.with_name(f"{database.name}.corrupt-{max(taken, default=0) + 1}")
    suffix = f"-{max(taken) + 1}" if taken else ""
    return database.with_name(f"{database.name}.{mark}{suffix}")


def _numbers(database: Path, mark: str) -> dict[int, list[Path]]:
    """What is set aside with that mark: number (1 where the name has none) -> files."""
    name = re.compile(rf"{re.escape(database.name)}\.{re.escape(mark)}(?:-([0-9]+))?(?:-wal|-shm)?")
    found: dict[int, list[Path]] = {}
    for path in database.parent.iterdir():
        match = name.fullmatch(path.name)
        if match is not None:
            found.setdefault(int(match[1] or 1), []).append(path)
    return found


def _drop_oldest(database: Path, mark: str) -> None:
    numbered = _numbers(database, mark)
    for number in sorted(numbered)[:-KEPT]:
        for path in numbered[number]:
            if path.is_dir() and not path.is_symlink():
                from shutil import rmtree  # noqa: PLC0415 - hardly ever

                rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_FILES: Final = ("lock", *(f"state.db{companion}" for companion in COMPANIONS))
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def check_directory(directory: Path) -> None:
    """Check *directory* and the files that are opened there.

    Raises:
        ConfigError: others may write there, or a link or something else lies in the place of a file;
            everything is named, with what to do.
        OSError: it cannot be examined.
    """
    problems = (*_of_directory(directory), *_of_files(directory))
    if problems:
        raise ConfigError(f"state directory {directory}", problems)


def _of_directory(directory: Path) -> Iterator[Problem]:
    status = directory.stat()
    if status.st_uid not in (0, os.geteuid()):
        advice = f"root or user {os.geteuid()} (chown root {directory}), or another stateDirectory"
        yield Problem("its owner", f"user {status.st_uid}", advice)
    if status.st_mode & _WRITABLE_BY_OTHERS:
        advice = f"no access for others to write (chmod go-w {directory}), or another stateDirectory"
        yield Problem("its mode", f"{stat.S_IMODE(status.st_mode):o}", advice)


def _of_files(directory: Path) -> Iterator[Problem]:
    for name in _FILES:
        path = directory / name
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(status.st_mode):
            # SQLite follows a link to a database, and then keeps its log there; it refuses a log that is one.
            kind = f"a symbolic link to {path.readlink()}"
            target = os.path.realpath(path)
            # Of a loop there is no other end.
            moved = (
                f"or stateDirectory set to the directory of {target}"
                if name == "state.db" and os.path.exists(target)  # noqa: PTH110 - Path.resolve raises RuntimeError
                else ""
            )
            yield Problem(name, kind, " ".join(filter(None, (f"a regular file (rm {path})", moved))))
        elif not stat.S_ISREG(status.st_mode):
            if name == "lock":
                yield Problem(name, kind_of(status), f"a regular file (rm -r {path})")
        elif status.st_uid not in (0, os.geteuid()):
            yield Problem(name, f"a file of user {status.st_uid}", f"one of root's (chown root {path})")
        elif status.st_mode & stat.S_IWOTH:
            kind = f"a file with mode {stat.S_IMODE(status.st_mode):o}"
            yield Problem(name, kind, f"one that others cannot write (chmod go-w {path})")


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


def has_room(directory: Path) -> bool:
    """Whether a database that is opened there has room for the index of its log. SQLite maps it into memory:
    with blocks smaller than a page it makes room for a part of each, and the kernel sends SIGBUS to whoever
    writes to the rest."""
    found = os.statvfs(directory)
    return not found.f_blocks or found.f_bavail * found.f_frsize >= _PROBE_BYTES


def require_room(directory: Path) -> None:
    """Raises OSError unless there is that room."""
    if not has_room(directory):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory))


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


HOLDER: Final = "lock"
"""The file that has the pid of the process which holds the directory."""

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_NEW_FILE_MODE: Final = 0o644
_MOST_BYTES: Final = 32


class DirectoryLock(Descriptor):
    """The state directory, held until `close` or the end of the process. Not inherited through exec; a
    forked child that never execs holds it too."""

    def __init__(self, directory: Path) -> None:
        """Take the lock at once, or fail.

        Raises:
            UnavailableError: another process holds it; the message has its pid.
            HostError: the directory is not there or cannot be written.
        """
        self.directory = directory
        try:
            super().__init__(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError as error:
            raise refusal(str(directory), "cannot be opened", error) from error
        try:
            self._take()
        except BaseException:
            self.close()
            raise

    def follow(self) -> None:
        """Hold the directory that has this name now, where it is another one than the one that is held.

        Raises:
            UnavailableError, HostError: as at first; what was held is still held.
        """
        with suppress(FileNotFoundError):
            if os.path.samestat(self.directory.stat(), os.fstat(self._descriptor)):
                return
        other = DirectoryLock(self.directory)
        self._descriptor, other._descriptor = other._descriptor, self._descriptor
        other.close()

    def _take(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = f"in use by another instance, {self._holder()}; only one may run on a node"
            raise UnavailableError(str(self.directory), problem) from None
        except OSError as error:
            raise refusal(str(self.directory), "cannot be locked", error) from error
        try:
            # Without O_NONBLOCK a FIFO of that name would hold us until somebody reads from it.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            holder = os.open(HOLDER, flags, _NEW_FILE_MODE, dir_fd=self._descriptor)
            try:
                if not stat.S_ISREG(os.fstat(holder).st_mode):
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
                os.write(holder, f"{os.getpid()}\n".encode("ascii"))
            finally:
                os.close(holder)
        except OSError as error:
            if error.errno not in _NO_ROOM:  # The lock is held; the file is for people.
                raise refusal(str(self.directory / HOLDER), "cannot be written", error) from error

    def _holder(self) -> str:
        try:
            pid = read_file(HOLDER, _MOST_BYTES, dir_fd=self._descriptor, follow=False).content.strip()
        except OSError:
            pid = b""
        return f"pid {pid.decode()}" if pid.isdigit() else "pid unknown"

"""Reads whole files that other programs wrote; nothing else opens such files.

Only a regular file of a bounded size is read, and the standard input where a command line names it. A FIFO, a
terminal or a device may block the reader, have side effects when it is opened, or never end. What is not
read is an OSError that says so in its ``strerror``, so that callers name it like any other file that cannot
be read.
"""

import codecs
import errno
import os
import stat
import sys
from pathlib import Path
from typing import Final, NamedTuple

from bayplan.errors import ConfigError, Problem

MIB: Final = 1 << 20
MAX_FILE_BYTES: Final = 16 * MIB
"""Of one file, unless the caller knows better. OCI specs and CDI specs have some 100 kB at most."""

STANDARD_INPUT: Final = "-"
"""The path on a command line that stands for it."""

_CHUNK_BYTES: Final = MIB
_SMALL_BYTES: Final = 1 << 16
"""One read takes all of nearly every file of the kernel's."""

_OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_KINDS: Final = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
}


class ReadFile(NamedTuple):
    """A file as it was read, with the status of what was opened."""

    content: bytes
    status: os.stat_result


def read_file(
    path: str | Path, most_bytes: int = MAX_FILE_BYTES, *, dir_fd: int | None = None, follow: bool = True
) -> ReadFile:
    """The regular file *path*, below *dir_fd* if that is given; *follow* a link in its place.

    Raises:
        OSError: it cannot be read, is no regular file (EINVAL), or has more than *most_bytes* (EFBIG).
    """
    # Before it is opened as well: to open a device can mean something to it.
    _check(os.stat(path, dir_fd=dir_fd, follow_symlinks=follow), path, most_bytes)
    descriptor = os.open(path, _OPEN_FLAGS | (0 if follow else os.O_NOFOLLOW), dir_fd=dir_fd)
    try:
        status = os.fstat(descriptor)
        _check(status, path, most_bytes)
        pieces, size_bytes = [], 0
        while piece := os.read(descriptor, _CHUNK_BYTES):
            pieces.append(piece)
            size_bytes += len(piece)
            if size_bytes > most_bytes:
                raise _too_long(path, most_bytes)
    finally:
        os.close(descriptor)
    return ReadFile(b"".join(pieces), status)


def read_small_file(
    path: str | bytes, most_bytes: int = MAX_FILE_BYTES, *, dir_fd: int | None = None
) -> bytes:
    """As `read_file`, for files that are small and read by the thousands, as the kernel's are. It saves the
    fstat of `read_file` where the read itself shows a regular file: lseek fails on FIFOs, sockets and
    terminals, and the devices on which it does not fail are empty or longer than such a file.

    Raises:
        OSError: as `read_file`.
    """
    descriptor = os.open(path, _OPEN_FLAGS, dir_fd=dir_fd)
    try:
        try:
            os.lseek(descriptor, 0, os.SEEK_CUR)
            content = os.read(descriptor, _SMALL_BYTES)
        except OSError:
            _check(os.fstat(descriptor), os.fsdecode(path), most_bytes)
            raise
        if not content or len(content) == _SMALL_BYTES:
            _check(os.fstat(descriptor), os.fsdecode(path), most_bytes)
        while len(content) <= most_bytes and (piece := os.read(descriptor, _SMALL_BYTES)):
            content += piece
    finally:
        os.close(descriptor)
    if len(content) > most_bytes:
        raise _too_long(os.fsdecode(path), most_bytes)
    return content


def read_text(path: str | Path, most_bytes: int = MAX_FILE_BYTES, errors: str = "strict") -> str:
    """The text of the regular file *path* in UTF-8, a byte order mark at its begin left out.

    Raises:
        OSError: as `read_file`.
        UnicodeDecodeError: it is not UTF-8, and *errors* is "strict".
    """
    return read_file(path, most_bytes).content.decode("utf-8-sig", errors)


def read_named(path: str | Path, most_bytes: int = MAX_FILE_BYTES) -> str:
    """The text of *path* as it was given on a command line: of the standard input for ``-``, which is read to
    its end, else of that file. UTF-16 with a byte order mark is read too: PowerShell writes that for ``>``.

    Raises:
        OSError, UnicodeDecodeError: as `read_text`.
    """
    if str(path) != STANDARD_INPUT:
        return _decoded(read_file(path, most_bytes).content)
    if sys.stdin is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    content = sys.stdin.buffer.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise _too_long(path, most_bytes)
    return _decoded(content)


def given_text(path: Path, expected: str, most_bytes: int = MAX_FILE_BYTES) -> str:
    """As `read_named`; *expected* is what the file should be.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return read_named(path, most_bytes)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), (Problem("the file", unreadable(error), expected),)) from error


def _decoded(content: bytes) -> str:
    marks = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
    return content.decode("utf-16" if content.startswith(marks) and content not in marks else "utf-8-sig")


def unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Why `read_text` could not read a file, in words for a `Problem`."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not {'UTF-16' if error.encoding.startswith('utf-16') else 'UTF-8'}"
    return error.strerror or str(error)


def kind_of(status: os.stat_result) -> str:
    """What a status is the status of, in words: ``a FIFO``."""
    return _KINDS.get(stat.S_IFMT(status.st_mode), "a regular file")


def check_kind(path: Path, kind: int, expected: str) -> None:
    """Check that *path*, if anything is there, is of that *kind* (S_IFDIR, S_IFSOCK).

    Raises:
        ConfigError: it is something else than what was *expected*, links in a loop, or a link in the place of
            a directory that leads nowhere.
    """
    try:
        status = path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP or (kind == stat.S_IFDIR and path.is_symlink()):
            found = "links in a loop" if error.errno == errno.ELOOP else "a symbolic link that leads nowhere"
            raise ConfigError(str(path), (Problem("the file", found, expected),)) from error
        return
    if stat.S_IFMT(status.st_mode) != kind:
        raise ConfigError(str(path), (Problem("the file", kind_of(status), expected),))


def _check(status: os.stat_result, path: str | Path, most_bytes: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, f"{kind_of(status)}, which is no regular file", str(path))
    if status.st_size > most_bytes:
        raise _too_long(path, most_bytes)


def _too_long(path: str | Path, most_bytes: int) -> OSError:
    limit = f"{most_bytes // MIB} MiB" if most_bytes >= MIB else f"{most_bytes} bytes"
    return OSError(errno.EFBIG, f"a file of more than {limit}", str(path))

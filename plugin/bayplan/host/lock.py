"""One instance per state directory: an advisory lock that the kernel releases when its holder ends.

The lock is on the directory itself: a lock *file* could be deleted while it is held, and a second instance
would lock its successor. A file in the directory names the holder, for people only.
"""

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from bayplan.errors import UnavailableError
from bayplan.files import read_file
from bayplan.host.kernelfs import Descriptor, refusal

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

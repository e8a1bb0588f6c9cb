"""A cgroup's directory, opened once: everything is read and written relative to that descriptor.

A cgroup that is removed and made again under the same name is another cgroup. The descriptor never leads to
the second one: every access to the removed directory fails as "not there".
"""

import os
from typing import NamedTuple, Self

from bayplan.host.descriptor import Descriptor
from bayplan.host.kernelfs import AbsentError, read_text, refusal, write_text
from bayplan.host.watched_files import WatchedFiles


class Identity(NamedTuple):
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
        self.identity = Identity(status.st_dev, status.st_ino)

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

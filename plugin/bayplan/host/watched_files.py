"""Small files of the kernel that are read again only to see whether they show something else.

They stay open: a pread(2) takes 1 us of a cgroup's file, and 7 with opening and closing it. The kernel keeps
a page for each. A descriptor leads to the file of the cgroup, or of the process, that was there when it was
opened: once that is gone, reading fails.
"""

import os
from pathlib import Path
from typing import Final

from bayplan.host.kernelfs import refusal

_MOST_BYTES: Final = 4096
"""What is longer is compared as far as this: no list of CPUs that anybody gives to a container is."""


class WatchedFiles:
    """Files, each with what it showed when it was added. They are closed with it, or by `close`."""

    def __init__(self) -> None:
        self._files: list[tuple[int, bytes]] = []

    def __del__(self) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._files)

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
        self._files.append((descriptor, text))

    def are_unchanged(self) -> bool:
        """Whether all of them still show the same."""
        try:
            return all(os.pread(descriptor, _MOST_BYTES, 0) == text for descriptor, text in self._files)
        except OSError:
            return False

    def close(self) -> None:
        """Watch none of them any more."""
        while self._files:
            os.close(self._files.pop()[0])

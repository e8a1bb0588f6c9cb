"""What a container has written to the disk: where its writable layer and its logs are, and how much that is.

Directories are in the hands of containers: symbolic links are not followed, other file systems not entered,
and a look ends after a number of entries, at a depth, and at a moment. What was not seen by then does not
count: the sum is a lower bound. Everything blocks.
"""

import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from bayplan.host.kernelfs import AbsentError, RefusedError, read_text

MOST_ENTRIES: Final = 200_000
MOST_LEVELS: Final = 64
"""Each costs two file descriptors while what is below it is counted."""
_BLOCK_BYTES: Final = 512
"""Of st_blocks, see stat(2)."""
_UPPER: Final = re.compile(r"(?:^|,)upperdir=(/[^,]*)")
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_LOG_ROOT: Final = "var/log/pods"


class DiskUsage(Struct, frozen=True):
    """What a directory takes of its file system. A file with several names counts once."""

    used_bytes: int = 0
    inodes: int = 0


def writable_layer(pid: int, root: Path = Path("/")) -> Path | None:
    """Where what process *pid* writes to its root file system lies on the host; None where that is no overlay
    (a snapshotter that uses block devices, btrfs or ZFS) or the process is gone."""
    try:
        text = read_text(str(root / "proc" / str(pid) / "mountinfo"))
    except (AbsentError, RefusedError):
        return None
    found = None
    for line in text.splitlines():
        mount, _, source = line.partition(" - ")
        fields, options = mount.split(" "), source.split(" ")
        # proc_pid_mountinfo(5): the fifth field is where it is mounted; the last one there covers the others.
        if len(fields) > 4 and fields[4] == "/":  # noqa: PLR2004 - the fifth
            match = _UPPER.search(options[-1]) if options[0] == "overlay" else None
            found = None if match is None else _ESCAPED.sub(lambda one: chr(int(one[1], 8)), match[1])
    return None if found is None else root / found.lstrip("/")


def log_directory(namespace: str, pod: str, uid: str, container: str, root: Path = Path("/")) -> Path | None:
    """Where kubelet has the logs of a container, and people without it mostly, too; None if they don't."""
    names = f"{namespace}_{pod}_{uid}", container
    if not all((namespace, pod, uid, container)) or any("/" in one or one in {".", ".."} for one in names):
        return None
    directory = root.joinpath(_LOG_ROOT, *names)
    return directory if directory.is_dir() else None


def disk_usage(
    directory: Path,
    until_s: float,
    most_entries: int = MOST_ENTRIES,
    clock_s: Callable[[], float] = time.monotonic,
) -> DiskUsage:
    """What *directory* takes, as far as it can be seen before *until_s*; nothing if it is gone."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return DiskUsage()
    try:
        count = _Count(os.fstat(descriptor), most_entries, until_s, clock_s)
        count.below(descriptor)
        return DiskUsage(count.blocks * _BLOCK_BYTES, count.inodes)
    finally:
        os.close(descriptor)


class _Count:
    """The sums so far, and what is left to spend on them."""

    def __init__(
        self, top: os.stat_result, entries_left: int, until_s: float, clock_s: Callable[[], float]
    ) -> None:
        self.blocks, self.inodes = top.st_blocks, 1
        self._device = top.st_dev
        self._entries_left, self._until_s, self._clock_s = entries_left, until_s, clock_s
        self._linked: set[int] = set()

    def below(self, descriptor: int, level: int = 1) -> None:
        """Add what is in the directory that is open as *descriptor*."""
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if not self._entries_left or self._clock_s() >= self._until_s:
                    return
                self._entries_left -= 1
                try:
                    found = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if found.st_dev != self._device or self._is_known(found):
                    continue
                self.blocks += found.st_blocks
                self.inodes += 1
                if entry.is_dir(follow_symlinks=False) and level < MOST_LEVELS:
                    self._enter(descriptor, entry.name, level + 1)

    def _enter(self, descriptor: int, name: str, level: int) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            child = os.open(name, flags, dir_fd=descriptor)
        except OSError:
            return
        try:
            if os.fstat(child).st_dev == self._device:
                self.below(child, level)
        except OSError:
            return  # It went away meanwhile, or cannot be read.
        finally:
            os.close(child)

    def _is_known(self, found: os.stat_result) -> bool:
        if found.st_nlink == 1 or stat.S_ISDIR(found.st_mode):
            return False
        if found.st_ino in self._linked:
            return True
        self._linked.add(found.st_ino)
        return False

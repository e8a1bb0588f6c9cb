"""What eviction goes by: what is available of memory, processes and disks, by kubelet's formulas, and what
one container has of them. Blocks.

The signals of NUMA nodes are not among them: what these can give is in `bayplan.host.live_memory`. A signal
that this machine does not show is left out.

What a container has written to the disk is in its writable layer and its logs. These directories are in the
hands of containers: symbolic links are not followed, other file systems not entered, and a look ends after a
number of entries, at a depth, and at a moment. What was not seen by then does not count: the sum is a lower
bound.
"""

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from bayplan.errors import ParseError
from bayplan.host.container import ContainerCgroup
from bayplan.host.hierarchy import CPUSET, MEMORY, Hierarchy
from bayplan.host.kernelfs import AbsentError, RefusedError, parse_file, parse_number, read_text
from bayplan.host.memory_statistics import MEM_TOTAL, read_meminfo
from bayplan.kubelet.eviction_manager import ALLOCATABLE_MEMORY, MEMORY_AVAILABLE, SignalObservation
from bayplan.model.kubelet_version import KubeletRules
from bayplan.printable import pattern

_PIDS: Final = "pid.available"
_PODS: Final = ("/kubepods.slice", "/kubepods")
"""kubelet's cgroup of all pods, with either cgroup driver."""
_NODE_DIRECTORIES: Final = ("var/lib/kubelet", "var/lib")
_IMAGE_DIRECTORIES: Final = ("var/lib/containerd", "var/lib/containers/storage", "var/lib/docker")
_HUGE_PAGES: Final = "Hugetlb"
"""Of meminfo: memory of huge pages of all sizes, used or not (Linux 4.16)."""
_LARGEST_LIMIT: Final = 1 << 62
"""A memory limit above it is none (cgroup v1)."""


class FileSystems(Struct, frozen=True):
    """The directories whose file systems count, empty if there are none: of the node, and of images.
    ``separate``: images have a file system of their own, on which containers are, too."""

    node: str = ""
    images: str = ""
    separate: bool = False


def find_file_systems(root: Path = Path("/")) -> FileSystems:
    """The first of the directories in which kubelet and container runtimes keep what they have."""
    node = next((root / one for one in _NODE_DIRECTORIES if (root / one).is_dir()), None)
    images = next((root / one for one in _IMAGE_DIRECTORIES if (root / one).is_dir()), None)
    if node is None or images is None:
        return FileSystems(str(node or ""), str(images or ""))
    return FileSystems(str(node), str(images), images.stat().st_dev != node.stat().st_dev)


def has_kubelet(hierarchy: Hierarchy) -> bool:
    """Whether a kubelet runs pods here: it has made its cgroup for them."""
    return any(Path(f"{hierarchy.mounts[MEMORY]}{path}").is_dir() for path in _PODS)


def read_signals(
    hierarchy: Hierarchy, disks: FileSystems, kubelet: KubeletRules
) -> dict[str, SignalObservation]:
    """What is available by signal. Blocks. Where a kubelet runs pods its thresholds are its own to act on, so
    that the formulas are those of its version, *kubelet*.

    Raises:
        HostError: a file is garbled.
    """
    found = dict(_disks(disks))
    huge_pages_count = has_kubelet(hierarchy) and not kubelet.huge_pages_unavailable
    memory = partial(_memory, huge_pages_count=huge_pages_count)
    for signal, read in ((MEMORY_AVAILABLE, memory), (ALLOCATABLE_MEMORY, _allocatable), (_PIDS, _pids)):
        try:
            one = read(hierarchy)
        except AbsentError:
            continue
        if one is not None:
            found[signal] = one
    return found


def working_set_bytes(hierarchy: Hierarchy, cgroup: str) -> int:
    """What *cgroup*, a path below the mount, uses without page cache that nobody has touched lately.

    kubelet's number (cadvisor's setMemoryStats): usage less inactive_file.

    Raises:
        AbsentError: it is gone.
        HostError: a file is garbled.
    """
    directory = f"{hierarchy.mounts[MEMORY]}{cgroup}"
    usage, inactive = (
        ("memory.current", "inactive_file")
        if hierarchy.unified
        else ("memory.usage_in_bytes", "total_inactive_file")
    )
    used_bytes = parse_file(f"{directory}/{usage}", parse_number)
    return max(0, used_bytes - _stat(directory, inactive)[inactive])


def thread_count(hierarchy: Hierarchy, cgroup: str) -> int:
    """How many process ids *cgroup*, a path below the mount, holds: of all threads, which is what runs out.

    Where the kernel does not count them (cgroup v1, whose pids controller has a mount of its own; no pids
    controller) the number of its processes, which is kubelet's.

    Raises:
        AbsentError: it is gone.
        HostError: a file is garbled.
    """
    try:
        return parse_file(f"{hierarchy.mounts[CPUSET]}{cgroup}/pids.current", parse_number)
    except AbsentError:
        with ContainerCgroup(hierarchy, dict.fromkeys((CPUSET, MEMORY), cgroup)) as opened:
            return len(opened.processes())


def _memory(hierarchy: Hierarchy, *, huge_pages_count: bool) -> SignalObservation:
    """The root cgroup of v2 does not say what it uses: kubelet takes anonymous memory and page cache for it,
    so that the kernel's own memory does not count. Neither does what is set aside for huge pages, which
    nobody else can use: it is taken off what is available, unless *huge_pages_count*, as before kubelet 1.37
    (``server/stats/summary.go``, adjustForHugePages)."""
    amounts = read_meminfo(str(hierarchy.root / "proc/meminfo"), MEM_TOTAL)
    total_bytes, huge_bytes = amounts[MEM_TOTAL], 0 if huge_pages_count else amounts.get(_HUGE_PAGES, 0)
    if hierarchy.unified:
        amounts = _stat(hierarchy.mounts[MEMORY], "anon", "file", "inactive_file")
        used_bytes = max(0, amounts["anon"] + amounts["file"] - amounts["inactive_file"])
    else:
        used_bytes = working_set_bytes(hierarchy, "")
    available_bytes = max(0, total_bytes - used_bytes - huge_bytes)
    return SignalObservation(available_bytes, available_bytes + used_bytes)


def _allocatable(hierarchy: Hierarchy) -> SignalObservation | None:
    """The signal of what kubelet lets all pods use together; None where it sets no limit."""
    limit = "memory.max" if hierarchy.unified else "memory.limit_in_bytes"
    for path in _PODS:
        try:
            text = read_text(f"{hierarchy.mounts[MEMORY]}{path}/{limit}").strip()
        except AbsentError:
            continue
        if text == "max" or (limit_bytes := int(text)) > _LARGEST_LIMIT:
            return None
        used_bytes = working_set_bytes(hierarchy, path)
        available_bytes = max(0, limit_bytes - used_bytes)
        return SignalObservation(available_bytes, available_bytes + used_bytes)
    return None


def _pids(hierarchy: Hierarchy) -> SignalObservation:
    """kubelet: the lower one of two limits, less all threads (pkg/kubelet/stats/pidlimit)."""
    proc = hierarchy.root / "proc"
    most = min(
        parse_file(str(proc / "sys/kernel" / name), parse_number) for name in ("pid_max", "threads-max")
    )
    return SignalObservation(most - parse_file(str(proc / "loadavg"), _parse_threads), most)


def _disks(disks: FileSystems) -> Iterator[tuple[str, SignalObservation]]:
    paths = {"nodefs": disks.node, "imagefs": disks.images}
    paths["containerfs"] = disks.images if disks.separate else disks.node
    looked: dict[str, os.statvfs_result] = {}
    for path in set(paths.values()) - {""}:
        with suppress(OSError):
            looked[path] = os.statvfs(path)
    for name, path in paths.items():
        found = looked.get(path)
        if found is None:
            continue
        unit = found.f_frsize
        yield f"{name}.available", SignalObservation(found.f_bavail * unit, found.f_blocks * unit)
        yield f"{name}.inodesFree", SignalObservation(found.f_ffree, found.f_files)


def _stat(directory: str, *names: str) -> dict[str, int]:
    def parse(text: str) -> dict[str, int]:
        rows = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        if not rows.keys() >= set(names):
            raise ParseError("memory.stat", text, f"lines {', '.join(names)}")
        return {name: parse_number(rows[name]) for name in names}

    return parse_file(f"{directory}/memory.stat", parse)


def _parse_threads(text: str) -> int:
    """The number of threads in ``0.20 0.18 0.12 1/80 11206`` (proc_loadavg(5))."""
    fields = text.split()
    running, slash, threads = fields[3].partition("/") if len(fields) > 3 else ("", "", "")  # noqa: PLR2004 - the fourth
    if not slash or not running.isdecimal():
        raise ParseError("load", text, "a line such as 0.20 0.18 0.12 1/80 11206")
    return parse_number(threads)


MOST_ENTRIES: Final = 200_000
MOST_LEVELS: Final = 64
"""Each costs two file descriptors while what is below it is counted."""
_BLOCK_BYTES: Final = 512
"""Of st_blocks, see stat(2)."""
_UPPER: Final = pattern(r"(?:^|,)upperdir=(/[^,]*)")
_ESCAPED: Final = pattern(r"\\([0-7]{3})")
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

"""Moving pages of running processes from NUMA nodes to others: a few at a time by move_pages(2), or all of a
process by migrate_pages(2).

One call of migrate_pages(2) moves what one process has mapped; it cannot be interrupted, and the process runs
on meanwhile. What nobody has mapped (page cache, files of a tmpfs) stays where it is. Only huge pages of
hugetlbfs need it: all else moves in pieces, and nobody waits for long who maps memory meanwhile.

With move_pages(2) a process waits only where it touches one of the pages that the kernel is just moving,
512 at most at a time. What is moved is anonymous and shared memory; page cache is reclaimed by whoever needs
its node. Memory that a process bound to nodes itself (mbind(2)) is moved only within these.
"""

import ctypes
import errno
import os
import re
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from bayplan.errors import HostError, ParseError
from bayplan.host import shadow_mode
from bayplan.host.container import ContainerCgroup
from bayplan.host.kernelfs import AbsentError, RefusedError, read_optional, read_text
from bayplan.host.libc import libc
from bayplan.printable import pattern
from bayplan.quantity import GIB, KIB, format_bytes
from bayplan.sets import NodeSet, nodes_text

_MIGRATE_PAGES_NUMBERS: Final = {
    "x86_64": 256,
    "aarch64": 238,
    "riscv64": 238,
    "loongarch64": 238,
    "ppc64": 258,
    "ppc64le": 258,
    "s390x": 287,
}
"""The number of the system call by machine (asm/unistd.h): libc has no function for it."""

_HINTS: Final = {
    errno.EPERM: " (it takes CAP_SYS_PTRACE and CAP_SYS_NICE)",
    errno.EINVAL: " (it is ending, or this program's own cpuset.mems has none of these nodes)",
}

_WORD_BITS: Final = 64
_HUGE_PAGES: Final = "huge"
_ON_NODE: Final = pattern(r"\bN(\d{1,5})=(\d{1,18})\b")
_PAGE_SIZE: Final = pattern(r"\bkernelpagesize_kB=(\d{1,9})\b")


def migrate_pages(pid: int, leave: NodeSet, stay: NodeSet) -> int:
    """Move the pages of process *pid* from the nodes *leave* to the nodes *stay*, those that it shares with
    other processes too. Blocks until all of it is tried. Returns how many pages could not be moved.

    Raises:
        AbsentError: the process is gone.
        RefusedError: EPERM, this program lacks CAP_SYS_PTRACE; ENOMEM, no room on *stay*; EINVAL, the process
            is ending, or this program may use none of *stay* itself; ENOSYS, a kernel without NUMA.
        HostError: the number of the call on this kind of machine is not known.
    """
    where = f"process {pid}"
    shadow_mode.check_off(where)
    machine = os.uname().machine
    if machine not in _MIGRATE_PAGES_NUMBERS:
        raise HostError(
            where, f"its pages cannot be moved: migrate_pages(2) has no known number on {machine}"
        )
    words = max(leave.mask.bit_length(), stay.mask.bit_length(), 1) // _WORD_BITS + 1
    # The kernel reads one bit less than this number.
    most = ctypes.c_ulong(words * _WORD_BITS + 1)
    masks = [
        (ctypes.c_uint64 * words)(
            *((nodes.mask >> _WORD_BITS * word) & (1 << _WORD_BITS) - 1 for word in range(words))
        )
        for nodes in (leave, stay)
    ]
    libc().syscall.restype = ctypes.c_long
    left = int(
        libc().syscall(ctypes.c_long(_MIGRATE_PAGES_NUMBERS[machine]), ctypes.c_int(pid), most, *masks)
    )
    if left >= 0:
        return left
    number = ctypes.get_errno()
    problem = f"its pages cannot be moved to {nodes_text(stay)}: {os.strerror(number)}"
    if number == errno.ESRCH:
        raise AbsentError(where, problem)
    raise RefusedError(where, problem + _HINTS.get(number, ""), number)


def move_huge_pages(
    cgroup: ContainerCgroup,
    leave: NodeSet,
    stay: NodeSet,
    most_bytes: int,
    migrate: Callable[[int, NodeSet, NodeSet], object] = migrate_pages,
) -> str:
    """Move the huge pages of hugetlbfs that the processes in *cgroup* have on *leave* to *stay*, with all
    else that these have there, if they are *most_bytes* at most; why some are still there, empty if none are.

    Raises:
        AbsentError: the container is gone.
        HostError: it cannot be known which huge pages it has.
    """

    def there_bytes() -> int:
        return sum(huge_page_bytes(pid, leave, cgroup.root) for pid in cgroup.processes())

    if not (before_bytes := there_bytes()):
        return ""
    what = f"of huge pages on {nodes_text(leave)}"
    if before_bytes > most_bytes:
        most = format_bytes(most_bytes)
        return f"it has {format_bytes(before_bytes)} {what}, and at most {most} are moved at once"
    problem = ""
    for pid in cgroup.processes():
        try:
            migrate(pid, leave, stay)
        except AbsentError:
            continue
        except HostError as error:
            problem = f": {error}"
    left_bytes = there_bytes()
    return f"{format_bytes(left_bytes)} {what} could not be moved{problem}" if left_bytes else ""


def huge_page_bytes(pid: int, nodes: NodeSet, root: Path = Path("/")) -> int:
    """Bytes of huge pages of hugetlbfs that process *pid* has mapped on *nodes*; 0 once it is gone.

    From /proc/PID/numa_maps, which the kernel makes by a walk through the process's memory.

    Raises:
        RefusedError: it cannot be read.
    """
    text = read_optional(str(root / "proc" / str(pid) / "numa_maps")) or ""
    total_bytes = 0
    for line in text.splitlines():
        size = _PAGE_SIZE.search(line)
        if size is None or _HUGE_PAGES not in line.split():
            continue
        pages = sum(int(count) for node, count in _ON_NODE.findall(line) if int(node) in nodes)
        total_bytes += pages * int(size[1]) * KIB
    return total_bytes


CALL_S: Final = 0.02
"""So much CPU time a call should take."""
FEWEST_PAGES: Final = 2048
"""The kernel takes 512 together (mm/migrate.c: NR_MAX_BATCHED_MIGRATION), and nobody waits for more than
these. But each call costs the same beside its pages: all CPUs have to hand in their lists of pages first. In
a virtual machine 512 a call make 141 MiB/s, 2048 make 274, 8192 make 285; migrate_pages(2) makes 185, a
write to cpuset.mems 181."""
MOST_PAGES: Final = 8192
FIRST_PAGES: Final = 4096
LOOKED_AT_PAGES: Final = 16_384
"""Of so many at a time it is asked where they are, which takes 2 ms."""

_NUMBERS: Final = {
    "x86_64": 279,
    "aarch64": 239,
    "riscv64": 239,
    "loongarch64": 239,
    "ppc64": 301,
    "ppc64le": 301,
    "s390x": 310,
}
"""The number of the system call by machine (asm/unistd.h): libc has no function for it."""
_MOVE: Final = 1 << 1
_MOVE_ALL: Final = 1 << 2
"""MPOL_MF_MOVE, MPOL_MF_MOVE_ALL: also pages that several processes share; takes CAP_SYS_NICE."""
_NO_ROOM: Final = os.strerror(errno.ENOMEM)
_UNTRIED: Final = -errno.EAGAIN

_LARGE_BYTES: Final = 8 * GIB
"""Of a process with more, numa_maps is not read: the kernel walks all of its page tables for it, 8 ms for a
GiB of small pages, and whoever maps memory in the process waits for that."""

_RANGE: Final = pattern(r"^([0-9a-f]+)-([0-9a-f]+) ([r-][w-][x-][ps]) \S+ \S+ \S+ *(.*)$", re.MULTILINE)
_POLICY: Final = pattern(r"^([0-9a-f]+) (\S+)(.*)$", re.MULTILINE)
_BIND: Final = pattern(r"bind(?:=[a-z|]+)?:([0-9,-]+)")
_SHARED: Final = ("/dev/zero", "/memfd:", "/dev/shm/", "/SYSV")  # noqa: S108 - names
_HUGE: Final = pattern(r"^HugetlbPages:\s+[1-9]", re.MULTILINE)
_OF_KERNEL: Final = ("[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]")


class PagesMoved(NamedTuple):
    """So many bytes were moved. ``refused_bytes`` were on the node and could not be moved, ``obstacle`` says
    why the last of them could not; ``exhausted``: there was nothing more to try. ``passing``: what keeps them
    there may soon be over."""

    moved_bytes: int = 0
    refused_bytes: int = 0
    obstacle: str = ""
    exhausted: bool = False
    passing: bool = False


class _Lap(NamedTuple):
    """How far a walk through the memory of a process got, and how many pages it moved so far."""

    address: int = 0
    moved: int = 0


class Pace:
    """How many pages a call takes, by the CPU time of the calls before it, and where a walk that was broken
    off goes on. One for all that is moved. ``slowest_s`` is how long the slowest call took in all."""

    def __init__(
        self, cpu_s: Callable[[], float] = time.thread_time, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.pages = FIRST_PAGES
        self.slowest_s = 0.0
        self.laps: dict[tuple[int, int], _Lap] = {}
        self._cpu_s = cpu_s
        self._clock_s = clock_s

    def timed(self, call: Callable[[], int]) -> int:
        """The result of *call*, from which is learned how large the next one may be."""
        begun_s, cpu_begun_s = self._clock_s(), self._cpu_s()
        try:
            return call()
        finally:
            took_s = self._cpu_s() - cpu_begun_s
            self.slowest_s = max(self.slowest_s, self._clock_s() - begun_s)
            if took_s > CALL_S:
                self.pages = max(FEWEST_PAGES, self.pages // 2)
            elif took_s < CALL_S / 4:
                self.pages = min(MOST_PAGES, self.pages * 2)


def move_pages(
    pid: int,
    source: int,
    target: int,
    wanted_bytes: int,
    pace: Pace,
    go_on: Callable[[int], bool] = lambda _: True,
    root: Path = Path("/"),
) -> PagesMoved:
    """Move up to *wanted_bytes* of what process *pid* has on node *source* to node *target*. Before each call
    *go_on* is asked, with the bytes that were moved since it was asked last. What is broken off goes on there
    the next time: it takes seconds to walk through 100 GiB.

    Raises:
        AbsentError: the process is gone.
        RefusedError: EPERM, this program lacks CAP_SYS_PTRACE; EACCES, the process may not use *target*;
            ENODEV, there is no such node.
        HostError: the number of the call on this kind of machine is not known.
    """
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    wanted = -(-wanted_bytes // page_bytes)
    moved = refused = reported = 0
    obstacle, lap = "", pace.laps.pop((pid, source), _Lap())
    for start, stop in _pieces(movable_ranges(pid, source, target, root), lap.address, page_bytes):
        left = _on_node(pid, source, array("Q", range(start, stop, page_bytes)))
        while True:
            if not go_on((moved - reported) * page_bytes):
                pace.laps[pid, source] = _Lap(left[0] if left else stop, lap.moved + moved)
                return PagesMoved(moved * page_bytes, refused * page_bytes, obstacle)
            reported = moved
            some, left = left[: min(pace.pages, wanted - moved)], left[min(pace.pages, wanted - moved) :]
            if not some:
                break
            done, problem = _move(pid, some, target, pace)
            moved += done
            refused += len(some) - done
            obstacle = problem or obstacle
            if moved >= wanted:
                return PagesMoved(moved * page_bytes, refused * page_bytes, obstacle)
    # What is before the place where it went on may have come back.
    exhausted = not lap.address or not lap.moved + moved
    passing = obstacle == _NO_ROOM
    return PagesMoved(moved * page_bytes, refused * page_bytes, obstacle, exhausted, passing)


def _pieces(ranges: Iterable[tuple[int, int]], since: int, page_bytes: int) -> Iterator[tuple[int, int]]:
    """*ranges* from the address *since* on, in pieces that one call can look at."""
    for start, end in ranges:
        for first in range(max(start, since), end, LOOKED_AT_PAGES * page_bytes):
            yield first, min(end, first + LOOKED_AT_PAGES * page_bytes)


def movable_ranges(pid: int, source: int, target: int, root: Path = Path("/")) -> list[tuple[int, int]]:
    """The parts of the address space of process *pid* with memory that may be moved: first and last address,
    the last not included. Where numa_maps can be read, only those with pages on *source*. Never those of huge
    pages of hugetlbfs: they are promised where they are, and their pool goes with them.

    Raises:
        AbsentError: the process is gone.
        RefusedError: its maps cannot be read.
    """
    directory = root / "proc" / str(pid)
    maps = read_text(str(directory / "maps"))
    if not maps and not (directory / "maps").exists():
        raise AbsentError(str(directory), "the process is gone")
    kept, has_huge_pages = None, False
    if _resident_bytes(directory) <= _LARGE_BYTES:
        kept = set(_allowed(read_text(str(directory / "numa_maps")), source, target))
    else:
        has_huge_pages = _HUGE.search(read_text(str(directory / "status"))) is not None
    found = []
    for start_text, end_text, modes, name in _RANGE.findall(maps):
        start = int(start_text, 16)
        if name in _OF_KERNEL or (kept is not None and start not in kept):
            continue
        if has_huge_pages and name.startswith("/"):
            continue  # Its name does not say whether it is of huge pages.
        shared = modes[3] == "s"
        if (shared and not name.startswith(_SHARED)) or (kept is None and not shared and modes[1] != "w"):
            continue
        found.append((start, int(end_text, 16)))
    return found


def _allowed(numa_maps: str, source: int, target: int) -> Iterator[int]:
    """The first addresses of the mappings of *numa_maps* that have memory of processes on *source*, which may
    be on *target*."""
    on_source = f" N{source}="
    for start, policy, rest in _POLICY.findall(numa_maps):
        if on_source not in rest or " huge" in rest:
            continue
        if " anon=" not in rest and not any(f"file={name}" in rest for name in _SHARED):
            continue
        bound = _BIND.match(policy)
        if bound is not None and not _within(bound[1], target):
            continue
        yield int(start, 16)


def is_bound(pid: int, root: Path = Path("/")) -> bool:
    """Whether all memory of a process is bound to nodes by a memory policy. Not to be asked of large ones:
    see `_LARGE_BYTES`.

    Raises:
        HostError: it cannot be read.
    """
    found = _POLICY.findall(read_text(str(root / "proc" / str(pid) / "numa_maps")))
    return bool(found) and all(_BIND.fullmatch(policy) for _, policy, _ in found)


def _within(nodes: str, node: int) -> bool:
    try:
        return node in NodeSet.parse(nodes)
    except ParseError:
        return False


def _resident_bytes(directory: Path) -> int:
    pages = read_text(str(directory / "statm")).split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if len(pages) > 1 else 0


def _on_node(pid: int, node: int, addresses: "array[int]") -> "array[int]":
    """Those *addresses* whose pages are on *node*."""
    status = array("i", [_UNTRIED]) * len(addresses)
    _call(pid, addresses, None, status, 0)
    if node not in status:
        return array("Q")
    return array("Q", [one for one, where in zip(addresses, status, strict=True) if where == node])


def _move(pid: int, addresses: "array[int]", target: int, pace: Pace) -> tuple[int, str]:
    """How many of the pages at *addresses* are on *target* afterwards, and why one of the others is not."""
    nodes = array("i", [target]) * len(addresses)
    status = array("i", [_UNTRIED]) * len(addresses)
    try:
        pace.timed(lambda: _call(pid, addresses, nodes, status, _MOVE_ALL))
    except RefusedError as error:
        if error.errno != errno.EPERM:
            raise
        # Without CAP_SYS_NICE only what no other process shares.
        pace.timed(lambda: _call(pid, addresses, nodes, status, _MOVE))
    # A huge page goes as a whole with the first of its parts, and the kernel says of the others that they are
    # busy. Only where they are now counts.
    there = array("i", [_UNTRIED]) * len(addresses)
    _call(pid, addresses, None, there, 0)
    failed = next((-why for why, now in zip(status, there, strict=True) if now != target and why < 0), 0)
    return there.count(target), os.strerror(failed) if failed else ""


def _call(
    pid: int, addresses: "array[int]", nodes: "array[int] | None", status: "array[int]", flags: int
) -> int:
    machine, where = os.uname().machine, f"process {pid}"
    if nodes is not None:
        shadow_mode.check_off(where)
    if machine not in _NUMBERS:
        raise HostError(where, f"its pages cannot be moved: move_pages(2) has no known number on {machine}")
    libc().syscall.restype = ctypes.c_long
    result = int(
        libc().syscall(
            ctypes.c_long(_NUMBERS[machine]),
            ctypes.c_int(pid),
            ctypes.c_ulong(len(addresses)),
            ctypes.c_void_p(addresses.buffer_info()[0]),
            ctypes.c_void_p(None if nodes is None else nodes.buffer_info()[0]),
            ctypes.c_void_p(status.buffer_info()[0]),
            ctypes.c_int(flags),
        )
    )
    if result >= 0:
        return result
    number = ctypes.get_errno()
    problem = f"its pages cannot be moved: {os.strerror(number)}"
    if number == errno.ESRCH:
        raise AbsentError(where, problem)
    if number in (errno.ENOENT, errno.ENOMEM, errno.EBUSY):
        return len(addresses)  # The status of each says more.
    raise RefusedError(where, problem, number)

"""Moving the pages of processes from NUMA nodes to others: migrate_pages(2), and what it could not move.

One call moves what one process has mapped; it cannot be interrupted, and the process runs on meanwhile. What
nobody has mapped (page cache, files of a tmpfs) stays where it is. Only huge pages of hugetlbfs need it: all
else moves in pieces (`bayplan.host.page_moves`), and nobody waits for long who maps memory meanwhile.
"""

import ctypes
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bayplan.errors import HostError
from bayplan.host import shadow_mode
from bayplan.host.container import ContainerCgroup
from bayplan.host.kernelfs import AbsentError, RefusedError, read_optional
from bayplan.host.libc import libc
from bayplan.quantity import KIB, format_bytes
from bayplan.sets import NodeSet, nodes_text

_NUMBERS: Final = {
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
_ON_NODE: Final = re.compile(r"\bN(\d{1,5})=(\d{1,18})\b")
_PAGE_SIZE: Final = re.compile(r"\bkernelpagesize_kB=(\d{1,9})\b")


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
    if machine not in _NUMBERS:
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
    left = int(libc().syscall(ctypes.c_long(_NUMBERS[machine]), ctypes.c_int(pid), most, *masks))
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

"""What a container holds on each node: memory.numa_stat of its cgroup, the only parser of it.

Read for every container each second while memory is short, so that only the lines that somebody uses are
taken apart. Without them the text is garbage.
"""

import os
import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from bayplan.errors import ParseError

_OF_PROCESSES: Final = ("inactive_anon", "active_anon", "unevictable")
"""Anonymous memory, shared memory and what is locked: the kernel's lists, of which each page is on one."""
_OF_KERNEL: Final = ("kernel_stack", "pagetables", "sec_pagetables", "slab_unreclaimable")
"""What the kernel holds for a container, and no process can take along."""
_OF_FILES: Final = ("inactive_file", "active_file")
_SHARED: Final = ("shmem",)
_MAPPED: Final = ("file_mapped",)
"""Of files and shared memory what some process has mapped."""
_LEGACY_OF_PROCESSES: Final = ("anon", "unevictable")
"""cgroup v1 does not say where a cgroup's kernel memory is: it counts as held outside of containers."""

_COLUMNS: Final = r"((?: N\d{1,5}=\d{1,20})*)$"
_LINE: Final = re.compile(
    f"^({'|'.join(sorted((*_OF_PROCESSES, *_OF_KERNEL, *_OF_FILES, *_SHARED, *_MAPPED)))}){_COLUMNS}",
    re.MULTILINE,
)
_LEGACY_LINE: Final = re.compile(rf"^hierarchical_(anon|file|unevictable)=\d+{_COLUMNS}", re.MULTILINE)
_NODE_VALUE: Final = re.compile(r"N(\d+)=([1-9]\d*)")
"""Most containers have nothing on most nodes."""

EXPECTED: Final = "lines such as 'inactive_anon N0=4096 N1=0'"
LEGACY_EXPECTED: Final = "lines such as 'hierarchical_anon=3 N0=1 N1=2'"


class HeldPages(Struct, frozen=True):
    """What a container holds on each node: memory of its processes, of the kernel for it, and page cache.
    ``unmapped_bytes`` of the first is shared memory (a tmpfs) that no process has mapped: nobody can move it.
    Locked memory can be moved."""

    of_processes_bytes: Mapping[int, int] = {}
    of_kernel_bytes: Mapping[int, int] = {}
    of_files_bytes: Mapping[int, int] = {}
    unmapped_bytes: Mapping[int, int] = {}

    @property
    def movable_bytes(self) -> dict[int, int]:
        """What can be moved by what it is, by node."""
        return {
            node: max(0, amount - self.unmapped_bytes.get(node, 0))
            for node, amount in self.of_processes_bytes.items()
        }

    @property
    def unreclaimable_bytes(self) -> dict[int, int]:
        """What the kernel cannot take back without swap, by node."""
        found = dict(self.of_processes_bytes)
        for node, amount in self.of_kernel_bytes.items():
            found[node] = found.get(node, 0) + amount
        return found


def parse_numa_stat(text: str) -> HeldPages:
    """memory.numa_stat of cgroup v2, in bytes: the lines that are about whose memory it is.

    Raises:
        ParseError: lines that there must be are missing or garbled.
    """
    rows = dict(_LINE.findall(text))
    if not rows.keys() >= set(_OF_PROCESSES):
        raise ParseError("memory by node", text, EXPECTED)
    mapped_bytes = _sum(rows, _MAPPED, 1)
    # At least so much: files of a disk may be mapped as well.
    unmapped_bytes = {
        node: more
        for node, amount in _sum(rows, _SHARED, 1).items()
        if (more := amount - mapped_bytes.get(node, 0)) > 0
    }
    return HeldPages(
        _sum(rows, _OF_PROCESSES, 1), _sum(rows, _OF_KERNEL, 1), _sum(rows, _OF_FILES, 1), unmapped_bytes
    )


def parse_legacy_numa_stat(text: str) -> HeldPages:
    """The same of cgroup v1, in pages, cgroups below included. Its ``file`` has shared memory in it too,
    which is anonymous memory to others."""
    rows = dict(_LEGACY_LINE.findall(text))
    if "anon" not in rows:
        raise ParseError("memory by node", text, LEGACY_EXPECTED)
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return HeldPages(_sum(rows, _LEGACY_OF_PROCESSES, page_bytes), {}, _sum(rows, ("file",), page_bytes))


def _sum(rows: Mapping[str, str], kinds: Iterable[str], unit_bytes: int) -> dict[int, int]:
    """The bytes of all *kinds* by node, as far as they are more than 0."""
    found: dict[int, int] = {}
    for kind in kinds:
        for node, amount in _NODE_VALUE.findall(rows.get(kind, "")):
            number = int(node)
            found[number] = found.get(number, 0) + int(amount) * unit_bytes
    return found

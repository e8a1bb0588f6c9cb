"""The kernel's pools of huge pages, by node and page size: what they have, and having them grow and shrink.

A pool's size is ``nr_hugepages`` less surplus pages, which is what a write to that file sets. The kernel goes
on with one write until it has all pages or gets no more, minutes for a terabyte: so a size is reached in
portions, and between two of them somebody may say that it is enough. A pool never gets smaller than what is
used of it and promised to mappings (``resv_hugepages``, which the kernel counts for all nodes together).
Blocking calls.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from bayplan.errors import BayplanError, HostError
from bayplan.host.kernelfs import (
    numbered_entries,
    optional_number,
    parse_file,
    parse_number,
    read_optional,
    write_text,
)
from bayplan.printable import pattern
from bayplan.quantity import KIB, MIB

_DIRECTORY: Final = pattern(r"hugepages-(\d+)kB")
_PORTION_BYTES: Final = 256 * MIB
"""What one write asks for at most, if a page is not larger: some 50 ms where memory is free."""

Write = Callable[[str, str], None]


class Resized(Struct, frozen=True):
    """What became of pools: node -> page size -> bytes they have now, and why some have not what was asked
    for, each a sentence. A pool that cannot be read is not among them."""

    pools: Mapping[int, Mapping[int, int]]
    problems: tuple[str, ...] = ()


class HugepageFiles:
    """The pools of the kernel below *root*, whose ordinary pages have *page_bytes*; *write* writes its
    files."""

    def __init__(
        self,
        root: Path = Path("/"),
        write: Write = write_text,
        page_bytes: int = os.sysconf("SC_PAGE_SIZE"),
    ) -> None:
        self._root = root
        self._write = write
        self._page_bytes = page_bytes

    def free_bytes(self, node: int) -> dict[int, int]:
        """What is free of each pool of *node* and reserved by no mapping, by page size.

        Raises:
            HostError: a file is garbled, or a pool went away while it was read.
        """
        directory, free = self._directory(node), dict[int, int]()
        for size_kib in numbered_entries(directory, _DIRECTORY):
            name = f"hugepages-{size_kib}kB"
            reserved = optional_number(f"{self._root}/sys/kernel/mm/hugepages/{name}/resv_hugepages")
            found = parse_file(f"{directory}/{name}/free_hugepages", parse_number)
            free[size_kib * KIB] = max(0, found - reserved) * size_kib * KIB
        return free

    def is_fragmented(self, node: int, size_bytes: int, amount_bytes: int) -> bool:
        """Whether *node* has fewer free blocks of the size of a page than *amount_bytes* need. Blocks that no
        list of the kernel is for (1Gi) are never known to be free."""
        order = (size_bytes // self._page_bytes).bit_length() - 1
        blocks = 0
        for line in (read_optional(f"{self._root}/proc/buddyinfo") or "").splitlines():
            place, _, counts = line.partition("zone")
            if place.strip(" ,") == f"Node {node}":
                rows = counts.split()[1:]
                blocks += sum(
                    int(count) << above for above, count in enumerate(rows[order:]) if count.isdigit()
                )
        return blocks * size_bytes < amount_bytes

    def compact(self, node: int) -> bool:
        """Have the kernel move pages of *node* together, so that free memory is in large blocks; whether it
        can. That takes seconds for some 100 GiB, changes no pool, and cannot be ended.

        Raises:
            HostError: it can and does not do so.
        """
        for path in (f"sys/devices/system/node/node{node}/compact", "proc/sys/vm/compact_memory"):
            file = self._root / path
            if file.exists():
                self._write(str(file), "1")
                return True
        return False

    def resize(self, wanted: Mapping[int, Mapping[int, int]], may_go_on: Callable[[], bool]) -> Resized:
        """Have pools get the sizes *wanted* (node -> page size -> bytes), as far as the kernel has pages and
        as long as *may_go_on*; what was begun is finished."""
        pools, problems = dict[int, dict[int, int]](), list[str]()
        for node, row in sorted(wanted.items()):
            for size, amount in sorted(row.items()):
                try:
                    self._resize(node, size, amount // size, may_go_on)
                except BayplanError as error:
                    problems.append(str(error))
                try:
                    pools.setdefault(node, {})[size] = self._pages(node, size) * size
                except HostError as error:
                    problems.append(str(error))
        return Resized(pools, tuple(dict.fromkeys(problems)))

    def _resize(self, node: int, size: int, wanted: int, may_go_on: Callable[[], bool]) -> None:
        portion, now = max(1, _PORTION_BYTES // size), self._pages(node, size)
        while now != wanted and may_go_on():
            if wanted < now:
                free = self.free_bytes(node).get(size, 0) // size
                due = now - min(portion, now - wanted, free)
            else:
                due = min(now + portion, wanted)
            if due == now:
                return
            self._write(f"{self._pool(node, size)}/nr_hugepages", str(due))
            before, now = now, self._pages(node, size)
            if now != due or now == before:
                return

    def _pages(self, node: int, size: int) -> int:
        pool = self._pool(node, size)
        return max(
            0, parse_file(f"{pool}/nr_hugepages", parse_number) - optional_number(f"{pool}/surplus_hugepages")
        )

    def _pool(self, node: int, size: int) -> str:
        return f"{self._directory(node)}/hugepages-{size // KIB}kB"

    def _directory(self, node: int) -> str:
        """Of a kernel without NUMA: that of the machine."""
        nodes = f"{self._root}/sys/devices/system/node"
        return (
            f"{nodes}/node{node}/hugepages"
            if Path(nodes).is_dir()
            else f"{self._root}/sys/kernel/mm/hugepages"
        )

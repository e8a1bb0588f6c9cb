"""The kernel's files about memory, each taken apart here only: meminfo, memory.numa_stat of a cgroup,
zoneinfo.

memory.numa_stat is read for every container each second while memory is short, so that only the lines that
somebody uses are taken apart; without them the text is garbage. zoneinfo is long with many CPUs: not for
every second.

A page is taken for a process only while its zone has more free than a watermark and the zone's
`lowmem_reserve` for user memory (``protection``; mm/page_alloc.c, `__zone_watermark_ok`). Below the min
watermark the kernel reclaims, and kills where nothing can be reclaimed. What it calls reserved from user
space, `totalreserve_pages`, is the high watermark and that reserve, zone by zone; so it is here.

When the kernel has to mix kinds of pages it raises all marks by a block of pages, until it has reclaimed
some (`boost_watermark`). On x86 that is 2 MiB, hardly more than what is between the marks, and over within a
moment; with pages of 64 KiB it is 512 MiB, and somebody is killed beside them. So one block is kept. Where
nothing could be reclaimed sixteen times the kernel gives up, and the marks stay raised, by up to one and a
half times the high one: so what they are raised by at the moment counts as well.

Free pages on the list of a CPU are not free to the zone, MemFree leaves them out, and somebody is killed
beside them. Below ``high_min``, the CPU's share of the low watermark, they stay for as long as it likes; from
Linux 6.7 on a list may grow to its share of an eighth of the zone, and falls back to that at each update of
the CPU's statistics (`zone_highsize`, `decay_pcp_high`). Kernels up to 6.12 do not print ``high_min``, and
the ``high`` of a list that pages were only taken from is less than that. Before 5.14, which has no
percpu_pagelist_high_fraction, all lists are kept at ``high``, six batches.

An owner that touches memory on one CPU after the other leaves a list on each of them, also where all were
empty before: so what the lists of the node's CPUs may keep counts; of all CPUs where the node has none. In a
virtual machine a node of 1 GiB without CPUs had 37 MiB on the lists of four when the owner of all that was
promised there had others killed.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.errors import ParseError
from bayplan.host.kernelfs import optional_number, parse_file, parse_number, read_optional
from bayplan.printable import pattern
from bayplan.quantity import KIB
from bayplan.sets import CpuSet

_MEMINFO_LINE: Final = pattern(r"^(?:Node \d+ )?([^:\n]+): +(\d{1,20}) kB$", re.MULTILINE)

MEM_TOTAL: Final = "MemTotal"
MEM_FREE: Final = "MemFree"
FILES: Final = ("Active(file)", "Inactive(file)")

_RECLAIMABLE: Final = ("KReclaimable", "SReclaimable")
"""The newer one (Linux 4.20) contains the older one."""

_OTHERS: Final = ("Active(anon)", "Inactive(anon)", "Unevictable", "SUnreclaim", "KernelStack", "PageTables")
"""The lines that count what is no page of a file."""


def read_meminfo(path: str, *needed: str, text: str | None = None) -> dict[str, int]:
    """The lines of the file *path* that are in kB, in bytes: those *needed*, and others; *text* where the
    file has been read already.

    Raises:
        HostError: the file is absent, or one of *needed* is missing or garbled.
    """

    def parse(text: str) -> dict[str, int]:
        amounts = {name: int(number) * KIB for name, number in _MEMINFO_LINE.findall(text)}
        if not amounts.keys() >= set(needed):
            raise ParseError("meminfo", text, f"lines {', '.join(needed)} in kB")
        return amounts

    return parse_file(path, parse, text)


def slab_bytes(amounts: Mapping[str, int]) -> int:
    """What the kernel holds for itself and can give back, by the lines of `read_meminfo`."""
    return next((amounts[name] for name in _RECLAIMABLE if name in amounts), 0)


def cache_bytes(amounts: Mapping[str, int], pools_bytes: int) -> int:
    """The page cache by the lines of `read_meminfo`, on a node whose pools of huge pages have so much.

    Kernels have lost count of it, and said that there is more than memory (UEK 6.12): what is free, or
    counted as something else, is no page cache.
    """
    others = sum(amounts.get(name, 0) for name in (MEM_FREE, *_OTHERS)) + slab_bytes(amounts) + pools_bytes
    counted = sum(amounts.get(name, 0) for name in FILES)
    return max(0, min(counted, amounts[MEM_TOTAL] - others))


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
_NUMA_STAT_LINE: Final = pattern(
    f"^({'|'.join(sorted((*_OF_PROCESSES, *_OF_KERNEL, *_OF_FILES, *_SHARED, *_MAPPED)))}){_COLUMNS}",
    re.MULTILINE,
)
_LEGACY_LINE: Final = pattern(rf"^hierarchical_(anon|file|unevictable)=\d+{_COLUMNS}", re.MULTILINE)
_NODE_VALUE: Final = pattern(r"N(\d+)=([1-9]\d*)")
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
    rows = dict(_NUMA_STAT_LINE.findall(text))
    if not rows.keys() >= set(_OF_PROCESSES):
        raise ParseError("memory by node", text, EXPECTED)
    mapped_bytes = _sum_of_counters(rows, _MAPPED, 1)
    # At least so much: files of a disk may be mapped as well.
    unmapped_bytes = {
        node: more
        for node, amount in _sum_of_counters(rows, _SHARED, 1).items()
        if (more := amount - mapped_bytes.get(node, 0)) > 0
    }
    return HeldPages(
        _sum_of_counters(rows, _OF_PROCESSES, 1),
        _sum_of_counters(rows, _OF_KERNEL, 1),
        _sum_of_counters(rows, _OF_FILES, 1),
        unmapped_bytes,
    )


def parse_legacy_numa_stat(text: str) -> HeldPages:
    """memory.numa_stat of cgroup v1, in pages, cgroups below included. Its ``file`` also counts shared
    memory, which counts as anonymous memory everywhere else."""
    rows = dict(_LEGACY_LINE.findall(text))
    if "anon" not in rows:
        raise ParseError("memory by node", text, LEGACY_EXPECTED)
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    return HeldPages(
        _sum_of_counters(rows, _LEGACY_OF_PROCESSES, page_bytes),
        {},
        _sum_of_counters(rows, ("file",), page_bytes),
    )


def _sum_of_counters(rows: Mapping[str, str], kinds: Iterable[str], unit_bytes: int) -> dict[int, int]:
    """The bytes of all *kinds* by node, as far as they are more than 0."""
    found: dict[int, int] = {}
    for kind in kinds:
        for node, amount in _NODE_VALUE.findall(rows.get(kind, "")):
            number = int(node)
            found[number] = found.get(number, 0) + int(amount) * unit_bytes
    return found


PATH: Final = "proc/zoneinfo"
FRACTION: Final = "proc/sys/vm/percpu_pagelist_high_fraction"
"""Which part of a zone the lists of all its CPUs may have together; 0: the kernel decides. From 5.14 on."""

_BOOST: Final = "proc/sys/vm/watermark_boost_factor"
"""0: marks are never raised. From 5.0 on."""

_BLOCK: Final = "sys/kernel/mm/transparent_hugepage/hpage_pmd_size"
"""As large is a block of pages (`pageblock_nr_pages`) where the kernel has huge pages."""

_LEAST_BLOCKS: Final = 4
"""In zones with less the marks are never raised."""

_CPUS: Final = "sys/devices/system/node/node{}/cpulist"
_LEAST_BATCHES: Final = 4
"""A list of so many batches is the shortest that the kernel has."""

_NOT_FOR_THE_KERNEL: Final = ("Movable", "Device")
_ZONE_LINE: Final = pattern(
    r"^Node (\d+), zone +(\S+)"
    r"|^ +(boost|min|low|high|managed|protection:|cpu:|count:|high:|batch:|high_min:) +(.+)$",
    re.MULTILINE,
)


class CpuLists(Struct, frozen=True):
    """Free bytes of a node on the lists of all CPUs: ``now_bytes``, of which ``lasting_bytes`` do not go back
    by themselves."""

    now_bytes: int = 0
    lasting_bytes: int = 0


class NodeZones(Struct, frozen=True):
    """The zones of a node together, ``managed_bytes`` in all. Below ``low_bytes`` of free memory the kernel
    begins to reclaim. Of what is free nobody can be promised ``reserve_bytes``; ``unusable_bytes`` is that
    with what lists may keep and the reserve does not cover. ``kernel_bytes`` are those of ``managed_bytes``
    that the kernel can use for itself: none where all of it is in the zone Movable, as when memory of CXL or
    persistent memory was brought online so that it can be taken away again."""

    low_bytes: int = 0
    reserve_bytes: int = 0
    unusable_bytes: int = 0
    managed_bytes: int = 0
    lists: CpuLists = CpuLists()
    kernel_bytes: int = 0


NO_ZONES: Final = NodeZones()


def read_zones(root: Path = Path("/")) -> dict[int, NodeZones]:
    """What is known of each node that has zones; nothing where the file is absent.

    Raises:
        HostError: a file is garbled, or cannot be read.
    """
    zones: dict[int, NodeZones] = {}
    text = read_optional(str(root / PATH))
    if text is None:
        return zones
    written, block = read_optional(str(root / FRACTION)), 0
    fraction = None if written is None else parse_file(FRACTION, parse_number, written)
    if optional_number(str(root / _BOOST)):
        block = optional_number(str(root / _BLOCK)) // os.sysconf("SC_PAGE_SIZE")
    cpu_counts: dict[int, int] = {}
    for node, name, marks, lists in _zones(text):
        if node not in cpu_counts:
            cpus = read_optional(str(root / _CPUS.format(node)))
            cpu_counts[node] = len(parse_file(_CPUS.format(node), CpuSet.parse, cpus)) if cpus else 0
        zone = _zone(marks, lists, cpu_counts[node] or len(lists), fraction, block)
        if name not in _NOT_FOR_THE_KERNEL:
            zone = replace(zone, kernel_bytes=zone.managed_bytes)
        zones[node] = zone if node not in zones else _sum(zones[node], zone)
    return zones


_Row = dict[str, int]
_Line = tuple[str, str, str, str]
"""Node and name of a zone, or name and value of what is in it."""


def _zones(text: str) -> Iterator[tuple[int, str, _Row, list[_Row]]]:
    """Of each zone its node and name, its amounts in pages by name, and those of the list of each CPU."""
    for header, *fields in _split(_ZONE_LINE.findall(text)):
        marks, lists = _Row(), list[_Row]()
        for _, _, name, value in fields:
            if name == "cpu:":
                lists.append({})
            elif name == "protection:":
                # One for each zone that may be asked for: those for user memory are the last, and largest.
                marks[name] = max(map(int, re.findall(r"\d+", value)), default=0)
            elif value.isdecimal():
                (lists[-1] if name.endswith(":") and lists else marks)[name] = int(value)
        yield int(header[0]), header[1], marks, lists


def _split(rows: list[_Line]) -> list[list[_Line]]:
    """One group for each zone, the first of its rows being the one with the node."""
    groups: list[list[_Line]] = []
    for row in rows:
        if row[0]:
            groups.append([row])
        elif groups:
            groups[-1].append(row)
    return groups


def _zone(marks: _Row, lists: list[_Row], sharing_cpus: int, fraction: int | None, block: int) -> NodeZones:
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    # Kernels that do not name what the marks are raised by have it in them.
    boost = marks.get("boost", 0)
    low, high, least = (max(0, marks.get(name, 0) - boost) for name in ("low", "high", "min"))
    managed, protection = marks.get("managed", 0), marks.get("protection:", 0)
    raised = max(boost, block if managed >= _LEAST_BLOCKS * block else 0)
    high = max(high, least + raised)
    now = lasting = longest = 0
    for one in lists:
        count, shortest = one.get("count:", 0), _LEAST_BATCHES * one.get("batch:", 0)
        share = (managed // fraction if fraction else low) // sharing_cpus
        computed = max(share, shortest)
        high_min = one.get("high_min:", one.get("high:", computed) if fraction is None else computed)
        now += count
        lasting += min(count, high_min)
        longest = max(longest, high_min)
    kept = max(lasting, longest * sharing_cpus)
    return NodeZones(
        low * page_bytes,
        min(managed, protection + high) * page_bytes,
        # Between the high watermark and the lowest one there is room for what lists keep.
        min(managed, protection + max(high, least + boost + kept)) * page_bytes,
        managed * page_bytes,
        CpuLists(now * page_bytes, lasting * page_bytes),
    )


def _sum(one: NodeZones, other: NodeZones) -> NodeZones:
    lists = CpuLists(
        one.lists.now_bytes + other.lists.now_bytes, one.lists.lasting_bytes + other.lists.lasting_bytes
    )
    return NodeZones(
        one.low_bytes + other.low_bytes,
        one.reserve_bytes + other.reserve_bytes,
        one.unusable_bytes + other.unusable_bytes,
        one.managed_bytes + other.managed_bytes,
        lists,
        one.kernel_bytes + other.kernel_bytes,
    )

"""Memory at this moment: what each node can still give, what no container can have of it, what each container
holds there; and what containers and nodes are doing.

A look at the nodes is one small file each. What a container holds is memory.numa_stat of its cgroup, whose
path is looked for once. Nothing here judges or changes anything.

Held is what is used, without huge pages (their pools are not ordinary memory), page cache and other memory
that can be reclaimed, free pages on the lists of the CPUs, and the unreclaimable memory of the containers.
What remains has in it also what no counter names: pages of drivers, vmalloc, per-CPU memory. What is kept
free, /proc/zoneinfo says: an owner that touches it is killed.

Counters are since the start of the cgroup or the machine; whoever shows rates asks twice. Nothing is
remembered but where the files are, and what containers held when that was read last. Calls block for some
small files of each container.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from bayplan.errors import HostError
from bayplan.host.container import ContainerCgroup
from bayplan.host.hierarchy import MEMORY, Hierarchy
from bayplan.host.kernelfs import (
    AbsentError,
    RefusedError,
    garbage,
    parse_file,
    read_optional,
    read_text,
    refusal,
)
from bayplan.host.memory_statistics import (
    FILES,
    MEM_FREE,
    MEM_TOTAL,
    NO_ZONES,
    HeldPages,
    NodeZones,
    cache_bytes,
    parse_legacy_numa_stat,
    parse_numa_stat,
    read_meminfo,
    read_zones,
    slab_bytes,
)
from bayplan.placement.page_placement import NodeMemory
from bayplan.printable import pattern
from bayplan.quantity import KIB
from bayplan.sets import NodeSet

_NODE: Final = "sys/devices/system/node/node{}/meminfo"

_FREE: Final = f"{MEM_FREE}:".encode()
_NODE_BYTES: Final = 4096
"""A file of sysfs is not longer."""

_SERVICES: Final = ("system.slice", "user.slice")
"""Not machine.slice, where systemd has containers and virtual machines, nor what somebody else made."""


def read_nodes(
    pools_bytes: Mapping[int, int], zones: Mapping[int, NodeZones], root: Path = Path("/")
) -> dict[int, NodeMemory]:
    """What the nodes of *pools_bytes* (the size of all huge page pools together, by node) have. A node that
    is gone is left out. *zones* hardly ever change.

    Raises:
        HostError: a file is garbled.
    """
    found = {}
    for node, pools in pools_bytes.items():
        try:
            found[node] = _node(str(root / _NODE.format(node)), pools, zones.get(node, NO_ZONES))
        except AbsentError:
            continue
    return found


class FreeMemory:
    """MemFree of each node, read again and again through descriptors that stay open: 6 us each, of which the
    kernel takes 5. With opening and closing it is 12, and another 14 for the other lines."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._descriptors: dict[int, int] = {}

    def read(self, node: int) -> int:
        """The bytes that are free on *node*, also those that the kernel gives to no process.

        Raises:
            AbsentError: there is no such node (any more).
            HostError: the file is garbled, or cannot be read.
        """
        try:
            descriptor = self._descriptors.get(node)
            if descriptor is None:
                descriptor = os.open(self._path(node), os.O_RDONLY | os.O_CLOEXEC)
                self._descriptors[node] = descriptor
            text = os.pread(descriptor, _NODE_BYTES, 0)
        except OSError as error:
            self._close(node)
            raise refusal(self._path(node), "cannot be read", error) from error
        words = text.partition(_FREE)[2].split(None, 1)
        if not words or not words[0].isdigit():
            found = text.decode("ascii", "backslashreplace")
            raise garbage(self._path(node), found, f"a line {MEM_FREE} in kB")
        return int(words[0]) * KIB

    def _path(self, node: int) -> str:
        return str(self._root / _NODE.format(node))

    def _close(self, node: int) -> None:
        descriptor = self._descriptors.pop(node, None)
        if descriptor is not None:
            os.close(descriptor)


def _node(path: str, pools_bytes: int, zones: NodeZones) -> NodeMemory:
    amounts = read_meminfo(path, MEM_TOTAL, MEM_FREE, *FILES)
    # As the kernel estimates MemAvailable: half of the page cache at most, up to the low watermark, is needed
    # by what runs. What is to be written to a disk first cannot be had at once.
    files, slab = cache_bytes(amounts, pools_bytes), slab_bytes(amounts)
    clean = max(0, files - amounts.get("Dirty", 0) - amounts.get("Writeback", 0))
    reclaimable = sum(part - min(part // 2, zones.low_bytes) for part in (clean, slab))
    free = amounts[MEM_FREE]
    used = max(0, amounts[MEM_TOTAL] - free - pools_bytes - files - slab)
    return NodeMemory(max(0, free - zones.reserve_bytes), reclaimable, used, free < zones.low_bytes)


def read_held(hierarchy: Hierarchy, cgroup: str) -> HeldPages:
    """What *cgroup* holds, a path below the mount.

    Raises:
        AbsentError: it is gone, or has no such file.
        HostError: its file is garbled.
    """
    parse = parse_numa_stat if hierarchy.unified else parse_legacy_numa_stat
    return parse_file(f"{hierarchy.mounts[MEMORY]}{cgroup}/memory.numa_stat", parse)


FRESH_S: Final = 2.0
"""So long after a look what a container holds is not looked at again for numbers of the same moment."""
LOOKED_AT_S: Final = 35.0
"""So old may be what a container holds where the same result is expected again: others look every 30 s."""
UNCHANGED_S: Final = 300.0
"""So long at most what was read also counts for a container that is charged for as much as then: page cache
may have become memory of processes, and pages may lie on other nodes."""
_NUMBER_BYTES: Final = 32
CHARGED_BYTES: Final = 256 * KIB
"""The kernel charges in steps of 64 pages for each CPU (MEMCG_CHARGE_BATCH): less is no difference."""


class _Reading(NamedTuple):
    """What a container held, when that was read, what it was charged for before, -1 where that is not known,
    and when it was last seen to be charged for as much."""

    held: HeldPages
    read_s: float
    charged_bytes: int
    seen_s: float


class ContainerMemory:
    """Reads what containers hold; remembers where their cgroups are, and what was read last. Calls may come
    from several threads."""

    def __init__(self, hierarchy: Hierarchy, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._hierarchy = hierarchy
        self._clock_s = clock_s
        self._charge_file = "memory.current" if hierarchy.unified else "memory.usage_in_bytes"
        self._readings: dict[str, _Reading] = {}
        self.cgroups: dict[str, str] = {}
        """The cgroups of the containers that were found, below their mount, by id."""

    def keep(self, container_ids: Iterable[str]) -> None:
        """Forget all other containers."""
        kept = set(container_ids)
        for remembered in (self.cgroups, self._readings):
            for gone in [key for key in list(remembered) if key not in kept]:
                remembered.pop(gone, None)

    def cgroups_of(self, container_ids: Iterable[str]) -> list[str]:
        """The cgroups of those containers, as far as they have been found, below their mount."""
        return [path for one in container_ids if (path := self.cgroups.get(one)) is not None]

    def find(
        self, container_id: str, cgroups_path: str, cgroup_parent: str, cgroups: Mapping[str, str]
    ) -> str:
        """The cgroup of a container, by what its runtime says, or by its *cgroups* where these are known.

        Raises:
            AbsentError: it has no cgroup (yet, or any more).
            HostError: the cgroup cannot be used.
        """
        path = self.cgroups.get(container_id)
        if path is None:
            with (
                ContainerCgroup(self._hierarchy, dict(cgroups))
                if cgroups
                else ContainerCgroup.find(self._hierarchy, cgroups_path, cgroup_parent, container_id)
            ) as cgroup:
                path = self.cgroups[container_id] = cgroup.path
        return path

    def read(
        self, container_id: str, cgroups_path: str, cgroup_parent: str, cgroups: Mapping[str, str]
    ) -> HeldPages:
        """What a container holds; the arguments and errors of `find`, and HostError where its file is missing
        or garbled."""
        path = self.find(container_id, cgroups_path, cgroup_parent, cgroups)
        return self._read(container_id, path, self._charged_bytes(path))

    def recent(
        self,
        container_id: str,
        cgroups_path: str,
        cgroup_parent: str,
        cgroups: Mapping[str, str],
        fresh_s: float = FRESH_S,
    ) -> HeldPages:
        """The same, for those who look regularly: what was read last, the same object, as long as it can
        hardly be otherwise (`UNCHANGED_S`), without a look where the last one is no older than *fresh_s*.
        memory.numa_stat has the kernel add up what all its CPUs have counted; what a cgroup is charged for is
        one number."""
        path = self.find(container_id, cgroups_path, cgroup_parent, cgroups)
        before, now_s = self._readings.get(container_id), self._clock_s()
        if before is not None and now_s - before.seen_s <= fresh_s:
            return before.held
        charged_bytes = self._charged_bytes(path)
        if (
            before is not None
            and min(before.charged_bytes, charged_bytes) >= 0
            and abs(charged_bytes - before.charged_bytes) <= CHARGED_BYTES
            and now_s - before.read_s <= UNCHANGED_S
        ):
            self._readings[container_id] = before._replace(seen_s=now_s)
            return before.held
        return self._read(container_id, path, charged_bytes)

    def _charged_bytes(self, path: str) -> int:
        try:
            descriptor = os.open(
                f"{self._hierarchy.mounts[MEMORY]}{path}/{self._charge_file}", os.O_RDONLY | os.O_CLOEXEC
            )
        except OSError:
            return -1
        try:
            return int(os.read(descriptor, _NUMBER_BYTES))
        except (OSError, ValueError):
            return -1
        finally:
            os.close(descriptor)

    def _read(self, container_id: str, path: str, charged_bytes: int) -> HeldPages:
        try:
            held = read_held(self._hierarchy, path)
        except AbsentError as error:
            self.cgroups.pop(container_id, None)
            self._readings.pop(container_id, None)
            if Path(f"{self._hierarchy.mounts[MEMORY]}{path}").exists():
                raise HostError(
                    error.subject, "there is no such file: the kernel has it from 5.10 on"
                ) from error
            raise
        now_s = self._clock_s()
        self._readings[container_id] = _Reading(held, now_s, charged_bytes, now_s)
        return held

    def outside(self) -> dict[str, tuple[NodeSet, HeldPages]]:
        """What the machine's own services hold, by the slice of systemd that they are in, with the nodes that
        they may use; no slice in which there is a container. Nothing on cgroup v1, where memory by node does
        not go with the slices."""
        if not self._hierarchy.unified:
            return {}
        root = self._hierarchy.mounts[MEMORY]
        inside = {path.split("/")[1] for path in self.cgroups.values()}
        found = {}
        for name in _SERVICES:
            if name in inside:
                continue
            try:
                mems = parse_file(f"{root}/{name}/cpuset.mems.effective", NodeSet.parse)
                found[f"/{name}"] = mems, read_held(self._hierarchy, f"/{name}")
            except AbsentError:
                continue  # Gone, or without these controllers.
        return found


_NODES: Final = "sys/devices/system/node"
_ISOLATED: Final = pattern(r"^nr_isolated_(?:anon|file) (\d+)$", re.MULTILINE)


def read_held_memory(
    containers: Iterable[HeldPages], hugepages_bytes: Mapping[int, int], root: Path = Path("/")
) -> dict[int, int]:
    """Bytes held outside of *containers* or kept free by the kernel, by node.

    *hugepages_bytes* is the size of all huge page pools together, for each node that is asked for.

    The files are not read at one moment: the result is good to a few MiB, and never below what is kept free.

    Raises:
        HostError: a file is missing or garbled.
    """
    inside: Counter[int] = Counter()
    for container in containers:
        inside.update(container.unreclaimable_bytes)
    zones = read_zones(root)
    held = {}
    for node, pools_bytes in hugepages_bytes.items():
        amounts = _amounts(root, node)
        reclaimable_bytes = cache_bytes(amounts, pools_bytes) + slab_bytes(amounts)
        zone = zones.get(node, NO_ZONES)
        used_bytes = amounts[MEM_TOTAL] - amounts[MEM_FREE] - pools_bytes - zone.lists.now_bytes
        used_bytes -= _isolated_bytes(root, node)
        held[node] = max(0, used_bytes - reclaimable_bytes - inside[node]) + zone.unusable_bytes
    return held


DOUBT_SHARE: Final = 2048
"""What is held by more or less than this part of a node than at the last time is measured once more, with
what containers hold at this moment: an eighth of the band above it (`placement.measured_reservation`)."""


class HeldMemory:
    """Measures regularly what is held outside of containers, as `read_held_memory` does. What containers hold
    is what a look of the last `LOOKED_AT_S` found; only where the result is another one than before is it
    read again: what has grown since, or a heap instead of page cache, would be taken for somebody else's.
    Blocks."""

    def __init__(self, memory: ContainerMemory, root: Path = Path("/")) -> None:
        self._memory = memory
        self._root = root
        self._before: dict[int, int] = {}
        self._is_steady = False
        """Whether the last one was as the one before."""

    def read(
        self, containers: Collection[tuple[str, str, str]], hugepages_bytes: Mapping[int, int]
    ) -> dict[int, int]:
        """What is held outside of *containers*: of each its id, its cgroups path and its pod's cgroup parent;
        those that are gone are passed over. *hugepages_bytes* and the errors as for `read_held_memory`."""
        self._memory.keep(container_id for container_id, _, _ in containers)
        found = {}
        if self._is_steady and self._before.keys() == hugepages_bytes.keys():
            found = self._outside(
                containers, hugepages_bytes, partial(self._memory.recent, fresh_s=LOOKED_AT_S)
            )
        if not found or not self._is_as_before(found):
            found = self._outside(containers, hugepages_bytes, self._memory.read)
        self._is_steady, self._before = self._is_as_before(found), found
        return found

    def _outside(
        self,
        containers: Iterable[tuple[str, str, str]],
        hugepages_bytes: Mapping[int, int],
        read: Callable[[str, str, str, Mapping[str, str]], HeldPages],
    ) -> dict[int, int]:
        inside = []
        for one in containers:
            with suppress(AbsentError):
                inside.append(read(*one, {}))
        return read_held_memory(inside, hugepages_bytes, self._root)

    def _is_as_before(self, found: Mapping[int, int]) -> bool:
        if found.keys() != self._before.keys():
            return False
        totals = read_memory_totals(found, self._root)
        return all(abs(found[node] - self._before[node]) * DOUBT_SHARE <= totals[node] for node in found)


def read_memory_totals(nodes: Iterable[int], root: Path = Path("/")) -> dict[int, int]:
    """MemTotal of *nodes*, in bytes.

    Raises:
        HostError: a file is missing or garbled.
    """
    return {node: _amounts(root, node)[MEM_TOTAL] for node in nodes}


def _amounts(root: Path, node: int) -> dict[str, int]:
    """The lines of a node's meminfo that are in kB, in bytes; of the whole machine's without NUMA."""
    path = str(root / _NODES / f"node{node}/meminfo")
    text = read_optional(path)
    if text is None:
        path = str(root / "proc/meminfo")
    return read_meminfo(path, MEM_TOTAL, MEM_FREE, text=text)


def _isolated_bytes(root: Path, node: int) -> int:
    """Pages of processes and of the page cache that are on no list at the moment, because the kernel reclaims
    or moves them: under pressure, many. Nothing where the file is absent."""
    text = read_optional(str(root / _NODES / f"node{node}/vmstat"))
    pages = sum(map(int, _ISOLATED.findall(text or "")))
    return pages * os.sysconf("SC_PAGE_SIZE")


_FAULTS: Final = pattern(r"^(?:total_)?(pgfault|pgmajfault) ([0-9]{1,20})$", re.MULTILINE)
_SOME: Final = pattern(r"^some avg10=([0-9]{1,3}\.[0-9]{1,2}) ", re.MULTILINE)
_NUMA: Final = pattern(r"^(numa_miss|numa_foreign|other_node) ([0-9]{1,20})$", re.MULTILINE)
_NODE_DIRECTORY: Final = "sys/devices/system/node/node{}/numastat"


class ContainerActivity(Struct, frozen=True):
    """``held`` by node; page faults since its start, the major ones waited for a disk; the share of the last
    ten seconds in which some of its tasks waited for memory or for a CPU (percent), None where the kernel
    does not say."""

    held: HeldPages = HeldPages()
    page_faults: int = 0
    major_page_faults: int = 0
    memory_stall_percent: float | None = None
    cpu_stall_percent: float | None = None


class NodeAllocations(Struct, frozen=True):
    """Pages since the machine's start: ``missed`` were taken here although another node was preferred,
    ``foreign`` elsewhere although this one was, ``remote`` here by CPUs of other nodes."""

    missed: int = 0
    foreign: int = 0
    remote: int = 0


class ActivityReader:
    """Reads what containers do; remembers where their files are, as far as it was asked for them again."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._hierarchy = hierarchy
        self._memory = ContainerMemory(hierarchy)

    def keep(self, container_ids: Mapping[str, object]) -> None:
        """Forget all other containers."""
        self._memory.keep(container_ids)

    def read(
        self, container_id: str, cgroups_path: str, cgroup_parent: str, cgroups: Mapping[str, str]
    ) -> ContainerActivity | None:
        """What a container does; None where it has no cgroup (yet, or any more). The arguments are those of
        `ContainerMemory.read`.

        Raises:
            HostError: a file is garbled.
        """
        try:
            held = self._memory.read(container_id, cgroups_path, cgroup_parent, cgroups)
        except AbsentError:
            return None
        directory = f"{self._hierarchy.mounts[MEMORY]}{self._memory.cgroups[container_id]}"
        # The lines of v1 with total_ come last and count the cgroups below, as those of v2 do.
        faults = {
            name: int(number) for name, number in _FAULTS.findall(_optional(f"{directory}/memory.stat"))
        }
        return ContainerActivity(
            held,
            faults.get("pgfault", 0),
            faults.get("pgmajfault", 0),
            _stall(f"{directory}/memory.pressure"),
            _stall(f"{directory}/cpu.pressure"),
        )


def read_allocations(nodes: Mapping[int, object], root: Path = Path("/")) -> dict[int, NodeAllocations]:
    """The counters of *nodes*; those of a node that is gone are 0."""
    found = {}
    for node in nodes:
        row = dict(_NUMA.findall(_optional(str(root / _NODE_DIRECTORY.format(node)))))
        names = ("numa_miss", "numa_foreign", "other_node")
        found[node] = NodeAllocations(*(int(row.get(name, 0)) for name in names))
    return found


def _stall(path: str) -> float | None:
    found = _SOME.search(_optional(path))
    return None if found is None else float(found[1])


def _optional(path: str) -> str:
    """A file that not every kernel has, or that it may refuse to read (PSI switched off is EOPNOTSUPP)."""
    try:
        return read_text(path)
    except (AbsentError, RefusedError):
        return ""

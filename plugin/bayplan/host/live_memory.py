"""What each node can still give, and what each container holds there: read often, so read cheaply.

A look at the nodes is one small file each. What a container holds is memory.numa_stat of its cgroup, whose
path is looked for once. Nothing here judges or changes anything.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from bayplan.errors import HostError
from bayplan.host.container import ContainerCgroup
from bayplan.host.hierarchy import MEMORY, Hierarchy
from bayplan.host.kernelfs import AbsentError, garbage, parse_file, refusal
from bayplan.host.meminfo import FILES, MEM_FREE, MEM_TOTAL, read_meminfo
from bayplan.host.numa_stat import HeldPages, parse_legacy_numa_stat, parse_numa_stat
from bayplan.host.zoneinfo import NO_ZONES, NodeZones
from bayplan.placement.page_placement import NodeMemory
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
        """The bytes that are free on *node*, what nobody gets included.

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
    files = sum(amounts[name] for name in FILES)
    slab = amounts.get("KReclaimable", amounts.get("SReclaimable", 0))
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


class ContainerMemory:
    """Reads what containers hold; remembers where their cgroups are."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._hierarchy = hierarchy
        self.cgroups: dict[str, str] = {}
        """The cgroups of those that were found, below their mount."""

    def keep(self, container_ids: Iterable[str]) -> None:
        """Forget all but those."""
        kept = set(container_ids)
        self.cgroups = {key: path for key, path in self.cgroups.items() if key in kept}

    def cgroups_of(self, container_ids: Iterable[str]) -> list[str]:
        """The cgroups of those of them that have been found, below their mount."""
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
        try:
            return read_held(self._hierarchy, path)
        except AbsentError as error:
            del self.cgroups[container_id]
            if Path(f"{self._hierarchy.mounts[MEMORY]}{path}").exists():
                raise HostError(
                    error.path, "there is no such file: the kernel has it from 5.10 on"
                ) from error
            raise

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

"""Memory that is got back before a process has to wait for it: page cache, and the free pages that CPUs keep
on lists of their own, of which they keep few where the operator agrees. Blocks while the kernel reclaims.

From Linux 6.7 on the CPUs of a node may keep an eighth of each zone, and CPUs of other nodes as much again.
Only these CPUs get these pages, and where nothing can be reclaimed the kernel kills beside them. Only the
sysctl vm.percpu_pagelist_high_fraction keeps the lists short for good. It concerns the whole machine, and is
set to what it was (`bayplan.host.changed_files`) at the end: of the setting, of the daemon, or, after the
daemon was killed, at its next start or at a release.
"""

import errno
import logging
from collections.abc import Collection
from pathlib import Path
from typing import Final

from bayplan.errors import HostError
from bayplan.host.changed_files import ChangedFiles
from bayplan.host.hierarchy import MEMORY, Hierarchy
from bayplan.host.kernelfs import AbsentError, RefusedError, parse_file, parse_number, write_text
from bayplan.host.memory_statistics import FRACTION, read_zones
from bayplan.quantity import MIB

_NODE: Final = "sys/devices/system/node/node{}/reclaim"
_CGROUP: Final = "memory.reclaim"
_ONLY_FILES: Final = " swappiness=0"
"""Linux 6.9: without it the kernel may swap out, too, where there is swap."""
_PARTLY: Final = (errno.EAGAIN, errno.EINTR)
"""The kernel reclaimed less than it was asked for."""


def can_reclaim_nodes(node: int, root: Path = Path("/")) -> bool:
    """Whether the kernel reclaims on single nodes (from Linux 6.17 on)."""
    return (root / _NODE.format(node)).exists()


def missing_abilities(hierarchy: Hierarchy, node: int) -> str:
    """What this machine cannot do about memory that runs out, as a sentence; empty for nothing. *node* is one
    of its nodes."""
    if not hierarchy.unified:
        found = (
            "with cgroup v1 the kernel's memory of containers, and what services hold, is not known, and"
            " nobody is slowed down until promised memory is freed"
        )
        return (
            found if can_reclaim_nodes(node, hierarchy.root) else f"{found}, and page cache is not reclaimed"
        )
    if can_reclaim_nodes(node, hierarchy.root) or Path(hierarchy.mounts[MEMORY], _CGROUP).exists():
        return ""
    return "page cache is not reclaimed: the kernel has memory.reclaim from 5.19 on"


def reclaim_on_node(node: int, amount_bytes: int, root: Path = Path("/")) -> None:
    """Reclaim page cache on *node*, whoever it belongs to.

    Raises:
        AbsentError: the kernel cannot, or the node is gone.
        RefusedError: it will not.
    """
    _write(str(root / _NODE.format(node)), amount_bytes)


def reclaim_in_cgroup(directory: str, amount_bytes: int) -> None:
    """Reclaim page cache of a cgroup, on whichever nodes it lies; *directory* is its path (cgroup v2, from
    Linux 5.19 on). Raises like `reclaim_on_node`.
    """
    _write(f"{directory}/{_CGROUP}", amount_bytes)


def _write(path: str, amount_bytes: int) -> None:
    try:
        try:
            write_text(path, f"{amount_bytes}{_ONLY_FILES}")
        except RefusedError as error:
            if error.errno != errno.EINVAL:
                raise
            write_text(path, str(amount_bytes))
    except RefusedError as error:
        if error.errno not in _PARTLY:
            raise


logger = logging.getLogger(__name__)

SYSCTL: Final = "vm.percpu_pagelist_high_fraction"
RECORD: Final = "percpu_pagelist_high_fraction.json"
"""In the state directory."""

_STATISTICS: Final = "proc/sys/vm/stat_refresh"
_UPDATES: Final = 8
"""Between two readings of /proc/zoneinfo, which is the slower one: of two CPUs 126 MiB."""
_MOST_ROUNDS: Final = 8
_WORTH_BYTES: Final = 4 * MIB


def shorten_cpu_lists(nodes: Collection[int], root: Path = Path("/")) -> int:
    """Have the free pages of *nodes* on lists of CPUs go back to the nodes, as far as the kernel gives them
    back; how many bytes that are.

    Each update of the statistics of a CPU shortens its lists by up to 2016 pages, from Linux 6.7 on, and one
    of all CPUs takes 0.1 ms on two. Nothing else does so that does not take memory or CPUs away meanwhile:
    compaction, `memory.reclaim` and moved pages leave lists as they are, and the kernel empties them when it
    reclaimed something for a process, not when there is nothing to reclaim.
    """
    try:
        before = left = _listed(nodes, root)
        for _ in range(_MOST_ROUNDS):
            if left < _WORTH_BYTES:
                break
            for _ in range(_UPDATES):
                write_text(str(root / _STATISTICS), "1")
            left, earlier = _listed(nodes, root), left
            if left >= earlier:
                break
    except HostError:
        return 0  # Without it pages are moved.
    return max(0, before - left)


def _listed(nodes: Collection[int], root: Path) -> int:
    """What the lists of CPUs have of *nodes* that can go back."""
    zones = read_zones(root)
    lists = [zones[node].lists for node in nodes if node in zones]
    return sum(one.now_bytes - one.lasting_bytes for one in lists)


class CpuListLimit:
    """How long the lists of CPUs may be at most, by the sysctl. All of it blocks for less than a
    millisecond."""

    def __init__(self, directory: Path, root: Path = Path("/")) -> None:
        """The daemon's state *directory*, and where /proc is."""
        self._sysctl = str(root / FRACTION)
        self._files = ChangedFiles(directory / RECORD, root)

    def apply(self, fraction: int) -> None:
        """Let the CPUs of a zone have one *fraction*th of it on their lists; 0: leave that to whoever set the
        sysctl.

        Raises:
            BayplanError: it cannot be changed, or not be recorded before; then it is as it was.
        """
        if not fraction:
            self.restore()
            return
        now = self._now()
        for error in self._files.set({self._sysctl: lambda _: str(fraction)}).values():
            raise error
        if now != fraction:
            logger.info("lists of CPUs are kept short", extra={SYSCTL: fraction, "before": now})

    @property
    def to_restore(self) -> int | None:
        """What the sysctl would be set to by `restore`; None if that is nothing of ours any more."""
        before = self._files.to_restore.get(self._sysctl)
        return None if before is None else int(before)

    def restore(self) -> int | None:
        """Set the sysctl to what it was, unless somebody else has set it since; to what it was set.

        Raises:
            BayplanError: it cannot be set; it is still known what it was.
        """
        before = self.to_restore
        for error in self._files.restore().values():
            raise error
        if before is not None:
            logger.info("lists of CPUs are as long as before", extra={SYSCTL: before})
        return before

    def _now(self) -> int:
        try:
            return parse_file(self._sysctl, parse_number)
        except AbsentError as error:
            raise HostError(self._sysctl, "there is no such file: the kernel has it from 5.14 on") from error

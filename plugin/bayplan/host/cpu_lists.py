"""The free pages that CPUs keep on lists of their own: had back when a node needs them, and kept few where
the operator agrees.

From Linux 6.7 on the CPUs of a node may keep an eighth of each zone, and CPUs of other nodes as much again.
Nobody else gets these pages, and where nothing can be reclaimed the kernel kills beside them. For good, only
the sysctl vm.percpu_pagelist_high_fraction keeps the lists short. It is everybody's, and set to what it was
(`bayplan.host.changed_files`) at the end, whichever end that is: of the setting, of the daemon, or the next
start or release after it was killed.
"""

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Final

from bayplan.errors import HostError
from bayplan.host.changed_files import ChangedFiles
from bayplan.host.kernelfs import AbsentError, parse_file, parse_number, write_text
from bayplan.host.zoneinfo import FRACTION, read_zones
from bayplan.quantity import MIB

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
    """How long lists may be at most, by the sysctl. All of it blocks for less than a millisecond."""

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

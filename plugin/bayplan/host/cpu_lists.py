"""The free pages that CPUs keep on lists of their own: had back when a node needs them, and kept few where
the operator agrees.

From Linux 6.7 on the CPUs of a node may keep an eighth of each zone, and CPUs of other nodes as much again.
Nobody else gets these pages, and where nothing can be reclaimed the kernel kills beside them. For good, only
the sysctl vm.percpu_pagelist_high_fraction keeps the lists short. It is everybody's, so what it was is in the
state directory before it is changed, and is set again at the end, whichever end that is: of the setting, of
the daemon, or the next start or release after it was killed.
"""

import logging
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from bayplan.errors import HostError
from bayplan.host import shadow_mode
from bayplan.host.kernelfs import AbsentError, parse_file, parse_number, read_optional, refusal, write_text
from bayplan.host.zoneinfo import FRACTION, read_zones
from bayplan.quantity import MIB

logger = logging.getLogger(__name__)

SYSCTL: Final = "vm.percpu_pagelist_high_fraction"
RECORD: Final = "percpu_pagelist_high_fraction"
"""In the state directory: what the sysctl was, what it was set to instead, and since which boot."""

_RECORDED: Final = re.compile(r"(\d{1,10}) (\d{1,10}) (.*)\n")
_BOOT: Final = "proc/sys/kernel/random/boot_id"
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


class _Changed(NamedTuple):
    before: int
    ours: int


class CpuListLimit:
    """How long lists may be at most, by the sysctl. All of it blocks for less than a millisecond."""

    def __init__(self, directory: Path, root: Path = Path("/")) -> None:
        """The daemon's state *directory*, and where /proc is."""
        self._record = directory / RECORD
        self._sysctl = str(root / FRACTION)
        self._boot = (read_optional(str(root / _BOOT)) or "").strip()

    def apply(self, fraction: int) -> None:
        """Let the CPUs of a zone have one *fraction*th of it on their lists; 0: leave that to whoever set the
        sysctl. Nothing in shadow mode.

        Raises:
            BayplanError: it cannot be changed, or not be recorded before; then it is as it was.
        """
        if shadow_mode.is_on():
            return
        if not fraction:
            self.restore()
            return
        now = self._now()
        changed = self._changed()
        before = changed.before if changed is not None and now == changed.ours else now
        if now == fraction and changed is None:
            return
        self._note(_Changed(before, fraction))
        if now != fraction:
            write_text(self._sysctl, str(fraction))
            logger.info("lists of CPUs are kept short", extra={SYSCTL: fraction, "before": before})

    @property
    def to_restore(self) -> int | None:
        """What the sysctl would be set to by `restore`; None if that is nothing of ours any more."""
        changed = self._changed()
        if changed is None:
            return None
        now = read_optional(self._sysctl)
        return changed.before if now is not None and now.strip() == str(changed.ours) else None

    def restore(self) -> int | None:
        """Set the sysctl to what it was, unless somebody else has set it since; to what it was set.

        Raises:
            BayplanError: it cannot be set; it is still known what it was.
        """
        if shadow_mode.is_on():
            return None
        before = self.to_restore
        if before is not None:
            write_text(self._sysctl, str(before))
            logger.info("lists of CPUs are as long as before", extra={SYSCTL: before})
        self._record.unlink(missing_ok=True)
        return before

    def _now(self) -> int:
        try:
            return parse_file(self._sysctl, parse_number)
        except AbsentError as error:
            raise HostError(self._sysctl, "there is no such file: the kernel has it from 5.14 on") from error

    def _changed(self) -> _Changed | None:
        text = read_optional(str(self._record))
        if text is None:
            return None
        match = _RECORDED.fullmatch(text)
        if match is None:
            logger.warning("unreadable, so the sysctl is left as it is", extra={"file": str(self._record)})
            return None
        # A boot has ended what was set before it.
        return _Changed(int(match[1]), int(match[2])) if match[3] == self._boot else None

    def _note(self, changed: _Changed) -> None:
        unfinished = self._record.with_suffix(".new")
        try:
            with unfinished.open("w", encoding="ascii") as file:
                file.write(f"{changed.before} {changed.ours} {self._boot}\n")
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self._record)
        except OSError as error:
            raise refusal(str(self._record), "cannot be written", error) from error

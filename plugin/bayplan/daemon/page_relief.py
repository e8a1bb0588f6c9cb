"""Carries out a plan of `page_placement`: gets back what lists of CPUs hold, reclaims page cache, then moves
pages, for a moment; and keeps a record of the pages that were moved.

Then the watch looks again: nothing is done by numbers older than a second. Never more than a budget of bytes
per second is moved, and what turns out not to move is remembered and counted as gone. Everything blocks. If
it is stopped, or the daemon killed, pages lie on the one node or on the other, and there is a history of what
was done. What is moved of one container from one node to another in many short steps is one record there.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import ClassVar, Final, NamedTuple, Protocol

from bayplan.errors import BayplanError, HostError
from bayplan.host.container import ContainerCgroup
from bayplan.host.hierarchy import CPUSET, MEMORY, Hierarchy
from bayplan.host.kernelfs import AbsentError
from bayplan.host.live_memory import read_held
from bayplan.host.page_moves import Pace, PagesMoved, move_pages
from bayplan.host.reclaim import (
    can_reclaim_nodes,
    reclaim_in_cgroup,
    reclaim_on_node,
    shorten_cpu_lists,
)
from bayplan.model.decision import PageMoveRecord
from bayplan.placement.page_placement import LivePages, PageMove, Risk, in_order
from bayplan.quantity import MIB
from bayplan.sets import NodeSet

RECORD_S: Final = 10.0
"""What is moved of one container from one node to another is recorded together for at most so long."""


class _Open(NamedTuple):
    """What is not recorded yet of the pages that go one way: since when, and the sums."""

    since_s: float
    last_s: float
    name: str
    at_risk: NodeSet
    wanted_bytes: int
    moved_bytes: int
    obstacle: str


_Way = tuple[str, int, int]
"""Container, source and target."""


class MoveRecords:
    """What was moved and is not recorded yet, by way (`_Way`); true as long as there is something that `take`
    has not returned. A way is over when nothing went it for *pause_s*."""

    def __init__(self, clock_s: Callable[[], float], pause_s: float) -> None:
        self._clock_s = clock_s
        self._pause_s = pause_s
        self._open: dict[_Way, _Open] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def note(self, seen: LivePages, move: PageMove, moved_bytes: int, obstacle: str, begun_s: float) -> None:
        """So much of *move*, which the plan of *seen* has, was done since *begun_s*."""
        way = move.container_id, move.source, move.target
        before, now_s = self._open.get(way), self._clock_s()
        risks = seen.plan.risks
        # Pages may also have to make room for pages.
        concerned = [risk for risk in risks if move.source in risk.nodes] or risks
        at_risk = NodeSet(node for risk in concerned for node in risk.nodes)
        name = seen.holder(move.container_id).name
        if before is None:
            one = _Open(begun_s, now_s, name, at_risk, move.amount_bytes, moved_bytes, obstacle)
        else:
            # What was wanted before was moved in part; the rest is wanted still.
            wanted_bytes = max(before.wanted_bytes, before.moved_bytes + move.amount_bytes)
            moved_bytes += before.moved_bytes
            one = _Open(before.since_s, now_s, name, at_risk, wanted_bytes, moved_bytes, obstacle)
        self._open[way] = one

    def take(self, *, all_of_them: bool = False) -> tuple[PageMoveRecord, ...]:
        """What can be recorded by now: what went one way for long enough, or is over."""
        now_s, found = self._clock_s(), []
        for way, one in list(self._open.items()):
            if all_of_them or now_s - one.since_s >= RECORD_S or now_s - one.last_s >= self._pause_s:
                del self._open[way]
                found.append(_record(way, one))
        return tuple(found)


def _record(way: _Way, moving: _Open) -> PageMoveRecord:
    container_id, source, target = way
    return PageMoveRecord(
        at_us=time.time_ns() // 1000,
        container_id=container_id,
        name=moving.name,
        source=source,
        target=target,
        wanted_bytes=moving.wanted_bytes,
        moved_bytes=moving.moved_bytes,
        duration_ms=max(1, round((moving.last_s - moving.since_s) * 1000)),
        at_risk=moving.at_risk,
        obstacle=moving.obstacle,
    )


STEP_S: Final = 0.5
FEWEST_CALLS: Final = 8
"""Of a step, also on a machine that is too busy for any within its time."""
RECLAIM_BYTES: Final = 64 * MIB
"""At most so much is reclaimed at once."""
STUCK_S: Final = 600.0
"""So long pages count as unmovable that did not move: pinned by a device, or of a tmpfs that nobody maps."""
PASSING_S: Final = 10.0
"""And so long, where there was no room for them, or the kernel refused the call."""


class MovePages(Protocol):
    """Moves so many bytes of a container from a node to another, and asks before each call to the kernel
    whether to go on, with the bytes that were moved since."""

    def __call__(
        self, cgroup: str, source: int, target: int, wanted_bytes: int, go_on: Callable[[int], bool], /
    ) -> PagesMoved:
        """How much was moved, and why no more; raises AbsentError where the container is gone."""


class _Stuck(NamedTuple):
    amount_bytes: int
    until_s: float
    obstacle: str


class PageRelief:
    """See the module. ``rate_bytes`` per second may be changed at any time. ``applies``: pages are really
    moved, so that containers can be slowed down until they are."""

    applies: ClassVar[bool] = True

    def __init__(
        self,
        hierarchy: Hierarchy,
        rate_bytes: int,
        move: MovePages | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        stopping: Event | None = None,
        shorten: Callable[[Collection[int], Path], int] = shorten_cpu_lists,
    ) -> None:
        self.rate_bytes = rate_bytes
        self.pace = Pace()
        self.stopping = stopping or Event()
        self._hierarchy = hierarchy
        self._move = move or self._by_kernel
        self._shorten = shorten
        self._clock_s = clock_s
        self._stuck: dict[tuple[str, int], _Stuck] = {}
        self._records = MoveRecords(clock_s, 2 * STEP_S)

    def keep(self, container_ids: Collection[str]) -> None:
        """Forget what was learned of all other containers, and what does not count any more."""
        now_s = self._clock_s()
        self._stuck = {
            key: stuck
            for key, stuck in self._stuck.items()
            if key[0] in container_ids and stuck.until_s > now_s
        }

    def movable(self, container_id: str, movable_bytes: Mapping[int, int]) -> dict[int, int]:
        """How much of *movable_bytes* of a container (memory that can be moved by its kind, by node) can be
        moved as far as is known by now."""
        now_s, found = self._clock_s(), {}
        for node, amount in movable_bytes.items():
            stuck = self._stuck.get((container_id, node))
            stuck_bytes = stuck.amount_bytes if stuck is not None and stuck.until_s > now_s else 0
            found[node] = max(0, amount - stuck_bytes)
        return found

    def obstacle(self, container_id: str) -> str:
        """Why pages of a container did not move; empty if it is not known."""
        found = (stuck.obstacle for (key, _), stuck in self._stuck.items() if key == container_id)
        return next(filter(None, found), "")

    def carry_out(self, seen: LivePages, cgroups: Mapping[str, str], step_s: float = STEP_S) -> int:
        """Do what the plan of *seen* says, for *step_s*; how many bytes nodes have got by that. *cgroups* are
        the paths of the containers' cgroups, below their mount."""
        until_s, moved_bytes = self._clock_s() + step_s, 0
        plan, moves = seen.plan, seen.plan.moves
        short = plan.reclaim_bytes.keys() | (set() if seen.back else {move.source for move in moves})
        short = short.union(*(risk.nodes for risk in plan.risks))
        listed_bytes = self._shorten(short, self._hierarchy.root)
        if listed_bytes and not seen.back and listed_bytes >= sum(move.amount_bytes for move in moves):
            return listed_bytes
        self._reclaim(seen, cgroups)
        for move in in_order(seen):
            if self._clock_s() >= until_s or self.stopping.is_set():
                break
            cgroup = cgroups.get(move.container_id)
            if cgroup is not None:
                moved_bytes += self._one(seen, move, cgroup, until_s)
        if moved_bytes:
            # What was moved away is on the list of the CPU that moved it.
            self._shorten(short, self._hierarchy.root)
        return moved_bytes

    def unmoved(self, seen: LivePages, risk: Risk, moves: Sequence[PageMove]) -> tuple[PageMoveRecord, ...]:  # noqa: ARG002 - all are moved
        """What is to be recorded at once of *moves* out of the nodes of *risk*, because they are not made."""
        return ()

    @property
    def has_unrecorded(self) -> bool:
        """Whether something was moved that `records` has not said yet."""
        return bool(self._records)

    def records(self, *, all_of_them: bool = False) -> tuple[PageMoveRecord, ...]:
        """What can be recorded by now: what went one way for long enough, or is over."""
        found = self._records.take(all_of_them=all_of_them)
        if found:
            self.pace.laps.clear()
        return found

    def _one(self, seen: LivePages, move: PageMove, cgroup: str, until_s: float) -> int:
        begun_s, moved = self._clock_s(), PagesMoved()

        asked = 0

        def go_on(moved_bytes: int) -> bool:
            nonlocal asked
            asked += 1
            self.stopping.wait(moved_bytes / self.rate_bytes)
            # However long it took to find out which pages there are: some are moved.
            in_time = self._clock_s() < until_s or asked <= FEWEST_CALLS
            return in_time and not self.stopping.is_set()

        try:
            moved = self._move(cgroup, move.source, move.target, move.amount_bytes, go_on)
        except AbsentError:
            return 0
        except BayplanError as error:
            moved = PagesMoved(obstacle=str(error), exhausted=True, passing=True)
        obstacle = ""
        if moved.exhausted and moved.moved_bytes < move.amount_bytes:
            stuck_bytes = self._learn(seen, move, cgroup, moved)
            if moved.obstacle or stuck_bytes:
                obstacle = moved.obstacle or "no more of its pages there can be moved"
        if seen.back is None:
            self._records.note(seen, move, moved.moved_bytes, obstacle, begun_s)
        return moved.moved_bytes

    def _learn(self, seen: LivePages, move: PageMove, cgroup: str, tried: PagesMoved) -> int:
        """Remember what is still there although all of it was tried, and return how many bytes that is. What
        the container gave back since it was looked at, or got since, says nothing about what can be moved."""
        holder = seen.holder(move.container_id)
        key = move.container_id, move.source
        before = self._stuck.get(key)
        stuck_bytes = 0 if before is None else before.amount_bytes
        there_bytes = holder.movable_bytes.get(move.source, 0) + stuck_bytes
        left_bytes = max(stuck_bytes, holder.astray_bytes.get(move.source, there_bytes) - tried.moved_bytes)
        left_bytes = min(left_bytes, self._held_bytes(cgroup, move.source))
        until_s = self._clock_s() + (PASSING_S if tried.passing else STUCK_S)
        self._stuck[key] = _Stuck(left_bytes, until_s, tried.obstacle)
        return left_bytes

    def _held_bytes(self, cgroup: str, node: int) -> int:
        """What the processes of *cgroup* have on *node* now; nothing if it is gone."""
        try:
            return read_held(self._hierarchy, cgroup).movable_bytes.get(node, 0)
        except HostError:
            return 0

    def _reclaim(self, seen: LivePages, cgroups: Mapping[str, str]) -> None:
        root = self._hierarchy.root
        for node, amount in seen.plan.reclaim_bytes.items():
            wanted_bytes = min(amount, RECLAIM_BYTES)
            try:
                if can_reclaim_nodes(node, root):
                    reclaim_on_node(node, wanted_bytes, root)
                elif self._hierarchy.unified:
                    self._reclaim_of(node, wanted_bytes, seen, cgroups)
            except HostError:
                # The kernel reclaims by itself when somebody needs it.
                continue

    def _reclaim_of(self, node: int, wanted_bytes: int, seen: LivePages, cgroups: Mapping[str, str]) -> None:
        """Reclaim from the containers with most page cache on *node*, of those with most of it there."""
        rows = [
            (one.rank, -there, key)
            for key, one in seen.containers.items()
            if (there := one.cache_bytes.get(node, 0)) * 2 >= sum(one.cache_bytes.values()) and there
        ]
        for _, held, key in sorted(rows):
            if wanted_bytes <= 0:
                break
            if key in cgroups:
                part = min(wanted_bytes, -held)
                reclaim_in_cgroup(f"{self._hierarchy.mounts[MEMORY]}{cgroups[key]}", part)
                wanted_bytes -= part

    def _by_kernel(
        self, cgroup: str, source: int, target: int, wanted_bytes: int, go_on: Callable[[int], bool]
    ) -> PagesMoved:
        with ContainerCgroup(self._hierarchy, dict.fromkeys((CPUSET, MEMORY), cgroup)) as opened:
            pids = opened.processes()
        return _of_all(pids, source, target, wanted_bytes, self.pace, go_on)


def _of_all(
    pids: Iterable[int],
    source: int,
    target: int,
    wanted_bytes: int,
    pace: Pace,
    go_on: Callable[[int], bool],
) -> PagesMoved:
    """Move pages of one process after the other."""
    moved_bytes = refused_bytes = 0
    obstacle, passing = "", False
    for pid in pids:
        try:
            found = move_pages(pid, source, target, wanted_bytes - moved_bytes, pace, go_on)
        except AbsentError:
            continue
        except HostError as error:
            # Its cpuset or the machine has just changed, or this program may not.
            obstacle, passing = str(error), True
            continue
        moved_bytes += found.moved_bytes
        refused_bytes += found.refused_bytes
        obstacle, passing = found.obstacle or obstacle, found.passing or passing
        if not found.exhausted:
            return PagesMoved(moved_bytes, refused_bytes, obstacle)
    return PagesMoved(moved_bytes, refused_bytes, obstacle, exhausted=True, passing=passing)

"""The pages that were moved lately, put together into records for the history.

What is moved of one container from one node to another in many short steps becomes one record.
"""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from bayplan.model.page_records import PageMoveRecord
from bayplan.placement.page_placement import LivePages, PageMove
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
    """True as long as something was moved that `take` has not returned yet. A way is over when nothing went
    it for *pause_s*."""

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


def _record(way: _Way, one: _Open) -> PageMoveRecord:
    container_id, source, target = way
    return PageMoveRecord(
        at_us=time.time_ns() // 1000,
        container_id=container_id,
        name=one.name,
        source=source,
        target=target,
        wanted_bytes=one.wanted_bytes,
        moved_bytes=one.moved_bytes,
        duration_ms=max(1, round((one.last_s - one.since_s) * 1000)),
        at_risk=one.at_risk,
        obstacle=one.obstacle,
    )

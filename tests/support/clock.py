"""A clock that stands still until it is told to move.

It takes the place of the event loop's clock wherever a deadline, a timeout or a delay is tested.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Timer:
    when: float
    callback: Callable[[], object]
    clock: "ManualClock"

    def cancel(self) -> None:
        self.clock.forget(self)


class ManualClock:
    """Seconds since it was made. Timers fire within `advance`, in the order of their times."""

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[_Timer] = []
        self._armed: asyncio.Event = asyncio.Event()

    def time(self) -> float:
        """Now."""
        return self._now

    def call_at(self, when: float, callback: Callable[[], object], /) -> _Timer:
        """Have *callback* called when `advance` comes to *when*."""
        timer = _Timer(when, callback, self)
        self._timers.append(timer)
        self._armed.set()
        return timer

    def forget(self, timer: _Timer) -> None:
        """Take a timer back."""
        if timer in self._timers:
            self._timers.remove(timer)

    @property
    def armed(self) -> int:
        """How many timers wait."""
        return len(self._timers)

    def advance(self, seconds: float) -> None:
        """Let time pass; call what becomes due, also what was armed meanwhile."""
        end = self._now + seconds
        while due := [timer for timer in self._timers if timer.when <= end]:
            first = min(due, key=lambda timer: timer.when)
            self._timers.remove(first)
            self._now = max(self._now, first.when)
            first.callback()
        self._now = end

    async def until_armed(self, within_s: float = math.inf) -> float:
        """Wait until a timer is to fire within so many seconds; how many it is to the first one."""
        while not (due := [timer.when for timer in self._timers if timer.when - self._now <= within_s]):
            self._armed.clear()
            await self._armed.wait()
        return min(due) - self._now

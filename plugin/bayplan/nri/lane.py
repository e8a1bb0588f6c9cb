"""One thing at a time, in order, none beyond its deadline.

A single task does all jobs, so that one costs no task of its own. A job that is over its deadline is told to
answer at once, by a timer, whatever its coroutine is doing; then the coroutine is cancelled. The next job
begins when it has ended.
"""

import asyncio
from collections import deque
from typing import Protocol

from bayplan.nri.clock import Clock, Timer


class Job(Protocol):
    """Something to do once. ``ended`` is called exactly once, after everything else."""

    async def run(self) -> None:
        """Do it. Lets nothing escape but CancelledError."""

    def give_up(self, why: str) -> None:
        """Answer by default, now: there is no time left, or no use in going on. Harmless when answered."""

    def ended(self) -> None:
        """``run`` has ended, or will never be called."""


class _Entry:
    __slots__ = ("budget_s", "cancelled", "job", "lane", "timer")

    def __init__(self, lane: "Lane", job: Job, budget_s: float) -> None:
        self.lane = lane
        self.job = job
        self.budget_s = budget_s
        self.cancelled = False
        self.timer: Timer | None = None

    def late(self) -> None:
        self.lane.expire(self)

    def disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class Lane:
    """A queue of jobs and the task that does them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[_Entry] = deque()
        self._running: _Entry | None = None
        self._task: asyncio.Task[None] | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._idle: list[asyncio.Future[None]] = []

    def put(self, job: Job, budget_s: float) -> None:
        """Queue a job that has to be answered within *budget_s* seconds from now."""
        entry = _Entry(self, job, budget_s)
        entry.timer = self._clock.call_at(self._clock.time() + budget_s, entry.late)
        self._waiting.append(entry)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def run(self) -> None:
        """Do the jobs, until cancelled. Call it once."""
        self._task = task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        try:
            while not task.cancelling():  # a job may have swallowed it
                if self._waiting:
                    await self._do(self._waiting.popleft(), task)
                else:
                    self._tell_idle()
                    self._arrival = loop.create_future()
                    await self._arrival
        finally:
            self._task = None
            self.abandon("stopped")
            self._tell_idle()

    @property
    def busy(self) -> bool:
        """Whether a job is under way or waits."""
        return self._running is not None or bool(self._waiting)

    def when_idle(self) -> "asyncio.Future[None]":
        """Done as soon as nothing is under way and nothing waits."""
        future = asyncio.get_running_loop().create_future()
        if self.busy:
            self._idle.append(future)
        else:
            future.set_result(None)
        return future

    def abandon(self, why: str) -> None:
        """Give up everything: what waits is not begun, what runs is cancelled."""
        while self._waiting:
            self._end(self._waiting.popleft(), why)
        if self._running is not None:
            self._running.disarm()
            self._running.job.give_up(why)
            self._cancel(self._running)

    def expire(self, entry: _Entry) -> None:
        """The deadline of a job has passed."""
        if entry is self._running:
            entry.job.give_up(f"no answer within {entry.budget_s * 1000:.0f} ms")
            self._cancel(entry)
        elif entry in self._waiting:
            self._waiting.remove(entry)
            self._end(entry, f"waited {entry.budget_s * 1000:.0f} ms behind another request")

    async def _do(self, entry: _Entry, task: "asyncio.Task[None]") -> None:
        self._running = entry
        try:
            await entry.job.run()
        except asyncio.CancelledError:
            if task.cancelling() > entry.cancelled:
                raise  # somebody stops the whole lane
            if not entry.cancelled:
                entry.job.give_up("something that it waited for was cancelled")
        finally:
            self._running = None
            if entry.cancelled:
                task.uncancel()
            self._end(entry, "stopped")

    def _cancel(self, entry: _Entry) -> None:
        if not entry.cancelled and self._task is not None:
            entry.cancelled = True
            self._task.cancel()

    def _end(self, entry: _Entry, why: str) -> None:
        entry.disarm()
        entry.job.give_up(why)
        entry.job.ended()

    def _tell_idle(self) -> None:
        for future in self._idle:
            if not future.done():
                future.set_result(None)
        self._idle.clear()

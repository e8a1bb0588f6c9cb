"""One at a time, in order, none beyond its deadline, whatever the jobs do."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from bayplan.nri.lane import Lane
from support.clock import ManualClock
from support.plugin import Gate


class ToDo:
    """A job that writes down what happens to it."""

    def __init__(self, name: str, log: list[str], work=None) -> None:
        self.name = name
        self.log = log
        self.work = work
        self.why = None
        self.over = asyncio.Event()

    async def run(self) -> None:
        self.log.append(f"{self.name} begins")
        try:
            if self.work is not None:
                await self.work()
        except asyncio.CancelledError:
            self.log.append(f"{self.name} is cancelled")
            raise
        if self.why is None:
            self.why = ""
            self.log.append(f"{self.name} is answered")

    def give_up(self, why: str) -> None:
        if self.why is None:
            self.why = why
            self.log.append(f"{self.name} is given up")

    def ended(self) -> None:
        self.log.append(f"{self.name} has ended")
        self.over.set()


@asynccontextmanager
async def running(clock: ManualClock):
    lane = Lane(clock)
    task = asyncio.create_task(lane.run())
    try:
        yield lane
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_in_order_and_one_at_a_time():
    log, gate = [], Gate()
    async with running(ManualClock()) as lane:
        jobs = [ToDo("a", log, gate.wait), ToDo("b", log), ToDo("c", log)]
        for job in jobs:
            lane.put(job, 1.0)
        await gate.reached.wait()
        assert log == ["a begins"]
        assert lane.busy
        gate.opened.set()
        await lane.when_idle()
    assert log == [f"{name} {what}" for name in "abc" for what in ("begins", "is answered", "has ended")]


async def test_a_timer_answers_at_the_deadline_and_the_job_is_cancelled_once():
    log, gate, clock = [], Gate(), ManualClock()
    async with running(clock) as lane:
        late, next_one = ToDo("late", log, gate.wait), ToDo("next", log)
        lane.put(late, 1.0)
        lane.put(next_one, 5.0)
        await gate.reached.wait()
        clock.advance(0.999)
        assert log == ["late begins"]
        clock.advance(0.001)
        assert log == ["late begins", "late is given up"], "answered at once, before anything else runs"
        assert late.why == "no answer within 1000 ms"
        await lane.when_idle()
        assert clock.armed == 0
    assert log[2:] == [
        "late is cancelled",
        "late has ended",
        "next begins",
        "next is answered",
        "next has ended",
    ]


async def test_the_next_job_does_not_begin_before_a_stubborn_one_has_ended():
    log, gate, clock = [], Gate(), ManualClock()

    async def stubborn() -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            await gate.opened.wait()

    async with running(clock) as lane:
        lane.put(ToDo("a", log, stubborn), 1.0)
        waiting = ToDo("b", log)
        await gate.reached.wait()
        clock.advance(1.0)
        lane.put(waiting, 1.0)
        clock.advance(1.0)
        assert log == ["a begins", "a is given up", "b is given up", "b has ended"]
        assert waiting.why == "waited 1000 ms behind another request"
        lane.put(ToDo("c", log), 1.0)
        assert "c begins" not in log
        gate.opened.set()
        await lane.when_idle()
    assert log[4:] == ["a has ended", "c begins", "c is answered", "c has ended"]


async def test_a_job_that_swallows_its_cancellation_and_succeeds_does_not_harm_the_next():
    log, gate, clock = [], Gate(), ManualClock()

    async def swallow() -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            log.append("swallowed")

    async def uses_a_timeout() -> None:
        async with asyncio.timeout(60):  # would see a cancellation that was left behind
            await asyncio.get_running_loop().run_in_executor(None, log.append, "thread")

    async with running(clock) as lane:
        lane.put(ToDo("a", log, swallow), 1.0)
        lane.put(ToDo("b", log, uses_a_timeout), 9.0)
        await gate.reached.wait()
        clock.advance(1.0)
        await lane.when_idle()
    assert log == [
        "a begins",
        "a is given up",
        "swallowed",
        "a has ended",
        "b begins",
        "thread",
        "b is answered",
        "b has ended",
    ]


async def test_something_that_a_job_waits_for_is_cancelled_by_others():
    log = []
    async with running(ManualClock()) as lane:
        future = asyncio.get_running_loop().create_future()

        async def wait_for_it() -> None:
            await future

        job = ToDo("a", log, wait_for_it)
        lane.put(job, 1.0)
        lane.put(ToDo("b", log), 1.0)
        asyncio.get_running_loop().call_soon(future.cancel)
        await lane.when_idle()
    assert job.why == "something that it waited for was cancelled"
    assert "b is answered" in log


async def test_abandon():
    log, gate = [], Gate()
    async with running(ManualClock()) as lane:
        lane.put(ToDo("a", log, gate.wait), 1.0)
        lane.put(ToDo("b", log), 1.0)
        await gate.reached.wait()
        lane.abandon("gone")
        lane.put(ToDo("c", log), 1.0)
        await lane.when_idle()
    assert log == [
        "a begins",
        "b is given up",
        "b has ended",
        "a is given up",
        "a is cancelled",
        "a has ended",
        "c begins",
        "c is answered",
        "c has ended",
    ]


async def test_a_deadline_after_abandon_changes_nothing():
    log, gate, clock = [], Gate(), ManualClock()

    async def stubborn() -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            await gate.opened.wait()

    async with running(clock) as lane:
        lane.put(ToDo("a", log, stubborn), 1.0)
        await gate.reached.wait()
        lane.abandon("gone")
        assert clock.armed == 0
        gate.opened.set()
        await lane.when_idle()
    assert log == ["a begins", "a is given up", "a has ended"]


async def test_stopping_the_lane_ends_everything_in_it():
    log, gate, clock = [], Gate(), ManualClock()
    lane = Lane(clock)
    task = asyncio.create_task(lane.run())
    lane.put(ToDo("a", log, gate.wait), 1.0)
    lane.put(ToDo("b", log), 1.0)
    await gate.reached.wait()
    idle = lane.when_idle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == [
        "a begins",
        "a is cancelled",
        "a is given up",
        "a has ended",
        "b is given up",
        "b has ended",
    ]
    assert idle.done()
    assert not lane.busy
    assert clock.armed == 0


async def test_stopping_while_a_late_job_is_being_cancelled():
    log, gate, clock = [], Gate(), ManualClock()
    lane = Lane(clock)
    task = asyncio.create_task(lane.run())
    lane.put(ToDo("a", log, gate.wait), 1.0)
    await gate.reached.wait()
    clock.advance(1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log[-1] == "a has ended"


async def test_stopping_when_a_job_swallows_it():
    log, gate = [], Gate()

    async def swallow() -> None:
        try:
            await gate.wait()
        except asyncio.CancelledError:
            log.append("swallowed")

    lane = Lane(ManualClock())
    task = asyncio.create_task(lane.run())
    lane.put(ToDo("a", log, swallow), 1.0)
    lane.put(ToDo("b", log), 1.0)
    await gate.reached.wait()
    task.cancel()
    await asyncio.wait([task])
    assert "b begins" not in log
    assert log[-2:] == ["b is given up", "b has ended"]

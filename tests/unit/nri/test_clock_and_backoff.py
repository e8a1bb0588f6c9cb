"""Waiting and waiting again, without any time passing."""

import asyncio

import pytest

from bayplan.nri import Backoff
from bayplan.nri.request_queue import wait
from support.clock import ManualClock


class TestWait:
    async def test_what_is_done_is_not_waited_for(self):
        future = asyncio.get_running_loop().create_future()
        future.set_result("done")
        assert await wait(future, 0, ManualClock())

    async def test_done_in_time(self):
        clock, future = ManualClock(), asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(wait(future, 5, clock))
        assert await clock.until_armed() == 5
        future.set_result(None)
        assert await waiting
        assert clock.armed == 0

    async def test_not_done_in_time(self):
        clock, future = ManualClock(), asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(wait(future, 5, clock))
        await clock.until_armed()
        clock.advance(4.9)
        assert clock.armed == 1
        clock.advance(0.2)
        assert not await waiting
        assert not future.done()

    async def test_cancelled(self):
        clock, future = ManualClock(), asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(wait(future, 5, clock))
        await clock.until_armed()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert clock.armed == 0
        assert not future.cancelled()


class TestBackoff:
    def test_doubles_up_to_the_limit(self):
        backoff = Backoff(lambda: 1.0, first_s=0.1, limit_s=2.0)
        assert [backoff.next_s() for _ in range(7)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0])

    def test_never_less_than_half(self):
        backoff = Backoff(lambda: 0.0, first_s=0.1, limit_s=2.0)
        assert [backoff.next_s() for _ in range(6)] == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8, 1.0])

    def test_for_ever(self):
        backoff = Backoff(lambda: 1.0)
        for _ in range(10_000):
            assert 0 < backoff.next_s() <= backoff.limit_s
        assert backoff.attempts == 10_000

    def test_from_the_beginning(self):
        backoff = Backoff(lambda: 1.0, first_s=0.1)
        first = backoff.next_s()
        backoff.next_s()
        backoff.reset()
        assert backoff.attempts == 0
        assert backoff.next_s() == first

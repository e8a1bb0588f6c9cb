"""The thread behind the store: order, both ways of waiting, failures, and where it runs."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from bayplan.daemon.store_thread import StoreThread

LONG_S = 60.0


@pytest.fixture
def thread() -> Iterator[StoreThread]:
    started = StoreThread("state")
    yield started
    started.end()


def _raiser() -> None:
    raise OSError(28, "no room")


def test_everything_is_done_in_order_and_by_the_end() -> None:
    thread, done = StoreThread("state"), []
    for number in range(100):
        thread.hand_over(lambda number=number: done.append(number))  # type: ignore[misc]
    thread.end()
    assert done == list(range(100))


def test_attended_work_is_done_in_the_thread(thread: StoreThread) -> None:
    errand = thread.attend(threading.get_ident, LONG_S)
    assert errand.done
    assert asyncio.run(errand.outcome()) != threading.get_ident()


@pytest.mark.parametrize("way", ["hand_over", "attend"])
def test_what_the_work_raised_is_raised_where_its_outcome_is_asked_for(thread: StoreThread, way: str) -> None:
    errand = thread.attend(_raiser, LONG_S) if way == "attend" else thread.hand_over(_raiser)
    with pytest.raises(OSError, match="no room"):
        asyncio.run(errand.outcome())
    assert asyncio.run(thread.hand_over(lambda: "goes on").outcome()) == "goes on"


def test_work_that_takes_long_is_awaited(thread: StoreThread) -> None:
    async def scenario() -> None:
        release = threading.Event()
        slow = thread.attend(release.wait, 0.001)
        assert not slow.done
        # There is more to be done first: waiting for this one would be waiting for both.
        behind = thread.attend(lambda: "behind", LONG_S)
        assert not behind.done
        waiting = asyncio.ensure_future(slow.outcome())
        await asyncio.sleep(0)
        release.set()
        assert await waiting is True
        assert await behind.outcome() == "behind"

    asyncio.run(scenario())


def test_giving_up_does_not_stop_the_work(thread: StoreThread) -> None:
    async def scenario() -> None:
        release, done = threading.Event(), []
        slow = thread.hand_over(lambda: done.append(release.wait()))
        waiting = asyncio.ensure_future(slow.outcome())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        release.set()
        await thread.hand_over(lambda: None).outcome()
        assert done == [True]

    asyncio.run(scenario())


@pytest.mark.parametrize("work", [lambda: None, _raiser])
def test_whoever_attends_may_run_where_it_could_before(thread: StoreThread, work: Callable[[], None]) -> None:
    before = os.sched_getaffinity(0)
    during: list[set[int]] = []
    waiting = threading.get_native_id()

    def watched() -> None:
        during.extend([os.sched_getaffinity(waiting), os.sched_getaffinity(0)])
        work()

    thread.attend(watched, LONG_S)
    assert os.sched_getaffinity(0) == before
    own, workers = during
    assert len(own) == 1
    assert own == workers <= before

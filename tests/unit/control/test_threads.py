"""The threads beside the loop: order, both ways of waiting for the store's, failures, and where they run."""

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest

from bayplan.control.threads import StoreThread, WorkThread

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
        thread.submit(lambda number=number: done.append(number))  # type: ignore[misc]  # mypy cannot infer a lambda with a default
    thread.end()
    assert done == list(range(100))


def test_attended_work_is_done_in_the_thread(thread: StoreThread) -> None:
    job = thread.run_blocking(threading.get_ident, LONG_S)
    assert job.done
    assert asyncio.run(job.outcome()) != threading.get_ident()


@pytest.mark.parametrize("way", ["submit", "run_blocking"])
def test_what_the_work_raised_is_raised_where_its_outcome_is_asked_for(thread: StoreThread, way: str) -> None:
    job = thread.run_blocking(_raiser, LONG_S) if way == "run_blocking" else thread.submit(_raiser)
    with pytest.raises(OSError, match="no room"):
        asyncio.run(job.outcome())
    assert asyncio.run(thread.submit(lambda: "goes on").outcome()) == "goes on"


async def test_work_that_takes_long_is_awaited(thread: StoreThread) -> None:
    release = threading.Event()
    slow = thread.run_blocking(release.wait, 0.001)
    assert not slow.done
    # There is more to be done first: waiting for this one would be waiting for both.
    behind = thread.run_blocking(lambda: "behind", LONG_S)
    assert not behind.done
    waiting = asyncio.ensure_future(slow.outcome())
    await asyncio.sleep(0)
    release.set()
    assert await waiting is True
    assert await behind.outcome() == "behind"


async def test_giving_up_does_not_stop_the_work(thread: StoreThread) -> None:
    release, done = threading.Event(), []
    slow = thread.submit(lambda: done.append(release.wait()))
    waiting = asyncio.ensure_future(slow.outcome())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    release.set()
    await thread.submit(lambda: None).outcome()
    assert done == [True]


def test_both_threads_share_a_cpu_from_one_piece_of_work_to_the_next(thread: StoreThread) -> None:
    before, waiting = os.sched_getaffinity(0), threading.get_native_id()

    def where() -> tuple[set[int], set[int]]:
        return os.sched_getaffinity(waiting), os.sched_getaffinity(0)

    first, second = (asyncio.run(thread.run_blocking(where, LONG_S).outcome()) for _ in range(2))
    own, workers = first
    assert len(own) == 1
    assert own == workers <= before
    assert second == first
    other = WorkThread("other")
    assert asyncio.run(other.do(lambda: os.sched_getaffinity(0))) == before
    other.end()
    thread.release_cpu()
    assert asyncio.run(thread.submit(where).outcome()) == (before, before)


def test_nobody_is_held_while_work_takes_long(thread: StoreThread) -> None:
    before, release = os.sched_getaffinity(0), threading.Event()
    thread.run_blocking(release.wait, 0.001)
    assert os.sched_getaffinity(0) == before
    release.set()

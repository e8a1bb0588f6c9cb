"""The event loop is woken when something is due, and only then."""

import asyncio
import threading

from bayplan.daemon.memory_pressure import ticking
from support.coroutines import PATIENCE_S


async def test_the_event_is_set_for_each_yes_and_for_what_fails() -> None:
    answers = ["no", "yes", "no", "no", "fails", "no", "yes"]
    asked: list[str] = []
    go_on = threading.Semaphore(0)

    def is_due() -> bool:
        if not answers:
            return False
        if asked and asked[-1] != "no":
            go_on.acquire()
        asked.append(answers.pop(0))
        if asked[-1] == "fails":
            raise OSError
        return asked[-1] == "yes"

    with ticking(is_due, 0.0) as due:
        for so_far in (2, 5, 7):
            async with asyncio.timeout(PATIENCE_S):
                await due.wait()
            due.clear()
            assert len(asked) == so_far
            go_on.release()


async def test_nothing_is_asked_any_more_once_it_ended() -> None:
    threads = []

    def is_due() -> bool:
        threads.append(threading.current_thread())
        return True

    with ticking(is_due, 0.0) as due:
        await due.wait()
    threads[0].join(PATIENCE_S)
    assert not threads[0].is_alive()

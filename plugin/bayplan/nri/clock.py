"""The time, as the session sees it: what an asyncio loop offers, and nothing else.

Everything that waits in this package waits on a Clock, so that tests move the time themselves.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """Something that will happen, unless it is cancelled."""

    def cancel(self) -> object:
        """Make sure that it does not happen. Harmless afterwards."""


class Clock(Protocol):
    """Seconds from some moment on, never going back, and callbacks at some of them."""

    def time(self) -> float:
        """Now."""

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        """Have *callback* called at *when*, or at once if that is over; never from within this call."""


async def wait(future: "asyncio.Future[Any]", seconds: float, clock: Clock) -> bool:
    """Wait for *future*, at most so long, and say whether it is done. The future itself is left alone."""
    if future.done():
        return True
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = clock.call_at(clock.time() + seconds, wake)
    future.add_done_callback(wake)
    try:
        await waiter
    finally:
        timer.cancel()
        future.remove_done_callback(wake)
    return future.done()

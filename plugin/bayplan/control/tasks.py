"""Tasks of the event loop that belong together."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

PAUSE_S: Final = 0.02
"""After a change, for those that follow it."""


async def until_one_ends(*work: Coroutine[Any, Any, None]) -> None:
    """Run all of *work* until one ends, then cancel the rest; its exception, if it has one."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


class Recurring:
    """Has *do* done at the start, every so often, and 20 ms after it became due: several reasons come
    together."""

    def __init__(self, do: Callable[[], Awaitable[None]], every_s: float) -> None:
        self._do = do
        self._every_s = every_s
        self._due = asyncio.Event()

    def make_due(self) -> None:
        """There is a reason to do it."""
        self._due.set()

    async def follow(self) -> None:
        """Go on until cancelled."""
        while True:
            await self._do()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), self._every_s)
                await asyncio.sleep(PAUSE_S)
            self._due.clear()

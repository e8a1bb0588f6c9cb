"""Tasks of the event loop that belong together."""

import asyncio
from collections.abc import Coroutine
from typing import Any


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

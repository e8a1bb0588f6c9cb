"""Waiting for what others do, and parts of the agent that run meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol


class Part(Protocol):
    """What runs until it is cancelled."""

    async def run(self) -> None:
        """Run."""


async def until(condition: Callable[[], bool]) -> None:
    """Let the others go on until *condition* holds."""
    while not condition():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.001)


@asynccontextmanager
async def running(part: Part) -> AsyncIterator[None]:
    """Run *part* meanwhile. If it fails, so does this."""
    task = asyncio.create_task(part.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            task.result()

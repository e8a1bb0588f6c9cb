"""Tests that are coroutines: each runs in an event loop of its own."""

import asyncio
import inspect
from typing import Any, Final

PATIENCE_S: Final = 300.0
"""Nothing in a test takes time; one that waits for so long, also on a busy machine, waits for something that
will not happen."""


def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    """Run a test that is a coroutine function; leave all others to pytest."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await pyfuncitem.obj(**arguments)

    asyncio.run(bounded())
    return True

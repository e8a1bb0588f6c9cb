"""Reading of files in a thread, with a limit to the time that it is waited for.

A file on a file system that does not answer, such as NFS without its server, blocks its reader where no
signal can interrupt it. The main thread must still handle signals, and the process must end without
that thread.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from bayplan.errors import HostError

Result = TypeVar("Result")

LIMIT_S: Final = 30.0
"""A configuration of the largest size takes a few seconds, a small one took ten where CPU was short."""


def read_within(read: Callable[[], Result], limit_s: float = LIMIT_S) -> Result:
    """What *read* returns or raises; signals are handled meanwhile.

    Raises:
        HostError: it took longer than *limit_s*.
    """
    reading = _started(read)
    try:
        return reading.result(limit_s)
    except TimeoutError as error:
        if reading.done():
            raise
        raise _too_late(limit_s) from error


async def read_meanwhile(read: Callable[[], Result], limit_s: float = LIMIT_S) -> Result:
    """Like `read_within`, while the event loop goes on."""
    import asyncio  # noqa: PLC0415 - --help and --check-config do without it

    reading = _started(read)
    try:
        async with asyncio.timeout(limit_s):
            return await asyncio.wrap_future(reading)
    except TimeoutError as error:
        if reading.done():
            raise
        raise _too_late(limit_s) from error


def _started(read: Callable[[], Result]) -> Future[Result]:
    reading: Future[Result] = Future()
    # It cannot be cancelled.
    reading.set_running_or_notify_cancel()

    def run() -> None:
        try:
            reading.set_result(read())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            reading.set_exception(error)

    threading.Thread(target=run, name="reading", daemon=True).start()
    return reading


def _too_late(limit_s: float) -> HostError:
    problem = (
        f"it could not be read within {limit_s:g} s; the file system of one of its files does not answer"
    )
    return HostError("configuration", problem)

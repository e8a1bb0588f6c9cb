"""A question that is asked every second, without waking the event loop for it as long as the answer is no.

To wake the loop, and from there a thread of an executor, takes ten times as long as a question of some small
files. Nothing here knows what is asked.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bayplan.host.libc import use_every_cpu

logger = logging.getLogger(__name__)


@contextmanager
def ticking(is_due: Callable[[], bool], pause_s: float) -> Iterator[asyncio.Event]:
    """Ask *is_due* every *pause_s* in a thread of its own; the event is set each time that it says yes, or
    fails. For the event loop that runs."""
    loop, due, ended = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def ask() -> None:
        use_every_cpu()
        while not ended.is_set():
            # Half as dear as an Event with a timeout. Nobody waits for this thread to end.
            time.sleep(pause_s)
            try:
                if not is_due():
                    continue
            except Exception:
                logger.exception("the check whether something is due failed")
            try:
                loop.call_soon_threadsafe(due.set)
            except RuntimeError:
                return  # The loop was closed meanwhile.

    threading.Thread(target=ask, name="ticks", daemon=True).start()
    try:
        yield due
    finally:
        ended.set()

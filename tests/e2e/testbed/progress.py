"""Says what is being built: its number of how many, its size, and the seconds it took.

On a terminal one live line shows what runs; a log gets plain lines, one when a step begins and one when it is
done. Without a `Display` that is shown, as in tests, steps say nothing.
"""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import ClassVar, NamedTuple, TextIO

from testbed.errors import EndedError

REDRAW_S = 1.0


class Step(NamedTuple):
    """Something that takes long enough to be told of; the size is about that of what is kept."""

    what: str
    size_mb: int


@dataclass(eq=False)
class Display:
    """Where steps are shown; the first of them has the number after `done`, of `total`."""

    stream: TextIO
    done: int = 0
    total: int = 0
    _running: dict[int, tuple[str, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)
    _started: float = field(default_factory=time.monotonic)

    def begin(self, step: Step) -> int:
        with self._lock:
            self.done += 1
            self.total = max(self.total, self.done)
            number = self.done
            self._running[number] = (step.what, time.monotonic())
        if not self._live:
            self.say(f"{self._name(number)}: {step.what}, about {step.size_mb} MB ...")
        return number

    def end(self, number: int, result: str) -> None:
        with self._lock:
            what, started = self._running.pop(number)
        self.say(f"{self._name(number)}: {what}: {result}, {time.monotonic() - started:.0f} s")

    def say(self, line: str) -> None:
        if self._over.is_set():
            return
        with self._lock:
            clear = "\r\x1b[K" if self._live else ""
            self.stream.write(f"{clear}setup: {line}\n")
            self.stream.flush()

    def draw_until_over(self) -> None:
        """Redraw the live line every second, until told that it is over."""
        while self._live and not self._over.wait(REDRAW_S):
            with self._lock:
                now = time.monotonic()
                parts = [
                    f"{number} {what} {now - began:.0f} s" for number, (what, began) in self._running.items()
                ]
                text = f"setup: of {self.total} steps: {'; '.join(parts)}" if parts else ""
                self.stream.write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
                self.stream.flush()

    def close(self) -> None:
        self._over.set()
        if self._live:
            with self._lock:
                self.stream.write("\r\x1b[K")
                self.stream.flush()

    @property
    def _live(self) -> bool:
        return self.stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def _name(self, number: int) -> str:
        return f"step {number} of {self.total}"


class _State:
    display: ClassVar[Display | None] = None
    ending: ClassVar[threading.Event] = threading.Event()


@contextmanager
def shown(done: int = 0, total: int = 0) -> Iterator[None]:
    """Show on standard output the steps that begin meanwhile."""
    display = _State.display = Display(sys.stdout, done, total)
    drawing = threading.Thread(target=display.draw_until_over, daemon=True)
    drawing.start()
    try:
        yield
    finally:
        _State.display = None
        display.close()
        drawing.join()


@contextmanager
def working_on(step: Step | None) -> Iterator[list[str]]:
    """Show a step while the block runs; what the block puts into the list is said when it is done."""
    display, result = _State.display, list[str]()
    if step is None or display is None:
        yield result
        return
    number = display.begin(step)
    try:
        yield result
    except BaseException:
        display.end(number, "interrupted" if _State.ending.is_set() else "failed")
        raise
    display.end(number, ", ".join(result) or "done")


def say(line: str) -> None:
    """A line beside the steps."""
    if _State.display is not None:
        _State.display.say(line)


def interrupt_once() -> None:
    """The first SIGINT or SIGTERM raises KeyboardInterrupt; no second one interrupts clearing up."""

    def raise_once(number: int, frame: FrameType | None) -> None:
        for either in (signal.SIGINT, signal.SIGTERM):
            signal.signal(either, signal.SIG_IGN)
        raise KeyboardInterrupt

    for either in (signal.SIGINT, signal.SIGTERM):
        signal.signal(either, raise_once)


def end() -> None:
    """From now on nothing more is begun: all that would raises EndedError."""
    _State.ending.set()


def check() -> None:
    """Raises EndedError once `end` was called."""
    if _State.ending.is_set():
        raise EndedError


def wait(seconds: float) -> None:
    """Pass the time, but not beyond `end`."""
    _State.ending.wait(seconds)
    check()

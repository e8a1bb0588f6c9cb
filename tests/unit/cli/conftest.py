"""A daemon's admin socket that answers while a test runs the command against it."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bayplan.admin.questions import checking, recorded_questions, rehearsing
from bayplan.admin.server import AdminServer
from bayplan.control.recorder import Recorder
from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.decision import Decision
from bayplan.placement.ledger_check import Fault
from bayplan.placement.memory_policy import MemoryPolicyAbility
from bayplan.state import Store
from bayplan.views.snapshot import Snapshot
from support.snapshots import make_snapshot


class Daemon:
    """An AdminServer with its event loop in a thread of its own, and a store for what was decided before.

    ``activity`` are the answers to ``top``, one after the other: what a kernel shows is not read here;
    ``faults`` is the answer to ``check``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.snapshot = make_snapshot()
        self.level = "info"
        self.faults: tuple[Fault, ...] = ()
        self._loop = asyncio.new_event_loop()
        self.activity: Iterator[dict[str, Any]] = iter(())
        self._thread = threading.Thread(target=self._loop.run_forever)

    def _current(self) -> Snapshot:
        return self.snapshot

    def _set_level(self, level: str | None) -> str:
        self.level = level or self.level
        return self.level

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    async def _start(self) -> None:
        state = self.path.parent / "state"
        self.recorder = await Recorder.open(partial(Store.open, state, lambda: self.snapshot.taken_us))
        questions = {
            **recorded_questions(self.recorder),
            "what-if": rehearsing(ExactEngine, MemoryPolicyAbility),
            "top": self._top,
            "check": checking(self._check),
        }
        self._server = AdminServer(self.path, self._current, self._set_level, questions=questions)
        await self._server.start()

    async def _check(self) -> tuple[Fault, ...]:
        return self.faults

    async def _top(self, _: Snapshot, __: Mapping[str, object]) -> dict[str, Any]:
        return next(self.activity)

    async def _stop(self) -> None:
        await self._server.close()
        await self.recorder.close()

    def refuse(self, decision: Decision, times: int = 1) -> None:
        """Have *decision* recorded as the runtime was given it."""
        for _ in range(times):
            self._loop.call_soon_threadsafe(self.recorder.record_refusal, decision)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        asyncio.run_coroutine_threadsafe(self._loop.shutdown_default_executor(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    one = Daemon(tmp_path / "admin.sock")
    one.start()
    yield one
    one.stop()


@pytest.fixture
def serve_once(tmp_path: Path) -> Iterator[Callable[[bytes], Path]]:
    """Serves one connection with the bytes it is given, whatever was asked, and then hangs up."""
    import socket

    listener = socket.socket(socket.AF_UNIX)
    path = tmp_path / "other.sock"
    listener.bind(str(path))
    listener.listen()
    threads = []

    def start(answer: bytes) -> Path:
        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return path

    yield start
    for thread in threads:
        thread.join()
    listener.close()

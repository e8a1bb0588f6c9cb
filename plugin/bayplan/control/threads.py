"""The daemon's threads and tasks: the event loop's, the store's, and those for everything else that may
block; and how long decisions, commits and replies take.

The store's thread runs its jobs in order, and the event loop can wait for a job in two ways: by blocking for
a moment, when the job takes less than one iteration of the loop, or by awaiting it. An executor of the
standard library does the same with four more locks, and at each of them the two threads can wait for the
interpreter: submitting then takes 0.04 to 0.1 ms instead of 0.013 once both were idle. An engine decides at
once on small machines, and in a thread where a decision can take longer than the runtime waits: there it does
not keep the event loop from answering by default at the deadline. Nothing here knows what the work is.
"""

import asyncio
import threading
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Final, Generic, Protocol, TypeVar

from bayplan.engines.interface import Engine
from bayplan.host.libc import SharedCpu, use_every_cpu
from bayplan.model.machine import Machine
from bayplan.views.snapshot import BOUNDS_MS, Durations


class DurationCounter:
    """The durations that were observed so far."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_MS) + 1)
        self._total_ms = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration of so many seconds."""
        duration_ms = seconds * 1000
        self._counts[bisect_left(BOUNDS_MS, duration_ms)] += 1
        self._total_ms += duration_ms

    def durations(self) -> Durations:
        """The counts at this moment."""
        return Durations(tuple(self._counts), self._total_ms)


class Latency:
    """How long three things take: ``decision`` of an engine; ``commit``, from the decision until it is on the
    disk; ``reply``, from the arrival of the runtime's request until it is answered, whatever it waited
    for."""

    def __init__(self) -> None:
        self.decision = DurationCounter()
        self.commit = DurationCounter()
        self.reply = DurationCounter()

    def durations(self) -> Mapping[str, Durations]:
        """The counts of all three, by name."""
        return {
            "decision": self.decision.durations(),
            "commit": self.commit.durations(),
            "reply": self.reply.durations(),
        }


Result = TypeVar("Result")


class InThread(Protocol):
    """Runs a blocking call in a thread, so that the event loop goes on."""

    async def __call__(self, work: Callable[[], Result]) -> Result:
        """The result of *work*."""


class Job(Generic[Result]):
    """Work for a `StoreThread`, and its outcome."""

    __slots__ = ("_finished", "_on_done", "_work", "done", "error", "value")

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._finished = threading.Lock()
        self._finished.acquire()
        self._on_done: Callable[[], object] | None = None
        self.error: BaseException | None = None
        """What the work raised; else ``value`` is what it returned."""
        self.value: Result
        self.done = False
        """Whether the work has been done; it stays so."""

    def run(self) -> None:
        """Do the work; for the thread."""
        try:
            self.value = self._work()
        except BaseException as error:  # noqa: BLE001 - raised again where the outcome is asked for
            self.error = error
        self.done = True
        self._finished.release()
        if self._on_done is not None:
            self._on_done()

    def wait(self, timeout_s: float) -> None:
        """Block until the work is done, for at most so long. Call it once."""
        self._finished.acquire(timeout=timeout_s)

    async def finished(self) -> None:
        """Wait until the work is done. Giving up does not stop the work."""
        if not self.done:
            loop = asyncio.get_running_loop()
            finished: asyncio.Future[None] = loop.create_future()
            self._on_done = partial(loop.call_soon_threadsafe, _complete, finished)
            # The thread may have looked at ``_on_done`` before it was set; then it never calls it.
            if not self.done:
                await finished

    async def outcome(self) -> Result:
        """What the work returned or raised, as soon as it is done. Giving up does not stop the work."""
        await self.finished()
        if self.error is not None:
            raise self.error
        return self.value


class StoreThread:
    """Runs jobs in the order of `submit`. It starts when it is made; `end` returns when all jobs are done."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._last: Job[Any] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        assert self._thread.native_id is not None
        self._cpu = SharedCpu(self._thread.native_id)

    def submit(self, work: Callable[[], Result]) -> Job[Result]:
        """Have *work* done after all jobs that were submitted before."""
        job = Job(work)
        self._last = job
        self._jobs.put(job)
        return job

    def run_blocking(self, work: Callable[[], Result], timeout_s: float) -> Job[Result]:
        """`submit`, and block until the job is done, for at most *timeout_s*; not at all if another job has
        to be done first. From then on both threads share a CPU, until `release_cpu`."""
        if self._last is not None and not self._last.done:
            return self.submit(work)
        if not self._cpu.held:
            self._cpu.hold()
        job = self.submit(work)
        job.wait(timeout_s)
        if not job.done:
            self._cpu.release()
        return job

    def release_cpu(self) -> None:
        """Let both threads run on any CPU again."""
        self._cpu.release()

    def end(self) -> None:
        """Wait until everything is done, and end the thread."""
        self.release_cpu()
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()


class WorkThread:
    """One thread for work that may block, started by the first work. Unlike the store's it shares no CPU."""

    def __init__(self, name: str) -> None:
        self._executor = executor(name, 1)

    async def do(self, work: Callable[[], Result]) -> Result:
        """The result of *work*, done after everything that was asked for before."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def end(self) -> None:
        """Wait until everything is done."""
        self._executor.shutdown()

    def abandon(self) -> None:
        """Begin nothing more, and do not wait."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def executor(name: str, threads: int | None = None) -> ThreadPoolExecutor:
    """Threads that may run on every CPU, also if the event loop is bound to one when they start."""
    return ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=use_every_cpu)


def _complete(finished: "asyncio.Future[None]") -> None:
    if not finished.done():  # its waiter may have given up
        finished.set_result(None)


FEW_NODES: Final = 8
"""Decisions on so many nodes take 10 ms at most (tests/bench/worst.py)."""

Answer = TypeVar("Answer")


class EngineThread:
    """Decisions by an engine; without *in_thread* all are made at once. *durations* counts how long they
    take."""

    def __init__(self, in_thread: InThread | None, durations: DurationCounter) -> None:
        self._in_thread = in_thread
        self._durations = durations
        self._engines: tuple[Engine, Engine] | None = None
        """The engine, and the one that decides for it in the thread: an engine keeps what it worked out, and
        two threads must not write there."""

    async def run(self, engine: Engine, machine: Machine, decide: Callable[[Engine], Answer]) -> Answer:
        """What *decide* returns with *engine* on *machine*."""
        begun_s = perf_counter()
        try:
            if self._in_thread is None or len(machine.nodes) <= FEW_NODES:
                return decide(engine)
            if self._engines is None or self._engines[0] is not engine:
                self._engines = engine, engine.separate_copy()
            return await self._in_thread(partial(decide, self._engines[1]))
        finally:
            self._durations.observe(perf_counter() - begun_s)


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

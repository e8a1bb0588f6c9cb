"""What takes steps only when it is told to: a disk, the store's thread, and the threads that may block.

Nothing here runs by itself. What was handed over and not yet done is lost when a daemon is killed; what the
disk has stays.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from bayplan.control.threads import Job, StoreThread
from bayplan.errors import StateError
from bayplan.model.ledger import Entry
from bayplan.sets import CpuSet
from bayplan.state import HistoryItem, Step, Store
from bayplan.state.record import decode_entry
from support.clock import ManualClock

Result = TypeVar("Result")


class Disk:
    """What is durable: the entry of each container, by its id; ``decided``, the ids that
    there were, with the time by *clock* of the last decision about each. ``full``: it takes no write.
    ``times_emptied``: how often somebody removed all that it had."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.entries: dict[str, Entry] = {}
        self.decided: dict[str, float] = {}
        self.full = False
        self.times_emptied = 0
        self.writes = 0

    def write(self, step: Step) -> None:
        """Take *step* whole, or not at all.

        Raises:
            StateError: there is no room.
        """
        if self.full:
            raise StateError("disk", "database or disk is full")
        self.writes += 1
        entries = {key: one for key, one in self.entries.items() if step.kept is None or key in step.kept}
        for container_id in step.gone:
            entries.pop(container_id, None)
        for row in (*step.decided, *step.unlisted):
            entries[row.container_id] = decode_entry(row.document)
            self.decided[row.container_id] = self.clock.time()
        self.entries = entries

    def empty(self) -> None:
        """Have nothing any more."""
        self.entries = {}
        self.times_emptied += 1

    def shared_exclusives(self) -> CpuSet:
        """The CPUs that two containers or pools have to themselves, or some of the members of one pool: none,
        at any moment."""
        taken, twice = CpuSet(), CpuSet()
        for entry in self.entries.values():
            if not entry.ended:
                twice |= taken & entry.decision.placement.exclusive_cpus
                taken |= entry.decision.placement.exclusive_cpus
        pools: dict[str, CpuSet] = {}
        for entry in self.entries.values():
            pool, cpus = entry.decision.request.pool, entry.decision.placement.pool_cpus
            if pool and not entry.ended:
                known = pools.setdefault(pool, cpus)
                twice |= (known | cpus) - (known & cpus)
        for cpus in pools.values():
            twice |= taken & cpus
            taken |= cpus
        return twice


class DiskStore(Store):
    """The store on a `Disk`, without a history."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.problem = None

    @property
    def times_emptied(self) -> int:  # type: ignore[override]  # of the disk, not of the daemon's run
        """How often it was made again without what it had."""
        return self._disk.times_emptied

    def entries(self) -> list[Entry]:
        """Everything that is recorded."""
        return [self._disk.entries[key] for key in sorted(self._disk.entries)]

    def commit(self, step: Step) -> bool:
        """Write *step*."""
        self._disk.write(step)
        return True

    def history(self, limit: int = 100, subject: str | None = None) -> list[HistoryItem]:
        """There is none."""
        return []

    def names(self, limit: int) -> list[tuple[str, str]]:
        """The ids of the containers that were decided about, the latest first."""
        return [("", container_id) for container_id in reversed(self._disk.decided)][:limit]

    def decided(self, since_us: int) -> list[HistoryItem]:
        """Those about what there is, as long ago by the clock of the disk as *since_us* is by that of the
        host."""
        disk, age_s = self._disk, time.time() - since_us / 1e6
        return [
            HistoryItem(0, disk.entries[key].decision)
            for key, decided_s in disk.decided.items()
            if key in disk.entries and disk.clock.time() - decided_s <= age_s
        ]

    def checkpoint(self) -> None:
        """There is nothing to tidy up."""

    def close(self) -> None:
        """There is nothing to close."""


class SteppedStoreThread(StoreThread):
    """The store's thread, which does one thing for each `step`; all at once as long as it is ``quick``."""

    def __init__(self) -> None:
        self._jobs: deque[Job[Any]] = deque()  # type: ignore[assignment]  # stands in for it in a test
        self.quick = False

    def submit(self, work: Callable[[], Result]) -> Job[Result]:
        """Have *work* done by a later step."""
        job = Job(work)
        self._jobs.append(job)
        return job

    def run_blocking(self, work: Callable[[], Result], timeout_s: float) -> Job[Result]:
        """Have *work* done, at once if the thread is quick."""
        job = self.submit(work)
        while self.quick and self.waiting:
            self.step()
        return job

    @property
    def waiting(self) -> bool:
        """Whether there is something to do."""
        return bool(self._jobs)

    def step(self) -> None:
        """Do the next thing."""
        self._jobs.popleft().run()

    def release_cpu(self) -> None:
        """It has no CPU."""

    def end(self) -> None:
        """It never began."""


class SteppedExecutor(ThreadPoolExecutor):
    """Threads that may block: each `step` does the first thing of one of them."""

    def __init__(self) -> None:
        super().__init__(1)
        self._work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """Have it done by a later step."""
        future: Future[Result] = Future()
        self._work.append((future, lambda: fn(*args, **kwargs)))
        return future

    @property
    def waiting(self) -> bool:
        """Whether there is something to do."""
        return bool(self._work)

    def step(self) -> None:
        """Do the next thing."""
        future, work = self._work.popleft()
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            future.set_exception(error)
        else:
            future.set_result(result)

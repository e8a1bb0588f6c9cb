"""The store behind one worker thread: no commit blocks the event loop for long, and commits do not overlap.

Steps are committed in the order in which they were submitted, also when a caller gave up waiting. The
checkpoint of the database waits for a moment without commits.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from bayplan.control.threads import Job, StoreThread
from bayplan.errors import StateError
from bayplan.model.decision import Decision, EvictionRecord, PageMoveRecord
from bayplan.model.ledger import Ledger
from bayplan.nri import Clock, Timer
from bayplan.placement.measured_reservation import Learned
from bayplan.state import RefusedItem, Step, Store

logger = logging.getLogger(__name__)

IDLE_S: Final = 1.0
BLOCKING_WAIT_S: Final = 0.005
"""The event loop is blocked by a commit for at most so long. Most commits take a tenth of that, and being
awaited through the loop makes each a fifth longer; a hung disk blocks nothing for longer than this."""
CHECKPOINT_COMMITS: Final = 150
"""So many fit into the write-ahead log before it grows, at up to six pages each; then the checkpoint is not
postponed."""

Result = TypeVar("Result")


class Recorder:
    """The methods of a `Store` as coroutines. Each raises StateError when the store cannot do it. *clock* is
    the loop's own unless a test moves the time itself."""

    def __init__(self, thread: StoreThread, store: Store, clock: Clock | None = None) -> None:
        self._thread = thread
        self._clock = clock
        self._idle_timer: Timer | None = None
        self._idle_at = 0.0
        self._commits = 0
        self.store = store
        self.problem = store.problem
        """Why nothing could be recorded the last time; None when it could."""

    @classmethod
    async def open(cls, open_store: Callable[[], Store]) -> "Recorder":
        """Open the store in the thread that will use it."""
        thread = StoreThread("state")
        try:
            return cls(thread, await thread.submit(open_store).outcome())
        except BaseException:
            thread.end()
            raise

    async def _run(self, work: Callable[[], Result]) -> Result:
        return await self._thread.submit(work).outcome()

    async def ledger(self) -> Ledger:
        """Everything that is promised, as it is recorded."""
        return await self._run(lambda: Ledger.of(self.store.entries()))

    async def decided(self, since_us: int) -> list[tuple[int, Decision]]:
        """The decisions since then, refusals too, with their times (microseconds since the epoch), the newest
        first."""
        items = await self._run(lambda: self.store.decided(since_us))
        return [(item.at_us, item.decision) for item in items]

    async def history(self, limit: int, subject: str | None = None) -> list[tuple[int, Decision]]:
        """The last *limit* decisions about *subject*, about all if that is None, with their times
        (microseconds since the epoch), the newest first."""
        items = await self._run(lambda: self.store.history(limit, subject))
        return [(item.at_us, item.decision) for item in items]

    async def refusals(self, limit: int, since_us: int) -> list[RefusedItem]:
        """The *limit* containers that were refused last since then, the latest first."""
        return await self._run(lambda: self.store.refusals(limit, since_us))

    async def names(self, limit: int) -> list[tuple[str, str]]:
        """Name and id of the containers of the last *limit* decisions, the latest first."""
        return await self._run(lambda: self.store.names(limit))

    async def held_memory(self) -> dict[int, Learned]:
        """What was learned last of memory that others than containers hold, by node."""
        return await self._run(self.store.held_memory)

    def record_learned(self, learned: Mapping[int, Learned]) -> None:
        """Have committed what was learned of the memory that others than containers hold. A failure is not
        reported: the next measurement is recorded again."""
        kept = dict(learned)
        self._thread.submit(
            lambda: self._attempt(partial(self.store.learn, kept), "held memory not recorded")
        )

    async def page_moves(self, limit: int, subject: str | None) -> list[PageMoveRecord]:
        """The last *limit* records of pages moved of *subject*, of all if that is None, the newest first."""
        return await self._run(lambda: self.store.page_moves(limit, subject))

    def pages_moved(self, records: Sequence[PageMoveRecord]) -> None:
        """Have the outcome of page moves committed. Nothing depends on it."""
        self._thread.submit(
            lambda: self._attempt(partial(self.store.add_page_moves, records), "moved pages not listed")
        )

    async def evictions(self, limit: int, subject: str | None) -> list[EvictionRecord]:
        """The last *limit* records of containers of *subject* that were evicted, of all if that is None, the
        newest first."""
        return await self._run(lambda: self.store.evictions(limit, subject))

    async def evicted(self, records: Sequence[EvictionRecord]) -> None:
        """Commit which containers are evicted."""
        await self._run(lambda: self.store.add_evictions(records))

    def submit(self, step: Step) -> Job[bool]:
        """Have *step* committed after all that was submitted before; in most cases that is done when this
        returns. The caller passes the job to `check_commit` once it is done."""
        return self._thread.run_blocking(partial(self.store.commit, step), BLOCKING_WAIT_S)

    def check_commit(self, write: Job[bool]) -> None:
        """Note what became of a *write* that is done.

        Raises:
            StateError: it failed.
        """
        if write.error is not None:
            if isinstance(write.error, StateError):
                self.problem = str(write.error)
                self._thread.release_cpu()
            raise write.error
        if write.value:
            # A step that leaves the disk as it is shows nothing: it succeeds on a full disk too.
            self.problem = None
            self._checkpoint_when_idle()

    async def ensure_in_place(self) -> bool:
        """Have the database made again if somebody removed or replaced it; whether it was.

        Raises:
            StateError: it cannot be made.
        """
        if self.store.is_in_place():
            return False
        try:
            await self._run(self.store.ensure_in_place)
        except StateError as error:
            self.problem = str(error)
            raise
        self.problem = None
        return True

    def record_refusal(self, decision: Decision) -> None:
        """Have a refusal committed to the history. It holds whether or not that succeeds."""
        step = Step.refusal(decision)
        self._thread.submit(lambda: self._attempt(partial(self.store.commit, step), "refusal not listed"))

    def _checkpoint_when_idle(self) -> None:
        """Have a checkpoint made when nothing was committed for a while, or at once when it was postponed for
        too long."""
        self._commits += 1
        loop = asyncio.get_running_loop()
        clock = self._clock or loop
        self._idle_at = clock.time() + IDLE_S
        if self._commits == CHECKPOINT_COMMITS:
            loop.call_soon(self._submit_checkpoint)
        elif self._idle_timer is None:
            # One timer for a whole burst: setting it again costs each commit 0.02 ms.
            self._idle_timer = clock.call_at(self._idle_at, self._check_idle)

    def _check_idle(self) -> None:
        # In a burst too, so that the scheduler can find a better CPU.
        self._thread.release_cpu()
        clock = self._clock or asyncio.get_running_loop()
        if clock.time() < self._idle_at:
            self._idle_timer = clock.call_at(self._idle_at, self._check_idle)
            return
        self._idle_timer = None
        if self._commits:
            self._submit_checkpoint()

    def _submit_checkpoint(self) -> None:
        self._commits = 0
        message = "checkpoint of the state database failed"
        self._thread.submit(lambda: self._attempt(self.store.checkpoint, message))

    def _attempt(self, work: Callable[[], object], otherwise: str) -> None:
        try:
            work()
        except StateError as error:
            logger.warning(otherwise, extra={"problem": str(error)})

    async def close(self) -> None:
        """Finish what was submitted, then close the store."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        await self._run(self.store.close)
        self._thread.end()

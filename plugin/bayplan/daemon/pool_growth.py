"""The owner of the pools of huge pages that may grow and shrink: takes the steps that were decided.

A step is taken in the transaction of the container or claim that needs it: nothing else is promised between
the write to the kernel and the moment when decisions see the machine with it. The kernel's own numbers are
the record: a pool that grew for a container which was never recorded is found at the next start, and shrinks
when it is idle. Invariant: a transaction in which a pool is being changed does not end before the kernel is
done, also when its request is cancelled; then no new portion is begun.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from bayplan.control.state import NodeState, Transaction
from bayplan.control.threads import InThread
from bayplan.daemon.hardware import Hardware
from bayplan.errors import BayplanError
from bayplan.host.hugepage_files import HugepageFiles, Resized
from bayplan.model.machine import Machine, hugepages
from bayplan.model.sentences import stays_scattered
from bayplan.placement.hugepage_pools import Pools, below_minimum, grown, idle_pools, pools_of
from bayplan.quantity import format_bytes

logger = logging.getLogger(__name__)

LOOK_S: Final = 5.0
IDLE_S: Final = 60.0
"""So long nobody needed what a pool is made smaller by: a pod that is started again finds its pages there."""
COMPACTION_SHARE: Final = 0.3
GROWTH_SHARE: Final = 0.6
"""Of the request deadline, counted from where a pool begins to grow: what came until then counts, and a
runtime that asks again finds it."""


class HugepagePools:
    """Changes the sizes of pools. ``problems`` says where the kernel did not do so, each a sentence."""

    def __init__(
        self,
        state: NodeState,
        hardware: Hardware,
        files: HugepageFiles,
        in_thread: InThread,
        in_compaction_thread: InThread,
        deadline_s: float,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.problems: tuple[str, ...] = ()
        self._state = state
        self._hardware = hardware
        self._files = files
        self._in_thread = in_thread
        self._in_compaction_thread = in_compaction_thread
        self._deadline_s = deadline_s
        self._clock_s = clock_s
        self._idle: dict[tuple[int, int], tuple[float, int]] = {}
        """Since when how much of a pool is idle at least, by node and page size."""
        self._connections = 0

    async def follow(self, look_s: float = LOOK_S) -> None:
        """Look after the pools until cancelled."""
        while True:
            await asyncio.sleep(look_s)
            try:
                await self.look()
            except BayplanError as error:
                logger.warning("pools of huge pages cannot be read", extra={"problem": str(error)})
            except Exception:
                # Placing containers does not depend on it.
                logger.exception("pools of huge pages could not be looked after")

    async def grow(self, transaction: Transaction, added: Pools) -> Pools:
        """Have pools grow by *added*, as far as the kernel has pages and the time allows; by how much they
        grew. *transaction* decides on the machine as it is then."""
        begun_s = self._clock_s()
        scattered = await self._compact(added)
        before = transaction.basis.machine
        until_s = begun_s + GROWTH_SHARE * self._deadline_s
        await self._resize(transaction, grown(before, added), until_s)
        came = _difference(before, transaction.basis.machine, added)
        short = [node for node in scattered if came.get(node) != added[node]]
        self.problems += tuple(map(stays_scattered, short))
        self._state.counters["hugepage_pools_grown"] += bool(came)
        self._state.counters["hugepage_pools_short"] += came != added
        return came

    async def look(self) -> None:
        """Have pools shrink by what was idle for a minute, and grow to their minimum."""
        basis, connections = self._state.basis, self._state.counters["connections"]
        if not basis.policy.hugepage_pools:
            self._idle = {}
            return
        if connections != self._connections:
            # Containers that a runtime lists for the first time may need pages that seemed to be idle.
            self._idle, self._connections = {}, connections
        free = await self._in_thread(partial(self._free_bytes, tuple(basis.policy.hugepage_pools)))
        due, lacking = self._note_idle(idle_pools(basis, free)), below_minimum(basis)
        if not due and not lacking:
            return
        async with self._state.transaction() as transaction:
            now = transaction.basis
            known = pools_of(now.machine)
            spare = {
                node: {
                    size: known[node][size] - min(amount, due[node][size])
                    for size, amount in row.items()
                    if size in due.get(node, {})
                }
                for node, row in idle_pools(now, free).items()
            }
            more = grown(now.machine, below_minimum(now))
            wanted = {
                node: {**spare.get(node, {}), **more.get(node, {})} for node in spare.keys() | more.keys()
            }
            await self._resize(transaction, wanted, self._clock_s() + GROWTH_SHARE * self._deadline_s)
            shrunk = _difference(transaction.basis.machine, now.machine, spare)
        for node, row in shrunk.items():
            for size in row:
                self._idle.pop((node, size), None)
        self._state.counters["hugepage_pools_shrunk"] += bool(shrunk)

    def _note_idle(self, idle: Pools) -> dict[int, dict[int, int]]:
        """By how much pools can shrink because it was idle long enough, by node and page size, now that
        *idle* is."""
        now_s, due = self._clock_s(), dict[int, dict[int, int]]()
        listed = {(node, size): amount for node, row in idle.items() for size, amount in row.items()}
        self._idle = {
            key: (self._idle[key][0], min(amount, self._idle[key][1]))
            if key in self._idle
            else (now_s, amount)
            for key, amount in listed.items()
        }
        for (node, size), (since_s, amount) in self._idle.items():
            if now_s - since_s >= IDLE_S:
                due.setdefault(node, {})[size] = amount
        return due

    def _free_bytes(self, nodes: tuple[int, ...]) -> dict[int, dict[int, int]]:
        return {node: self._files.free_bytes(node) for node in nodes}

    async def _compact(self, added: Pools) -> Sequence[int]:
        """Have the kernel make large blocks where there are too few; the nodes on which it cannot. It is not
        waited for long: it changes no promise, and goes on by itself."""
        nodes = await self._in_thread(partial(self._fragmented, added))
        if not nodes:
            return ()
        work = asyncio.ensure_future(self._in_compaction_thread(partial(self._compact_nodes, nodes)))
        await asyncio.wait([work], timeout=COMPACTION_SHARE * self._deadline_s)
        return work.result() if work.done() else ()

    def _fragmented(self, added: Pools) -> list[int]:
        return [
            node
            for node, row in added.items()
            if any(self._files.is_fragmented(node, size, amount) for size, amount in row.items())
        ]

    def _compact_nodes(self, nodes: list[int]) -> list[int]:
        """Have them do so; those of *nodes* on which the kernel cannot."""
        cannot = list[int]()
        for node in nodes:
            try:
                if not self._files.compact(node):
                    logger.info("the kernel cannot make large blocks of free memory", extra={"node": node})
                    cannot.append(node)
            except BayplanError as error:
                logger.warning("memory is not made free in large blocks", extra={"problem": str(error)})
        return cannot

    async def _resize(self, transaction: Transaction, wanted: Pools, until_s: float) -> None:
        """Give pools the sizes *wanted* until the moment *until_s*, and have decisions see the sizes that
        they have then, whatever happens."""
        enough = threading.Event()
        work: asyncio.Future[Resized] = asyncio.ensure_future(
            self._in_thread(
                partial(self._files.resize, wanted, lambda: not enough.is_set() and self._clock_s() < until_s)
            )
        )
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            enough.set()
            await asyncio.wait([work])
            raise
        finally:
            found = work.result()
            before = transaction.basis.machine
            self._hardware.take_pools(transaction, found.pools)
            self._log(before, transaction.basis.machine, found)

    def _log(self, before: Machine, after: Machine, found: Resized) -> None:
        sizes = pools_of(before)
        for node, row in pools_of(after).items():
            for size, amount in row.items():
                if amount != (was := sizes.get(node, {}).get(size, amount)):
                    extra = {"node": node, "resource": hugepages(size), "was": format_bytes(was)}
                    logger.info("a pool of huge pages changed", extra={**extra, "has": format_bytes(amount)})
        for problem in found.problems:
            if problem not in self.problems:
                logger.warning("a pool of huge pages does not change", extra={"problem": problem})
        self.problems = found.problems


def _difference(before: Machine, after: Machine, pools: Pools) -> dict[int, dict[int, int]]:
    """By how much *pools* are larger in *after*."""
    old, new = pools_of(before), pools_of(after)
    rows = {
        node: {
            size: more
            for size in row
            if (more := new.get(node, {}).get(size, 0) - old.get(node, {}).get(size, 0)) > 0
        }
        for node, row in pools.items()
    }
    return {node: row for node, row in rows.items() if row}

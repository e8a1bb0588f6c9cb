"""On which nodes each promise is: on more than it was placed on while these cannot give it, and on its own
again once they can; and what a promise lacks is made up for where memory was freed.

Whose pages are to be moved is one plan (`placement.page_placement`), which the watch of the nodes makes and
carries out. Here is what follows from it for the ledger. Which pages are not where they are to be is asked
anew at each look, of the ledger and of the kernel's counters: no knowledge of it ends with the daemon. Where
they do not move for long, the decision says why. Going back moves the pages first, then writes the kernel's
cpuset.mems, then the record: until then the record has the container on its wider set of nodes. If
it ends between the last two, verification restores the kernel's value. No reply waits for this; transactions
are open only to look and to record. The runtime gets the new nodes with the next reply, as no update is sent
to it outside of replies.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from bayplan.control.expectations import Expectation, cgroup_of
from bayplan.control.state import Current, NodeState, Transaction
from bayplan.control.threads import InThread
from bayplan.errors import BayplanError, StateError
from bayplan.host.hierarchy import Hierarchy
from bayplan.host.kernelfs import AbsentError
from bayplan.host.page_moves import is_bound, move_huge_pages
from bayplan.model.decision import Move
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY
from bayplan.model.sentences import move as move_text
from bayplan.placement.changed_promises import (
    astray,
    astray_no_more,
    gathered,
    moved_back,
    not_gathered,
    not_moved_back,
    widenings,
    with_completed_claims,
    with_widened,
    with_widened_placements,
)
from bayplan.placement.memory_policy import node_for_the_kernel, with_node_for_the_kernel
from bayplan.placement.page_placement import REST_BYTES, LivePages, Return, Waiting
from bayplan.quantity import format_bytes
from bayplan.sets import nodes_text

logger = logging.getLogger(__name__)

PAUSE_S: Final = 2.0
"""Before a round, and before the kernel is looked at after one: where containers come and go by the dozen, a
single round is enough; and a runtime that is carrying out an update writes the nodes that it knows of."""
SETTLING_S: Final = 2.1
"""The kernel sums up a cgroup's counters every two seconds; until then they may show moved pages."""
AGAIN_S: Final = 30.0
"""What could not be moved is tried again after this, also if nobody made room: where a runtime has not
written the new nodes yet, the kernel refuses to move anything to these."""
MOST_AGAIN_S: Final = 600.0
"""Each time after twice as long, up to this."""
END_S: Final = 1.0
"""Huge pages of a process move all at once: others are looked at meanwhile."""

_ENGINE: Final = "exact"
"""The only one that proves room on sets of nodes."""


class Bounds(NamedTuple):
    """Of a return: it takes so many seconds at most, the time not counted that it waits because all moves
    share one rate; and it moves so many bytes at most. A look waits for its end for ``waited_s`` at most."""

    deadline_s: float
    most_bytes: int
    waited_s: float = END_S


class _Returning:
    """What goes back now, and what became of it so far. ``moving_s``: the last time that there was something
    to move."""

    def __init__(self, move: Move, now_s: float) -> None:
        self.move = move
        self.moving_s = now_s
        self.spent_s = 0.0
        self.moved_bytes = 0


class PromisedNodes:
    """See the module. Blocking calls run where *in_thread* says; ``bounds`` may be changed at any time.
    ``is_due``: a look at the nodes may find a container that can go back."""

    def __init__(
        self,
        state: NodeState,
        hierarchy: Hierarchy,
        in_thread: InThread,
        verify_soon: Callable[[], None],
        bounds: Bounds,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bounds = bounds
        self.is_due = False
        self._state = state
        self._hierarchy = hierarchy
        self._in_thread = in_thread
        self._verify_soon = verify_soon
        self._clock_s = clock_s
        self._staying: dict[str, float] = {}
        """By id, until when a container that could not go back is not tried again, unless there is other
        room."""
        self._failures: Counter[str] = Counter()
        """How often that was tried in a row."""
        self._offered: tuple[Move, ...] = ()
        self._passed_over: set[str] = set()
        """The ids of the containers that could go back by the ledger, but not by their pages: others are
        asked about first."""
        self._all_asked = False
        self._returning: _Returning | None = None
        self._waiting: dict[tuple[str, bool], tuple[str, float]] = {}
        """Why pages of a container, or those that are astray, do not move, and since when."""
        self._ending: asyncio.Future[None] | None = None

    async def follow(self, due: asyncio.Event, pause_s: float = PAUSE_S) -> None:
        """Use freed memory whenever that is *due*, until cancelled."""
        while True:
            await due.wait()
            await asyncio.sleep(pause_s)
            due.clear()
            try:
                await self.use_freed_memory()
            except Exception:
                # Placing containers does not depend on it.
                logger.exception("freed memory could not be used for waiting containers")

    async def use_freed_memory(self) -> None:
        """Complete short promises and named pools, and open new nodes to the containers that may use all of
        them; no pages are moved for that. And have the next look find which containers can go back."""
        state = self._state
        async with state.transaction() as transaction:
            basis = transaction.basis
            ledger, wider = with_widened_placements(basis, basis.engine)
            ledger, _ = with_completed_claims(basis.with_ledger(ledger), basis.engine)
            if ledger is not basis.ledger:
                await transaction.commit(ledger)
        if ledger.cpus_of_pools != basis.ledger.cpus_of_pools:
            self._verify_soon()
        if wider:
            state.notifications.nodes_due |= {
                key for key in wider if ledger.entries[key].origin.runtime_applies
            }
            self._verify_soon()
        self._staying.clear()
        self.is_due = True

    async def before_start(self, container_id: str) -> None:
        """Give a container whose nodes have no memory for the kernel one that has."""
        state = self._state
        entry = state.ledger.entries.get(container_id)
        expected = state.expectations((container_id,))
        if entry is None or not expected:
            return
        added = node_for_the_kernel(state.machine, entry.decision)
        if added is None:
            return
        bound = False
        try:
            bound = await self._in_thread(partial(self._is_bound, expected[0]))
        except BayplanError as error:
            extra = {"container_id": container_id, "problem": str(error)}
            logger.warning("cannot see whether the memory of a container is bound", extra=extra)
        async with state.transaction() as transaction:
            ledger = transaction.basis.ledger
            if not _is_placed_as(entry, ledger):
                return
            now = ledger.entries[container_id]
            wider = replace(now, decision=with_node_for_the_kernel(now.decision, added, bound=bound))
            await transaction.commit(ledger.with_entry(wider), container_id)
            if now.origin.runtime_applies:
                state.notifications.nodes_due.add(container_id)
        seen = {"container_id": container_id, "nodes": str(added), "bound": bound}
        logger.info("it may use a node with memory for the kernel", extra=seen)
        try:
            await self._in_thread(partial(self._write_mems, expected[0], wider))
        except BayplanError:
            self._verify_soon()  # Which says what is wrong.

    def _is_bound(self, one: Expectation) -> bool:
        with cgroup_of(self._hierarchy, one) as cgroup:
            return all(is_bound(pid, self._hierarchy.root) for pid in cgroup.processes())

    def _write_mems(self, one: Expectation, entry: Entry) -> None:
        mems = entry.decision.placement.mems
        with cgroup_of(self._hierarchy, one) as cgroup:
            if mems is not None and _is_placed_as(entry, self._state.ledger):
                cgroup.write_mems(mems)

    def candidates(self) -> tuple[Move, ...]:
        """Moves of a few containers that can go back by the ledger: at each look of other ones, until all
        were asked about."""
        if self._ending is not None and not self._ending.done():
            return ()
        known, now_s = self._state.ledger.entries.keys(), self._clock_s()
        self.is_due = self.is_due or self.has_to_try_again()
        self._staying = {key: at_s for key, at_s in self._staying.items() if key in known and at_s > now_s}
        self._passed_over &= known
        self._failures = Counter({key: count for key, count in self._failures.items() if key in known})
        self._offered = _possible(self._state.basis, self._staying.keys() | self._passed_over)
        self._all_asked = not self._offered
        if self._all_asked and self._passed_over:
            self._passed_over = set()
            self._offered = _possible(self._state.basis, self._staying)
        return self._offered

    def has_to_try_again(self) -> bool:
        """Whether it is time to try again what could not be moved; in any thread."""
        now_s = self._clock_s()
        return any(at_s <= now_s for at_s in list(self._staying.values()))

    def stray(self, live: LivePages) -> tuple[Move, ...]:
        """The moves of the containers whose pages are to leave nodes that they may not use."""
        return tuple(move for move in astray(live) if move.container_id not in self._staying)

    async def look(self, live: LivePages, *, relieves: bool) -> bool:
        """Do what follows from *live* for the nodes of promises; give a promise more nodes only with
        *relieves*. Whether any promise changed, or the container that goes back in *live* no longer does."""
        if relieves and live.plan.unmet_bytes and await self._widen(live):
            return True
        await self._say_why(live)
        self.is_due = live.back is None and not self._all_asked
        if live.back is None:
            self._returning = None
            self._passed_over |= {move.container_id for move in self._offered}
            return False
        now_s, move, going = self._clock_s(), live.back.move, self._returning
        if going is None or (going.move.container_id, going.move.after) != (move.container_id, move.after):
            going = self._returning = _Returning(move, now_s)
        if live.plan.moves:
            going.moving_s = now_s
        obstacle = self._obstacle(live.back, going, now_s)
        if not obstacle and self._is_waited_for(live.back):
            return False
        self._returning = None
        end = self._gather if live.back.astray else self.end
        self._ending = asyncio.ensure_future(self._ended(end(move, going.moved_bytes, obstacle)))
        await asyncio.wait([self._ending], timeout=self.bounds.waited_s)
        return True

    def went(self, moved_bytes: int, spent_s: float) -> None:
        """Note that *moved_bytes* of the container that goes back were moved, in *spent_s*."""
        if self._returning is not None:
            self._returning.moved_bytes += moved_bytes
            self._returning.spent_s += spent_s

    async def end(self, move: Move, moved_bytes: int = 0, obstacle: str = "") -> bool:
        """Have the container of *move* on its own nodes, where its pages are by now, or say why that cannot
        be; whether it is."""
        self._stays(move)
        entry = self._state.ledger.entries.get(move.container_id)
        expected = self._state.expectations((move.container_id,))
        if entry is None or not expected:
            return False
        try:
            obstacle = obstacle or await self._in_thread(partial(self._narrow, expected[0], entry, move))
        except AbsentError:
            return False  # It is about to be released.
        except BayplanError as error:
            obstacle = str(error)
        try:
            async with self._state.transaction() as transaction:
                returned = await self._record(transaction, entry, move, moved_bytes, obstacle)
        finally:
            # Also where nothing was recorded: the kernel may have the new nodes already.
            self._verify_soon()
        if returned:
            del self._failures[move.container_id]
            # Once the runtime has written what it knows of.
            asyncio.get_running_loop().call_later(PAUSE_S, self._verify_soon)
        self.is_due = True
        return returned

    async def _ended(self, work: Awaitable[object]) -> None:
        try:
            await work
        except Exception:
            # As with `follow`.
            logger.exception("freed memory could not be used for a container that was to go back")

    async def _gather(self, move: Move, moved_bytes: int, why: str) -> None:
        """Record that the pages of the container of *move* have left nodes that it may not use, or why they
        have not."""
        if why:
            self._stays(move)
        else:
            self._failures.pop(move.container_id, None)
            fields = {"container": move.name, "container_id": move.container_id, "move": move_text(move)}
            logger.info("pages moved", extra={**fields, "moved_bytes": moved_bytes})
        self._state.counters["pages_moved_bytes"] += moved_bytes
        async with self._state.transaction() as transaction:
            ledger = transaction.basis.ledger
            if move.container_id in ledger.entries:
                told = not_gathered(ledger, move, why) if why else gathered(ledger, move.container_id)
                await self._tell(transaction, told, move, why)
        self.is_due = True

    async def _say_why(self, live: LivePages) -> None:
        """Record why pages do not move, of those that have waited for as long as a return may take; and no
        more of those whose pages are not there any more."""
        now_s, back, due = self._clock_s(), live.back, list[Waiting]()
        begun = set() if back is None else {(back.move.container_id, back.astray)}
        kept = {key: one for key, one in self._waiting.items() if key[0] in live.containers}
        self._waiting = {key: one for key, one in kept.items() if key not in begun}
        for waiting in live.waiting:
            key = waiting.move.container_id, waiting.astray
            why, since_s = self._waiting.setdefault(key, (waiting.why, now_s))
            if why != waiting.why:
                self._waiting[key] = waiting.why, now_s
            elif now_s - since_s >= self.bounds.deadline_s:
                due.append(waiting)
        for waiting in due:
            await self._tell_if_new(waiting)
        for gone in astray_no_more(self._state.ledger, live):
            async with self._state.transaction() as transaction:
                if gone in transaction.basis.ledger.entries:
                    await transaction.commit(gathered(transaction.basis.ledger, gone))

    async def _tell_if_new(self, waiting: Waiting) -> None:
        """Record why a container waits, unless that is known."""
        tell = not_gathered if waiting.astray else not_moved_back
        if waiting.move.container_id not in self._state.ledger.entries:
            return
        if tell(self._state.ledger, waiting.move, waiting.why) is self._state.ledger:
            return
        async with self._state.transaction() as transaction:
            ledger = transaction.basis.ledger
            if waiting.move.container_id in ledger.entries:
                await self._tell(
                    transaction, tell(ledger, waiting.move, waiting.why), waiting.move, waiting.why
                )

    async def _tell(self, transaction: Transaction, told: Ledger, move: Move, why: str) -> None:
        """Record what is *told* of the container of *move*, and log *why* its pages stay, if they do."""
        if told is transaction.basis.ledger:
            return
        if why:
            self._state.counters["returns_failed"] += 1
            fields = {"container": move.name, "container_id": move.container_id, "move": move_text(move)}
            logger.warning("container stays on more nodes than it needs", extra={**fields, "why": why})
        await transaction.commit(told)

    def _stays(self, move: Move) -> None:
        self._failures[move.container_id] += 1
        pause_s = AGAIN_S * 2.0 ** (self._failures[move.container_id] - 1)
        self._staying[move.container_id] = self._clock_s() + min(pause_s, MOST_AGAIN_S)

    def _obstacle(self, back: Return, going: _Returning, now_s: float) -> str:
        """Why the container of *back* cannot go back; empty if it can, or still may."""
        if not self._is_waited_for(back):
            return ""
        there = f"{format_bytes(back.left_bytes)} on {nodes_text(back.move.before - back.move.after)}"
        if not (going.moved_bytes or back.astray) and back.left_bytes > self.bounds.most_bytes:
            return f"it has {there}, and at most {format_bytes(self.bounds.most_bytes)} are moved at once"
        if now_s - going.moving_s >= SETTLING_S:
            return f"{there} could not be moved" + (f": {back.obstacle}" if back.obstacle else "")
        if going.spent_s >= self.bounds.deadline_s and not back.astray:
            return f"{there} could not be moved within {self.bounds.deadline_s:g} s"
        return ""

    def _is_waited_for(self, back: Return) -> bool:
        """Whether pages of the container of *back* are still elsewhere."""
        return back.left_bytes > REST_BYTES

    def _narrow(self, one: Expectation, entry: Entry, move: Move) -> str:
        """Move huge pages, and write cpuset.mems, with which the kernel moves the rest; why not, if it
        cannot. Blocks."""
        placement = entry.decision.placement
        beside = (placement.mems or move.before) - move.before
        with cgroup_of(self._hierarchy, one) as cgroup:
            if any(resource != MEMORY for resource in placement.promise.amounts_bytes):
                leave = move.before - move.after
                obstacle = move_huge_pages(cgroup, leave, move.after, self.bounds.most_bytes)
                if obstacle:
                    return obstacle
            if _is_placed_as(entry, self._state.ledger):
                cgroup.write_mems(move.after | beside)
        return ""

    async def _record(
        self, transaction: Transaction, entry: Entry, move: Move, moved_bytes: int, obstacle: str
    ) -> bool:
        """Record the outcome, unless the container or the freed memory changed meanwhile; whether it went
        back."""
        state, key, ledger = self._state, move.container_id, transaction.basis.ledger
        if not _is_placed_as(entry, ledger):
            return False
        fields = {
            "container": move.name,
            "container_id": key,
            "move": move_text(move),
            "moved_bytes": moved_bytes,
        }
        state.counters["pages_moved_bytes"] += moved_bytes
        if obstacle:
            await self._tell(transaction, not_moved_back(ledger, move, obstacle), move, obstacle)
            return False
        if not _possible(transaction.basis, ledger.entries.keys() - {key}):
            logger.info(
                "container stays on more nodes: the room was taken while its pages were moved", extra=fields
            )
            return False
        logger.info("pages moved", extra=fields)
        await transaction.commit(moved_back(ledger, move))
        self._moved(move)
        return True

    async def _widen(self, live: LivePages) -> bool:
        """Give promises more nodes where their own cannot keep them; whether any got some."""
        basis = self._state.basis
        if basis.engine.name != _ENGINE:
            return False
        found = await self._in_thread(partial(widenings, basis, live))
        if not found:
            return False
        async with self._state.transaction() as transaction:
            # It was worked out for that ledger; with another one the next look does.
            now = transaction.basis
            same = now.ledger is basis.ledger and now.machine is basis.machine
            if not same or now.policy is not basis.policy:
                return False
            try:
                for move in found:
                    wider = with_widened(transaction.basis.ledger, move, live)
                    await transaction.commit(wider, move.container_id)
                    self._moved(move)
                    self._verify_soon()
            except StateError as error:
                logger.warning("a promise gets no other node", extra={"problem": str(error)})
                return False
        return True

    def _moved(self, move: Move) -> None:
        """What follows from a move that is in the ledger."""
        placements = self._state
        placements.decision_log.moved(move)
        if self._state.ledger.entries[move.container_id].origin.runtime_applies:
            placements.notifications.nodes_due.add(move.container_id)


def _possible(basis: Current, staying: Collection[str]) -> tuple[Move, ...]:
    return basis.engine.moves_back(basis, staying)


def _is_placed_as(entry: Entry, ledger: Ledger) -> bool:
    """Whether the container of *entry* is still where that says."""
    present = ledger.entries.get(entry.container_id)
    return present is not None and present.decision.placement == entry.decision.placement

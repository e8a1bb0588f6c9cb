"""What is done with freed memory: short promises are completed, and containers that were moved to more nodes
go back to their own.

Going back moves the pages first, then writes the kernel's cpuset.mems, then the record: until then the record
has the container on its wider set of nodes. If it ends between the last two, verification restores the
kernel's value. No reply waits for this; transactions are open only to look and to record. The runtime gets
the new nodes with the next reply, as no update is sent to it outside of replies.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from threading import Event
from typing import Final

from bayplan.control.controller import Controller
from bayplan.control.expectations import Expectation, cgroup_of
from bayplan.control.threads import InThread
from bayplan.control.transactions import Current, Transaction
from bayplan.errors import BayplanError
from bayplan.host import shadow_mode
from bayplan.host.container import ContainerCgroup
from bayplan.host.evacuation import Bounds, Evacuation, evacuate
from bayplan.host.hierarchy import Hierarchy
from bayplan.host.kernelfs import AbsentError
from bayplan.model.decision import Move
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY
from bayplan.model.sentences import move as move_text
from bayplan.placement.after_removal import (
    moved_back,
    not_moved_back,
    with_completed_claims,
    with_widened_placements,
)
from bayplan.sets import NodeSet

logger = logging.getLogger(__name__)

PAUSE_S: Final = 2.0
"""Before a round, and before the kernel is looked at after one: where containers come and go by the dozen, a
single round is enough; and a runtime that is carrying out an update writes the nodes that it knows of."""

Evacuate = Callable[[ContainerCgroup, NodeSet, NodeSet, Bounds, bool], Evacuation]
"""Moves a container's memory from nodes to nodes, its huge pages of hugetlbfs too if the last
argument is true."""


class Narrowing:
    """See the module. Blocking calls run where *in_thread* says; ``bounds`` may be changed at any time."""

    def __init__(
        self,
        controller: Controller,
        hierarchy: Hierarchy,
        in_thread: InThread,
        verify_soon: Callable[[], None],
        bounds: Bounds,
        evacuate: Evacuate | None = None,
    ) -> None:
        self.bounds = bounds
        self._controller = controller
        self._hierarchy = hierarchy
        self._in_thread = in_thread
        self._verify_soon = verify_soon
        self._evacuate = evacuate or self._by_kernel
        self._ended = False
        self._moving = "", Event()
        self.staying = frozenset[str]()
        """The ids of containers that are not to go back now, whatever room the ledger has."""

    async def follow(self, due: asyncio.Event, pause_s: float = PAUSE_S) -> None:
        """Look for room whenever that is *due*, until cancelled."""
        while True:
            await due.wait()
            await asyncio.sleep(pause_s)
            due.clear()
            try:
                returned = await self.use_freed_memory()
            except Exception:
                # Placing containers does not depend on it.
                logger.exception("freed memory could not be used for waiting containers")
                continue
            if returned:
                await asyncio.sleep(pause_s)
                self._verify_soon()

    def stop(self) -> None:
        """Begin no further step of what is being moved; it stays where it is."""
        self._ended = True
        self._moving[1].set()

    def keep(self, staying: frozenset[str]) -> None:
        """Have these containers stay, also the one that is just going back: its nodes have become short."""
        self.staying = staying
        container_id, stop = self._moving
        if container_id in staying:
            stop.set()

    async def use_freed_memory(self) -> bool:
        """Complete short promises, then return the containers that can go back to fewer nodes, one after the
        other; whether any did."""
        async with self._controller.transaction() as transaction:
            await self._complete_promises(transaction)
        tried = set(self.staying)
        returned = False
        while moves := _possible(self._controller.basis, tried):
            # Only the first: much can happen while its pages are moved.
            tried.add(moves[0].container_id)
            returned |= await self._return_one(moves[0])
        return returned

    async def _complete_promises(self, transaction: Transaction) -> None:
        """What moves no pages: opens new nodes to the containers that may use all, and completes promises."""
        controller = self._controller
        basis = transaction.basis
        ledger, wider = with_widened_placements(basis, basis.engine)
        ledger, promised = with_completed_claims(basis.with_ledger(ledger), basis.engine)
        if wider or promised:
            await transaction.commit(ledger)
        if wider:
            controller.placements.notifications.nodes_due |= {
                key for key in wider if ledger.entries[key].origin is None
            }
            self._verify_soon()

    async def _return_one(self, move: Move) -> bool:
        entry = self._controller.ledger.entries.get(move.container_id)
        expected = self._controller.expectations((move.container_id,))
        if entry is None or not expected:
            return False  # Its runtime has not listed it yet.
        self._moving = move.container_id, Event()
        if self._ended:
            return False
        try:
            found = await self._in_thread(partial(self._moved, expected[0], entry, move))
        except AbsentError:
            return False
        except BayplanError as error:
            found = Evacuation(obstacle=str(error))
        try:
            async with self._controller.transaction() as transaction:
                return await self._record(transaction, entry, move, found)
        finally:
            # Also where nothing was recorded: the kernel may have the new nodes already.
            self._verify_soon()

    def _by_kernel(
        self, cgroup: ContainerCgroup, leave: NodeSet, stay: NodeSet, bounds: Bounds, huge_pages: bool
    ) -> Evacuation:
        return evacuate(cgroup, leave, stay, bounds, huge_pages=huge_pages, stop=self._moving[1])

    def _moved(self, one: Expectation, entry: Entry, move: Move) -> Evacuation:
        """Move the pages, then write cpuset.mems. Blocks.

        cgroup v2 migrates on that write too, but it reports neither what stayed nor why, has no limit of time
        or bytes, and narrows the container also where its memory does not fit.
        """
        if shadow_mode.is_on():
            return Evacuation()
        placement = entry.decision.placement
        beside = (placement.mems or move.before) - move.before
        claim = placement.claim
        huge_pages = claim is not None and any(resource != MEMORY for resource in claim.amounts_bytes)
        with cgroup_of(self._hierarchy, one) as cgroup:
            found = self._evacuate(cgroup, move.before - move.after, move.after, self.bounds, huge_pages)
            if not found.obstacle and _is_placed_as(entry, self._controller.ledger):
                cgroup.write_mems(move.after | beside)
        return found

    async def _record(self, transaction: Transaction, entry: Entry, move: Move, found: Evacuation) -> bool:
        """Record the outcome, unless the container or the freed memory changed meanwhile; whether it went
        back."""
        controller, key, ledger = self._controller, move.container_id, transaction.basis.ledger
        if not _is_placed_as(entry, ledger):
            return False
        fields = {
            "container": move.name,
            "container_id": key,
            "move": move_text(move),
            "moved_bytes": found.moved_bytes,
            "left_bytes": found.left_bytes,
        }
        controller.counters["pages_moved_bytes"] += found.moved_bytes
        if key in self.staying:
            logger.info(
                "container stays on more nodes: there is no memory for it where it goes", extra=fields
            )
            return False
        if found.obstacle:
            controller.counters["returns_failed"] += 1
            logger.warning(
                "container stays on more nodes than it needs", extra={**fields, "why": found.obstacle}
            )
            wide = not_moved_back(ledger, move, found.obstacle)
            if wide is not ledger:
                await transaction.commit(wide)
            return False
        if not _possible(transaction.basis, ledger.entries.keys() - {key}):
            logger.info(
                "container stays on more nodes: the room was taken while its pages were moved", extra=fields
            )
            return False
        logger.info("pages moved", extra=fields)
        await transaction.commit(moved_back(ledger, move))
        controller.placements.decision_log.moved(move)
        if entry.origin is None:
            controller.placements.notifications.nodes_due.add(key)
        return True


def _possible(basis: Current, staying: Collection[str]) -> tuple[Move, ...]:
    return basis.engine.moves_back(basis, staying)


def _is_placed_as(entry: Entry, ledger: Ledger) -> bool:
    """Whether the container of *entry* is still where that says."""
    present = ledger.entries.get(entry.container_id)
    return present is not None and present.decision.placement == entry.decision.placement

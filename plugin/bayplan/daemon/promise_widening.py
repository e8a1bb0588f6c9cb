"""Gives a promise another node where its own have not got what was promised, and keeps it there meanwhile.

What is decided, and by which numbers, is in `bayplan.placement.widening`. Here it is recorded, and the kernel
and the runtime get it as they get every other move.
"""

import asyncio
import logging
from functools import partial
from typing import Final

from bayplan.control.controller import Controller
from bayplan.control.narrowing import Narrowing
from bayplan.control.threads import InThread
from bayplan.errors import StateError
from bayplan.model.decision import Move
from bayplan.placement.page_owners import goal_bytes
from bayplan.placement.page_placement import LivePages
from bayplan.placement.widening import must_stay, widenings, with_widened

logger = logging.getLogger(__name__)

_ENGINE: Final = "exact"
"""The only one that proves room on sets of nodes."""


class PromiseWidening:
    """See the module. *narrowing* takes containers back to fewer nodes, and gets the ids of those that must
    stay; *verify_now* has the kernel's values verified, by those of the record."""

    def __init__(
        self, controller: Controller, in_thread: InThread, verify_now: asyncio.Event, narrowing: Narrowing
    ) -> None:
        self._controller = controller
        self._in_thread = in_thread
        self._verify_now = verify_now
        self._narrowing = narrowing

    async def look(self, live: LivePages | None) -> bool:
        """Do what follows from *live*, None where nothing is to be relieved; whether a container got another
        node."""
        basis = self._controller.basis
        machine, ledger = basis.machine, basis.ledger
        if live is None or basis.engine.name != _ENGINE:
            self._keep_there(frozenset())
            return False
        staying = await self._in_thread(partial(must_stay, ledger, live, goal_bytes(machine)))
        # Nobody goes back while pages are moved off a node that is short of what was promised: that comes
        # first, and what goes back meanwhile may be what has to leave next.
        self._keep_there(frozenset(ledger.entries) if live.plan.moves else staying)
        if not live.plan.unmet_bytes:
            return False
        found = await self._in_thread(partial(widenings, basis, live))
        if not found:
            return False
        async with self._controller.transaction() as transaction:
            # It was worked out for that ledger; with another one the next look does.
            now = transaction.basis
            if now.ledger is not ledger or now.machine is not machine or now.policy is not basis.policy:
                return False
            try:
                for move in found:
                    wider = with_widened(transaction.basis.ledger, move, live)
                    await transaction.commit(wider, move.container_id)
                    self._committed(move)
            except StateError as error:
                logger.warning("a promise gets no other node", extra={"problem": str(error)})
                return False
        return True

    def _keep_there(self, staying: frozenset[str]) -> None:
        released = self._narrowing.staying - staying
        self._narrowing.keep(staying)
        if released:
            self._controller.capacity_freed()

    def _committed(self, move: Move) -> None:
        placements = self._controller.placements
        self._narrowing.keep(self._narrowing.staying | {move.container_id})
        placements.decision_log.moved(move)
        if self._controller.ledger.entries[move.container_id].origin is None:
            placements.notifications.nodes_due.add(move.container_id)
        self._verify_now.set()

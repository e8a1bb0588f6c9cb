"""Claims made right when kubelet says what their containers request, after these were created.

A correction is a transaction like every other change of a promise. It moves nothing and ends nothing.
Creations never wait for it: what is known before them is used there.
"""

import asyncio
import logging
from typing import Final

from bayplan.control.controller import Controller
from bayplan.control.transactions import Transaction
from bayplan.errors import StateError
from bayplan.model.ledger import Ledger
from bayplan.model.sentences import memory_text
from bayplan.model.workload import Container
from bayplan.placement.corrected_requests import with_corrected_request

logger = logging.getLogger(__name__)

PAUSE_S: Final = 0.5
"""Between two rounds: where many pods come at once one write to the disk is enough."""


class ExactRequests:
    """Follows what becomes known of pods and corrects the claims of their containers."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._pods = controller.placements.kubelet_pods
        self._due = asyncio.Event()
        self._pods.became_due = self._due.set

    async def follow(self, pause_s: float = PAUSE_S) -> None:
        """Correct claims whenever something is known that was not, until cancelled."""
        while True:
            await self._due.wait()
            await asyncio.sleep(pause_s)
            self._due.clear()
            try:
                await self.correct()
            except StateError as error:
                logger.warning("requests not corrected yet", extra={"problem": str(error)})
                self._due.set()
            except Exception:
                # Placing containers does not depend on it.
                logger.exception("requests could not be corrected")

    async def correct(self) -> None:
        """Correct the claims of all containers whose pods are due.

        Raises:
            StateError: it could not be recorded; they stay due.
        """
        async with self._controller.transaction() as transaction:
            uids, known = dict(self._pods.due), self._controller.known
            containers = [
                one
                for one in known.containers.values()
                if one.pod_id in known.pods and known.pods[one.pod_id].uid in uids
            ]
            ledger = transaction.basis.ledger
            for container in containers:
                ledger = self._corrected(transaction, ledger, container)
            if ledger is not transaction.basis.ledger:
                await transaction.commit(ledger)
                self._controller.capacity_freed()
            for uid in uids:
                self._pods.due.pop(uid, None)

    def _corrected(self, transaction: Transaction, ledger: Ledger, container: Container) -> Ledger:
        """*ledger* with what kubelet says of *container*, if that is something else than was known."""
        machine, policy, engine, _ = transaction.basis
        entry = ledger.entries.get(container.id)
        if entry is None:
            return ledger
        before, pod = entry.decision.request, self._controller.known.pods[container.pod_id]
        request = self._pods.corrected(pod, container.name, machine.memory_bytes, before)
        if request == before:
            return ledger
        self._controller.counters["requests_corrected"] += 1
        fields = {
            "container": before.name,
            "container_id": container.id,
            "memory": memory_text(request.memory),
        }
        logger.info("request corrected", extra=fields)
        return with_corrected_request(machine, policy, engine, ledger, entry, request)

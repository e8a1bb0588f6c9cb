"""Claims made right when kubelet says what their containers request, after these were created.

A correction is a transaction like every other change of a promise. It moves nothing and ends nothing.
Creations never wait for it: what is known before them is used there.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import Final

from bayplan.control.state import NodeState
from bayplan.errors import StateError
from bayplan.model.decision import Request
from bayplan.model.ledger import Ledger
from bayplan.model.machine import Machine
from bayplan.model.sentences import memory_text
from bayplan.placement.corrected_requests import with_corrected_requests

logger = logging.getLogger(__name__)

PODS_AT_ONCE: Final = 4
"""In one transaction, which a creation may have to wait for: a millisecond for each container."""

PAUSE_S: Final = 0.5
"""Between two rounds: where many pods come at once one write to the disk is enough."""


class ExactRequests:
    """Follows what becomes known of pods and corrects the claims of their containers."""

    def __init__(self, state: NodeState) -> None:
        self._state = state
        self._pods = state.kubelet_pods
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
        """Correct the claims of all containers whose pods are due, of a few pods at a time: whoever waits for
        the ledger has it in between.

        Raises:
            StateError: it could not be recorded; they stay due.
        """
        while due := self._pods.take_due(PODS_AT_ONCE):
            try:
                await self._correct(due)
            except BaseException:
                self._pods.put_back(due)
                raise

    async def _correct(self, due: Mapping[str, bool]) -> None:
        async with self._state.transaction() as transaction:
            basis = transaction.basis
            requests = dict(self._found(basis.machine, basis.ledger, due))
            if not requests:
                return
            corrected = with_corrected_requests(basis, basis.engine, requests)
            await transaction.commit(corrected)
        for container_id, request in requests.items():
            fields = {"container": request.name, "container_id": container_id}
            logger.info("request corrected", extra={**fields, "memory": memory_text(request.memory)})
        self._state.counters["requests_corrected"] += len(requests)
        self._state.capacity_freed()

    def _found(
        self, machine: Machine, ledger: Ledger, due: Mapping[str, bool]
    ) -> Iterator[tuple[str, Request]]:
        """The containers of the pods *due* that request something else than the ledger has, by their ids."""
        known = self._state.known
        for container in known.containers.values():
            pod, entry = known.pods.get(container.pod_id), ledger.entries.get(container.id)
            if pod is None or entry is None or pod.uid not in due:
                continue
            before = entry.decision.request
            request = self._pods.corrected(
                pod, container.name, machine.memory_bytes, before, new=due[pod.uid]
            )
            if request != before:
                yield container.id, request

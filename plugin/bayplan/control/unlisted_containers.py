"""Containers of the NRI runtime that it has not told of, looked for after each Synchronize.

A container that is created while a plugin connects can be in neither of the two: the list of Synchronize was
made before it existed, and its CreateContainer went to the plugins that were connected then
(kubernetes-sigs/cri-tools#2137). Nobody would hear of it before its next event, which may be its end. So the
runtime is asked over CRI which containers it has, several times, because one that is being created is listed
only afterwards. What is not known is entered as it is, like one that is listed without a decision.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final

from bayplan.control.controller import Controller
from bayplan.control.ended_containers import ListContainers
from bayplan.control.threads import InThread
from bayplan.errors import BayplanError
from bayplan.model.life import Phase
from bayplan.model.workload import Container, Pod

logger = logging.getLogger(__name__)

LOOKS_S: Final = (0.2, 1.0, 5.0)
"""When it is looked, after a Synchronize. A creation takes a second or two; one that takes longer is entered
with the first event that reports it."""

DescribeContainers = Callable[[str, Collection[str]], Sequence[tuple[Pod, Container]]]
"""Those of the containers, by their ids, that the runtime of that name still has."""

_UNHEARD_OF: Final = frozenset({Phase.UNKNOWN, Phase.UNDECIDED})


class UnlistedContainers:
    """Finds and enters them. *list_containers* and *describe_containers* block."""

    def __init__(
        self,
        controller: Controller,
        in_thread: InThread,
        list_containers: ListContainers,
        describe_containers: DescribeContainers,
    ) -> None:
        self._controller = controller
        self._in_thread = in_thread
        self._list_containers = list_containers
        self._describe_containers = describe_containers

    async def follow(self) -> None:
        """Look after each Synchronize, until cancelled."""
        synchronized = self._controller.synchronized
        while True:
            await synchronized.wait()
            synchronized.clear()
            waited_s = 0.0
            for at_s in LOOKS_S:
                await asyncio.sleep(at_s - waited_s)
                waited_s = at_s
                if synchronized.is_set():
                    break  # it begins again
                await self.enter_unlisted()

    async def enter_unlisted(self) -> None:
        """Look once, and enter the containers that nobody told of."""
        runtime = self._controller.runtime
        if runtime is None:
            return
        try:
            listed = await self._in_thread(partial(self._list_containers, runtime.name))
            unknown = [key for key, alive in listed.items() if alive and self._is_unknown(key)]
            if not unknown:
                return
            found = await self._in_thread(partial(self._describe_containers, runtime.name, unknown))
        except BayplanError as error:
            extra = {"runtime": runtime.name, "problem": str(error)}
            logger.debug("a runtime does not say which containers it has", extra=extra)
            return
        for pod, container in found:
            if self._is_unknown(container.id):
                await self._controller.enter_listed(pod, container)

    def _is_unknown(self, container_id: str) -> bool:
        controller = self._controller
        phase = controller.placements.lives.phase(container_id)
        return phase in _UNHEARD_OF and container_id not in controller.ledger.entries

"""Entries whose container has ended without an event: of containers that did not come over NRI.

A hook that was killed, a poststop that crun does not run after a failed creation, a reboot: no event about
such a container will follow. So the kernel is asked, now and then, whether it still has a process, and CRI-O,
where that made it, whether it has ended.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from bayplan.control.controller import Controller
from bayplan.control.threads import InThread
from bayplan.errors import BayplanError
from bayplan.host.hierarchy import Hierarchy
from bayplan.model.ledger import Entry
from bayplan.model.origin import Form, Origin
from bayplan.oci import announced_container

logger = logging.getLogger(__name__)

CRIO: Final = "cri-o"
"""CRI-O's name for itself in its containers' annotations."""

PATIENCE_S: Final = 300.0
"""For a container whose spec was rewritten to get its process: CRI-O allows a creation 240 s."""


class StaleEntries:
    """Finds and releases them. *release* takes an entry that may have been replaced since."""

    def __init__(
        self,
        controller: Controller,
        hierarchy: Hierarchy,
        in_thread: InThread,
        release: Callable[[Entry], Awaitable[None]],
        list_crio: Callable[[], Mapping[str, bool]],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._controller = controller
        self._hierarchy = hierarchy
        self._in_thread = in_thread
        self._release = release
        self._list_crio = list_crio
        self._clock_s = clock_s
        self._awaited_since_s: dict[str, float] = {}
        self._seen: dict[str, Origin] = {}
        """Those that had a process, with the origin of that start: a container may start again under its
        id."""

    async def release_ended(self) -> None:
        """Look once, and release the entries whose container has ended."""
        suspects = [entry for entry in self._controller.ledger.entries.values() if entry.origin is not None]
        ids = {entry.container_id for entry in suspects}
        self._awaited_since_s = {key: at for key, at in self._awaited_since_s.items() if key in ids}
        self._seen = {key: origin for key, origin in self._seen.items() if key in ids}
        if not suspects:
            return
        listed = await self._in_thread(partial(self._listed, suspects))
        for entry in await self._in_thread(partial(self._without_process, suspects)):
            alive = listed.get(entry.container_id)
            if alive is False or (alive is None and not self._may_come(entry)):
                await self._release_one(entry)

    async def _release_one(self, entry: Entry) -> None:
        extra = {"container": entry.decision.request.name, "container_id": entry.container_id}
        await self._release(entry)
        logger.warning("container exited; no stop event received", extra=extra)
        self._controller.counters["oci_gone"] += 1

    def _listed(self, suspects: list[Entry]) -> Mapping[str, bool]:
        """What CRI-O says of the containers that it made, if it made any; nothing when it does not answer."""
        if not any(entry.origin is not None and entry.origin.engine == CRIO for entry in suspects):
            return {}
        try:
            return self._list_crio()
        except BayplanError as error:
            logger.debug("CRI-O does not say which containers it has", extra={"problem": str(error)})
            return {}

    def _without_process(self, suspects: list[Entry]) -> list[Entry]:
        gone = []
        for entry in suspects:
            try:
                if entry.origin is None:
                    continue
                if announced_container.is_alive(self._hierarchy, entry.origin):
                    self._seen[entry.container_id] = entry.origin
                else:
                    gone.append(entry)
            except BayplanError as error:
                extra = {"container_id": entry.container_id, "problem": str(error)}
                logger.warning("cannot see whether a container is gone", extra=extra)
        return gone

    def _may_come(self, entry: Entry) -> bool:
        """Whether a container without a process is still to get one. A hook's has had it."""
        origin = entry.origin
        if origin is None or origin.form is Form.HOOK or origin.container.pid:
            return False
        if self._seen.get(entry.container_id) is origin or not announced_container.may_start(origin):
            return False
        now_s = self._clock_s()
        return now_s - self._awaited_since_s.setdefault(entry.container_id, now_s) < PATIENCE_S

"""Containers that run although nobody decided about them: let through while the daemon was away, or could not
decide. They are entered as they are, so that they are counted and kept off the exclusive CPUs of others.

NRI lists them, and what could not be recorded then is tried again here. CRI-O's without NRI have bundles, in
which conmon leaves the id of the first process; where no hook or wrapper ever asked, nothing is looked for.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from bayplan.daemon import oci_host
from bayplan.daemon.controller import Controller
from bayplan.daemon.oci_host import Arrival
from bayplan.daemon.residue import CRIO
from bayplan.daemon.turns import Turn
from bayplan.daemon.verify import InThread
from bayplan.domain.origin import Origin
from bayplan.errors import BayplanError
from bayplan.host.hierarchy import Hierarchy
from bayplan.nri import Event
from bayplan.oci.documents import State

logger = logging.getLogger(__name__)

BUNDLES: Final = "run/containers/storage/overlay-containers"
"""Where CRI-O has them unless it was told otherwise; the bundles that are known show where else."""

_BUNDLE: Final = "userdata"


class Strays:
    """Finds and enters them. *turn* is the one that all who change the ledger take."""

    def __init__(
        self,
        controller: Controller,
        hierarchy: Hierarchy,
        in_thread: InThread,
        turn: Turn,
        verify_soon: Callable[[], None],
    ) -> None:
        self._controller = controller
        self._hierarchy = hierarchy
        self._in_thread = in_thread
        self._turn = turn
        self._verify_soon = verify_soon
        self._passed_over: set[tuple[str, str]] = set()
        """Bundles, with what is in their pidfile, that are not of a container to be entered."""

    async def look(self) -> None:
        """Look once, and enter what runs without a record.

        Raises:
            StateError: it cannot be recorded.
        """
        controller = self._controller
        async with self._turn:
            for pod, container in tuple(controller.residents.unrecorded.values()):
                await controller.state_changed(Event.START_CONTAINER, pod, container)
        origins = [entry.origin for entry in controller.ledger.entries.values() if entry.origin is not None]
        if controller.runtime is not None or not (
            origins or any(name.startswith("oci_") for name in controller.counters)
        ):
            return
        known = frozenset(controller.ledger.entries)
        found = await self._in_thread(partial(self._found, self._directories(origins), known))
        for arrival in found:
            async with self._turn:
                if arrival.container.id in controller.ledger.entries:
                    continue
                await controller.enter(arrival.pod, arrival.container, arrival.origin)
            self._verify_soon()

    def _directories(self, origins: Collection[Origin]) -> set[Path]:
        """Where bundles are, as ``.../ID/userdata``."""
        bundles = [Path(one.bundle) for one in origins if one.engine == CRIO]
        others = {one.parent.parent for one in bundles if one.name == _BUNDLE}
        return others | {self._hierarchy.root / BUNDLES}

    def _found(self, directories: Collection[Path], known: Collection[str]) -> list[Arrival]:
        seen, found = set(), []
        for bundle, pid in _started(directories, known):
            seen.add((str(bundle), pid))
            if (str(bundle), pid) in self._passed_over:
                continue
            try:
                state = State(bundle.parent.name, str(bundle), int(pid))
                arrival = oci_host.announced(self._hierarchy, state)
                if arrival is not None and not oci_host.is_alive(self._hierarchy, arrival.origin):
                    arrival = None  # a process that ended and whose parent has not asked for it yet
            except (ValueError, BayplanError) as error:
                logger.debug("no container", extra={"bundle": str(bundle), "problem": str(error)})
                arrival = None
            if arrival is not None and arrival.origin.engine == CRIO:
                found.append(arrival)
            else:
                self._passed_over.add((str(bundle), pid))
        self._passed_over &= seen
        return found


def _started(directories: Collection[Path], known: Collection[str]) -> Iterator[tuple[Path, str]]:
    """The bundles of containers that are not *known* and have got a process, with its id as it is told."""
    for directory in sorted(directories):
        for bundle in sorted(directory.glob(f"*/{_BUNDLE}")):
            if bundle.parent.name in known:
                continue
            try:
                yield bundle, (bundle / "pidfile").read_text("ascii", "replace").strip()
            except OSError:
                continue

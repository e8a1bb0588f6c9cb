"""Containers that have ended, or will never start, without a report of it: found, and released.

A hook that was killed, a poststop that crun does not run after a failed creation, an OCI runtime that fails
before the runtime has an event for it, an exit that a runtime did not see: no report about such a container
will follow. So with every verification the kernel is asked whether it still has a process. A container that
had one and has none has ended. One that never had a process is about to start. It keeps what it was promised
as long as its runtime lists it over CRI, as the runtime may start it at any time, and else for `PATIENCE_S`,
unless CRI-O's storage shows that its creation failed. A container that is started after that is found when it
starts, before its first instruction.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from bayplan.control.controller import Controller
from bayplan.control.lives import Life
from bayplan.control.threads import InThread
from bayplan.control.verify import Grounds, grounds_of, is_same
from bayplan.errors import BayplanError
from bayplan.host.container_processes import Occupancy, Place
from bayplan.model.ledger import Entry
from bayplan.model.life import AWAITED, Action, Phase, Report
from bayplan.model.origin import Origin
from bayplan.model.workload import Pod

logger = logging.getLogger(__name__)

CRIO: Final = "cri-o"
"""CRI-O's name for itself, over NRI and in its containers' annotations."""

PATIENCE_S: Final = 300.0
"""For a container to get its process: CRI-O allows a creation 240 s, and kubelet a start 120 s after that."""

ASK_AFTER_S: Final = 10.0
"""So long a container of NRI may be without a process before its runtime is asked:
kubelet starts at once what it has created. Each time that settles nothing, the next pause is twice as long,
up to `PATIENCE_S`."""

ListContainers = Callable[[str], Mapping[str, bool]]
"""The ids of all containers that the runtime of that name lists over CRI, False for those that have ended."""

FailedCreations = Callable[[Mapping[str, str]], Collection[str]]
"""The ids of the containers that CRI-O gave up creating, as its storage shows. Its argument has the ids of
their sandboxes by their ids."""


class _Suspect(Struct, frozen=True):
    """A container that holds something. ``life`` and ``phase`` are those of the moment of the look."""

    entry: Entry
    pod_id: str
    life: Life
    phase: Phase
    place: Place

    @property
    def container_id(self) -> str:
        """The runtime's id of the container."""
        return self.entry.container_id


class EndedContainers:
    """Finds and releases them. *forget_start* is called with the ids of those that are released."""

    def __init__(
        self,
        controller: Controller,
        occupancy: Occupancy,
        in_thread: InThread,
        list_containers: ListContainers,
        failed_creations: FailedCreations,
        forget_start: Callable[[str], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._controller = controller
        self._state = controller.state
        self._occupancy = occupancy
        self._in_thread = in_thread
        self._list_containers = list_containers
        self._failed_creations = failed_creations
        self._forget_start = forget_start
        self._clock_s = clock_s
        self._pause_s = ASK_AFTER_S
        self._asked_s = -PATIENCE_S
        self._all_ran: Grounds = ()
        """The grounds of the last look that found a process of each container."""
        self._has_seen = False
        """Whether the kernel has ever shown a process of a container: else nothing can be concluded from that
        it shows none."""

    async def release_ended(self) -> None:
        """Look once: release the containers that have ended, and enter those that have not, although it was
        reported."""
        await self._controller.settle_doubts()
        state = self._state
        grounds = (*grounds_of(state), *state.lives.all())
        if is_same(grounds, self._all_ran) and await self._in_thread(self._still_run):
            return
        suspects, self._all_ran = list(self._held()), ()
        alive = await self._in_thread(partial(self._with_process, suspects))
        self._has_seen = self._has_seen or bool(alive)
        now_s, without = self._clock_s(), list[_Suspect]()
        for suspect in suspects:
            if suspect.container_id in alive:
                suspect.life.had_process, suspect.life.awaited_since_s = True, None
            else:
                if suspect.life.awaited_since_s is None:
                    suspect.life.awaited_since_s = now_s
                without.append(suspect)
        if not without:
            self._pause_s = ASK_AFTER_S
            if len(suspects) == len(state.ledger.entries):
                self._all_ran = grounds
            return
        listed, failed = await self._in_thread(lambda: (self._listed(without, now_s), self._failed(without)))
        for suspect in without:
            failing = suspect.container_id in failed
            report = Report.NOT_CREATED if failing else self._report(suspect, listed, now_s)
            if report is not None:
                self._pause_s = ASK_AFTER_S
                await self._release(suspect, report)

    def _held(self) -> Iterable[_Suspect]:
        """The containers that hold something, where it is known where their processes are looked for."""
        controller = self._controller
        known, lives = controller.state.known, controller.state.lives
        for container_id, entry in controller.state.ledger.entries.items():
            life, container = lives.of(container_id), known.containers.get(container_id)
            if life is None or container is None:
                continue  # before the runtime has listed it
            pod = known.pods.get(container.pod_id, Pod(container.pod_id))
            yield _Suspect(entry, container.pod_id, life, life.phase, Place.of(pod, container, entry.origin))

    def _still_run(self) -> bool:
        """Whether those who ran at the last look have a process now. Blocks."""
        return self._occupancy.have_processes(self._state.ledger.entries.keys())

    def _with_process(self, suspects: Collection[_Suspect]) -> set[str]:
        """The ids of those that have a process, and of those of which the kernel does not say."""
        found = set()
        self._occupancy.keep({one.container_id for one in suspects})
        for one in suspects:
            try:
                if self._occupancy.has_process(one.place):
                    found.add(one.container_id)
            except BayplanError as error:
                extra = {"container_id": one.container_id, "problem": str(error)}
                logger.warning("cannot see whether a container has ended", extra=extra)
                found.add(one.container_id)
        return found

    def _listed(self, without: Collection[_Suspect], now_s: float) -> Mapping[str, Mapping[str, bool]]:
        """What the runtimes list that may know the containers *without* a process, by the runtime's name; a
        runtime that does not answer is left out."""
        engines = {one.entry.origin.engine for one in without} & {CRIO}
        runtime = self._state.runtime
        if runtime is not None and any(self._is_worth_asking(one, now_s) for one in without):
            engines.add(runtime.name)
            self._asked_s, self._pause_s = now_s, min(2 * self._pause_s, PATIENCE_S)
        listed = dict[str, Mapping[str, bool]]()
        for engine in sorted(engines):
            try:
                listed[engine] = self._list_containers(engine)
            except BayplanError as error:
                extra = {"runtime": engine, "problem": str(error)}
                logger.debug("a runtime does not say which containers it has", extra=extra)
        return listed

    def _failed(self, without: Collection[_Suspect]) -> Collection[str]:
        """The ids of those *without* a process that CRI-O gave up creating: of these it has no event."""
        runtime = self._state.runtime
        if runtime is None or runtime.name != CRIO:
            return ()
        decided = [one for one in without if one.entry.origin.is_listed and one.phase is Phase.DECIDED]
        return self._failed_creations({one.container_id: one.pod_id for one in decided}) if decided else ()

    def _is_worth_asking(self, one: _Suspect, now_s: float) -> bool:
        """Whether the NRI runtime is asked about a container: one of its own, of which the kernel says
        nothing."""
        since_s = one.life.awaited_since_s
        waited = since_s is not None and now_s - since_s >= ASK_AFTER_S
        due = now_s - self._asked_s >= self._pause_s
        return one.entry.origin.is_listed and not one.life.had_process and waited and due

    def _report(
        self, suspect: _Suspect, listed: Mapping[str, Mapping[str, bool]], now_s: float
    ) -> Report | None:
        """What is to be reported of a container without a process; None as long as it may get one."""
        origin, runtime = suspect.entry.origin, self._state.runtime
        if origin.reports_end_of_pod and suspect.pod_id in self._state.stopped_pods:
            return Report.POD_STOPPED  # containerd creates containers there, and starts none
        containers = listed.get(origin.listed_by("" if runtime is None else runtime.name))
        alive = None if containers is None else containers.get(suspect.container_id)
        if alive:
            # Only the runtime knows where its processes are, or when it will be started.
            suspect.life.awaited_since_s = now_s
            return None
        # One that is being created is not listed yet.
        unlisted = origin.is_listed and containers is not None and suspect.phase is not Phase.DECIDED
        if alive is False or unlisted:
            return Report.EXITED
        if suspect.life.had_process:
            return Report.NO_PROCESS
        since_s = suspect.life.awaited_since_s
        late = since_s is not None and now_s - since_s >= PATIENCE_S
        expected = suspect.phase not in AWAITED
        if expected:
            return Report.OVERDUE if late and self._has_seen else None
        return Report.OVERDUE if late or not _may_start(origin) else None

    async def _release(self, suspect: _Suspect, report: Report) -> None:
        """Release it, unless something was reported of it since the look."""
        controller = self._controller
        async with controller.state.transaction() as transaction:
            lives = controller.state.lives
            same = lives.of(suspect.container_id) is suspect.life and suspect.life.phase is suspect.phase
            step = lives.step(report, suspect.container_id).settled(suspect.phase, has_process=False)
            if not same or step.action is not Action.RELEASE:
                return
            controller.placements.release(transaction, suspect.container_id, report)
            self._forget_start(suspect.container_id)
        await controller.state.wait_written()
        extra = {
            "container": suspect.entry.decision.request.name,
            "container_id": suspect.container_id,
            "why": report.value,
        }
        logger.info("container has ended, and nobody had reported it", extra=extra)
        controller.state.counters["nri_gone" if suspect.entry.origin.is_listed else "oci_gone"] += 1


def _may_start(origin: Origin) -> bool:
    """Whether a container without a process may still start: its bundle exists, or it has none."""
    return not origin.bundle or Path(origin.bundle).is_dir()

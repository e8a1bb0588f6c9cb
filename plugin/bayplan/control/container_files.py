"""The owners of the files that each container has: what it was given, and what the wrapper has to know
without asking.

A placement file (`bayplan.placement.placement_file`) is there before its container is created, and follows
the ledger: 20 ms after a change, or several changes together, a thread replaces all files that now say
something else than the ledger. A change that does not concern a container leaves its file, and the generation
in it, alone. Invariant: at rest each container that is to have a file has one that says what the ledger says,
and there is no other directory, unless a creation may be under way.

A directory is removed when its container is known to have ended. If nothing is known of the container, or no
more than that its runtime does not list it, the directory is removed after a while, and not before a runtime
has listed what runs: a container whose creation is under way does not start without its directory, and a
mount of a directory that is gone stays empty for good.

The files for the wrapper are beside the OCI socket: a shell can see whether a file is there without a new
process. So only the starts that need it cost a question: those of containers with CPUs of their own, of
containers whose memory has to be freed first, and of containers that could not be given other cpusets because
their spec was rewritten and their cgroup not made yet. And crun takes the CPUs of a process that enters a
container later from that process' own document, to which the wrapper adds them. docs/oci-hook.md has the
paths, which the wrapper knows.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from bayplan.control.threads import InThread
from bayplan.errors import HostError
from bayplan.host.placement_files import PlacementDirectory
from bayplan.model.basis import Basis
from bayplan.model.decision import Decision
from bayplan.model.ledger import Entry
from bayplan.model.machine import Machine
from bayplan.model.sentences import placement_file_problem
from bayplan.placement.adjustment import exec_cpus_of
from bayplan.placement.placement_file import Known, body_of, with_generation
from bayplan.sets import CpuSet

logger = logging.getLogger(__name__)

PAUSE_S: Final = 0.02
"""After a change, for those that follow it."""
RETRY_S: Final = 3.0
"""After a write that failed."""
SWEEP_S: Final = 30.0
"""Between two looks for directories that belong to no container."""
GRACE_S: Final = 60.0
"""So long a directory stays that no container of the ledger has a file in: its creation may be under way."""
UNLISTED_S: Final = 600.0
"""So long after the start all of those stay, if no runtime has listed what runs."""


class _Written(Struct):
    """What the file of a container was made from, and what it has. ``begins_again``: a container of this id
    has ended, and another one is about to be created."""

    decision: Decision
    shared: CpuSet
    machine: Machine
    generation: int
    body_hash: int
    begins_again: bool = False


class PlacementFileWriter:
    """The placement files of all containers. ``problems`` are those that cannot be written or removed, by
    container id. *has_ended* says whether it is certain that a container has ended, *listed* whether a
    runtime has listed what runs since the start."""

    def __init__(
        self,
        directory: PlacementDirectory,
        in_thread: InThread,
        basis: Callable[[], Basis],
        has_ended: Callable[[str], bool],
        listed: Callable[[], bool],
        counters: Counter[str],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.problems: dict[str, str] = {}
        self._directory = directory
        self._do = in_thread
        self._basis = basis
        self._has_ended = has_ended
        self._listed = listed
        self._counters = counters
        self._now_s = now_s
        self._started_s = now_s()
        self._due = asyncio.Event()
        # Used in the thread only.
        self._written: dict[str, _Written] = {}

    def sentences(self) -> list[str]:
        """The problems, for people."""
        return [placement_file_problem(one) for _, one in sorted(self.problems.copy().items())]

    def note_change(self) -> None:
        """The ledger, the machine or the policy is another one: the files may have to be replaced."""
        self._due.set()

    async def prepare(self, machine: Machine, shared: CpuSet, entry: Entry) -> str:
        """Make the file of a container that is about to be created with *entry*; its directory.

        Raises:
            HostError: it cannot be made.
        """
        source = self._directory.source(entry.container_id)
        await self._do(partial(self._prepare, machine, shared, entry))
        return source

    async def follow(self) -> None:
        """Keep the files as they should be, until cancelled."""
        await self.sweep()
        swept_s = self._now_s()
        while True:
            wait_s = RETRY_S if self.problems else SWEEP_S
            try:
                await asyncio.wait_for(self._due.wait(), wait_s)
                await asyncio.sleep(PAUSE_S)
            except TimeoutError:
                pass
            self._due.clear()
            await self.update()
            if self._now_s() - swept_s >= SWEEP_S:
                await self.sweep()
                swept_s = self._now_s()

    async def update(self) -> None:
        """Replace the files that say something else than the ledger, and remove those of containers that have
        ended."""
        await self._do(partial(self._update, self._basis()))

    async def sweep(self) -> None:
        """Remove the directories that belong to no container."""
        await self._do(partial(self._sweep, self._basis()))

    def _prepare(self, machine: Machine, shared: CpuSet, entry: Entry) -> None:
        before, _ = self._directory.generation(entry.container_id)
        self._write(machine, shared, entry, body_of(machine, shared, entry), before)
        self._written[entry.container_id].begins_again = self._has_ended(entry.container_id)

    def _update(self, basis: Basis) -> None:
        wanted, groups = _with_files(basis), Known()
        for entry in wanted.values():
            self._bring_up_to_date(basis, entry, groups)
        for container_id in self._written.keys() - wanted.keys():
            self._remove_if_ended(container_id)

    def _bring_up_to_date(self, basis: Basis, entry: Entry, groups: Known) -> None:
        machine, shared, container_id = basis.machine, basis.shared_cpus, entry.container_id
        known = self._written.get(container_id)
        if (
            known is not None
            and known.decision is entry.decision
            and known.machine is machine
            and known.shared == shared
            and not known.begins_again
            and container_id not in self.problems
        ):
            return
        body = body_of(machine, shared, entry, groups)
        if known is None:
            generation, content = self._directory.generation(container_id)
            known = _Written(entry.decision, shared, machine, generation, 0)
            if content == with_generation(body, generation):
                known.body_hash = hash(body)
                self._written[container_id] = known
        if known.body_hash == hash(body) and container_id not in self.problems:
            known.decision, known.machine, known.shared = entry.decision, machine, shared
            known.begins_again = False
            return
        try:
            self._write(machine, shared, entry, body, known.generation)
        except HostError as error:
            self._failed(container_id, error)
        else:
            self.problems.pop(container_id, None)

    def _write(self, machine: Machine, shared: CpuSet, entry: Entry, body: bytes, generation: int) -> None:
        self._directory.write(entry.container_id, with_generation(body, generation + 1))
        self._written[entry.container_id] = _Written(
            entry.decision, shared, machine, generation + 1, hash(body)
        )

    def _sweep(self, basis: Basis) -> None:
        wanted, now_s = _with_files(basis), self._now_s()
        try:
            ages_s = self._directory.ages_s(now_s)
        except HostError as error:
            self._failed("", error)
            return
        for container_id in self.problems.keys() - ages_s.keys() - wanted.keys():
            del self.problems[container_id]
        may_run = not self._listed() and now_s - self._started_s < UNLISTED_S
        for container_id in sorted(ages_s.keys() - wanted.keys()):
            self._remove_if_ended(container_id)
            if not may_run and ages_s[container_id] >= GRACE_S:
                self._remove(container_id)
        for container_id in wanted.keys() - ages_s.keys():
            # Somebody removed it: what is mounted is gone, but whoever looks on the node finds the truth.
            self._written.pop(container_id, None)
            self._bring_up_to_date(basis, wanted[container_id], {})

    def _remove_if_ended(self, container_id: str) -> None:
        known = self._written.get(container_id)
        if known is not None and known.begins_again:
            return
        if self._has_ended(container_id):
            self._remove(container_id)

    def _remove(self, container_id: str) -> None:
        self._written.pop(container_id, None)
        try:
            self._directory.remove(container_id)
        except HostError as error:
            self._failed(container_id, error)
        else:
            self.problems.pop(container_id, None)

    def _failed(self, container_id: str, error: HostError) -> None:
        if self.problems.get(container_id) != str(error):
            self.problems[container_id] = str(error)
            self._counters["placement_files_failed"] += 1
            extra = {"container_id": container_id, "problem": str(error)}
            logger.warning("a placement file is not up to date", extra=extra)


def _with_files(basis: Basis) -> dict[str, Entry]:
    entries, followed = basis.ledger.entries, basis.ledger.followed_ids
    return {key: entries[key] for key in followed if entries[key].decision.request.placement_file}


class Execs:
    """The CPUs of processes that enter a container later, as the ledger has them, in a directory beside the
    OCI *socket*; without a socket there is no wrapper to read them. Files of containers that are gone are
    removed with the next change."""

    def __init__(self, socket: Path | None, in_thread: InThread, basis: Callable[[], Basis]) -> None:
        self._directory = None if socket is None else socket.with_name(f"{socket.name}.execs")
        self._do = in_thread
        self._basis = basis
        self._noted: dict[str, CpuSet] | None = None

    async def update(self) -> None:
        """Have the files as the ledger says."""
        basis = self._basis()
        if basis.ledger.followed_ids or self._noted != {}:
            await self._do(partial(self._update, basis))

    def _update(self, basis: Basis) -> None:
        decisions = {key: basis.ledger.entries[key].decision for key in basis.ledger.followed_ids}
        found = {key: exec_cpus_of(basis.machine, decision) for key, decision in decisions.items()}
        wanted = {key: cpus for key, cpus in found.items() if cpus}
        if self._directory is None or wanted == self._noted:
            return
        try:
            for path in self._directory.iterdir() if self._directory.is_dir() else ():
                if path.name not in wanted:
                    path.unlink()
            for container_id, cpus in wanted.items():
                self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
                unfinished = self._directory / f".{container_id}"
                unfinished.write_text(f"{cpus}\n", encoding="ascii")
                unfinished.replace(self._directory / container_id)
        except OSError as error:
            extra = {"directory": str(self._directory), "problem": str(error)}
            logger.warning("the wrapper does not know the CPUs of later processes", extra=extra)
            return
        self._noted = wanted


class Starts:
    """The containers that are to be compared with the ledger before they start, in a directory beside the OCI
    *socket*; without a socket the wrapper could not ask. Any thread."""

    def __init__(self, socket: Path | None) -> None:
        self._directory = None if socket is None else socket.with_name(f"{socket.name}.starts")

    def clear(self) -> None:
        """Remove the notes of an earlier daemon."""
        if self._directory is not None and self._directory.exists():
            from shutil import rmtree  # noqa: PLC0415 - bz2, lzma and zlib come with it

            rmtree(self._directory, ignore_errors=True)

    def expect(self, container_id: str) -> bool:
        """Have the wrapper ask before that container starts; whether it will."""
        if self._directory is None:
            return False
        try:
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            (self._directory / container_id).touch(mode=0o644)
        except OSError as error:
            extra = {"container_id": container_id, "problem": str(error)}
            logger.warning("the wrapper will not ask before the start of a container", extra=extra)
            return False
        return True

    def forget(self, container_id: str) -> None:
        """Remove the note of that container: the wrapper has asked, or the container is gone."""
        if self._directory is not None:
            with suppress(OSError):
                (self._directory / container_id).unlink()

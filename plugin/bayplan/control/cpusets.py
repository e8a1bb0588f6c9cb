"""Makes the kernel's cpusets what the ledger has, at once, and keeps interrupts away from the CPUs of
containers that ask for it; in shadow mode both stay as they are.

Interrupts: 20 ms after a change of the ledger, several changes together, and every ten seconds, because
interrupts come with devices, and irqbalance moves them. Invariant: at rest no interrupt that can be moved is
on such a CPU; where no container asks for it, every file is as others chose, and none is read.

Whatever CPUs bayplan itself gives a container in the kernel are written here; runtimes write theirs when they
create a container, or carry out a reply. Each look and each write is made under one lock and uses the ledger
of that moment: an earlier decision is never written after a later one, whichever task writes.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from threading import Lock
from typing import Final

from bayplan.control.container_files import Starts
from bayplan.control.expectations import Expectation, Expected, cgroup_of
from bayplan.control.threads import InThread
from bayplan.errors import BayplanError, HostError
from bayplan.host.changed_files import ChangedFiles
from bayplan.host.container import ContainerCgroup
from bayplan.host.cpu_partitions import CpuPartitions, StateEvents
from bayplan.host.hierarchy import Hierarchy
from bayplan.host.irq_affinity import IrqAffinity, Staying
from bayplan.host.kernelfs import AbsentError
from bayplan.model.basis import Basis
from bayplan.model.ledger import Ledger
from bayplan.model.machine import union
from bayplan.model.sentences import irqs_stay
from bayplan.model.workload import Update
from bayplan.sets import CpuSet

logger = logging.getLogger(__name__)

LOOK_S: Final = 10.0
"""Between two looks, where nothing changes."""


class IrqsAway:
    """Keeps interrupts away from CPUs. ``staying`` are those that the kernel does not move."""

    def __init__(self, affinity: IrqAffinity, in_thread: InThread, basis: Callable[[], Basis]) -> None:
        self.staying: tuple[Staying, ...] = ()
        self.problem = ""
        """Why nothing could be changed, "" where it could."""
        self._affinity = affinity
        self._do = in_thread
        self._basis = basis

    def sentences(self) -> list[str]:
        """What is not as it should be, for people."""
        by_problem: dict[str, list[Staying]] = {}
        for one in self.staying:
            by_problem.setdefault(one.problem, []).append(one)
        stay = [
            irqs_stay(union(one.cpus for one in found), [one.irq for one in found], problem)
            for problem, found in by_problem.items()
        ]
        return [*stay, self.problem] if self.problem else stay

    async def update(self) -> None:
        """Have the interrupts where the ledger wants them now."""
        basis = self._basis()
        cpus = _wanted(basis.ledger)
        if cpus or self._affinity.is_changed:
            await self._do(partial(self._update, cpus, basis.machine.online_cpus))

    def _update(self, cpus: CpuSet, online: CpuSet) -> None:
        try:
            staying, problem = self._affinity.keep_away(cpus, online), ""
        except HostError as error:
            staying, problem = self.staying, str(error)
        changed = (staying, problem) != (self.staying, self.problem)
        self.staying, self.problem = staying, problem
        if changed and self.sentences():
            logger.warning("interrupts stay", extra={"problems": self.sentences()})


def _wanted(ledger: Ledger) -> CpuSet:
    """The CPUs that are to be without interrupts."""
    decisions = (ledger.entries[key].decision for key in ledger.followed_ids)
    return union(one.placement.exclusive_cpus for one in decisions if one.request.irqs_away)


RESYNC_PAUSE_S: Final = 0.02
RESYNC_TIME_S: Final = 10.0
"""A runtime makes the cgroup of a container and starts it in less, when many are made at once."""

_NO_STARTS: Final = Starts(None)
"""Without a socket the wrapper cannot ask before a start."""

_NO_PARTITIONS: Final = CpuPartitions("", ChangedFiles(None))


class Cpusets:
    """The cpusets of all containers. *expected* is asked in the thread where *in_thread* has things done.
    ``starts`` gets the containers of the wrapper that have no cgroup yet. *pause_s* is between a change and
    the look at all, and between looks at those that do not run yet. *expected* says the same as long as
    *version* gives the same object."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        expected: Expected,
        in_thread: InThread,
        starts: Starts = _NO_STARTS,
        pause_s: float = RESYNC_PAUSE_S,
        partitions: CpuPartitions = _NO_PARTITIONS,
        isolated: Callable[[], Mapping[str, CpuSet]] = dict,
        version: Callable[[], object] = object,
    ) -> None:
        self.starts = starts
        self._version = version
        self._partitions = partitions
        self._isolated = isolated
        self._directories: dict[str, str] = {}
        """The container whose partition is in a directory, of those that were made since the start."""
        self._pause_s = pause_s
        self._hierarchy = hierarchy
        self._expected = expected
        self._in_thread = in_thread
        self._lock = Lock()
        self._all_synced = asyncio.Event()
        self._due = False
        self._syncing: asyncio.Task[None] | None = None
        self.writes = 0
        """How often a cpuset was written here: what it has now it did not have before."""
        self.refusals: dict[str, str] = {}
        """Why the last change of a container's cpuset could not be made, by its id."""
        self._times: Counter[str] = Counter()

    async def sync(self, container_ids: Collection[str] | None = None, *, mems: bool = False) -> None:
        """`write`, without blocking the caller's loop."""
        await self._in_thread(partial(self.write, container_ids, mems=mems))
        if container_ids is None:
            self._all_synced.set()

    def sync_soon(self) -> None:
        """Compare the CPUs of all with the ledger, beside everything else."""
        self._due = True
        if self._syncing is None:
            self._syncing = asyncio.get_running_loop().create_task(self._sync_while_due())

    async def _sync_while_due(self) -> None:
        try:
            while self._due:
                # Changes come in bursts, and a look at hundreds would be in the way of the next request.
                await asyncio.sleep(self._pause_s)
                self._due = False
                await self._in_thread(self.write)
        finally:
            self._syncing = None

    async def follow_starting(self) -> None:
        """For ever: whenever the CPUs of all were compared, because a container got exclusive CPUs, compare
        those of containers that do not run yet repeatedly until they run. A runtime makes their cgroups with
        the CPUs that it was sent earlier, and has processes of its own in there before its next event."""
        clock = asyncio.get_running_loop().time
        while True:
            await self._all_synced.wait()
            self._all_synced.clear()
            end_s, starting = clock() + RESYNC_TIME_S, self._starting()
            while starting and clock() < end_s and not self._all_synced.is_set():
                await self.sync(starting)
                await asyncio.sleep(self._pause_s)
                starting = self._starting(starting)

    async def follow_partitions(self, changed: Callable[[], None]) -> None:
        """For ever: whenever the kernel changes the state of a partition, compare the CPUs of all, and call
        *changed*. Linux 6.12 keeps the CPUs of a container that ends while its partition is invalid until the
        next boot."""
        try:
            events = StateEvents()
        except HostError as error:
            logger.warning("partitions are looked at every ten seconds only", extra={"problem": str(error)})
            await asyncio.Event().wait()
            return
        self._partitions.events = events
        try:
            while True:
                await events.changed()
                self.sync_soon()
                changed()
        finally:
            self._partitions.events = None
            events.close()

    def _starting(self, container_ids: Collection[str] | None = None) -> list[str]:
        """Those of *container_ids* that do not run yet."""
        expected = self._expected(container_ids)
        return [one.container.id for one in expected if one.starting and one.cpus is not None]

    def write(self, container_ids: Collection[str] | None = None, *, mems: bool = False) -> None:
        """Compare the CPUs of those containers, of all if none are named, with the ledger and write what
        differs; with *mems* their nodes too, which moves what they have elsewhere.

        Blocks. Containers without a cgroup are passed over; what the kernel refuses is logged.
        """
        self._end_partitions()
        for container_id in container_ids or ():
            with self._lock:
                for one in self._expected((container_id,)):
                    self._write(one, mems=mems)
        if container_ids is None:
            self._write_all(mems=mems)

    def _write_all(self, *, mems: bool) -> None:
        version = self._version()
        expected = [one for one in self._expected() if one.cpus is not None]
        # What gets CPUs of its own while it runs gets them once the others have left them.
        expected.sort(key=lambda one: one.apart)
        for one in expected:
            with self._lock:
                # To ask again of each costs as much as half of a look.
                current = self._version() is version
                for now in (one,) if current else self._expected((one.container.id,)):
                    self._write(now, mems=mems)

    def move_memory(self, container_ids: Iterable[str]) -> None:
        """Write the nodes that those containers should have, until they are what the ledger has, which may
        change meanwhile. Their memory goes along; that can take long, so that no other write waits for it.

        Blocks. Containers without a cgroup are passed over; what the kernel refuses is logged.
        """
        for container_id in container_ids:
            written = None
            while expected := self._expected((container_id,)):
                one, mems = expected[0], expected[0].mems
                if mems is None or mems == written:
                    break
                self._change(one, partial(ContainerCgroup.write_mems, mems=mems))
                written = mems

    def _write(self, expectation: Expectation, *, mems: bool) -> None:
        def compared(cgroup: ContainerCgroup) -> None:
            shown_cpus, shown_mems = cgroup.effective(mems=mems)
            cpus = expectation.cpus if expectation.cpus != shown_cpus else None
            nodes = expectation.mems if mems and expectation.mems != shown_mems else None
            if cpus is not None or nodes is not None:
                self.writes += 1
                cgroup.apply(Update(expectation.container.id, cpuset_cpus=cpus, cpuset_mems=nodes))
            if expectation.isolated and expectation.cpus is not None:
                self._directories[cgroup.directory] = expectation.container.id
                self._partitions.take(cgroup.directory, expectation.cpus)

        self._change(expectation, compared)

    def _change(self, expectation: Expectation, change: Callable[[ContainerCgroup], None]) -> None:
        try:
            try:
                self._in_cgroup(expectation, change)
            except AbsentError:
                if self._starts_later(expectation):
                    # The runtime may have made it before that was noted, and have been started since.
                    self._in_cgroup(expectation, change)
        except AbsentError:
            self._settled(expectation)
        except BayplanError as error:
            self._refused(expectation, str(error))
        else:
            self._settled(expectation)

    def partitioned(self) -> frozenset[str]:
        """The containers whose CPUs are an isolated partition."""
        held = self._partitions.held
        if not held:
            return frozenset()
        wanted = self._isolated()
        return frozenset(one for path in held if (one := self._container_in(path, wanted)))

    def _end_partitions(self) -> None:
        """Give back the partitions of containers that have ended, or are to have none or other CPUs: no
        cpuset gets a CPU of a partition."""
        with self._lock:
            if not self._partitions.held:
                return
            wanted = self._isolated()
            for directory, cpus in self._partitions.held.items():
                if wanted.get(self._container_in(directory, wanted)) == cpus:
                    continue
                self._directories.pop(directory, None)
                try:
                    self._partitions.give_back(directory)
                except HostError as error:
                    extra = {"cgroup": directory, "problem": str(error)}
                    logger.warning("a partition cannot be given back", extra=extra)

    def _container_in(self, directory: str, wanted: Iterable[str]) -> str:
        """The container whose partition is there, "" if it is none of *wanted*: the one that it was made for,
        or, where an earlier daemon did so, the one whose id is in the name, as runtimes name cgroups."""
        known = self._directories.get(directory)
        return known if known is not None else next((one for one in wanted if one in directory), "")

    def keep(self, container_ids: Collection[str]) -> None:
        """Forget what was refused to all other containers: they have ended."""
        for container_id in [one for one in self.refusals if one not in container_ids]:
            self._forget(container_id)

    def _settled(self, one: Expectation) -> None:
        self._forget(one.container.id)

    def _forget(self, container_id: str) -> None:
        self.refusals.pop(container_id, None)
        self._times.pop(container_id, None)

    def _refused(self, one: Expectation, problem: str) -> None:
        """Remember *problem* of a container, and log it the first, second, fourth, eighth... time."""
        container_id = one.container.id
        self.refusals[container_id] = problem
        self._times[container_id] += 1
        times = self._times[container_id]
        if times.bit_count() == 1:
            extra = {"container": one.name, "problem": problem, "times": times}
            logger.warning("cannot set cpusets", extra=extra)

    def _in_cgroup(self, one: Expectation, change: Callable[[ContainerCgroup], None]) -> None:
        with cgroup_of(self._hierarchy, one) as cgroup:
            change(cgroup)

    def _starts_later(self, one: Expectation) -> bool:
        """Whether it is to get its cgroup, by a spec that may be older than the ledger, and will be asked for
        at its start."""
        return one.origin.asks_at_start and self.starts.expect(one.container.id)

"""A controller with a real store on a machine of two nodes, for tests of what is built around it."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from bayplan.control.container_files import Starts
from bayplan.control.controller import Controller
from bayplan.control.cpusets import Cpusets
from bayplan.control.expectations import Expectation
from bayplan.control.placements import AdmissionStep, Creation, GrowPools, Placements, PrepareFile
from bayplan.control.promised_nodes import Bounds, PromisedNodes
from bayplan.control.recorder import Recorder
from bayplan.control.state import Current, NodeState, Transaction
from bayplan.control.threads import InThread
from bayplan.daemon.shadow import Parts
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.interface import Engine
from bayplan.errors import HostError, StateError
from bayplan.host.container_processes import Occupancy, Place
from bayplan.host.hierarchy import Hierarchy
from bayplan.model.decision import Decision
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.origin import Hook, Origin
from bayplan.model.policy import PlacementPolicy
from bayplan.model.workload import Adjustment, Container, Pod, Update
from bayplan.nri import Capabilities, Clock, Event, Runtime, Version
from bayplan.placement.hugepage_pools import Pools
from bayplan.placement.ledger_check import contradictions
from bayplan.quantity import GIB
from bayplan.sets import CpuSet
from bayplan.state import Step, Store
from support.machines import machine

Result = TypeVar("Result")
MACHINE = machine(2, cpus_per_node=4)
BOUNDS = Bounds(30.0, GIB, waited_s=300.0)
"""However long the disk takes, a look ends with the return."""


async def here(work: Callable[[], Result]) -> Result:
    """Do *work* at once, where the daemon has a thread for it."""
    return work()


def consistent(basis: Current) -> None:
    """Fail with what contradicts itself in a ledger that is about to become current."""
    assert contradictions(basis.ledger) == ()


class NoKernel:
    """The cpusets of containers that have no cgroup."""

    async def sync(self, container_ids: Collection[str] | None = None, *, mems: bool = False) -> None:
        """There is nothing to write."""

    def sync_soon(self) -> None:
        """There is nothing to write."""


class Controlled:
    """The controller, and what it asked of the host."""

    def __init__(
        self,
        recorder: Recorder,
        policy: PlacementPolicy,
        on: Machine,
        *,
        cgroup_v2: bool,
        clock: Clock | None = None,
        engine: Engine | None = None,
        decide_in_thread: InThread | None = None,
        became: Callable[[Current], None] | None = consistent,
    ) -> None:
        self.oom_score_adj: list[tuple[str, int]] = []
        self.verifications = 0
        self.changes_of_all = 0
        self.compared: list[Collection[str] | None] = []
        self.cpusets: Cpusets | None = None
        self.room_due = asyncio.Event()
        self.without_process: set[str] = set()
        """The ids of containers that have ended, as the kernel shows it."""
        self.kernel: Hierarchy | None = None
        """The kernel that shows it, if there is one."""
        self.relocations_per_hour: int | None = None
        self.grow_pools: GrowPools | None = None
        """Has pools of huge pages grow."""
        self.prepare_file: PrepareFile | None = None
        """Makes placement files."""
        self.admission: list[AdmissionStep] = []
        """What becomes of the engine's decisions, in their order."""
        self.before_start: list[Callable[[str], Awaitable[None]]] = []
        """What a start waits for."""
        self.before_promises: list[Callable[[], Awaitable[None]]] = []
        """What a runtime that has listed its containers waits for."""
        self.state = NodeState(
            Current(on, policy, Ledger(), engine=engine or ExactEngine()),
            recorder,
            has_partitions=cgroup_v2,
            capacity_freed=self.room_due.set,
            clock=clock,
            became=became,
        )
        placements = Placements(
            self.state,
            cgroup_v2=cgroup_v2,
            cpusets=self,
            decide_in_thread=decide_in_thread,
            runs_if_refused=Parts.of_process().runs_if_refused,
            grow_pools=self._grow_pools,
            prepare_file=self._prepare_file,
            admission=(self._admitted,),
            relocations_per_hour=lambda: self.relocations_per_hour,
        )
        self.controller = Controller(
            self.state,
            placements,
            write_oom_score_adj=self.write_oom_score_adj,
            cpusets=self,
            verify_soon=self.verify_soon,
            has_process=self.has_process,
            before_promises=self._before_promises,
            before_start=(self._before_start,),
        )

    async def _grow_pools(self, transaction: Transaction, added: Pools) -> Pools:
        return {} if self.grow_pools is None else await self.grow_pools(transaction, added)

    async def _prepare_file(self, machine: Machine, shared: CpuSet, entry: Entry) -> str:
        if self.prepare_file is None:
            raise HostError(entry.container_id, "nobody makes placement files here")
        return await self.prepare_file(machine, shared, entry)

    def _admitted(self, creation: Creation, decision: Decision) -> Decision:
        for step in self.admission:
            decision = step(creation, decision)
        return decision

    async def _before_promises(self) -> None:
        for awaited in self.before_promises:
            await awaited()

    async def _before_start(self, container_id: str) -> None:
        for awaited in self.before_start:
            await awaited(container_id)

    async def write_oom_score_adj(self, _: Pod, one: Container, value: int) -> None:
        """Note it."""
        self.oom_score_adj.append((one.id, value))

    def accept(
        self,
        machine: Machine | None = None,
        policy: PlacementPolicy | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        """Change what the controller decides by."""
        self.controller.state.schedule(
            lambda transaction: transaction.accept(machine=machine, policy=policy, ledger=ledger)
        )

    async def sync(self, container_ids: Collection[str] | None = None, *, mems: bool = False) -> None:
        """Note it, and do so on the kernel, if there is one."""
        self.compared.append(container_ids)
        if self.cpusets is not None:
            await self.cpusets.sync(container_ids, mems=mems)

    def sync_soon(self) -> None:
        """Count it, and do so on the kernel, if there is one."""
        self.changes_of_all += 1
        if self.cpusets is not None:
            self.cpusets.sync_soon()

    def verify_soon(self) -> None:
        """Count it."""
        self.verifications += 1

    async def has_process(self, place: Place) -> bool:
        """Every container has one, unless it is said to have ended."""
        if self.kernel is not None:
            return Occupancy(self.kernel).has_process(place)
        return place.container_id not in self.without_process

    def expectations(self, container_ids: Collection[str] | None = None) -> list[Expectation]:
        """What the kernel should have of those containers, of every one if none are named."""
        return self.controller.state.expectations(container_ids)

    def promised_nodes(
        self,
        kernel: Hierarchy,
        clock_s: Callable[[], float] = time.monotonic,
        in_thread: InThread = here,
        bounds: Bounds = BOUNDS,
    ) -> PromisedNodes:
        """What becomes of the nodes of promises on *kernel*."""
        promised_nodes = Parts.of_process().promised_nodes
        return promised_nodes(self.controller.state, kernel, in_thread, self.verify_soon, bounds, clock_s)

    def on(self, kernel: Hierarchy, oci_socket: Path | None = None) -> Cpusets:
        """Have the cpusets of *kernel* settled from now on; the wrapper asks at *oci_socket*."""
        self.kernel = kernel
        self.cpusets = Cpusets(kernel, self.expectations, here, Starts(oci_socket), pause_s=0)
        return self.cpusets


async def announced(
    controller: Controller, pod: Pod, container: Container, origin: Origin
) -> tuple[Adjustment, Sequence[Update]]:
    """Place a container that did not come over NRI."""
    async with controller.state.transaction() as transaction:
        return await controller.placements.place(transaction, pod, container, origin)


async def begun(
    controller: Controller, pod: Pod, container: Container
) -> tuple[Adjustment, Sequence[Update]]:
    """Have a container created and started over NRI; what was answered to its creation."""
    answered = await controller.create_container(pod, container)
    await controller.state_changed(Event.POST_START_CONTAINER, pod, container)
    return answered


def has_due_updates(controller: Controller) -> bool:
    """Whether the runtime was sent other CPUs for a container than it should have."""
    return controller.state.ledger.has_due_updates(controller.state.basis.shared_cpus)


def runtime(nri: str) -> Runtime:
    """A containerd with the NRI version *nri*."""
    version = Version.parse(nri)
    assert version is not None
    return Runtime("containerd", "any", nri, Capabilities.of(version), frozenset(Event))


class _FullDisk:
    """A store without room, which can still be read."""

    def __init__(self, store: Store) -> None:
        self.entries, self.history, self.close = store.entries, store.history, store.close
        self.times_emptied = store.times_emptied

    def commit(self, _: Step) -> None:
        """Fail."""
        raise StateError("state.db", "database or disk is full")

    checkpoint = commit


async def by_hook(controller: Controller, pod: Pod, container: Container) -> None:
    """Place a container that comes by the OCI hook, whose decision nobody has but the record."""
    async with controller.state.transaction() as transaction:
        await controller.placements.place(transaction, pod, container, Hook.of(pod, container))


@contextmanager
def full_disk(recorder: Recorder) -> Iterator[None]:
    """Let the disk be full for everything that is handed over within."""
    store = recorder.store
    recorder.store = _FullDisk(store)  # type: ignore[assignment]  # stands in for it in a test
    try:
        yield
    finally:
        recorder.store = store


@asynccontextmanager
async def controlled(
    directory: Path,
    policy: PlacementPolicy = PlacementPolicy(),
    nri: str | None = "0.12.0",
    on: Machine = MACHINE,
    *,
    cgroup_v2: bool = True,
    clock: Clock | None = None,
    engine: Engine | None = None,
    decide_in_thread: InThread | None = None,
    became: Callable[[Current], None] | None = consistent,
) -> AsyncIterator[Controlled]:
    """A controller that restored what *directory* has; connected to a runtime, unless *nri* is None. *became*
    is called with each basis that becomes current."""
    recorder = await Recorder.open(partial(Store.open, directory))
    try:
        made = Controlled(
            recorder,
            policy,
            on,
            cgroup_v2=cgroup_v2,
            clock=clock,
            engine=engine,
            decide_in_thread=decide_in_thread,
            became=became,
        )
        await made.controller.state.restore()
        if nri is not None:
            made.controller.connected(runtime(nri))
        yield made
    finally:
        await recorder.close()

"""One run of the daemon, from its start until it is killed: its parts, connected as in
`bayplan.daemon.components`, on the disk, the kernel and the clock of the node.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from bayplan.config.settings import Settings
from bayplan.control.controller import Controller
from bayplan.control.ended_containers import EndedContainers
from bayplan.control.placements import Placements
from bayplan.control.promised_nodes import Bounds
from bayplan.control.recorder import Recorder
from bayplan.control.state import Current, NodeState
from bayplan.control.verify import grounds_of
from bayplan.daemon.hardware import Hardware, Host, Measurement
from bayplan.daemon.shadow import Parts
from bayplan.engines.interface import Engine
from bayplan.host.container_processes import Occupancy, Place
from bayplan.host.placement_files import PlacementDirectory
from bayplan.model.ledger import Ledger
from bayplan.model.machine import Machine
from bayplan.model.workload import Container, Pod
from bayplan.nri.request_queue import RequestQueue, Timeouts
from bayplan.nri.translate import Operation
from bayplan.nri.wire import TtrpcResponse
from bayplan.oci.request_handler import OciRequestSettings
from bayplan.oci.unmanaged_containers import failed_creations
from bayplan.quantity import GIB
from support.clock import ManualClock
from support.controllers import consistent, runtime
from support.interleaving.kernel import Kernel
from support.interleaving.steps import Disk, DiskStore, SteppedExecutor, SteppedStoreThread

DEADLINE_S = 1.0
Result = TypeVar("Result")


class DaemonRun:
    """The parts, and the tasks that are under way. ``held_bytes`` is what a measurement finds by node."""

    def __init__(
        self,
        disk: Disk,
        kernel: Kernel,
        clock: ManualClock,
        settings: Settings,
        machine: Callable[[], Machine],
        engine_of: Callable[[Settings], Engine],
        list_containers: Callable[[str], Mapping[str, bool]],
    ) -> None:
        self.alive = True
        self._machine = machine
        self._before = asyncio.all_tasks()
        self._hierarchy = kernel.hierarchy
        self.synchronized = self.synchronization_due = False
        self.verification_due = False
        self.room_due = False
        self.obstacle = ""
        self.held_bytes: dict[int, int] = {}
        self.thread, self.executor = SteppedStoreThread(), SteppedExecutor()
        self.tasks: set[asyncio.Task[Any]] = set()
        self._pending: dict[int, Callable[[TtrpcResponse | None], None]] = {}
        self._asked = 0
        self.hardware = Hardware(settings, Host(machine, self._measured), self.do)
        parts = Parts.of_process()
        state = self.state = NodeState(
            Current(self.hardware.machine, self.hardware.policy, Ledger(), engine=engine_of(settings)),
            Recorder(self.thread, DiskStore(disk), clock),
            capacity_freed=self._capacity_freed,
            clock=clock,
            became=consistent,
        )
        self.hardware.attach(state, self.verify_soon)
        self.cpusets = parts.cpusets(kernel.hierarchy, state.expectations, self.do, pause_s=0)
        self.elapsed_s = 0.0
        """So much later it is by the clock of the files."""
        self.files = parts.placement_files(
            PlacementDirectory(kernel.placements),
            self.do,
            lambda: state.basis,
            state.lives.has_certainly_ended,
            lambda: state.was_synchronized,
            state.counters,
            lambda: time.time() + self.elapsed_s,
        )
        placements = Placements(
            state,
            cgroup_v2=True,
            cpusets=self.cpusets,
            runs_if_refused=parts.runs_if_refused,
            prepare_file=self.files.prepare,
        )
        self.controller = Controller(
            state,
            placements,
            write_oom_score_adj=_nothing,
            cpusets=self.cpusets,
            verify_soon=self.verify_soon,
            has_process=self._has_process,
            before_promises=self.hardware.measure_listed,
        )
        controller, hierarchy = self.controller, kernel.hierarchy
        self.oci_requests = parts.oci_requests(
            controller, hierarchy, self.cpusets, OciRequestSettings(deadline_s=1e9, end_pauses_s=())
        )
        self.oci_requests._thread._executor = self.executor
        asyncio.get_running_loop().set_default_executor(self.executor)
        self.promised_nodes = parts.promised_nodes(
            state, hierarchy, self.do, self.verify_soon, Bounds(30.0, GIB)
        )
        self.ended_containers = EndedContainers(
            controller,
            Occupancy(hierarchy),
            self.do,
            list_containers,
            partial(failed_creations, hierarchy.root),
            self.cpusets.starts.forget,
            clock.time,
        )
        self.verifier = parts.verifier(
            hierarchy,
            self.cpusets,
            state.expectations,
            self.do,
            grounds=lambda: grounds_of(state),
            most_files=1024,
        )
        self._queue = RequestQueue(parts.answering(controller), clock, Timeouts(answer_s=DEADLINE_S))

    async def start(self) -> None:
        """Read the disk, and accept the runtime's connection."""
        self.thread.quick = True
        restoring = self.begin(self.controller.state.restore())
        while not restoring.done():
            while self.thread.waiting:
                self.thread.step()
            await asyncio.sleep(0)
        restoring.result()
        self.thread.quick = False
        self.controller.connected(runtime("0.12.0"))

    async def kill(self) -> None:
        """End it where it is: nothing of what is under way reaches disk, kernel or runtime any more."""
        self.alive = self.thread.quick = False
        # Also what its parts have begun by themselves, and what they do about being cancelled.
        while tasks := asyncio.all_tasks() - self._before:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0)
        pending, self._pending = self._pending, {}
        for answered in pending.values():
            answered(None)

    def begin(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Begin something that the daemon does beside everything else."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def ask(self, operation: Operation, answered: Callable[[TtrpcResponse | None], None]) -> None:
        """A request of the runtime, which it waits for no longer than a deadline."""
        self._asked += 1
        self._pending[self._asked] = answered
        self._queue.put(operation, self, self._asked, 0)

    def send(self, response: TtrpcResponse) -> bool:
        """The daemon answers a request, unless it was killed."""
        if not self.alive:
            return False
        self._pending.pop(response.stream_id)(response)
        return True

    def synchronization_ended(self, *, succeeded: bool) -> None:
        """Note it: after a failure the session would connect again."""
        self.synchronized = succeeded
        self.synchronization_due = not succeeded

    def verify_soon(self) -> None:
        """Note it."""
        self.verification_due = True

    async def verify(self, *, at_once: bool) -> None:
        """Compare the kernel with the ledger, and repair."""
        self.verification_due = False
        await self.verifier.verify(at_once=at_once)

    async def write_files(self) -> None:
        """Replace the files that say something else than the ledger, and remove those of nobody."""
        await self.files.update()
        await self.files.sweep()

    async def use_freed_memory(self) -> None:
        """Bring back who can go back: their pages are there, or there is an obstacle."""
        self.room_due = False
        await self.promised_nodes.use_freed_memory()
        while moves := self.promised_nodes.candidates():
            await self.promised_nodes.end(moves[0], obstacle=self.obstacle)

    async def do(self, work: Callable[[], Result]) -> Result:
        """What may block is a step of its own."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    async def _has_process(self, place: Place) -> bool:
        return await self.do(partial(Occupancy(self._hierarchy).has_process, place))

    @property
    def idle(self) -> bool:
        """Whether nothing is under way but to wait for requests."""
        return not (self.thread.waiting or self.executor.waiting or self._queue.busy or self.tasks)

    def _capacity_freed(self) -> None:
        self.room_due = True

    def _measured(self, _: Iterable[tuple[Pod, Container]], nodes: Iterable[int]) -> Measurement:
        wanted = list(nodes)
        held_bytes = {node: self.held_bytes.get(node, 0) for node in wanted}
        total_bytes = {node.id: node.memory_bytes for node in self._machine().nodes if node.id in wanted}
        return Measurement(held_bytes, {node: {} for node in wanted}, total_bytes)


async def _nothing(_: Pod, __: Container, ___: int) -> None:
    """The score of a process is not what is tested here."""

"""Random schedules on a `SimulatedHost`: what happens, and which step is taken next, by one seed."""

import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from bayplan._proto.nri import api_pb2 as pb
from bayplan.config.settings import Settings
from bayplan.engines.interface import KUBELET
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import CpuPool, Defragment, TopologyPolicy
from bayplan.nri import Event
from bayplan.quantity import MIB
from bayplan.sets import CpuSet
from support.interleaving.daemon_run import DEADLINE_S
from support.interleaving.runtime import Fate
from support.interleaving.simulated_host import MACHINE, PLAIN, InvariantError, SimulatedHost
from support.oci_node import guaranteed
from support.workloads import BEST_EFFORT, BURSTABLE, GUARANTEED

LENGTH: Final = 30
"""Things that happen in one schedule. Twice as many find nothing that this does not find."""

MOST_CONTAINERS: Final = 9
SOMETIMES: Final = 0.3
RARELY: Final = 0.15
MOST_STEPS_OF_A_START: Final = 20
HALF: Final = 0.5
DOUBLED: Final = (
    Event.POST_CREATE_CONTAINER,
    Event.START_CONTAINER,
    Event.POST_START_CONTAINER,
    Event.UPDATE_CONTAINER,
    Event.POST_UPDATE_CONTAINER,
)
LATE: Final = (*DOUBLED, Event.STOP_CONTAINER, Event.REMOVE_CONTAINER)
CPU_WISHES: Final = ("exclusive", "exclusive=1", "exclusive=1", "isolated", "shared")
POOLS: Final = {"db": CpuPool(1, 3), "web": CpuPool(1, 1)}
OTHER_POOLS: Final = {"db": CpuPool(2, 3)}
"""A wish that cannot be granted is passed over, and said."""
RESERVED_CPUS: Final = (CpuSet([0]), CpuSet([0, 4]))
KUBELETS_SUMS: Final[dict[str, Any]] = {
    "engine": KUBELET,
    "reserved_memory": {0: {MEMORY: 64 * MIB}},
    "kube_reserved": {MEMORY: 64 * MIB},
}


class Schedule:
    """One of them. ``trace`` says what happened."""

    def __init__(self, seed: int, host: SimulatedHost) -> None:
        self.trace: list[str] = []
        self._most_steps = 6
        self._choice = random.Random(seed)
        self.host = host
        self._isolated = self._choice.choice([CpuSet(), CpuSet([2, 6])])
        host.machine = self._machine(as_it_was=True)
        host.settings = replace(PLAIN, cpu_pools=POOLS)
        host.runtime.makes_cgroup_at_creation = self._choice.random() < HALF
        self._events: list[tuple[int, Callable[[], Awaitable[None] | None]]] = [
            (8, self.create),
            (4, self.resize),
            (5, self.stop),
            (2, self.repeat),
            (1, self.replace),
            (1, self.stop_pod),
            (3, self.hook),
            (2, self.end_hooked),
            (1, self.reload),
            (1, self.change_machine),
            (1, self.measure),
            (2, self.stall),
            (1, self.fill_disk),
            (2, self.deadline),
            (2, self.verify),
            (1, self.use_freed_memory),
            (1, self.write_files),
            (1, self.kill),
        ]

    async def play(self, length: int = LENGTH) -> None:
        """Let it happen.

        Raises:
            InvariantError: something does not hold; it says after what.
        """
        host = self.host
        try:
            await host.begin()
            await self.prepare()
            weights = [weight for weight, _ in self._events]
            for _ in range(length):
                _, event = self._choice.choices(self._events, weights)[0]
                self.trace.append(event.__name__)
                outcome = event()
                if outcome is not None:
                    await outcome
                await self._go_on()
            self.trace.append("settle")
            await host.settle()
        except InvariantError as error:
            raise InvariantError(f"{error}, after: {'; '.join(self.trace)}") from error
        finally:
            await host.daemon.kill()
            host.close()

    async def prepare(self) -> None:
        """What comes before all else: nothing."""

    async def _go_on(self) -> None:
        """Take some of the steps that are possible."""
        await self.host.run_loop(self._choice.randrange(4))
        for _ in range(self._choice.randrange(self._most_steps)):
            possible = self.host.steps()
            if not possible:
                return
            step = self._choice.choice(possible)
            self.trace.append(step)
            self.host.step(step)
            await self.host.run_loop(self._choice.randrange(4))

    # ---- What happens ----------------------------------------------------------------------------------

    def create(self) -> None:
        """A pod of one container over NRI."""
        if len(self.host.runtime.containers) >= MOST_CONTAINERS:
            return
        kind = self._choice.choice(
            [
                "cpus",
                "cpus",
                "wish",
                "pool",
                "pool",
                "pool",
                "memory",
                "bound",
                BEST_EFFORT,
                BEST_EFFORT,
                BURSTABLE,
            ]
        )
        self.trace[-1] += f" {kind}"
        qos, cpus, wishes = kind if kind in (BEST_EFFORT, BURSTABLE) else GUARANTEED, 0, dict[str, str]()
        if kind == "cpus":
            cpus = self._choice.randint(1, 3)
        elif kind == "bound":
            wishes = {"required-nodes": self._choice.choice("01")}
        elif kind == "wish":
            qos, cpus = self._choice.choice([GUARANTEED, BURSTABLE]), self._choice.randint(1, 3)
            wishes = {"cpus": self._choice.choice(CPU_WISHES)}
        elif kind == "pool":
            qos, cpus = self._choice.choice([GUARANTEED, BURSTABLE, BEST_EFFORT]), self._choice.randrange(3)
            wishes = {"cpus": self._choice.choice(["pool=db", "pool=db", "pool=db", "pool=web"])}
        self.host.create(
            self.host.new_id()[-12:],
            qos=qos,
            cpus=cpus,
            memory_bytes=self._amount(),
            wishes=wishes,
            fate=self._fate(),
        )

    def resize(self) -> None:
        """A container is to have another amount of memory, or other CPUs."""
        container_id = self._one_of(self.host.runtime.containers)
        if container_id is not None:
            cpus = self._choice.randint(1, 3) if self._choice.random() < SOMETIMES else 0
            self.host.resize(container_id, self._amount(), cpus)

    def stop(self) -> None:
        """A container of NRI ends; now and then the runtime does not say so."""
        container_id = self._one_of(self.host.runtime.containers)
        if container_id is not None:
            self.host.runtime.stop(container_id, said=self._choice.random() > RARELY)

    def repeat(self) -> None:
        """An event of a container comes once more, or late: of one that has ended, any; of one that lives,
        one that it had."""
        runtime = self.host.runtime
        over = self._one_of(runtime.over)
        if over is not None and self._choice.random() < HALF:
            runtime.repeat(over, self._choice.choice(LATE))
            return
        alive = self._one_of([key for key, one in runtime.containers.items() if one.has_process])
        if alive is not None:
            running = runtime.containers[alive].spec.state == pb.CONTAINER_RUNNING
            runtime.repeat(alive, self._choice.choice(DOUBLED if running else DOUBLED[:1]))

    def replace(self) -> None:
        """kubelet creates a container anew that has ended or failed."""
        container_id = self._one_of(self.host.runtime.over)
        if container_id is not None and len(self.host.runtime.containers) < MOST_CONTAINERS:
            self.host.replace(container_id)

    def stop_pod(self) -> None:
        """The pod of a container that has ended is stopped or removed."""
        pods = [one.pod.id for one in self.host.runtime.containers.values()]
        over = [key for key, one in self.host.runtime.over.items() if one.pod.id not in pods]
        container_id = self._one_of(over)
        if container_id is not None:
            self.host.runtime.stop_pod(container_id, remove=self._choice.random() < HALF)

    def hook(self) -> None:
        """A container comes by the hook."""
        if len(self.host.hooked) < MOST_CONTAINERS // 2:
            cpus = self._choice.randrange(3)
            resources = guaranteed(cpus, self._amount()) if cpus else {}
            self.host.daemon.begin(self.host.hook(resources))

    def end_hooked(self) -> None:
        """A container of the hook ends, perhaps without its poststop hook."""
        container_id = self._one_of(self.host.hooked)
        if container_id is not None:
            self.host.end_hooked(container_id, poststop=self._choice.random() > SOMETIMES)

    def reload(self) -> None:
        """Another engine or policy; settings that do not fit the machine change nothing."""
        self.host.reload(self._settings())

    def change_machine(self) -> None:
        """Memory or a CPU comes or goes."""
        self.host.replace_machine(self._machine())

    def measure(self) -> None:
        """What others hold is measured."""
        self.host.daemon.held_bytes = {node: self._choice.choice([0, 50, 200, 600]) * MIB for node in (0, 1)}
        self.host.daemon.begin(self.host.daemon.hardware.measure_once())

    def stall(self) -> None:
        """The disk stalls, or goes on; now and then it is so quick that nobody can get between."""
        self.host.stalled = not self.host.stalled
        self.host.daemon.thread.quick = not self.host.stalled and self._choice.random() < HALF

    def fill_disk(self) -> None:
        """The disk becomes full, or has room again."""
        self.host.disk.full = not self.host.disk.full

    def deadline(self) -> None:
        """Time passes."""
        self.host.clock.advance(DEADLINE_S)

    def verify(self) -> None:
        """The kernel is compared, if somebody asked for it, and those that have ended are looked for."""
        daemon, self.host.silent = self.host.daemon, self._choice.random() < HALF
        daemon.begin(daemon.verify(at_once=daemon.verification_due))
        daemon.begin(daemon.ended_containers.release_ended())

    def use_freed_memory(self) -> None:
        """Who became wider goes back, if there is room and its pages can be moved."""
        daemon = self.host.daemon
        daemon.obstacle = self._choice.choice(["", "", "its pages cannot be moved"])
        daemon.begin(daemon.use_freed_memory())

    def write_files(self) -> None:
        """The files that say what containers were given follow the ledger."""
        self.host.daemon.begin(self.host.daemon.write_files())

    async def kill(self) -> None:
        """The daemon is killed, and starts again."""
        await self.host.kill()

    # ---- Choices ---------------------------------------------------------------------------------------

    def _one_of(self, containers: Collection[str]) -> str | None:
        return self._choice.choice(sorted(containers)) if containers else None

    def _fate(self) -> Fate:
        if self._choice.random() > SOMETIMES:
            return Fate.LIVES
        return self._choice.choice([fate for fate in Fate if fate is not Fate.LIVES])

    def _amount(self) -> int:
        return self._choice.choice([100, 300, 600, 900]) * MIB

    def _settings(self) -> Settings:
        topology = self._choice.choice(list(TopologyPolicy))
        exact = replace(PLAIN, topology=topology, reserved_cpus=self._choice.choice(RESERVED_CPUS))
        exact = replace(exact, cpu_pools=self._choice.choice([POOLS, POOLS, POOLS, OTHER_POOLS, {}]))
        exact = replace(exact, defragment=self._choice.choice(list(Defragment)))
        return self._choice.choice([exact, exact, replace(exact, **KUBELETS_SUMS)])

    def _machine(self, *, as_it_was: bool = False) -> Machine:
        nodes = list(MACHINE.nodes)
        if as_it_was:
            return Machine(MACHINE.nodes, MACHINE.cpus, isolated=self._isolated)
        if self._choice.random() < HALF:
            nodes[0] = replace(nodes[0], memory_bytes=nodes[0].memory_bytes * self._choice.choice([1, 2]))
        cpus = list(MACHINE.cpus)
        if self._choice.random() < HALF:
            gone = self._choice.choice([3, 7])
            cpus[gone] = replace(cpus[gone], online=False)
            node = gone // 4
            nodes[node] = replace(nodes[node], cpus=nodes[node].cpus - CpuSet([gone]))
        return Machine(tuple(nodes), tuple(cpus), isolated=self._isolated)


class MovingSchedule(Schedule):
    """One on a node in pieces: `single-numa-node`, most containers with whole CPUs, and others go to other
    nodes for who does not fit."""

    def __init__(self, seed: int, host: SimulatedHost) -> None:
        super().__init__(seed, host)
        self._isolated, self._most_steps = CpuSet(), 25
        host.machine, host.settings = self._machine(as_it_was=True), self._settings()
        quiet = (self.change_machine, self.measure, self.hook, self.fill_disk)
        self._events = [one for one in self._events if one[1] not in quiet] + [(16, self.create)]

    async def prepare(self) -> None:
        """Containers that run, most of them small."""
        for _ in range(MOST_CONTAINERS - 2):
            self.trace.append("create")
            self.create()
            for _ in range(MOST_STEPS_OF_A_START):
                await self.host.run_loop(2)
                possible = self.host.steps()
                if possible:
                    self.host.step(possible[0])

    def create(self) -> None:
        """A Guaranteed pod of one container over NRI."""
        if len(self.host.runtime.containers) < MOST_CONTAINERS:
            cpus = self._choice.choice([0, 0, 1, 1, 2])
            self.trace[-1] += f" {cpus}"
            self.host.create(
                self.host.new_id()[-12:],
                qos=GUARANTEED,
                cpus=cpus,
                memory_bytes=self._amount(),
                wishes={"may-move": "false"} if self._choice.random() < RARELY else {},
                fate=self._fate(),
            )

    def _amount(self) -> int:
        return self._choice.choice([150, 250, 350, 450, 550]) * MIB

    def _settings(self) -> Settings:
        modes = [Defragment.MOVE, Defragment.MOVE, Defragment.MOVE, Defragment.PLAN]
        return replace(PLAIN, topology=TopologyPolicy.SINGLE_NUMA_NODE, defragment=self._choice.choice(modes))


def play(
    seed: int,
    host: Callable[[Path], SimulatedHost] = SimulatedHost,
    kind: Callable[[int, SimulatedHost], Schedule] = Schedule,
) -> list[str]:
    """Play the schedule of *seed* and this *kind* on a *host* in a new directory; what happened.

    Raises:
        InvariantError: something does not hold.
    """
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as directory:
        schedule = kind(seed, host(Path(directory) / "root"))
        asyncio.run(schedule.play())
        return schedule.trace

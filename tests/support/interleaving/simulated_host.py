"""A node with a daemon, a runtime over NRI and one with hooks, and what must hold on it.

At any moment: no CPU is exclusive to two containers or pools, in the ledger or on the disk, none of them is
reserved, and no promise exceeds what a set of nodes has but by what was taken from the machine. At rest:
disk, ledger, runtimes and kernel say the same.
"""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain, combinations
from pathlib import Path

from msgspec.structs import replace

from bayplan._proto.nri import api_pb2 as pb
from bayplan.config.kubelet_rules import engine_of
from bayplan.config.settings import Settings
from bayplan.control.container_files import GRACE_S
from bayplan.control.ended_containers import PATIENCE_S
from bayplan.control.state import RETRY_S, Current
from bayplan.engines.interface import Engine
from bayplan.errors import BayplanError, UnavailableError
from bayplan.host.placement_files import FILE
from bayplan.host.unix_socket import Peer
from bayplan.model.decision import Outcome
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY, Machine, union
from bayplan.model.policy import PlacementFiles
from bayplan.nri.translate import Operation
from bayplan.nri.wire import TtrpcResponse
from bayplan.oci.protocol import Answer, Status, Verb
from bayplan.placement.placement_file import document
from bayplan.quantity import MIB
from bayplan.sets import CpuSet, NodeSet
from support.agents import Follower
from support.clock import ManualClock
from support.interleaving.daemon_run import DaemonRun
from support.interleaving.kernel import Kernel
from support.interleaving.runtime import Fate, NriRuntime
from support.interleaving.steps import Disk
from support.machines import machine
from support.oci_node import state
from support.workloads import BEST_EFFORT, GUARANTEED, make_container, make_pod

MACHINE = machine(2, cpus_per_node=4)
PLAIN = Settings(eviction_hard={"memory.available": None}, placement_files=PlacementFiles.ALL)
ROUNDS = 400
"""More than anything takes that comes to an end."""


class InvariantError(AssertionError):
    """Something does not hold that must."""


class SimulatedHost:
    """``stalled``: the disk does nothing. ``silent``: the runtime does not answer over CRI. ``machine`` is
    what sysfs shows, ``settings`` what files say, and *engine_for* makes the engine that they ask for."""

    def __init__(self, directory: Path, engine_for: Callable[[Settings], Engine] = engine_of) -> None:
        self._engine_for = engine_for
        self.clock, self.kernel = ManualClock(), Kernel(directory)
        self.disk = Disk(self.clock)
        self.machine, self.settings = MACHINE, PLAIN
        self.stalled = self.silent = False
        self.runtime = NriRuntime(self.kernel, self._ask)
        self.hooked: dict[str, tuple[str, int]] = {}
        """Containers of the hook by id: their cgroups' paths and their processes."""
        self._checked: Current | None = None
        self._follower = Follower()
        self._excess_bytes = 0
        self._numbers = 0

    async def begin(self) -> None:
        """Start the daemon; the runtime lists what it has."""
        self.daemon = DaemonRun(
            self.disk,
            self.kernel,
            self.clock,
            self.settings,
            lambda: self.machine,
            self._engine_for,
            self._list_containers,
        )
        self._checked = None
        await self.daemon.start()
        self.runtime.synchronize()

    async def kill(self) -> None:
        """Kill the daemon and start it again."""
        await self.daemon.kill()
        await self.begin()

    def close(self) -> None:
        """Remove what the kernel had."""
        shutil.rmtree(self.kernel.root, ignore_errors=True)

    def _ask(self, operation: Operation, answered: Callable[[TtrpcResponse | None], None]) -> None:
        self.daemon.ask(operation, answered)

    def _list_containers(self, runtime: str) -> dict[str, bool]:
        if runtime != "containerd" or self.silent:
            raise UnavailableError(runtime, "does not answer")
        return self.runtime.listed()

    def create(
        self,
        name: str,
        *,
        qos: str = GUARANTEED,
        cpus: int = 0,
        memory_bytes: int = 100 * MIB,
        wishes: Mapping[str, str] | None = None,
        fate: Fate = Fate.LIVES,
    ) -> str:
        """Begin to create a pod of one container over NRI with *wishes*, by the keys of their annotations.

        Returns:
            Its id.
        """
        annotations = {f"bayplan.dev/{key}": text for key, text in (wishes or {}).items()}
        pod = make_pod(name, qos=qos, annotations=annotations or None)
        if qos == GUARANTEED:
            spec = make_container(
                pod,
                memory_limit_bytes=memory_bytes,
                cpu_shares=1024 * cpus or 512,
                cpu_quota_us=100_000 * cpus or 50_000,
                oom_score_adj=-997,
            )
        else:
            shares, score = (2, 1000) if qos == BEST_EFFORT else (1024 * cpus or 256, 900)
            spec = make_container(pod, cpu_shares=shares, oom_score_adj=score)
        spec.linux.cgroups_path = f"/kubepods/pod{name}/{spec.id}"
        self.runtime.create(pod, spec, fate)
        return spec.id

    def replace(self, container_id: str) -> None:
        """kubelet creates a container anew that is over: by the same name, in the same pod."""
        before = self.runtime.over[container_id]
        spec = pb.Container()
        spec.CopyFrom(before.spec)
        spec.id = self.new_id()
        spec.linux.resources.cpu.cpus = spec.linux.resources.cpu.mems = ""
        spec.annotations.clear()
        del spec.mounts[:], spec.env[:]
        spec.linux.cgroups_path = f"/kubepods/pod{before.pod.name}/{spec.id}"
        self.runtime.create(before.pod, spec)

    def resize(self, container_id: str, memory_bytes: int, cpus: int = 0) -> None:
        """Begin to give a container another amount of memory, and other CPUs if it is to have some."""
        change = pb.LinuxResources()
        change.memory.limit.value = memory_bytes
        if cpus:
            cpu = change.cpu
            cpu.shares.value, cpu.quota.value, cpu.period.value = 1024 * cpus, 100_000 * cpus, 100_000
        self.runtime.update(container_id, change)

    def reload(self, settings: Settings) -> None:
        """Take over *settings*, if they fit the machine."""
        daemon = self.daemon
        try:
            daemon.hardware.policy_for(settings)
        except BayplanError:
            return
        self.settings = settings
        daemon.hardware.take_settings(settings)
        daemon.controller.state.take_engine(self._engine_for(settings))

    def replace_machine(self, machine: Machine) -> None:
        """Memory or CPUs come or go, and the kernel says so."""
        self.machine = machine
        self.daemon.begin(self.daemon.hardware.reread(frozenset({"memory"})))

    def new_id(self) -> str:
        """An id that nobody had."""
        self._numbers += 1
        return f"{self._numbers:064x}"

    async def hook(self, resources: dict[str, object]) -> Answer:
        """A container comes by the hook; without an answer, or against one, it does not start."""
        container_id, daemon = self.new_id(), self.daemon
        path = f"/kubepods/pod{container_id}/crio-{container_id}"
        pid, announced = self.kernel.announce(container_id, path, resources)
        try:
            answer = await daemon.oci_requests.serve(Verb.CREATE_RUNTIME, announced, Peer(1, 0))
        except asyncio.CancelledError:
            self.kernel.end(pid)
            raise
        if answer.status is Status.OK:
            self.hooked[container_id] = path, pid
        else:
            self.kernel.end(pid)
        return answer

    def end_hooked(self, container_id: str, *, poststop: bool) -> None:
        """A container of the hook ends; *poststop*: poststop runs."""
        _, pid = self.hooked.pop(container_id)
        self.kernel.end(pid)
        if poststop:
            body = state(container_id, "/gone", 0, status="stopped")
            self.daemon.begin(self.daemon.oci_requests.serve(Verb.POSTSTOP, body, Peer(1, 0)))

    # ---- Time ------------------------------------------------------------------------------------------

    async def run_loop(self, rounds: int) -> None:
        """Let the event loop run for so many rounds, and check after each."""
        for _ in range(rounds):
            await asyncio.sleep(0)
            self.check()
        if self.daemon.synchronization_due:
            # The session connects again.
            self.daemon.synchronization_due = False
            self.runtime.synchronize()

    def steps(self) -> list[str]:
        """What could be done next: the disk, a thread, or the runtime about one of its answers."""
        possible = ["disk"] if self.daemon.thread.waiting and not self.stalled else []
        possible += ["thread"] if self.daemon.executor.waiting else []
        return possible + [f"runtime {number}" for number in range(len(self.runtime.busy))]

    def step(self, name: str) -> None:
        """Do one of `steps`."""
        kind, _, number = name.partition(" ")
        if kind == "disk":
            self.daemon.thread.step()
            if twice := self.disk.shared_exclusives():
                raise InvariantError(f"the disk says of CPUs {twice} that two containers own them")
        elif kind == "thread":
            self.daemon.executor.step()
        else:
            self.runtime.step(int(number))

    async def settle(self) -> None:
        """Let everything come to its end, with a disk that does its part."""
        self.stalled = self.silent = self.disk.full = False
        await self._drain()
        self.clock.advance(RETRY_S)
        await self._drain()
        for _ in range(2):
            # Those who failed without a word hold for so long, and not longer.
            self.daemon.begin(self.daemon.ended_containers.release_ended())
            await self._drain()
            self.clock.advance(PATIENCE_S)
        self.daemon.begin(self.daemon.use_freed_memory())
        await self._drain()
        for _ in range(2):
            self.daemon.begin(self.daemon.verify(at_once=False))
            await self._drain()
        self.daemon.elapsed_s = GRACE_S + 1
        self.daemon.begin(self.daemon.write_files())
        await self._drain()
        self.check_agreement()

    async def _drain(self) -> None:
        for _ in range(ROUNDS):
            while possible := self.steps():
                self.step(possible[0])
                await self.run_loop(1)
            await self.run_loop(8)
            if self.daemon.idle and not self.steps():
                return
        raise InvariantError("it does not come to rest")

    # ---- What must hold --------------------------------------------------------------------------------

    def check(self) -> None:
        """What holds at any moment."""
        basis = self.daemon.controller.state.basis
        if basis is self._checked:
            return
        before, self._checked = self._checked, basis
        same = before is not None and replace(before, ledger=basis.ledger) == basis
        fresh = (
            basis.ledger.exclusive_cpus - before.ledger.exclusive_cpus
            if before is not None and same
            else CpuSet()
        )
        if fresh & basis.allocatable.reserved_cpus:
            raise InvariantError("a reserved CPU became exclusive")
        self._check_pools(before, basis)
        if not basis.shared_cpus:
            raise InvariantError("no CPU is shared")
        # The largest of all is what cannot be had at once, however the promises are carried: what a smaller
        # machine left of one node is not the fault of whoever comes to another.
        excess_bytes, nodes = max((more_bytes, str(nodes)) for nodes, more_bytes in _excess_bytes(basis))
        comparable = before is not None and same and not _found(before.ledger, basis.ledger, self.alive)
        if comparable and excess_bytes > self._excess_bytes:
            raise InvariantError(f"nodes {nodes} lack {excess_bytes} bytes of what is promised")
        self._excess_bytes = excess_bytes
        self._check_follower()

    def _check_pools(self, before: Current | None, basis: Current) -> None:
        """Named pools have no CPU that anybody owns, and one that keeps a member only loses or only gets
        some, but for what went offline."""
        owned = union(entry.decision.placement.exclusive_cpus for entry in basis.ledger.entries.values())
        for name, cpus in basis.ledger.cpus_of_pools.items():
            if not cpus.isdisjoint(owned):
                raise InvariantError(f"CPUs {cpus & owned} of the pool {name} are somebody's own")
            owned |= cpus
            members = basis.ledger.pool_ids[name]
            if before is None or members.isdisjoint(before.ledger.pool_ids.get(name, ())):
                continue
            online = before.machine.online_cpus & basis.machine.online_cpus
            had = before.ledger.pool_cpus(name) & online
            if not (cpus <= had or had <= cpus):
                raise InvariantError(f"the pool {name} had CPUs {had} and has {cpus}")

    def _check_follower(self) -> None:
        """Whoever follows the changes from outside knows what the daemon knows."""
        controller = self.daemon.controller
        for message in self._follower.catch_up(controller.state.changes, controller.state.basis):
            raise InvariantError(message)

    def check_agreement(self) -> None:
        """What holds at rest."""
        self.check()
        controller = self.daemon.controller
        ledger = controller.state.ledger
        between = {entry.container_id: entry for entry in ledger.retained.values()}
        if self.disk.entries != {**between, **ledger.entries}:
            raise InvariantError(f"disk {_shown(self.disk.entries)}, ledger {_shown(dict(ledger.entries))}")
        alive = self.alive
        if ledger.entries.keys() != alive:
            raise InvariantError(f"ledger {sorted(ledger.entries)}, alive {sorted(alive)}")
        for one in controller.state.expectations():
            path = self.path(one.container.id)
            cpus, mems = self.kernel.shown(path, "cpuset.cpus", "cpuset.mems")
            wanted = (str(one.cpus or cpus), str(one.mems or mems))
            if (cpus, mems) != wanted:
                raise InvariantError(f"{one.container.id} has {(cpus, mems)}, and the ledger says {wanted}")
        for container_id, entry in ledger.entries.items():
            pool = ledger.pool_ids.get(entry.decision.request.pool, frozenset())
            for other in alive - {container_id} - pool:
                (cpus,) = self.kernel.shown(self.path(other), "cpuset.cpus")
                both = (
                    CpuSet.parse(cpus)
                    & entry.decision.placement.apart_cpus
                    & controller.state.machine.online_cpus
                )
                if both:
                    raise InvariantError(f"{other} may run on CPUs {both} of {container_id}")

        self._check_files(controller.state.basis)

    def _check_files(self, basis: Current) -> None:
        """Who was given a file has one, with what the ledger says, and nobody else has."""
        told = {one.name: one / FILE for one in self.kernel.placements.glob("*")}
        wanted = {
            key: one for key, one in basis.ledger.entries.items() if one.decision.request.placement_file
        }
        if told.keys() != wanted.keys():
            raise InvariantError(f"files of {sorted(told)}, and the ledger has them of {sorted(wanted)}")
        for container_id, entry in wanted.items():
            written = json.loads(told[container_id].read_text())
            written["metadata"]["generation"] = 0
            if written != document(basis.machine, basis.shared_cpus, entry):
                raise InvariantError(f"the file of {container_id} says {written}")
        mounted = {key for key, one in self.runtime.containers.items() if any(one.spec.mounts)}
        if mounted != wanted.keys() - self.hooked.keys():
            raise InvariantError(f"{sorted(mounted)} have files mounted, and {sorted(wanted)} should")

    @property
    def alive(self) -> set[str]:
        """The ids of the containers that run."""
        return self.runtime.containers.keys() | self.hooked.keys()

    def path(self, container_id: str) -> str:
        """Where its cgroup is."""
        if container_id in self.hooked:
            return self.hooked[container_id][0]
        return self.runtime.containers[container_id].spec.linux.cgroups_path


def _found(before: Ledger, after: Ledger, alive: Collection[str]) -> bool:
    """Whether a container was found, being *alive* before it was in the ledger, or has CPUs or nodes that
    somebody else gave it: what it has, or grows to, is a fact, which may exceed what there is. One whose
    creation was under way when its runtime listed the others was released, and others may have its room."""
    return any(
        (
            entry.decision.outcome is Outcome.ADOPTED
            or (key in alive and key not in before.entries)
            or entry.decision.request.pinned_mems is not None
            or entry.decision.request.pinned_cpus is not None
        )
        and before.entries.get(key) is not entry
        for key, entry in after.entries.items()
    )


def _excess_bytes(basis: Current) -> Iterator[tuple[NodeSet, int]]:
    """For each set of nodes what is promised within it beyond what it has, which Hall's condition forbids."""
    promised: Counter[NodeSet] = Counter()
    for entry in basis.ledger.entries.values():
        placement = entry.decision.placement
        if placement.claim is not None:
            promised[placement.claim.nodes] += placement.claim.amounts_bytes.get(MEMORY, 0)
        else:
            for node, row in placement.booked_bytes.items():
                promised[NodeSet([node])] += row.get(MEMORY, 0)
    rooms = {node: row.get(MEMORY, 0) for node, row in basis.allocatable.bytes_by_node.items()}
    nodes = sorted(rooms.keys() | set(chain.from_iterable(promised)))
    for size in range(1, len(nodes) + 1):
        for chosen in map(NodeSet, combinations(nodes, size)):
            within = sum(amount for where, amount in promised.items() if where <= chosen)
            yield chosen, max(0, within - sum(rooms.get(node, 0) for node in chosen))


def _shown(entries: dict[str, Entry]) -> str:
    return str(
        {key: (str(one.decision.placement.mems), str(one.notified_cpus)) for key, one in entries.items()}
    )

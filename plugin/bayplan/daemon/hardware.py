"""Keeps the controller's machine and policy up to date: hot-plug, and memory held outside of containers.

An event of the kernel is only a reason to read sysfs again; a burst of events is one reason. What has been
promised stays promised, whatever hardware leaves; what is missing then is reported by `problems` and logged
once. Blocking calls run where `in_thread` says.
"""

import asyncio
import logging
import operator
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from msgspec import Struct

from bayplan.config.reservations import reserved_bytes, resolve_policy, wanted_memory_bytes
from bayplan.config.settings import Settings
from bayplan.control.state import NodeState, Transaction
from bayplan.control.threads import InThread
from bayplan.errors import BayplanError, ConfigError
from bayplan.host.cpu_partitions import CpuPartitions
from bayplan.host.hierarchy import Hierarchy
from bayplan.host.live_memory import ContainerMemory, HeldMemory, read_memory_totals
from bayplan.host.sysfs import read_hugepages, read_isolated, read_machine
from bayplan.model.basis import Basis
from bayplan.model.ledger import Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.memory_kinds import with_owners
from bayplan.model.policy import PlacementPolicy
from bayplan.model.workload import Container, Pod
from bayplan.placement.hugepage_pools import Pools, with_pools
from bayplan.placement.measured_reservation import Learned, learn, step_bytes
from bayplan.placement.shortfall import lost_cpus, overclaims
from bayplan.sets import CpuSet
from bayplan.views.snapshot import MemoryReservation


class Measurement(NamedTuple):
    """What was found by node: bytes held outside of containers, the huge page pools by page size, and
    MemTotal; and the CPUs that the kernel gives to no cgroup."""

    held_bytes: dict[int, int]
    hugepages_bytes: dict[int, dict[int, int]]
    memory_bytes: dict[int, int]
    lost_cpus: CpuSet = CpuSet()


class Host(Struct, frozen=True):
    """The blocking calls; tests pass others."""

    machine: Callable[[], Machine]
    measure: Callable[[Iterable[tuple[Pod, Container]], Iterable[int]], Measurement]

    @classmethod
    def of(cls, hierarchy: Hierarchy, memory: ContainerMemory, partitions: CpuPartitions) -> "Host":
        """The calls for the machine that this runs on; *memory* is the one that all have who count what
        containers hold."""
        held = HeldMemory(memory, hierarchy.root)
        return cls(partial(machine_with, partitions), partial(measure, hierarchy, held, partitions))


def machine_with(partitions: CpuPartitions) -> Machine:
    """What sysfs says, with the CPUs that the kernel gives to no cgroup as if they were offline. Blocks.

    Raises:
        HostError: a file that decides is missing or garbled.
    """
    found = read_machine()
    lost = partitions.lost_cpus(read_isolated())
    return found.without_cpus(lost) if lost else found


def measure(
    hierarchy: Hierarchy,
    held: HeldMemory,
    partitions: CpuPartitions,
    containers: Iterable[tuple[Pod, Container]],
    nodes: Iterable[int],
) -> Measurement:
    """Measure once. Blocks; containers that are gone are passed over.

    Raises:
        BayplanError: a container's cgroup is not to be found out, or a file is missing or garbled.
    """
    wanted = list(nodes)
    pools = {node: dict(sizes) for node, sizes in read_hugepages(wanted, hierarchy.root).items()}
    sums = {node: sum(sizes.values()) for node, sizes in pools.items()}
    everybody = [(one.id, one.cgroups_path, pod.cgroup_parent) for pod, one in containers]
    held_bytes = held.read(everybody, sums)
    lost = partitions.lost_cpus(read_isolated(hierarchy.root))
    return Measurement(held_bytes, pools, read_memory_totals(wanted, hierarchy.root), lost)


logger = logging.getLogger(__name__)

REREAD_PAUSE_S: Final = 1.0
"""Between two readings of sysfs: a TiB of memory brings 8192 events, and its driver need not hurry."""
MEASURE_INTERVAL_S: Final = 30.0
FIRST_MEASURE_S: Final = 3.0

LISTED_MEASURE_S: Final = 0.4
"""So long may a Synchronize, which has a second in all, wait for the measurement that follows it."""

HUGEPAGES: Final = "hugepages"
MEMORY_SIZE: Final = "memory size"
LOST_CPUS: Final = "lost CPUs"
"""The reasons to read sysfs again that the kernel does not announce: pools of huge pages, MemTotal, which a
balloon changes, and CPUs that it keeps for a cgroup that is no more."""


class Hardware:
    """The machine as it is now, and the policy that follows from it and the settings."""

    def __init__(self, settings: Settings, host: Host, in_thread: InThread) -> None:
        """Read the machine.

        Raises:
            HostError: it can't be read.
            ConfigError: it lacks what *settings* name.
        """
        self.learned: dict[int, Learned] = {}
        self._settings = settings
        self._host = host
        self._in_thread = in_thread
        self._state: NodeState | None = None
        self._verify_soon: Callable[[], None] = lambda: None
        self._found = host.machine()
        self.machine = with_owners(self._found, settings.device_memory)
        for remark in self.machine.remarks:
            logger.warning("the kernel describes the machine oddly", extra={"remark": remark})
        self.policy = resolve_policy(settings, self.machine)
        self._settings_problem = ""
        self._reported: frozenset[tuple[object, ...]] = frozenset()
        self._reasons: set[str] = set()
        self._changed = asyncio.Event()
        self._connections = 0
        self._pools_taken = 0
        """How often pools of huge pages were changed by us."""
        self._afresh = False
        """Whether the last measurement may have counted containers as something else."""
        self._remember: Callable[[Mapping[int, Learned]], None] = lambda _: None
        self._remembered: dict[int, int] = {}
        self._unmeasurable = ""

    def attach(self, state: NodeState, verify_soon: Callable[[], None]) -> None:
        """From now on keep *state* up to date, and call *verify_soon* when that changed something."""
        self._state, self._verify_soon = state, verify_soon

    async def begin(
        self, recorded: Mapping[int, Learned], remember: Callable[[Mapping[int, Learned]], None]
    ) -> None:
        """Go by what was *recorded* until the first measurement; by a measurement at once where nothing was.
        *remember* has recorded what is learned from now on."""
        self._remember = remember
        if not self._learns:
            return
        self.learned = dict(recorded)
        self._remembered = {node: one.reserved_bytes for node, one in recorded.items()}
        if recorded:
            self._apply()
        else:
            await self.measure_once()

    def policy_for(self, settings: Settings) -> PlacementPolicy:
        """The policy of other settings on this machine.

        Raises:
            ConfigError: the machine lacks what they name.
        """
        machine = with_owners(self._found, settings.device_memory)
        return resolve_policy(settings, machine, self.learned, self._ledger)

    def take_settings(self, settings: Settings) -> None:
        """Take over *settings* that `policy_for` accepted."""
        self._settings = settings
        self._apply()

    def changed(self, subsystems: frozenset[str]) -> None:
        """Note that nodes, CPUs or memory came or went: sysfs is due to be read."""
        self._reasons |= subsystems
        self._changed.set()

    async def follow(self, pause_s: float = REREAD_PAUSE_S) -> None:
        """Read sysfs whenever that is due, at most once every *pause_s*, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            reasons, self._reasons = frozenset(self._reasons), set()
            await self.reread(reasons)
            await asyncio.sleep(pause_s)

    async def reread(self, reasons: frozenset[str]) -> None:
        """Read sysfs once, for *reasons*; what cannot be read changes nothing."""
        taken = None
        try:
            while taken != self._pools_taken:
                taken = self._pools_taken
                found = await self._in_thread(self._host.machine)
        except BayplanError as error:
            logger.error("the hardware changed, but it can't be read", extra={"problem": str(error)})  # noqa: TRY400 - expected, so that a traceback says nothing
            return
        if found == self._found:
            return
        self._found = found
        self._apply()
        logger.warning(
            "the hardware changed",
            extra={
                "subsystems": ",".join(sorted(reasons)),
                "nodes": str(self.machine.node_ids),
                "cpus": str(self.machine.online_cpus),
            },
        )
        self._verify_soon()

    def take_pools(self, transaction: Transaction, pools: Pools) -> None:
        """Have decisions in *transaction*, and all that follow, go by *pools* of huge pages as the kernel has
        them now; what was read before does not count any more."""
        self._pools_taken += 1
        self._found = with_pools(self._found, pools)
        self.machine = with_owners(self._found, self._settings.device_memory)
        if self._state is not None:
            self._update_state(transaction, self._state)

    async def measure_for_ever(
        self, first_s: float = FIRST_MEASURE_S, interval_s: float = MEASURE_INTERVAL_S
    ) -> None:
        """Measure every *interval_s*, but soon (*first_s*) as long as nothing is learned, until cancelled."""
        while True:
            await asyncio.sleep(first_s if self._is_first_due else interval_s)
            try:
                await self.measure_once()
            except Exception:
                # Placing containers does not depend on it.
                logger.exception("memory held outside of containers could not be measured")

    async def measure_once(self) -> None:
        """Measure, and reserve what follows. Also notices what changed without an event."""
        containers = self._containers()
        nodes, taken = self.machine.memory_nodes, self._pools_taken
        try:
            measured = await self._in_thread(partial(self._host.measure, containers or (), nodes))
        except BayplanError as error:
            if str(error) != self._unmeasurable:
                logger.warning(
                    "memory held outside of containers cannot be measured", extra={"problem": str(error)}
                )
            self._unmeasurable = str(error)
            return
        self._unmeasurable = ""
        if taken != self._pools_taken:
            # Memory became huge pages meanwhile, or the other way round: it would count as held.
            return
        known = {node.id: node.hugepages_bytes for node in self.machine.nodes}
        if any(known.get(node, pools) != pools for node, pools in measured.hugepages_bytes.items()):
            self.changed(frozenset({HUGEPAGES}))
        sizes = {node.id: node.memory_bytes for node in self._found.nodes}
        if any(sizes.get(node, total) != total for node, total in measured.memory_bytes.items()):
            self.changed(frozenset({MEMORY_SIZE}))
        if measured.lost_cpus != self.machine.lost:
            self.changed(frozenset({LOST_CPUS}))
        if containers is None:
            return
        before = {} if self._afresh and self._connections else self.learned
        self.learned = learn(before, measured.held_bytes, self.machine, time.time_ns() // 1000)
        self._afresh = not self._connections
        reserved = {node: one.reserved_bytes for node, one in self.learned.items()}
        if reserved != self._remembered:
            self._remember(self.learned)
            self._remembered = reserved
        # With 1000 containers on 64 nodes it takes up to 30 ms, which no creation should wait for.
        inputs = self._policy_inputs()
        prepared = await self._in_thread(partial(_resolved, inputs))
        self._take_over(inputs, prepared)

    def problems(self) -> tuple[str, ...]:
        """What lasts and an operator should know, each a sentence."""
        return (*self.machine.remarks, *self._problems().values())

    def reservations(self) -> dict[int, MemoryReservation]:
        """How it is known what each node with memory keeps of it."""
        configured = reserved_bytes(self._settings, self.machine)
        measured = wanted_memory_bytes(self._settings, self.machine, self.learned)
        return {
            node: MemoryReservation(
                configured.get(node, {}).get(MEMORY, 0),
                None if (learned := self.learned.get(node)) is None else learned.held_bytes,
                None if learned is None else learned.measured_us,
                step_bytes(self.machine, node) if node in measured else 0,
            )
            for node in self.machine.memory_nodes
        }

    @property
    def _learns(self) -> bool:
        """Whether measurements count: not for the engine `kubelet`, which has to add up as kubelet does."""
        return self._settings.measured_reservation and not self._settings.engine_kind.is_kubelets

    @property
    def _is_first_due(self) -> bool:
        """Whether nothing was measured since the runtime listed its containers, if there is a runtime."""
        connections = 0 if self._state is None else self._state.counters["connections"]
        return self._learns and (not self.learned or connections != self._connections)

    async def measure_listed(self) -> None:
        """Measure, once the runtime has listed its containers and before anything is promised."""
        try:
            async with asyncio.timeout(LISTED_MEASURE_S):
                await self.measure_once()
        except TimeoutError:
            logger.warning("measurement not finished in time; the previous one stays in force until it is")
        except Exception:
            logger.exception("memory held outside of containers could not be measured")

    def _containers(self) -> list[tuple[Pod, Container]] | None:
        """The containers; None where measurements don't count or would take them for something else, because
        the runtime has not listed them yet."""
        state = self._state
        if not self._learns or state is None:
            self.learned = {}
            return None
        known, connections = state.known, state.counters["connections"]
        if connections != self._connections:
            # Containers of a runtime that connects again were measured as memory outside of containers.
            self._afresh = self._afresh or self._connections > 0
            self._connections = connections
        if not state.ledger.entries.keys() <= known.containers.keys():
            return None
        return [(known.pods.get(one.pod_id, Pod(one.pod_id)), one) for one in known.containers.values()]

    @property
    def _ledger(self) -> Ledger:
        return Ledger() if self._state is None else self._state.ledger

    def _apply(self) -> None:
        """Take over what was found and what the settings say, between two transactions."""
        self.machine = with_owners(self._found, self._settings.device_memory)
        self._take_over()

    def _take_over(
        self,
        prepared_for: "_PolicyInputs | None" = None,
        prepared: PlacementPolicy | ConfigError | None = None,
    ) -> None:
        """Work out the policy, and give it to the state, if there is one, between two transactions."""
        if self._state is None:
            self._resolve(prepared_for, prepared)
        else:
            state = self._state
            state.schedule(lambda transaction: self._update_state(transaction, state, prepared_for, prepared))

    def _policy_inputs(self) -> "_PolicyInputs":
        return _PolicyInputs(self._settings, self.machine, self.learned, self._ledger)

    def _update_state(
        self,
        transaction: Transaction,
        state: NodeState,
        prepared_for: "_PolicyInputs | None" = None,
        prepared: PlacementPolicy | ConfigError | None = None,
    ) -> None:
        """Take all over in a transaction, so that no promise is made between working out the reservation and
        its use."""
        self._resolve(prepared_for, prepared)
        before = transaction.basis
        if before.machine != self.machine or before.policy != self.policy:
            if before.policy.reserved_bytes != self.policy.reserved_bytes:
                logger.info("nodes keep memory from containers", extra={"bytes_by_node": self._kept_bytes()})
            # What stayed equal stays the same object: the engine has worked things out for it.
            transaction.accept(
                machine=None if before.machine == self.machine else self.machine,
                policy=None if before.policy == self.policy else self.policy,
            )
            state.capacity_freed()
        self._report()

    def _resolve(
        self, prepared_for: "_PolicyInputs | None", prepared: PlacementPolicy | ConfigError | None
    ) -> None:
        """The policy by the settings: the *prepared* one if all is as it was prepared for."""
        inputs = self._policy_inputs()
        if prepared is None or prepared_for is None or not inputs.is_same(prepared_for):
            prepared = _resolved(inputs)
        if isinstance(prepared, ConfigError):
            # They fitted before. The old policy on what is left serves containers better than a machine that
            # is gone.
            self._settings_problem = f"the settings do not fit the machine any more: {prepared}"
        else:
            self.policy, self._settings_problem = prepared, ""

    def _kept_bytes(self) -> dict[str, int]:
        return {str(node): row.get(MEMORY, 0) for node, row in sorted(self.policy.reserved_bytes.items())}

    def _report(self) -> None:
        """Log and count what was not a problem at the last look."""
        current = self._problems()
        for key, problem in current.items():
            if key in self._reported:
                continue
            logger.warning("the machine has less than was promised", extra={"problem": problem})
            if self._state is not None:
                self._state.counters["capacity_shortfalls"] += 1
        if self._reported and not current:
            logger.info("all promised capacity is available again")
        self._reported = frozenset(current)

    def _problems(self) -> dict[tuple[object, ...], str]:
        """The sentences, by what they are about: amounts in them change with every measurement."""
        basis = Basis(self.machine, self.policy, self._ledger)
        found: dict[tuple[object, ...], str] = (
            {("settings",): self._settings_problem} if self._settings_problem else {}
        )
        measured = wanted_memory_bytes(self._settings, self.machine, self.learned)
        held_bytes = {node: self.learned[node].held_bytes for node in measured}
        for claim in overclaims(basis, held_bytes):
            found["overclaim", claim.shortage.nodes, claim.shortage.resource] = str(claim)
        for one in lost_cpus(basis):
            found["cpus", one.container_id] = str(one)
        return found


class _PolicyInputs(NamedTuple):
    """All that a policy follows from."""

    settings: Settings
    machine: Machine
    learned: dict[int, Learned]
    ledger: Ledger

    def is_same(self, other: "_PolicyInputs") -> bool:
        """Whether both are the same objects: to compare the contents of ledgers takes long."""
        return all(map(operator.is_, self, other))


def _resolved(inputs: _PolicyInputs) -> PlacementPolicy | ConfigError:
    try:
        return resolve_policy(inputs.settings, inputs.machine, inputs.learned, inputs.ledger)
    except ConfigError as error:
        return error

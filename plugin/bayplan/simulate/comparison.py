"""`bayplan simulate` without its command line: one trace on one machine with one engine or several, played,
judged and compared.

The decisions are those of the daemon (`bayplan.simulate.rehearsal`). Events have no times. A pod is admitted
as a whole or not at all.

Machine, trace and settings are read from files, the runs are plain values ready for JSON. Engines, policies
and the rules for reading settings are those of the daemon.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.admin_protocol import API_VERSION
from bayplan.config.kubelet_rules import engine_of
from bayplan.config.load import load_settings
from bayplan.config.reservations import remarks_here, reserved_bytes, resolve_policy
from bayplan.config.settings import Settings
from bayplan.engines.interface import Engine
from bayplan.errors import ConfigError, Problem
from bayplan.files import STANDARD_INPUT
from bayplan.model.basis import Allocatable, Basis
from bayplan.model.decision import Decision, Interval, Move, Outcome, QosClass, QosSource, Request
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.memory_kinds import with_owners
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.model.sentences import summary
from bayplan.model.wishes import unjoined_pools, unmatched_rules
from bayplan.model.workload import Pod
from bayplan.placement.adjustment import cpus_for
from bayplan.quantity import MIB
from bayplan.sets import CpuSet
from bayplan.simulate.kubelet_rehearsal import rehearsal_of_pods
from bayplan.simulate.manifest import PlannedPod
from bayplan.simulate.topology_sources import read_topology
from bayplan.simulate.trace_file import Arrival, Departure, Event, Resize, read_trace


class EventResult(Struct, frozen=True):
    """What one event led to. ``decisions`` are empty where there was nothing to decide. ``returned`` are the
    containers that went back to fewer nodes, ``promised`` the names of those that were promised more."""

    event: Event
    decisions: tuple[Decision, ...] = ()
    returned: tuple[Move, ...] = ()
    promised: tuple[str, ...] = ()

    @property
    def refused(self) -> bool:
        """Whether something was refused."""
        return any(one.outcome is Outcome.REFUSED for one in self.decisions)


class Room(Struct, frozen=True):
    """What is left for containers. ``largest_bytes`` is the largest Guaranteed request that the engine would
    still put on one node."""

    allocatable_bytes: int
    promised_bytes: int
    largest_bytes: int
    largest_node_bytes: int

    @property
    def free_bytes(self) -> int:
        """The bytes that are promised to no container."""
        return max(0, self.allocatable_bytes - self.promised_bytes)

    @property
    def fragmentation(self) -> float:
        """0 if as much as is free, or as the largest node has, still fits on one node; 1 if nothing does."""
        possible = min(self.free_bytes, self.largest_node_bytes)
        return 0.0 if not possible else max(0.0, 1 - self.largest_bytes / possible)


class Quality(Struct, frozen=True):
    """How good a run was. Pods are counted; bytes are of memory that Guaranteed containers claim.

    ``widths`` counts placements of containers that claim memory by their number of nodes, ``distance`` sums
    up the distances between these nodes over all ordered pairs.
    """

    accepted: int = 0
    refused: int = 0
    degraded: int = 0
    resized: int = 0
    resizes_refused: int = 0
    moves: int = 0
    accepted_bytes: int = 0
    refused_bytes: int = 0
    widths: Counter[int] = field(default_factory=Counter)
    distance: int = 0
    peak_promised_bytes: int = 0

    @property
    def mean_width(self) -> float:
        """Nodes per placement, on average."""
        placed = self.widths.total()
        return sum(width * count for width, count in self.widths.items()) / placed if placed else 0.0


class Simulation:
    """One run of one engine; `play` is called once."""

    def __init__(self, machine: Machine, policy: PlacementPolicy, engine: Engine) -> None:
        self.rehearsal = rehearsal_of_pods(machine, policy, engine)
        self._pods: dict[str, PlannedPod] = {}
        self.quality = Quality()
        self._seen: list[tuple[Pod, str]] = []
        self._joined: set[str] = set()

    def play(self, trace: Iterable[Event]) -> Iterator[EventResult]:
        """Every event of *trace*, in order, with what it led to."""
        for event in trace:
            if isinstance(event, Arrival):
                step = EventResult(event, tuple(self._arrive(event)))
            elif isinstance(event, Departure):
                self._depart(event.name)
                step = EventResult(event)
            else:
                step = EventResult(event, tuple(self._resize(event)))
            step = replace(
                step, returned=tuple(self.rehearsal.returned), promised=tuple(self.rehearsal.promised)
            )
            self.rehearsal.returned.clear()
            self.rehearsal.promised.clear()
            self._judge(step)
            yield step

    def room(self) -> Room:
        """The room that is left now."""
        machine, policy = self.rehearsal.machine, self.rehearsal.policy
        nodes = {
            node: row.get(MEMORY, 0)
            for node, row in Allocatable(machine, policy).bytes_by_node.items()
            if node in machine.ordinary_nodes
        }
        whole, largest_node = sum(nodes.values()), max(nodes.values(), default=0)
        promised = self._promised_bytes()
        return Room(whole, promised, self._largest(min(largest_node, max(0, whole - promised))), largest_node)

    def sharing(self) -> dict[CpuSet, list[str]]:
        """The names of the containers that run on the same CPUs now, by these, the lowest ones first: alone
        on exclusive ones, or with others. Without those whose CPUs somebody else decides about."""
        machine, policy = self.rehearsal.machine, self.rehearsal.policy
        ledger = self.rehearsal.ledger
        shared = ledger.shared_cpus(machine, policy.withheld_cpus)
        names: dict[CpuSet, list[str]] = {}
        for entry in ledger.entries.values():
            cpus = cpus_for(entry.decision, shared)
            if cpus is not None:
                names.setdefault(cpus, []).append(entry.decision.request.name)
        return {cpus: names[cpus] for cpus in sorted(names, key=tuple)}

    @property
    def unmatched(self) -> tuple[str, ...]:
        """The rules about CPUs that counted for none of the containers that came, and the pools that none of
        these was in, each a sentence."""
        policy = self.rehearsal.policy
        pools = () if self.rehearsal.engine.kind.is_kubelets else policy.cpu_pools
        return (*unmatched_rules(policy.cpu_rules, self._seen), *unjoined_pools(pools, self._joined))

    @property
    def running(self) -> int:
        """How many containers there are now; init containers are over."""
        return sum(not one.ends for pod in self._pods.values() for one in pod.containers)

    def _arrive(self, event: Arrival) -> list[Decision]:
        self._depart(event.name)
        self._seen += [(event.pod.pod, one.container.name) for one in event.pod.containers]
        decisions = self.rehearsal.admit(event.pod)
        self._joined |= {one.request.pool for one in decisions}
        if all(one.outcome is not Outcome.REFUSED for one in decisions):
            self._pods[event.name] = event.pod
        return decisions

    def _depart(self, name: str) -> None:
        gone = self._pods.pop(name, None)
        for one in () if gone is None else gone.containers:
            self.rehearsal.release(one.container.id)

    def _resize(self, event: Resize) -> Iterator[Decision]:
        for container_id, entry in self.rehearsal.ledger.entries.items():
            if entry.decision.request.name == event.name:
                decision = self.rehearsal.resize(container_id, event.change)
                if decision is not None:
                    yield decision
                return

    def _judge(self, step: EventResult) -> None:
        before = self.quality
        widths, distance = Counter(before.widths), before.distance
        machine = self.rehearsal.machine
        for one in step.decisions:
            claimed = claimed_bytes(one)
            if step.refused or not claimed:
                continue
            nodes = one.placement.mems or machine.ordinary_nodes
            widths[len(nodes)] += 1
            distance += machine.total_distance(nodes)
        asked = sum(claimed_bytes(one) for one in step.decisions)
        arrival, decided = isinstance(step.event, Arrival), bool(step.decisions)
        accepted = decided and not step.refused
        self.quality = replace(
            before,
            accepted=before.accepted + (arrival and accepted),
            refused=before.refused + (arrival and step.refused),
            degraded=before.degraded + any(one.outcome is Outcome.DEGRADED for one in step.decisions),
            resized=before.resized + (not arrival and accepted),
            resizes_refused=before.resizes_refused + (not arrival and step.refused),
            moves=before.moves + sum(len(one.moves) for one in step.decisions),
            accepted_bytes=before.accepted_bytes + (asked if arrival and accepted else 0),
            refused_bytes=before.refused_bytes + (asked if arrival and step.refused else 0),
            widths=widths,
            distance=distance,
            peak_promised_bytes=max(before.peak_promised_bytes, self._promised_bytes()),
        )

    def _promised_bytes(self) -> int:
        entries = self.rehearsal.ledger.entries.values()
        return sum(entry.decision.own_bytes for entry in entries)

    def _largest(self, most_bytes: int) -> int:
        """By bisection, to the MiB: an engine says only whether something fits."""
        strict = replace(self.rehearsal.policy, topology=TopologyPolicy.SINGLE_NUMA_NODE)
        low, high = 0, most_bytes // MIB
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._fits(middle * MIB, strict) else (low, middle - 1)
        return low * MIB

    def _fits(self, size_bytes: int, strict: PlacementPolicy) -> bool:
        probe = Request(
            "probe", "probe", "probe/probe/probe", QosClass.GUARANTEED, QosSource.INFERRED,
            Interval(size_bytes, size_bytes, "limit"), size_bytes,
        )  # fmt: skip
        rehearsal = self.rehearsal
        decision = rehearsal.engine.decide(Basis(rehearsal.machine, strict, rehearsal.ledger), probe)
        return decision.outcome is Outcome.PLACED and not decision.moves


def claimed_bytes(decision: Decision) -> int:
    """The memory that a decision was about: what a Guaranteed container is limited to."""
    request = decision.request
    return request.memory.high_bytes if request.qos is QosClass.GUARANTEED and request.memory.exact else 0


View = dict[str, Any]

_NOWHERE: Final = Path("/nonexistent")
"""A simulation reads no configuration that it was not given."""


def simulate(
    topology: Path,
    trace: Path,
    engines: Sequence[str] = (),
    configs: Sequence[Path] = (),
    keys: Mapping[str, Sequence[str]] | None = None,
    keys_of: Mapping[str, Mapping[str, Sequence[str]]] = MappingProxyType({}),
) -> View:
    """Play *trace* on the machine of *topology*, once for each of *engines* (none: the configured one).

    *configs* and *keys* (texts of flags by key) are read as baypland reads them; *keys_of* has further keys
    for single engines. Where several engines are compared, the keys of kubelet's managers are for the engine
    `kubelet` alone.

    Raises:
        ConfigError: a file or a key is wrong, or the machine does not have what they name.
    """
    if str(topology) == str(trace) == STANDARD_INPUT:
        expected = "the standard input for one of them"
        raise ConfigError("command line", (Problem("--topology and --trace", "- for both", expected),))
    machine = read_topology(topology)
    all_settings = []
    for engine in engines or ("",):
        flags = {**(keys or {}), **keys_of.get(engine, {}), **({"engine": [engine]} if engine else {})}
        all_settings.append(settings_for(machine, configs, flags, several=len(engines) > 1))
    events = read_trace(trace, machine, all_settings[0].kubelet_rules)
    runs = [_run(machine, settings, events) for settings in all_settings]
    return {
        "apiVersion": API_VERSION,
        "kind": "Simulation",
        "machine": {
            "nodes": str(machine.node_ids),
            "cpus": str(machine.online_cpus),
            "memoryBytes": machine.memory_bytes,
        },
        "events": len(events),
        "runs": runs,
    }


def empty_machine(topology: Path, configs: Sequence[Path] = ()) -> tuple[Machine, PlacementPolicy, Settings]:
    """The machine of *topology* as a daemon with the files *configs* starts with.

    Raises:
        ConfigError, HostError: a file is wrong, or the machine does not have what it names.
    """
    described = read_topology(topology)
    settings = settings_for(described, configs, {}, several=False)
    machine = with_owners(described, settings.device_memory)
    return machine, resolve_policy(settings, machine), settings


def settings_for(
    machine: Machine, configs: Sequence[Path], flags: Mapping[str, Sequence[str]], *, several: bool
) -> Settings:
    """The settings. For kubelet's managers, which start with nothing unsaid, what is not given is what
    bayplan does by itself: the reservation spread over the nodes, and the lowest CPU reserved. With kubelet's
    own file that kubelet is meant, which has nothing but what it says."""
    settings = load_settings(configs, flags, _NOWHERE, for_several_engines=several)
    if not settings.engine_kind.is_kubelets or settings.of_kubelets_file:
        return settings
    complete = dict(flags)
    if settings.reserved_memory is None:
        spread = reserved_bytes(settings, machine)
        rows = (
            f"{node}:{','.join(f'{name}={amount}' for name, amount in row.items())}"
            for node, row in spread.items()
        )
        complete["reservedMemory"] = [";".join(rows)]
    if not settings.reserved_cpus and "cpu" not in {**settings.kube_reserved, **settings.system_reserved}:
        complete["reservedSystemCPUs"] = [str(next(iter(machine.online_cpus), 0))]
    return load_settings(configs, complete, _NOWHERE, for_several_engines=several)


def _run(described: Machine, settings: Settings, events: Sequence[Event]) -> View:
    machine = with_owners(described, settings.device_memory)
    policy = resolve_policy(settings, machine)
    simulation = Simulation(machine, policy, engine_of(settings))
    steps = [_step(number, step) for number, step in enumerate(simulation.play(events), 1)]
    quality, room = simulation.quality, simulation.room()
    return {
        "engine": settings.engine,
        "policy": policy.topology.value,
        "strategy": policy.strategy.value,
        "remarks": [
            *(*machine.remarks, *settings.notices, *remarks_here(settings, machine)),
            *simulation.unmatched,
        ],
        "accepted": quality.accepted,
        "refused": quality.refused,
        "degraded": quality.degraded,
        "resized": quality.resized,
        "resizesRefused": quality.resizes_refused,
        "moves": quality.moves,
        "acceptedBytes": quality.accepted_bytes,
        "refusedBytes": quality.refused_bytes,
        "meanWidth": round(quality.mean_width, 3),
        "widths": {str(width): count for width, count in sorted(quality.widths.items())},
        "totalDistance": quality.distance,
        "peakPromisedBytes": quality.peak_promised_bytes,
        "atEnd": {
            "containers": simulation.running,
            "allocatableBytes": room.allocatable_bytes,
            "promisedBytes": room.promised_bytes,
            "freeBytes": room.free_bytes,
            "largestOnOneNodeBytes": room.largest_bytes,
            "fragmentation": round(room.fragmentation, 3),
            "cpus": [
                {"cpus": str(cpus), "containers": names} for cpus, names in simulation.sharing().items()
            ],
        },
        "steps": steps,
    }


def _step(number: int, step: EventResult) -> View:
    kind = (
        "arrive"
        if isinstance(step.event, Arrival)
        else "depart"
        if isinstance(step.event, Departure)
        else "resize"
    )
    outcome = "refused" if step.refused else "done" if kind == "depart" else "unchanged"
    if step.decisions and not step.refused:
        degraded = any(one.outcome.value == "degraded" for one in step.decisions)
        outcome = "degraded" if degraded else "placed"
    return {
        "step": number,
        "event": kind,
        "name": step.event.name,
        "outcome": outcome,
        "containers": [
            {
                "name": one.request.name,
                "outcome": one.outcome.value,
                "mems": None if one.placement.mems is None else str(one.placement.mems),
                "exclusiveCpus": str(one.placement.exclusive_cpus),
                "moves": [move.name for move in one.moves],
                "moved": [_move(move) for move in one.moves],
                "summary": summary(one),
            }
            for one in step.decisions
        ],
        "returned": [_move(move) for move in step.returned],
        "promised": list(step.promised),
    }


def _move(move: Move) -> View:
    return {"name": move.name, "before": str(move.before), "after": str(move.after)}

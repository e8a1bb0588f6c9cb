"""The nodes of a simulated cluster: their kinds, read from one file, and each as scheduler and kubelet know
it.

A `ClusterNode` has two sides that may differ, which is what a cluster simulation is about: the sums that a
scheduler subtracts requests from, and the ledger in which an engine books the pod that was sent. The ledger
is made when the first pod comes, so that nodes that nothing reaches cost nothing. Invariant: a pod is on the
scheduler's side from `bind` to `leave`, and in the ledger from an `admit` that is not refused to the same
`leave`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

from bayplan.config.kubelet_rules import engine_of
from bayplan.config.reservations import resolve_policy
from bayplan.config.settings import Settings
from bayplan.config.values import InvalidValueError, ProblemCollector, invalid, items, show, unknown_keys
from bayplan.engines.interface import Engine
from bayplan.errors import BayplanError, ConfigError, Problem
from bayplan.files import MIB, given_text
from bayplan.model.basis import Basis
from bayplan.model.decision import Decision, Outcome
from bayplan.model.ledger import Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.memory_kinds import with_owners
from bayplan.model.policy import PlacementPolicy
from bayplan.quantity import counted
from bayplan.sets import NodeSet
from bayplan.simulate.comparison import settings_for
from bayplan.simulate.kubelet_rehearsal import rehearsal_of_pods
from bayplan.simulate.machine_file import described_machine, parse_document
from bayplan.simulate.manifest import PlannedPod, plan_manifest, sizes_manifest
from bayplan.simulate.pod_trace import TimedPod
from bayplan.simulate.rehearsal import Rehearsal
from bayplan.simulate.topology_sources import read_topology
from bayplan.views.node_room import free_bytes_by_node, free_cpus_by_node

MAX_NODES: Final = 100_000
_MAX_PODS: Final = 110
"""kubelet's default of ``maxPods``."""
_KEYS: Final = ("name", "count", "topology", "machine", "maxPods", "resources")


class NodeKind(Struct, frozen=True):
    """``count`` nodes that are alike: ``machine`` and pieces of extended ``resources`` (GPUs) on each, which
    the scheduler counts and no engine places."""

    name: str
    count: int
    machine: Machine
    max_pods: int = _MAX_PODS
    resources: Mapping[str, int] = MappingProxyType({})


class NodeSoftware(Struct, frozen=True, dict=True):
    """What decides on a node of one kind: an engine with its policy, and what kubelet says is allocatable
    there."""

    machine: Machine
    policy: PlacementPolicy
    engine: Engine
    milli_cpus: int
    memory_bytes: int
    rejects: bool
    """A refused pod has failed for good (kubelet's admission), and its controller makes another one; else its
    containers are tried again on the same node."""

    @cached_property
    def empty_rooms(self) -> Mapping[int, "NumaRoom"]:
        """What each NUMA node has while there is no pod."""
        return rooms_of(Basis(self.machine, self.policy, Ledger()))


class NumaRoom(Struct, frozen=True):
    """What a pod could still get on one NUMA node alone, as a NodeResourceTopology says it."""

    cpus: int
    memory_bytes: int


class PodOutcome(StrEnum):
    """What a node made of a pod."""

    PLACED = "placed"
    DEGRADED = "degraded"
    REFUSED = "refused"


def read_cluster(path: Path) -> list[NodeKind]:
    """The kinds of nodes of the file at *path*, TOML, YAML or JSON: ``nodes``, a list of tables with
    ``count``, ``topology`` (a file, from the directory of this one) or ``machine`` (a description of its
    own), ``name``, ``maxPods`` and ``resources``.

    Raises:
        ConfigError: everything that is wrong with it.
    """
    content = given_text(path, "a cluster in TOML, YAML or JSON")
    collector = ProblemCollector()
    kinds: list[NodeKind] = []
    with collector:
        top = dict(items("the file", parse_document(content, path.suffix)))
        collector.problems += unknown_keys("", [key for key in top if key != "nodes"], ("nodes",))
        nodes = top.get("nodes")
        if not isinstance(nodes, list) or not nodes:
            raise invalid("nodes", show(nodes), "a list of kinds of nodes")
        for number, entry in enumerate(nodes):
            with collector:
                kinds.append(_kind(f"nodes[{number}]", entry, path.parent))
        names = Counter(kind.name for kind in kinds)
        repeated = [name for name, count in names.items() if count > 1]
        collector.problems += [
            Problem("nodes", repr(name), "a name that no other kind has") for name in repeated
        ]
        if (count := sum(kind.count for kind in kinds)) > MAX_NODES:
            raise invalid("nodes", counted(count, "node"), f"at most {MAX_NODES}")
    if collector.problems:
        raise ConfigError(str(path), tuple(collector.problems))
    return kinds


def software_of(kind: NodeKind, configs: Sequence[Path], flags: Mapping[str, Sequence[str]]) -> NodeSoftware:
    """What nodes of *kind* run, by files and flags as baypland reads them.

    Raises:
        ConfigError: a file or flag is wrong, or the machine does not have what they name.
    """
    settings: Settings = settings_for(kind.machine, configs, flags, several=True)
    machine = with_owners(kind.machine, settings.device_memory)
    policy = resolve_policy(settings, machine)
    empty = Basis(machine, policy, Ledger())
    memory_bytes = sum(row.get(MEMORY, 0) for row in empty.allocatable.bytes_by_node.values())
    # As the daemon keeps CPUs for those that share, and as kubelet subtracts what it reserves.
    kept = max(len(empty.allocatable.reserved_cpus), empty.shared_cpus_minimum())
    return NodeSoftware(
        machine, policy, engine_of(settings), (len(machine.online_cpus) - kept) * 1000, memory_bytes,
        rejects=settings.engine_kind.is_kubelets,
    )  # fmt: skip


MISSING_MILLI, MISSING_BYTES = 100, 200 * MIB
"""What a scheduler's scores count for a pod that requests nothing (pkg/scheduler/util/pod_resources.go)."""


class ClusterNode:
    """One node. ``free_*`` and ``scored_*``, what its pods count in scores, are the scheduler's side;
    ``generation`` counts what changed in the ledger."""

    __slots__ = (
        "_decisions",
        "_refused",
        "_rehearsal",
        "_rooms",
        "free_bytes",
        "free_milli",
        "free_pods",
        "free_resources",
        "generation",
        "groups",
        "index",
        "kind",
        "pods",
        "scored_bytes",
        "scored_milli",
        "software",
    )

    def __init__(self, index: int, kind: NodeKind, software: NodeSoftware) -> None:
        self.index, self.kind, self.software = index, kind, software
        self.free_milli, self.free_bytes = software.milli_cpus, software.memory_bytes
        self.scored_milli = self.scored_bytes = 0
        self.free_pods, self.free_resources = kind.max_pods, dict(kind.resources)
        self.groups: Counter[str] = Counter()
        self.pods: dict[str, TimedPod] = {}
        self.generation = 0
        self._decisions: dict[str, tuple[Decision, ...]] = {}
        self._refused: dict[tuple[object, ...], tuple[Decision, ...]] = {}
        self._rehearsal: Rehearsal | None = None
        self._rooms: tuple[int, Mapping[int, NumaRoom]] = (-1, {})

    @property
    def name(self) -> str:
        """Of its kind, with its number."""
        return f"{self.kind.name}-{self.index}"

    @property
    def reached(self) -> bool:
        """Whether a pod ever came."""
        return self._rehearsal is not None

    @property
    def rehearsal(self) -> Rehearsal:
        """Its ledger and who decides about it."""
        if self._rehearsal is None:
            software = self.software
            self._rehearsal = rehearsal_of_pods(software.machine, software.policy, software.engine)
        return self._rehearsal

    def fits(self, pod: TimedPod) -> bool:
        """Whether the sums suffice, as NodeResourcesFit filters, and the pod's group may have one more
        here."""
        if self.free_milli < pod.milli_cpus or self.free_bytes < pod.memory_bytes or not self.free_pods:
            return False
        if pod.most_per_node and self.groups[pod.group] >= pod.most_per_node:
            return False
        free = self.free_resources
        return all(free.get(name, 0) >= amount for name, amount in pod.resources.items())

    def bind(self, pod: TimedPod) -> None:
        """The scheduler has chosen this node."""
        self.pods[pod.name] = pod
        self._count(pod, 1)

    def admit(self, pod: TimedPod) -> tuple[PodOutcome, tuple[Decision, ...]]:
        """What the node decides about a pod that is bound to it; unless refused, it is booked. Beside the
        same others it is asked once for all pods that are alike."""
        refused = self._refused.get(pod.shape)
        if refused is not None:
            return PodOutcome.REFUSED, refused
        decisions = tuple(self.rehearsal.admit(planned(pod, self.software.machine)))
        answer = answer_of(decisions)
        if answer is PodOutcome.REFUSED:
            self._refused[pod.shape] = decisions
        else:
            self._changed()
            self._decisions[pod.name] = decisions
        return answer, decisions

    def would(self, pod: TimedPod) -> tuple[PodOutcome, tuple[Decision, ...]]:
        """What it would decide; nothing is booked."""
        software, rehearsal = self.software, self._rehearsal
        trial = rehearsal_of_pods(software.machine, software.policy, software.engine)
        if rehearsal is not None:
            trial.machine, trial.ledger = rehearsal.machine, rehearsal.ledger
        decisions = tuple(trial.admit(planned(pod, self.software.machine)))
        return answer_of(decisions), decisions

    def leave(self, pod: TimedPod) -> bool:
        """The pod is gone, for scheduler and engine; whether anything was booked."""
        del self.pods[pod.name]
        self._count(pod, -1)
        decisions = self._decisions.pop(pod.name, ())
        for decision in decisions:
            self.rehearsal.release(decision.request.container_id)
        if decisions:
            self._changed()
        return bool(decisions)

    def rooms(self) -> Mapping[int, NumaRoom]:
        """What is left on each NUMA node alone, by the ledger."""
        if self._rehearsal is None:
            return self.software.empty_rooms
        generation, rooms = self._rooms
        if generation != self.generation:
            rooms = rooms_of(self._rehearsal.basis)
            self._rooms = (self.generation, rooms)
        return rooms

    def _changed(self) -> None:
        self.generation += 1
        self._refused.clear()

    def _count(self, pod: TimedPod, sign: int) -> None:
        self.scored_milli += sign * (pod.milli_cpus or MISSING_MILLI)
        self.scored_bytes += sign * (pod.memory_bytes or MISSING_BYTES)
        self.free_milli -= sign * pod.milli_cpus
        self.free_bytes -= sign * pod.memory_bytes
        self.free_pods -= sign
        for name, amount in pod.resources.items():
            self.free_resources[name] = self.free_resources.get(name, 0) - sign * amount
        if pod.most_per_node:
            self.groups[pod.group] += sign


def rooms_of(basis: Basis) -> dict[int, NumaRoom]:
    """What is left on each NUMA node alone."""
    free_bytes, free_cpus = free_bytes_by_node(basis), free_cpus_by_node(basis)
    return {
        node: NumaRoom(free_cpus[node], free_bytes[node].get(MEMORY, 0))
        for node in basis.machine.ordinary_nodes
    }


def planned(pod: TimedPod, machine: Machine) -> PlannedPod:
    """The pod as kubelet would hand it to a runtime: one container with all of it."""
    manifest = sizes_manifest(
        pod.name,
        memory=str(pod.memory_bytes) if pod.memory_bytes else None,
        memory_limit=str(pod.memory_limit_bytes) if pod.memory_limit_bytes else None,
        cpus=f"{pod.milli_cpus}m" if pod.milli_cpus else None,
        qos=pod.qos.value,
    )
    (found,) = plan_manifest(manifest, machine)
    return found


def answer_of(decisions: Sequence[Decision]) -> PodOutcome:
    """What decisions about a pod's containers come to."""
    outcomes = {one.outcome for one in decisions}
    if Outcome.REFUSED in outcomes:
        return PodOutcome.REFUSED
    return PodOutcome.DEGRADED if Outcome.DEGRADED in outcomes else PodOutcome.PLACED


def memory_nodes(node: ClusterNode, decisions: Sequence[Decision]) -> NodeSet:
    """The NUMA nodes that a pod's memory may be on."""
    machine = node.software.machine
    return decisions[0].placement.mems or machine.ordinary_nodes


def _kind(where: str, entry: object, directory: Path) -> NodeKind:
    values = dict(items(where, entry))
    collector = ProblemCollector()
    collector.problems += unknown_keys(where, [key for key in values if key not in _KEYS], _KEYS)

    def amount(key: str, value: object, default: int) -> int:
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_NODES:
            raise invalid(f"{where}.{key}", show(value), f"a number from 1 to {MAX_NODES}")
        return value

    count, max_pods = 1, _MAX_PODS
    machine = Machine((), ())
    resources: dict[str, int] = {}
    with collector:
        count = amount("count", values.get("count"), 1)
    with collector:
        max_pods = amount("maxPods", values.get("maxPods"), _MAX_PODS)
    with collector:
        for name, value in items(f"{where}.resources", values.get("resources", {})):
            resources[name] = amount(f"resources.{name}", value, 0)
    with collector:
        machine = _machine(where, values, directory)
    called = values.get("name", where.replace("[", "-").rstrip("]"))
    if not isinstance(called, str) or not called:
        collector.problems.append(Problem(f"{where}.name", show(called), "a name"))
    collector.raise_problems()
    return NodeKind(str(called), count, machine, max_pods, resources)


def _machine(where: str, values: Mapping[str, Any], directory: Path) -> Machine:
    topology, description = values.get("topology"), values.get("machine")
    if (topology is None) == (description is None):
        found = "neither" if topology is None else "both"
        raise invalid(where, found, "one of topology (a file) and machine (a description)")
    if description is not None:
        try:
            return described_machine(description)
        except InvalidValueError as error:
            located = [
                Problem(f"{where}.machine{_below(one.path)}", one.found, one.expected)
                for one in error.problems
            ]
            raise InvalidValueError(*located) from error
    if not isinstance(topology, str):
        raise invalid(f"{where}.topology", show(topology), "the name of a file")
    try:
        return read_topology(directory / topology)
    except BayplanError as error:
        raise invalid(f"{where}.topology", str(error), "a machine") from error


def _below(path: str) -> str:
    """A path in a description as what follows the path of the description itself."""
    return "" if path == "the file" else f".{path}"

"""Which CPUs a container gets to itself: near its nodes, those that it has already, whole cores first."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

from bayplan.engines.device_hints import device_shares
from bayplan.engines.exact.topology import NodeTopology
from bayplan.engines.interface import exclusive_candidates, exclusive_room, shared_cpus_minimum
from bayplan.model.claim_parts import proportional
from bayplan.model.decision import Placement, Reason, Request
from bayplan.model.ledger import Ledger
from bayplan.model.machine import Cpu, Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.quantity import counted
from bayplan.sets import CpuSet, NodeSet

SHARED_CPUS_MINIMUM: Final = "shared-cpus-minimum"
"""Code of the reason that CPUs stay in the shared pool which a container asks for as its own."""


class ExclusiveCpus:
    """The CPUs that one container may have. ``own`` are those that it has already, if it runs; ``free`` are
    these and all that no container has. ``obstacle`` is why none of the others are free to it: the shared
    pool would be left with too few."""

    def __init__(
        self,
        topology: NodeTopology,
        policy: PlacementPolicy,
        ledger: Ledger,
        request: Request,
        current: Placement | None,
    ) -> None:
        self._topology, self._machine = topology, topology.machine
        self.count = 0 if request.pinned_cpus is not None else request.exclusive_cpus
        self._hints = request.hints
        self.own = CpuSet() if current is None else current.exclusive_cpus
        self._policy, self._ledger = policy, ledger

    @cached_property
    def free(self) -> CpuSet:
        """See the class."""
        return self._online if self.obstacle is not None else self._candidates

    @cached_property
    def obstacle(self) -> Reason | None:
        """See the class."""
        if not len(self.own) < self.count <= len(self._candidates | self.own):
            return None
        return kept_shared(self.count, self._machine, self._policy, self._ledger)

    @cached_property
    def _online(self) -> CpuSet:
        return self.own & self._machine.online_cpus

    @cached_property
    def _candidates(self) -> CpuSet:
        return exclusive_candidates(self._machine, self._policy, self._ledger) | self._online

    def free_by_node(self) -> dict[int, int]:
        """How many free ones each node has."""
        return self._topology.free_cpus(self.free)

    def take(self, nodes: NodeSet) -> tuple[CpuSet, Reason | None]:
        """The exclusive CPUs, or the shared pool and the reason for it.

        On *nodes* rather than elsewhere (no nodes: anywhere), and among these rather those that it has; where
        the container's devices are on several of them, as many on each as it has of the devices.
        """
        if self.count == 0 or self.obstacle is not None:
            return CpuSet(), self.obstacle
        free, taken = self.free | self.own, CpuSet()
        if self.count > len(free):
            asked = f"{counted(self.count, 'exclusive CPU')} asked for"
            text = f"{asked}, {len(free)} left; runs on the shared CPUs"
            return CpuSet(), Reason("no-exclusive-cpus", text)
        there = self._topology.cpus_near(nodes) if nodes else free
        parts = self._parts(nodes)
        for part in (self.own & there, free & there, self.own, free):
            for near, most in parts.items():
                count = min(self.count - len(taken), most - len(taken & near))
                if count > 0 and (available := (part & near) - taken):
                    taken |= _best_cpus(self._machine, available, count, self._machine.node_ids)
            count = self.count - len(taken)
            if not count:
                break
            if available := part - taken:
                taken |= _best_cpus(self._machine, available, count, _by_distance(self._machine, nodes))
        return taken, None

    def _parts(self, nodes: NodeSet) -> Mapping[CpuSet, int]:
        """The CPUs near each of *nodes* with devices of the container, where there are several such, and how
        many of them belong to these devices: whole cores, as far as they divide."""
        shares = device_shares(self._hints, nodes)
        if not shares or len(shares) == 1:
            return {}
        size = max(self._machine.core_sizes.values(), default=1)
        cores = proportional(self.count // size, shares)
        return {self._topology.cpus_near(NodeSet([node])): size * count for node, count in cores.items()}

    def away_from(self, nodes: NodeSet, cpus: CpuSet) -> CpuSet:
        """Those of *cpus* that are online and not on *nodes*."""
        return (cpus & self._machine.online_cpus) - self._topology.cpus_near(nodes)


def best_cpus(machine: Machine, available: CpuSet, count: int, nodes: NodeSet) -> CpuSet:
    """*count* CPUs of *available*, of those on *nodes* first; fewer if there are fewer."""
    return _best_cpus(machine, available, min(count, len(available)), _by_distance(machine, nodes))


def kept_shared(count: int, machine: Machine, policy: PlacementPolicy, ledger: Ledger) -> Reason | None:
    """Why *count* CPUs of the shared pool cannot become exclusive to one container: it would be left with
    fewer than are to stay. None if they can."""
    room, least = exclusive_room(machine, policy, ledger), shared_cpus_minimum(policy, ledger)
    if count <= room:
        return None
    configured = policy.shared_cpus_minimum is not None
    whose = "stay in it at least (sharedCPUsMinimum)" if configured else "its containers request"
    text = (
        f"{counted(count, 'exclusive CPU')} asked for; the shared pool has {room + least}, of which {least} "
        f"{whose}; {max(0, room)} can become exclusive"
    )
    return Reason(SHARED_CPUS_MINIMUM, text)


def _best_cpus(machine: Machine, available: CpuSet, count: int, order: Iterable[int]) -> CpuSet:
    """*count* CPUs of *available*, from the nodes in their *order*, and last those of no node.

    Within a node: whole free cores, cache by cache; what is left comes from cores that are already broken,
    and only then is another core broken, so that hyperthread siblings stay with one container.

    Returns:
        The CPUs; fewer than *count* only if *available* has fewer.
    """
    taken: list[int] = []
    for node in order:
        taken += _take_from_node(machine, available & machine.node_by_id[node].cpus, count - len(taken))
        if len(taken) == count:
            return CpuSet(taken)
    nodeless = available - machine.cpus_of(machine.node_ids)
    return CpuSet((*taken, *list(nodeless)[: count - len(taken)]))


def _by_distance(machine: Machine, preferred: NodeSet) -> Iterator[int]:
    """All nodes: the preferred ones by id, then the others by their distance from the preferred ones, which
    is worked out when it comes to them."""

    def distance(node: int) -> int:
        return sum(machine.distance(source, node) for source in preferred)

    yield from preferred & machine.node_ids
    yield from sorted(machine.node_ids - preferred, key=lambda node: (distance(node), node))


def _take_from_node(machine: Machine, free: CpuSet, count: int) -> list[int]:
    cores, size_of = _cores(machine.cpu_by_id[cpu] for cpu in free), machine.core_sizes
    whole = [core for core in cores if len(core) == size_of[core[0].core_id]]
    broken = [core for core in cores if len(core) < size_of[core[0].core_id]]
    taken: list[int] = []
    left: list[Sequence[Cpu]] = []
    for core in whole:
        if len(core) <= count - len(taken):
            taken += [cpu.id for cpu in core]
        else:
            left.append(core)
    for core in (*broken, *left):
        taken += [cpu.id for cpu in core][: count - len(taken)]
    return taken


def _cores(cpus: Iterable[Cpu]) -> list[Sequence[Cpu]]:
    """The CPUs by core; cores that share an L3 cache stand beside each other."""
    cores: dict[int, list[Cpu]] = {}
    for cpu in cpus:
        cores.setdefault(cpu.core_id, []).append(cpu)
    return sorted(
        cores.values(), key=lambda core: (core[0].socket_id, core[0].l3_cache_id or 0, core[0].core_id)
    )

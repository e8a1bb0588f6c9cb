"""The CPUs of a machine as kubelet's CPU Manager sees them: cores, sockets, NUMA nodes, uncore caches.

Values only. Sizes are the plain integer divisions that kubelet uses, which are wrong on machines with
offline or hybrid CPUs; whoever takes a whole element must also check that all of its CPUs are there.
Elements are bit masks of CPU ids, because every question here is an intersection of two of them.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Self

from msgspec import Struct
from msgspec.structs import force_setattr

from bayplan.model.machine import Machine
from bayplan.sets import CpuSet, NodeSet


class LogicalCpu(Struct, frozen=True):
    """One logical CPU and the elements that it belongs to. Every id is unique on the machine."""

    id: int
    core: int
    node: int
    socket: int
    uncore: int


class CpuTopology(Struct, frozen=True, dict=True):
    """All CPUs. The ``num_`` counts stand beside them, because kubelet divides by what cAdvisor reports and
    not by what the CPUs show; `of_cpus` and `of_machine` make both agree.

    ``core_cpus``, ``node_cpus``, ``socket_cpus`` and ``uncore_cpus`` map an id to its mask of CPUs;
    ``cores_of_socket`` and the like list ids in ascending order.
    """

    cpus: tuple[LogicalCpu, ...]
    num_cpus: int
    num_cores: int
    num_sockets: int
    num_nodes: int
    num_uncores: int

    def __post_init__(self) -> None:
        force_setattr(self, "cpus", tuple(sorted(self.cpus, key=lambda cpu: cpu.id)))

    @cached_property
    def all_cpus(self) -> CpuSet:
        return CpuSet(cpu.id for cpu in self.cpus)

    @cached_property
    def nodes(self) -> NodeSet:
        return NodeSet(cpu.node for cpu in self.cpus)

    @cached_property
    def core_cpus(self) -> Mapping[int, int]:
        return _masks((cpu.core, cpu.id) for cpu in self.cpus)

    @cached_property
    def node_cpus(self) -> Mapping[int, int]:
        return _masks((cpu.node, cpu.id) for cpu in self.cpus)

    @cached_property
    def socket_cpus(self) -> Mapping[int, int]:
        return _masks((cpu.socket, cpu.id) for cpu in self.cpus)

    @cached_property
    def uncore_cpus(self) -> Mapping[int, int]:
        return _masks((cpu.uncore, cpu.id) for cpu in self.cpus)

    @cached_property
    def cores_of_socket(self) -> Mapping[int, tuple[int, ...]]:
        return _members((cpu.socket, cpu.core) for cpu in self.cpus)

    @cached_property
    def cores_of_node(self) -> Mapping[int, tuple[int, ...]]:
        return _members((cpu.node, cpu.core) for cpu in self.cpus)

    @cached_property
    def cores_of_uncore(self) -> Mapping[int, tuple[int, ...]]:
        return _members((cpu.uncore, cpu.core) for cpu in self.cpus)

    @cached_property
    def sockets_of_node(self) -> Mapping[int, tuple[int, ...]]:
        return _members((cpu.node, cpu.socket) for cpu in self.cpus)

    @cached_property
    def nodes_of_socket(self) -> Mapping[int, tuple[int, ...]]:
        return _members((cpu.socket, cpu.node) for cpu in self.cpus)

    @cached_property
    def uncores_of_node(self) -> Mapping[int, tuple[int, ...]]:
        return _members((cpu.node, cpu.uncore) for cpu in self.cpus)

    @classmethod
    def of_cpus(cls, cpus: Iterable[LogicalCpu]) -> Self:
        """The topology whose counts are what the CPUs show."""
        listed = tuple(cpus)
        return cls(
            cpus=listed,
            num_cpus=len(listed),
            num_cores=len({cpu.core for cpu in listed}),
            num_sockets=len({cpu.socket for cpu in listed}),
            num_nodes=len({cpu.node for cpu in listed}),
            num_uncores=len({cpu.uncore for cpu in listed}),
        )

    @classmethod
    def of_machine(cls, machine: Machine) -> Self:
        """The online CPUs of *machine*. A CPU without a NUMA node counts to node 0, as on a kernel without
        NUMA; one without an L3 cache has its socket as uncore cache, as in kubelet."""
        return cls.of_cpus(
            LogicalCpu(
                id=cpu.id,
                core=cpu.core_id,
                node=0 if cpu.node_id is None else cpu.node_id,
                socket=cpu.socket_id,
                uncore=cpu.socket_id if cpu.l3_cache_id is None else cpu.l3_cache_id,
            )
            for cpu in machine.cpus
            if cpu.online
        )

    @property
    def cpus_per_core(self) -> int:
        """CPUs by cores, rounded down; 0 without cores."""
        return self.num_cpus // self.num_cores if self.num_cores else 0

    @property
    def cpus_per_socket(self) -> int:
        """CPUs by sockets, rounded down; 0 without sockets."""
        return self.num_cpus // self.num_sockets if self.num_sockets else 0

    @property
    def cpus_per_uncore(self) -> int:
        """CPUs by uncore caches, rounded down; 0 without any."""
        return self.num_cpus // self.num_uncores if self.num_uncores else 0

    @property
    def nodes_first(self) -> bool:
        """Whether a NUMA node holds sockets (rather than a socket NUMA nodes), so that it is filled first."""
        return self.num_sockets >= self.num_nodes

    def cpus_in_nodes(self, nodes: NodeSet) -> CpuSet:
        """The CPUs of *nodes*; ids without CPUs have none."""
        return CpuSet.of_mask(_union(self.node_cpus.get(node, 0) for node in nodes))

    def nodes_of(self, cpus: CpuSet) -> NodeSet:
        """The NUMA nodes that hold at least one of *cpus*."""
        return NodeSet(node for node, mask in self.node_cpus.items() if mask & cpus.mask)

    def sockets_in_nodes(self, nodes: NodeSet) -> frozenset[int]:
        """The sockets that hold a CPU of one of *nodes*."""
        return frozenset(socket for node in nodes for socket in self.sockets_of_node.get(node, ()))

    def cpus_in_sockets_of(self, nodes: NodeSet) -> CpuSet:
        """The CPUs of every socket that holds a CPU of one of *nodes*."""
        return CpuSet.of_mask(_union(self.socket_cpus[socket] for socket in self.sockets_in_nodes(nodes)))

    def siblings(self, cpus: CpuSet) -> CpuSet:
        """All CPUs of the cores that hold one of *cpus*."""
        return CpuSet.of_mask(_union(mask for mask in self.core_cpus.values() if mask & cpus.mask))


def _masks(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    masks: dict[int, int] = {}
    for element, cpu in pairs:
        masks[element] = masks.get(element, 0) | 1 << cpu
    return dict(sorted(masks.items()))


def _members(pairs: Iterable[tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    members: dict[int, set[int]] = {}
    for outer, inner in pairs:
        members.setdefault(outer, set()).add(inner)
    return {outer: tuple(sorted(inner)) for outer, inner in sorted(members.items())}


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union

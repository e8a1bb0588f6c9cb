"""The machine as decisions see it: NUMA nodes, distances, memory, huge pages, CPUs.

Values only; `bayplan.host.sysfs` reads them from the kernel. Ids are sparse, distances may be asymmetric,
a node may lack CPUs, memory or both, and offline CPUs are listed but belong to no node's set.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property, reduce
from typing import Final, Self

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from bayplan.quantity import format_page_size, parse_page_size
from bayplan.sets import CpuSet, NodeSet, cpus_text

MEMORY: Final = "memory"
"""Resource name of ordinary memory; huge pages are ``hugepages-2Mi`` and so on, as in Kubernetes."""

LOCAL_DISTANCE: Final = 10
REMOTE_DISTANCE: Final = 20
"""The kernel's own defaults (include/linux/topology.h), for pairs of nodes without an entry in the SLIT."""
MAX_DISTANCE: Final = 255
"""A byte of the SLIT (ACPI 6.5, 5.2.17)."""

CORE_KINDS: Final = ("performance", "middle", "efficiency")
"""Kinds of cores, the strongest first; what is neither the strongest nor the weakest is in the middle."""


def hugepages(page_size_bytes: int) -> str:
    """Resource name of a huge page size, as in Kubernetes: ``hugepages-2Mi``."""
    return f"hugepages-{format_page_size(page_size_bytes)}"


def hugepage_size_bytes(resource: str) -> int:
    """The page size of which *resource* is the name, as `hugepages` gives it.

    >>> hugepage_size_bytes("hugepages-2Mi")
    2097152
    """
    return parse_page_size(resource.partition("-")[2])


def given_to_nobody(lost: CpuSet) -> str:
    """The sentence for operators about the CPUs *lost*, whose partition ended while it was invalid."""
    return f"the kernel keeps {cpus_text(lost)} for a partition whose cgroup is gone, and for nobody else"


class Cpu(Struct, frozen=True):
    """One logical CPU. ``core_id``, ``l3_cache_id``, ``cluster_id`` and ``die_id`` are the lowest CPU id that
    shares the core, cache, cluster or die, which makes them unique on the machine (the kernel's core_id
    repeats in every socket); None where the kernel does not say. ``kind`` is one of CORE_KINDS on a machine
    with cores of several kinds, else empty."""

    id: int
    core_id: int
    socket_id: int
    node_id: int | None
    l3_cache_id: int | None
    online: bool = True
    cluster_id: int | None = None
    die_id: int | None = None
    kind: str = ""


class Performance(Struct, frozen=True):
    """How the firmware's HMAT rates a node's memory, reached from its best initiators; 0 is unknown."""

    read_latency_ns: int = 0
    write_latency_ns: int = 0
    read_bandwidth_mib_s: int = 0
    write_bandwidth_mib_s: int = 0


class Node(Struct, frozen=True):
    """One NUMA node. ``memory_bytes`` is MemTotal, which includes the huge pages' memory;
    ``hugepages_bytes`` maps a page size to the size of its pool; ``distances`` maps node ids to the
    distance from this node.

    ``tier`` is the rank of the kernel's memory tier that holds it, 0 for the fastest of this machine, None
    where the kernel says nothing. ``initiators`` are the nodes that reach its memory best (HMAT ``access0``).
    ``owner`` names the device whose memory the node is, empty for memory of the machine itself. ``devices``
    counts the devices close to it that containers are made for: accelerators, InfiniBand, adapters with
    virtual functions. ``is_movable``: the kernel has no memory there for itself, as all that there is is in
    the zone Movable. ``pcie_roots`` are the PCI roots that have devices close to it (``pci0000:3a``).
    """

    id: int
    cpus: CpuSet
    memory_bytes: int
    hugepages_bytes: Mapping[int, int] = field(default_factory=dict)
    distances: Mapping[int, int] = field(default_factory=dict)
    tier: int | None = None
    initiators: NodeSet = NodeSet()
    owner: str = ""
    devices: int = 0
    performance: Performance = Performance()
    is_movable: bool = False
    pcie_roots: tuple[str, ...] = ()

    def capacity_bytes(self) -> dict[str, int]:
        """Bytes by resource: ordinary memory is MemTotal less what the huge page pools hold of it."""
        capacity = {MEMORY: max(0, self.memory_bytes - sum(self.hugepages_bytes.values()))}
        for page_size_bytes, pool_bytes in sorted(self.hugepages_bytes.items()):
            capacity[hugepages(page_size_bytes)] = pool_bytes
        return capacity


class Machine(Struct, frozen=True, dict=True):
    """Everything that decisions know of the hardware. Nodes and CPUs are kept sorted by id.

    ``memory_bytes`` is the MemTotal of /proc/meminfo, which kubelet's formulas call the memory capacity.
    Where it is not given it is the sum over the nodes; memory hot-plugged into a virtual machine can be
    missing there. ``isolated`` are the online CPUs on which the kernel balances no load (isolcpus).
    ``remarks`` say, each in a sentence, what of the kernel's description was odd and left out. ``nohz_full``
    are the online CPUs whose timer tick stops while one thread alone runs there. ``lost`` are the CPUs that
    count as offline although they are not.
    """

    nodes: tuple[Node, ...]
    cpus: tuple[Cpu, ...]
    memory_bytes: int = 0
    isolated: CpuSet = CpuSet()
    remarks: tuple[str, ...] = ()
    nohz_full: CpuSet = CpuSet()
    lost: CpuSet = CpuSet()

    def without_cpus(self, lost: CpuSet) -> Self:
        """The machine as it is for containers where the kernel gives *lost* to no cgroup."""
        return replace(
            self,
            nodes=tuple(replace(one, cpus=one.cpus - lost) for one in self.nodes),
            cpus=tuple(replace(one, online=one.online and one.id not in lost) for one in self.cpus),
            isolated=self.isolated - lost,
            nohz_full=self.nohz_full - lost,
            remarks=(*self.remarks, given_to_nobody(lost)),
            lost=lost,
        )

    def __post_init__(self) -> None:
        force_setattr(self, "nodes", tuple(sorted(self.nodes, key=lambda node: node.id)))
        force_setattr(self, "cpus", tuple(sorted(self.cpus, key=lambda cpu: cpu.id)))
        if not self.memory_bytes:
            force_setattr(self, "memory_bytes", sum(node.memory_bytes for node in self.nodes))

    @cached_property
    def node_by_id(self) -> Mapping[int, Node]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def cpu_by_id(self) -> Mapping[int, Cpu]:
        return {cpu.id: cpu for cpu in self.cpus}

    @cached_property
    def core_sizes(self) -> Mapping[int, int]:
        """How many online CPUs each core has."""
        return Counter(cpu.core_id for cpu in self.cpus if cpu.online)

    @cached_property
    def has_closed_memory(self) -> bool:
        """Whether some memory is not ordinary, so that a container may use it only if it says so."""
        return self.ordinary_nodes.mask != self.memory_nodes.mask

    @cached_property
    def node_ids(self) -> NodeSet:
        return NodeSet(node.id for node in self.nodes)

    @cached_property
    def memory_nodes(self) -> NodeSet:
        return NodeSet(node.id for node in self.nodes if node.memory_bytes > 0)

    @cached_property
    def movable_nodes(self) -> NodeSet:
        """The nodes with memory of which the kernel has none for itself."""
        return NodeSet(node.id for node in self.nodes if node.is_movable)

    @cached_property
    def cpu_nodes(self) -> NodeSet:
        return NodeSet(node.id for node in self.nodes if node.cpus)

    @cached_property
    def online_cpus(self) -> CpuSet:
        return CpuSet(cpu.id for cpu in self.cpus if cpu.online)

    @cached_property
    def cpus_by_kind(self) -> Mapping[str, CpuSet]:
        """The online CPUs of each kind of cores, the strongest first; empty where all are alike."""
        found = {
            kind: CpuSet(cpu.id for cpu in self.cpus if cpu.kind == kind and cpu.online)
            for kind in CORE_KINDS
        }
        return {kind: cpus for kind, cpus in found.items() if cpus}

    @cached_property
    def ordinary_nodes(self) -> NodeSet:
        """The nodes whose memory containers get without asking: not a device's, and in a tier that has CPUs.
        A node of unknown tier has to have CPUs itself, which may be offline; if that leaves no memory at all
        (all nodes with CPUs lack memory), it is every node that is not a device's."""
        unowned = [node for node in self.nodes if node.memory_bytes > 0 and not node.owner]
        cpu_tiers = {node.tier for node in unowned if node.cpus and node.tier is not None}
        of_cpus = {cpu.node_id for cpu in self.cpus}
        ordinary = [
            node.id
            for node in unowned
            if node.cpus or node.tier in cpu_tiers or (node.tier is None and node.id in of_cpus)
        ]
        return NodeSet(ordinary or (node.id for node in unowned))

    def distance(self, source: int, target: int) -> int:
        """The kernel's distance from node *source* to node *target*; its defaults where it gives none, as for
        nodes that are gone."""
        default = LOCAL_DISTANCE if source == target else REMOTE_DISTANCE
        node = self.node_by_id.get(source)
        return default if node is None else node.distances.get(target, default)

    def distances_from(self, node: Node) -> list[int]:
        """The distances from *node* to all nodes, in the order of their ids."""
        row = {node.id: LOCAL_DISTANCE, **node.distances}
        return [row.get(other.id, REMOTE_DISTANCE) for other in self.nodes]

    def total_distance(self, nodes: NodeSet) -> int:
        """Sum of the distances over all ordered pairs of different nodes."""
        return sum(self.distance(a, b) for a in nodes for b in nodes if a != b)

    def cpus_of(self, nodes: NodeSet) -> CpuSet:
        """The online CPUs of *nodes* (unknown ids have none)."""
        return union(self.node_by_id[node].cpus for node in nodes if node in self.node_by_id)

    def nodes_of(self, cpus: CpuSet) -> NodeSet:
        """The nodes that hold at least one of *cpus*."""
        return NodeSet(node.id for node in self.nodes if not node.cpus.isdisjoint(cpus))


def union(sets: Iterable[CpuSet]) -> CpuSet:
    """All CPUs of *sets*."""
    return reduce(CpuSet.__or__, sets, CpuSet())


def in_first_nodes(listed: Mapping[int, CpuSet]) -> dict[int, CpuSet]:
    """The CPUs of each node, by ascending ids, where one that several list counts in the first: the kernel
    lists all CPUs of a node in each part that numa=fake makes of it."""
    counted = CpuSet()
    cpus_of = {}
    for node, cpus in sorted(listed.items()):
        cpus_of[node] = cpus - counted
        counted |= cpus
    return cpus_of


def kinds_of(groups: Iterable[CpuSet]) -> dict[int, str]:
    """The kind of each CPU, of *groups* with CPUs of one kind each, the strongest first; none where all are
    of one."""
    strongest, *others = [group for group in groups if group] or [CpuSet()]
    if not others:
        return {}
    *middle, weakest = others
    kinds = (strongest, union(middle), weakest)
    return {cpu: kind for kind, cpus in zip(CORE_KINDS, kinds, strict=True) for cpu in cpus}

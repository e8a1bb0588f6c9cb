"""The machine as sysfs describes it: NUMA nodes, distances, memory and its kinds, huge pages, CPUs.

What kind of memory a node has is optional: a kernel before 6.1 has no tiers, before 5.2 no initiators,
firmware without an HMAT rates nothing, and only drivers know which memory is a device's. What is there and
garbled is a HostError.

Ids are taken as they come: sparse, with offline CPUs, with nodes that lack CPUs or memory. A kernel without
NUMA counts as one node 0. A CPU that is in several nodes (numa=fake) counts in the first. What decides and is
not there, or cannot be what it says, is a HostError that names the file: a machine that is half understood is
never returned.
"""

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from bayplan.errors import HostError, ParseError
from bayplan.host.kernelfs import (
    AbsentError,
    RefusedError,
    garbage,
    numbered_entries,
    parse_file,
    parse_number,
    read_optional,
)
from bayplan.host.memory_statistics import MEM_TOTAL, read_meminfo
from bayplan.host.topology_files import HYBRID, TopologyTree
from bayplan.model.machine import LOCAL_DISTANCE, Cpu, Machine, Node, Performance, in_first_nodes, kinds_of
from bayplan.model.sentences import shared_cpus
from bayplan.printable import pattern
from bayplan.quantity import KIB
from bayplan.sets import CpuSet, NodeSet, cpus_text

TIERS: Final = "sys/devices/virtual/memory_tiering"
NVIDIA: Final = "proc/driver/nvidia/gpus"

GENERIC_INITIATOR: Final = "generic-initiator"
"""The owner where the firmware says that a device initiates from a node, but no driver says which one."""

_TIER: Final = pattern(r"memory_tier([0-9]{1,5})")
_INITIATOR: Final = pattern(r"node([0-9]{1,5})")
_NO_NODE: Final = "-1"

logger = logging.getLogger(__name__)


class Reach(NamedTuple):
    """From where a node's memory is reached best, and how well."""

    initiators: NodeSet
    performance: Performance


def read_tiers(root: str, owned: NodeSet = NodeSet()) -> Mapping[int, int]:
    """The rank of the tier of each node that is in one, 0 for the fastest.

    The kernel names a tier by its abstract distance, lower for faster memory; only the order means anything.
    A tier of *owned* nodes alone has no rank: it comes and goes with a driver, and the others keep theirs.

    Raises:
        HostError: a list is garbled, or a node is in two tiers.
    """
    ranks: dict[int, int] = {}
    seen = NodeSet()
    rank = 0
    for number in numbered_entries(f"{root}/{TIERS}", _TIER):
        path = f"{root}/{TIERS}/memory_tier{number}/nodelist"
        text = read_optional(path)
        members = NodeSet() if text is None else parse_file(path, NodeSet.parse, text)
        if not members.isdisjoint(seen):
            raise HostError(path, f"node {members & seen} is already in a faster tier")
        seen |= members
        if members - owned:
            ranks.update(dict.fromkeys(members, rank))
            rank += 1
    return ranks


def read_reach(tree: TopologyTree, node_directory: str, cpu_nodes: NodeSet) -> Reach:
    """The best initiators of a node's memory: of all (``access0``), or, where those are devices only, of the
    nodes with CPUs (``access1``). A rating that is garbled is left out of *tree*."""
    best = _reach(tree, f"{node_directory}/access0/initiators")
    if not best.initiators.isdisjoint(cpu_nodes):
        return best
    among_cpus = _reach(tree, f"{node_directory}/access1/initiators")
    return among_cpus if among_cpus.initiators else best


def read_owners(root: str, cpu_nodes: NodeSet) -> Mapping[int, str]:
    """The device that owns the memory of a node, for each node without CPUs that has such an owner.

    NVIDIA's driver names the node of each GPU whose memory is coherent with the CPUs' (POWER9, Grace); the
    owner is the GPU's PCI address. Any other node without CPUs from which a device initiates, says the
    firmware (SRAT generic initiators), has the owner GENERIC_INITIATOR.

    Raises:
        HostError: a file is garbled.
    """
    path = f"{root}/sys/devices/system/node/has_generic_initiator"
    text = read_optional(path)
    initiating = NodeSet() if text is None else parse_file(path, NodeSet.parse, text) - cpu_nodes
    return dict.fromkeys(initiating, GENERIC_INITIATOR) | _nvidia_nodes(f"{root}/{NVIDIA}")


def _reach(tree: TopologyTree, directory: str) -> Reach:
    initiators = NodeSet(numbered_entries(directory, _INITIATOR))
    if not initiators:
        return Reach(initiators, Performance())
    return Reach(
        initiators,
        Performance(
            tree.optional(f"{directory}/read_latency", parse_number, 0),
            tree.optional(f"{directory}/write_latency", parse_number, 0),
            tree.optional(f"{directory}/read_bandwidth", parse_number, 0),
            tree.optional(f"{directory}/write_bandwidth", parse_number, 0),
        ),
    )


def _nvidia_nodes(directory: str) -> dict[int, str]:
    """GPU by node. Where the driver has no memory online it says node -1, or cannot be read."""
    try:
        gpus = sorted(path.name for path in Path(directory).iterdir())
    except OSError:
        return {}
    owners = {}
    for gpu in gpus:
        path = f"{directory}/{gpu}/numa_status"
        try:
            text = read_optional(path)
        except RefusedError as error:
            logger.warning("a GPU does not say which node is its memory", extra={"problem": str(error)})
            continue
        if text is None:
            continue
        found = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("Node:")]
        if len(found) != 1:
            raise garbage(path, text, "one line 'Node: <number>'")
        if found[0] != _NO_NODE:
            owners[parse_file(path, parse_number, found[0])] = gpu
    return owners


UNKNOWN_SOCKET: Final = -1
"""The kernel's own physical_package_id where firmware gives none; here only of offline CPUs, which have no
topology directory."""

L3: Final = 3
_ATTEMPTS: Final = 3
_FOR_CONTAINERS: Final = ("0x0302", "0x0380", "0x1200", "0x0207")
"""The beginnings of PCI classes: 3D controllers (GPUs without a display), other display controllers,
processing accelerators, InfiniBand. 0x0300 is the display of a server's management controller."""
_NETWORK: Final = "0x02"
_CPU: Final = pattern(r"cpu([0-9]{1,5})")
_NODE: Final = pattern(r"node([0-9]{1,5})")
_PCI_ROOT: Final = pattern(r"/devices/(pci[0-9a-f]{4,8}:[0-9a-f]{2})/")
_CACHE_INDEX: Final = pattern(r"index([0-9]{1,5})")
_HUGEPAGES: Final = pattern(r"hugepages-([0-9]{1,15})kB")
_UNKNOWN_ID: Final = "-1"
"""Of a die or cluster where firmware knows none; its list has the CPU alone."""
_OFFLINE: Final = "0"
_PART: Final = 0xFFF0
"""What of MIDR_EL1 names the core (Arm ARM, D24.2.122); the rest is its maker and revision."""


def read_machine(root: Path = Path("/")) -> Machine:
    """The machine below *root*, as of one moment: read again if nodes or CPUs came or went meanwhile.

    Node.cpus has online CPUs only. ``Cpu.core_id``, ``l3_cache_id`` and the like are the lowest *online* CPU
    that shares the core or the cache; a CPU without an L3 cache, and an offline one, has None. An offline CPU
    keeps its node where sysfs links them.

    Raises:
        HostError: a file that decides is missing or garbage, or the machine changed three times while it was
            read.
    """
    for _ in range(_ATTEMPTS):
        tree = TopologyTree(root)
        before = _online(tree)
        try:
            machine = _read_once(tree)
        except HostError:
            if _online(tree) == before:
                raise
            continue
        if _online(tree) == before:
            return machine
    raise HostError(
        tree.system, f"nodes or CPUs came or went during each of {_ATTEMPTS} attempts to read them"
    )


def read_hugepages(node_ids: Iterable[int], root: Path = Path("/")) -> dict[int, Mapping[int, int]]:
    """The huge page pools of *node_ids*: page size -> bytes, by node. They change without an event.

    Raises:
        HostError: a file is garbage.
    """
    base = root / "sys/devices/system/node"
    if not base.exists():
        return dict.fromkeys(node_ids, _hugepages(str(root / "sys/kernel/mm/hugepages")))
    return {node: _hugepages(str(base / f"node{node}/hugepages")) for node in node_ids}


def read_isolated(root: Path = Path("/")) -> CpuSet:
    """The CPUs that the kernel was told to balance no load on (isolcpus), online or not."""
    return _isolated(TopologyTree(root))


def has_weighted_interleave(root: Path = Path("/")) -> bool:
    """Whether the kernel has the NUMA memory policy that interleaves by weight (Linux 6.9)."""
    return (root / "sys/kernel/mm/mempolicy/weighted_interleave").is_dir()


def _isolated(tree: TopologyTree) -> CpuSet:
    return tree.optional(f"{tree.system}/cpu/isolated", CpuSet.parse, CpuSet())


def _online(tree: TopologyTree) -> tuple[str | None, str | None]:
    return read_optional(f"{tree.system}/node/online"), read_optional(f"{tree.system}/cpu/online")


def _read_once(tree: TopologyTree) -> Machine:
    online_cpus = _online_cpus(tree)
    numa = tree.exists(f"{tree.system}/node")
    nodes, remarks = _numa_nodes(tree, online_cpus) if numa else ((_only_node(tree, online_cpus),), ())
    if not any(node.memory_bytes for node in nodes):
        raise HostError(
            f"{tree.system}/node", "found MemTotal 0 kB on every node, expected memory on at least one"
        )
    cpus = _cpus(tree, online_cpus, nodes)
    isolated = _isolated(tree) & online_cpus
    nohz_full = tree.optional(f"{tree.system}/cpu/nohz_full", _cpus_or_null, CpuSet()) & online_cpus
    memory_bytes, remarks = _machine_memory_bytes(tree), (*remarks, *tree.remarks())
    return Machine(nodes, cpus, memory_bytes, isolated, remarks, nohz_full)


def _cpus_or_null(text: str) -> CpuSet:
    """A list of CPUs; the kernel writes ``(null)`` for a mask that it was not started with."""
    return CpuSet() if text.strip() == "(null)" else CpuSet.parse(text)


def _online_cpus(tree: TopologyTree) -> CpuSet:
    path = f"{tree.system}/cpu/online"
    found = tree.optional(path, CpuSet.parse, None)
    if found is not None:
        return found
    present = numbered_entries(f"{tree.system}/cpu", _CPU)
    online = CpuSet(
        cpu
        for cpu in present
        if tree.optional(f"{tree.system}/cpu/cpu{cpu}/online", str.strip, "") != _OFFLINE
    )
    return online or tree.needed(path, CpuSet.parse)


def _online_nodes(tree: TopologyTree) -> NodeSet:
    path = f"{tree.system}/node/online"
    found = tree.optional(path, NodeSet.parse, None)
    if found is None:
        found = NodeSet(numbered_entries(f"{tree.system}/node", _NODE))
    if not found:
        raise garbage(path, "", "at least one node")
    return found


def _machine_memory_bytes(tree: TopologyTree) -> int:
    """MemTotal of the whole machine; 0 where a recorded tree is of sysfs alone."""
    path = f"{tree.root}/proc/meminfo"
    text = read_optional(path)
    return 0 if text is None else read_meminfo(path, MEM_TOTAL, text=text)[MEM_TOTAL]


def _numa_nodes(tree: TopologyTree, online_cpus: CpuSet) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """The nodes, and a remark where some share CPUs."""
    online_nodes = _online_nodes(tree)
    listed = {
        node: _needed_cpus(tree, f"{tree.system}/node/node{node}", "cpulist") & online_cpus
        for node in online_nodes
    }
    cpus_of = in_first_nodes(listed)
    sharing = NodeSet(node for node in online_nodes if listed[node] != cpus_of[node])
    devices, roots = _devices(Path(tree.root) / "sys/bus/pci/devices")
    cpu_nodes = NodeSet(node for node, cpus in cpus_of.items() if cpus)
    owners = read_owners(tree.root, cpu_nodes)
    tiers = read_tiers(tree.root, NodeSet(owners))
    if sharing and not tiers:
        # Without them the memory of nodes that have CPUs counts as ordinary, and those others have some too.
        tiers = {node: 0 for node, cpus in listed.items() if cpus}
    nodes, kernel_nodes = [], _kernel_nodes(tree)
    for node_id in online_nodes:
        directory = f"{tree.system}/node/node{node_id}"
        reach = read_reach(tree, directory, cpu_nodes)
        memory_bytes = read_meminfo(f"{directory}/meminfo", MEM_TOTAL)[MEM_TOTAL]
        nodes.append(
            Node(
                node_id,
                cpus_of[node_id],
                memory_bytes,
                _hugepages(f"{directory}/hugepages"),
                _distances(tree, directory, online_nodes) or _shared_distances(node_id, listed),
                tier=tiers.get(node_id),
                initiators=reach.initiators & online_nodes,
                owner=owners.get(node_id, ""),
                devices=devices[node_id],
                pcie_roots=tuple(sorted(roots.get(node_id, ()))),
                performance=reach.performance,
                is_movable=bool(kernel_nodes) and memory_bytes > 0 and node_id not in kernel_nodes,
            )
        )
    return tuple(nodes), (shared_cpus(sharing),) if sharing else ()


def _kernel_nodes(tree: TopologyTree) -> NodeSet:
    """The nodes with memory that is not in the zone Movable; none if the kernel does not say."""
    found = NodeSet()
    for name in ("has_normal_memory", "has_high_memory"):
        found |= tree.optional(f"{tree.system}/node/{name}", NodeSet.parse, NodeSet())
    return found


def _shared_distances(node: int, listed: Mapping[int, CpuSet]) -> Mapping[int, int]:
    """Where the kernel gives no distances: nodes with the same CPUs are as near as one is to itself."""
    own = listed[node]
    return {
        other: LOCAL_DISTANCE for other, cpus in listed.items() if other != node and not own.isdisjoint(cpus)
    }


def _only_node(tree: TopologyTree, online_cpus: CpuSet) -> Node:
    """The machine of a kernel built without NUMA, as one node."""
    memory_bytes = read_meminfo(f"{tree.root}/proc/meminfo", MEM_TOTAL)[MEM_TOTAL]
    pools = _hugepages(f"{tree.root}/sys/kernel/mm/hugepages")
    return Node(0, online_cpus, memory_bytes, pools, {0: LOCAL_DISTANCE})


def _hugepages(directory: str) -> Mapping[int, int]:
    """Pool bytes by page size, pools of no pages included, without surplus pages. No directory: the kernel
    has no hugetlbfs, or is an older one and the node has no memory."""
    pools = {}
    for size_kib in numbered_entries(directory, _HUGEPAGES):
        pool = f"{directory}/hugepages-{size_kib}kB"
        count = parse_file(f"{pool}/nr_hugepages", parse_number)
        # The kernel counts surplus pages in, and takes them back with their last use: nobody can be promised
        # them, and as long as they are there they are memory that is held outside of containers.
        path = f"{pool}/surplus_hugepages"
        surplus = read_optional(path)
        if surplus is not None:
            count = max(0, count - parse_file(path, parse_number, surplus))
        pools[size_kib * KIB] = count * size_kib * KIB
    return pools


def _distances(tree: TopologyTree, directory: str, online_nodes: NodeSet) -> Mapping[int, int]:
    """Distance by target node. The kernel prints one column per *online* node, ascending, so that columns
    are not node ids. No file: no distances, and Machine falls back on the kernel's defaults."""

    def parse(text: str) -> list[int]:
        columns = text.split()
        if len(columns) != len(online_nodes):
            raise ParseError("distances", text, f"one distance for each online node: {online_nodes}")
        row = [parse_number(column) for column in columns]
        if min(row) < LOCAL_DISTANCE:
            raise ParseError("distances", text, f"no distance below {LOCAL_DISTANCE}")
        return row

    row = tree.optional(f"{directory}/distance", parse, None)
    return {} if row is None else dict(zip(online_nodes, row, strict=True))


def _devices(directory: Path) -> tuple[Counter[int], dict[int, set[str]]]:
    """How many PCI devices that containers are made for are attached to each node, and the roots of all PCI
    devices there. A root that has devices of several nodes is each one's."""
    counts, roots = Counter[int](), dict[int, set[str]]()
    if not directory.is_dir():
        return counts, roots
    for device in map(str, directory.iterdir()):
        node = (read_optional(f"{device}/numa_node") or "").strip()
        if not node.isdecimal():
            continue
        root = _PCI_ROOT.search(os.path.realpath(device))
        if root is not None:
            roots.setdefault(int(node), set()).add(root[1])
        kind = (read_optional(f"{device}/class") or "").strip()
        functions = kind.startswith(_NETWORK) and read_optional(f"{device}/sriov_numvfs")
        if kind.startswith(_FOR_CONTAINERS) or (functions and functions.strip() != "0"):
            counts[int(node)] += 1
    return counts, roots


def _cpus(tree: TopologyTree, online_cpus: CpuSet, nodes: tuple[Node, ...]) -> tuple[Cpu, ...]:
    base = f"{tree.system}/cpu"
    present = CpuSet(numbered_entries(base, _CPU))
    if not online_cpus <= present:
        raise HostError(base, f"no directory for {cpus_text(online_cpus - present)}, online")
    node_of = {cpu: node.id for node in nodes for cpu in node.cpus}
    # A group is read through its first CPU only: with 1024 CPUs there are some 12000 cache files.
    l3_of: dict[int, int | None] = {}
    members: dict[str, dict[int, int | None]] = {"package": {}, "die": {}, "cluster": {}}
    known_cores = any(tree.has_cpus(f"{base}/cpu{cpu}/topology", "core_cpus_list") for cpu in online_cpus)
    cores: dict[int, int] = {}
    for cpu in online_cpus:
        directory = f"{base}/cpu{cpu}"
        if cpu not in l3_of:
            _share(l3_of, cpu, _l3_sharers(tree, f"{directory}/cache", cpu), online_cpus)
        for group, first_of in members.items():
            if cpu not in first_of:
                unknown = tree.optional(f"{directory}/topology/{group}_id", str.strip, "") == _UNKNOWN_ID
                names = f"{group}_cpus_list"
                found = None if unknown else tree.cpus(f"{directory}/topology", names, cpu)
                _share(first_of, cpu, found, online_cpus)
        cores[cpu] = cpu
        # They are not known where the kernel is built for one processor, or for some architectures.
        if known_cores:
            threads = _needed_cpus(tree, f"{directory}/topology", "core_cpus_list", cpu)
            cores[cpu] = min(threads & online_cpus)
    sockets = _sockets(tree, online_cpus, members["package"])
    kinds = _kinds(tree, online_cpus)
    return tuple(
        Cpu(
            cpu,
            cores[cpu],
            sockets[cpu],
            node_of.get(cpu),
            l3_of[cpu],
            cluster_id=members["cluster"][cpu],
            die_id=members["die"][cpu],
            kind=kinds.get(cpu, ""),
        )
        if cpu in online_cpus
        else _offline_cpu(cpu, f"{base}/cpu{cpu}")
        for cpu in present
    )


def _share(first_of: dict[int, int | None], cpu: int, sharers: CpuSet | None, online_cpus: CpuSet) -> None:
    """Note the lowest of the online *sharers* for each of them; None for *cpu* where it is unknown."""
    if sharers is None:
        first_of[cpu] = None
    else:
        online = sharers & online_cpus
        first_of.update(dict.fromkeys(online, min(online)))


def _needed_cpus(tree: TopologyTree, directory: str, name: str, member: int | None = None) -> CpuSet:
    found = tree.cpus(directory, name, member)
    if found is None:
        path = f"{directory}/{name}"
        raise AbsentError(path, "cannot be read: it is not there, nor what older kernels have instead")
    return found


def _offline_cpu(cpu: int, directory: str) -> Cpu:
    linked_nodes = numbered_entries(directory, _NODE)
    node = linked_nodes[0] if linked_nodes else None
    return Cpu(cpu, cpu, UNKNOWN_SOCKET, node, l3_cache_id=None, online=False)


def _sockets(tree: TopologyTree, online_cpus: CpuSet, first_of: Mapping[int, int | None]) -> dict[int, int]:
    """The socket of each CPU: those of one package are one, whatever its id (hwloc's rule). The kernel's ids
    count where every package has one of its own; they are -1 where firmware gives none (POWER, s390), and
    those of s390 are counted in each book anew. Else packages are numbered by their lowest CPUs. Without any
    ids all CPUs are of one socket."""
    paths = {cpu: f"{tree.system}/cpu/cpu{cpu}/topology/physical_package_id" for cpu in online_cpus}
    if not any(tree.exists(path) for path in paths.values()):
        return dict.fromkeys(online_cpus, 0)
    ids = {cpu: tree.needed(path, _parse_package) for cpu, path in paths.items()}
    packages: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for cpu in online_cpus:
        first = first_of[cpu]
        packages[("id", ids[cpu]) if first is None else ("first", first)].append(cpu)
    own = [ids[members[0]] for members in packages.values()]
    given = UNKNOWN_SOCKET not in own and len(set(own)) == len(own)
    return {
        cpu: own[number] if given else number
        for number, members in enumerate(packages.values())
        for cpu in members
    }


def _parse_package(text: str) -> int:
    return UNKNOWN_SOCKET if text.strip() == str(UNKNOWN_SOCKET) else parse_number(text)


def _kinds(tree: TopologyTree, online_cpus: CpuSet) -> Mapping[int, str]:
    """The kind of each CPU's core; none where all are of one. By Intel's performance counters, else by the
    core's part number and how the kernel rates its capacity (arm64), else by that alone. Cores of one part
    differ in their highest frequency."""
    hybrid = [tree.optional(f"{tree.root}/{path}", CpuSet.parse, CpuSet()) & online_cpus for path in HYBRID]
    return kinds_of(hybrid if any(hybrid) else _by_capacity(tree, online_cpus))


def _by_capacity(tree: TopologyTree, online_cpus: CpuSet) -> list[CpuSet]:
    """CPUs of one kind, the strongest first."""
    base = f"{tree.system}/cpu"
    if not tree.exists(f"{base}/cpu{min(online_cpus)}/cpu_capacity"):
        return []
    capacity = {cpu: tree.optional(f"{base}/cpu{cpu}/cpu_capacity", parse_number, 0) for cpu in online_cpus}
    if len(set(capacity.values())) == 1:
        return []
    groups: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for cpu in online_cpus:
        part = tree.optional(f"{base}/cpu{cpu}/regs/identification/midr_el1", _parse_part, None)
        groups[("capacity", capacity[cpu]) if part is None else ("part", part)].append(cpu)
    return [
        CpuSet(group)
        for group in sorted(groups.values(), key=lambda group: -max(capacity[cpu] for cpu in group))
    ]


def _parse_part(text: str) -> int:
    try:
        return int(text, 16) & _PART
    except ValueError as error:
        raise ParseError("MIDR_EL1", text, "a number in hexadecimal") from error


def _l3_sharers(tree: TopologyTree, directory: str, cpu: int) -> CpuSet | None:
    """The CPUs that share an L3 cache with *cpu*; None where there is none or firmware does not say."""
    for index in reversed(numbered_entries(directory, _CACHE_INDEX)):
        path = f"{directory}/index{index}"
        if tree.optional(f"{path}/level", parse_number, 0) != L3:
            continue
        if tree.optional(f"{path}/type", str.strip, "") == "Instruction":
            continue
        sharers = tree.cpus(path, "shared_cpu_list", cpu)
        if sharers is not None:
            return sharers
    return None

"""The machine as sysfs describes it: NUMA nodes, distances, memory, huge pages, CPUs. What kind of memory a
node has, `bayplan.host.memory_tiers` reads.

Ids are taken as they come: sparse, with offline CPUs, with nodes that lack CPUs or memory. A kernel without
NUMA counts as one node 0. What must be there and is not, or cannot be what it says, is a HostError that
names the file: a machine that is half understood is never returned.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from bayplan.errors import HostError
from bayplan.host.kernelfs import (
    garbage,
    numbered_entries,
    parse_file,
    parse_number,
    read_optional,
    read_text,
    refusal,
)
from bayplan.host.meminfo import MEM_TOTAL, read_meminfo
from bayplan.host.memory_tiers import read_owners, read_reach, read_tiers
from bayplan.model.machine import LOCAL_DISTANCE, Cpu, Machine, Node
from bayplan.quantity import KIB
from bayplan.sets import CpuSet, NodeSet

UNKNOWN_SOCKET: Final = -1
"""The kernel's own physical_package_id where firmware gives none; also used for offline CPUs, which
have no topology directory."""

L3: Final = 3
_ATTEMPTS: Final = 3
_FOR_CONTAINERS: Final = ("0x0302", "0x0380", "0x1200", "0x0207")
"""The beginnings of PCI classes: 3D controllers (GPUs without a display), other display controllers,
processing accelerators, InfiniBand. 0x0300 is the display of a server's management controller."""
_NETWORK: Final = "0x02"
_CPU: Final = re.compile(r"cpu([0-9]{1,5})")
_NODE: Final = re.compile(r"node([0-9]{1,5})")
_CACHE_INDEX: Final = re.compile(r"index([0-9]{1,5})")
_HUGEPAGES: Final = re.compile(r"hugepages-([0-9]{1,15})kB")


def read_machine(root: Path = Path("/")) -> Machine:
    """The machine below *root*, as of one moment: read again if nodes or CPUs came or went meanwhile.

    Node.cpus has online CPUs only. ``Cpu.core_id`` and ``l3_cache_id`` are the lowest *online* CPU that
    shares the core or the cache; a CPU without an L3 cache, and an offline one, has None. An offline CPU
    keeps its node where sysfs links them.

    Raises:
        HostError: a file is missing or garbage, or the machine changed three times while it was read.
    """
    base = str(root / "sys/devices/system")
    for _ in range(_ATTEMPTS):
        before = _online(base)
        try:
            machine = _read_once(base, root)
        except HostError:
            if _online(base) == before:
                raise
            continue
        if _online(base) == before:
            return machine
    raise HostError(base, f"nodes or CPUs came or went during each of {_ATTEMPTS} attempts to read them")


def read_hugepages(node_ids: Iterable[int], root: Path = Path("/")) -> dict[int, Mapping[int, int]]:
    """The huge page pools of *node_ids*: page size -> bytes, by node. They change without an event.

    Raises:
        HostError: a file is garbage.
    """
    base = root / "sys/devices/system/node"
    if not _exists(str(base)):
        return dict.fromkeys(node_ids, _hugepages(str(root / "sys/kernel/mm/hugepages")))
    return {node: _hugepages(str(base / f"node{node}/hugepages")) for node in node_ids}


def has_weighted_interleave(root: Path = Path("/")) -> bool:
    """Whether the kernel has the NUMA memory policy that interleaves by weight (Linux 6.9)."""
    return (root / "sys/kernel/mm/mempolicy/weighted_interleave").is_dir()


def _online(base: str) -> tuple[str | None, str | None]:
    return read_optional(f"{base}/node/online"), read_optional(f"{base}/cpu/online")


def _read_once(base: str, root: Path) -> Machine:
    online_cpus = parse_file(f"{base}/cpu/online", CpuSet.parse)
    numa = _exists(f"{base}/node")
    nodes = _numa_nodes(base, root, online_cpus) if numa else (_only_node(root, online_cpus),)
    if not any(node.memory_bytes for node in nodes):
        raise HostError(f"{base}/node", "found MemTotal 0 kB on every node, expected memory on at least one")
    return Machine(nodes, _cpus(base, online_cpus, nodes), _machine_memory_bytes(root))


def _machine_memory_bytes(root: Path) -> int:
    """MemTotal of the whole machine; 0 where a recorded tree is of sysfs alone."""
    path = str(root / "proc/meminfo")
    text = read_optional(path)
    return 0 if text is None else read_meminfo(path, MEM_TOTAL, text=text)[MEM_TOTAL]


def _numa_nodes(base: str, root: Path, online_cpus: CpuSet) -> tuple[Node, ...]:
    path = f"{base}/node/online"
    online_nodes = parse_file(path, NodeSet.parse)
    if not online_nodes:
        raise garbage(path, "", "at least one node")
    cpus_of = _cpus_of_nodes(base, online_nodes, online_cpus)
    devices = _devices(root / "sys/bus/pci/devices")
    cpu_nodes = NodeSet(node for node, cpus in cpus_of.items() if cpus)
    owners = read_owners(str(root), cpu_nodes)
    tiers = read_tiers(str(root), NodeSet(owners))
    nodes = []
    for node_id in online_nodes:
        directory = f"{base}/node/node{node_id}"
        reach = read_reach(directory, cpu_nodes)
        nodes.append(
            Node(
                node_id,
                cpus_of[node_id],
                read_meminfo(f"{directory}/meminfo", MEM_TOTAL)[MEM_TOTAL],
                _hugepages(f"{directory}/hugepages"),
                _distances(f"{directory}/distance", online_nodes),
                tier=tiers.get(node_id),
                initiators=reach.initiators & online_nodes,
                owner=owners.get(node_id, ""),
                devices=devices[node_id],
                performance=reach.performance,
            )
        )
    return tuple(nodes)


def _cpus_of_nodes(base: str, online_nodes: NodeSet, online_cpus: CpuSet) -> dict[int, CpuSet]:
    cpus_of: dict[int, CpuSet] = {}
    seen: dict[int, int] = {}
    for node_id in online_nodes:
        path = f"{base}/node/node{node_id}/cpulist"
        cpus_of[node_id] = parse_file(path, CpuSet.parse) & online_cpus
        for cpu in cpus_of[node_id]:
            if cpu in seen:
                raise HostError(path, f"CPU {cpu} is already in node {seen[cpu]}")
            seen[cpu] = node_id
    return cpus_of


def _only_node(root: Path, online_cpus: CpuSet) -> Node:
    """The machine of a kernel built without NUMA, as one node."""
    memory_bytes = read_meminfo(str(root / "proc/meminfo"), MEM_TOTAL)[MEM_TOTAL]
    pools = _hugepages(str(root / "sys/kernel/mm/hugepages"))
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


def _distances(path: str, online_nodes: NodeSet) -> Mapping[int, int]:
    """Distance by target node. The kernel prints one column per *online* node, ascending, so that columns
    are not node ids. No file: no distances, and Machine falls back on the kernel's defaults."""
    text = read_optional(path)
    if text is None:
        return {}
    columns = text.split()
    if len(columns) != len(online_nodes):
        raise garbage(path, text, f"one distance for each of the online nodes {online_nodes}")
    return {
        node: parse_file(path, parse_number, column)
        for node, column in zip(online_nodes, columns, strict=True)
    }


def _devices(directory: Path) -> Counter[int]:
    """How many PCI devices that containers are made for are attached to each node."""
    found: Counter[int] = Counter()
    if not directory.is_dir():
        return found
    for device in map(str, directory.iterdir()):
        kind = (read_optional(f"{device}/class") or "").strip()
        functions = kind.startswith(_NETWORK) and read_optional(f"{device}/sriov_numvfs")
        if kind.startswith(_FOR_CONTAINERS) or (functions and functions.strip() != "0"):
            node = (read_optional(f"{device}/numa_node") or "").strip()
            if node.isdecimal():
                found[int(node)] += 1
    return found


def _cpus(base: str, online_cpus: CpuSet, nodes: tuple[Node, ...]) -> tuple[Cpu, ...]:
    present = CpuSet(numbered_entries(f"{base}/cpu", _CPU))
    if not online_cpus <= present:
        raise HostError(f"{base}/cpu", f"no directory for the online CPUs {online_cpus - present}")
    node_of = {cpu: node.id for node in nodes for cpu in node.cpus}
    l3_of: dict[int, int] = {}
    cpus = []
    for cpu in present:
        directory = f"{base}/cpu/cpu{cpu}"
        if cpu not in online_cpus:
            cpus.append(_offline_cpu(cpu, directory))
            continue
        if cpu not in l3_of:
            # A cache is read through its first CPU only: with 1024 CPUs there are some 12000 cache files.
            sharers = _l3_sharers(f"{directory}/cache", cpu) & online_cpus
            l3_of.update(dict.fromkeys(sharers, min(sharers, default=cpu)))
        core, socket = _core_and_socket(f"{directory}/topology", cpu, online_cpus, alone=len(present) == 1)
        cpus.append(Cpu(cpu, core, socket, node_of.get(cpu), l3_of.get(cpu)))
    return tuple(cpus)


def _offline_cpu(cpu: int, directory: str) -> Cpu:
    linked_nodes = numbered_entries(directory, _NODE)
    node = linked_nodes[0] if linked_nodes else None
    return Cpu(cpu, cpu, UNKNOWN_SOCKET, node, l3_cache_id=None, online=False)


def _core_and_socket(directory: str, cpu: int, online_cpus: CpuSet, *, alone: bool) -> tuple[int, int]:
    if alone and not _exists(directory):  # a kernel built for one processor has no topology files
        return cpu, UNKNOWN_SOCKET
    path = f"{directory}/core_cpus_list"
    text = read_optional(path)
    if text is None:  # before Linux 5.3
        path = f"{directory}/thread_siblings_list"
        text = read_text(path)
    threads = parse_file(path, CpuSet.parse, text) & online_cpus
    if cpu not in threads:
        raise garbage(path, text, f"a list with CPU {cpu} itself")
    return min(threads), parse_file(f"{directory}/physical_package_id", _parse_package)


def _parse_package(text: str) -> int:
    return UNKNOWN_SOCKET if text.strip() == str(UNKNOWN_SOCKET) else parse_number(text)


def _l3_sharers(directory: str, cpu: int) -> CpuSet:
    """The CPUs that share an L3 cache with *cpu*; empty where there is none or firmware does not say."""
    for index in reversed(numbered_entries(directory, _CACHE_INDEX)):
        path = f"{directory}/index{index}"
        level = read_optional(f"{path}/level")
        if level is None or parse_file(f"{path}/level", parse_number, level) != L3:
            continue
        kind = read_optional(f"{path}/type")
        text = read_optional(f"{path}/shared_cpu_list")
        if text is None or (kind is not None and kind.strip() == "Instruction"):
            continue
        sharers = parse_file(f"{path}/shared_cpu_list", CpuSet.parse, text)
        if cpu not in sharers:
            raise garbage(f"{path}/shared_cpu_list", text, f"a list with CPU {cpu} itself")
        return sharers
    return CpuSet()


def _exists(directory: str) -> bool:
    try:
        Path(directory).stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise refusal(directory, "cannot be examined", error) from error
    return True

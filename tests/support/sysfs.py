"""The sysfs tree of a Machine, printed as the kernel prints it, so that tests can garble it and read it back.

Only what `bayplan.host.sysfs` and `bayplan.host.devices` read, and a little that they must ignore. Offline
CPUs have no topology and no caches, as on a real machine; caches other than the L3 are one L1 each.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from msgspec.structs import asdict

from bayplan.host.memory_tiers import GENERIC_INITIATOR, NVIDIA, TIERS
from bayplan.host.record import listed, unpack
from bayplan.model.machine import Cpu, Machine, Node
from bayplan.sets import CpuSet, NodeSet

SYSTEM = "sys/devices/system"


class SysfsTree:
    """Files by path relative to the root, to be changed freely before they are written.

    A path that ends in ``/`` is an empty directory. ``links`` are symbolic links: path -> where it leads,
    both relative to the root.
    """

    def __init__(self, machine: Machine) -> None:
        self.links: dict[str, str] = {}
        self.files = {
            "proc/meminfo": f"MemTotal: {machine.memory_bytes >> 10:14} kB\nMemFree: 0 kB\n",
        }
        self._sets(f"{SYSTEM}/node", "online", machine.node_ids)
        self._sets(f"{SYSTEM}/cpu", "online", machine.online_cpus)
        for node in machine.nodes:
            self._node(machine, node)
            self._reach(node)
            self._owner(node)
        self._tiers(machine)
        for cpu in machine.cpus:
            self._cpu(machine, cpu)

    @classmethod
    def without_numa(cls, machine: Machine) -> Self:
        """The tree that a kernel built without NUMA shows of a machine with a single node 0."""
        tree = cls(machine)
        tree.remove(f"{SYSTEM}/node/")
        tree._pools("sys/kernel/mm/hugepages", machine.nodes[0])
        return tree

    def remove(self, prefix: str) -> None:
        """Drop the file *prefix*, or everything below it."""
        self.files = {path: text for path, text in self.files.items() if not path.startswith(prefix)}

    def add_device(
        self, directory: str, *, node: int | None = None, numbers: str = "", bus: str = ""
    ) -> None:
        """A device with its *directory* below ``sys/devices``: its NUMA *node* if it says one, its *numbers*
        (``block/8:0``, ``char/226:1``) if it has a device node, and the *bus* that lists it."""
        path = f"sys/devices/{directory}"
        self.files[f"{path}/uevent"] = ""
        if node is not None:
            self.files[f"{path}/numa_node"] = f"{node}\n"
        if numbers:
            self.links[f"sys/dev/{numbers}"] = path
        if bus:
            self.links[f"sys/bus/{bus}/devices/{directory.rpartition('/')[2]}"] = path

    def write(self, root: Path) -> Path:
        """Write the tree below *root*, and return *root*."""
        unpack(
            "".join(
                f"{listed(path)}:{line}\n"
                for path, text in self.files.items()
                for line in (text.splitlines() or [""])
            ),
            root,
        )
        for path, target in self.links.items():
            link = root / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(root / target, link.parent))
        return root

    def _node(self, machine: Machine, node: Node) -> None:
        below = f"{SYSTEM}/node/node{node.id}"
        self._sets(below, "cpulist", node.cpus)
        self.files[f"{below}/meminfo"] = (
            f"Node {node.id} MemTotal: {node.memory_bytes >> 10:14} kB\nNode {node.id} MemFree: 0 kB\n"
        )
        # The kernel's own format: a blank before each column but node 0's, also where node 0 is not online.
        columns = (
            f"{' ' if target else ''}{machine.distance(node.id, target)}" for target in machine.node_ids
        )
        self.files[f"{below}/distance"] = "".join(columns) + "\n"
        self._pools(f"{below}/hugepages", node)

    def _tiers(self, machine: Machine) -> None:
        """The kernel numbers tiers by abstract distance, with gaps; ordinary DRAM is tier 4."""
        for rank in sorted({node.tier for node in machine.nodes if node.tier is not None}):
            members = (node.id for node in machine.nodes if node.tier == rank)
            self._sets(f"{TIERS}/memory_tier{4 * rank + 4}", "nodelist", members)

    def _reach(self, node: Node) -> None:
        below = f"{SYSTEM}/node/node{node.id}/access0/initiators"
        for initiator in node.initiators:
            self.files[f"{below}/node{initiator}/"] = ""
        rated = asdict(node.performance)
        if any(rated.values()):
            for name, value in rated.items():
                self.files[f"{below}/{name.removesuffix('_ns').removesuffix('_mib_s')}"] = f"{value}\n"

    def _owner(self, node: Node) -> None:
        if node.owner == GENERIC_INITIATOR:
            path = f"{SYSTEM}/node/has_generic_initiator"
            others = NodeSet.parse(self.files.get(path, ""))
            self.files[path] = f"{others | NodeSet([node.id])}\n"
        elif node.owner:
            self.files[f"{NVIDIA}/{node.owner}/numa_status"] = (
                f"Node:      {node.id}\nStatus:    online\nAddress:   42000000\nSize:      17c0000000\n"
            )

    def _pools(self, below: str, node: Node) -> None:
        for page_size_bytes, pool_bytes in node.hugepages_bytes.items():
            path = f"{below}/hugepages-{page_size_bytes >> 10}kB/nr_hugepages"
            self.files[path] = f"{pool_bytes // page_size_bytes}\n"

    def _cpu(self, machine: Machine, cpu: Cpu) -> None:
        below = f"{SYSTEM}/cpu/cpu{cpu.id}"
        if cpu.node_id is not None:
            self.files[f"{below}/node{cpu.node_id}/"] = ""
        self.files[f"{below}/online"] = f"{int(cpu.online)}\n"
        if not cpu.online:
            return
        threads = (other.id for other in machine.cpus if other.online and other.core_id == cpu.core_id)
        self._sets(f"{below}/topology", "core_cpus_list", threads)
        self.files[f"{below}/topology/physical_package_id"] = f"{cpu.socket_id}\n"
        self._cache(f"{below}/cache/index0", 1, "Data", [cpu.id])
        if cpu.l3_cache_id is not None:
            sharers = (other.id for other in machine.cpus if other.l3_cache_id == cpu.l3_cache_id)
            self._cache(f"{below}/cache/index3", 3, "Unified", sharers)

    def _cache(self, below: str, level: int, kind: str, sharers: Iterable[int]) -> None:
        self.files[f"{below}/level"] = f"{level}\n"
        self.files[f"{below}/type"] = f"{kind}\n"
        self._sets(below, "shared_cpu_list", sharers)

    def _sets(self, below: str, name: str, ids: Iterable[int]) -> None:
        self.files[f"{below}/{name}"] = f"{CpuSet(ids)}\n"

"""The machine that a scenario wants, as a value, and what QEMU and the kernel must be told to get it."""

import enum
from dataclasses import dataclass, field
from functools import reduce
from math import gcd
from pathlib import Path as FilePath

from testbed.errors import TestBedError


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One NUMA node: its CPUs (0: none), its memory in MiB (0: none) and the huge pages set aside on it.

    Ids are always dense: the kernel numbers the nodes of the firmware's tables as it meets them, and never
    meets one with neither CPUs nor memory.
    """

    cpus: int = 2
    memory_mib: int = 1024
    hugepages_2mi: int = 0
    hugepages_1gi: int = 0


@dataclass(frozen=True, slots=True)
class Path:
    """What the machine's HMAT table says about one CPU node's way to one memory node."""

    initiator: int
    target: int
    latency_ns: int
    bandwidth_mib_s: int


class PciKind(enum.Enum):
    """A disk without contents, or a network card without a network; both are virtio devices."""

    DISK = "disk"
    NIC = "nic"


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A device behind a PCI bridge of its own on a NUMA node. The guest knows a disk by its `name`, which
    must begin with BARE: nothing is mounted from there.
    """

    kind: PciKind
    node: int
    name: str


BARE = "bare-"
DIMM_SLOTS = 2


@dataclass(frozen=True, slots=True)
class Topology:
    """A machine. Distances are a full matrix (row: from, column: to), 10 on the diagonal; None: 10 and 20.

    A node has whole sockets, `sockets_per_node`, or a socket has several nodes, `nodes_per_socket`. The last
    `removable_cpus` of the last node, whole sockets, are devices of their own (see `removable`), for
    Guest.monitor's device_del and device_add, and `spare_memory_mib` is room for more memory. With `network`
    there is a card, eth0, behind which 10.0.2.2 is this machine's loopback.
    """

    name: str
    nodes: tuple[NumaNode, ...]
    threads_per_core: int = 1
    sockets_per_node: int = 1
    nodes_per_socket: int = 1
    removable_cpus: int = 0
    spare_memory_mib: int = 0
    distances: tuple[tuple[int, ...], ...] | None = None
    hmat: tuple[Path, ...] = ()
    kernel_args: tuple[str, ...] = field(default=())
    devices: tuple[PciDevice, ...] = ()
    network: bool = False

    def __post_init__(self) -> None:
        n = len(self.nodes)
        if self.distances is not None and any(len(row) != n for row in (self.distances, *self.distances)):
            raise TestBedError(f"topology {self.name}: distances must be {n} rows of {n}")
        if any(not node.cpus and not node.memory_mib for node in self.nodes):
            raise TestBedError(
                f"topology {self.name}: a node with neither CPUs nor memory does not exist in a guest"
            )
        for device in self.devices:
            if device.kind is PciKind.DISK and not device.name.startswith(BARE):
                raise TestBedError(f"topology {self.name}: the disk {device.name} must be named {BARE}...")
        if not self.nodes or not self.nodes[0].memory_mib:
            raise TestBedError(f"topology {self.name}: the first node needs memory, the kernel starts there")

    @property
    def cpus(self) -> int:
        return sum(node.cpus for node in self.nodes)

    @property
    def memory_mib(self) -> int:
        return sum(node.memory_mib for node in self.nodes)

    def cpus_of(self, node: int) -> range:
        """The CPU ids of a node: numbered node after node."""
        first = sum(earlier.cpus for earlier in self.nodes[:node])
        return range(first, first + self.nodes[node].cpus)

    def distance(self, source: int, target: int) -> int:
        if self.distances is not None:
            return self.distances[source][target]
        return 10 if source == target else 20

    def qemu_args(self, memory: FilePath, *, restored: bool) -> list[str]:
        """The machine. Its memory is in files of a directory, one for each node; a restored machine starts
        with what is there, and leaves it as it is.
        """
        args = ["-smp", self._smp(), "-m", self._memory()]
        sharing = "share=off,readonly=on,rom=off" if restored else "share=on"
        nearest_cpu_node = next(i for i, node in enumerate(self.nodes) if node.cpus)
        for i, node in enumerate(self.nodes):
            words = [f"node,nodeid={i}"]
            if node.memory_mib:
                file = f"memory-backend-file,id=m{i},size={node.memory_mib}M,mem-path={memory}/node{i}"
                args += ["-object", f"{file},{sharing}"]
                words.append(f"memdev=m{i}")
            if node.cpus:
                span = self.cpus_of(i)
                last = self._most_cpus() - 1 if span[-1] == self.cpus - 1 else span[-1]
                words.append(f"cpus={span[0]}-{last}")
            if self.hmat:
                words.append(f"initiator={i if node.cpus else self._best_initiator(i, nearest_cpu_node)}")
            args += ["-numa", ",".join(words)]
        if self.distances is not None:
            for i, row in enumerate(self.distances):
                for j, value in enumerate(row):
                    if i != j:
                        args += ["-numa", f"dist,src={i},dst={j},val={value}"]
        for cpu in range(self.cpus - self.removable_cpus, self.cpus):
            args += ["-device", ",".join(f"{key}={value}" for key, value in self.removable(cpu).items())]
        return [*args, *self._hmat_args(), *self._device_args()]

    def removable(self, cpu: int) -> dict[str, str | int]:
        """A removable CPU as the arguments of device_add."""
        socket, rest = divmod(cpu, self._cpus_per_socket())
        core, thread = divmod(rest, self.threads_per_core)
        place = {"socket-id": socket, "die-id": 0, "core-id": core, "thread-id": thread}
        return {"driver": "max-x86_64-cpu", "id": f"cpu{cpu}", **place}

    def machine_options(self) -> str:
        return "q35,hmat=on" if self.hmat else "q35"

    def kernel_words(self) -> list[str]:
        words = []
        for size, counts in (
            ("2M", [node.hugepages_2mi for node in self.nodes]),
            ("1G", [node.hugepages_1gi for node in self.nodes]),
        ):
            if any(counts):
                per_node = ",".join(f"{i}:{count}" for i, count in enumerate(counts) if count)
                words += [f"hugepagesz={size}", f"hugepages={per_node}"]
        return [*words, *self.kernel_args]

    def _memory(self) -> str:
        most = self.memory_mib + self.spare_memory_mib
        spare = f",slots={DIMM_SLOTS},maxmem={most}M" if self.spare_memory_mib else ""
        return f"{self.memory_mib}M{spare}"

    def _cpus_per_socket(self) -> int:
        counts = [node.cpus for node in self.nodes if node.cpus]
        if not counts:
            raise TestBedError(f"topology {self.name}: no node has CPUs")
        per_socket, rest = divmod(reduce(gcd, counts) * self.nodes_per_socket, self.sockets_per_node)
        uneven = per_socket and (self.cpus % per_socket or per_socket % self.threads_per_core)
        if rest or uneven or not per_socket or self.removable_cpus % per_socket:
            raise TestBedError(
                f"topology {self.name}: {counts} CPUs per node, {self.removable_cpus} of them removable, do"
                f" not divide into {self.sockets_per_node} sockets for {self.nodes_per_socket} nodes, of"
                f" {self.threads_per_core}-thread cores"
            )
        return per_socket

    def _smp(self) -> str:
        per_socket = self._cpus_per_socket()
        most = self._most_cpus()
        cores = per_socket // self.threads_per_core
        parts = f"sockets={most // per_socket},cores={cores},threads={self.threads_per_core}"
        return f"{self.cpus - self.removable_cpus},maxcpus={most},{parts}"

    def _most_cpus(self) -> int:
        """QEMU 10 emulates only so many CPUs in its life: one that was removed and is added counts again."""
        return self.cpus + self.removable_cpus

    def _best_initiator(self, target: int, fallback: int) -> int:
        paths = [path for path in self.hmat if path.target == target]
        return min(paths, key=lambda path: path.latency_ns).initiator if paths else fallback

    def _device_args(self) -> list[str]:
        """One expander bridge per node with devices: its ACPI _PXM tells the kernel the node of all below."""
        args = []
        if self.network:
            args += [
                "-netdev",
                "user,id=outside",
                "-device",
                "virtio-net-pci,netdev=outside,bus=pcie.0,romfile=",
            ]
        for place, node in enumerate(sorted({device.node for device in self.devices}), 1):
            bridge = f"pxb-pcie,id=bridge{node},bus=pcie.0,numa_node={node},bus_nr={32 * place}"
            args += ["-device", bridge]
        for number, device in enumerate(self.devices, 1):
            port = f"pcie-root-port,id=port{number},bus=bridge{device.node},chassis={number}"
            args += ["-device", f"{port},addr={number:#x}"]
            if device.kind is PciKind.DISK:
                args += ["-blockdev", f"null-co,node-name=image{number},size=16777216,read-zeroes=on"]
                what = f"virtio-blk-pci,drive=image{number},serial={device.name}"
            else:
                args += ["-netdev", f"hubport,id=net{number},hubid={number}"]
                what = f"virtio-net-pci,netdev=net{number},romfile="
            args += ["-device", f"{what},bus=port{number}"]
        return args

    def _hmat_args(self) -> list[str]:
        args = []
        for path in self.hmat:
            where = f"hmat-lb,initiator={path.initiator},target={path.target},hierarchy=memory"
            args += ["-numa", f"{where},data-type=access-latency,latency={path.latency_ns}"]
            args += ["-numa", f"{where},data-type=access-bandwidth,bandwidth={path.bandwidth_mib_s}M"]
        return args


# Of no virtual machine: `namespaces.py`.
THIS_MACHINE = Topology("this-machine", (NumaNode(),))
TWO_NODES = Topology("two-nodes", (NumaNode(2, 1024), NumaNode(2, 1024)))
CLUSTER_NODE = Topology("cluster-node", TWO_NODES.nodes, network=True)
FOUR_NODES = Topology(
    "four-nodes",
    (NumaNode(2, 1024, hugepages_2mi=32),) * 4,
    threads_per_core=2,
    distances=((10, 12, 20, 22), (12, 10, 22, 24), (20, 22, 10, 12), (22, 24, 12, 10)),
)
FAR_MEMORY = Topology(
    "far-memory",
    (NumaNode(4, 1024), NumaNode(4, 1024), NumaNode(0, 512)),
    threads_per_core=2,
    distances=((10, 21, 17), (21, 10, 28), (17, 28, 10)),
)
NO_MEMORY = Topology("no-memory", (NumaNode(2, 1024), NumaNode(2, 0), NumaNode(2, 1024)))
# Node 2 is rated as CXL memory is: the kernel puts it into a slower tier.
TIERED = Topology(
    "tiered",
    (NumaNode(2, 1024), NumaNode(2, 1024), NumaNode(0, 1024)),
    threads_per_core=2,
    distances=((10, 21, 17), (21, 10, 28), (17, 28, 10)),
    hmat=(
        *(Path(here, here, 90, 120_000) for here in (0, 1)),
        *(Path(here, 1 - here, 140, 60_000) for here in (0, 1)),
        *(Path(here, 2, 250 + 50 * here, 30_000) for here in (0, 1)),
    ),
)
# Two sockets of two nodes each, as with sub-NUMA clustering.
SPLIT_SOCKETS = Topology(
    "split-sockets",
    (NumaNode(2, 512),) * 4,
    nodes_per_socket=2,
    distances=((10, 12, 20, 20), (12, 10, 20, 20), (20, 20, 10, 12), (20, 20, 12, 10)),
)
# All sizes differ, and the last node has no CPUs; nothing says that its memory is of another kind.
UNEQUAL = Topology(
    "unequal",
    (NumaNode(2, 768), NumaNode(4, 384), NumaNode(2, 512), NumaNode(0, 640)),
    distances=((10, 21, 21, 17), (21, 10, 21, 28), (21, 21, 10, 28), (17, 28, 28, 10)),
)
# A CPU on each but the last: what runs where is the scheduler's.
SIX_NODES = Topology(
    "six-nodes",
    (*(NumaNode(1, size) for size in (640, 384, 512, 448, 576)), NumaNode(0, 512)),
)
HOT_PLUG = Topology(
    "hot-plug",
    (NumaNode(2, 1024), NumaNode(4, 1024)),
    removable_cpus=2,
    spare_memory_mib=512,
    kernel_args=("memhp_default_state=online",),
)
# Node 1 has only the memory that is plugged in.
DIMM_NODE = Topology("dimm-node", (NumaNode(2, 1024), NumaNode(2, 0)), spare_memory_mib=512)
# The same, where the kernel has none of it for itself.
MOVABLE_NODE = Topology(
    "movable-node",
    (NumaNode(2, 1024), NumaNode(2, 0)),
    spare_memory_mib=512,
    kernel_args=("memhp_default_state=online_movable",),
)
WITH_DEVICES = Topology(
    "with-devices",
    (NumaNode(2, 512),) * 4,
    devices=(
        PciDevice(PciKind.DISK, 2, "bare-on-2"),
        PciDevice(PciKind.DISK, 3, "bare-on-3"),
        PciDevice(PciKind.NIC, 1, "nic-on-1"),
    ),
)

"""What the kernel really does with a container: read from its process and its cgroup, nowhere else."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from testbed.errors import TestBedError
from testbed.guest import Guest

UNLIMITED = None
CGROUP_ROOT = "/sys/fs/cgroup"


def parse_ids(text: str) -> frozenset[int]:
    """The ids in the kernel's list format: 0-3,8."""
    ids: set[int] = set()
    for span in filter(None, text.strip().split(",")):
        first, _, last = span.partition("-")
        ids.update(range(int(first), int(last or first) + 1))
    return frozenset(ids)


class Placement(NamedTuple):
    """What a decision is about, as the kernel has it."""

    mems: frozenset[int]
    cpus: frozenset[int]
    oom_score_adj: int
    memory_max_bytes: int | None
    oom_group: bool


@dataclass(frozen=True, slots=True)
class ContainerView:
    """One container as the kernel has it. Sizes are bytes, None means that there is no limit."""

    pid: int
    mems_allowed: frozenset[int]
    cpus_allowed: frozenset[int]
    oom_score_adj: int
    cgroup: str
    files: Mapping[str, str]
    numa_stat: Mapping[str, Mapping[int, int]]

    @property
    def placement(self) -> "Placement":
        return Placement(
            self.mems_allowed, self.cpus_allowed, self.oom_score_adj, self.memory_max_bytes, self.oom_group
        )

    @property
    def memory_max_bytes(self) -> int | None:
        return self.limit("memory.max")

    @property
    def oom_group(self) -> bool:
        return self.files["memory.oom.group"].strip() == "1"

    @property
    def cpuset_mems_effective(self) -> frozenset[int]:
        return parse_ids(self.files["cpuset.mems.effective"])

    def limit(self, name: str) -> int | None:
        """A limit file of the cgroup: memory.high, memory.min, hugetlb.2MB.max, pids.max ..."""
        if name not in self.files:
            raise TestBedError(f"{self.cgroup} has no readable {name}")
        text = self.files[name].strip()
        return UNLIMITED if text == "max" else int(text)

    def anon_bytes(self) -> dict[int, int]:
        """Anonymous memory per NUMA node, nodes without any left out."""
        return {node: amount for node, amount in self.numa_stat.get("anon", {}).items() if amount}


class Kernel:
    """The node's kernel."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest

    def view(self, pid: int) -> ContainerView:
        """The kernel's view of the container whose first process is `pid`."""
        process = self.guest.read_files(
            *(f"/proc/{pid}/{name}" for name in ("status", "cgroup", "oom_score_adj"))
        )
        if len(process) < 3:
            raise TestBedError(f"process {pid} is gone")
        status = dict(
            line.split(":", 1) for line in process[f"/proc/{pid}/status"].splitlines() if ":" in line
        )
        cgroup = process[f"/proc/{pid}/cgroup"].strip().removeprefix("0::")
        files = self.cgroup_files(cgroup)
        return ContainerView(
            pid=pid,
            mems_allowed=parse_ids(status["Mems_allowed_list"]),
            cpus_allowed=parse_ids(status["Cpus_allowed_list"]),
            oom_score_adj=int(process[f"/proc/{pid}/oom_score_adj"]),
            cgroup=cgroup,
            files=files,
            numa_stat=parse_numa_stat(files.get("memory.numa_stat", "")),
        )

    def cgroup_files(self, cgroup: str) -> dict[str, str]:
        """File name -> contents of a cgroup's readable files (cpu, memory, cpuset, hugetlb, pids).

        cpu.* comes first: cpu.stat makes the kernel add up what each CPU counted, for all controllers
        (cgroup_rstat_flush). memory.numa_stat leaves that to every 2 s where it takes little to be new, and
        was once 100 MiB behind.
        """
        base = CGROUP_ROOT + cgroup
        found = self.guest.read_files(
            *(f"{base}/{kind}.*" for kind in ("cpu", "memory", "cpuset", "hugetlb", "pids", "cgroup")),
            pattern=True,
        )
        return {path.rsplit("/", 1)[1]: content for path, content in found.items()}

    def nodes_online(self) -> frozenset[int]:
        return parse_ids(self.guest.read("/sys/devices/system/node/online"))

    def distances(self) -> dict[int, list[int]]:
        found = self.guest.read_files("/sys/devices/system/node/node*/distance", pattern=True)
        return {_node_of(path): [int(word) for word in text.split()] for path, text in found.items()}

    def cpus_of_nodes(self) -> dict[int, frozenset[int]]:
        found = self.guest.read_files("/sys/devices/system/node/node*/cpulist", pattern=True)
        return {_node_of(path): parse_ids(text) for path, text in found.items()}

    def packages(self) -> dict[int, frozenset[int]]:
        """The CPUs of each socket."""
        found = self.guest.read_files("/sys/devices/system/cpu/cpu*/topology/package_cpus_list", pattern=True)
        return dict(enumerate(sorted({parse_ids(text) for text in found.values()}, key=min)))

    def memory_of_nodes(self) -> dict[int, int]:
        """MemTotal in bytes per NUMA node."""
        found = self.guest.read_files("/sys/devices/system/node/node*/meminfo", pattern=True)
        return {_node_of(path): _kib(text, "MemTotal") for path, text in found.items()}

    def hugepages_of_nodes(self, kib: int = 2048) -> dict[int, int]:
        """Huge pages of a size per NUMA node."""
        found = self.guest.read_files(
            f"/sys/devices/system/node/node*/hugepages/hugepages-{kib}kB/nr_hugepages", pattern=True
        )
        return {_node_of(path): int(text) for path, text in found.items()}

    def memory_total_bytes(self) -> int:
        return _kib(self.guest.read("/proc/meminfo"), "MemTotal")


def parse_numa_stat(text: str) -> dict[str, dict[int, int]]:
    """Lines like `anon N0=4096 N1=0`, as kind -> node -> bytes."""
    return {
        kind: {int(node): int(amount) for node, amount in re.findall(r"N(\d+)=(\d+)", rest)}
        for kind, _, rest in (line.partition(" ") for line in text.splitlines())
    }


def _node_of(path: str) -> int:
    found = re.search(r"/node(\d+)/", path)
    assert found is not None
    return int(found[1])


def _kib(text: str, name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", text)
    if found is None:
        raise TestBedError(f"no {name} in {text[:200]!r}")
    return int(found[1]) * 1024

"""What containers and nodes are doing now: memory by node, page faults, stalls (PSI), allocations that
missed.

Counters are since the start of the cgroup or the machine; whoever shows rates asks twice. Nothing is
remembered but where the files are. Calls block for some small files of each container.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from bayplan.host.hierarchy import MEMORY, Hierarchy
from bayplan.host.kernelfs import AbsentError, RefusedError, read_text
from bayplan.host.live_memory import ContainerMemory
from bayplan.host.numa_stat import HeldPages

_FAULTS: Final = re.compile(r"^(?:total_)?(pgfault|pgmajfault) ([0-9]{1,20})$", re.MULTILINE)
_SOME: Final = re.compile(r"^some avg10=([0-9]{1,3}\.[0-9]{1,2}) ", re.MULTILINE)
_NUMA: Final = re.compile(r"^(numa_miss|numa_foreign|other_node) ([0-9]{1,20})$", re.MULTILINE)
_NODE: Final = "sys/devices/system/node/node{}/numastat"


class ContainerActivity(Struct, frozen=True):
    """``held`` by node; page faults since its start, the major ones waited for a disk; the share of the last
    ten seconds in which some of its tasks waited for memory or for a CPU (percent), None where the kernel
    does not say."""

    held: HeldPages = HeldPages()
    page_faults: int = 0
    major_page_faults: int = 0
    memory_stall_percent: float | None = None
    cpu_stall_percent: float | None = None


class NodeAllocations(Struct, frozen=True):
    """Pages since the machine's start: ``missed`` were taken here although another node was preferred,
    ``foreign`` elsewhere although this one was, ``remote`` here by CPUs of other nodes."""

    missed: int = 0
    foreign: int = 0
    remote: int = 0


class ActivityReader:
    """Reads what containers do; remembers where their files are, as far as it was asked for them again."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._hierarchy = hierarchy
        self._memory = ContainerMemory(hierarchy)

    def keep(self, container_ids: Mapping[str, object]) -> None:
        """Forget all but those."""
        self._memory.keep(container_ids)

    def read(
        self, container_id: str, cgroups_path: str, cgroup_parent: str, cgroups: Mapping[str, str]
    ) -> ContainerActivity | None:
        """What one does; None where it has no cgroup (yet, or any more). The arguments are those of
        `ContainerMemory.read`.

        Raises:
            HostError: a file is garbled.
        """
        try:
            held = self._memory.read(container_id, cgroups_path, cgroup_parent, cgroups)
        except AbsentError:
            return None
        directory = f"{self._hierarchy.mounts[MEMORY]}{self._memory.cgroups[container_id]}"
        # The lines of v1 with total_ come last and count the cgroups below, as those of v2 do.
        faults = {
            name: int(number) for name, number in _FAULTS.findall(_optional(f"{directory}/memory.stat"))
        }
        return ContainerActivity(
            held,
            faults.get("pgfault", 0),
            faults.get("pgmajfault", 0),
            _stall(f"{directory}/memory.pressure"),
            _stall(f"{directory}/cpu.pressure"),
        )


def read_allocations(nodes: Mapping[int, object], root: Path = Path("/")) -> dict[int, NodeAllocations]:
    """The counters of *nodes*; those of a node that is gone are 0."""
    found = {}
    for node in nodes:
        row = dict(_NUMA.findall(_optional(str(root / _NODE.format(node)))))
        names = ("numa_miss", "numa_foreign", "other_node")
        found[node] = NodeAllocations(*(int(row.get(name, 0)) for name in names))
    return found


def _stall(path: str) -> float | None:
    found = _SOME.search(_optional(path))
    return None if found is None else float(found[1])


def _optional(path: str) -> str:
    """A file that not every kernel has, or that it may refuse to read (PSI switched off is EOPNOTSUPP)."""
    try:
        return read_text(path)
    except (AbsentError, RefusedError):
        return ""

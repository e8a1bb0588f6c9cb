"""The files in which Linux says what a machine is: since which version there is each, and whether it decides.

What *decides* (which memory and CPUs there are and belong together) must be there and make sense: anything
else is a HostError that names the file. What only *orders* (which of several right choices is better) is left
out where it is odd, and the machine has a remark about it. Kernels have odd ones: shared lists of caches that
are empty, ratings of firmware that are no numbers. A NUL ends a text, as it does for programs in C; some
kernels print one. Every file that a machine is read from is in `FILES`, and so in recordings.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct

from bayplan.errors import HostError, ParseError
from bayplan.host.kernelfs import (
    garbage,
    parse_file,
    read_optional,
    refusal,
)
from bayplan.model.sentences import left_out
from bayplan.sets import CpuSet

T = TypeVar("T")
D = TypeVar("D")

SYSTEM: Final = "sys/devices/system"
_NODE: Final = f"{SYSTEM}/node/node[0-9]*"
_CPU: Final = f"{SYSTEM}/cpu/cpu[0-9]*"
_PCI: Final = "sys/bus/pci/devices/*"
HYBRID: Final = ("sys/devices/cpu_core/cpus", "sys/devices/cpu_atom/cpus", "sys/devices/cpu_lowpower/cpus")
"""Of the performance counters of Intel's kinds of cores, the strongest first."""


class TopologyFile(Struct, frozen=True):
    """One kind of file: where it is, the first Linux that has it, whether it decides, and what holds where it
    is absent."""

    pattern: str
    since: str
    decides: bool
    absent: str


def _decides(pattern: str, since: str, absent: str) -> TopologyFile:
    return TopologyFile(pattern, since, decides=True, absent=absent)


def _orders(pattern: str, since: str, absent: str) -> TopologyFile:
    return TopologyFile(pattern, since, decides=False, absent=absent)


_NOTHING: Final = "nothing is known"
_ERROR: Final = "an error"
FILES: Final = (
    _decides("proc/meminfo", "2.6", "the sum over the nodes; an error without NUMA"),
    _orders("proc/sys/kernel/osrelease", "2.6", _NOTHING),
    _decides(f"{SYSTEM}/node/online", "2.6.24", "the nodes that have a directory"),
    _orders(f"{SYSTEM}/node/possible", "2.6.24", _NOTHING),
    _decides(f"{SYSTEM}/node/has_*", "2.6.24", "no generic initiator (5.8)"),
    _decides(f"{_NODE}/cpulist", "2.6.26", "cpumap"),
    _decides(f"{_NODE}/cpumap", "2.6", _ERROR),
    _orders(f"{_NODE}/distance", "2.6.14", "10 and 20"),
    _decides(f"{_NODE}/meminfo", "2.6", _ERROR),
    _decides(f"{_NODE}/hugepages/hugepages-*kB/nr_hugepages", "2.6.32", "no pools"),
    _decides(f"{_NODE}/hugepages/hugepages-*kB/surplus_hugepages", "2.6.32", "none"),
    _decides("sys/kernel/mm/hugepages/hugepages-*kB/nr_hugepages", "2.6.27", "no pools"),
    _decides("sys/kernel/mm/hugepages/hugepages-*kB/surplus_hugepages", "2.6.27", "none"),
    _orders(f"{_NODE}/access[01]/initiators/node[0-9]*", "5.2", _NOTHING),
    _orders(f"{_NODE}/access[01]/initiators/*_bandwidth", "5.2", _NOTHING),
    _orders(f"{_NODE}/access[01]/initiators/*_latency", "5.2", _NOTHING),
    _decides(f"{SYSTEM}/cpu/online", "2.6.26", "the CPUs that have a directory and are not offline"),
    _orders(f"{SYSTEM}/cpu/possible", "2.6.26", _NOTHING),
    _orders(f"{SYSTEM}/cpu/present", "2.6.26", _NOTHING),
    _decides(f"{SYSTEM}/cpu/isolated", "4.2", "no CPU is isolated"),
    _orders(f"{SYSTEM}/cpu/nohz_full", "4.2", "no CPU is without a tick"),
    _decides(f"{_CPU}/online", "2.6", "it is online"),
    _decides(f"{_CPU}/node[0-9]*", "2.6.33", "an offline CPU has no node"),
    _decides(f"{_CPU}/topology/core_cpus_list", "5.3", "thread_siblings_list"),
    _decides(f"{_CPU}/topology/thread_siblings_list", "2.6.26", "thread_siblings"),
    _decides(f"{_CPU}/topology/thread_siblings", "2.6.16", "an error; each CPU is a core if all lack it"),
    _orders(f"{_CPU}/topology/package_cpus_list", "5.3", "core_siblings_list"),
    _orders(f"{_CPU}/topology/core_siblings_list", "2.6.26", "core_siblings"),
    _orders(f"{_CPU}/topology/core_siblings", "2.6.16", "CPUs of one physical_package_id"),
    _decides(f"{_CPU}/topology/physical_package_id", "2.6.16", _ERROR),
    _orders(f"{_CPU}/topology/core_id", "2.6.16", _NOTHING),
    _orders(f"{_CPU}/topology/die_id", "5.2", _NOTHING),
    _orders(f"{_CPU}/topology/die_cpus_list", "5.3", _NOTHING),
    _orders(f"{_CPU}/topology/cluster_id", "5.16", _NOTHING),
    _orders(f"{_CPU}/topology/cluster_cpus_list", "5.16", _NOTHING),
    _orders(f"{_CPU}/cache/index[0-9]*/level", "2.6", _NOTHING),
    _orders(f"{_CPU}/cache/index[0-9]*/type", "2.6", _NOTHING),
    _orders(f"{_CPU}/cache/index[0-9]*/size", "2.6", _NOTHING),
    _orders(f"{_CPU}/cache/index[0-9]*/shared_cpu_list", "2.6.26", "shared_cpu_map"),
    _orders(f"{_CPU}/cache/index[0-9]*/shared_cpu_map", "2.6", _NOTHING),
    _orders(f"{_CPU}/cpu_capacity", "4.9", "all CPUs are of one kind"),
    _orders(f"{_CPU}/regs/identification/midr_el1", "4.8", "kinds by cpu_capacity"),
    _orders(HYBRID[0], "5.13", "kinds by midr_el1 or cpu_capacity"),
    _orders(HYBRID[1], "5.13", _NOTHING),
    _orders(HYBRID[2], "6.12", _NOTHING),
    _decides("sys/devices/virtual/memory_tiering/memory_tier[0-9]*/nodelist", "6.1", "tiers are unknown"),
    _orders(f"{_PCI}/class", "2.6", _NOTHING),
    _orders(f"{_PCI}/numa_node", "2.6.22", _NOTHING),
    _orders(f"{_PCI}/sriov_numvfs", "3.8", _NOTHING),
    _decides("proc/driver/nvidia/gpus/*/numa_status", "", "no memory is that of a GPU of NVIDIA"),
)

_OLDER: Final = {
    "cpulist": ("cpumap",),
    "core_cpus_list": ("thread_siblings_list", "thread_siblings"),
    "package_cpus_list": ("core_siblings_list", "core_siblings"),
    "shared_cpu_list": ("shared_cpu_map",),
}
"""What older kernels have instead."""
_MASKS: Final = ("cpumap", "thread_siblings", "core_siblings", "shared_cpu_map")
_LISTS: Final = {
    older: (newer, *names[: names.index(older)])
    for newer, names in _OLDER.items()
    for older in names
    if older in _MASKS
}
"""By mask, the lists that say the same."""


def recorded_patterns(root: Path) -> tuple[str, ...]:
    """The patterns of all files that a machine below *root* is read from. The pools of the whole machine
    count only where the kernel has no NUMA."""
    numa = (root / SYSTEM / "node").exists()
    return tuple(one.pattern for one in FILES if not (numa and one.pattern.startswith("sys/kernel/mm")))


def is_superseded(path: Path) -> bool:
    """Whether *path* is a mask beside a list that says the same, or an ``online`` of one CPU beside that of
    all. A mask beside a list that cannot be is what the machine is read by."""
    if path.parent.name != "cpu" and path.match("cpu/cpu*/online"):
        return (path.parent.parent / "online").exists()
    names = _LISTS.get(path.name, ())
    return any(_says_the_same(path.parent / name, path) for name in names)


def _says_the_same(named: Path, mask: Path) -> bool:
    ids, bits = read_optional(str(named)), read_optional(str(mask))
    if ids is None or bits is None:
        return ids is not None
    try:
        return CpuSet.parse(ids.partition("\0")[0]) == CpuSet.parse_mask(bits.partition("\0")[0])
    except ParseError:
        return False


class TopologyTree:
    """A tree of such files below *root*, and the remarks about what was left out of it."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.system = f"{self.root.rstrip('/')}/{SYSTEM}"
        self._left_out: dict[str, list[HostError]] = {}

    def needed(self, path: str, parse: Callable[[str], T]) -> T:
        """What the file *path* says.

        Raises:
            HostError: it is absent or garbled.
        """
        return parse_file(path, parse)

    def optional(self, path: str, parse: Callable[[str], T], absent: D) -> T | D:
        """What the file *path* says; *absent* where there is none, and where it is garbled and only orders.

        Raises:
            HostError: it decides, and is garbled.
        """
        try:
            text = read_optional(path)
            return absent if text is None else parse_file(path, parse, text)
        except HostError as error:
            self._leave_out(path, error)
            return absent

    def cpus(self, directory: str, name: str, member: int | None = None) -> CpuSet | None:
        """The CPUs in the list *name*, or, where it is absent or garbled, in what older kernels have instead;
        None where there is none, and where it is garbled and only orders. With *member* the list must have
        that CPU.

        Raises:
            HostError: it decides, and is garbled.
        """
        wrong: HostError | None = None
        for candidate in (name, *_OLDER.get(name, ())):
            path = f"{directory}/{candidate}"
            try:
                text = read_optional(path)
                if text is None:
                    continue
                parse = CpuSet.parse_mask if candidate in _MASKS else CpuSet.parse
                found = parse_file(path, parse, text)
                if member is not None and member not in found:
                    raise garbage(path, text, f"a list with CPU {member} itself")
            except HostError as error:
                wrong = wrong or error
                continue
            return found
        if wrong is not None:
            self._leave_out(wrong.subject, wrong)
        return None

    def exists(self, path: str) -> bool:
        """Whether anything is at *path*.

        Raises:
            RefusedError: the kernel does not say.
        """
        try:
            Path(path).stat()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise refusal(path, "cannot be examined", error) from error
        return True

    def has_cpus(self, directory: str, name: str) -> bool:
        """Whether the list *name* is there, or what older kernels have instead."""
        return any(self.exists(f"{directory}/{one}") for one in (name, *_OLDER.get(name, ())))

    def remarks(self) -> tuple[str, ...]:
        """What was left out, a sentence for each kind of file."""
        return tuple(left_out(self._shown(errors[0]), len(errors) - 1) for errors in self._left_out.values())

    def _leave_out(self, path: str, error: HostError) -> None:
        kind = _kind(path.removeprefix(self.root).lstrip("/"))
        if kind is None or kind.decides:
            raise error
        self._left_out.setdefault(kind.pattern, []).append(error)

    def _shown(self, error: HostError) -> str:
        """*error* with the path as the kernel has it."""
        return str(error).replace(self.root.rstrip("/") + "/", "/", 1)


def _kind(path: str) -> TopologyFile | None:
    for one in FILES:
        if _expression(one.pattern).fullmatch(path):
            return one
    return None


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    """Made when a file is odd, and not when the module is loaded: most machines never need one."""
    parts = re.split(r"(\*|\[01\]|\[0-9\])", pattern)
    return re.compile("".join(_GLOB.get(part, re.escape(part)) for part in parts))


_GLOB: Final = {"*": "[^/]*", "[01]": "[01]", "[0-9]": "[0-9]"}

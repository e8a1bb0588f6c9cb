"""A machine's sysfs as one text, and back: to reproduce elsewhere what a daemon read on a node.

    python -m bayplan.host.record > machine.txt             record this machine
    python -m bayplan.host.record --unpack machine.txt DIR  make a tree of it, to be used as a root directory

One line per line of a file, ``path:text``, as ``grep -r ""`` prints it, but with ``%3A`` for a colon in the
path (PCI addresses have some); a path that ends in ``/`` is a directory of which only the name counts.
Nothing is recorded but topology, sizes and the kernel's version.

A machine that is described and not recorded has the files that the kernel would show of it (`files_of`):
`read_machine` of these gives the same machine, as far as they can say it. Tiers are only an order, amounts
are whole KiB, an offline CPU has a node and nothing else, and sockets have ids of their own. The addresses of
devices are made up: only their node counts.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec.structs import asdict

from bayplan.errors import BayplanError, HostError, ParseError, excerpt
from bayplan.host.kernelfs import read_optional, read_text
from bayplan.host.sysfs import GENERIC_INITIATOR, NVIDIA, TIERS
from bayplan.host.topology_files import HYBRID, SYSTEM, is_superseded, recorded_patterns
from bayplan.model.machine import CORE_KINDS, Cpu, Machine, Node
from bayplan.sets import CpuSet, NodeSet
from bayplan.standard_streams import CommandLineParser


def listing_of(machine: Machine) -> str:
    """The recording of *machine*, as `bayplan.host.record` prints one."""
    return "".join(
        f"{listed(path)}:{line}\n"
        for path, text in files_of(machine).items()
        for line in (text.splitlines() or [""])
    )


def files_of(machine: Machine) -> dict[str, str]:
    """The files by their paths below the root; a path that ends in ``/`` is a directory."""
    files = {
        "proc/meminfo": f"MemTotal: {machine.memory_bytes >> 10:14} kB\nMemFree: 0 kB\n",
        f"{SYSTEM}/node/online": _ids(machine.node_ids),
        f"{SYSTEM}/cpu/online": _ids(machine.online_cpus),
    }
    if machine.isolated:
        files[f"{SYSTEM}/cpu/isolated"] = _ids(machine.isolated)
    if machine.nohz_full:
        files[f"{SYSTEM}/cpu/nohz_full"] = _ids(machine.nohz_full)
    if machine.movable_nodes:
        files[f"{SYSTEM}/node/has_normal_memory"] = _ids(machine.memory_nodes - machine.movable_nodes)
    for node in machine.nodes:
        files |= _node(machine, node) | _devices(node)
    files |= _owners(machine) | _tiers(machine)
    groups = _groups(machine)
    for cpu in machine.cpus:
        files |= _cpu(cpu, groups)
    return files | _kinds(machine)


def pools_of(node: Node, below: str) -> dict[str, str]:
    """The files of the huge page pools of *node*, in the directory *below*."""
    return {
        f"{below}/hugepages-{page_size_bytes >> 10}kB/nr_hugepages": f"{pool_bytes // page_size_bytes}\n"
        for page_size_bytes, pool_bytes in node.hugepages_bytes.items()
    }


def _node(machine: Machine, node: Node) -> dict[str, str]:
    below = f"{SYSTEM}/node/node{node.id}"
    # The kernel's own format: a blank before each column but node 0's, also where node 0 is not online.
    columns = (f"{' ' if target else ''}{machine.distance(node.id, target)}" for target in machine.node_ids)
    files = {
        f"{below}/cpulist": _ids(node.cpus),
        f"{below}/meminfo": (
            f"Node {node.id} MemTotal: {node.memory_bytes >> 10:14} kB\nNode {node.id} MemFree: 0 kB\n"
        ),
        f"{below}/distance": "".join(columns) + "\n",
        **pools_of(node, f"{below}/hugepages"),
    }
    reach = f"{below}/access0/initiators"
    files |= {f"{reach}/node{initiator}/": "" for initiator in node.initiators}
    rated = asdict(node.performance)
    if any(rated.values()):
        for name, value in rated.items():
            files[f"{reach}/{name.removesuffix('_ns').removesuffix('_mib_s')}"] = f"{value}\n"
    return files


def _tiers(machine: Machine) -> dict[str, str]:
    """The kernel numbers tiers by abstract distance, with gaps; ordinary DRAM is tier 4."""
    ranks = sorted({node.tier for node in machine.nodes if node.tier is not None})
    return {
        f"{TIERS}/memory_tier{4 * rank + 4}/nodelist": _ids(
            node.id for node in machine.nodes if node.tier == rank
        )
        for rank in ranks
    }


def _owners(machine: Machine) -> dict[str, str]:
    initiating = NodeSet(node.id for node in machine.nodes if node.owner == GENERIC_INITIATOR)
    files = {f"{SYSTEM}/node/has_generic_initiator": _ids(initiating)} if initiating else {}
    for node in machine.nodes:
        if node.owner and node.owner != GENERIC_INITIATOR:
            path = f"{NVIDIA}/{node.owner}/numa_status"
            files[f"{NVIDIA}/{node.owner}.{node.id}/numa_status" if path in files else path] = (
                f"Node:      {node.id}\nStatus:    online\nAddress:   42000000\nSize:      17c0000000\n"
            )
    return files


def _devices(node: Node) -> dict[str, str]:
    files: dict[str, str] = {}
    for number in range(node.devices):
        device = f"sys/bus/pci/devices/{node.id:04x}:{number:02x}:00.0"
        files |= {f"{device}/class": "0x030200\n", f"{device}/numa_node": f"{node.id}\n"}
    return files


_Groups = Mapping[tuple[str, int], list[int]]
"""Online CPUs by what they share: the field of `Cpu`, and its value."""


def _groups(machine: Machine) -> _Groups:
    groups: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for cpu in machine.cpus:
        for name in ("core_id", "die_id", "cluster_id", "l3_cache_id"):
            first = getattr(cpu, name)
            if cpu.online and first is not None:
                groups[name, first].append(cpu.id)
    return groups


def _cpu(cpu: Cpu, groups: _Groups) -> dict[str, str]:
    below = f"{SYSTEM}/cpu/cpu{cpu.id}"
    files = {f"{below}/online": f"{int(cpu.online)}\n"}
    if cpu.node_id is not None:
        files[f"{below}/node{cpu.node_id}/"] = ""
    if not cpu.online:
        return files
    files[f"{below}/topology/core_cpus_list"] = _ids(groups["core_id", cpu.core_id])
    for name, first in (("die", cpu.die_id), ("cluster", cpu.cluster_id)):
        if first is not None:
            files[f"{below}/topology/{name}_cpus_list"] = _ids(groups[f"{name}_id", first])
    files[f"{below}/topology/physical_package_id"] = f"{cpu.socket_id}\n"
    files |= _cache(f"{below}/cache/index0", 1, "Data", [cpu.id])
    if cpu.l3_cache_id is not None:
        files |= _cache(f"{below}/cache/index3", 3, "Unified", groups["l3_cache_id", cpu.l3_cache_id])
    return files


def _kinds(machine: Machine) -> dict[str, str]:
    groups = [CpuSet(cpu.id for cpu in machine.cpus if cpu.kind == kind) for kind in CORE_KINDS]
    return {path: _ids(group) for path, group in zip(HYBRID, (one for one in groups if one), strict=False)}


def _cache(below: str, level: int, kind: str, sharers: Iterable[int]) -> dict[str, str]:
    return {
        f"{below}/level": f"{level}\n",
        f"{below}/type": f"{kind}\n",
        f"{below}/shared_cpu_list": _ids(sharers),
    }


def _ids(ids: Iterable[int]) -> str:
    return f"{CpuSet(ids)}\n"


COMMENT: Final = "#"
COLON: Final = "%3A"


def record(root: Path = Path("/")) -> str:
    """The listing of the machine below *root*.

    Raises:
        HostError: a file is there and can't be read.
    """
    paths = {path for pattern in recorded_patterns(root) for path in root.glob(pattern)}
    kept = sorted((path for path in paths if not is_superseded(path)), key=_natural)
    return "".join(line for path in kept for line in _lines(root, path))


def unpack(listing: str, directory: Path) -> None:
    """Write the tree that *listing* describes below *directory*.

    Raises:
        ParseError: a line is not part of a listing, or its path leads out of *directory*.
        HostError: the tree can't be written.
    """
    files: dict[str, list[str]] = {}
    for line in listing.splitlines():
        if line.startswith(COMMENT) or not line:
            continue
        quoted, colon, text = line.partition(":")
        path = quoted.replace(COLON, ":")
        if not colon or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ParseError("machine listing", line, "a line 'relative/path:text'")
        files.setdefault(path, []).append(text)
    try:
        for path, lines in files.items():
            target = directory / path
            if path.endswith("/"):
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text("".join(f"{text}\n" for text in lines), encoding="ascii")
    except (OSError, ValueError) as error:
        # ValueError: a path with a NUL, a text outside ASCII.
        raise HostError(str(directory), f"cannot hold the tree: {excerpt(str(error))}") from error


def listed(path: str) -> str:
    """*path* as a listing has it."""
    return path.replace(":", COLON)


def _lines(root: Path, path: Path) -> Iterator[str]:
    name = listed(str(path.relative_to(root)))
    if path.is_dir():
        yield f"{name}/:\n"
        return
    text = read_optional(str(path))
    for line in [] if text is None else text.splitlines() or [""]:
        yield f"{name}:{line}\n"


def _natural(path: Path) -> list[tuple[int, str]]:
    """A sort key that has cpu2 before cpu10: text and numbers by turns."""
    return [(int("".join(filter(str.isdigit, part)) or -1), part) for part in path.parts]


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit code is the error's own."""
    parser = CommandLineParser(
        prog="python -m bayplan.host.record", description="Record a machine's NUMA and CPU topology as text."
    )
    parser.add_argument("--root", type=Path, default=Path("/"), help="record the tree below this directory")
    parser.add_argument(
        "--unpack", nargs=2, type=Path, metavar=("LISTING", "DIR"), help="turn a recording into a tree"
    )
    options = parser.parse_args(arguments)
    try:
        if options.unpack:
            listing, directory = options.unpack
            unpack(read_text(str(listing)), directory)
        else:
            sys.stdout.write(record(options.root))
    except BayplanError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A machine from a file, for the simulator: a description in TOML, YAML or JSON, or a recorded sysfs tree.

Read as strictly as the configuration: every problem is named by its path.
"""

import json
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from bayplan.admin_protocol import API_VERSION
from bayplan.config.values import (
    InvalidValueError,
    ProblemCollector,
    invalid,
    items,
    join,
    parsed,
    show,
    unknown_key,
)
from bayplan.config.yaml_text import parse_yaml
from bayplan.errors import BayplanError, ConfigError, Problem
from bayplan.files import STANDARD_INPUT, read_named, unreadable
from bayplan.host.record import COMMENT, RECORDED_BELOW, record, unpack
from bayplan.host.sysfs import read_machine
from bayplan.model.machine import LOCAL_DISTANCE, REMOTE_DISTANCE, Cpu, Machine, Node
from bayplan.quantity import parse_bytes, parse_page_size, whole_number
from bayplan.sets import CpuSet

_TOP: Final = ("threadsPerCore", "nodes")
_NODE: Final = (
    "id",
    "count",
    "cpus",
    "memory",
    "hugepages",
    "distances",
    "socket",
    "tier",
    "owner",
    "devices",
)
_MAX_NODES: Final = 1024
"""The kernel's MAX_NUMNODES on x86 and arm64."""


def read_topology(path: Path) -> Machine:
    """The machine that *path* describes: a directory is a sysfs tree (as ``/``), a file ending in .toml,
    .yaml, .yml or .json a description, any other a recording of `bayplan record-topology`. ``-`` is the
    standard input, where a recording is told from a description by its lines.

    Raises:
        ConfigError: the file cannot be read, or is wrong.
        HostError: a recorded tree is no machine.
    """
    if path.is_dir():
        return read_machine(path)
    try:
        content = read_named(path)
    except (OSError, UnicodeDecodeError) as error:
        problem = Problem("the file", unreadable(error), "a topology, or a directory with a sysfs tree")
        raise ConfigError(str(path), (problem,)) from error
    suffix = _language(content) if str(path) == STANDARD_INPUT else path.suffix
    if suffix not in (".toml", ".yaml", ".yml", ".json"):
        return _recorded(path, content)
    try:
        return described_machine(parse_document(content, suffix))
    except InvalidValueError as wrong:
        raise ConfigError(str(path), wrong.problems) from wrong


def _language(content: str) -> str:
    """The suffix that a file with *content* should have; none for a recording."""
    lines = (line for line in content.splitlines() if line.strip() and not line.startswith(COMMENT))
    if next(lines, "").startswith(RECORDED_BELOW):
        return ""
    try:
        tomllib.loads(content)
    except (ValueError, RecursionError):
        return ".yaml"
    return ".toml"


def recorded_topology(root: Path = Path("/")) -> dict[str, Any]:
    """The recording of the machine below *root*, for `read_topology`, ready for JSON.

    Raises:
        HostError: it can't be read.
    """
    return {"apiVersion": API_VERSION, "kind": "Topology", "listing": record(root)}


def parse_document(content: str, suffix: str) -> object:
    """The plain value of a document in the language of its *suffix*.

    Raises:
        InvalidValueError: it is not that language.
    """
    try:
        if suffix == ".toml":
            return tomllib.loads(content)
        if suffix == ".json":
            return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise invalid("the file", str(error), suffix[1:].upper()) from error
    return parse_yaml(content)


def described_machine(document: object) -> Machine:
    """The machine of a description; the format is in docs/simulate.md.

    Raises:
        InvalidValueError: everything that is wrong with it.
    """
    top = dict(items("the file", document))
    collector = ProblemCollector()
    for key in top:
        with collector:
            if key not in _TOP:
                raise InvalidValueError(unknown_key("", key, _TOP))
    threads = 1
    with collector:
        threads = _whole("threadsPerCore", top.get("threadsPerCore", 1), 1, 8)
    listed = top.get("nodes")
    if not isinstance(listed, list) or not listed:
        collector.problems.append(Problem("nodes", show(listed), "a list with at least one node"))
        collector.raise_problems()
        raise AssertionError
    nodes: list[Node] = []
    sockets: dict[int, int] = {}
    for position, item in enumerate(listed):
        with collector:
            for node, socket in _nodes(f"nodes[{position}]", item, nodes):
                nodes.append(node)
                sockets[node.id] = socket
    collector.raise_problems()
    _check(nodes)
    ids = [node.id for node in nodes]
    completed = [replace(node, distances=_by_id(node, ids)) for node in _with_tiers(nodes)]
    return Machine(tuple(completed), tuple(_cpus(completed, sockets, threads)))


def _recorded(path: Path, content: str) -> Machine:
    with tempfile.TemporaryDirectory(prefix="bayplan-") as directory:
        try:
            unpack(content, Path(directory))
            return read_machine(Path(directory))
        except BayplanError as error:
            expected = "a recording made by bayplan record-topology, or a .toml, .yaml or .json file"
            problem = str(error).replace(directory, "")
            raise ConfigError(str(path), (Problem("the file", problem, expected),)) from error


def _nodes(path: str, value: object, before: list[Node]) -> Iterator[tuple[Node, int]]:
    """The nodes of one entry, each with its socket; *before* are those of earlier entries."""
    entry = dict(items(path, value))
    for key in entry:
        if key not in _NODE:
            raise InvalidValueError(unknown_key(path, key, _NODE))
    count = _whole(f"{path}.count", entry.get("count", 1), 1, _MAX_NODES)
    first = max((node.id for node in before), default=-1) + 1
    node_id = _whole(f"{path}.id", entry.get("id", first), 0, _MAX_NODES - 1)
    cpus = entry.get("cpus", 0)
    next_cpu = max((cpu for node in before for cpu in node.cpus), default=-1) + 1
    for number in range(count):
        if isinstance(cpus, str):
            if count > 1:
                raise invalid(f"{path}.cpus", show(cpus), "a number of CPUs, as count is above 1")
            own = parsed(CpuSet.parse, f"{path}.cpus", cpus, "a CPU list such as 0-7, or a number of CPUs")
        else:
            amount = _whole(f"{path}.cpus", cpus, 0, 8192)
            start = next_cpu + number * amount
            own = CpuSet(range(start, start + amount))
        socket = _whole(f"{path}.socket", entry.get("socket", node_id + number), 0, _MAX_NODES)
        yield (
            Node(
                node_id + number,
                own,
                _bytes(f"{path}.memory", entry.get("memory")),
                {
                    parsed(parse_page_size, f"{path}.hugepages", size, "page sizes such as 2Mi"): _bytes(
                        join(f"{path}.hugepages", size), amount
                    )
                    for size, amount in items(f"{path}.hugepages", entry.get("hugepages", {}))
                },
                _distances(f"{path}.distances", entry.get("distances", {})),
                tier=None if "tier" not in entry else _whole(f"{path}.tier", entry["tier"], 0, 1023),
                owner=str(entry.get("owner", "")),
                devices=_whole(f"{path}.devices", entry.get("devices", 0), 0, _MAX_NODES),
            ),
            socket,
        )


def _distances(path: str, value: object) -> dict[int, int]:
    """By node id; of a list, by position p as -1 - p, which `_by_id` resolves."""
    pairs = enumerate(value) if isinstance(value, list) else items(path, value)
    return {
        (-1 - int(key) if isinstance(value, list) else _whole(path, _number(key), 0, _MAX_NODES)): _whole(
            path, distance, 1, 255
        )
        for key, distance in pairs
    }


def _by_id(node: Node, ids: list[int]) -> Mapping[int, int]:
    """The distances with node ids for positions, where the description had a list; those that it leaves out
    are the kernel's own defaults, as a kernel shows a distance for every node."""
    given = {
        (ids[-1 - key] if key < 0 and -1 - key < len(ids) else key): distance
        for key, distance in node.distances.items()
    }
    return {other: LOCAL_DISTANCE if other == node.id else REMOTE_DISTANCE for other in ids} | given


def _with_tiers(nodes: list[Node]) -> list[Node]:
    """*nodes*, those with CPUs in tier 0 unless they say otherwise: where the kernel knows of tiers, they
    have one."""
    if all(node.tier is None for node in nodes):
        return nodes
    return [replace(node, tier=0) if node.tier is None and node.cpus else node for node in nodes]


def _check(nodes: list[Node]) -> None:
    collector = ProblemCollector()
    seen_nodes: set[int] = set()
    seen_cpus = CpuSet()
    for node in nodes:
        with collector:
            if node.id in seen_nodes:
                raise invalid("nodes", f"node {node.id} a second time", "each id once")
            if not node.cpus.isdisjoint(seen_cpus):
                raise invalid("nodes", f"CPU {node.cpus & seen_cpus} on two nodes", "each CPU once")
            if sum(node.hugepages_bytes.values()) > node.memory_bytes:
                raise invalid("nodes", f"node {node.id} with more huge pages than memory", "less")
        seen_nodes.add(node.id)
        seen_cpus |= node.cpus
    collector.raise_problems()


def _cpus(nodes: list[Node], sockets: Mapping[int, int], threads: int) -> Iterator[Cpu]:
    """Neighbouring CPUs of a node are threads of one core; each node has one L3 cache."""
    for node in nodes:
        own = list(node.cpus)
        for position, cpu in enumerate(own):
            core = own[position // threads * threads]
            yield Cpu(cpu, core, sockets[node.id], node.id, own[0])


def _number(value: object) -> object:
    number = whole_number(value) if isinstance(value, str) else None
    return value if number is None else number


def _whole(path: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return value
    raise invalid(path, show(value), f"a whole number from {low} to {high}")


def _bytes(path: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return parsed(parse_bytes, path, value, "an amount such as 64Gi")

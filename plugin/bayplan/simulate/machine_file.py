"""A machine from a description in TOML, YAML or JSON: docs/machine-files.md has the format.

Read as strictly as the configuration: every problem is named by its path. What is not given is what an
ordinary server has, and nothing passes that a kernel would refuse: a node is 10 from itself, each CPU is on
one node. Amounts (cores of a cache) lay out regular machines in few lines, lists of CPUs irregular ones.
"""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

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
from bayplan.errors import Problem
from bayplan.host.sysfs import UNKNOWN_SOCKET
from bayplan.model.machine import (
    CORE_KINDS,
    LOCAL_DISTANCE,
    MAX_DISTANCE,
    REMOTE_DISTANCE,
    Cpu,
    Machine,
    Node,
    union,
)
from bayplan.quantity import counted, parse_bytes, parse_page_size, whole_number
from bayplan.sets import CpuSet, cpus_text

_LAYOUT: Final = (
    "threadsPerCore",
    "siblings",
    "coresPerL3",
    "coresPerCluster",
    "coresPerDie",
    "coresPerSocket",
)
_LISTS: Final = {"cores": "core_id", "l3": "l3_cache_id", "clusters": "cluster_id", "dies": "die_id"}
"""Lists of CPU lists, and what of a CPU they say."""
_TOP: Final = (
    *_LAYOUT,
    *_LISTS,
    "sockets",
    "nodesPerSocket",
    "distances",
    "offline",
    "isolated",
    "kinds",
    "memory",
    "nodes",
)
_NODE: Final = (
    *_LAYOUT,
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
_KIND: Final = ("cpus", *_LAYOUT)
_FAR: Final = ("socket", "remote")
_MAX_NODES: Final = 1024
"""The kernel's MAX_NUMNODES on x86 and arm64."""
_MAX_CPUS: Final = CpuSet.max_id + 1
_SIBLINGS: Final = {"adjacent": False, "apart": True}


class _Layout(Struct, frozen=True):
    """How the CPUs of a node are laid out. ``apart``: the second threads are numbered after the first ones of
    all cores. Amounts are of cores; None is not given, and 0 none."""

    threads: int = 1
    apart: bool = False
    l3: int | None = None
    cluster: int | None = None
    die: int | None = None
    socket: int | None = None


class _Entry(Struct, frozen=True):
    """One entry of ``nodes``: ``count`` nodes from ``first`` on, each as ``node``, with so many CPUs each, or
    the CPUs of ``node``."""

    path: str
    first: int
    count: int
    node: Node
    amount: int | None
    socket: int | None
    distances: object
    layout: _Layout

    def ids(self) -> range:
        return range(self.first, self.first + self.count)


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
    """The machine of a description.

    Raises:
        InvalidValueError: everything that is wrong with it.
    """
    top = dict(items("the file", document))
    collector = ProblemCollector()
    with collector:
        _refuse_unknown("", top, _TOP)
    layout = _Layout()
    with collector:
        layout = _layout("", top, layout)
    listed = top.get("nodes")
    if not isinstance(listed, list) or not listed:
        collector.problems.append(Problem("nodes", show(listed), "a list with at least one node"))
        collector.raise_problems()
        raise AssertionError
    entries: list[_Entry] = []
    for position, item in enumerate(listed):
        with collector:
            next_id = entries[-1].ids().stop if entries else 0
            entries.append(_entry(f"nodes[{position}]", item, next_id, layout))
    collector.raise_problems()
    nodes, layouts = _numbered(entries)
    _check(nodes)
    kinds: dict[str, tuple[CpuSet, _Layout | None]] = {}
    offline = isolated = CpuSet()
    per_socket, memory_bytes = 1, 0
    everybody = union(node.cpus for node in nodes)
    with collector:
        kinds = _kinds(top.get("kinds", {}), layout, everybody)
    with collector:
        offline = _some_cpus("offline", top.get("offline", ""), everybody)
    with collector:
        isolated = _some_cpus("isolated", top.get("isolated", ""), everybody)
    with collector:
        per_socket = _whole("nodesPerSocket", top.get("nodesPerSocket", 1), 1, _MAX_NODES)
    with collector:
        memory_bytes = _bytes("memory", top.get("memory", 0))
    cpus: dict[int, Cpu] = {}
    sockets = _sockets(entries, nodes, per_socket, given="nodesPerSocket" in top)
    with collector:
        cpus = _cpus(entries, nodes, layouts, kinds, sockets)
    with collector:
        cpus = _regrouped(cpus, top, everybody)
    with collector:
        near = {node: socket for node, socket in sockets.items() if socket is not None}
        rows = _distances(entries, [node.id for node in nodes], top.get("distances"), near)
        nodes = [replace(node, distances=rows[node.id]) for node in nodes]
    collector.raise_problems()
    online = {number: cpu for number, cpu in cpus.items() if number not in offline}
    if not online:
        raise invalid("nodes", "no online CPU", "at least one")
    taken_off = [
        Cpu(number, number, UNKNOWN_SOCKET, cpus[number].node_id, None, online=False) for number in offline
    ]
    return Machine(
        tuple(replace(node, cpus=node.cpus - offline) for node in _with_tiers(nodes)),
        (*_lowest_online(online), *taken_off),
        memory_bytes,
        isolated - offline,
    )


def _refuse_unknown(path: str, table: Iterable[str], known: tuple[str, ...]) -> None:
    problems = [unknown_key(path, key, known) for key in table if key not in known]
    if problems:
        raise InvalidValueError(*problems)


def _layout(path: str, table: Mapping[str, Any], inherited: _Layout) -> _Layout:
    """The layout that *table* gives; what it leaves out is *inherited*."""
    found: dict[str, Any] = {}
    if "threadsPerCore" in table:
        found["threads"] = _whole(join(path, "threadsPerCore"), table["threadsPerCore"], 1, 8)
    if "siblings" in table:
        word = table["siblings"]
        if not isinstance(word, str) or word not in _SIBLINGS:
            raise invalid(join(path, "siblings"), show(word), " or ".join(_SIBLINGS))
        found["apart"] = _SIBLINGS[word]
    for key in _LAYOUT[2:]:
        if key in table:
            name = key.removeprefix("coresPer").lower()
            found[name] = _whole(join(path, key), table[key], 0, _MAX_CPUS)
    return replace(inherited, **found)


def _entry(path: str, value: object, next_id: int, layout: _Layout) -> _Entry:
    entry = dict(items(path, value))
    _refuse_unknown(path, entry, _NODE)
    count = _whole(f"{path}.count", entry.get("count", 1), 1, _MAX_NODES)
    first = _whole(f"{path}.id", entry.get("id", next_id), 0, _MAX_NODES - count)
    cpus, amount, own = entry.get("cpus", 0), None, CpuSet()
    if isinstance(cpus, str):
        if count > 1:
            raise invalid(f"{path}.cpus", show(cpus), "a number of CPUs, as count is above 1")
        own = parsed(CpuSet.parse, f"{path}.cpus", cpus, "a CPU list such as 0-7, or a number of CPUs")
    else:
        amount = _whole(f"{path}.cpus", cpus, 0, _MAX_CPUS)
    node = Node(
        first,
        own,
        _bytes(f"{path}.memory", entry.get("memory")),
        _pools(f"{path}.hugepages", entry.get("hugepages", {})),
        tier=None if "tier" not in entry else _whole(f"{path}.tier", entry["tier"], 0, 1023),
        owner=_owner(f"{path}.owner", entry.get("owner", "")),
        devices=_whole(f"{path}.devices", entry.get("devices", 0), 0, 255),
    )
    socket = entry.get("socket")
    return _Entry(
        path,
        first,
        count,
        node,
        amount,
        None if socket is None else _whole(f"{path}.socket", socket, 0, _MAX_NODES),
        entry.get("distances"),
        _layout(path, entry, layout),
    )


def _owner(path: str, value: object) -> str:
    if isinstance(value, str) and value.isprintable() and value.isascii() and "/" not in value:
        return value
    raise invalid(path, show(value), "the name of a device, such as 0009:01:00.0")


def _pools(path: str, value: object) -> dict[int, int]:
    pools = {}
    for size, amount in items(path, value):
        size_bytes = parsed(parse_page_size, path, size, "page sizes such as 2Mi")
        pools[size_bytes] = _bytes(join(path, size), amount)
        if pools[size_bytes] % size_bytes:
            raise invalid(join(path, size), show(amount), f"whole pages of {size}")
    return pools


def _numbered(entries: list[_Entry]) -> tuple[list[Node], dict[int, _Layout]]:
    """The nodes with their CPUs. What is given as a number is numbered on from the CPUs before; where
    siblings are apart, the first threads of all such nodes come first, then the second ones."""
    nodes: list[Node] = []
    layouts: dict[int, _Layout] = {}
    next_cpu = 0
    apart: dict[int, int] = {}
    for entry in entries:
        for node in entry.ids():
            layouts[node] = entry.layout
            cpus = entry.node.cpus
            if entry.amount is not None:
                if entry.layout.apart and entry.layout.threads > 1:
                    apart[node] = entry.amount
                else:
                    cpus = CpuSet(range(next_cpu, next_cpu + entry.amount))
            next_cpu = max(next_cpu, max(cpus, default=-1) + 1)
            nodes.append(replace(entry.node, id=node, cpus=cpus))
    numbers: dict[int, list[int]] = {node: [] for node in apart}
    for thread in range(max((layouts[node].threads for node in apart), default=0)):
        for node, amount in apart.items():
            cores, left = divmod(amount, layouts[node].threads)
            if left:
                threads = layouts[node].threads
                raise invalid(
                    "nodes",
                    f"node {node} with {counted(amount, 'CPU')}",
                    f"a multiple of {counted(threads, 'thread')}",
                )
            if thread < layouts[node].threads:
                numbers[node] += range(next_cpu, next_cpu + cores)
                next_cpu += cores
    if next_cpu > _MAX_CPUS:
        raise invalid("nodes", counted(next_cpu, "CPU"), f"at most {_MAX_CPUS}")
    return [
        replace(node, cpus=CpuSet(numbers[node.id])) if node.id in apart else node for node in nodes
    ], layouts


def _kinds(value: object, layout: _Layout, everybody: CpuSet) -> dict[str, tuple[CpuSet, _Layout | None]]:
    """The CPUs of each kind, and their layout where the kind has one."""
    kinds: dict[str, tuple[CpuSet, _Layout | None]] = {}
    seen = CpuSet()
    for name, given in items("kinds", value):
        path = join("kinds", name)
        if name not in CORE_KINDS:
            raise invalid(path, "an unknown kind", " or ".join(CORE_KINDS))
        table = dict(items(path, given)) if isinstance(given, Mapping) else {"cpus": given}
        _refuse_unknown(path, table, _KIND)
        own = _some_cpus(f"{path}.cpus", table.get("cpus", ""), everybody)
        if not own.isdisjoint(seen):
            raise invalid(f"{path}.cpus", f"CPU {own & seen} a second time", "each CPU of one kind")
        seen |= own
        kinds[name] = own, _layout(path, table, layout) if len(table) > 1 else None
    if kinds and not (seen == everybody and {CORE_KINDS[0], CORE_KINDS[-1]} <= kinds.keys()):
        raise invalid(
            "kinds",
            f"{', '.join(kinds)} of {cpus_text(seen)}",
            f"{CORE_KINDS[0]} and {CORE_KINDS[-1]}, perhaps {CORE_KINDS[1]}, of {cpus_text(everybody)}",
        )
    return kinds


def _sockets(
    entries: list[_Entry], nodes: list[Node], per_socket: int, *, given: bool
) -> dict[int, int | None]:
    """The (first) socket of each node; None of those without CPUs that name none."""
    sockets: dict[int, int | None] = {}
    position = 0
    by_id = {node.id: node for node in nodes}
    for entry in entries:
        for node in entry.ids():
            sockets[node] = entry.socket
            size = len(by_id[node].cpus)
            if not size:
                continue
            if entry.socket is None:
                sockets[node] = position // per_socket if given or entry.layout.socket else node
            cores = -(-size // entry.layout.threads)
            position += -(-cores // entry.layout.socket) if entry.layout.socket else 1
    return sockets


def _cpus(
    entries: list[_Entry],
    nodes: list[Node],
    layouts: Mapping[int, _Layout],
    kinds: Mapping[str, tuple[CpuSet, _Layout | None]],
    sockets: Mapping[int, int | None],
) -> dict[int, Cpu]:
    paths = {node: entry.path for entry in entries for node in entry.ids()}
    cpus: dict[int, Cpu] = {}
    for node in nodes:
        parts = [(name, own & node.cpus, layout) for name, (own, layout) in kinds.items()] or [
            ("", node.cpus, None)
        ]
        for kind, own, layout in parts:
            if own:
                socket = sockets[node.id] or 0
                laid_out = _laid_out(paths[node.id], own, layout or layouts[node.id])
                for number, (core, l3, cluster, die, nth) in laid_out.items():
                    cpus[number] = Cpu(
                        number,
                        core,
                        socket + nth,
                        node.id,
                        min(node.cpus) if l3 is None else None if l3 < 0 else l3,
                        cluster_id=cluster,
                        die_id=die,
                        kind=kind,
                    )
    return cpus


_Place = tuple[int, int | None, int | None, int | None, int]
"""Of one CPU: the lowest CPU of its core, of its L3 (None: all of the node; negative: none), of its cluster
and of its die, and which socket of the node."""


def _laid_out(path: str, cpus: CpuSet, layout: _Layout) -> dict[int, _Place]:
    """The place of each of *cpus*."""
    own, threads = list(cpus), layout.threads
    if layout.apart:
        if len(own) % threads:
            raise invalid(
                path,
                counted(len(own), "CPU"),
                f"a multiple of {counted(threads, 'thread')}, as siblings are apart",
            )
        amount = len(own) // threads
        cores = [own[number::amount] for number in range(amount)]
    else:
        cores = [own[first : first + threads] for first in range(0, len(own), threads)]

    def group(key: str, size: int | None, number: int) -> int | None:
        if not size:
            return None
        if len(cores) % size:
            raise invalid(
                join(path, key), f"{size} of {counted(len(cores), 'core')}", "a divisor of the cores"
            )
        return min(cores[number // size * size])

    places: dict[int, _Place] = {}
    for number, core in enumerate(cores):
        l3 = -1 if layout.l3 == 0 else group("coresPerL3", layout.l3, number)
        cluster = group("coresPerCluster", layout.cluster, number)
        die = group("coresPerDie", layout.die, number)
        group("coresPerSocket", layout.socket, number)
        socket = number // layout.socket if layout.socket else 0
        places |= dict.fromkeys(core, (core[0], l3, cluster, die, socket))
    return places


def _regrouped(cpus: dict[int, Cpu], top: Mapping[str, Any], everybody: CpuSet) -> dict[int, Cpu]:
    """*cpus* with what lists of CPUs say of them."""
    cpus = dict(cpus)
    for key, name in _LISTS.items():
        value = top.get(key, [])
        if not isinstance(value, list):
            raise invalid(key, show(value), "a list of CPU lists")
        pairs = ((f"{key}[{number}]", own) for number, own in enumerate(value))
        for path, group in _disjoint(pairs, everybody):
            if not group:
                raise invalid(path, "no CPU", "a CPU list such as 0-7")
            for cpu in group:
                cpus[cpu] = replace(cpus[cpu], **{name: min(group)})
    named = {
        join("sockets", name): (_whole("sockets", _number(name), 0, _MAX_CPUS), own)
        for name, own in items("sockets", top.get("sockets", {}))
    }
    for path, group in _disjoint(((path, own) for path, (_, own) in named.items()), everybody):
        for cpu in group:
            cpus[cpu] = replace(cpus[cpu], socket_id=named[path][0])
    return cpus


def _disjoint(pairs: Iterable[tuple[str, object]], everybody: CpuSet) -> Iterator[tuple[str, CpuSet]]:
    """The CPU list at each path; no CPU is in two."""
    seen = CpuSet()
    for path, value in pairs:
        own = _some_cpus(path, value, everybody)
        if not own.isdisjoint(seen):
            raise invalid(path, f"CPU {own & seen} a second time", "each CPU once")
        seen |= own
        yield path, own


def _lowest_online(cpus: Mapping[int, Cpu]) -> Iterator[Cpu]:
    """*cpus*, all of which are online, with the lowest of them as the names of their groups."""
    lowest: dict[tuple[str, int], int] = {}
    for number, cpu in sorted(cpus.items()):
        for name in _LISTS.values():
            first = getattr(cpu, name)
            if first is not None:
                lowest.setdefault((name, first), number)
    for cpu in cpus.values():
        yield replace(
            cpu,
            **{
                name: None if (first := getattr(cpu, name)) is None else lowest[name, first]
                for name in _LISTS.values()
            },
        )


def _distances(
    entries: list[_Entry], ids: list[int], top: object, sockets: Mapping[int, int]
) -> dict[int, dict[int, int]]:
    """The row of each node. Where one direction is given and the other is not, both are the same; what is
    given for one node counts before what is given for all."""
    collector = ProblemCollector()
    given: dict[int, dict[int, int]] = {node: {} for node in ids}
    within = across = REMOTE_DISTANCE
    with collector:
        if isinstance(top, list):
            given = _rows(top, ids)
        elif top is not None:
            within, across = _two_distances(top)
    for entry in entries:
        with collector:
            for node in entry.ids():
                given[node] |= _of_entry(entry, node, ids)
    collector.raise_problems()

    def between(node: int, other: int) -> int:
        if node == other:
            return LOCAL_DISTANCE
        known = given[node].get(other, given[other].get(node))
        if known is not None:
            return known
        same = node in sockets and sockets[node] == sockets.get(other)
        return within if same else across

    return {node: {other: between(node, other) for other in ids} for node in ids}


def _rows(value: list[Any], ids: list[int]) -> dict[int, dict[int, int]]:
    if len(value) != len(ids):
        raise invalid(
            "distances", counted(len(value), "row"), f"one for each of the {counted(len(ids), 'node')}"
        )
    return {
        node: _row(f"distances[{position}]", row, node, ids)
        for position, (node, row) in enumerate(zip(ids, value, strict=True))
    }


def _two_distances(value: object) -> tuple[int, int]:
    """Within a socket, and to all others."""
    table = dict(items("distances", value))
    _refuse_unknown("distances", table, _FAR)
    within, across = (_far(f"distances.{key}", table.get(key, REMOTE_DISTANCE)) for key in _FAR)
    return within, across


def _of_entry(entry: _Entry, node: int, ids: list[int]) -> dict[int, int]:
    path = f"{entry.path}.distances"
    if entry.distances is None:
        return {}
    if isinstance(entry.distances, list):
        if entry.count > 1:
            raise invalid(
                path,
                f"one row for {counted(entry.count, 'node')}",
                "distances of all nodes at the top of the file: rows, or socket and remote",
            )
        return _row(path, entry.distances, node, ids)
    row = {}
    for key, distance in items(path, entry.distances):
        other = _whole(path, _number(key), 0, _MAX_NODES - 1)
        if other not in ids:
            raise invalid(path, f"node {other}", f"nodes of this file, {ids[0]} to {ids[-1]}")
        if entry.count > 1 and other in entry.ids():
            raise invalid(path, f"node {other}, one of {entry.count} alike", "nodes of other entries")
        row[other] = _distance(join(path, str(other)), distance, local=other == node)
    return row


def _row(path: str, value: object, node: int, ids: list[int]) -> dict[int, int]:
    if not isinstance(value, list):
        raise invalid(path, show(value), f"a list of {counted(len(ids), 'distance')}")
    if len(value) != len(ids):
        raise invalid(
            path, counted(len(value), "distance"), f"one for each of the {counted(len(ids), 'node')}"
        )
    return {
        other: _distance(f"{path}[{position}]", distance, local=other == node)
        for position, (other, distance) in enumerate(zip(ids, value, strict=True))
    }


def _distance(path: str, value: object, *, local: bool) -> int:
    if not local:
        return _far(path, value)
    if isinstance(value, bool) or value != LOCAL_DISTANCE:
        raise invalid(path, show(value), f"{LOCAL_DISTANCE}, which a node is from itself")
    return LOCAL_DISTANCE


def _far(path: str, value: object) -> int:
    return _whole(path, value, LOCAL_DISTANCE, MAX_DISTANCE)


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


def _some_cpus(path: str, value: object, everybody: CpuSet) -> CpuSet:
    """A list of CPUs that nodes have."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    found = parsed(CpuSet.parse, path, text, "a CPU list such as 0-7")
    if not found <= everybody:
        raise invalid(path, f"CPU {found - everybody}, which no node has", f"some of {everybody}")
    return found


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

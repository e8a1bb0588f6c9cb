"""A machine from what people paste: `numactl -H`, and `lscpu` in all its forms, in one text and in any order.

The text may have shell prompts, quotes and Windows line ends around; what belongs to none of the tools is
passed over. A node that is announced and not described is an error, as the text was cut off. What the tools
do not say is assumed, and each assumption is a sentence.
"""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import Struct

from bayplan.config.values import ProblemCollector, invalid
from bayplan.errors import ParseError, Problem
from bayplan.host.sysfs import UNKNOWN_SOCKET
from bayplan.model.machine import (
    LOCAL_DISTANCE,
    MAX_DISTANCE,
    REMOTE_DISTANCE,
    Cpu,
    Machine,
    Node,
    in_first_nodes,
)
from bayplan.model.sentences import shared_cpus
from bayplan.printable import pattern
from bayplan.quantity import GIB, KIB, MIB, counted, format_bytes
from bayplan.sets import CpuSet, NodeSet, cpus_text, nodes_text

S = TypeVar("S", CpuSet, NodeSet)

ASSUMED_BYTES_PER_CPU: Final = 4 * GIB
"""Where nothing says how much memory there is: the usual ratio of servers and clouds' general sizes."""

_QUOTED: Final = r"^[\s>|*+`#]*"
_TOLD: Final = pattern(r"\s[(<#]")
"""Begins what people write behind an output."""
_TAG: Final = pattern(r"</?[a-z]{1,10} ?/?>")
_AVAILABLE: Final = pattern(_QUOTED + r"available: \d+ nodes? \(([0-9,-]+)\)")
_CPUS: Final = pattern(_QUOTED + r"node (\d{1,4}) cpus:(.*)")
_SIZE: Final = pattern(_QUOTED + r"node (\d{1,4}) size: *(?:(\d{1,12}) ?([KMGT])i?B|(<not available>))")
_DISTANCES: Final = pattern(_QUOTED + r"node distances:")
_HEADER: Final = pattern(_QUOTED + r"node((?:\s+\d{1,4})+)\s*$")
_ROW: Final = pattern(_QUOTED + r"(\d{1,4})(?::|(?=\s))((?:\s+\d{1,4})*)\s*(?:[(<#].*)?$")
_MORE: Final = pattern(_QUOTED + r"((?:\d{1,4}\s*)+)$")
_NO_NUMA: Final = pattern(r"No NUMA (?:support )?available", re.IGNORECASE)
_PARSABLE: Final = pattern(r"^[\s>#*]*(CPU,[A-Za-z0-9,:]+)\s*$", re.IGNORECASE)
_PARSED: Final = pattern(r"^[\s>]*(\d{1,4}(?:,[0-9:YNyn-]*){1,20})\s*$")
_TABLE: Final = pattern(r"^[\s>]*(CPU(?:\s+[A-Z0-9][A-Za-z0-9:]*)+)\s*$")
_TABLED: Final = pattern(r"^[\s>]*(\d{1,4}(?:\s+\S+)+)\s*$")
_JSON: Final = pattern(r'"(?:lscpu|cpus)"\s*:\s*\[\s*\{')
_FIELD: Final = pattern(_QUOTED + r"([A-Z][^:]{1,40}):(?:\s+(\S.*)?)?$")
_ONLINE: Final = "On-line CPU(s) list"
_MOST_X86_THREADS: Final = 2
_THREADS: Final = "Thread(s) per core"
_CACHE: Final = pattern("l[1-4][di]?")
_OF_NODE: Final = pattern(r"NUMA node(\d{1,4}) CPU\(s\)")
_STRIDE: Final = pattern(r"(\d-\d{1,5}):(\d{1,5})(?![\d/])")
"""Every so many of a range, which the kernel writes as 0-62:1/2."""
_NO_TEXT: Final = pattern(r'(":\s*)-(\s*[,}])')
"""What lscpu 2.38 prints of offline CPUs in JSON."""
_ADJACENT: Final = ("ppc", "s390")
"""Architectures on which Linux numbers the threads of a core one after the other."""
_USUAL: Final = "CPU,Core,Socket,Node,,L1d,L1i,L2,L3"
"""The columns of `lscpu -p` since util-linux 2.19, where the comments with them were cut away."""
_NONE: Final = "-"
_OFFLINE: Final = ("no", "n", "false")
_SCALES: Final = {"K": KIB, "M": MIB, "G": GIB, "T": 1024 * GIB}


class Imported(NamedTuple):
    """A machine, and what had to be assumed about it."""

    machine: Machine
    assumed: tuple[str, ...]


class _Numactl(Struct):
    announced: NodeSet | None = None
    cpus: dict[int, CpuSet] = {}
    memory_bytes: dict[int, int] = {}
    columns: list[int] = []
    rows: dict[int, list[int]] = {}
    without_numa: bool = False
    sharing: NodeSet = NodeSet()
    """Nodes with CPUs that an earlier one has too."""


_OF_OTHER_KINDS: Final = 1.1
"""So many times the frequency of the slowest core is not that of one of its kind."""

_MAX_DIGITS: Final = 6
"""Of a frequency in MHz."""


class _Lscpu(NamedTuple):
    """One CPU's row by lower-case column names."""

    cpu: int
    row: Mapping[str, str]

    def number(self, column: str) -> int | None:
        text = self.row.get(column, "")
        return int(text) if text.isdecimal() else None

    def whole_part(self, column: str) -> int:
        """Of a number with decimals, which some languages write with a comma; 0 where there is none."""
        digits = self.row.get(column, "").replace(",", ".").partition(".")[0]
        return int(digits[:_MAX_DIGITS]) if digits.isdecimal() else 0

    @property
    def online(self) -> bool:
        """What the column says, whose words are the reader's language: an offline CPU has no core, socket,
        node or cache either."""
        known = [text for name, text in self.row.items() if name.startswith(("core", "socket", "node", "l1"))]
        placed = not known or any(text not in ("", _NONE) for text in known)
        return placed and self.row.get("online", "yes").lower() not in _OFFLINE

    def cache(self, name: str) -> int | None:
        """Of columns of their own, or of one such as ``L1d:L1i:L2:L3``."""
        for column, text in self.row.items():
            names, values = column.split(":"), text.split(":")
            if name in names and len(names) == len(values):
                value = values[names.index(name)]
                return int(value) if value.isdecimal() else None
        return None


def is_tool_output(text: str) -> bool:
    """Whether *text* has something of one of these tools."""
    return bool(_JSON.search(text)) or any(
        _AVAILABLE.match(line)
        or _CPUS.match(line)
        or _NO_NUMA.search(line)
        or _PARSABLE.match(line)
        or _TABLE.match(line)
        or _is_usual(line)
        or (_FIELD.match(line) and "CPU(s)" in line)
        for line in _TAG.sub("", text).splitlines()
    )


def machine_of_outputs(text: str) -> Imported:
    """The machine that the outputs in *text* describe.

    Raises:
        InvalidValueError: they contradict each other, or something of them is missing.
    """
    text = _TAG.sub("", text)
    lines = text.splitlines()
    numactl = _numactl(lines)
    assumed: list[str] = []
    listed = _lscpu(text, lines, assumed)
    if not numactl.cpus and numactl.memory_bytes:
        # Those before 2.0 print no CPUs.
        online = [one for one in listed if one.online]
        numactl.cpus = {
            node: CpuSet(one.cpu for one in online if (one.number("node") or 0) == node)
            for node in numactl.memory_bytes
            if online
        }
    if not numactl.cpus and not listed:
        found = "No NUMA available" if numactl.without_numa else "no CPU"
        expected = "the output of numactl -H, of lscpu -p, or of LC_ALL=C lscpu, whole"
        raise invalid("the file", found, expected)
    if not numactl.cpus:
        return _without_numactl(listed, _node_lists(_summary(text)), assumed)
    _check(numactl, listed)
    nodes = tuple(
        Node(
            node,
            cpus,
            numactl.memory_bytes[node],
            distances=_distances(numactl, node),
            tier=0 if numactl.sharing and (cpus or node in numactl.sharing) else None,
        )
        for node, cpus in sorted(numactl.cpus.items())
    )
    if not numactl.rows and len(nodes) > 1:
        assumed.append(f"distances of {LOCAL_DISTANCE} and {REMOTE_DISTANCE}, as no output has them")
    if not any(node.memory_bytes for node in nodes):
        raise invalid("node size", "0 MB on every node", "memory on at least one")
    rows = listed or _of_lists(numactl.cpus.values(), assumed)
    node_of = {cpu: node.id for node in nodes for cpu in node.cpus}
    assumed.append("no huge pages, and no memory of devices")
    remarks = (shared_cpus(numactl.sharing),) if numactl.sharing else ()
    cpus = _cpus(rows, node_of, assumed, known=bool(listed))
    return Imported(Machine(nodes, cpus, remarks=remarks), tuple(assumed))


def _numactl(lines: Sequence[str]) -> _Numactl:
    columns, rows = _distance_table(lines)
    found = _Numactl(cpus=_lists(lines), columns=columns, rows=rows)
    for line in lines:
        if match := _AVAILABLE.match(line):
            found.announced = _ids(NodeSet, "available", match[1])
        elif match := _SIZE.match(line):
            amount = int(match[2] or 0) * _SCALES[match[3] or "M"]
            found.memory_bytes[int(match[1])] = amount
        elif _NO_NUMA.search(line):
            found.without_numa = True
    return found


def _distance_table(lines: Iterable[str]) -> tuple[list[int], dict[int, list[int]]]:
    """The columns, and the row of each node; both can go on on the next line, as terminals break them."""
    columns: list[int] = []
    rows: dict[int, list[int]] = {}
    row: list[int] | None = None
    begun = False
    for line in lines:
        more = _MORE.match(line)
        numbers = [int(one) for one in more[1].split()] if more else []
        if _DISTANCES.match(line):
            begun = True
        elif not begun:
            continue
        elif numbers and row is None and columns and numbers[0] > columns[-1]:
            columns += numbers
        elif numbers and row is not None and len(row) < len(columns):
            row += numbers
        elif match := _HEADER.match(line):
            columns = [int(column) for column in match[1].split()]
        elif match := _ROW.match(line):
            row = rows[int(match[1])] = [int(column) for column in match[2].split()]
        if columns and row is not None:
            begun = len(rows) < len(columns) or len(row) < len(columns)
    return columns, rows


def _lists(lines: Iterable[str]) -> dict[int, CpuSet]:
    """The CPUs of each node; a list can go on on the next line."""
    lists: defaultdict[int, list[CpuSet]] = defaultdict(list)
    node: int | None = None
    for line in lines:
        if match := _CPUS.match(line):
            node = int(match[1])
            lists[node].append(_ids(CpuSet, f"node {node} cpus", _TOLD.split(match[2])[0].strip(" \t|`")))
        elif node is not None and (match := _MORE.match(line)):
            lists[node][-1] |= _ids(CpuSet, f"node {node} cpus", match[1])
        else:
            node = None
    for node, several in lists.items():
        if len(set(several)) > 1:
            raise invalid(f"node {node} cpus", " and ".join(map(str, several)), "the output of one machine")
    return {node: several[0] for node, several in lists.items()}


def _of_lists(lists: Iterable[CpuSet], assumed: list[str]) -> list[_Lscpu]:
    """The CPUs of numactl's lists. Where every node has two runs of them, as long and half of all CPUs apart,
    they are the first and the second threads of its cores, as Linux numbers them on x86."""
    of_nodes = [list(cpus) for cpus in lists if cpus]
    half = sum(map(len, of_nodes)) // 2
    firsts = [cpus[: len(cpus) // 2] for cpus in of_nodes]
    apart = half > 0 and all(
        len(first) > 1
        and first[-1] - first[0] == len(first) - 1
        and first[-1] + 1 < first[0] + half
        and cpus == [*first, *(cpu + half for cpu in first)]
        for first, cpus in zip(firsts, of_nodes, strict=True)
    )
    if not apart:
        return [_Lscpu(cpu, {}) for cpus in of_nodes for cpu in cpus]
    assumed.append(f"two threads of each core, {half} apart, as every node has two runs of CPUs")
    return [_Lscpu(cpu, {"core": str(cpu % half)}) for cpus in of_nodes for cpu in cpus]


def _check(numactl: _Numactl, listed: list[_Lscpu]) -> None:
    """That nothing was cut off, and both tools say the same. A CPU of several nodes (numa=fake) counts in the
    first, as `bayplan.host.sysfs` has it."""
    collector = ProblemCollector()
    known = NodeSet(numactl.cpus)
    announced = numactl.announced or known
    if not announced <= known:
        expected = f"all that are available: {announced}"
        collector.problems.append(Problem("node cpus", nodes_text(known), expected))
    collector.problems += [
        Problem(f"node {node} size", "nothing", "an amount in MB")
        for node in known
        if node not in numactl.memory_bytes
    ]
    listed_cpus, numactl.cpus = numactl.cpus, in_first_nodes(numactl.cpus)
    numactl.sharing = NodeSet(node for node in known if listed_cpus[node] != numactl.cpus[node])
    node_of = {cpu: node for node, cpus in numactl.cpus.items() for cpu in cpus}
    if numactl.rows:
        collector.problems += _wrong_distances(numactl, known)
    if listed:
        collector.problems += _contradictions(node_of, listed)
    collector.raise_problems()


def _wrong_distances(numactl: _Numactl, known: NodeSet) -> Iterator[Problem]:
    ids = numactl.columns or sorted(numactl.rows)
    if NodeSet(ids) != known or set(numactl.rows) != set(ids):
        found = f"rows of {nodes_text(NodeSet(numactl.rows))} and columns of {nodes_text(NodeSet(ids))}"
        yield Problem("node distances", found, f"those of {nodes_text(known)}")
    for node, row in numactl.rows.items():
        if len(row) != len(ids) or not all(LOCAL_DISTANCE <= one <= MAX_DISTANCE for one in row):
            found = " ".join(map(str, row))
            yield Problem(
                f"node distances of node {node}", found, f"{counted(len(ids), 'distance')} of 10 to 255"
            )


def _contradictions(node_of: Mapping[int, int], listed: list[_Lscpu]) -> Iterator[Problem]:
    online = [one for one in listed if one.online]
    for one in online:
        node = one.number("node")
        if node is not None and node_of.get(one.cpu, node) != node:
            found = f"on node {node} by lscpu, on node {node_of[one.cpu]} by numactl"
            yield Problem(f"CPU {one.cpu}", found, "outputs of one machine")
    cpus = CpuSet(one.cpu for one in online)
    if cpus != CpuSet(node_of):
        found = f"{cpus} by lscpu, {CpuSet(node_of)} by numactl"
        yield Problem("CPUs", found, "outputs of one machine, whole")


def _distances(numactl: _Numactl, node: int) -> dict[int, int]:
    ids = numactl.columns or sorted(numactl.rows)
    if numactl.rows:
        return dict(sorted(zip(ids, numactl.rows[node], strict=True)))
    return assumed_distances(node, numactl.cpus)


def _without_numactl(listed: list[_Lscpu], lists: Mapping[int, CpuSet], assumed: list[str]) -> Imported:
    """The machine of lscpu alone, which knows nodes with CPUs and no memory: those of its rows, and by the
    *lists* of its summary those that share CPUs (numa=fake), each an equal part of the memory there."""
    node_of = {one.cpu: one.number("node") or 0 for one in listed if one.online}
    if not node_of:
        raise invalid("the file", "no CPU that is online", "at least one")
    own = {node: CpuSet(cpu for cpu, of in node_of.items() if of == node) for node in set(node_of.values())}
    near = own | {node: cpus & CpuSet(node_of) for node, cpus in lists.items()}
    sharing = NodeSet(node for node, cpus in near.items() if cpus and node not in own)
    ids = sorted({*own, *sharing})
    nodes = []
    for node in ids:
        beside = [other for other in ids if other == node or (sharing and near[other] == near[node])]
        distances = assumed_distances(node, ids) | dict.fromkeys(beside, LOCAL_DISTANCE)
        memory_bytes = len(near[node]) * ASSUMED_BYTES_PER_CPU // len(beside)
        tier = 0 if sharing else None
        nodes.append(Node(node, own.get(node, CpuSet()), memory_bytes, distances=distances, tier=tier))
    assumed.append(assumed_memory())
    if len(ids) > 1:
        assumed.append(f"distances of {LOCAL_DISTANCE} and {REMOTE_DISTANCE}, as lscpu has none")
    empty = NodeSet(node for node, cpus in near.items() if not cpus)
    if empty:
        assumed.append(f"no memory on {nodes_text(empty)}, as lscpu says nothing of memory without CPUs")
    remarks = (shared_cpus(sharing),) if sharing else ()
    cpus = _cpus(listed, node_of, assumed, known=True)
    return Imported(Machine(tuple(nodes), cpus, remarks=remarks), tuple(assumed))


def assumed_memory() -> str:
    """The assumption where nothing says how much memory there is."""
    return f"{format_bytes(ASSUMED_BYTES_PER_CPU)} of memory for each CPU, as nothing says how much there is"


def assumed_distances(node: int, ids: Iterable[int]) -> dict[int, int]:
    """The distances of *node* from the nodes *ids* where nothing says them: the kernel's own defaults."""
    return {other: LOCAL_DISTANCE if other == node else REMOTE_DISTANCE for other in sorted(ids)}


def _cpus(
    rows: Collection[_Lscpu], node_of: Mapping[int, int], assumed: list[str], *, known: bool
) -> tuple[Cpu, ...]:
    lowest: dict[tuple[str, int], int] = {}

    def first(column: str, value: int | None, cpu: int) -> int | None:
        return None if value is None else lowest.setdefault((column, value), cpu)

    cpus, without_core, without_socket, caches = [], False, False, False
    for one in sorted(rows, key=lambda row: row.cpu):
        node = node_of.get(one.cpu)
        if not one.online:
            cpus.append(Cpu(one.cpu, one.cpu, UNKNOWN_SOCKET, node, None, online=False))
            continue
        core, socket, l3 = one.number("core"), one.number("socket"), one.cache("l3")
        without_core, without_socket = without_core or core is None, without_socket or socket is None
        caches = caches or l3 is not None
        cpus.append(
            Cpu(
                one.cpu,
                # lscpu -y has the kernel's ids of cores, which repeat in every socket.
                one.cpu if core is None else lowest.setdefault((f"core {socket}", core), one.cpu),
                (node or 0) if socket is None else socket,
                node,
                first("l3", l3, one.cpu),
            )
        )
    if without_core:
        assumed.append("a core for each CPU, as " + ("lscpu" if known else "numactl") + " has no cores here")
    if without_socket:
        assumed.append("a socket for each node with CPUs")
    if not caches:
        assumed.append("no L3 caches that are known")
    assumed += _one_kind(one for one in rows if one.online)
    return tuple(cpus)


def _one_kind(rows: Iterable[_Lscpu]) -> Iterator[str]:
    """That cores whose greatest frequencies are far apart were taken for one kind: a few percent are between
    those of one kind, too."""
    speeds = {speed for one in rows if (speed := one.whole_part("maxmhz"))}
    if speeds and max(speeds) >= min(speeds) * _OF_OTHER_KINDS:
        found = f"{min(speeds)} to {max(speeds)} MHz at most"
        yield f"one kind of cores, though these have {found}: a description can have `kinds`"


def _lscpu(text: str, lines: list[str], assumed: list[str]) -> list[_Lscpu]:
    """The CPUs that lscpu lists, each once; those of its summary where it lists none."""
    found: dict[int, _Lscpu] = {}
    for one in (*_json_rows(text), *_text_rows(lines, assumed)):
        # Those that follow may be of `lscpu -y`, whose ids repeat.
        found.setdefault(one.cpu, one)
    fields = _summary(text)
    if found:
        return _apart(sorted(found.values()), _number(fields, _THREADS, 0), assumed)
    if _ONLINE not in fields and not _node_lists(fields):
        if "{" in text and fields:
            raise invalid(
                "lscpu", f"no {_ONLINE}", f"{_THREADS} and {_ONLINE}, as LC_ALL=C lscpu prints them"
            )
        return []
    assumed.append(
        "threads and sockets in order, and caches if their number is known, as lscpu without -p has only sums"
    )
    return sorted(_of_sums(fields, assumed))


def _apart(rows: list[_Lscpu], threads: int, assumed: list[str]) -> list[_Lscpu]:
    """With a core for each CPU where lscpu repeats a core's id, as on Arm, where some clusters number their
    cores anew: more than two CPUs without a common L1 cache, or those of a machine with one of *threads* in
    each core, are of several. Virtual machines can have two threads of a core with an L1 cache for each."""
    cores: defaultdict[tuple[str | None, str | None], list[_Lscpu]] = defaultdict(list)
    for one in rows:
        if one.online and one.number("core") is not None:
            cores[one.row.get("socket"), one.row.get("core")].append(one)
    several = CpuSet(
        one.cpu
        for members in cores.values()
        if len(members) > 1
        and (threads == 1 or (len(members) > _MOST_X86_THREADS and not _share_a_cache(members)))
        for one in members
    )
    if not several:
        return rows
    assumed.append(f"a core for each of {cpus_text(several)}, as they share nothing but the number of a core")
    return [
        one._replace(row={**one.row, "core": str(CpuSet.max_id + 1 + one.cpu)}) if one.cpu in several else one
        for one in rows
    ]


def _share_a_cache(members: Sequence[_Lscpu]) -> bool:
    """Whether any two of them do, or it is not known."""
    caches = [[one.cache(name) for one in members] for name in ("l1d", "l1i")]
    known = [ids for ids in caches if None not in ids]
    return not known or any(len(set(ids)) < len(ids) for ids in known)


def _text_rows(lines: Iterable[str], assumed: list[str]) -> Iterator[_Lscpu]:
    columns: list[str] = []
    separator: str | None = ","
    guessed = False
    for line in lines:
        if match := _PARSABLE.match(line):
            columns, separator = match[1].lower().split(","), ","
        elif match := _TABLE.match(line):
            columns, separator = match[1].lower().split(), None
        elif (match := _PARSED.match(line)) and separator:
            if not columns and not _is_usual(line):
                continue
            if not columns and not guessed:
                guessed = True
                assumed.append(f"the columns {_USUAL} of lscpu -p, as their names were cut away")
            yield _row(columns or _USUAL.lower().split(","), match[1].split(","), line)
        elif columns and separator is None and (match := _TABLED.match(line)):
            yield _row(columns, match[1].split(), line)


def _is_usual(line: str) -> bool:
    """Whether *line* is a row of `lscpu -p` as it is without options: its fifth column is empty."""
    match = _PARSED.match(line)
    cells = match[1].split(",") if match else []
    return len(cells) >= len(["CPU", "Core", "Socket", "Node", "", "L1d"]) and not cells[4]


def _row(columns: list[str], cells: list[str], line: str) -> _Lscpu:
    caches = [name for name in columns if _CACHE.fullmatch(name)]
    without = [name for name in columns if name not in caches]
    if len(without) < len(cells) < len(columns):
        # A CPU that lacks a cache has fewer cells, and nothing says which.
        first = columns.index(caches[0])
        last = len(columns) - first - len(caches)
        columns, cells = without, [*cells[:first], *cells[len(cells) - last :]]
    if len(cells) < len(columns):
        raise invalid(
            "lscpu", repr(line.strip()), f"{counted(len(columns), 'column')}: {' '.join(columns).upper()}"
        )
    return _Lscpu(int(cells[0]), {name: cell for name, cell in zip(columns, cells, strict=False) if name})


def _json_rows(text: str) -> Iterator[_Lscpu]:
    """The CPUs of `lscpu -e -J`."""
    for document in _documents(text):
        rows = document.get("cpus")
        for row in rows if isinstance(rows, list) else ():
            cells = {str(key).lower(): _text(value) for key, value in row.items()}
            if not cells.get("cpu", "").isdecimal():
                raise invalid("cpus", f"a row without cpu: {row}", "rows of lscpu -e -J")
            yield _Lscpu(int(cells["cpu"]), cells)


def _summary(text: str) -> dict[str, str]:
    """The fields of `lscpu` and of `lscpu -J`."""
    fields: dict[str, str] = {}
    for document in _documents(text):
        entries = document.get("lscpu")
        fields |= _fields(entries) if isinstance(entries, list) else {}
    matches = filter(None, map(_FIELD.match, text.splitlines()))
    found = {match[1].strip(): (match[2] or "").strip() for match in matches}
    # People also show what `lscpu | grep NUMA` leaves of it.
    known = _ONLINE in found or any(map(_OF_NODE.fullmatch, found))
    return fields | (found if known else {})


def _documents(text: str) -> Iterator[Mapping[str, Any]]:
    """The JSON objects that begin on a line of their own."""
    text, decoder, position = _NO_TEXT.sub(r"\1null\2", text), json.JSONDecoder(), 0
    while (match := re.compile(r"^\s*(\{)", re.MULTILINE).search(text, position)) is not None:
        try:
            document, position = decoder.raw_decode(text, match.start(1))
        except (ValueError, RecursionError) as error:
            raise invalid("lscpu -J", str(error), "JSON that is whole") from error
        if isinstance(document, Mapping):
            yield document


def _fields(entries: Iterable[Any]) -> dict[str, str]:
    """The fields of `lscpu -J` at all depths, by their names without the colon."""
    fields: dict[str, str] = {}
    for entry in entries:
        if isinstance(entry, Mapping):
            fields[str(entry.get("field", "")).rstrip(":").strip()] = _text(entry.get("data"))
            children = entry.get("children")
            fields |= _fields(children) if isinstance(children, list) else {}
    return fields


def _of_sums(fields: Mapping[str, str], assumed: list[str]) -> Iterator[_Lscpu]:
    """The CPUs of lscpu's summary: nodes are listed, threads and sockets only counted. Threads are taken as
    Linux numbers them on x86, the second ones after the first ones of all cores, unless they would be of two
    nodes, or only some cores have two; sockets and caches go by the nodes."""
    lists = _node_lists(fields)
    announced = _number(fields, "NUMA node(s)", len(lists))
    if announced > len(lists) > 0:
        raise invalid(
            "lscpu", f"{counted(len(lists), 'list')} NUMA nodeN CPU(s)", f"{announced}, one for each node"
        )
    listed = {cpu: "" for cpus in lists.values() for cpu in cpus}
    own = list(
        _ids(CpuSet, _ONLINE, _STRIDE.sub(r"\1:1/\2", fields[_ONLINE]))
        if _ONLINE in fields
        else CpuSet(listed)
    )
    node_of = {cpu: node for node, cpus in in_first_nodes(lists).items() for cpu in cpus}
    sockets = _number(fields, "Socket(s)", 0)
    by_core = _cores_of_sums(own, fields, node_of, max(1, sockets), assumed)
    instances = re.search(r"\((\d{1,4}) instances?\)", fields.get("L3 cache", fields.get("L3", "")))
    node_of_core: dict[int, int] = {}
    for cpu, core in by_core.items():
        node_of_core.setdefault(core, node_of.get(cpu, 0))
    ordered = sorted(node_of_core, key=lambda core: (node_of_core[core], core))
    place = {core: number for number, core in enumerate(ordered)}
    for cpu, core in by_core.items():
        row = {"core": str(core)}
        if sockets:
            row["socket"] = str(place[core] * sockets // len(place))
        if instances:
            row["l3"] = str(place[core] * int(instances[1]) // len(place))
        yield _Lscpu(cpu, {**row, "node": str(node_of.get(cpu, 0))})


def _cores_of_sums(
    own: Sequence[int],
    fields: Mapping[str, str],
    node_of: Mapping[int, int],
    sockets: int,
    assumed: list[str],
) -> dict[int, int]:
    """The core of each of the CPUs *own*."""
    threads = max(1, _number(fields, _THREADS, 1))
    cores = sockets * _number(fields, "Core(s) per socket", 0)
    more = len(own) - cores
    if threads > 1 and 0 < more < cores * (threads - 1) and more % (threads - 1) == 0:
        wide = more // (threads - 1) * threads
        have = f"{counted(cores, 'core')} have {counted(len(own), 'CPU')}"
        assumed.append(f"several threads in each core of the first {counted(wide, 'CPU')}, as {have}")
        return {cpu: position // threads if position < wide else position for position, cpu in enumerate(own)}
    cores = max(1, len(own) // threads)
    by_core = {cpu: position % cores for position, cpu in enumerate(own)}
    of_one_node = all(node_of.get(cpu) == node_of.get(own[core]) for cpu, core in by_core.items())
    if fields.get("Architecture", "").startswith(_ADJACENT) or not of_one_node:
        return {cpu: position // threads for position, cpu in enumerate(own)}
    return by_core


def _node_lists(fields: Mapping[str, str]) -> dict[int, CpuSet]:
    """The CPUs of each node by lscpu's summary, those that are empty as well."""
    return {
        int(match[1]): _ids(CpuSet, name, "" if cpus == _NONE else _STRIDE.sub(r"\1:1/\2", cpus))
        for name, cpus in fields.items()
        if (match := _OF_NODE.fullmatch(name))
    }


def _number(fields: Mapping[str, str], name: str, default: int) -> int:
    text = fields.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else default


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


def _ids(kind: type[S], what: str, text: str) -> S:
    try:
        return kind.parse(text)
    except ParseError as error:
        raise invalid(what, text, error.expected) from error

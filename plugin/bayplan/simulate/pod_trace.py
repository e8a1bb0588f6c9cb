"""Pods with times, as public traces of clusters have them: read from JSON lines or CSV, columns named.

Here is what a scheduler sees of a pod (amounts, times, how many of a group one node may hold), how columns
are named and scaled, two public formats by name, and how a trace is cut to the size of a cluster. What a pod
asks a node for is `bayplan.simulate.manifest`. A trace is sorted by arrival, and names are unique: whoever
plays it relies on both.
"""

import csv
import heapq
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import partial
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from bayplan.config.values import ProblemCollector, invalid, items, show
from bayplan.errors import ConfigError, Problem, excerpt
from bayplan.files import MIB, STANDARD_INPUT, given_text
from bayplan.model.decision import QosClass
from bayplan.printable import pattern
from bayplan.quantity import GIB, KIB

MAX_TRACE_BYTES: Final = 512 * MIB
"""Some three million pods."""
_MOST_PROBLEMS: Final = 20
"""A wrong column is wrong in every row."""

_NUMBERED: Final = pattern(r"#[1-9][0-9]*")
"""A column of a file without a line of names."""
_DELIMITERS: Final = ",\t;"
"""The first of these that the first line has separates fields; where there is none, blanks do."""
_BLANK: Final = " "
_REMARK: Final = ";"
"""Begins a line of the Standard Workload Format that is no job."""
RESOURCE: Final = "resource."
"""What stands before the name of an extended resource in the name of a field."""
_DATE: Final = "date"
"""Of times: ISO 8601, also with a space in it, and UTC where no zone is given."""
_PODS: Final = "pods"
_TOTAL: Final = "total"
_UNITS: Final[Mapping[str, Mapping[str, Decimal]]] = MappingProxyType(
    {
        "cpus": {"": Decimal(1000), "cores": Decimal(1000), "milli": Decimal(1)},
        "memory": {
            "": Decimal(1), "B": Decimal(1), "Ki": Decimal(KIB), "Mi": Decimal(MIB), "Gi": Decimal(GIB)
        },
        "arrives": {
            "": Decimal(1), "s": Decimal(1), "us": Decimal("0.000001"), "ms": Decimal("0.001"),
            _DATE: Decimal(1), "min": Decimal(60), "h": Decimal(3600), "d": Decimal(86400),
        },
        RESOURCE: {"": Decimal(1)},
        _PODS: {"": Decimal(1), "each": Decimal(1), _TOTAL: Decimal(1)},
    }
)  # fmt: skip
"""By what the number of a column is multiplied: to milli-CPUs, bytes, seconds, pieces."""
_KIND_OF: Final = {
    "cpus": "cpus",
    "cpusLimit": "cpus",
    "memory": "memory",
    "memoryLimit": "memory",
    "arrives": "arrives",
    "starts": "arrives",
    "ends": "arrives",
    "lasts": "arrives",
}
_TEXTS: Final = ("name", "qos", "group")
FIELDS: Final = (*_TEXTS, *_KIND_OF, "mostPerNode", _PODS, f"{RESOURCE}NAME")
_MOST_PODS: Final = 10_000
"""Of one row."""
_QOS: Final = {one.value: one for one in QosClass}


class TimedPod(Struct, frozen=True):
    """A pod of a trace. Amounts are of the whole pod, limits of 0 are none; ``resources`` are pieces of
    extended resources by name, ``lasts_s`` how long it runs once it runs (None: on beyond the end),
    ``most_per_node`` how many pods of its ``group`` one node may hold (0: any)."""

    name: str
    arrives_s: float
    milli_cpus: int
    memory_bytes: int
    lasts_s: float | None = None
    milli_cpus_limit: int = 0
    memory_limit_bytes: int = 0
    qos: QosClass = QosClass.GUARANTEED
    resources: Mapping[str, int] = MappingProxyType({})
    group: str = ""
    most_per_node: int = 0

    @property
    def shape(self) -> tuple[object, ...]:
        """What two pods have in common that every scheduler and node treats alike."""
        amounts = (self.milli_cpus, self.milli_cpus_limit, self.memory_bytes, self.memory_limit_bytes)
        return (*amounts, self.qos, tuple(self.resources.items()), self.group if self.most_per_node else "")


class TraceFormat(Struct, frozen=True):
    """How rows become pods: ``columns`` has ``(column, unit)`` by field, and ``constants`` what stands in no
    column; ``shared``: amounts of a row are of all its pods together. ``qos`` names of a trace are mapped
    to classes; a name that is not there has the class that its amounts give it."""

    columns: Mapping[str, tuple[str, str]]
    qos: Mapping[str, QosClass] = MappingProxyType({})
    constants: Mapping[str, str] = MappingProxyType({})
    shared: bool = False


FORMATS: Final[Mapping[str, TraceFormat]] = MappingProxyType(
    {
        "alibaba-gpu-2023": TraceFormat(
            {
                "name": ("name", ""),
                "cpus": ("cpu_milli", "milli"),
                "memory": ("memory_mib", "Mi"),
                "resource.gpu": ("num_gpu", ""),
                "arrives": ("creation_time", "s"),
                "starts": ("scheduled_time", "s"),
                "ends": ("deletion_time", "s"),
                "qos": ("qos", ""),
            },
            qos={
                "LS": QosClass.GUARANTEED,
                "BE": QosClass.BURSTABLE,
                "Burstable": QosClass.BURSTABLE,
                "Guaranteed": QosClass.GUARANTEED,
            },
        ),
        "alibaba-gpu-2025": TraceFormat(
            {
                "name": ("instance_sn", ""),
                "cpus": ("cpu_request", "cores"),
                "cpusLimit": ("cpu_limit", "cores"),
                "memory": ("memory_request", "Gi"),
                "memoryLimit": ("memory_limit", "Gi"),
                "resource.gpu": ("gpu_request", ""),
                "resource.rdma": ("rdma_request", ""),
                "arrives": ("creation_time", "s"),
                "starts": ("scheduled_time", "s"),
                "ends": ("deletion_time", "s"),
                "group": ("app_name", ""),
                "mostPerNode": ("max_instance_per_node", ""),
            }
        ),
    }
)
"""Public formats (github.com/alibaba/clusterdata): cluster-trace-gpu-v2023 and cluster-trace-gpu-v2025. The
former calls latency-sensitive pods LS; what it calls BE requests CPUs and memory, so that it is Burstable for
kubelet. The rows of the latter have no time where a pod was there before the trace began or is there after
its end."""
PLAIN: Final = TraceFormat({field: (field, "") for field in (*_TEXTS, *_KIND_OF, "mostPerNode")})
"""Columns that are called as the fields are, in cores, bytes and seconds."""


def read_pod_trace(path: Path, name: str = "", columns: Sequence[str] = ()) -> list[TimedPod]:
    """The pods of the file at *path* (``-``: the standard input) by arrival. *name* is one of `FORMATS`;
    *columns* are ``FIELD=COLUMN[:UNIT]``, or ``FIELD==VALUE[:UNIT]`` for all rows, instead of its. Where
    times are dates the first pod arrives at 0.

    Raises:
        ConfigError: everything that is wrong with the flags or the file, up to 20 rows.
    """
    trace_format = _format(name, columns)
    content = given_text(path, "a trace of pods, CSV or JSON lines", MAX_TRACE_BYTES)
    where = "standard input" if str(path) == STANDARD_INPUT else str(path)
    collector = ProblemCollector()
    pods: list[TimedPod] = []
    with collector:
        for place, row in _rows(content, trace_format):
            with collector:
                pods += _pods(place, row, trace_format)
            if len(collector.problems) >= _MOST_PROBLEMS:
                break
    if not collector.problems:
        collector.problems += _repeated(pods)
        if not pods:
            collector.problems.append(Problem("the file", "no row", "a row for each pod"))
    if collector.problems:
        raise ConfigError(where, tuple(collector.problems[:_MOST_PROBLEMS]))
    if any(unit == _DATE for _, unit in trace_format.columns.values()):
        first_s = min(pod.arrives_s for pod in pods)
        pods = [replace(pod, arrives_s=pod.arrives_s - first_s) for pod in pods]
    return sorted(pods, key=lambda pod: (pod.arrives_s, pod.name))


def scaled(
    pods: Sequence[TimedPod], milli_cpus: int, memory_bytes: int, load: float, seed: int
) -> list[TimedPod]:
    """A random part of *pods*, or all and copies of some (their names end in ``+2``, ``+3`` and so on), so
    that the most that is asked for at once is about *load* of so many milli-CPUs or bytes.

    Times stay as they are, so that a small cluster sees the same days as a large one.
    """
    peak_milli, peak_bytes = peak(pods)
    factor = load * min(milli_cpus / max(peak_milli, 1), memory_bytes / max(peak_bytes, 1))
    rng = random.Random(seed)  # noqa: S311 - which pods, repeatable
    chosen: list[TimedPod] = []
    for pod in pods:
        copies = int(factor) + (rng.random() < factor - int(factor))
        chosen += [
            pod if copy == 1 else replace(pod, name=f"{pod.name}+{copy}") for copy in range(1, copies + 1)
        ]
    return chosen


def peak(pods: Iterable[TimedPod]) -> tuple[int, int]:
    """The most milli-CPUs and the most bytes that are asked for at once, were every pod to start as it
    arrives."""
    ends: list[tuple[float, int, int]] = []
    milli = size_bytes = most_milli = most_bytes = 0
    for pod in pods:
        while ends and ends[0][0] <= pod.arrives_s:
            _, less_milli, less_bytes = heapq.heappop(ends)
            milli, size_bytes = milli - less_milli, size_bytes - less_bytes
        milli, size_bytes = milli + pod.milli_cpus, size_bytes + pod.memory_bytes
        most_milli, most_bytes = max(most_milli, milli), max(most_bytes, size_bytes)
        if pod.lasts_s is not None:
            heapq.heappush(ends, (pod.arrives_s + pod.lasts_s, pod.milli_cpus, pod.memory_bytes))
    return most_milli, most_bytes


def _format(name: str, columns: Sequence[str]) -> TraceFormat:
    if name and name not in FORMATS:
        problem = Problem("--trace-format", repr(name), f"one of {', '.join(FORMATS)}")
        raise ConfigError("command line", (problem,))
    chosen = FORMATS.get(name, PLAIN)
    named, constants, shared = dict(chosen.columns), dict(chosen.constants), chosen.shared
    problems: list[Problem] = []
    for text in columns:
        field, equals, source = text.partition("=")
        constant = source.startswith("=")
        source = source.removeprefix("=")
        column, _, unit = source.rpartition(":") if ":" in source else (source, "", "")
        kind = (
            RESOURCE if field.startswith(RESOURCE) else _KIND_OF.get(field, field if field == _PODS else "")
        )
        units = _UNITS.get(kind, {"": Decimal(1)})
        known = field in FIELDS[:-1] or (kind == RESOURCE and field != RESOURCE)
        if not equals or not column or not known:
            problems.append(
                Problem(
                    "--column",
                    repr(text),
                    f"FIELD=COLUMN[:UNIT] or FIELD==VALUE[:UNIT], with one of {', '.join(FIELDS)}",
                )
            )
        elif unit not in units:
            expected = f"one of the units {', '.join(filter(None, units))}" if len(units) > 1 else "no unit"
            problems.append(Problem(f"--column {field}", repr(unit), expected))
        else:
            # In no file: a column's name is not empty.
            named[field] = ("" if constant else column, unit)
            constants[field] = column if constant else ""
            shared = unit == _TOTAL if field == _PODS else shared
    if problems:
        raise ConfigError("command line", tuple(problems))
    return replace(chosen, columns=named, constants=constants, shared=shared)


def _rows(content: str, trace_format: TraceFormat) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows, each with where it is. JSON lines begin with a brace."""
    if content.lstrip().startswith("{"):
        for number, line in enumerate(content.splitlines(), 1):
            if line.strip():
                try:
                    yield f"line {number}", _flat(items(f"line {number}", json.loads(line)))
                except (ValueError, RecursionError) as error:
                    raise invalid(f"line {number}", str(error), "a JSON object") from error
        return
    try:
        reader = _separated(content.splitlines(), trace_format)
        _check_columns(reader.fieldnames or (), trace_format)
    except csv.Error as error:
        raise invalid("the first line", str(error), "CSV") from error
    yield from _rows_of(reader)


def _check_columns(present: Sequence[str], trace_format: TraceFormat) -> None:
    for field, (column, _) in trace_format.columns.items():
        # What is called as its field is may be left out, but for the amounts; others somebody has named.
        optional = column == field and field not in {"cpus", "memory"}
        if column and column not in present and not optional:
            raise invalid(
                "the first line",
                excerpt(", ".join(present)) or "nothing",
                f"the column {column}, or --column",
            )


def _rows_of(reader: "csv.DictReader[str]") -> Iterator[tuple[str, Mapping[str, Any]]]:
    columns = len(reader.fieldnames or ())
    try:
        for row in reader:
            where = f"line {reader.line_num}"
            if None in row:
                raise invalid(where, f"{columns + len(row[None])} fields", f"{columns}")
            yield where, row
    except csv.Error as error:
        raise invalid(f"line {reader.line_num}", str(error), "CSV") from error


def _separated(lines: Sequence[str], trace_format: TraceFormat) -> "csv.DictReader[str]":
    """A reader of *lines*, of which some may be empty."""
    numbered = any(_NUMBERED.fullmatch(column) for column, _ in trace_format.columns.values())
    if numbered:
        lines = ["" if line.startswith(_REMARK) else line for line in lines]
    first = next(filter(str.strip, lines), "")
    delimiter = next((one for one in _DELIMITERS if one in first), _BLANK)
    blanks = delimiter == _BLANK
    if blanks:
        # All together separate two fields.
        first, lines = first.strip(), [line.strip() for line in lines]
    split = partial(csv.reader, delimiter=delimiter, skipinitialspace=blanks)
    names = [f"#{one}" for one, _ in enumerate(next(split([first]), ()), 1)] if numbered else None
    return csv.DictReader(lines, names, strict=True, delimiter=delimiter, skipinitialspace=blanks)


def _flat(row: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """*row* with what is in an object of it under both names, as ``request.cpus``."""
    found = dict(row)
    inner = {name: value for name, value in found.items() if isinstance(value, dict)}
    return found | {f"{name}.{key}": one for name, value in inner.items() for key, one in value.items()}


class _Row(NamedTuple):
    """A row of a trace, at *where*."""

    where: str
    columns: Mapping[str, Any]
    form: TraceFormat

    def text(self, field: str) -> str:
        """What stands there for *field*, "" for nothing."""
        column, _ = self.form.columns.get(field, (field, ""))
        value = self.form.constants.get(field) or self.columns.get(column)
        return "" if value is None else str(value).strip()

    def number(self, field: str) -> Decimal | None:
        """That as a number in our units."""
        column, unit = self.form.columns.get(field, (field, ""))
        found = self.text(field)
        if not found:
            return None
        kind = RESOURCE if field.startswith(RESOURCE) else _KIND_OF.get(field, "")
        if unit == _DATE:
            return _seconds_of(f"{self.where}: {column or field}", found)
        try:
            value = Decimal(found)
        except InvalidOperation:
            value = Decimal("NaN")
        if field == "mostPerNode" and value == -1:
            return None
        if not value.is_finite() or value < 0:
            raise invalid(f"{self.where}: {column or field}", show(found), "a number that is not negative")
        return value * _UNITS.get(kind, {unit: Decimal(1)})[unit]

    def amount(self, field: str) -> Decimal:
        """Of each of its pods."""
        return (self.number(field) or Decimal(0)) / (self.pods if self.form.shared else 1)

    @property
    def pods(self) -> int:
        """How many pods it is."""
        asked = self.number(_PODS)
        count = 1 if asked is None else int(asked)
        if not 0 < count <= _MOST_PODS or (asked is not None and asked != count):
            expected = f"a whole number from 1 to {_MOST_PODS}"
            raise invalid(f"{self.where}: {_PODS}", show(self.text(_PODS)), expected)
        return count


def _pods(where: str, row: Mapping[str, Any], trace_format: TraceFormat) -> Iterator[TimedPod]:
    """The pods of a row: one, or as many alike as it says."""
    one = _Row(where, row, trace_format)
    pod, count = _pod(one), one.pods
    if count == 1:
        yield pod
        return
    for number in range(1, count + 1):
        yield replace(pod, name=f"{pod.name}.{number}")


def _pod(row: _Row) -> TimedPod:
    resources = {
        field.removeprefix(RESOURCE): ceil(amount)
        for field in row.form.columns
        if field.startswith(RESOURCE) and (amount := row.amount(field))
    }
    arrives = row.number("arrives") or Decimal(0)
    begins, ends, lasts = row.number("starts") or arrives, row.number("ends"), row.number("lasts")
    if lasts is None and ends is not None:
        lasts = max(Decimal(0), ends - begins)
    amounts = [int(row.amount(field)) for field in ("cpus", "memory", "cpusLimit", "memoryLimit")]
    return TimedPod(
        name=row.text("name") or row.where.replace(" ", "-"),
        arrives_s=float(arrives),
        lasts_s=None if lasts is None else float(lasts),
        milli_cpus=amounts[0],
        memory_bytes=amounts[1],
        milli_cpus_limit=amounts[2],
        memory_limit_bytes=amounts[3],
        qos=_class(row.where, row.text("qos"), amounts, row.form),
        resources=resources,
        group=row.text("group"),
        most_per_node=int(row.number("mostPerNode") or 0),
    )


def _seconds_of(where: str, text: str) -> Decimal:
    """Seconds since 1970."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise invalid(where, repr(text), "a date with a time, like 2026-11-26 08:16:00+01:00") from None
    return Decimal(str((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()))


def _class(where: str, name: str, amounts: Sequence[int], trace_format: TraceFormat) -> QosClass:
    """The class that the trace names, else that of the amounts: Guaranteed are those that give no limits, or
    the same ones."""
    cpus, memory, cpus_limit, memory_limit = amounts
    if name:
        known = trace_format.qos or _QOS
        if name not in known:
            raise invalid(f"{where}: qos", repr(name), f"one of {', '.join(known)}")
        return known[name]
    if not any(amounts):
        return QosClass.BEST_EFFORT
    same = cpus_limit in (0, cpus) and memory_limit in (0, memory)
    return QosClass.GUARANTEED if cpus and memory and same else QosClass.BURSTABLE


def _repeated(pods: Iterable[TimedPod]) -> list[Problem]:
    counts = Counter(pod.name for pod in pods)
    return [
        Problem("name", repr(name), "a name that no other row has")
        for name, count in counts.items()
        if count > 1
    ]

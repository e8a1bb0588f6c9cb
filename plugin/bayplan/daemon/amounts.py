"""Readers for amounts of memory and for the reservations that are made of them.

The shapes are KubeletConfiguration's. Whether the machine has such nodes and page sizes is not known here;
`bayplan.daemon.reservations` asks that.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Final

from bayplan.daemon.values import Complaints, Reader, Wrong, items, join, parsed, show, unknown_key
from bayplan.domain.kubelet.pod import CPU
from bayplan.domain.topology import MEMORY, hugepages
from bayplan.errors import Problem
from bayplan.quantity import parse_bytes, parse_milli_cpus

_ALL: Final = 100
_NO_THRESHOLD: Final = ("0%", "100%")


@dataclass(frozen=True, slots=True)
class Threshold:
    """An amount of memory: bytes, or a percentage of the machine's memory. ``text`` is what was written, for
    those who compute with it as kubelet does; empty where thresholds are given, but not this one."""

    amount_bytes: int = 0
    percent: Decimal = Decimal(0)
    text: str = field(default="", compare=False)

    def of(self, capacity_bytes: int) -> int:
        """The amount in bytes on a machine with *capacity_bytes*."""
        return self.amount_bytes + int(capacity_bytes * self.percent / _ALL)


def amount_bytes(path: str, value: object) -> int:
    """A Kubernetes quantity of bytes, 0 or more; a bare number is bytes too."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    return parsed(parse_bytes, path, text, "an amount of memory such as 512Mi or 2Gi")


def positive_bytes(path: str, value: object) -> int:
    """A Kubernetes quantity of more than 0 bytes."""
    amount = amount_bytes(path, value)
    if amount == 0:
        raise Wrong(Problem(path, show(value), "more than 0 bytes"))
    return amount


def threshold(path: str, value: object) -> Threshold:
    """An eviction threshold as kubelet takes it: a quantity of more than 0, or a percentage from 0% to 100%.

    ``0%`` and ``100%``, spelled like this, are no threshold at all.
    """
    if not (isinstance(value, str) and value.endswith("%")):
        quantity_bytes = amount_bytes(path, value)
        if quantity_bytes == 0:
            signal = path.rpartition('."')[2].rstrip('"')
            kubelet = f"eviction threshold {signal} must be positive: {value}"
            raise Wrong(
                Problem(path, show(value), f"more than 0, or '0%' for no threshold; kubelet: {kubelet}")
            )
        return Threshold(quantity_bytes, text=str(value))
    if value in _NO_THRESHOLD:
        return Threshold(text=value)
    try:
        percent = Decimal(value.removesuffix("%"))
    except InvalidOperation:
        percent = Decimal("NaN")
    if not (percent.is_finite() and 0 <= percent <= _ALL):
        raise Wrong(Problem(path, show(value), "a percentage from 0% to 100%"))
    return Threshold(percent=percent, text=value)


def reserved_resources(path: str, value: object) -> dict[str, int]:
    """The memory and huge pages in kubeReserved or systemReserved, in bytes, and ``cpu`` in thousandths.

    The other resources are checked, but nothing here depends on them.
    """
    complaints = Complaints()
    typed: dict[str, int] = {}
    for key, item in items(path, value):
        here = join(path, key)
        with complaints:
            if key == CPU:
                typed[CPU] = _milli_cpus(here, item)
            elif key in _OTHER_RESOURCES:
                _OTHER_RESOURCES[key](here, item)
            else:
                typed[_memory_resource(here, key)] = amount_bytes(here, item)
    complaints.settle()
    return typed


def reserved_memory(path: str, value: object) -> dict[int, dict[str, int]]:
    """reservedMemory: node id -> resource -> bytes."""
    if not isinstance(value, list):
        raise Wrong(Problem(path, show(value), "a list of {numaNode, limits}"))
    complaints = Complaints()
    typed: dict[int, dict[str, int]] = {}
    for position, item in enumerate(value):
        with complaints:
            _add_reservation(f"{path}[{position}]", item, typed)
    complaints.settle()
    return typed


def _add_reservation(path: str, value: object, typed: dict[int, dict[str, int]]) -> None:
    complaints = Complaints()
    parts = dict(items(path, value))
    keys = ("numaNode", "limits")
    complaints.problems += [unknown_key(path, key, keys) for key in parts if key not in keys]
    row: dict[str, int] | None = None
    with complaints:
        row = typed.setdefault(_node_id(join(path, "numaNode"), parts.get("numaNode")), {})
    with complaints:
        _add_limits(join(path, "limits"), parts.get("limits"), {} if row is None else row)
    complaints.settle()


def _add_limits(path: str, value: object, row: dict[str, int]) -> None:
    complaints = Complaints()
    limits = items(path, value)
    if not limits:
        raise Wrong(Problem(path, "an empty table", "memory or hugepages-<size>, or both"))
    for key, item in limits:
        here = join(path, key)
        with complaints:
            resource, amount = _memory_resource(here, key), positive_bytes(here, item)
            if resource in row:
                raise Wrong(Problem(here, "a second amount", f"one amount of {resource} for each node"))
            row[resource] = amount
    complaints.settle()


def _memory_resource(path: str, key: str) -> str:
    """The canonical resource name: hugepages-2048Ki is hugepages-2Mi."""
    if key == MEMORY:
        return MEMORY
    kind, dash, size = key.partition("-")
    if kind != "hugepages" or not dash:
        raise Wrong(Problem(path, "an unknown resource", "memory or hugepages-<size>"))
    page_bytes = parsed(parse_bytes, path, size, "a page size such as 2Mi")
    if page_bytes == 0 or page_bytes & (page_bytes - 1):
        raise Wrong(Problem(path, f"a page size of {size}", "a power of two such as 2Mi or 1Gi"))
    return hugepages(page_bytes)


def _node_id(path: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise Wrong(Problem(path, show(value), "the id of a NUMA node, 0 or more"))


def _milli_cpus(path: str, value: object) -> int:
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    return parsed(parse_milli_cpus, path, text, "an amount of CPU such as 500m or 2")


_OTHER_RESOURCES: Final[Mapping[str, Reader[int]]] = {
    "ephemeral-storage": amount_bytes,
    "pid": amount_bytes,
}

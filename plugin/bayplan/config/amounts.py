"""Readers for amounts of memory and for the reservations that are made of them.

The shapes are KubeletConfiguration's. Whether the machine has such nodes and page sizes is checked in
`bayplan.config.reservations`.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from bayplan.config.values import (
    InvalidValueError,
    ProblemCollector,
    Reader,
    digits,
    entries,
    invalid,
    items,
    join,
    parsed,
    show,
    unknown_key,
)
from bayplan.errors import Problem
from bayplan.kubelet.eviction_manager import (
    DEFAULT_TRANSITION_NS,
    EVERY_NODE,
    STARVED,
    ThresholdError,
    read_duration,
    starved,
)
from bayplan.kubelet.manager_options import Reservation, check_values, in_words
from bayplan.kubelet.pod import CPU, is_memory
from bayplan.model.machine import MEMORY, hugepages
from bayplan.quantity import parse_bytes, parse_nano_cpus

T = TypeVar("T")


def amount_bytes(path: str, value: object) -> int:
    """A Kubernetes quantity of bytes, 0 or more; a bare number is bytes too."""
    text = digits(value) if isinstance(value, int) and not isinstance(value, bool) else value
    return parsed(parse_bytes, path, text, "an amount of memory such as 512Mi or 2Gi")


def positive_bytes(path: str, value: object) -> int:
    """A Kubernetes quantity of more than 0 bytes."""
    amount = amount_bytes(path, value)
    if amount == 0:
        raise invalid(path, show(value), "more than 0 bytes")
    return amount


def by_signal(read: Callable[[str, str], T]) -> Reader[dict[str, T]]:
    """A table of eviction signals, each of whose texts *read* takes together with the signal."""

    def typed(path: str, value: object) -> dict[str, T]:
        def one(here: str, signal: str, item: object) -> T:
            if starved(signal) is None:
                problem = unknown_key(path, signal, (*STARVED, EVERY_NODE))
                kubelet = f"unsupported eviction signal {signal}"
                raise InvalidValueError(problem._replace(expected=f"{problem.expected}; kubelet: {kubelet}"))
            text = str(item) if isinstance(item, int) and not isinstance(item, bool) else item
            if not isinstance(text, str):
                raise invalid(here, show(item), "a text such as '100Mi'")
            try:
                return read(signal, text)
            except ThresholdError as error:
                saying = f"; kubelet: {error.kubelet}" if error.kubelet else ""
                raise invalid(here, show(item), f"{error.expected}{saying}") from error

        return entries(path, value, one)

    return typed


def transition_period(path: str, value: object) -> int:
    """A duration as Go spells it, in nanoseconds; none stands for kubelet's default."""
    if not isinstance(value, str):
        raise invalid(path, show(value), "a duration such as 5m0s")
    try:
        return read_duration(path, value) or DEFAULT_TRANSITION_NS
    except ThresholdError as error:
        raise invalid(path, show(value), error.expected) from error


def reserved_resources(path: str, value: object) -> dict[str, int]:
    """The memory and huge pages in kubeReserved or systemReserved, in bytes, and ``cpu`` in billionths.

    The other resources are checked, but nothing here depends on them.
    """
    collector = ProblemCollector()
    typed: dict[str, int] = {}
    for key, item in items(path, value):
        here = join(path, key)
        with collector:
            if key == CPU:
                typed[CPU] = _nano_cpus(here, item)
            elif key in _OTHER_RESOURCES:
                _OTHER_RESOURCES[key](here, item)
            else:
                typed[_memory_resource(here, key)] = amount_bytes(here, item)
    collector.raise_problems()
    return typed


def reserved_memory(path: str, value: object) -> dict[int, dict[str, int]]:
    """reservedMemory: node id -> resource -> bytes.

    Entries that hide no amount (zeros, second amounts, unknown types) leave the rest readable, so that it can
    be added up.
    """
    if not isinstance(value, list):
        raise invalid(path, show(value), "a list of {numaNode, limits}")
    collector = ProblemCollector()
    found: list[Reservation] = []
    for position, item in enumerate(value):
        with collector:
            _read_reservation(f"{path}[{position}]", item, found)
    collector.problems += map(in_words, check_values(found))
    typed: dict[int, dict[str, int]] = {}
    for each in found:
        row = typed.setdefault(each.node, {})
        for resource, amount in each.sizes.items():
            if amount and is_memory(resource):
                row[resource] = row.get(resource, 0) + amount
    collector.raise_problems(typed)
    return typed


def _read_reservation(path: str, value: object, reservations: list[Reservation]) -> None:
    collector = ProblemCollector()
    parts = dict(items(path, value))
    keys = ("numaNode", "limits")
    collector.problems += [unknown_key(path, key, keys) for key in parts if key not in keys]
    node: int | None = None
    with collector:
        node = _node_id(join(path, "numaNode"), parts.get("numaNode"))
    with collector:
        limits = _limits(join(path, "limits"), parts.get("limits"), collector)
        # One for each, because hugepages-2Mi and hugepages-2048Ki may both be there.
        known = -1 if node is None else node
        here = [Reservation(known, {resource: amount}, path) for resource, amount in limits]
        if node is None:
            collector.problems += [Problem(one.path, one.found, one.expected) for one in check_values(here)]
        else:
            reservations += here
    collector.raise_problems()


def _limits(path: str, value: object, collector: ProblemCollector) -> list[tuple[str, int]]:
    """The amounts that can be read. Types that are neither memory nor huge pages keep their names."""
    written = items(path, value)
    if not written:
        raise InvalidValueError(
            Problem(path, "an empty table", "memory or hugepages-<size>, or both"), readable=True
        )
    found = []
    for key, item in written:
        here = join(path, key)
        with collector:
            found.append((_memory_resource(here, key) if is_memory(key) else key, amount_bytes(here, item)))
    return found


def _memory_resource(path: str, key: str) -> str:
    """The canonical resource name: hugepages-2048Ki is hugepages-2Mi."""
    if key == MEMORY:
        return MEMORY
    kind, dash, size = key.partition("-")
    if kind != "hugepages" or not dash:
        raise invalid(path, "an unknown resource", "memory or hugepages-<size>")
    page_bytes = parsed(parse_bytes, path, size, "a page size such as 2Mi")
    if page_bytes == 0 or page_bytes & (page_bytes - 1):
        raise invalid(path, f"a page size of {size}", "a power of two such as 2Mi or 1Gi")
    return hugepages(page_bytes)


def _node_id(path: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    raise invalid(path, show(value), "the id of a NUMA node, 0 or more")


def _nano_cpus(path: str, value: object) -> int:
    text = value
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = digits(value) if isinstance(value, int) else str(value)
    return parsed(parse_nano_cpus, path, text, "an amount of CPU such as 500m or 2")


_OTHER_RESOURCES: Final[Mapping[str, Reader[int]]] = {
    "ephemeral-storage": amount_bytes,
    "pid": amount_bytes,
}

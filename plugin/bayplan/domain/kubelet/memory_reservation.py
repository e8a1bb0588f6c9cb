"""Reserved memory per NUMA node: kubelet's flag ``--reserved-memory`` and its key ``reservedMemory``.

Reading and checking, with every problem reported, each by its place. `ReservationProblem.kubelet` is the
sentence that kubelet has for it, for those who search for that; kubelet stops at the first.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from bayplan.domain.kubelet.pod import Amounts
from bayplan.domain.kubelet.resources import is_memory, page_size_bytes
from bayplan.domain.topology import MEMORY, Machine
from bayplan.errors import ParseError, Problem
from bayplan.quantity import format_bytes, format_page_size, parse_bytes

FLAG: Final = "--reserved-memory"
FLAG_SYNTAX: Final = "numaNodeID:type=quantity[,type=quantity...]"
KEY: Final = "reservedMemory"
_INTEGER: Final = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True)
class ReservationProblem(Problem):
    """One wrong value, with kubelet's sentence about it; empty where kubelet says nothing."""

    kubelet: str = ""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is kept from containers on one node, in bytes by resource. ``path`` is where it was configured."""

    node: int
    sizes: Amounts
    path: str = field(default=KEY, compare=False)


Read = tuple[tuple[Reservation, ...], tuple[ReservationProblem, ...]]
"""What was read, and what was wrong with the rest."""


def parse_flags(values: Sequence[str]) -> Read:
    """The reservations of the flag's values, in their order. An empty value forgets those before it."""
    found: list[Reservation] = []
    problems: list[ReservationProblem] = []
    for index, value in enumerate(values):
        path = FLAG if len(values) == 1 else f"{FLAG}[{index}]"
        if not value:
            found.clear()
            continue
        for part in value.split(";"):
            reservation, wrong = _flag_part(part, path)
            problems.extend(wrong)
            if reservation is not None:
                found.append(reservation)
    return tuple(found), tuple(problems)


def parse_configuration(value: Any, path: str = KEY) -> Read:
    """The reservations of a KubeletConfiguration: a list of mappings with ``numaNode`` and ``limits``."""
    if value is None:
        return (), ()
    if not isinstance(value, list):
        return (), (ReservationProblem(path, repr(value), "a list of {numaNode: ..., limits: {...}}"),)
    found: list[Reservation] = []
    problems: list[ReservationProblem] = []
    for index, entry in enumerate(value):
        reservation, wrong = _configured(entry, f"{path}[{index}]")
        problems.extend(wrong)
        if reservation is not None:
            found.append(reservation)
    return tuple(found), tuple(problems)


def format_flag(reservations: Iterable[Reservation]) -> str:
    """The reservations as kubelet prints them: sorted, one part per node and entry."""
    parts = [
        f"{each.node}:" + ",".join(f"{name}={_quantity(size)}" for name, size in sorted(each.sizes.items()))
        for each in reservations
    ]
    return ",".join(sorted(parts))


def check_values(reservations: Iterable[Reservation]) -> tuple[ReservationProblem, ...]:
    """What is wrong with reservations by themselves: types, zeros, duplicates."""
    problems = []
    known: dict[tuple[int, str], Reservation] = {}
    for each in reservations:
        for name, size in each.sizes.items():
            path = f"{each.path}.limits.{name}" if each.path.startswith(KEY) else each.path
            where = f'for NUMA node {each.node} and resource "{name}"'
            if not is_memory(name):
                kubelet = (
                    f'invalid configuration: the limit type "{name}" for NUMA node {each.node} is not '
                    "supported, only [memory hugepages-<HugePageSize>] is accepted"
                )
                problems.append(ReservationProblem(path, name, "memory or hugepages-<size>", kubelet))
            if size == 0:
                kubelet = f"invalid configuration: reserved memory may not be zero {where}"
                problems.append(ReservationProblem(path, f"0 {where}", "more than 0, or no entry", kubelet))
            first = known.setdefault((each.node, name), each)
            if first is not each:
                kubelet = f"invalid configuration: the reserved memory has a duplicate value {where}"
                expected = f"one value, there is {_quantity(first.sizes[name])} already"
                found = f"a second value {_quantity(size)} {where}"
                problems.append(ReservationProblem(path, found, expected, kubelet))
    return tuple(problems)


def check_machine(reservations: Iterable[Reservation], machine: Machine) -> tuple[ReservationProblem, ...]:
    """What is wrong with reservations on that machine: nodes and page sizes it does not have, and more than a
    node holds. Of these kubelet reports the nodes only."""
    problems = []
    for each in reservations:
        node = machine.node_by_id.get(each.node)
        if node is None:
            kubelet = (
                f"the reserved memory configuration references a NUMA node {each.node} "
                "that does not exist on this machine"
            )
            expected = f"a NUMA node of this machine ({machine.node_ids})"
            problems.append(ReservationProblem(each.path, f"NUMA node {each.node}", expected, kubelet))
            continue
        capacity = node.capacity_bytes()
        for name, size in each.sizes.items():
            there_is = capacity.get(name)
            if there_is is None and is_memory(name):
                sizes = ", ".join(key for key in capacity if key != MEMORY) or "no huge pages"
                found = f"{name} on NUMA node {each.node}"
                expected = (
                    "hugepages-<page size>" if page_size_bytes(name) is None else f"what it has: {sizes}"
                )
                problems.append(ReservationProblem(each.path, found, expected))
            elif there_is is not None and size > there_is:
                found = f"{name}={_quantity(size)} on NUMA node {each.node}"
                expected = f"at most the {format_bytes(there_is)} that the node has"
                problems.append(ReservationProblem(each.path, found, expected))
    return tuple(problems)


def check_sums(
    reservations: Sequence[Reservation],
    node_allocatable: Mapping[str, int],
    worked_out: Mapping[str, str],
) -> tuple[ReservationProblem, ...]:
    """Whether the nodes' reservations add up to *node_allocatable*, what the node keeps from containers, for
    every resource of either. *worked_out* says by resource how that came about."""
    totals: dict[str, int] = {}
    for each in reservations:
        for name, size in each.sizes.items():
            totals[name] = totals.get(name, 0) + size
    problems = []
    for name in sorted({*totals, *(name for name in node_allocatable if is_memory(name))}):
        total, needed = totals.get(name, 0), node_allocatable.get(name, 0)
        if total == needed:
            continue
        kubelet = (
            f'the total amount "{_quantity(total)}" of type "{name}" is not equal to the value '
            f'"{_quantity(needed)}" determined by Node Allocatable feature'
        )
        summed = " + ".join(
            f"node {each.node} {_quantity(each.sizes[name])}" for each in reservations if name in each.sizes
        )
        found = f"{_quantity(total)} of {name} in all ({summed or 'no reservation'})"
        expected = f"{_quantity(needed)} ({worked_out.get(name, 'nothing is reserved for the node')})"
        problems.append(ReservationProblem(KEY, found, expected, kubelet))
    return tuple(problems)


def of_nodes(reserved: Mapping[int, Amounts]) -> tuple[Reservation, ...]:
    """The reservations that bytes by node and resource stand for: the way back from `by_node`."""
    return tuple(Reservation(node, sizes) for node, sizes in sorted(reserved.items()) if sizes)


def by_node(reservations: Iterable[Reservation], machine: Machine) -> dict[int, dict[str, int]]:
    """Reserved bytes by node and resource, with an entry for every node of the machine."""
    reserved: dict[int, dict[str, int]] = {node.id: {} for node in machine.nodes}
    for each in reservations:
        reserved.setdefault(each.node, {}).update(each.sizes)
    return reserved


def _flag_part(part: str, path: str) -> tuple[Reservation | None, list[ReservationProblem]]:
    node, colon, types = part.partition(":")
    if not colon or ":" in types:
        kubelet = f"the reserved memory has incorrect format, expected {FLAG_SYNTAX}, got {part}"
        return None, [ReservationProblem(path, repr(part), FLAG_SYNTAX, kubelet)]
    problems = []
    if not _INTEGER.fullmatch(node):
        kubelet = f"failed to convert the NUMA node ID, expected integer, got {node}"
        problems.append(ReservationProblem(path, repr(node), "the number of a NUMA node", kubelet))
    sizes: dict[str, int] = {}
    for limit in types.split(","):
        name, equals, quantity = limit.partition("=")
        if not equals or "=" in quantity:
            kubelet = f"the reserved limit has incorrect value, expected type=quantity, got {limit}"
            problems.append(ReservationProblem(path, repr(limit), "type=quantity", kubelet))
        elif not is_memory(name):
            kubelet = f'memory type conversion error, unknown type: "{name}"'
            problems.append(ReservationProblem(path, repr(name), "memory or hugepages-<size>", kubelet))
        else:
            size, wrong = _size(quantity, path)
            problems.extend(wrong)
            sizes[name] = size
    return (None, problems) if problems else (Reservation(int(node), sizes, path), [])


def _configured(entry: Any, path: str) -> tuple[Reservation | None, list[ReservationProblem]]:
    if not isinstance(entry, Mapping):
        return None, [ReservationProblem(path, repr(entry), "numaNode and limits")]
    problems = [
        ReservationProblem(f"{path}.{key}", "an unknown key", "numaNode and limits")
        for key in entry
        if key not in {"numaNode", "limits"}
    ]
    node, limits = entry.get("numaNode", 0), entry.get("limits")
    if not isinstance(node, int) or isinstance(node, bool):
        problems.append(ReservationProblem(f"{path}.numaNode", repr(node), "the number of a NUMA node"))
    if not isinstance(limits, Mapping) or not limits:
        problems.append(ReservationProblem(f"{path}.limits", repr(limits), "quantities by memory type"))
        limits = {}
    sizes: dict[str, int] = {}
    for name, quantity in limits.items():
        sizes[str(name)], wrong = _size(str(quantity), f"{path}.limits.{name}")
        problems.extend(wrong)
    return (None, problems) if problems else (Reservation(node, sizes, path), [])


def _size(quantity: str, path: str) -> tuple[int, list[ReservationProblem]]:
    try:
        return parse_bytes(quantity), []
    except ParseError as error:
        kubelet = f"failed to parse the quantity: {quantity}"
        return 0, [ReservationProblem(path, repr(quantity), error.expected, kubelet)]


def _quantity(size_bytes: int) -> str:
    """Kubernetes' canonical binary form: the largest suffix that leaves a whole number, as for page sizes."""
    return format_page_size(size_bytes)

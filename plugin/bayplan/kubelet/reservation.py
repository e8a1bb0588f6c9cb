"""Reserved memory per NUMA node, checked as kubelet checks it, with every problem reported by its place.

`ReservationProblem.kubelet` is the sentence that kubelet has for it, for those who search for that; kubelet
stops at the first. Texts are read by `bayplan.config.values`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bayplan.errors import Problem
from bayplan.kubelet.pod import Amounts, is_memory, page_size_bytes
from bayplan.model.claims import sum_of
from bayplan.model.machine import MEMORY, Machine
from bayplan.quantity import format_bytes, format_page_size

KEY: Final = "reservedMemory"


class ReservationProblem(NamedTuple):
    """A `Problem`, with kubelet's sentence about it; empty where kubelet says nothing."""

    path: str
    found: str
    expected: str
    kubelet: str = ""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is kept from containers on one node, in bytes by resource. ``path`` is where it was configured."""

    node: int
    sizes: Amounts
    path: str = field(default=KEY, compare=False)


def in_words(problem: ReservationProblem) -> Problem:
    """The problem with kubelet's sentence at its end."""
    path, found, expected, kubelet = problem
    return Problem(path, found, f"{expected}; kubelet: {kubelet}" if kubelet else expected)


def check_values(reservations: Iterable[Reservation]) -> tuple[ReservationProblem, ...]:
    """What is wrong with reservations by themselves: types, zeros, duplicates."""
    problems = []
    known: dict[tuple[int, str], Reservation] = {}
    for each in reservations:
        for name, size in each.sizes.items():
            path = f"{each.path}.limits.{name}"
            where = f'for NUMA node {each.node} and resource "{name}"'
            if not is_memory(name):
                kubelet = (
                    f'invalid configuration: the limit type "{name}" for NUMA node {each.node} is not '
                    "supported, only [memory hugepages-<HugePageSize>] is accepted"
                )
                expected = "memory or hugepages-<size>"
                problems.append(ReservationProblem(path, "an unknown resource", expected, kubelet))
            if size == 0:
                kubelet = f"invalid configuration: reserved memory may not be zero {where}"
                problems.append(ReservationProblem(path, "0", "more than 0 bytes, or no entry", kubelet))
            first = known.setdefault((each.node, name), each)
            if first is not each:
                kubelet = f"invalid configuration: the reserved memory has a duplicate value {where}"
                expected = f"one amount of {name} for each node, there is {_quantity(first.sizes[name])}"
                found = f"a second amount, {_quantity(size)}"
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
        for name, size in sorted(each.sizes.items()):
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
    totals = sum_of(each.sizes for each in reservations)
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


def _quantity(size_bytes: int) -> str:
    """Kubernetes' canonical binary form: the largest suffix that leaves a whole number, as for page sizes."""
    return format_page_size(size_bytes)

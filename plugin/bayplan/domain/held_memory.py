"""Memory that the kernel and processes outside of containers hold, learned as a steady reservation.

Measurements change by the second, capacities should not: a reservation rises as soon as more is held, and
falls only after less has been held for a while. Pure; `bayplan.host.held_memory` measures.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bayplan.domain.ledger import Ledger
from bayplan.domain.topology import MEMORY, Machine
from bayplan.quantity import MIB

BAND_PER_NODE: Final = 256
"""The reservation is this part of a node above what was measured, so that small changes change nothing: 1 GiB
on a node of 256 GiB."""
SMALLEST_BAND_BYTES: Final = 32 * MIB
PATIENCE: Final = 10
"""So many measurements in a row must be lower before a reservation falls."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What is known of one node. ``held_bytes`` was measured last, at ``measured_us`` (since the epoch);
    ``reserved_bytes`` is what follows from it and its predecessors. ``lower`` measurements in a row, of which
    ``peak_bytes`` is the highest, would allow a lower reservation."""

    held_bytes: int
    measured_us: int
    reserved_bytes: int
    lower: int = 0
    peak_bytes: int = 0


def learn(
    before: Mapping[int, Learned], held_bytes: Mapping[int, int], machine: Machine, measured_us: int
) -> dict[int, Learned]:
    """What is known after the measurement *held_bytes* (by node). Nodes that are gone are forgotten."""
    return {
        node: _learn(before.get(node), held_bytes[node], _band_bytes(machine, node), measured_us)
        for node in machine.memory_nodes
        if node in held_bytes
    }


def within_promises(
    wanted_bytes: Mapping[int, int], least_bytes: Mapping[int, int], machine: Machine, ledger: Ledger
) -> dict[int, int]:
    """The reservations *wanted_bytes* (of memory, by node), lowered where they would leave less than was
    promised to containers, but never below *least_bytes*, which somebody configured."""
    kept = {}
    for node_id, amount_bytes in wanted_bytes.items():
        node = machine.node_by_id.get(node_id)
        capacity_bytes = 0 if node is None else node.capacity_bytes()[MEMORY]
        booked_bytes = ledger.booked_bytes.get(node_id, {}).get(MEMORY, 0)
        free_bytes = max(0, capacity_bytes - booked_bytes)
        kept[node_id] = max(min(amount_bytes, free_bytes), least_bytes.get(node_id, 0))
    return kept


def _learn(before: Learned | None, held_bytes: int, band_bytes: int, measured_us: int) -> Learned:
    wanted_bytes = held_bytes + band_bytes
    if before is None or held_bytes > before.reserved_bytes:
        return Learned(held_bytes, measured_us, wanted_bytes)
    if wanted_bytes + band_bytes > before.reserved_bytes:
        return Learned(held_bytes, measured_us, before.reserved_bytes)
    lower, peak_bytes = before.lower + 1, max(before.peak_bytes, held_bytes)
    if lower < PATIENCE:
        return Learned(held_bytes, measured_us, before.reserved_bytes, lower, peak_bytes)
    return Learned(held_bytes, measured_us, peak_bytes + band_bytes)


def _band_bytes(machine: Machine, node: int) -> int:
    return max(SMALLEST_BAND_BYTES, machine.node_by_id[node].memory_bytes // BAND_PER_NODE)

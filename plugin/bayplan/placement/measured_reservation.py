"""Memory that the kernel and processes outside of containers hold, learned as a steady reservation.

Measurements change by the second, capacities should not: a reservation rises as soon as more is held, and
falls only after less has been held for a while. A rise that was over at once, as memory pressure alone causes
it, is taken back at once. Pure; `bayplan.host.held_memory` measures.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.exact.witness import by_node, shortages, witness
from bayplan.model.ledger import Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.quantity import MIB

BAND_PER_NODE: Final = 256
"""The reservation is this part of a node above what was measured, so that small changes change nothing: 1 GiB
on a node of 256 GiB."""
SMALLEST_BAND_BYTES: Final = 32 * MIB
LARGEST_BAND_SHARE: Final = 64
"""On small nodes the band is at most this part of the node."""
LOWER_BEFORE_FALL: Final = 10
"""So many measurements in a row must be lower before a reservation falls."""
HIGHER_BEFORE_KEPT: Final = 4
"""So many measurements in a row above an earlier reservation make a rise more than a moment's."""


class Learned(Struct, frozen=True):
    """What is known of one node. ``held_bytes`` was measured last, at ``measured_us`` (since the epoch);
    ``reserved_bytes`` is what follows from it and its predecessors. ``lower`` measurements in a row, of which
    ``peak_bytes`` is the highest, would allow a lower reservation. ``before_bytes`` is the reservation before
    a rise that has lasted for ``higher`` measurements; None once it has lasted for long enough."""

    held_bytes: int
    measured_us: int
    reserved_bytes: int
    lower: int = 0
    peak_bytes: int = 0
    before_bytes: int | None = None
    higher: int = 0


def learn(
    before: Mapping[int, Learned], held_bytes: Mapping[int, int], machine: Machine, measured_us: int
) -> dict[int, Learned]:
    """What is known after the measurement *held_bytes* (by node). Nodes that are gone are forgotten."""
    return {
        node: _learn(before.get(node), held_bytes[node], _band_bytes(machine, node), measured_us)
        for node in machine.memory_nodes
        if node in held_bytes
    }


def step_bytes(machine: Machine, node: int) -> int:
    """By how much the reservation of a node may be expected to rise next: what is held passes the band, and
    gets another one above it."""
    return 2 * _band_bytes(machine, node)


def within_promises(
    machine: Machine, least: PlacementPolicy, wanted_bytes: Mapping[int, int], ledger: Ledger
) -> dict[int, int]:
    """The reservations *wanted_bytes* (of memory, by node), lowered where they would leave less than was
    promised to containers, but never below those of the policy *least*, which somebody configured.

    A set of nodes that becomes too small by them keeps what the promises have there without them; claims that
    can go elsewhere go elsewhere first, so that as much as possible of what is wanted is reserved.
    """
    reserved = {
        node: {**least.reserved_bytes.get(node, {}), MEMORY: amount} for node, amount in wanted_bytes.items()
    }
    wanted = replace(least, reserved_bytes={**least.reserved_bytes, **reserved})
    short = [one.nodes for one in shortages(machine, wanted, ledger) if one.resource == MEMORY]
    if not short:
        return dict(wanted_bytes)
    loads = by_node(witness(machine, least, ledger).values())
    kept = dict(wanted_bytes)
    for node_id in {node_id for nodes in short for node_id in nodes} & kept.keys():
        node = machine.node_by_id.get(node_id)
        capacity_bytes = 0 if node is None else node.capacity_bytes()[MEMORY]
        spare_bytes = max(0, capacity_bytes - loads.get(node_id, {}).get(MEMORY, 0))
        least_bytes = least.reserved_bytes.get(node_id, {}).get(MEMORY, 0)
        kept[node_id] = max(min(wanted_bytes[node_id], spare_bytes), least_bytes)
    return kept


def _learn(before: Learned | None, held_bytes: int, band_bytes: int, measured_us: int) -> Learned:
    wanted_bytes = held_bytes + band_bytes
    if before is None:
        return Learned(held_bytes, measured_us, wanted_bytes)
    now = replace(before, held_bytes=held_bytes, measured_us=measured_us, lower=0, peak_bytes=0)
    if before.before_bytes is not None:
        if held_bytes <= before.before_bytes:
            return replace(now, reserved_bytes=before.before_bytes, before_bytes=None, higher=0)
        now = replace(now, higher=before.higher + 1)
        if now.higher >= HIGHER_BEFORE_KEPT:
            now = replace(now, before_bytes=None, higher=0)
    if held_bytes > before.reserved_bytes:
        if now.higher == 0 and before.before_bytes is None:
            now = replace(now, before_bytes=before.reserved_bytes, higher=1)
        return replace(now, reserved_bytes=wanted_bytes)
    if wanted_bytes + band_bytes > before.reserved_bytes:
        return now
    lower, peak_bytes = before.lower + 1, max(before.peak_bytes, held_bytes)
    if lower < LOWER_BEFORE_FALL:
        return replace(now, lower=lower, peak_bytes=peak_bytes)
    return Learned(held_bytes, measured_us, peak_bytes + band_bytes)


def _band_bytes(machine: Machine, node: int) -> int:
    memory_bytes = machine.node_by_id[node].memory_bytes
    smallest_bytes = min(SMALLEST_BAND_BYTES, memory_bytes // LARGEST_BAND_SHARE)
    return max(smallest_bytes, memory_bytes // BAND_PER_NODE)

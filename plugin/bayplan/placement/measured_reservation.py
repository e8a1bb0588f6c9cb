"""Memory that the kernel and processes outside of containers hold, learned as a steady reservation.

Measurements change by the second, capacities should not: a reservation rises as soon as more is held, and
falls only after less has been held for a while. A rise that was over at once, as memory pressure alone causes
it, is taken back at once. Pure; `bayplan.host.live_memory` measures.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.exact.resources import ResourceFlows
from bayplan.model.basis import Basis
from bayplan.model.machine import MEMORY, Machine
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
    ``reserved_bytes`` follows from it and from earlier measurements. ``lower`` measurements in a row would
    allow a lower reservation; the highest of them is ``peak_bytes``. ``before_bytes`` is the reservation
    before a rise that has lasted for ``higher`` measurements; None once the rise has lasted long enough."""

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


def within_promises(least: Basis, wanted_bytes: Mapping[int, int]) -> dict[int, int]:
    """The reservations *wanted_bytes* (of memory, by node), lowered where they would leave less than was
    promised to containers, but never below those of the policy of *least*: what somebody configured, and what
    is really held.

    Claims that can go elsewhere go elsewhere first. What then has no place is what is given up in all, not a
    byte more: each byte given up carries one that was promised, so that nothing new fits there. Where *least*
    leaves too little already, that much stays short.
    """
    before = least.policy.reserved_bytes
    reserved = {node: {**before.get(node, {}), MEMORY: amount} for node, amount in wanted_bytes.items()}
    policy = replace(least.policy, reserved_bytes={**before, **reserved})
    flow = ResourceFlows(Basis(least.machine, policy, least.ledger)).flow(MEMORY)
    most = least.allocatable.bytes_by_node
    kept = {}
    for node, amount_bytes in sorted(wanted_bytes.items()):
        least_bytes = before.get(node, {}).get(MEMORY, 0)
        if node not in most:  # gone, with all that it had
            kept[node] = least_bytes
            continue
        mask, grown_bytes = 1 << node, 0
        if flow.unmet:
            grown_bytes = flow.grow(mask, most[node][MEMORY] - flow.capacity[mask])
        spare_bytes = most[node][MEMORY] - flow.capacity[mask]
        kept[node] = least_bytes + spare_bytes if grown_bytes else amount_bytes
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

"""What a node keeps from its containers: kubeReserved, systemReserved and the hard eviction threshold.

The reservations per NUMA node must add up to this, for memory and each size of huge pages. Here is the sum,
and how it came about.
"""

import struct
from collections.abc import Mapping
from typing import Final

from bayplan.domain.kubelet.memory_reservation import ReservationProblem
from bayplan.domain.kubelet.pod import Amounts
from bayplan.domain.kubelet.resources import is_memory
from bayplan.domain.topology import MEMORY
from bayplan.errors import ParseError
from bayplan.quantity import format_page_size, parse_bytes

MEMORY_AVAILABLE: Final = "memory.available"
DEFAULT_HARD_EVICTION: Final[Mapping[str, str]] = {MEMORY_AVAILABLE: "100Mi"}
"""kubelet's default on Linux, as far as memory is concerned. Any evictionHard replaces it as a whole."""

_ALL_PERCENT: Final = 100.0


def node_allocatable_reservation(
    kube_reserved: Amounts, system_reserved: Amounts, eviction_bytes: int
) -> tuple[dict[str, int], dict[str, str]]:
    """What the node keeps, by resource (those with more than zero), and the sum in words."""
    total: dict[str, int] = {}
    words: dict[str, list[str]] = {}
    parts = (
        ("kubeReserved", kube_reserved),
        ("systemReserved", system_reserved),
        (f"evictionHard {MEMORY_AVAILABLE}", {MEMORY: eviction_bytes}),
    )
    for label, amounts in parts:
        for name, size in amounts.items():
            if is_memory(name) and size:
                total[name] = total.get(name, 0) + size
                words.setdefault(name, []).append(f"{label} {format_page_size(size)}")
    return total, {name: " + ".join(each) for name, each in words.items()}


def eviction_bytes(
    eviction_hard: Mapping[str, str] | None, capacity_bytes: int, path: str = "evictionHard"
) -> tuple[int, tuple[ReservationProblem, ...]]:
    """The memory that hard eviction keeps free, from the configured thresholds (None: not configured).

    A percentage is of *capacity_bytes*, MemTotal, computed in single precision as kubelet does. ``0%`` and
    ``100%`` switch the threshold off.
    """
    thresholds = DEFAULT_HARD_EVICTION if eviction_hard is None else eviction_hard
    value = thresholds.get(MEMORY_AVAILABLE)
    if value is None or value in {"0%", "100%"}:
        return 0, ()
    where = f"{path}.{MEMORY_AVAILABLE}"
    if value.endswith("%"):
        share = _percent(value)
        if share is None:
            return 0, (ReservationProblem(where, repr(value), "a percentage from 0% to 100%"),)
        return int(float(capacity_bytes) * share), ()
    try:
        size = parse_bytes(value)
    except ParseError:
        size = 0
    if not size:
        expected = "a quantity of more than 0, or a percentage"
        return 0, (ReservationProblem(where, repr(value), expected),)
    return size, ()


def _percent(value: str) -> float | None:
    try:
        number = float(value.removesuffix("%"))
    except ValueError:
        return None
    if not 0 <= number <= _ALL_PERCENT:
        return None
    return _single(_single(number) / _ALL_PERCENT)


def _single(number: float) -> float:
    """The number in single precision."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded

"""kubelet's eviction thresholds: the only place where their texts are read, and what they amount to.

The keys are evictionHard, evictionSoft, evictionSoftGracePeriod and evictionMinimumReclaim. The daemon reads
its configuration with these functions, because the hard threshold for memory counts as reserved. What follows
when one is met is in `bayplan.kubelet.eviction.rules`.
"""

import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.errors import ParseError
from bayplan.kubelet.eviction.node_signals import is_node_signal
from bayplan.model.machine import MEMORY
from bayplan.quantity import MIB, parse_quantity

MEMORY_AVAILABLE: Final = "memory.available"
ALLOCATABLE_MEMORY: Final = "allocatableMemory.available"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"
INODES: Final = "inodes"
PIDS: Final = "pids"

STARVED: Final[Mapping[str, str]] = {
    MEMORY_AVAILABLE: MEMORY,
    ALLOCATABLE_MEMORY: MEMORY,
    "nodefs.available": EPHEMERAL_STORAGE,
    "nodefs.inodesFree": INODES,
    "imagefs.available": EPHEMERAL_STORAGE,
    "imagefs.inodesFree": INODES,
    "containerfs.available": EPHEMERAL_STORAGE,
    "containerfs.inodesFree": INODES,
    "pid.available": PIDS,
}
"""kubelet's signals for which there can be thresholds, and what is running short when one is met."""

_NONE: Final = frozenset({"0%", "100%"})
_ALL_PERCENT: Final = 100.0
_SINGLE_MAX: Final = (2 - 2**-23) * 2.0**127
"""The largest number in single precision."""
_NUMBER: Final = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_PERCENTAGE: Final = re.compile(rf"[+-]?{_NUMBER}(?:[eE][+-]?[0-9]+)?", re.ASCII)
_UNITS_NS: Final = {
    "ns": 1, "us": 1_000, "\u00b5s": 1_000, "\u03bcs": 1_000,
    "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000,
}  # fmt: skip
_PART: Final = rf"({_NUMBER})({'|'.join(_UNITS_NS)})"
_DURATION: Final = re.compile(rf"([+-]?)(0|(?:{_PART})+)", re.ASCII)
_INT64_MAX: Final = (1 << 63) - 1


def starved(signal: str) -> str | None:
    """What is running short when a threshold of *signal* is met; None for no signal."""
    return MEMORY if is_node_signal(signal) else STARVED.get(signal)


class ThresholdError(ParseError):
    """A text that kubelet refuses in one of the four keys. ``kubelet`` is its sentence, if it has one of its
    own for this."""

    def __init__(self, signal: str, found: str, expected: str, kubelet: str = "") -> None:
        super().__init__(signal, found, expected)
        self.kubelet = kubelet


class ThresholdValue(Struct, frozen=True):
    """An amount in the signal's unit (bytes, inodes, processes), or else a share of the capacity: a number
    from 0 to 1 in single precision."""

    amount: int | None = None
    share: float = 0.0

    def of(self, capacity: int) -> int:
        """The amount where there is *capacity* of the resource in all."""
        return int(float(capacity) * self.share) if self.amount is None else self.amount


class Threshold(Struct, frozen=True):
    """kubelet acts when less than ``value`` is available for longer than the grace period, and then until
    ``min_reclaim`` more than that is."""

    signal: str
    value: ThresholdValue
    grace_period_ns: int = 0
    min_reclaim: ThresholdValue | None = None

    @property
    def hard(self) -> bool:
        """Whether kubelet acts at once."""
        return self.grace_period_ns == 0


DEFAULT_MEMORY: Final = ThresholdValue(100 * MIB)
"""kubelet's default for memory.available on Linux. Any evictionHard replaces it, even one without memory."""

DEFAULT_TRANSITION_NS: Final = 300_000_000_000
"""kubelet's default of evictionPressureTransitionPeriod, also where that is 0."""

Values = Mapping[str, ThresholdValue | None]
"""Thresholds by signal; None where the text says that there is none."""


def read_threshold(signal: str, text: str) -> ThresholdValue | None:
    """The value in evictionHard or evictionSoft; None for ``0%`` and ``100%``, spelled like this.

    Raises:
        ThresholdError: an unknown signal, no quantity, not more than 0, or not a percentage from 0% to 100%.
    """
    _known(signal)
    if text in _NONE:
        return None
    if not text.endswith("%"):
        amount = _amount(signal, text)
        if amount <= 0:
            kubelet = f"eviction threshold {signal} must be positive: {text}"
            raise ThresholdError(signal, text, "more than 0, or '0%' for no threshold", kubelet)
        return ThresholdValue(_rounded(signal, text, amount))
    share = parse_percentage(text)
    if not 0 <= share <= 1:
        bound = ">= 0%" if share < 0 else "<= 100%"
        kubelet = f"eviction percentage threshold {signal} must be {bound}: {text}"
        raise ThresholdError(signal, text, "a percentage from 0% to 100%", kubelet)
    return ThresholdValue(share=share)


def read_grace_period(signal: str, text: str) -> int:
    """The duration in evictionSoftGracePeriod, such as ``1m30s``, in nanoseconds.

    Raises:
        ThresholdError: an unknown signal, not a duration as Go spells them, or a negative one.
    """
    _known(signal)
    return read_duration(signal, text)


def read_duration(signal: str, text: str) -> int:
    """The duration of a *signal* or key as Go spells it, 0 or more, in nanoseconds; raises as
    `read_grace_period`."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ThresholdError(signal, text, "a duration such as 30s or 1m30s")
    length_ns = sum(int(Decimal(number) * _UNITS_NS[unit]) for number, unit in re.findall(_PART, match[2]))
    if length_ns > _INT64_MAX:
        raise ThresholdError(signal, text, "a duration of less than 292 years")
    if match[1] == "-" and length_ns:
        kubelet = f"invalid eviction grace period specified: {text}, must be a positive value"
        raise ThresholdError(signal, text, "a duration of 0 or more", kubelet)
    return length_ns


def read_min_reclaim(signal: str, text: str) -> ThresholdValue:
    """The value in evictionMinimumReclaim: a quantity of 0 or more, or a percentage above 0%.

    Raises:
        ThresholdError: an unknown signal, or a value that is neither.
    """
    _known(signal)
    if text.endswith("%"):
        share = parse_percentage(text)
        if share <= 0:
            kubelet = f"eviction percentage minimum reclaim {signal} must be positive: {text}"
            raise ThresholdError(signal, text, "a percentage above 0%", kubelet)
        return ThresholdValue(share=share)
    amount = _amount(signal, text)
    if amount < 0:
        kubelet = f"negative eviction minimum reclaim specified for {signal}"
        raise ThresholdError(signal, text, "0 or more", kubelet)
    return ThresholdValue(_rounded(signal, text, amount))


def parse_percentage(text: str) -> float:
    """A percentage as a share, rounded to single precision as kubelet holds it; the sign % may be missing.

    kubelet also takes hexadecimal numbers, infinity, and what is not a number at all.

    Raises:
        ThresholdError: not a number.
    """
    number = text.rstrip("%")
    if _PERCENTAGE.fullmatch(number) and abs(float(number)) <= _SINGLE_MAX:
        return _single(_single(float(number)) / _ALL_PERCENT)
    kubelet = f'strconv.ParseFloat: parsing "{number}": invalid syntax'
    raise ThresholdError("percentage", text, "a percentage such as 10% or 7.5%", kubelet)


def without_grace_period(soft: Values, grace_periods_ns: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """The signals of soft thresholds for which there is no grace period, with kubelet's sentence."""
    for signal, value in soft.items():
        if value is not None and signal not in grace_periods_ns:
            yield signal, f"grace period must be specified for the soft eviction threshold {signal}"


def thresholds_of(
    hard: Values,
    soft: Values,
    grace_periods_ns: Mapping[str, int],
    min_reclaims: Mapping[str, ThresholdValue],
    enforced: Collection[str] = (),
) -> tuple[Threshold, ...]:
    """All thresholds: the hard ones, the soft ones, and what *enforced* (enforceNodeAllocatable) adds.

    *soft* are those that have a grace period. A hard and a soft threshold of one signal share its minimum.
    """
    there = [Threshold(signal, value) for signal, value in hard.items() if value is not None]
    there += [
        Threshold(signal, value, grace_periods_ns[signal])
        for signal, value in soft.items()
        if value is not None
    ]
    found = tuple(replace(each, min_reclaim=min_reclaims.get(each.signal)) for each in there)
    return with_allocatable(found) if "pods" in enforced else found


def with_allocatable(thresholds: Iterable[Threshold]) -> tuple[Threshold, ...]:
    """*thresholds* and, for each hard one on the node's memory, the same on what all pods may use together.

    kubelet watches that too where it enforces the pods' share.
    """
    found = tuple(thresholds)
    return found + tuple(
        replace(each, signal=ALLOCATABLE_MEMORY)
        for each in found
        if each.signal == MEMORY_AVAILABLE and each.hard
    )


def kept_bytes(thresholds: Iterable[Threshold], capacity_bytes: int) -> int:
    """The memory that hard eviction keeps free of a machine with *capacity_bytes* (MemTotal); kubelet counts
    it as reserved."""
    hard = (each for each in thresholds if each.signal == MEMORY_AVAILABLE and each.hard)
    return sum(each.value.of(capacity_bytes) for each in hard)


def _known(signal: str) -> None:
    if starved(signal) is None:
        kubelet = f"unsupported eviction signal {signal}"
        raise ThresholdError(signal, signal, f"one of {', '.join(STARVED)}", kubelet)


def _amount(signal: str, text: str) -> Decimal:
    try:
        return parse_quantity(text)
    except ParseError as error:
        raise ThresholdError(signal, text, f"{error.expected}, or a percentage") from error


def _rounded(signal: str, text: str, amount: Decimal) -> int:
    rounded = int(amount.to_integral_value(ROUND_CEILING))
    if rounded > _INT64_MAX:
        raise ThresholdError(signal, text, "at most 2^63-1")
    return rounded


def _single(number: float) -> float:
    """The number in single precision."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded

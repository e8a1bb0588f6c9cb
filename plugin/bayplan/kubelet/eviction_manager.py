"""kubelet's eviction manager, and what a node keeps from its containers because of it. Pure.

* *Thresholds*: the only place where their texts are read, and what they amount to. The keys are
  evictionHard, evictionSoft, evictionSoftGracePeriod and evictionMinimumReclaim. The daemon reads its
  configuration with these functions, because the hard threshold for memory counts as reserved.
* *Signals of single NUMA nodes*, which kubelet does not have: ``node0.memory.available``.
  ``node.memory.available`` stands for every node that has no threshold of its own. What is available on a
  node is measured otherwise than memory.available of the machine, see `bayplan.daemon.eviction`.
* *Reserved*: kubeReserved, systemReserved and the hard eviction threshold. The reservations per NUMA node
  must add up to this, for memory and each size of huge pages. Here is the sum, and how it came about.
* *One look*: which thresholds are met, what follows, and what kubelet says, so that the rules can be held
  against its records like those of the other managers. The daemon goes by them, too; what it adds are the
  signals of NUMA nodes.
* *From one look to the next* (`Pressure`): since when a threshold is met, which ones it acts on until
  their minimum was reclaimed, and which conditions the node still reports. Source: synchronize() in
  pkg/kubelet/eviction/eviction_manager.go.
* *Whom first*: its orders for memory, disks and processes, and what of a disk counts. Source:
  pkg/kubelet/eviction/helpers.go (rankMemoryPressure, rankDiskPressureFunc, rankPIDPressure,
  buildSignalToRankFunc).
"""

import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from enum import Enum
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from bayplan.errors import ParseError
from bayplan.kubelet.pod import Amounts, FeatureGates, PodSpec, is_memory, pod_level_requests
from bayplan.model.machine import MEMORY
from bayplan.printable import pattern
from bayplan.quantity import MIB, format_bytes, format_count, format_page_size, parse_quantity

T = TypeVar("T")

EVERY_NODE: Final = "node.memory.available"
_OF_NODE: Final = pattern(r"node(0|[1-9][0-9]{0,4})\.memory\.available", re.ASCII)


def node_signal(node: int) -> str:
    """The signal for the memory of a node.

    >>> node_signal(3)
    'node3.memory.available'
    """
    return f"node{node}.memory.available"


def node_of(signal: str) -> int | None:
    """The node that *signal* is about; None if it is about no single node.

    >>> node_of("node3.memory.available"), node_of("node.memory.available"), node_of("memory.available")
    (3, None, None)
    """
    match = _OF_NODE.fullmatch(signal)
    return None if match is None else int(match[1])


def is_node_signal(signal: str) -> bool:
    """Whether it is about the memory of one node, or of every node."""
    return signal == EVERY_NODE or _OF_NODE.fullmatch(signal) is not None


def on_each_node(by_signal: Mapping[str, T], nodes: Iterable[int]) -> dict[str, T]:
    """*by_signal* with what is said for every node said for each of *nodes* that has nothing of its own."""
    found = {signal: value for signal, value in by_signal.items() if signal != EVERY_NODE}
    if EVERY_NODE in by_signal:
        for node in nodes:
            found.setdefault(node_signal(node), by_signal[EVERY_NODE])
    return found


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
_PERCENTAGE: Final = pattern(rf"[+-]?{_NUMBER}(?:[eE][+-]?[0-9]+)?", re.ASCII)
_UNITS_NS: Final = {
    "ns": 1, "us": 1_000, "\u00b5s": 1_000, "\u03bcs": 1_000,
    "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000,
}  # fmt: skip
_PART: Final = rf"({_NUMBER})({'|'.join(_UNITS_NS)})"
_DURATION: Final = pattern(rf"([+-]?)(0|(?:{_PART})+)", re.ASCII)
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


class NodeCondition(Enum):
    """The conditions of a node that come from eviction thresholds, as the API spells them."""

    MEMORY_PRESSURE = "MemoryPressure"
    DISK_PRESSURE = "DiskPressure"
    PID_PRESSURE = "PIDPressure"


_MEMORY_SIGNALS: Final = (MEMORY_AVAILABLE, ALLOCATABLE_MEMORY)
_CONTAINER_FS: Final = "containerfs"


class SignalObservation(Struct, frozen=True):
    """What of a signal's resource is available, and how much there is in all (MemTotal, say)."""

    available: int
    capacity: int = 0


class EvictionNote(Struct, frozen=True):
    """What kubelet reports of an eviction: the message in the pod's status, and the event's annotations."""

    message: str
    annotations: Mapping[str, str]


def met(
    thresholds: Iterable[Threshold],
    observations: Mapping[str, SignalObservation],
    *,
    until_reclaimed: bool = False,
) -> tuple[Threshold, ...]:
    """The thresholds that are met, whatever their grace period. A signal that was not observed meets none.

    *until_reclaimed*: whether they are still met, once they have been: until their minimum was reclaimed too.
    """
    found = []
    for each in thresholds:
        seen = observations.get(each.signal)
        if seen is None:
            continue
        wanted = each.value.of(seen.capacity)
        if until_reclaimed and each.min_reclaim is not None:
            wanted += each.min_reclaim.of(seen.capacity)
        if wanted > seen.available:
            found.append(each)
    return tuple(found)


def conditions(thresholds: Iterable[Threshold]) -> tuple[NodeCondition, ...]:
    """The conditions that a node has while *thresholds* are met, each once, in their order."""
    found = (_condition(each.signal) for each in thresholds)
    return tuple(dict.fromkeys(each for each in found if each is not None))


def reclaimed_first(thresholds: Iterable[Threshold]) -> tuple[Threshold, str] | None:
    """The threshold that kubelet acts on of all that are met, and the resource it reclaims; None if there is
    nothing that it could do about any of them.

    Memory comes before everything else. Of several thresholds on memory kubelet's sort leaves the last first.
    Memory of a NUMA node, which kubelet knows nothing of, comes after the machine's.
    """
    possible = [(each, resource) for each in thresholds if (resource := starved(each.signal)) is not None]
    of_memory = [one for one in possible if one[0].signal in _MEMORY_SIGNALS]
    of_nodes = (one for one in possible if node_of(one[0].signal) is not None)
    return of_memory[-1] if of_memory else next(of_nodes, next(iter(possible), None))


def with_container_fs(
    thresholds: Iterable[Threshold], *, image_fs: bool, container_fs: bool
) -> tuple[tuple[Threshold, ...], tuple[Threshold, ...]]:
    """*thresholds* with those of the file system of containers, and the configured ones that kubelet drops.

    Nobody can configure these. They are those of the node's file system, or, if images and containers share
    one of their own (*image_fs* alone), those of the images'. *container_fs* says that containers have a file
    system apart from the images'; kubelet knows of no such case without *image_fs* and changes nothing then.
    """
    found = tuple(thresholds)
    dropped = tuple(each for each in found if _file_system(each) == _CONTAINER_FS)
    if container_fs and not image_fs:
        return found, dropped
    source = "imagefs" if image_fs and not container_fs else "nodefs"
    derived = [
        replace(each, signal=each.signal.replace(source, _CONTAINER_FS))
        for each in found
        if _file_system(each) == source
    ]
    return (*(each for each in found if each not in dropped), *derived), dropped


def eviction_note(
    resource: str,
    pod: PodSpec,
    usage: Mapping[str, int],
    gates: FeatureGates,
    *,
    pod_usage_bytes: int | None = None,
    shortage: tuple[int, int] | None = None,
) -> EvictionNote:
    """What kubelet says when it evicts *pod*: who of it used more than was requested.

    *usage* is what containers use by name, in the order in which it was measured; for inodes and processes
    kubelet names no containers. Init containers count, ephemeral ones don't. A pod that requests memory as a
    whole is named whatever it used (*pod_usage_bytes*), also with less than it requested. *shortage* is the
    threshold and what was available.
    """
    message = f"The node was low on resource: {resource}. "
    if shortage is not None:
        threshold, available = map(format_count if resource in (INODES, PIDS) else format_page_size, shortage)
        message += f"Threshold quantity: {threshold}, available: {available}. "
    annotations = {"starved_resource": resource}
    request_bytes = pod_level_requests(pod, gates).get(MEMORY)
    if resource == MEMORY and request_bytes is not None and pod_usage_bytes is not None:
        message += _larger("Pod", pod.name, pod_usage_bytes, request_bytes, resource)
        annotations["offending_pod"] = pod.name
        annotations["offending_pod_usage"] = format_page_size(pod_usage_bytes)
    requests = {each.name: each.requests.get(resource, 0) for each in pod.all_containers}
    offending = {name: used for name, used in usage.items() if name in requests and used > requests[name]}
    for name, used in offending.items():
        message += _larger("Container", name, used, requests[name], resource)
    annotations["offending_containers"] = ",".join(offending)
    annotations["offending_containers_usage"] = ",".join(
        format_page_size(each) for each in offending.values()
    )
    return EvictionNote(message, annotations)


def _condition(signal: str) -> NodeCondition | None:
    resource = starved(signal)
    if resource is None:
        return None
    if resource == MEMORY:
        return NodeCondition.MEMORY_PRESSURE
    return NodeCondition.PID_PRESSURE if signal == "pid.available" else NodeCondition.DISK_PRESSURE


def _file_system(threshold: Threshold) -> str:
    return threshold.signal.partition(".")[0]


def _larger(kind: str, name: str, used: int, requested: int, resource: str) -> str:
    return (
        f"{kind} {name} was using {format_page_size(used)}, request is {format_page_size(requested)}, "
        f"has larger consumption of {resource}. "
    )


class Pressure(Struct, frozen=True):
    """What the looks so far have found. Times are nanoseconds of one clock.

    ``since_ns`` are the thresholds that are met, with when that began; ``due`` those of them whose grace
    period is over; ``seen_ns`` when a condition was last there.
    """

    since_ns: Mapping[Threshold, int] = {}
    due: tuple[Threshold, ...] = ()
    seen_ns: Mapping[NodeCondition, int] = {}

    def conditions(self, now_ns: int, transition_ns: int) -> tuple[NodeCondition, ...]:
        """The conditions that the node reports: for *transition_ns* longer than they are there."""
        return tuple(
            condition for condition, seen_ns in self.seen_ns.items() if now_ns - seen_ns < transition_ns
        )


def after_look(
    before: Pressure,
    thresholds: Sequence[Threshold],
    observations: Mapping[str, SignalObservation],
    now_ns: int,
) -> Pressure:
    """What is known after *observations* at *now_ns*. What was acted on stays due until its minimum was
    reclaimed; who is not observed is not met."""
    found = met(thresholds, observations)
    unresolved = met((one for one in before.due if one in thresholds), observations, until_reclaimed=True)
    found = (*found, *(one for one in unresolved if one not in found))
    since_ns = {one: before.since_ns.get(one, now_ns) for one in found}
    due = tuple(one for one, begun_ns in since_ns.items() if now_ns - begun_ns >= one.grace_period_ns)
    return Pressure(since_ns, due, {**before.seen_ns, **dict.fromkeys(conditions(found), now_ns)})


def wanted(threshold: Threshold, seen: SignalObservation) -> int:
    """What is to be available until *threshold*, once met, is resolved."""
    reclaim = 0 if threshold.min_reclaim is None else threshold.min_reclaim.of(seen.capacity)
    return threshold.value.of(seen.capacity) + reclaim


def shortage(threshold: Threshold, seen: SignalObservation | None) -> str:
    """How far a threshold is met, in words."""
    kind = "hard" if threshold.hard else "soft"
    if seen is None:
        return f"{threshold.signal} ({kind}), not observed any more"
    amounts = seen.available, threshold.value.of(seen.capacity)
    available, least = map(str if starved(threshold.signal) in (INODES, PIDS) else format_bytes, amounts)
    return f"{threshold.signal} is {available}, the {kind} threshold {least}"


class PodUsage(Struct, frozen=True):
    """What the order of eviction depends on. ``used`` is None while nothing was measured; ``request`` is the
    pod's own, by `bayplan.kubelet.pod.pod_requests`. ``deducted`` is what the use beyond the
    request is counted from, where that is something else: of inodes kubelet deducts the request in bytes."""

    name: str
    used: int | None
    request: int = 0
    priority: int = 0
    deducted: int | None = None


class DiskUse(Enum):
    """What a container writes to a disk that bayplan can measure. kubelet's local volumes are its own."""

    WRITABLE_LAYER = "writable layer"
    LOGS = "logs"


def eviction_order(pods: Iterable[PodUsage], resource: str = MEMORY) -> tuple[PodUsage, ...]:
    """The pods in the order in which kubelet evicts them when *resource* runs short.

    First those of which nothing is known, then those that use more than they request; within each, those of
    lower priority first, and then those that use most beyond their request. Nobody requests processes: only
    the priority and how many there are count. Ties, which kubelet leaves to chance, go by name.
    """
    return tuple(sorted(pods, key=_process_key if resource == PIDS else _request_key))


def disk_uses(signal: str, *, image_fs: bool) -> frozenset[DiskUse]:
    """What counts when *signal* of a disk is met. *image_fs*: images and writable layers have a disk of their
    own, and logs are not on it."""
    if not image_fs:
        return frozenset(DiskUse)
    return frozenset([DiskUse.LOGS if signal.startswith("nodefs.") else DiskUse.WRITABLE_LAYER])


def _request_key(pod: PodUsage) -> tuple[bool, bool, int, int, str]:
    if pod.used is None:
        return False, False, pod.priority, 0, pod.name
    deducted = pod.request if pod.deducted is None else pod.deducted
    return True, pod.used <= pod.request, pod.priority, deducted - pod.used, pod.name


def _process_key(pod: PodUsage) -> tuple[int, bool, int, str]:
    if pod.used is None:
        return pod.priority, False, 0, pod.name
    return pod.priority, True, -pod.used, pod.name

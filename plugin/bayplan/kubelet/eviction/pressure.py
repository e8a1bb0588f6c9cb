"""What kubelet remembers from one look at its signals to the next: since when a threshold is met, which ones
it acts on until their minimum was reclaimed, and which conditions the node still reports.

Pure; the rules of a single look are in `bayplan.kubelet.eviction.rules`. Source: synchronize() in
pkg/kubelet/eviction/eviction_manager.go.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from bayplan.kubelet.eviction.rules import NodeCondition, Observation, conditions, met
from bayplan.kubelet.eviction.thresholds import INODES, PIDS, Threshold, starved
from bayplan.quantity import format_bytes


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
    observations: Mapping[str, Observation],
    now_ns: int,
) -> Pressure:
    """What is known after *observations* at *now_ns*. Who was acted on stays due until its minimum was
    reclaimed; who is not observed is not met."""
    found = met(thresholds, observations)
    unresolved = met((one for one in before.due if one in thresholds), observations, until_reclaimed=True)
    found = (*found, *(one for one in unresolved if one not in found))
    since_ns = {one: before.since_ns.get(one, now_ns) for one in found}
    due = tuple(one for one, begun_ns in since_ns.items() if now_ns - begun_ns >= one.grace_period_ns)
    return Pressure(since_ns, due, {**before.seen_ns, **dict.fromkeys(conditions(found), now_ns)})


def wanted(threshold: Threshold, seen: Observation) -> int:
    """What is to be available until *threshold*, once met, is resolved."""
    reclaim = 0 if threshold.min_reclaim is None else threshold.min_reclaim.of(seen.capacity)
    return threshold.value.of(seen.capacity) + reclaim


def shortage(threshold: Threshold, seen: Observation | None) -> str:
    """How far a threshold is met, in words."""
    kind = "hard" if threshold.hard else "soft"
    if seen is None:
        return f"{threshold.signal} ({kind}), not observed any more"
    amounts = seen.available, threshold.value.of(seen.capacity)
    available, least = map(str if starved(threshold.signal) in (INODES, PIDS) else format_bytes, amounts)
    return f"{threshold.signal} is {available}, the {kind} threshold {least}"

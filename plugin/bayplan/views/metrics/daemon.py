"""Metrics of the daemon: that it runs, what it decided, and how long that took."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from bayplan.model.decision import Outcome
from bayplan.quantity import US_PER_S
from bayplan.views.durations import BOUNDS_MS, Durations
from bayplan.views.event_counts import all_events, evictions, reasons
from bayplan.views.metrics.metric import Facts, Histogram, Kind, Metric, Sample, single

_S_PER_MS: Final = 0.001
_NEVER: Final = Durations()


def _info(facts: Facts) -> Iterable[Sample]:
    daemon, policy = facts.status["daemon"], facts.status["policy"]["topologyManagerPolicy"]
    yield (daemon["version"], daemon["engine"], policy), 1


def _events(facts: Facts) -> Iterable[Sample]:
    return (((name,), number) for name, number in all_events(facts.snapshot.counters).items())


def _decisions(facts: Facts) -> Iterable[Sample]:
    counters = facts.snapshot.counters
    return (((one.value,), counters.get(f"decisions_{one.value}", 0)) for one in Outcome)


def _reasons(facts: Facts) -> Iterable[Sample]:
    return (((outcome, code), number) for outcome, code, number in reasons(facts.snapshot.counters))


def _evictions(facts: Facts) -> Iterable[Sample]:
    return (((signal, qos), number) for signal, qos, number in evictions(facts.snapshot.counters))


def _containers(facts: Facts) -> Iterable[Sample]:
    counted = Counter((one["qosClass"], one["outcome"]) for one in facts.status["containers"])
    return sorted(counted.items())


def _attention(facts: Facts) -> Iterable[Sample]:
    return (((kind,), len(facts.status[kind])) for kind in ("unmanaged", "drift", "problems"))


def _duration(what: str, name: str, text: str) -> Metric:
    def histogram(facts: Facts) -> Histogram:
        return Histogram.of(facts.snapshot.durations.get(what, _NEVER), BOUNDS_MS, _S_PER_MS)

    return Metric(name, Kind.HISTOGRAM, text, single(histogram))


METRICS: Final = (
    Metric("bayplan_info", Kind.GAUGE, "What runs.", _info, ("version", "engine", "policy")),
    Metric(
        "bayplan_daemon_connected",
        Kind.GAUGE,
        "Whether what is shown is the daemon's state of now; if not, it is the last one that was known.",
        single(lambda facts: int(facts.following)),
    ),
    Metric(
        "bayplan_observed_timestamp_seconds",
        Kind.GAUGE,
        "When the daemon looked last at what can change without it, since the epoch.",
        single(lambda facts: facts.snapshot.taken_us / US_PER_S),
    ),
    Metric(
        "bayplan_uptime_seconds",
        Kind.GAUGE,
        "Since the daemon's start.",
        single(lambda facts: facts.status["daemon"]["uptimeSeconds"]),
    ),
    Metric(
        "bayplan_runtime_connected",
        Kind.GAUGE,
        "Whether a container runtime is connected over NRI.",
        single(lambda facts: int(facts.status["runtime"]["connected"])),
    ),
    Metric(
        "bayplan_events_total",
        Kind.COUNTER,
        "What bayplan status counts since the daemon's start.",
        _events,
        ("event",),
    ),
    Metric("bayplan_containers", Kind.GAUGE, "Containers in the ledger.", _containers, ("qos", "outcome")),
    Metric(
        "bayplan_decisions_total",
        Kind.COUNTER,
        "Decisions about new and changed containers, by what came of them.",
        _decisions,
        ("outcome",),
    ),
    Metric(
        "bayplan_decision_reasons_total",
        Kind.COUNTER,
        "Decisions that are not as asked for, by the codes of their reasons; one decision can have several.",
        _reasons,
        ("outcome", "code"),
    ),
    Metric(
        "bayplan_evictions_total",
        Kind.COUNTER,
        "Pods that were evicted, by the signal whose threshold was met.",
        _evictions,
        ("signal", "qos"),
    ),
    Metric(
        "bayplan_shadow_mode",
        Kind.GAUGE,
        "Whether nothing of what is decided is applied.",
        single(lambda facts: int(facts.snapshot.shadow)),
    ),
    _duration("decision", "bayplan_decision_duration_seconds", "What an engine took for a decision."),
    _duration("commit", "bayplan_commit_duration_seconds", "What it took to have a decision on the disk."),
    _duration(
        "reply",
        "bayplan_reply_duration_seconds",
        "From a request of the NRI runtime to its answer, with all that it waited for; it waits 2 s.",
    ),
    Metric(
        "bayplan_attention",
        Kind.GAUGE,
        "What bayplan status lists as not as it should be.",
        _attention,
        ("kind",),
    ),
)

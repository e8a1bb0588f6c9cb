"""All metrics and all counted events, as rows of definitions, and their text for a scrape.

Beside the counted events, decisions that were not placed as asked are counted by the codes of their reasons,
as ``degraded_CODE`` and ``refused_CODE``.

A row is all that there is of a metric: its name, its meaning, and how its samples are had from what the
daemon shows; text, scrapes and the reference page are made from it. A name, once published, keeps its
meaning.

* Of the daemon: that it runs, what it decided, and how long that took.
* Of nodes: what each has, promised, uses, and what lies where it was not promised.
* Of containers, measured locality: where the memory of containers that are bound to nodes lies. Their names
  are without end, so that their number is limited, and this can be switched off.
* Of kubelet: figures that its managers count too, under its names, so that its dashboards show ours. It
  counts pods and containers that its managers decide about; here it is each decision of bayplan.
"""

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from msgspec import Struct

from bayplan.admin_protocol import API_VERSION
from bayplan.model.basis import Allocatable
from bayplan.model.decision import Outcome, QosClass
from bayplan.model.machine import union
from bayplan.printable import printable
from bayplan.quantity import US_PER_S
from bayplan.sets import CpuSet
from bayplan.views.snapshot import BOUNDS_MS, KUBELET_BOUNDS_MS, Durations, Snapshot
from bayplan.views.status import Spreads, View, nodes_view, spreads_of, status_view

EVENTS: Final[Mapping[str, str]] = {
    "agent_pods_dropped": "what an agent said of a pod was forgotten, as there were too many",
    "agent_requests_not_used": "what an agent said of a container did not count, as its spec disproves it",
    "capacity_shortfalls": "less memory or fewer CPUs are there than was promised",
    "connections": "a container runtime connected over NRI",
    "cpu_pinning_errors": "a container that asked for CPUs of its own got none, or was refused",
    "cpu_pinning_requests": "a decision about a container that asks for CPUs of its own",
    "decisions_adopted": "a container was decided about and left as it was found",
    "decisions_degraded": "a container was placed, but not as well as it asked",
    "decisions_placed": "a container was placed as it asked",
    "decisions_refused": "a container was refused",
    "evicted_by_api_server": "a pod that was evicted was deleted by the API server",
    "evictions_failed": "a container of a pod that was evicted has not ended",
    "drifted": "a cgroup had other values than decided, twice in a row",
    "found_containers": "a container was found that had been created without bayplan",
    "hugepage_limits_failed": "a limit of huge pages could not be raised to what was promised",
    "hugepage_pools_grown": "pools of huge pages grew for a container",
    "hugepage_pools_short": "pools of huge pages grew by less than a container needed",
    "hugepage_pools_shrunk": "pools of huge pages gave back what nobody needed",
    "ledger_faults": "the ledger or its record contradicted itself, and was put right",
    "looks_below_low_watermark": "a second in which a node had less free than the kernel's low watermark",
    "memory_at_risk": "memory of some nodes began to be less than is outstanding there",
    "memory_pinning_errors": "a container was refused",
    "memory_pinning_requests": "a decision that bound a container to nodes, or refused it",
    "missed": "a request of the runtime was answered by default, late or not at all",
    "moves": "a container got other nodes for the sake of others, or got its own back",
    "nri_gone": "a container of NRI was found to be gone",
    "oci_create": "the runtime wrapper announced a container",
    "oci_createRuntime": "the OCI hook announced a container",
    "oci_delete": "the runtime wrapper reported the end of a container",
    "oci_gone": "a container of hook or wrapper was found to be gone",
    "oci_poststop": "the OCI hook reported the end of a container",
    "oci_precreate": "a precreate hook had a spec rewritten",
    "oci_start": "the runtime wrapper was about to start a container",
    "oci_undecided": "there was no decision for hook or wrapper",
    "oci_update": "the runtime wrapper had an update decided",
    "oom_score_adj_failed": "an oom_score_adj could not be written",
    "pages_moved_bytes": "bytes of containers that went back to fewer nodes",
    "pinned_by_kubelet_cpu_manager": "a container had its CPUs from kubelet's CPU Manager",
    "pinned_by_kubelet_memory_manager": "a container had its nodes from kubelet's Memory Manager",
    "pinned_by_others": "a container had its CPUs or nodes from somebody else",
    "pinned_by_strangers": "a container had its CPUs or nodes from an unknown program",
    "placement_files_failed": "the file that says what a container was given could not be written or removed",
    "recovered_containers": "a container was recorded again from its annotation",
    "released": "a container ended and holds nothing any more",
    "relief_done": "pages were moved because memory was at risk",
    "relief_failed": "pages were to be moved because memory was at risk, and could not be",
    "relieved_bytes": "bytes that were moved because memory was at risk",
    "relocated": "a container went to other nodes so that another one fits",
    "repairs_failed": "a cgroup kept other values than decided although it was to be repaired",
    "reported_after_end": "something was reported of a container after its end, and it was not entered again",
    "requests_corrected": "a container's request became exact after its creation",
    "returns_failed": "pages of a container that was to go back to fewer nodes could not be moved",
    "slowed_down": "a container was slowed down until memory was freed that was promised",
    "slowed_in_vain": "a container was let go as no memory was freed for it",
    "starts_held": "a container started later because its memory had to be freed first",
    "starts_held_ms": "milliseconds for which starts waited for their memory",
}

_EVICTED: Final = "evicted:"
_BY_REASON: Final = ("degraded", "refused", "adopted")


def all_events(counters: Mapping[str, int]) -> dict[str, int]:
    """*counters* with those that are still 0, by name."""
    named = {name: number for name, number in counters.items() if not name.startswith(_EVICTED)}
    return dict(sorted({**dict.fromkeys(EVENTS, 0), **named}.items()))


def eviction_counter(signal: str, qos: str) -> str:
    """The name of the counter of pods of a class that were evicted for a signal."""
    return f"{_EVICTED}{signal}:{qos}"


def evictions(counters: Mapping[str, int]) -> Iterator[tuple[str, str, int]]:
    """Signal, QoS class and number of all pods that were evicted."""
    for name, number in sorted(counters.items()):
        if name.startswith(_EVICTED):
            _, signal, qos = name.split(":")
            yield signal, qos, number


def reasons(counters: Mapping[str, int]) -> Iterator[tuple[str, str, int]]:
    """Outcome, code of the reason and number of all decisions that were counted by reason."""
    for name, number in sorted(counters.items()):
        outcome, _, code = name.partition("_")
        if outcome in _BY_REASON and name not in EVENTS:
            yield outcome, code.replace("_", "-"), number


class Kind(enum.Enum):
    """The types of metrics that Prometheus has."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Histogram(Struct, frozen=True):
    """``counts`` has a number for each of ``bounds`` and one for what is above all of them; not cumulative.
    ``total`` is the sum of all that was observed."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @classmethod
    def of(cls, durations: Durations, bounds_ms: Sequence[float], scale: float) -> "Histogram":
        """*durations* with as many bounds as *bounds_ms* has, which are their lowest, times *scale*."""
        kept = len(bounds_ms)
        return cls(
            tuple(bound * scale for bound in bounds_ms),
            (*durations.counts[:kept], sum(durations.counts[kept:])),
            durations.total_ms * scale,
        )

    def cumulative(self) -> list[tuple[str, int]]:
        """The buckets as Prometheus has them: a bound, and how many were no more."""
        found, count = [], 0
        for bound, number in zip((*map(_plain, self.bounds), "+Inf"), self.counts, strict=True):
            count += number
            found.append((bound, count))
        return found


Sample: TypeAlias = tuple[tuple[str, ...], float | Histogram]
"""The values of the labels, in their order, and the number."""


class Facts(Struct, frozen=True):
    """What samples are made from. ``following``: this is the daemon's state of now, not what it was when it
    could be asked last. Of the containers with the most memory elsewhere, ``most_containers`` are named."""

    snapshot: Snapshot
    spreads: Spreads
    status: Mapping[str, Any]
    nodes: Sequence[Mapping[str, Any]]
    following: bool = True
    most_containers: int = 0

    @classmethod
    def of(cls, snapshot: Snapshot, *, following: bool = True, most_containers: int = 0) -> "Facts":
        """The facts of *snapshot*, with its views. Takes milliseconds where there are many containers."""
        spreads = spreads_of(snapshot)
        status, nodes = status_view(snapshot, spreads), nodes_view(snapshot, spreads)["nodes"]
        return cls(snapshot, spreads, status, nodes, following, most_containers)


class Metric(Struct, frozen=True):
    """One metric. ``text`` is what it counts or measures, for the scrape and the reference page."""

    name: str
    kind: Kind
    text: str
    samples: Callable[[Facts], Iterable[Sample]]
    labels: tuple[str, ...] = ()


def single(value: Callable[[Facts], float | Histogram]) -> Callable[[Facts], Iterable[Sample]]:
    """The samples of a metric without labels."""
    return lambda facts: [((), value(facts))]


def _plain(number: float) -> str:
    """Without the digits that binary fractions add.

    >>> _plain(0.00005 * 2**3)
    '0.0004'
    """
    return f"{number:.6g}"


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


_OF_THE_DAEMON: Final = (
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


_STATES: Final = ("total", "reserved", "booked", "free")
_CPU_STATES: Final = ("all", "exclusive", "contested", "shared", "reserved")
_LIVE_STATES: Final = {
    "free": "freeBytes",
    "reclaimable": "reclaimableBytes",
    "outstanding": "outstandingBytes",
    "used_by_owners": "usedByOwnersBytes",
    "movable": "movableBytes",
    "held_outside": "heldOutsideBytes",
}


def _amounts(facts: Facts) -> Iterator[Sample]:
    for node in facts.nodes:
        for resource, amounts in node["resources"].items():
            for state in _STATES:
                yield (str(node["id"]), resource, state), amounts[f"{state}Bytes"]


def _pool_bounds(facts: Facts) -> Iterator[Sample]:
    """The bounds of the pools of huge pages that may grow and shrink."""
    for node in facts.nodes:
        for resource, amounts in node["resources"].items():
            for bound in ("minimum", "maximum") if "maximumBytes" in amounts else ():
                yield (str(node["id"]), resource, bound), amounts[f"{bound}Bytes"]


def _live(facts: Facts) -> Iterator[Sample]:
    for node in facts.nodes:
        if node["live"] is not None:
            for state, key in _LIVE_STATES.items():
                yield (str(node["id"]), state), node["live"][key]


def _cpus(facts: Facts) -> Iterator[Sample]:
    for node in facts.nodes:
        for state in _CPU_STATES:
            yield (str(node["id"]), state), len(CpuSet.parse(node["cpus"][state]))


def _promised(facts: Facts) -> Iterable[Sample]:
    """The promised bytes by class; 0 for a class to which nothing is promised."""
    found: Counter[tuple[str, ...]] = Counter()
    for node in facts.nodes:
        for resource in node["resources"]:
            found.update({(str(node["id"]), resource, qos.value): 0 for qos in QosClass})
    for container_id, entry in facts.snapshot.ledger.entries.items():
        for node_id, row in facts.spreads[container_id].items():
            for resource, amount_bytes in row.items():
                found[str(node_id), resource, entry.decision.request.qos.value] += amount_bytes
    return found.items()


def _claimed(facts: Facts) -> Iterable[Sample]:
    """What resource claims hold by node and resource; 0 where no claim holds anything."""
    found: Counter[tuple[str, ...]] = Counter()
    for node in facts.nodes:
        found.update({(str(node["id"]), resource): 0 for resource in node["resources"]})
    for held in facts.snapshot.ledger.resource_claims.values():
        for node_id, row in held.by_node().items():
            for resource, amount_bytes in row.items():
                found[str(node_id), resource] += amount_bytes
    return found.items()


def _claimed_cpus(facts: Facts) -> Iterator[Sample]:
    own = union(held.cpus_of() for held in facts.snapshot.ledger.resource_claims.values())
    for node in facts.nodes:
        yield (str(node["id"]),), len(own & CpuSet.parse(node["cpus"]["all"]))


def _claims(facts: Facts) -> Iterator[Sample]:
    ledger = facts.snapshot.ledger
    used = {
        uid
        for entry in ledger.entries.values()
        if (share := entry.decision.request.claimed) is not None
        for uid in share.uids
    }
    uids = {held.claim.uid for held in ledger.resource_claims.values()}
    yield ("used",), len(uids & used)
    yield ("idle",), len(uids - used)


def _used(facts: Facts) -> Iterable[Sample]:
    live, entries = facts.snapshot.live, facts.snapshot.ledger.entries
    if live is None:
        return ()
    found: Counter[tuple[str, ...]] = Counter()
    found.update({(str(node), qos.value): 0 for node in live.nodes for qos in QosClass})
    for container_id, pages in live.containers.items():
        if container_id in entries:
            for node, held_bytes in pages.held_bytes.items():
                found[str(node), entries[container_id].decision.request.qos.value] += held_bytes
    return found.items()


def _misplaced(facts: Facts) -> Iterable[Sample]:
    live = facts.snapshot.live
    if live is None:
        return ()
    found: Counter[tuple[str, ...]] = Counter({(str(node),): 0 for node in live.nodes})
    for pages in live.containers.values():
        for node, held_bytes in pages.held_bytes.items():
            if node not in pages.nodes:
                found[str(node),] += held_bytes
    return found.items()


_OF_NODES: Final = (
    Metric(
        "bayplan_node_bytes",
        Kind.GAUGE,
        "Memory and huge pages; booked: promised.",
        _amounts,
        ("node", "resource", "state"),
    ),
    Metric(
        "bayplan_hugepage_pool_bytes",
        Kind.GAUGE,
        "Between which sizes pools of huge pages grow and shrink.",
        _pool_bounds,
        ("node", "resource", "bound"),
    ),
    Metric(
        "bayplan_node_promised_bytes",
        Kind.GAUGE,
        "What is promised to containers of each class; of a promise on several nodes, what is to lie here.",
        _promised,
        ("node", "resource", "qos"),
    ),
    Metric(
        "bayplan_node_claimed_bytes",
        Kind.GAUGE,
        "What resource claims hold, beside what is promised to containers.",
        _claimed,
        ("node", "resource"),
    ),
    Metric(
        "bayplan_node_claimed_cpus", Kind.GAUGE, "CPUs that resource claims hold.", _claimed_cpus, ("node",)
    ),
    Metric(
        "bayplan_resource_claims",
        Kind.GAUGE,
        "Resource claims that are held; idle: no container has them.",
        _claims,
        ("state",),
    ),
    Metric(
        "bayplan_node_live_bytes",
        Kind.GAUGE,
        "Memory as it was seen last; outstanding: promised and not used yet.",
        _live,
        ("node", "state"),
    ),
    Metric(
        "bayplan_node_used_bytes",
        Kind.GAUGE,
        "Memory that containers of each class use and that cannot be reclaimed, as it was seen last.",
        _used,
        ("node", "qos"),
    ),
    Metric(
        "bayplan_node_misplaced_bytes",
        Kind.GAUGE,
        "Of that, what lies here and belongs to containers that are bound to other nodes.",
        _misplaced,
        ("node",),
    ),
    Metric(
        "bayplan_node_cpus",
        Kind.GAUGE,
        "CPUs; exclusive: one pod's own, which no other pod's cpuset has; contested: own, and in the cpusets "
        "of others too.",
        _cpus,
        ("node", "state"),
    ),
)


_LOCAL: Final = "local"
_REMOTE: Final = "remote"


def _memory(facts: Facts) -> Iterable[Sample]:
    """The memory of containers by name; containers of the same name, of which one is about to end, are added
    up."""
    live, entries = facts.snapshot.live, facts.snapshot.ledger.entries
    if live is None or not facts.most_containers:
        return ()
    local: Counter[str] = Counter()
    remote: Counter[str] = Counter()
    for container_id, pages in live.containers.items():
        entry = entries.get(container_id)
        if entry is None or entry.decision.placement.mems is None:
            continue
        name = entry.decision.request.name
        for node, held_bytes in pages.held_bytes.items():
            (local if node in pages.nodes else remote)[name] += held_bytes
    names = sorted(local.keys() | remote.keys(), key=lambda name: (-remote[name], -local[name], name))
    found: list[Sample] = []
    for name in sorted(names[: facts.most_containers]):
        namespace, pod, container = name.split("/", 2)
        found.append(((namespace, pod, container, _LOCAL), local[name]))
        found.append(((namespace, pod, container, _REMOTE), remote[name]))
    return found


_OF_CONTAINERS: Final = (
    Metric(
        "bayplan_container_memory_bytes",
        Kind.GAUGE,
        "Memory of containers that are bound to nodes, from memory.numa_stat, as far as it cannot be "
        "reclaimed: local on their nodes, remote on others. Of as many containers as the agent was told to "
        "name, those with the most remote memory first.",
        _memory,
        ("namespace", "pod", "container", "place"),
    ),
)


def _counted(*names: str) -> Callable[[Facts], float]:
    return lambda facts: sum(facts.snapshot.counters.get(name, 0) for name in names)


def _admission_duration(facts: Facts) -> Histogram:
    return Histogram.of(facts.snapshot.durations.get("decision", Durations()), KUBELET_BOUNDS_MS, 1.0)


def _available_millicores(facts: Facts) -> float:
    machine, policy = facts.snapshot.machine, facts.snapshot.policy
    shared = facts.snapshot.ledger.shared_cpus(machine, policy.withheld_cpus)
    return 1000 * len(shared - Allocatable(machine, policy).reserved_cpus)


def _exclusive_by_node(facts: Facts) -> list[Sample]:
    return [((str(node["id"]),), len(CpuSet.parse(node["cpus"]["exclusive"]))) for node in facts.nodes]


_DECIDED: Final = tuple(f"decisions_{one.value}" for one in Outcome if one is not Outcome.ADOPTED)

_OF_KUBELET: Final = (
    Metric(
        "kubelet_topology_manager_admission_requests_total",
        Kind.COUNTER,
        "Decisions about new and changed containers.",
        single(_counted(*_DECIDED)),
    ),
    Metric(
        "kubelet_topology_manager_admission_errors_total",
        Kind.COUNTER,
        "Of these, refusals.",
        single(_counted("decisions_refused")),
    ),
    Metric(
        "kubelet_topology_manager_admission_duration_ms",
        Kind.HISTOGRAM,
        "What an engine took for a decision, in milliseconds.",
        single(_admission_duration),
    ),
    Metric(
        "kubelet_memory_manager_pinning_requests_total",
        Kind.COUNTER,
        "Decisions that bound a container to nodes, or refused it.",
        single(_counted("memory_pinning_requests")),
    ),
    Metric(
        "kubelet_memory_manager_pinning_errors_total",
        Kind.COUNTER,
        "Of these, refusals.",
        single(_counted("memory_pinning_errors")),
    ),
    Metric(
        "kubelet_cpu_manager_pinning_requests_total",
        Kind.COUNTER,
        "Decisions about containers that ask for CPUs of their own.",
        single(_counted("cpu_pinning_requests")),
    ),
    Metric(
        "kubelet_cpu_manager_pinning_errors_total",
        Kind.COUNTER,
        "Of these, those that got none or were refused.",
        single(_counted("cpu_pinning_errors")),
    ),
    Metric(
        "kubelet_cpu_manager_shared_pool_size_millicores",
        Kind.GAUGE,
        "Shared CPUs that are not reserved, in thousandths.",
        single(_available_millicores),
    ),
    Metric(
        "kubelet_cpu_manager_exclusive_cpu_allocation_count",
        Kind.GAUGE,
        "CPUs that belong to one container.",
        single(lambda facts: len(facts.snapshot.ledger.own_cpus)),
    ),
    Metric(
        "kubelet_cpu_manager_allocation_per_numa",
        Kind.GAUGE,
        "Of these, those of each node.",
        _exclusive_by_node,
        ("numa_node",),
    ),
)


METRIC_GROUPS: Final[Mapping[str, tuple[Metric, ...]]] = {
    "The daemon": _OF_THE_DAEMON,
    "Nodes": _OF_NODES,
    "Containers": _OF_CONTAINERS,
    "Under kubelet's names": _OF_KUBELET,
}
"""As the reference shows them."""
METRICS: Final = tuple(metric for group in METRIC_GROUPS.values() for metric in group)


_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\""})


def metrics_view(snapshot: Snapshot) -> View:
    """All metrics as one text, as the admin socket shows them: none of single containers."""
    return {"apiVersion": API_VERSION, "kind": "Metrics", "text": metrics_text(Facts.of(snapshot))}


def metrics_text(facts: Facts) -> str:
    """All metrics as text for a scrape."""
    return "".join(f"{line}\n" for metric in METRICS for line in _lines(metric, facts))


def _lines(metric: Metric, facts: Facts) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.text}"
    yield f"# TYPE {metric.name} {metric.kind.value}"
    for values, number in metric.samples(facts):
        labels = dict(zip(metric.labels, values, strict=True))
        if isinstance(number, Histogram):
            buckets = number.cumulative()
            for bound, count in buckets:
                yield _line(f"{metric.name}_bucket", {**labels, "le": bound}, count)
            yield _line(f"{metric.name}_sum", labels, number.total)
            yield _line(f"{metric.name}_count", labels, buckets[-1][1])
        else:
            yield _line(metric.name, labels, number)


def _line(name: str, labels: dict[str, str], number: float) -> str:
    pairs = ",".join(f'{key}="{printable(value).translate(_ESCAPES)}"' for key, value in labels.items())
    return f"{name}{{{pairs}}} {number}" if pairs else f"{name} {number}"

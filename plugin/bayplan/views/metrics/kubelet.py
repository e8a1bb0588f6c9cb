"""Figures that kubelet's managers count too, under kubelet's names, so that its dashboards show ours.

kubelet counts pods and containers that its managers decide about; here it is each decision of bayplan.
"""

from collections.abc import Callable
from typing import Final

from bayplan.model.basis import Allocatable
from bayplan.model.decision import Outcome
from bayplan.sets import CpuSet
from bayplan.views.durations import KUBELET_BOUNDS_MS, Durations
from bayplan.views.metrics.metric import Facts, Histogram, Kind, Metric, Sample, single


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

METRICS: Final = (
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

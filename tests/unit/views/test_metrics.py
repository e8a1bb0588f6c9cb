"""What the metrics say of a snapshot: one sample for each set of labels, and the right numbers."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from bayplan.model.ledger import Entry, Ledger
from bayplan.placement.page_placement import ContainerPages, LivePages, NodeMemory, Plan
from bayplan.quantity import GIB, MIB
from bayplan.sets import NodeSet
from bayplan.views.metrics import METRICS, Facts, Histogram, Kind
from bayplan.views.snapshot import BOUNDS_MS, Durations, Snapshot
from support.snapshots import GUARANTEED

LIVE = LivePages(
    1_700_000_000_000_000,
    {0: NodeMemory(GIB), 1: NodeMemory(GIB)},
    {
        "aaa": ContainerPages("aaa", "a", NodeSet([0]), GIB, {0: 30 * MIB, 1: 10 * MIB}),
        "bbb": ContainerPages("bbb", "b", NodeSet([0, 1]), 0, {0: 5 * MIB, 1: 7 * MIB}),
        "gone": ContainerPages("gone", "g", NodeSet([1]), 0, {1: MIB}),
    },
    Plan(),
)


def samples(facts: Facts, name: str) -> Mapping[tuple[str, ...], float | Histogram]:
    (metric,) = (one for one in METRICS if one.name == name)
    return dict(metric.samples(facts))


def with_live(snapshot: Snapshot, **changes) -> Facts:
    return Facts.of(replace(snapshot, live=LIVE, **changes), most_containers=10)


def test_names_are_unique_and_counters_end_as_counters_do() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        assert metric.text.endswith(".")


def test_no_labels_occur_twice_and_all_have_as_many_values_as_names(snapshot: Snapshot) -> None:
    twin = replace(GUARANTEED, request=replace(GUARANTEED.request, container_id="bbb"))
    facts = with_live(snapshot, ledger=Ledger.of([Entry(GUARANTEED), Entry(twin)]))
    for metric in METRICS:
        found = [values for values, _ in metric.samples(facts)]
        assert len(set(found)) == len(found), metric.name
        assert all(len(values) == len(metric.labels) for values in found), metric.name


def test_promised_by_class_adds_up_to_what_is_booked(snapshot: Snapshot) -> None:
    facts = Facts.of(snapshot)
    promised, amounts = samples(facts, "bayplan_node_promised_bytes"), samples(facts, "bayplan_node_bytes")
    assert promised["0", "memory", "Guaranteed"] == GIB
    for (node, resource, state), booked in amounts.items():
        if state == "booked":
            assert sum(n for key, n in promised.items() if key[:2] == (node, resource)) == booked


def test_used_and_misplaced_memory_is_counted_where_it_lies(snapshot: Snapshot) -> None:
    facts = with_live(snapshot)
    used = samples(facts, "bayplan_node_used_bytes")
    assert used["0", "Guaranteed"] == 30 * MIB
    assert used["1", "Guaranteed"] == 10 * MIB
    assert used["1", "Burstable"] == 7 * MIB
    assert used["1", "BestEffort"] == 0
    assert samples(facts, "bayplan_node_misplaced_bytes") == {("0",): 0, ("1",): 10 * MIB}


def test_locality_is_told_of_bound_containers_the_worst_first(snapshot: Snapshot) -> None:
    name = "bayplan_container_memory_bytes"
    of_nginx = ("default", "web-0", "nginx")
    assert samples(with_live(snapshot), name) == {
        (*of_nginx, "local"): 30 * MIB,
        (*of_nginx, "remote"): 10 * MIB,
    }
    others = [
        replace(GUARANTEED, request=replace(GUARANTEED.request, container_id=key, name=f"default/{key}/main"))
        for key in ("bbb", "gone")
    ]
    facts = with_live(snapshot, ledger=Ledger.of([Entry(GUARANTEED), *map(Entry, others)]))
    assert len(samples(facts, name)) == 6
    assert samples(replace(facts, most_containers=1), name).keys() == {
        (*of_nginx, "local"),
        (*of_nginx, "remote"),
    }
    assert not samples(replace(facts, most_containers=0), name)


def test_histograms_of_ours_and_kubelets_are_the_same_counts(snapshot: Snapshot) -> None:
    counts = tuple(range(len(BOUNDS_MS) + 1))
    facts = Facts.of(replace(snapshot, durations={"decision": Durations(counts, 500.0)}))
    ours = samples(facts, "bayplan_decision_duration_seconds")[()]
    theirs = samples(facts, "kubelet_topology_manager_admission_duration_ms")[()]
    assert isinstance(ours, Histogram)
    assert isinstance(theirs, Histogram)
    assert (ours.total, theirs.total) == pytest.approx((0.5, 500.0))
    assert ours.cumulative()[-1] == ("+Inf", sum(counts))
    assert theirs.cumulative()[-1] == ("+Inf", sum(counts))
    assert ours.cumulative()[-3:-1] == [("1", 120), ("2", 136)]
    assert [number for _, number in theirs.cumulative()[:15]] == [n for _, n in ours.cumulative()[:15]]
    assert samples(facts, "bayplan_reply_duration_seconds")[()].cumulative()[-1] == ("+Inf", 0)


def test_kubelets_figures_are_derived_from_what_is_counted(snapshot: Snapshot) -> None:
    counters = {
        "decisions_placed": 5,
        "decisions_degraded": 2,
        "decisions_refused": 1,
        "decisions_adopted": 9,
        "memory_pinning_requests": 4,
        "cpu_pinning_errors": 1,
    }
    facts = Facts.of(replace(snapshot, counters=counters))
    assert samples(facts, "kubelet_topology_manager_admission_requests_total")[()] == 8
    assert samples(facts, "kubelet_topology_manager_admission_errors_total")[()] == 1
    assert samples(facts, "kubelet_memory_manager_pinning_requests_total")[()] == 4
    assert samples(facts, "kubelet_cpu_manager_pinning_errors_total")[()] == 1
    assert samples(facts, "kubelet_cpu_manager_exclusive_cpu_allocation_count")[()] == 2
    # 8 CPUs, 2 of them exclusive, 1 reserved
    assert samples(facts, "kubelet_cpu_manager_shared_pool_size_millicores")[()] == 5000

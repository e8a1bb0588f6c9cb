"""What a container asks for, derived from its spec."""

import pytest
from msgspec.structs import replace

from bayplan.errors import ConfigError
from bayplan.model.decision import Interval, QosClass, QosSource
from bayplan.model.qos import oom_score_adj
from bayplan.model.request import changed_request, derive_request
from bayplan.model.resources import Resources
from bayplan.model.wishes import Wishes, read_wishes
from bayplan.model.workload import Container, Pod
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.machines import container, machine, pod

CAPACITY = 8 * GIB
MACHINE = machine(1, 64, CAPACITY)
GUARANTEED = pod("g", QosClass.GUARANTEED)
BURSTABLE = pod("b", QosClass.BURSTABLE)


def test_guaranteed_asks_for_its_limits_exactly() -> None:
    spec = Resources(
        memory_limit_bytes=GIB,
        cpu_shares=2048,
        cpu_quota_us=200_000,
        cpu_period_us=100_000,
        hugepage_limits_bytes={2 * MIB: 8 * MIB, GIB: 0},
    )
    request = derive_request(GUARANTEED, container("c", GUARANTEED, resources=spec), MACHINE)
    assert request.memory == Interval(GIB, GIB, "limit")
    assert request.memory.exact
    assert (request.cpu_milli, request.exclusive_cpus) == (2000, 2)
    assert request.hugepages_bytes == {"hugepages-2Mi": 8 * MIB}
    assert request.name == "default/g/c-name"
    assert request.qos_source is QosSource.CGROUP_PARENT


@pytest.mark.parametrize(("milli", "exclusive"), [(1500, 0), (1000, 1), (500, 0), (4000, 4)])
def test_only_whole_cpus_are_exclusive(milli: int, exclusive: int) -> None:
    request = derive_request(
        GUARANTEED, container("c", GUARANTEED, memory_bytes=1, milli_cpus=milli), MACHINE
    )
    assert request.exclusive_cpus == exclusive


def test_quota_switched_off_by_kubelet_leaves_the_shares() -> None:
    spec = Resources(memory_limit_bytes=GIB, cpu_shares=3072, cpu_quota_us=-1)
    request = derive_request(GUARANTEED, container("c", GUARANTEED, resources=spec), MACHINE)
    assert request.exclusive_cpus == 3


@pytest.mark.parametrize("request_bytes", [0, 100 * MIB, 2 * GIB, 8 * GIB])
def test_burstable_request_is_an_interval_around_the_true_one(request_bytes: int) -> None:
    adjustment = oom_score_adj(QosClass.BURSTABLE, request_bytes, CAPACITY)
    spec = Resources(cpu_shares=512)
    request = derive_request(
        BURSTABLE, container("c", BURSTABLE, resources=spec, oom_score_adj=adjustment), MACHINE
    )
    assert request.memory.low_bytes <= request_bytes <= request.memory.high_bytes
    assert request.memory.source == "oom_score_adj"
    assert request.exclusive_cpus == 0


def test_the_limit_cuts_the_interval() -> None:
    adjustment = oom_score_adj(QosClass.BURSTABLE, 2 * GIB, CAPACITY)
    spec = Resources(memory_limit_bytes=2 * GIB)
    request = derive_request(
        BURSTABLE, container("c", BURSTABLE, resources=spec, oom_score_adj=adjustment), MACHINE
    )
    assert request.memory.high_bytes == 2 * GIB


@pytest.mark.parametrize("key", ["memory.low", "memory.min"])
def test_a_protected_amount_is_the_request_where_its_score_agrees(key: str) -> None:
    """A score of 900 stands for 819.2 to 827.4 MiB of 8 GiB."""
    for protected, agrees in ((820 * MIB, True), (300 * MIB, False), (900 * MIB, False)):
        spec = Resources(unified={key: str(protected)})
        one = container("c", BURSTABLE, resources=spec, oom_score_adj=900)
        memory = derive_request(BURSTABLE, one, MACHINE).memory
        assert (memory == Interval(protected, protected, key)) is agrees
        assert agrees or memory.source == "oom_score_adj"


@pytest.mark.parametrize("text", ["max", "-1", "512MB", "²", "9" * 5000, str(1 << 63)])
@pytest.mark.parametrize("key", ["memory.low", "memory.min", "memory.high"])
def test_a_protected_amount_that_is_no_number_of_bytes_says_nothing(key: str, text: str) -> None:
    for owner in (BURSTABLE, GUARANTEED):
        spec = Resources(memory_limit_bytes=GIB, unified={key: text})
        plain = Resources(memory_limit_bytes=GIB)
        with_it, without = (
            derive_request(owner, container("c", owner, resources=one), MACHINE) for one in (spec, plain)
        )
        assert with_it == without


def test_node_critical_burstable_gives_no_signal() -> None:
    spec = Resources(memory_limit_bytes=GIB)
    request = derive_request(
        BURSTABLE, container("c", BURSTABLE, resources=spec, oom_score_adj=-997), MACHINE
    )
    assert request.memory == Interval(0, GIB, "no signal")


def test_outside_kubelet_a_missing_request_is_the_limit() -> None:
    plain = pod("plain")
    request = derive_request(plain, container("c", plain, memory_bytes=GIB, oom_score_adj=0), MACHINE)
    assert (request.qos, request.qos_source) == (QosClass.BURSTABLE, QosSource.INFERRED)
    assert request.memory == Interval(GIB, GIB, "limit")


@pytest.mark.parametrize(
    ("parent", "resources", "requested_milli"),
    [
        (BURSTABLE, Resources(cpu_shares=512), 500),
        # A weight: nomad writes MHz.
        (pod("plain"), Resources(cpu_shares=48_000), 0),
        (pod("plain"), Resources(cpu_shares=1024, memory_limit_bytes=GIB), 0),
        (pod("plain"), Resources(cpu_quota_us=150_000), 1500),
        (pod("plain"), Resources(cpu_shares=1024, cpu_quota_us=100_000, memory_limit_bytes=GIB), 1000),
        (pod("plain"), Resources(cpu_shares=512, cpu_quota_us=100_000, memory_limit_bytes=GIB), 0),
    ],
)
def test_cpu_shares_are_a_request_in_kubelets_tree_only(
    parent: Pod, resources: Resources, requested_milli: int
) -> None:
    request = derive_request(parent, container("c", parent, resources=resources), MACHINE)
    assert request.requested_milli == requested_milli
    changed = changed_request(request, resources, Resources(cpu_shares=3), MACHINE)
    assert changed.cpu_weighed == (parent is not BURSTABLE and changed.qos is not QosClass.GUARANTEED)


def test_an_added_limit_never_changes_the_class() -> None:
    plain = pod("plain")
    one = container("c", plain, resources=Resources(cpu_quota_us=100_000))
    request = derive_request(plain, one, MACHINE, Wishes(memory_limit_bytes=GIB), {"Burstable": 2 * GIB})
    assert (request.qos, request.memory_limit_bytes) == (QosClass.BURSTABLE, GIB)
    request = derive_request(plain, one, MACHINE, default_limit_bytes={"Burstable": 2 * GIB})
    assert request.memory_limit_bytes == 2 * GIB


def test_cpusets_of_the_spec_are_pins() -> None:
    spec = Resources(cpuset_cpus=CpuSet([1]), cpuset_mems=NodeSet([0]))
    request = derive_request(BURSTABLE, container("c", BURSTABLE, resources=spec), MACHINE)
    assert (request.pinned_cpus, request.pinned_mems) == (CpuSet([1]), NodeSet([0]))


def test_a_nameless_container_is_called_by_its_ids() -> None:
    request = derive_request(Pod("sandbox"), Container("c1", "sandbox"), MACHINE)
    assert request.name == "-/sandbox/c1"
    request = derive_request(Pod("c1"), Container("c1", "c1"), MACHINE)
    assert request.name == "-/-/c1"
    request = derive_request(Pod("p1", "c1"), Container("c1", "p1"), MACHINE)
    assert request.name == "-/c1/c1"


def test_a_change_keeps_the_class_and_forgets_our_own_cpusets() -> None:
    one = container("c", GUARANTEED, memory_bytes=GIB, milli_cpus=2000)
    request = derive_request(GUARANTEED, one, MACHINE)
    spec = Resources(GIB, 2048, 200_000, 100_000, CpuSet([4, 5]), NodeSet([1]))
    assert changed_request(request, spec, Resources(), MACHINE) == request
    more = Resources(memory_limit_bytes=2 * GIB, cpu_quota_us=300_000)
    grown = changed_request(request, spec, more, MACHINE)
    assert grown.memory == Interval(2 * GIB, 2 * GIB, "limit")
    assert (grown.memory_limit_bytes, grown.exclusive_cpus, grown.pinned_cpus) == (2 * GIB, 3, None)
    pinned = changed_request(request, spec, Resources(cpuset_cpus=CpuSet([7])), MACHINE)
    assert pinned.pinned_cpus == CpuSet([7])


def test_a_smaller_limit_cuts_a_known_interval() -> None:
    spec = Resources(cpu_shares=100)
    request = derive_request(BURSTABLE, container("c", BURSTABLE, resources=spec, oom_score_adj=500), MACHINE)
    cut = changed_request(request, spec, Resources(memory_limit_bytes=GIB), MACHINE)
    assert cut.memory == Interval(0, GIB, "oom_score_adj", usual_low_bytes=GIB)


def test_annotations_for_one_container_win() -> None:
    annotations = {
        "bayplan.dev/memory-limit": "1Gi",
        "side.bayplan.dev/memory-limit": "2Gi",
        "other.example/memory-limit": "nonsense",
    }
    assert read_wishes(annotations, "main") == Wishes(GIB)
    assert read_wishes(annotations, "side") == Wishes(2 * GIB)


def test_all_wrong_annotations_are_named() -> None:
    annotations = {
        "bayplan.dev/memory-limit": "lots",
        "bayplan.dev/memory-limits": "1Gi",
        "c.bayplan.dev/memory-limit": "0",
    }
    with pytest.raises(ConfigError) as caught:
        read_wishes(annotations, "c")
    text = str(caught.value)
    assert len(caught.value.problems) == 3
    for expected in (
        "bayplan.dev/memory-limit: found 'lots'",
        "bayplan.dev/memory-limits",
        "more than 0 bytes",
    ):
        assert expected in text


def test_no_room_is_kept_for_a_whole_pod_of_more_than_half_of_the_machine() -> None:
    for sums, kept in (
        (Resources(CAPACITY // 2, cpu_quota_us=100_000), True),
        (Resources(CAPACITY // 2 + 1, cpu_quota_us=100_000), False),
        (Resources(GIB, cpu_quota_us=3_300_000), False),
        (Resources(GIB, hugepage_limits_bytes={2 * MIB: 2 * MIB}), False),
        (Resources(), False),
    ):
        for owner, inside in ((pod("plain"), False), (GUARANTEED, True)):
            one = replace(owner, resources=sums)
            request = derive_request(one, container("c", one, memory_bytes=MIB, milli_cpus=500), MACHINE)
            assert (request.pod_totals is not None) is (kept or (inside and sums != Resources()))

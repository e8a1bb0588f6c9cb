"""Values of container and pod cgroups beyond what the recorded answers cover."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.kubelet.pod import ContainerSpec, FeatureGates, PodLevelResources, PodSpec
from bayplan.kubelet.qos import (
    NodeSettings,
    container_hugepage_limits,
    container_values,
    hugepage_limits,
    memory_high_bytes,
    pod_values,
)
from bayplan.model.decision import QosClass
from bayplan.model.kubelet_version import NEWEST, rules_of
from bayplan.model.policy import MemoryQos, MemoryReservationPolicy
from bayplan.model.qos import MAX_SHARES, quota_from_milli, shares_from_milli
from bayplan.model.resources import milli_from_quota
from conformance.cgroup_weights import (
    MAX_WEIGHT,
    reported_milli,
    weight_linear,
    weight_quadratic,
)
from conformance.swap import SwapBehavior, swap_behavior

GATES = FeatureGates()
NODE = NodeSettings(64 << 30, allocatable_bytes=60 << 30)
MIB = 1 << 20


def test_weights_rise_from_end_to_end():
    """Over all 262,145 possible shares."""
    for weight in (weight_linear, weight_quadratic):
        weights = [weight(shares) for shares in range(2, MAX_SHARES + 2)]
        assert weights[0] == 1
        assert weights[-1] == weights[-2] == MAX_WEIGHT
        assert all(lower <= higher for lower, higher in itertools.pairwise(weights))


@pytest.mark.parametrize(
    ("shares", "linear", "quadratic"),
    [(0, 1, 0), (1, 1, 1), (2, 1, 1), (102, 4, 17), (512, 20, 59), (1024, 39, 100), (2048, 79, 174)],
)
def test_weights_of_usual_shares(shares, linear, quadratic):
    assert (weight_linear(shares), weight_quadratic(shares)) == (linear, quadratic)


@given(st.integers(2, 256_000))
def test_reported_cpu_request_is_the_request_or_less(milli):
    assert reported_milli(shares_from_milli(milli)) <= milli
    assert milli - reported_milli(shares_from_milli(milli)) <= 1


@given(st.integers(10, 10**6), st.integers(1000, 10**6))
def test_quotas_allow_no_more_than_the_limit(milli, period_us):
    quota_us = quota_from_milli(milli, period_us)
    assert quota_us == 1000 or quota_us * 1000 <= milli * period_us
    read_back = milli_from_quota(quota_us, period_us)
    assert read_back is not None
    assert quota_us == 1000 or read_back <= milli


def test_a_container_without_anything():
    alone = ContainerSpec("c")
    values = container_values(PodSpec("p", (alone,)), alone, NODE, GATES)
    assert (values.cpu_shares, values.cpu_quota_us, values.cpu_period_us) == (2, 0, 100_000)
    assert (values.memory_limit_bytes, values.oom_score_adj) == (0, 1000)
    assert values.unified == {"memory.high": "max", "memory.oom.group": "1"}


def test_without_quota_enforcement_nothing_is_said_about_quotas():
    alone = ContainerSpec("c", limits={"cpu": 500})
    node = NodeSettings(64 << 30, enforce_quota=False, cgroup_v2=False)
    values = container_values(PodSpec("p", (alone,)), alone, node, GATES)
    assert (values.cpu_shares, values.cpu_quota_us, values.cpu_period_us) == (512, None, None)
    assert values.unified == {}


@pytest.mark.parametrize(("gate", "quota"), [(True, -1), (False, 200_000)])
def test_exclusive_cpus_need_no_quota(gate, quota):
    sizes = {"cpu": 2000, "memory": MIB}
    alone = ContainerSpec("c", sizes, sizes)
    values = container_values(
        PodSpec("p", (alone,)),
        alone,
        NODE,
        FeatureGates(no_quota_for_exclusive_cpus=gate),
        exclusive_cpus=True,
    )
    assert values.cpu_quota_us == quota


def test_another_period_counts_with_its_gate_only():
    alone = ContainerSpec("c", limits={"cpu": 500})
    for custom, expected in ((True, (5000, 10_000)), (False, (50_000, 100_000))):
        node = NodeSettings(64 << 30, period_us=10_000, custom_period=custom)
        values = container_values(PodSpec("p", (alone,)), alone, node, GATES)
        assert (values.cpu_quota_us, values.cpu_period_us) == expected


def test_huge_page_limits_come_from_the_container_else_from_the_pod():
    alone = ContainerSpec("c", limits={"hugepages-2Mi": 4 * MIB, "hugepages-big": 1})
    level = PodLevelResources(limits={"hugepages-2Mi": 8 * MIB, "hugepages-1Gi": 1 << 30})
    found = PodSpec("p", (alone,), resources=level)
    sizes = (64 << 10, 2 * MIB, 1 << 30)
    limits = container_hugepage_limits(found, alone, sizes, GATES)
    assert limits == {64 << 10: 0, 2 * MIB: 4 * MIB, 1 << 30: 1 << 30}
    assert hugepage_limits(alone.limits) == {2 * MIB: 4 * MIB}


@pytest.mark.parametrize(
    ("request_bytes", "limit_bytes", "factor", "expected"),
    [
        (MIB, MIB, 0.9, None),
        (MIB, 2 * MIB, 0.5, MIB + MIB // 2),
        (MIB, 2 * MIB, 1.0, 2 * MIB),
        (MIB, 2 * MIB, 0.0, None),
        (MIB, MIB + 4095, 0.9, None),
        (MIB, 0, 0.5, (60 << 30) // 2 + MIB // 2),
        (0, 10_000, 0.9, 8192),
    ],
)
def test_memory_high(request_bytes, limit_bytes, factor, expected):
    for rules in (NEWEST, rules_of(36)):
        assert memory_high_bytes(request_bytes, limit_bytes, 60 << 30, factor, rules) == expected


def test_memory_high_needs_something_to_throttle_towards():
    assert memory_high_bytes(MIB, 0, 0, 0.9, NEWEST) is None


def test_a_container_without_amounts_is_throttled_since_1_37():
    assert memory_high_bytes(0, 0, 60 << 30, 0.5, rules_of(36)) is None
    assert memory_high_bytes(0, 0, 60 << 30, 0.5, rules_of(37)) == 30 << 30


def test_a_container_is_throttled_by_its_pod_where_only_that_has_a_limit():
    alone = ContainerSpec("c", {"memory": MIB})
    level = PodLevelResources({"memory": 2 * MIB}, {"memory": 4 * MIB})
    pod = PodSpec("p", (alone,), resources=level)
    node = NodeSettings(64 << 30, 60 << 30, memory_qos=MemoryQos(0.5))
    older = FeatureGates(rules=rules_of(36))
    assert pod_values(pod, node, GATES).unified == {"memory.high": str(3 * MIB)}
    assert "memory.high" not in container_values(pod, alone, node, GATES).unified
    assert pod_values(pod, node, older).unified == {}
    assert "memory.high" in container_values(pod, alone, node, older).unified


@pytest.mark.parametrize(("minor", "reset"), [(36, {}), (37, {"memory.high": "max"})])
def test_without_the_gate_a_stale_value_is_reset_since_1_37(minor, reset):
    alone = ContainerSpec("c")
    node = NodeSettings(64 << 30, single_process_oom_kill=True)
    values = container_values(PodSpec("p", (alone,)), alone, node, FeatureGates(rules=rules_of(minor)))
    assert values.unified == reset


def test_memory_qos_without_a_factor_does_not_throttle():
    alone = ContainerSpec("c", {"memory": MIB})
    node = NodeSettings(64 << 30, 60 << 30, memory_qos=MemoryQos(None, MemoryReservationPolicy.TIERED))
    values = container_values(PodSpec("p", (alone,)), alone, node, GATES)
    assert values.unified == {"memory.low": str(MIB), "memory.oom.group": "1"}
    assert pod_values(PodSpec("p", (alone,)), node, GATES).unified == {"memory.low": str(MIB)}


def test_requests_under_pod_level_resources_of_zero_are_protected_all_the_same():
    """Those make the class BestEffort, and kubelet asks only whether it is Guaranteed."""
    alone = ContainerSpec("c", {"memory": MIB})
    node = NodeSettings(64 << 30, 60 << 30, memory_qos=MemoryQos(None, MemoryReservationPolicy.TIERED))
    pod = PodSpec("p", (alone,), resources=PodLevelResources({"cpu": 0}))
    values = pod_values(pod, node, GATES)
    assert (values.cpu_shares, values.unified) == (2, {"memory.low": str(MIB)})
    low = {"memory.low": str(MIB), "memory.oom.group": "1"}
    assert container_values(pod, alone, node, GATES).unified == low


def test_before_1_37_an_unlimited_init_container_after_a_limited_sidecar_passes_for_limited():
    sizes = {"memory": 2 * MIB}
    sidecar = ContainerSpec("s", {"memory": MIB}, sizes, restartable=True)
    app = ContainerSpec("a", {"memory": MIB}, sizes)
    after = PodSpec("p", (app,), (sidecar, ContainerSpec("i")))
    before = PodSpec("p", (app,), (ContainerSpec("i"), sidecar))
    older = FeatureGates(rules=rules_of(36))
    assert pod_values(after, NODE, older).memory_limit_bytes == 4 * MIB
    assert pod_values(before, NODE, older).memory_limit_bytes is None
    assert pod_values(after, NODE, GATES).memory_limit_bytes is None


def test_overhead_of_the_sandbox_is_on_top():
    sizes = {"cpu": 100, "memory": MIB}
    app = ContainerSpec("a", sizes, sizes)
    values = pod_values(PodSpec("p", (app,), overhead={"cpu": 50, "memory": MIB}), NODE, GATES)
    assert (values.cpu_shares, values.cpu_quota_us, values.memory_limit_bytes) == (153, 15_000, 2 * MIB)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, SwapBehavior.LIMITED_SWAP),
        ({"cgroup_v2": False}, SwapBehavior.NO_SWAP),
        ({"swap_controller": False}, SwapBehavior.NO_SWAP),
    ],
)
def test_swap(changes, expected):
    alone = ContainerSpec("c", {"memory": MIB}, {"memory": 2 * MIB})
    found = PodSpec("p", (alone,))
    assert swap_behavior(SwapBehavior.LIMITED_SWAP, found, alone, GATES, **changes) is expected
    assert swap_behavior(SwapBehavior.NO_SWAP, found, alone, GATES, **changes) is SwapBehavior.NO_SWAP


def test_who_may_not_swap():
    alone = ContainerSpec("c", {"memory": MIB}, {"memory": 2 * MIB})
    for found, container in (
        (PodSpec("p", (alone,), priority=2_000_000_000), alone),
        (PodSpec("p", (alone,), qos=QosClass.GUARANTEED), alone),
        (PodSpec("p", (alone,), qos=QosClass.BEST_EFFORT), alone),
        (PodSpec("p", (alone,)), ContainerSpec("c", {"memory": MIB}, {"memory": MIB})),
        (PodSpec("p", (alone,)), ContainerSpec("c")),
    ):
        assert swap_behavior(SwapBehavior.LIMITED_SWAP, found, container, GATES) is SwapBehavior.NO_SWAP

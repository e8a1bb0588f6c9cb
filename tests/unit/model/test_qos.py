"""QoS classes and kubelet's numbers, forwards and backwards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayplan.model.decision import QosClass, QosSource
from bayplan.model.qos import (
    oom_score_adj,
    qos_from_cgroup_parent,
    request_from_oom_score_adj,
    shares_from_milli,
)
from bayplan.model.request import derive_qos, milli_from_shares
from bayplan.model.resources import Resources, milli_from_quota

UID = "5a3b9c1e_7d2f_4e8a_9b0c_1d2e3f4a5b6c"


@pytest.mark.parametrize(
    ("cgroup_parent", "expected"),
    [
        (f"/kubepods.slice/kubepods-pod{UID}.slice", QosClass.GUARANTEED),
        (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID}.slice", QosClass.BURSTABLE),
        (
            f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID}.slice",
            QosClass.BEST_EFFORT,
        ),
        (f"kubepods-burstable-pod{UID}.slice", QosClass.BURSTABLE),
        (
            f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort-pod{UID}.slice",
            QosClass.BEST_EFFORT,
        ),
        (f"/kubepods/pod{UID}", QosClass.GUARANTEED),
        (f"/kubepods/burstable/pod{UID}", QosClass.BURSTABLE),
        (f"/kubepods/besteffort/pod{UID}/", QosClass.BEST_EFFORT),
        (f"/kubelet/kubepods/pod{UID}", QosClass.GUARANTEED),
        ("", None),
        ("/system.slice", None),
        ("/user.slice/burstable", None),
        ("/kubepods", None),
        ("/kubepods.slice", None),
        ("/kubepods/system", None),
        ("/my-kubepods-burstable-podx", None),
    ],
)
def test_class_from_kubelets_cgroup_tree(cgroup_parent: str, expected: QosClass | None) -> None:
    assert qos_from_cgroup_parent(cgroup_parent) is expected


@pytest.mark.parametrize(
    ("resources", "adjustment", "expected", "source"),
    [
        (Resources(), -997, QosClass.GUARANTEED, QosSource.OOM_SCORE_ADJ),
        (Resources(), 1000, QosClass.BEST_EFFORT, QosSource.OOM_SCORE_ADJ),
        (Resources(), 500, QosClass.BURSTABLE, QosSource.OOM_SCORE_ADJ),
        (Resources(), -5, QosClass.BEST_EFFORT, QosSource.INFERRED),
        (Resources(), None, QosClass.BEST_EFFORT, QosSource.INFERRED),
        (Resources(cpu_shares=2), None, QosClass.BEST_EFFORT, QosSource.INFERRED),
        (Resources(cpu_shares=512), None, QosClass.BURSTABLE, QosSource.INFERRED),
        (Resources(memory_limit_bytes=1), None, QosClass.BURSTABLE, QosSource.INFERRED),
        (Resources(cpu_quota_us=100_000), None, QosClass.BURSTABLE, QosSource.INFERRED),
        (Resources(memory_limit_bytes=1, cpu_quota_us=-1), None, QosClass.BURSTABLE, QosSource.INFERRED),
        (
            Resources(memory_limit_bytes=1, cpu_quota_us=200_000),
            None,
            QosClass.GUARANTEED,
            QosSource.INFERRED,
        ),
        (
            Resources(memory_limit_bytes=1, cpu_quota_us=200_000, cpu_shares=2048),
            None,
            QosClass.GUARANTEED,
            QosSource.INFERRED,
        ),
        (
            Resources(memory_limit_bytes=1, cpu_quota_us=200_000, cpu_shares=1024),
            None,
            QosClass.BURSTABLE,
            QosSource.INFERRED,
        ),
    ],
)
def test_class_outside_kubelets_tree(
    resources: Resources, adjustment: int | None, expected: QosClass, source: QosSource
) -> None:
    assert derive_qos(None, resources, adjustment) == (expected, source)


def test_kubelets_tree_decides_before_anything_else() -> None:
    by_tree = qos_from_cgroup_parent("/kubepods/burstable/podx")
    resources = Resources(memory_limit_bytes=1, cpu_quota_us=100_000)
    assert derive_qos(by_tree, resources, -997) == (QosClass.BURSTABLE, QosSource.CGROUP_PARENT)


@given(st.integers(1 << 20, 1 << 46), st.floats(0, 1))
def test_the_true_request_always_lies_in_the_interval(capacity: int, part: float) -> None:
    request = min(capacity, int(part * capacity))
    interval = request_from_oom_score_adj(oom_score_adj(QosClass.BURSTABLE, request, capacity), capacity)
    assert interval is not None
    assert interval.low_bytes <= request <= interval.high_bytes


@given(st.integers(1 << 20, 1 << 46), st.integers(4, 998))
def test_the_interval_is_no_wider_than_it_must_be(capacity: int, adjustment: int) -> None:
    interval = request_from_oom_score_adj(adjustment, capacity)
    assert interval is not None
    low_bytes = interval.likely_low_bytes
    assert oom_score_adj(QosClass.BURSTABLE, low_bytes, capacity) == adjustment
    assert oom_score_adj(QosClass.BURSTABLE, interval.high_bytes, capacity) == adjustment
    assert oom_score_adj(QosClass.BURSTABLE, low_bytes - 1, capacity) != adjustment
    assert oom_score_adj(QosClass.BURSTABLE, interval.high_bytes + 1, capacity) != adjustment


@pytest.mark.parametrize("adjustment", [-997, 0, 2, 1000])
def test_no_interval_for_values_outside_the_burstable_range(adjustment: int) -> None:
    assert request_from_oom_score_adj(adjustment, 1 << 30) is None


@pytest.mark.parametrize(
    ("qos", "request_bytes", "expected"),
    [
        (QosClass.GUARANTEED, 0, -997),
        (QosClass.BEST_EFFORT, 0, 1000),
        (QosClass.BURSTABLE, 0, 999),
        (QosClass.BURSTABLE, 1000, 875),
        (QosClass.BURSTABLE, 8000, 3),
    ],
)
def test_oom_score_adj(qos: QosClass, request_bytes: int, expected: int) -> None:
    assert oom_score_adj(qos, request_bytes, 8000) == expected


@given(st.integers(2, 256_000))
def test_shares_lose_less_than_one_milli_cpu(milli: int) -> None:
    assert milli_from_shares(shares_from_milli(milli)) in (milli - 1, milli) or milli < 3


@pytest.mark.parametrize(
    ("milli", "shares"), [(0, 2), (1, 2), (1000, 1024), (1999, 2046), (300_000, 262_144)]
)
def test_shares(milli: int, shares: int) -> None:
    assert shares_from_milli(milli) == shares


@pytest.mark.parametrize(
    ("quota", "period", "milli"),
    [
        (None, None, None),
        (-1, 100_000, None),
        (0, 100_000, None),
        (150_000, 100_000, 1500),
        (50_000, None, 500),
    ],
)
def test_quota(quota: int | None, period: int | None, milli: int | None) -> None:
    assert milli_from_quota(quota, period) == milli

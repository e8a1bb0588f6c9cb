"""Kubelet's recorded classes, scores and cgroup values."""

import json
from pathlib import Path

import pytest

from conformance.sections import Folder, qos
from conformance.vectors import run

VECTORS = Folder(Path(__file__).parents[2] / "data" / "vectors")


@pytest.mark.parametrize("section", qos.SECTIONS, ids=str)
def test_answers_as_kubelet_does(section):
    result = run(section, VECTORS)
    assert result.cases
    assert not result.failures, result.failures[0]


@pytest.mark.parametrize(
    ("milli", "quota_us", "right"),
    [(100, 1000, True), (100, 10_000, True), (100, 500, False), (300, 1500, True)],
)
def test_a_quota_with_memory_qos_follows_the_configured_period_or_the_default_one(
    tmp_path, milli, quota_us, right
):
    whole = {"cpu_milli": milli, "memory": 100 << 20}
    case = {
        "name": "tuned",
        "enforceCPULimits": True,
        "quotaPeriod": 5000,
        "pod": {
            "uid": "",
            "name": "",
            "init_containers": [],
            "containers": [{"name": "", "requests": whole, "limits": whole}],
        },
        "expected": {
            "CPUPeriod": 5000,
            "CPUQuota": quota_us,
            "CPUSet": [],
            "CPUShares": milli * 1024 // 1000,
            "Memory": 100 << 20,
            "Unified": {"memory.min": str(100 << 20)},
        },
    }
    table = "resource_config_for_pod_memory_qos"
    (tmp_path / "cgroup_conversions.json").write_text(json.dumps({table: [case]}))
    (section,) = [one for one in qos.SECTIONS if one.key == table]
    assert (not run(section, Folder(tmp_path)).failures) is right

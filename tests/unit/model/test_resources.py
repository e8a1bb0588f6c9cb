"""What a container's resources mean, on a machine of two nodes with 64Gi and 8 CPUs each."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bayplan.model.decision import QosClass
from bayplan.model.request import changed_request, derive_request
from bayplan.model.resources import (
    Resources,
    WrittenResources,
    changed_resources,
    limiting_nothing,
    overridden,
    pinned,
    read,
)
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.described_specs import described_by_nri, described_by_oci
from support.machines import container, machine, pod

MACHINE = machine(2, 8, 64 * GIB, hugepages_bytes={2 * MIB: GIB})
REPORTS = json.loads((Path(__file__).parents[2] / "data/resources/reports.json").read_text())
PLAIN = pod("plain")


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report["what"])
@pytest.mark.parametrize("described", [described_by_nri, described_by_oci])
def test_public_reports(report: dict[str, Any], described: Any) -> None:
    linux = {
        "cgroupsPath": report.get("cgroupsPath", "machine.slice:libpod:c"),
        "resources": report["resources"],
    }
    score = report.get("oomScoreAdj")
    process = {} if score is None else {"oomScoreAdj": score}
    request = derive_request(*described({"linux": linux, "process": process}), MACHINE)
    expected = report["expected"]
    assert request.qos.value == expected["qos"]
    assert request.memory.high_bytes == expected["memory"]
    assert request.memory.likely_low_bytes == expected.get("usual", expected["memory"])
    assert request.memory_limit_bytes == expected["limit"]
    assert str(request.pinned_cpus or "") == expected.get("cpus", "")
    assert str(request.pinned_mems or "") == expected.get("mems", "")
    if "hugepages" in expected:
        assert request.hugepages_bytes == expected["hugepages"]
    if "requestedMilli" in expected:
        assert request.requested_milli == expected["requestedMilli"]
    if "exclusive" in expected:
        assert request.exclusive_cpus == expected["exclusive"]


def test_a_limit_is_one_only_below_what_the_machine_has() -> None:
    for limit_bytes, counts in (
        (64 * GIB, True),
        (128 * GIB - 1, True),
        (128 * GIB, False),
        (200 * GIB, False),
    ):
        one = container("c", PLAIN, resources=Resources(limit_bytes, cpu_quota_us=1_500_000))
        request = derive_request(PLAIN, one, MACHINE)
        assert (request.memory_limit_bytes is not None) is counts
        assert request.memory.high_bytes == (64 * GIB if counts else 0)
        assert request.exclusive_cpus == 0
    half = container("c", PLAIN, resources=Resources(64 * GIB, cpu_quota_us=800_000))
    request = derive_request(PLAIN, half, MACHINE)
    assert (request.qos, request.exclusive_cpus) == (QosClass.GUARANTEED, 8)


@pytest.mark.parametrize("written", [{"cpu_idle": 1}, {"unified": {"cpu.idle": "1"}}, {"cpu_shares": 2}])
def test_who_runs_when_nobody_else_does_gets_no_cpus_of_its_own(written: dict[str, Any]) -> None:
    resources = read(WrittenResources(memory_limit_bytes=GIB, cpu_quota_us=200_000, **written))
    request = derive_request(PLAIN, container("c", PLAIN, resources=resources), MACHINE)
    assert (request.qos, request.exclusive_cpus) == (QosClass.BURSTABLE, 0)


def test_what_limits_nothing_is_named_with_what_the_machine_has() -> None:
    spec = Resources(
        200 * GIB,
        cpu_quota_us=1_600_000,
        hugepage_limits_bytes={2 * MIB: 2 * GIB, GIB: GIB},
        unified={"memory.high": "128G"},
        memory_reservation_bytes=128 * GIB,
    )
    said = list(limiting_nothing(spec, MACHINE))
    assert len(said) == 6
    assert not list(limiting_nothing(Resources(64 * GIB, cpu_quota_us=800_000), MACHINE))


def test_both_values_of_what_unified_overrides_are_named() -> None:
    written = WrittenResources(
        memory_limit_bytes=8 * GIB,
        cpu_shares=512,
        cpus="0-1",
        unified={"memory.max": "4G", "cpuset.cpus": "8-9", "cpu.weight": "100"},
    )
    found = read(written)
    assert (found.memory_limit_bytes, found.cpu_shares, found.cpuset_cpus) == (4 * GIB, 1024, CpuSet([8, 9]))
    before = found.without_unified
    assert (before.memory_limit_bytes, before.cpu_shares, before.cpuset_cpus) == (
        8 * GIB,
        512,
        CpuSet([0, 1]),
    )
    assert found.fields is not None
    assert len(list(overridden(found, found.fields))) == 3
    assert read(WrittenResources(memory_limit_bytes=GIB, unified={"memory.max": "1G"})).fields is None


@pytest.mark.parametrize(
    ("written", "path"),
    [
        (WrittenResources(cpus="3-1"), "cpu.cpus"),
        (WrittenResources(mems="x"), "cpu.mems"),
        (WrittenResources(hugepage_limits=(("2MB", 0), ("odd", 1))), "hugepageLimits[1].pageSize"),
        (WrittenResources(unified={"memory.max": "4 G"}), "unified[memory.max]"),
        (WrittenResources(unified={"memory.low": "-1"}), "unified[memory.low]"),
        (WrittenResources(unified={"cpu.max": "0"}), "unified[cpu.max]"),
        (WrittenResources(unified={"cpu.weight": "10001"}), "unified[cpu.weight]"),
        (WrittenResources(unified={"cpu.weight.nice": "20"}), "unified[cpu.weight.nice]"),
        (WrittenResources(unified={"cpu.idle": "2"}), "unified[cpu.idle]"),
        (WrittenResources(unified={"cpuset.mems": "0-"}), "unified[cpuset.mems]"),
        (WrittenResources(unified={"hugetlb.1GB.rsvd.max": "?"}), "unified[hugetlb.1GB.rsvd.max]"),
    ],
)
def test_what_cannot_be_read_is_named_by_its_path(written: WrittenResources, path: str) -> None:
    assert list(read(written).unreadable) == [path]


@pytest.mark.parametrize(
    ("unified", "shares"),
    [
        ({"cpu.weight": "100"}, 1024),
        ({"cpu.weight": "1"}, 10),
        ({"cpu.weight.nice": "-20"}, 88761),
        ({"cpu.weight.nice": "0"}, 1024),
        ({"cpu.weight.nice": "19"}, 15),
        ({"cpu.idle": "1", "cpu.weight": "200"}, 2),
        ({"cpu.idle": "0"}, 512),
    ],
)
def test_weights_as_shares(unified: dict[str, str], shares: int) -> None:
    assert read(WrittenResources(cpu_shares=512, unified=unified)).cpu_shares == shares


def test_a_quota_keeps_its_period_where_the_key_has_none() -> None:
    for text, milli in (("50000", 1000), ("50000 100000", 500), ("max", None), ("max 1000", None)):
        assert read(WrittenResources(cpu_period_us=50_000, unified={"cpu.max": text})).quota_milli == milli


def test_limits_on_pages_in_use_and_reserved_hold_together() -> None:
    unified = {"hugetlb.2MB.max": "64M", "hugetlb.2MB.rsvd.max": "32M", "hugetlb.1GB.max": "max"}
    written = WrittenResources(hugepage_limits=(("1GB", GIB), ("2MB", 3 * MIB)), unified=unified)
    assert read(written).hugepage_limits_bytes == {2 * MIB: 32 * MIB}
    whole = WrittenResources(hugepage_limits=(("2MB", 3 * MIB), ("1GB", (1 << 64) - 4096)))
    assert read(whole).hugepage_limits_bytes == {2 * MIB: 2 * MIB}


def test_the_last_id_is_the_machines() -> None:
    found = read(WrittenResources(cpus="12-N", unified={"cpuset.mems": "all"}))
    assert pinned(found, MACHINE) == (CpuSet([12, 13, 14, 15]), NodeSet([0, 1]))
    every_second = read(WrittenResources(cpus="0-N:1/8"))
    assert pinned(every_second, MACHINE) == (CpuSet([0, 8]), None)


def test_lines_of_a_key_are_written_one_after_the_other() -> None:
    found = read(WrittenResources(unified={"memory.max": "1G\n2G\n", "cpuset.cpus": "\n"}))
    assert (found.memory_limit_bytes, found.cpuset_cpus) == (2 * GIB, None)


def test_an_update_removes_a_limit() -> None:
    spec = Resources(8 * GIB, cpu_quota_us=200_000)
    before = derive_request(PLAIN, container("c", PLAIN, resources=spec), MACHINE)
    assert before.memory.high_bytes == 8 * GIB
    for gone in (-1, 200 * GIB):
        after = changed_request(before, spec, Resources(memory_limit_bytes=gone), MACHINE)
        assert after.memory_limit_bytes is None
        assert (after.memory.low_bytes, after.memory.high_bytes) == (0, 0)
    assert changed_request(before, spec, Resources(cpu_quota_us=-1), MACHINE).exclusive_cpus == 0
    reserved = changed_request(before, spec, Resources(memory_reservation_bytes=GIB), MACHINE)
    assert (reserved.memory.high_bytes, reserved.memory_limit_bytes) == (GIB, 8 * GIB)


@pytest.mark.parametrize(
    ("tree", "changed", "asked"),
    [
        ("/kubepods/podx", {}, {"hugepages-2Mi": 1, "hugepages-1Gi": 2}),
        ("/kubepods/podx", {2 * MIB: 1, GIB: 2}, {"hugepages-2Mi": 1, "hugepages-1Gi": 2}),
        ("/kubepods/podx", {2 * MIB: 6}, {"hugepages-2Mi": 6, "hugepages-1Gi": 2}),
        ("/kubepods/podx", {GIB: 0}, {"hugepages-2Mi": 1}),
        ("", {2 * MIB: 3}, {"hugepages-2Mi": 3, "hugepages-1Gi": 2}),
        # Outside of kubelet's tree half of all is the most, and all of it limits nothing.
        ("", {2 * MIB: 6}, {"hugepages-2Mi": 4, "hugepages-1Gi": 2}),
        ("", {2 * MIB: 8}, {"hugepages-1Gi": 2}),
    ],
)
def test_an_update_changes_the_sizes_of_huge_pages_that_it_names(
    tree: str, changed: dict[int, int], asked: dict[str, int]
) -> None:
    on = machine(2, memory_bytes=64 * GIB, hugepages_bytes={2 * MIB: 4 * GIB, GIB: 8 * GIB})
    owner = replace(PLAIN, cgroup_parent=tree)
    spec = Resources(8 * GIB, hugepage_limits_bytes={2 * MIB: GIB, GIB: 2 * GIB})
    before = derive_request(owner, container("c", owner, resources=spec), on)
    limits = {size: amount * GIB for size, amount in changed.items()}
    change = Resources(cpu_shares=512, hugepage_limits_bytes=limits)
    after = changed_request(before, spec, change, on)
    assert after.hugepages_bytes == {size: amount * GIB for size, amount in asked.items()}
    merged = changed_resources(spec, change).hugepage_limits_bytes
    assert merged == {**spec.hugepage_limits_bytes, **limits}


def test_a_limit_that_was_added_stays_through_an_update_of_something_else() -> None:
    one = container("c", PLAIN, resources=Resources(cpu_shares=512))
    before = derive_request(PLAIN, one, MACHINE, default_limit_bytes={"Burstable": GIB})
    after = changed_request(before, one.resources, Resources(cpu_shares=1024), MACHINE)
    assert after.memory_limit_bytes == GIB
    removed = changed_request(before, one.resources, Resources(memory_limit_bytes=-1), MACHINE)
    assert removed.memory_limit_bytes is None


def test_no_limit_is_added_that_a_runtime_would_refuse_or_that_has_no_effect() -> None:
    for spec, added in (
        (Resources(cpu_shares=512, memory_swap_bytes=GIB // 2), GIB // 2),
        (Resources(cpu_shares=512, memory_swap_bytes=-1), GIB),
        (Resources(cpu_shares=512, memory_limit_bytes=-1, unified={"memory.max": "max"}), None),
    ):
        one = container("c", PLAIN, resources=spec)
        request = derive_request(PLAIN, one, MACHINE, default_limit_bytes={"Burstable": GIB})
        assert request.memory_limit_bytes == added


def test_changes_of_what_unified_overrides_reach_the_fields_too() -> None:
    spec = read(WrittenResources(memory_limit_bytes=8 * GIB, unified={"memory.max": "4G"}))
    change = read(WrittenResources(memory_limit_bytes=2 * GIB, unified={"memory.low": "1G"}))
    after = changed_resources(spec, change)
    assert (after.memory_limit_bytes, after.without_unified.memory_limit_bytes) == (2 * GIB, 2 * GIB)
    assert after.protected_bytes("memory.low") == GIB

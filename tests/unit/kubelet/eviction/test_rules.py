"""kubelet's eviction rules: its recorded answers, and what the records leave out."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.kubelet.eviction_manager import (
    DEFAULT_MEMORY,
    STARVED,
    NodeCondition,
    SignalObservation,
    Threshold,
    ThresholdError,
    ThresholdValue,
    conditions,
    eviction_note,
    kept_bytes,
    met,
    parse_percentage,
    read_grace_period,
    read_min_reclaim,
    read_threshold,
    reclaimed_first,
    thresholds_of,
    with_container_fs,
    without_grace_period,
)
from bayplan.kubelet.pod import ContainerSpec, FeatureGates, PodLevelResources, PodSpec
from bayplan.quantity import GIB, MIB
from conformance.sections import Folder, eviction
from conformance.vectors import run

VECTORS = Folder(Path(__file__).parents[3] / "data" / "vectors")
MEMORY = "memory.available"


@pytest.mark.parametrize("section", eviction.SECTIONS, ids=str)
def test_answers_as_kubelet_does(section):
    result = run(section, VECTORS)
    assert result.cases
    assert not result.failures, result.failures[0]


# --- reading ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("150Mi", ThresholdValue(150 * MIB)),
        ("1.5Gi", ThresholdValue(GIB + GIB // 2)),
        ("1e3", ThresholdValue(1000)),
        ("1m", ThresholdValue(1)),
        ("50%", ThresholdValue(share=0.5)),
        ("+5e1%", ThresholdValue(share=0.5)),
        (".5%", ThresholdValue(share=0.004999999888241291)),
        ("00%", ThresholdValue(share=0.0)),
        ("100.0%", ThresholdValue(share=1.0)),
        ("0%", None),
        ("100%", None),
    ],
)
def test_a_threshold_is_a_quantity_or_a_percentage(text, expected):
    assert read_threshold(MEMORY, text) == expected


@pytest.mark.parametrize(
    ("signal", "text", "kubelet"),
    [
        (MEMORY, "0", "eviction threshold memory.available must be positive: 0"),
        (MEMORY, "-1m", "eviction threshold memory.available must be positive: -1m"),
        (MEMORY, "-5%", "eviction percentage threshold memory.available must be >= 0%: -5%"),
        (MEMORY, "100.1%", "eviction percentage threshold memory.available must be <= 100%: 100.1%"),
        (MEMORY, "x%", 'strconv.ParseFloat: parsing "x": invalid syntax'),
        (MEMORY, "1_0%", 'strconv.ParseFloat: parsing "1_0": invalid syntax'),
        (MEMORY, "lots", ""),
        (MEMORY, "9Ei", ""),
        ("memory.free", "1Gi", "unsupported eviction signal memory.free"),
    ],
)
def test_a_wrong_threshold_is_refused_in_kubelets_words(signal, text, kubelet):
    with pytest.raises(ThresholdError) as raised:
        read_threshold(signal, text)
    assert raised.value.kubelet == kubelet


@pytest.mark.parametrize("text", ["nan%", "inf%", "0x10%", "1e400%", "5 %", " 5%", "٣%", "%", ""])
def test_what_is_no_percentage(text):
    """kubelet takes the first three: no share of anything."""
    with pytest.raises(ThresholdError):
        parse_percentage(text)


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("30s", 30_000_000_000),
        ("1m30s", 90_000_000_000),
        ("1.5h", 5_400_000_000_000),
        ("+250ms", 250_000_000),
        ("1us2ns", 1_002),
        ("3\u00b5s", 3_000),
        ("3\u03bcs", 3_000),
        ("0", 0),
        ("-0s", 0),
    ],
)
def test_grace_periods_are_gos_durations(text, expected_ns):
    assert read_grace_period(MEMORY, text) == expected_ns


@pytest.mark.parametrize(
    ("signal", "text", "kubelet"),
    [
        (MEMORY, "30mins", ""),
        (MEMORY, "30", ""),
        (MEMORY, "s", ""),
        (MEMORY, "", ""),
        (MEMORY, "9999999h", ""),
        (MEMORY, "-30s", "invalid eviction grace period specified: -30s, must be a positive value"),
        ("memory", "30s", "unsupported eviction signal memory"),
    ],
)
def test_a_wrong_grace_period_is_refused(signal, text, kubelet):
    with pytest.raises(ThresholdError) as raised:
        read_grace_period(signal, text)
    assert raised.value.kubelet == kubelet


def test_a_minimum_to_reclaim_may_be_zero_bytes_but_not_zero_percent():
    assert read_min_reclaim(MEMORY, "0") == ThresholdValue(0)
    assert read_min_reclaim(MEMORY, "150%") == ThresholdValue(share=1.5)
    for text, kubelet in (
        ("0%", "eviction percentage minimum reclaim memory.available must be positive: 0%"),
        ("-1Mi", "negative eviction minimum reclaim specified for memory.available"),
    ):
        with pytest.raises(ThresholdError) as raised:
            read_min_reclaim(MEMORY, text)
        assert raised.value.kubelet == kubelet


def test_soft_thresholds_need_a_grace_period_unless_there_is_none():
    soft = {MEMORY: ThresholdValue(GIB), "nodefs.available": ThresholdValue(GIB), "pid.available": None}
    assert list(without_grace_period(soft, {MEMORY: 1})) == [
        (
            "nodefs.available",
            "grace period must be specified for the soft eviction threshold nodefs.available",
        )
    ]


def test_only_hard_thresholds_on_memory_count_as_reserved():
    thresholds = thresholds_of(
        {MEMORY: ThresholdValue(share=0.5), "nodefs.available": ThresholdValue(7)},
        {MEMORY: ThresholdValue(GIB)},
        {MEMORY: 1},
        {MEMORY: ThresholdValue(MIB)},
        ["pods"],
    )
    assert kept_bytes(thresholds, 4 * GIB) == 2 * GIB
    assert kept_bytes((), 4 * GIB) == 0
    assert [each.signal for each in thresholds].count("allocatableMemory.available") == 1
    assert DEFAULT_MEMORY.of(64 * GIB) == 100 * MIB


# --- what follows ---


def test_a_signal_that_was_not_observed_meets_nothing():
    thresholds = (Threshold(MEMORY, ThresholdValue(GIB)), Threshold("pid.available", ThresholdValue(100)))
    seen = {"pid.available": SignalObservation(99)}
    assert met(thresholds, seen) == thresholds[1:]
    assert met(thresholds, {"pid.available": SignalObservation(100)}) == ()


def test_a_threshold_stays_met_until_its_minimum_was_reclaimed():
    threshold = Threshold(MEMORY, ThresholdValue(share=0.25), min_reclaim=ThresholdValue(share=0.25))
    seen = {MEMORY: SignalObservation(400, 1000)}
    assert met([threshold], seen) == ()
    assert met([threshold], seen, until_reclaimed=True) == (threshold,)
    assert met([threshold], {MEMORY: SignalObservation(500, 1000)}, until_reclaimed=True) == ()


def test_every_signal_has_its_condition():
    by_signal = {signal: conditions([Threshold(signal, ThresholdValue(1))]) for signal in STARVED}
    assert {each for found in by_signal.values() for each in found} == set(NodeCondition)
    assert by_signal["pid.available"] == (NodeCondition.PID_PRESSURE,)
    assert by_signal["imagefs.inodesFree"] == (NodeCondition.DISK_PRESSURE,)
    assert conditions([Threshold("mem", ThresholdValue(1))]) == ()
    both = [Threshold(signal, ThresholdValue(1)) for signal in (MEMORY, "allocatableMemory.available")]
    assert conditions(both) == (NodeCondition.MEMORY_PRESSURE,)


def test_memory_comes_before_disks_and_the_unknown_never():
    disk, memory = (Threshold(signal, ThresholdValue(1)) for signal in ("nodefs.available", MEMORY))
    unknown = Threshold("mem", ThresholdValue(1))
    assert reclaimed_first([unknown, disk, memory]) == (memory, "memory")
    assert reclaimed_first([unknown, disk]) == (disk, "ephemeral-storage")
    assert reclaimed_first([unknown]) is None


def test_a_file_system_for_containers_alone_needs_one_for_images():
    node = Threshold("nodefs.available", ThresholdValue(5), min_reclaim=ThresholdValue(1))
    own = Threshold("containerfs.available", ThresholdValue(9))
    derived = replace(node, signal="containerfs.available")
    assert with_container_fs([node, own], image_fs=False, container_fs=True) == ((node, own), (own,))
    assert with_container_fs([node, own], image_fs=True, container_fs=True) == ((node, derived), (own,))
    assert with_container_fs([node], image_fs=True, container_fs=False) == ((node,), ())


def test_the_whole_message():
    pod = PodSpec(
        "u",
        name="p",
        containers=(ContainerSpec("c", {"memory": MIB}),),
        resources=PodLevelResources({"memory": MIB}),
    )
    used = {"c": 3 * MIB, "gone": GIB}
    note = eviction_note(
        "memory", pod, used, FeatureGates(), pod_usage_bytes=4 * MIB, shortage=(100 * MIB, 99 * MIB + 1)
    )
    assert note.message == (
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 103809025. "
        "Pod p was using 4Mi, request is 1Mi, has larger consumption of memory. "
        "Container c was using 3Mi, request is 1Mi, has larger consumption of memory. "
    )
    assert note.annotations == {
        "starved_resource": "memory",
        "offending_pod": "p",
        "offending_pod_usage": "4Mi",
        "offending_containers": "c",
        "offending_containers_usage": "3Mi",
    }
    within = eviction_note("memory", pod, {}, FeatureGates(), pod_usage_bytes=5)
    assert within.message.endswith("Pod p was using 5, request is 1Mi, has larger consumption of memory. ")
    unmeasured = eviction_note("memory", pod, {}, FeatureGates())
    assert unmeasured.message == "The node was low on resource: memory. "
    off = eviction_note("memory", pod, {}, FeatureGates(pod_level_resources=False), pod_usage_bytes=GIB)
    assert "offending_pod" not in off.annotations

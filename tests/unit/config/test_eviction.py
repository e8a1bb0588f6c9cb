"""Eviction thresholds of settings on a machine: expanded to nodes, and held against them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from bayplan.config.load import load_settings
from bayplan.config.reservations import remarks_on_thresholds, thresholds_on, wrong_here
from bayplan.config.settings import MemoryPressure, Settings
from bayplan.errors import ConfigError
from bayplan.kubelet.eviction_manager import Threshold, ThresholdValue, read_threshold
from bayplan.quantity import GIB, MIB
from support.machines import machine

MACHINE = machine(2)
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def writer(text: str) -> Path:
        path = tmp_path / "bayplan.toml"
        path.write_text(text)
        return path

    return writer


def test_what_a_file_says_of_nodes_with_any_engine(write: Write) -> None:
    settings = load_settings(
        [
            write(
                "memoryPressure = 'evict'\n"
                "evictionHard = { 'node.memory.available' = '100Mi', 'node1.memory.available' = '10%' }\n"
                "evictionSoft = { 'node0.memory.available' = '200Mi' }\n"
                "evictionSoftGracePeriod = { 'node0.memory.available' = '1m30s' }\n"
                "evictionMinimumReclaim = { 'node.memory.available' = '50Mi' }\n"
                "evictionPressureTransitionPeriod = '30s'\n"
            )
        ]
    )
    assert settings.memory_pressure is MemoryPressure.EVICT
    assert settings.eviction_transition_ns == 30_000_000_000
    more = ThresholdValue(50 * MIB)
    found = thresholds_on(settings, MACHINE)
    assert set(found) == {
        # kubelet's default, once for the machine and once for all pods.
        Threshold("memory.available", ThresholdValue(100 * MIB)),
        Threshold("allocatableMemory.available", ThresholdValue(100 * MIB)),
        Threshold("node0.memory.available", ThresholdValue(100 * MIB), min_reclaim=more),
        Threshold("node1.memory.available", read_threshold("memory.available", "10%"), min_reclaim=more),
        Threshold("node0.memory.available", ThresholdValue(200 * MIB), 90_000_000_000, more),
    }
    assert not list(wrong_here(settings, MACHINE))


def test_everything_that_is_wrong_is_said_at_once(write: Write) -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings(
            [
                write(
                    "evictionHard = { 'node01.memory.available' = '1Gi', 'node0.memory.available' = '-1' }\n"
                    "evictionSoft = { 'pid.available' = 100 }\n"
                    "evictionPressureTransitionPeriod = '5 minutes'\n"
                )
            ]
        )
    assert {one.path for one in raised.value.problems} == {
        'evictionHard."node01.memory.available"',
        'evictionHard."node0.memory.available"',
        "evictionSoft",
        "evictionPressureTransitionPeriod",
    }


def test_thresholds_that_contradict_the_machine() -> None:
    settings = Settings(
        eviction_hard={
            "node7.memory.available": ThresholdValue(MIB),
            "node.memory.available": ThresholdValue(64 * GIB),
        },
        eviction_soft={"node1.memory.available": ThresholdValue(share=1.0)},
    )
    found = {problem.path: problem for problem in wrong_here(settings, MACHINE)}
    assert found["evictionHard"].found == "node7.memory.available"
    assert {"evictionHard.node0.memory.available", "evictionSoft.node1.memory.available"} <= found.keys()


def test_a_soft_threshold_that_never_matters_is_remarked() -> None:
    hard, low = Threshold("memory.available", ThresholdValue(GIB)), ThresholdValue(MIB)
    useless = Threshold("memory.available", low, 1)
    useful = Threshold("node0.memory.available", low, 1)
    assert list(remarks_on_thresholds((hard, useless, useful), MACHINE)) == [
        "evictionSoft memory.available has no effect: evictionHard is met before it"
    ]


def test_nothing_is_remarked_of_a_disk_whose_size_is_not_known() -> None:
    hard = Threshold("nodefs.available", ThresholdValue(GIB))
    share, amount = ThresholdValue(share=0.1), ThresholdValue(GIB // 2)
    assert list(remarks_on_thresholds((hard, Threshold(hard.signal, share, 1)), MACHINE)) == []
    (useless,) = remarks_on_thresholds((hard, Threshold(hard.signal, amount, 1)), MACHINE)
    assert useless.partition(" has no effect")[0] == "evictionSoft nodefs.available"

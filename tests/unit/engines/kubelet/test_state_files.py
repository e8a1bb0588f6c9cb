"""State files that kubelet 1.37 wrote: read as kubelet reads them; damage is found where kubelet finds it."""

import json
from pathlib import Path
from typing import Any

import pytest

from bayplan.engines.kubelet.cpu_state import CpuStateError
from bayplan.engines.kubelet.memory_checkpoint import CheckpointError
from bayplan.engines.kubelet.state_files import CPU_FILE, MEMORY_FILE, read_cpu_file, read_memory_file
from bayplan.kubelet.pod import FeatureGates
from bayplan.model.machine import Machine
from bayplan.quantity import GIB
from bayplan.sets import CpuSet
from support.kubelet_start import restore_checkpoint, restored
from support.machines import machine

RECORDED = Path(__file__).parents[3] / "data/vectors-1.37/state_files.json"
FILES = json.loads(RECORDED.read_text())["files"]
WITH_PODS = FeatureGates(pod_level_resource_managers=True)


def of(kind: str, start: str) -> dict[str, Any]:
    """The content of the one file of that kind whose origin starts so."""
    (found,) = (each for each in FILES if each["kind"] == kind and each["from"].startswith(start))
    content: dict[str, Any] = json.loads(found["text"])
    return content


def read(kind: str, text: str) -> None:
    if kind == "cpu":
        restore_checkpoint(text, "static", pod_level_managers=True)
    else:
        restored(text, MEMORY_FILE, "Static", WITH_PODS)


def test_the_payload_counts_and_not_the_fields_beside_it() -> None:
    content = of("cpu", "embedded checksum wrong")
    changed = json.dumps(content | {"defaultCpuSet": "0", "entries": {"other": {"c0": "2"}}, "checksum": 1})
    state = restore_checkpoint(changed, "static")
    assert state == restore_checkpoint(json.dumps(content), "static")
    assert list(state.assignments) == ["pod-plain"]


@pytest.mark.parametrize(
    "damage",
    [
        {"dataChecksum": 1},
        {"dataChecksum": 0},
        {"data": ""},
        {"data": 7},
        {"data": "{}", "dataChecksum": "x"},
        {"dataChecksum": None},
    ],
)
@pytest.mark.parametrize(("kind", "start"), [("cpu", "gate InPlace"), ("memory", "gate InPlace")])
def test_a_damaged_payload_is_never_replaced_by_the_fields_beside_it(
    kind: str, start: str, damage: dict[str, Any]
) -> None:
    with pytest.raises((CpuStateError, CheckpointError), match=r"could not load v[34] checkpoint"):
        read(kind, json.dumps(of(kind, start) | damage))


@pytest.mark.parametrize(
    ("kind", "damage"),
    [("cpu", {"defaultCpuSet": 5}), ("cpu", {"entries": {"p": {"c": 1}}}), ("memory", {"machineState": 1})],
)
def test_the_types_of_the_fields_beside_a_payload_count(kind: str, damage: dict[str, Any]) -> None:
    with pytest.raises(
        (CpuStateError, CheckpointError), match=r"failed to deserialize .* manager checkpoint: "
    ):
        read(kind, json.dumps(of(kind, "gate InPlace") | damage))


@pytest.mark.parametrize("beside", [{"data": 7, "dataChecksum": 0}, {"data": "", "dataChecksum": "x"}])
def test_without_anything_of_a_payload_the_older_fields_count(beside: dict[str, Any]) -> None:
    content = of("cpu", "gate InPlace")
    older = {key: value for key, value in content.items() if key not in ("data", "dataChecksum")}
    assert restore_checkpoint(json.dumps(older | beside), "static") == restore_checkpoint(
        json.dumps(older), "static"
    )


@pytest.mark.parametrize(("kind", "file"), [("cpu", CPU_FILE), ("memory", MEMORY_FILE)])
def test_a_payload_that_was_cut_off_is_named_as_kubelet_names_it(kind: str, file: str) -> None:
    """It reads the text before it looks at the checksum."""
    content = of(kind, "gate InPlace")
    text = json.dumps(content | {"data": content["data"][:40]})
    _, (problem,) = (
        read_cpu_file(text, plain(), CpuSet(), {}) if kind == "cpu" else read_memory_file(text, plain())
    )
    assert problem.path == f"{file}, content"
    assert f"failed to deserialize {kind} manager checkpoint data" in problem.found


def test_without_a_payload_the_fields_count_as_before() -> None:
    for kind in ("cpu", "memory"):
        content = of(kind, "gate InPlace")
        del content["data"], content["dataChecksum"]
        read(kind, json.dumps(content))


@pytest.mark.parametrize("checksum", [964019483, 1692845551, 1844444301, 1942532442])
def test_a_checksum_under_the_name_of_its_version_counts(checksum: int) -> None:
    """Of version 2 and of version 3 without pods as a whole; the last one is in kubelet 1.37's own tests."""
    entries = {"pod": {"container1": "4-6", "container2": "1-3"}}
    content = {"policyName": "static", "defaultCPUSet": "7-9", "entries": entries, "checksum": checksum}
    read("cpu", json.dumps(content))
    with pytest.raises(CpuStateError, match="corrupted"):
        read("cpu", json.dumps(content | {"defaultCPUSet": "7-8"}))


def plain() -> Machine:
    """The machine of the files that were made by hand: two nodes of 16 GiB, 16 CPUs."""
    return machine(2, 8, 16 * GIB)


def test_pods_as_a_whole_are_the_obstacle_that_is_named() -> None:
    text = json.dumps(of("cpu", "gate PodLevelResourceManagers"))
    _, problems = read_cpu_file(text, plain(), CpuSet(), {})
    assert [each.path for each in problems] == [f"{CPU_FILE}, podEntries, pod-plr"]


@pytest.mark.parametrize(("kind", "file"), [("cpu", CPU_FILE), ("memory", MEMORY_FILE)])
def test_a_wrong_checksum_is_named_with_its_value(kind: str, file: str) -> None:
    text = json.dumps(of(kind, "gate InPlace") | {"dataChecksum": 12345})
    if kind == "cpu":
        _, problems = read_cpu_file(text, plain(), CpuSet(), {})
    else:
        _, problems = read_memory_file(text, plain())
    assert [(each.path, each.found) for each in problems] == [(f"{file}, dataChecksum", "12345")]

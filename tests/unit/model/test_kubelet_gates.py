"""With which feature gates kubelet starts: its own answers, and what the table must hold."""

import json
import re
from pathlib import Path

import pytest

from bayplan.model.kubelet_version import KUBELET_RULES, Stage, faults, gates_of, resolved

RECORDED = json.loads((Path(__file__).parents[2] / "data/feature_gates.json").read_text())["cases"]
SENTENCE = re.compile(
    r"unrecognized feature gate: \w+"
    r"|cannot set feature gate \w+ to \w+, feature is locked to \w+"
    r"|\w+ is enabled, but depends on features that are disabled: \[[\w ]+\]"
)
MINORS = [rules.minor for rules in KUBELET_RULES]


@pytest.mark.parametrize("version", RECORDED)
def test_kubelet_starts_with_what_has_no_fault_and_says_what_has_one(version: str) -> None:
    minor = int(version.split(".")[1])
    for gates, error in RECORDED[version]:
        said = SENTENCE.findall(error)
        assert bool(said) == bool(error)
        mine = [fault.sentence for fault in faults(minor, gates)]
        # In the order of a Go map: one that is unknown ends it, and dependencies come after all others.
        if any(sentence.startswith("unrecognized") for sentence in said):
            assert set(said) <= set(mine)
        elif any(sentence.startswith("cannot set") for sentence in said):
            assert set(said) == {sentence for sentence in mine if sentence.startswith("cannot set")}
        else:
            assert sorted(said) == sorted(mine)


@pytest.mark.parametrize("minor", MINORS)
def test_kubelet_starts_with_its_own_defaults(minor: int) -> None:
    defaults = {name: gate.default for name, gate in gates_of(minor).items()}
    assert list(faults(minor, {})) == []
    assert list(faults(minor, defaults)) == []
    for name, gate in gates_of(minor).items():
        locked = [fault for fault in faults(minor, {name: not gate.default}) if fault.gate == name]
        assert any(fault.locked for fault in locked) == gate.locked


def test_a_gate_that_was_removed_or_came_later_names_the_versions_that_know_it() -> None:
    (removed,) = faults(37, {"SidecarContainers": True})
    assert removed.known_to == (34, 35, 36)
    (later,) = faults(36, {"HugepageAwareEviction": True})
    assert later.known_to == (37,)
    (unknown,) = faults(37, {"Nonsense": False})
    assert unknown.known_to == ()


def test_gates_of_a_stage_leave_those_alone_that_are_set_and_those_of_other_stages() -> None:
    gates = resolved(37, {"AllAlpha": True, "MemoryQoS": False, "APIServingWithRoutine": False})
    alpha = {name for name, gate in gates_of(37).items() if gate.stage is Stage.ALPHA}
    assert gates.keys() == alpha | {"MemoryQoS"}
    assert {name for name, on in gates.items() if not on} == {"MemoryQoS", "APIServingWithRoutine"}

"""An entry written into a container: all that a record needs, and nothing that somebody else wrote."""

import json

import pytest
from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.basis import Basis
from bayplan.model.decision import (
    Affinity,
    DeviceHint,
    MemoryPolicyMode,
    MemoryPolicySetting,
    Outcome,
    QosClass,
    Reason,
    RelocationPlan,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.policy import PlacementPolicy
from bayplan.model.request import derive_request
from bayplan.model.wishes import DECISION_ANNOTATION, read_wishes
from bayplan.model.workload import Container
from bayplan.quantity import MIB
from bayplan.sets import CpuSet, NodeSet
from bayplan.state import annotations_of, entries_in
from support.machines import container, machine, pod

MACHINE = machine(2, cpus_per_node=4)
OWNER = pod("g", QosClass.GUARANTEED)
MADE = container("x" * 64, OWNER, memory_bytes=100 * MIB, milli_cpus=2000)


def decided() -> Entry:
    decision = ExactEngine().decide(
        Basis(MACHINE, PlacementPolicy(), Ledger()), derive_request(OWNER, MADE, MACHINE)
    )
    return Entry(decision, notified_cpus=CpuSet([1, 2]), oom_group=True)


def read(one: Container) -> Entry | None:
    return entries_in([one]).get(one.id)


def with_text(text: str) -> Entry | None:
    return read(replace(MADE, annotations={DECISION_ANNOTATION: text}))


def test_what_a_record_needs_comes_back() -> None:
    entry = decided()
    placement = replace(
        entry.decision.placement,
        original_nodes=NodeSet([0]),
        memory_policy=MemoryPolicySetting(MemoryPolicyMode.BIND, NodeSet([0])),
        affinity=Affinity(NodeSet([0]), preferred=True, whole=True, mems=NodeSet([0]), cpus=CpuSet([1, 2])),
    )
    request = replace(
        entry.decision.request, hints=(DeviceHint("gpu", NodeSet([1]), names=("0000:01:00.0",)),)
    )
    plan = RelocationPlan(NodeSet([0]), ())
    entry = replace(entry, decision=replace(entry.decision, request=request, placement=placement, plan=plan))
    found = read(replace(MADE, annotations=annotations_of(entry, 7)))
    assert found == replace(entry, decision=replace(entry.decision, candidates=(), advantage=None, plan=None))
    assert entry.decision.candidates  # What only explains stays out.


def test_it_is_short_and_readable() -> None:
    text = annotations_of(decided(), 7)[DECISION_ANNOTATION]
    assert len(text) < 1700
    assert json.loads(text)["decision"]["placement"]["exclusive_cpus"] == "1-2"


def test_long_reasons_stay_out_and_what_cannot_be_read_is_not_written() -> None:
    entry = decided()
    long = replace(entry, decision=replace(entry.decision, reasons=(Reason("why", "x" * 1000),)))
    assert "why" not in annotations_of(long, 7)[DECISION_ANNOTATION]
    huge = replace(entry.decision.request, name="x" * 20_000)
    assert annotations_of(replace(entry, decision=replace(entry.decision, request=huge)), 7) == {}


def test_another_containers_is_not_ours() -> None:
    text = annotations_of(decided(), 7)[DECISION_ANNOTATION]
    assert with_text(text) is not None
    assert read(replace(MADE, id="y" * 64, annotations={DECISION_ANNOTATION: text})) is None


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"decision":{}}', "\ud800", "{" * 20_000, "1" * 9999]
)
def test_what_cannot_be_read_is_not_ours(text: str) -> None:
    assert with_text(text) is None


def test_no_entry_of_a_pod_between_two_containers_and_no_origin() -> None:
    entry = replace(decided(), ended=True)
    assert with_text(annotations_of(entry, 7)[DECISION_ANNOTATION]) is None


def test_a_pod_may_bring_it_and_asks_for_nothing_by_it() -> None:
    assert read_wishes({DECISION_ANNOTATION: "anything"}, "main") == read_wishes({}, "main")


def test_refusals_are_as_readable_as_anything() -> None:
    refused = replace(decided().decision, outcome=Outcome.REFUSED)
    assert with_text(annotations_of(Entry(refused), 7)[DECISION_ANNOTATION]) is not None


def test_the_oldest_comes_first() -> None:
    made = [container(name, OWNER, memory_bytes=MIB) for name in "abc"]
    listed = []
    for at_us, one in zip((3, 1, 2), made, strict=True):
        request = derive_request(OWNER, one, MACHINE)
        entry = Entry(ExactEngine().decide(Basis(MACHINE, PlacementPolicy(), Ledger()), request))
        listed.append(replace(one, annotations=annotations_of(entry, at_us)))
    assert list(entries_in(listed)) == ["b", "c", "a"]

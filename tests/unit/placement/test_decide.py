"""A decision from annotations to placement, with the engine that is the default."""

import pytest
from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.decision import (
    MemoryPolicyMode,
    MemoryPolicySetting,
    NodeWish,
    Outcome,
    QosClass,
)
from bayplan.model.ledger import Ledger
from bayplan.model.policy import PlacementPolicy
from bayplan.model.resources import Resources, WrittenResources, read
from bayplan.placement.decide import decide_change, decide_creation, read_annotations
from bayplan.placement.memory_policy import MemoryPolicyAbility
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.decisions import codes
from support.machines import container, machine, pod

MACHINE = machine(3)
ABLE = MemoryPolicyAbility()


def decide(annotations: dict[str, str], policy: PlacementPolicy = PlacementPolicy()):
    owner = pod("p", QosClass.GUARANTEED, annotations)
    one = container("c", owner, memory_bytes=GIB // 2, milli_cpus=500)
    asked = read_annotations(MACHINE, policy, owner, one)
    return decide_creation(
        MACHINE, policy, ExactEngine(), Ledger(), owner, one, annotated=asked, ability=ABLE
    )


def test_wishes_reach_the_engine() -> None:
    decision = decide({"bayplan.dev/required-nodes": "2", "c-name.bayplan.dev/memory-policy": "local"})
    assert decision.request.nodes == NodeWish(NodeSet([2]), required=True)
    assert decision.placement.mems == NodeSet([2])
    assert decision.placement.memory_policy == MemoryPolicySetting(MemoryPolicyMode.LOCAL)


@pytest.mark.parametrize("refuse", [False, True])
def test_a_wrong_annotation_is_a_reason_that_names_it(*, refuse: bool) -> None:
    wrong = {"bayplan.dev/required-tier": "0", "bayplan.dev/required-nodes": "1"}
    decision = decide(wrong, PlacementPolicy(refuse_wrong_annotations=refuse))
    assert decision.outcome is (Outcome.REFUSED if refuse else Outcome.PLACED)
    assert decision.reasons[-1].code == "wrong-annotation"
    assert "annotation bayplan.dev/required-tier: found '0'" in decision.reasons[-1].text
    assert decision.reasons[-1].text.startswith("ignored: ") is not refuse
    # One mistake, and none of the wishes counts.
    assert decision.request.nodes is None
    assert decision.request.tier is None


def test_all_that_is_wrong_with_annotations_is_one_sentence() -> None:
    wrong = {"bayplan.dev/required-tier": "0", "bayplan.dev/mistyped": "1", "bayplan.dev/a\nb": "2"}
    reason = decide(wrong, PlacementPolicy(refuse_wrong_annotations=True)).reasons[-1]
    assert reason.text.isprintable()
    assert reason.text.count("; ") == 2
    assert r"bayplan.dev/a\nb" in reason.text


def test_a_change_keeps_the_memory_policy_that_the_processes_have() -> None:
    old = decide({"bayplan.dev/memory-policy": "interleave"})
    assert old.placement.memory_policy == MemoryPolicySetting(MemoryPolicyMode.INTERLEAVE, NodeSet([0]))
    spec = container("c", pod("p"), memory_bytes=GIB // 2, milli_cpus=500).resources
    larger = Resources(memory_limit_bytes=GIB // 2 + MIB)
    changed = decide_change(MACHINE, PlacementPolicy(), ExactEngine(), Ledger(), old, spec, larger)
    assert changed is not None
    assert changed.request.memory_limit_bytes == GIB // 2 + MIB
    assert changed.placement.memory_policy == old.placement.memory_policy
    assert decide_change(MACHINE, PlacementPolicy(), ExactEngine(), Ledger(), old, spec, Resources()) is None


def test_what_is_not_taken_at_its_word_is_named() -> None:
    """A limit that unified overrides, a quota of all CPUs, a cpuset that cannot be read."""
    owner = pod("p")
    written = WrittenResources(
        memory_limit_bytes=GIB,
        cpu_quota_us=1_200_000,
        cpus="7-3",
        unified={"memory.max": "2G"},
    )
    one = container("c", owner, resources=read(written))
    asked = read_annotations(MACHINE, PlacementPolicy(), owner, one)
    decision = decide_creation(
        MACHINE, PlacementPolicy(), ExactEngine(), Ledger(), owner, one, annotated=asked, ability=ABLE
    )
    codes = [reason.code for reason in decision.reasons]
    assert codes == ["pinned", "unreadable", "overridden", "limits-nothing", "promised-in-part"]
    assert "linux.resources.cpu.cpus" in decision.reasons[1].text
    assert decision.request.memory.high_bytes == MACHINE.memory_bytes // 2


@pytest.mark.parametrize(
    ("exec_cpus", "pinned_cpus", "outcome", "named"),
    [
        ([0], None, Outcome.DEGRADED, True),
        ([0, 1], None, Outcome.PLACED, False),
        ([2], [1], Outcome.DEGRADED, True),
        ([1], [1], Outcome.PLACED, False),
        (None, None, Outcome.PLACED, False),
    ],
)
def test_an_affinity_of_exec_outside_of_its_cpus_is_named(
    exec_cpus: list[int] | None, pinned_cpus: list[int] | None, outcome: Outcome, *, named: bool
) -> None:
    """The kernel refuses it (sched_setaffinity: EINVAL), and the runtime the exec."""
    owner = pod("p", QosClass.GUARANTEED)
    one = container("c", owner, memory_bytes=GIB // 2, milli_cpus=1000)
    resources = replace(one.resources, cpuset_cpus=pinned_cpus and CpuSet(pinned_cpus))
    one = replace(one, resources=resources, exec_cpus=exec_cpus and CpuSet(exec_cpus))
    annotated = read_annotations(MACHINE, PlacementPolicy(), owner, one)
    decision = decide_creation(
        MACHINE, PlacementPolicy(), ExactEngine(), Ledger(), owner, one, annotated=annotated, ability=ABLE
    )
    assert 0 not in decision.placement.exclusive_cpus
    assert (decision.outcome, "exec-apart" in codes(decision)) == (outcome, named)


def test_ids_that_the_machine_does_not_have_are_named() -> None:
    owner = pod("p")
    for cpus, mems, text in (("48-95", "1", "CPUs 48-95"), ("0-1", "0-7", "nodes 3-7"), ("0", "1-2", "")):
        one = container("c", owner, resources=read(WrittenResources(cpus=cpus, mems=mems)))
        annotated = read_annotations(MACHINE, PlacementPolicy(), owner, one)
        decision = decide_creation(
            MACHINE, PlacementPolicy(), ExactEngine(), Ledger(), owner, one, annotated=annotated, ability=ABLE
        )
        found = [reason.text for reason in decision.reasons if reason.code == "absent-ids"]
        assert len(found) == bool(text)
        assert all(text in one for one in found)

"""Annotations as wishes: every key, both scopes, and every way to be wrong."""

from itertools import combinations
from pathlib import Path

import pytest
from msgspec.structs import replace

from bayplan.errors import ConfigError
from bayplan.model.decision import (
    CpuUse,
    CpuWish,
    EvenHugepagesWish,
    ExecCpus,
    MemoryPolicyMode,
    MemoryPolicyWish,
    NodeWish,
    TierWish,
)
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementStrategy
from bayplan.model.wishes import KEYS, MAX_CHARACTERS, MAX_PROBLEMS, Wishes, read_wishes, readable_wishes
from bayplan.quantity import GIB, MIB
from bayplan.sets import NodeSet
from support.machines import machine

PLAIN = machine(2, cpu_less={2: GIB, 3: GIB})
TIERED = Machine(
    tuple(replace(node, tier=node.id // 2) for node in PLAIN.nodes),
    tuple(replace(cpu, kind="performance" if cpu.id < 4 else "efficiency") for cpu in PLAIN.cpus),
)


def test_every_key_is_documented() -> None:
    page = Path(__file__).parents[3] / "docs" / "annotations.md"
    rows = [
        line.split("`")[1] for line in page.read_text().splitlines() if line.startswith("| `bayplan.dev/")
    ]
    assert sorted(rows) == sorted(f"bayplan.dev/{key}" for key in KEYS)


@pytest.mark.parametrize(
    ("key", "text", "wishes"),
    [
        ("memory-limit", "1Gi", Wishes(memory_limit_bytes=GIB)),
        ("memory-request", "128Mi", Wishes(memory_request_bytes=128 * MIB)),
        ("memory-request", "0", Wishes(memory_request_bytes=0)),
        ("preferred-nodes", "0-1,3", Wishes(nodes=NodeWish(NodeSet([0, 1, 3])))),
        ("required-nodes", "2", Wishes(nodes=NodeWish(NodeSet([2]), required=True))),
        ("preferred-tier", "1", Wishes(tier=TierWish(1))),
        ("preferred-tier", "cxl", Wishes(tier=TierWish(1))),
        ("required-tier", "0", Wishes(tier=TierWish(0, required=True))),
        ("memory-policy", "local", Wishes(memory_policy=MemoryPolicyWish(MemoryPolicyMode.LOCAL))),
        (
            "memory-policy",
            "weighted-interleave=static:0-1",
            Wishes(
                memory_policy=MemoryPolicyWish(
                    MemoryPolicyMode.WEIGHTED_INTERLEAVE, NodeSet([0, 1]), ("static_nodes",)
                )
            ),
        ),
        (
            "memory-policy",
            "preferred-many:1",
            Wishes(memory_policy=MemoryPolicyWish(MemoryPolicyMode.PREFERRED_MANY, NodeSet([1]))),
        ),
        ("hugepages-over-nodes", "4", Wishes(even_hugepages=EvenHugepagesWish(4))),
        ("placement-strategy", "spread", Wishes(strategy=PlacementStrategy.SPREAD)),
        ("placement-strategy", "pack", Wishes(strategy=PlacementStrategy.PACK)),
        ("cpus", "exclusive", Wishes(cpus=CpuWish(CpuUse.EXCLUSIVE))),
        ("cpus", "shared", Wishes(cpus=CpuWish(CpuUse.SHARED))),
        ("cpus", "isolated", Wishes(cpus=CpuWish(CpuUse.ISOLATED))),
        ("cpus", "exclusive=2", Wishes(cpus=CpuWish(CpuUse.EXCLUSIVE, 2))),
        ("cpu-kind", "efficiency", Wishes(cpu_kind="efficiency")),
        ("opt-out", "true", Wishes(opted_out=True)),
        ("keep-pages", "true", Wishes(keeps_pages=True)),
        ("may-move", "false", Wishes(may_move=False)),
        ("opt-out", "false", Wishes()),
        ("exec-cpus", "shared", Wishes(exec_cpus=ExecCpus.SHARED)),
        ("exec-cpus", "first", Wishes(exec_cpus=ExecCpus.FIRST)),
        ("cpu-partition", "isolated", Wishes(partition=True)),
        ("irqs", "away", Wishes(irqs_away=True)),
        ("placement-file", "true", Wishes(placement_file=True)),
        ("placement-file", "false", Wishes(placement_file=False)),
        ("placement-environment", "jvm ; openmp", Wishes(environment=frozenset({"jvm", "openmp"}))),
    ],
)
def test_every_key_is_read(key: str, text: str, wishes: Wishes) -> None:
    assert read_wishes({f"bayplan.dev/{key}": text}, "main", TIERED) == wishes
    assert read_wishes({f"main.bayplan.dev/{key}": text}, "main", TIERED) == wishes
    assert read_wishes({f"other.bayplan.dev/{key}": text}, "main", TIERED) == Wishes()


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("memory-limit", "0", "more than 0 bytes"),
        ("memory-request", "-1", "a quantity from 0"),
        ("memory-request", "some", "quantity"),
        ("preferred-nodes", "", "one node"),
        ("required-nodes", "1-0", "rising ranges"),
        ("required-nodes", "0,9", "with memory: 0-3"),
        ("preferred-tier", "fast", ": 0, 1, dram, slow, cxl"),
        ("required-tier", "2", ": 0, 1"),
        ("memory-policy", "interleaved", "MODE one of preferred, preferred-many, bind, interleave"),
        ("memory-policy", "interleave=strict", "FLAG static or relative"),
        ("memory-policy", "interleave:7", "with memory: 0-3"),
        ("memory-policy", "local:0", "local has neither flag nor nodes"),
        ("opt-out", "yes", "true or false"),
        ("hugepages-over-nodes", "0", "how many nodes, 1 or more"),
        ("hugepages-over-nodes", "0-3", "how many nodes, 1 or more"),
        ("hugepages-over-nodes", "5", "no more than the 4 nodes with memory"),
        ("placement-strategy", "wide", "pack or spread"),
        ("cpu-partition", "root", "isolated"),
        ("irqs", "true", "away"),
        ("irq", "away", "bayplan.dev/irqs, perhaps"),
        ("opt_out", "true", "bayplan.dev/opt-out, perhaps"),
        ("Prefered-Nodes", "0", "bayplan.dev/preferred-nodes, perhaps"),
        ("x", "true", "bayplan.dev/memory-policy, bayplan.dev/memory-request, bayplan.dev/opt-out"),
    ],
)
def test_a_wrong_annotation_is_named_with_what_was_expected(key: str, text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_wishes({f"bayplan.dev/{key}": text}, "main", TIERED)
    (problem,) = caught.value.problems
    assert problem.path == f"annotation bayplan.dev/{key}"
    assert expected in problem.expected
    assert readable_wishes({f"bayplan.dev/{key}": "?"}, "main", TIERED) == Wishes()


@pytest.mark.parametrize("machine", [None, TIERED])
@pytest.mark.parametrize("key", sorted(KEYS))
def test_a_value_without_end_is_wrong_and_shown_in_part(key: str, machine: Machine | None) -> None:
    text = "9" * 100_000
    if key == "ignore-device-hints":
        text = ";" * 100_000
    with pytest.raises(ConfigError) as caught:
        read_wishes({f"bayplan.dev/{key}": text}, "main", machine)
    assert len(str(caught.value)) < 1000


def test_unknown_keys_are_not_told_without_end() -> None:
    with pytest.raises(ConfigError) as caught:
        read_wishes({f"bayplan.dev/{number}": "" for number in range(10_000)}, "main", TIERED)
    assert len(caught.value.problems) == MAX_PROBLEMS + 1


def test_a_text_of_any_length_is_read_no_further_than_the_limit() -> None:
    text = "0" + ",0" * (MAX_CHARACTERS // 2)
    with pytest.raises(ConfigError, match=f"expected at most {MAX_CHARACTERS} characters"):
        read_wishes({"bayplan.dev/preferred-nodes": text}, "main", TIERED)
    assert read_wishes({"bayplan.dev/preferred-nodes": text[:-2]}, "main", TIERED).nodes is not None


def test_contradictions_count_on_one_level_and_containers_override_their_pod() -> None:
    both = {"bayplan.dev/preferred-nodes": "0", "bayplan.dev/required-nodes": "1"}
    with pytest.raises(
        ConfigError, match=r"only one of bayplan.dev/preferred-nodes and bayplan.dev/required"
    ):
        read_wishes(both, "main")
    levels = {"bayplan.dev/preferred-nodes": "0", "main.bayplan.dev/required-nodes": "1"}
    assert read_wishes(levels, "main").nodes == NodeWish(NodeSet([1]), required=True)
    assert read_wishes(levels, "side").nodes == NodeWish(NodeSet([0]))


VALUES = {
    "memory-limit": ["1Gi"],
    "memory-request": ["128Mi"],
    "preferred-nodes": ["0"],
    "required-nodes": ["1"],
    "preferred-tier": ["1"],
    "required-tier": ["0"],
    "memory-policy": ["local", "interleave:0-1"],
    "hugepages-over-nodes": ["2"],
    "placement-strategy": ["spread"],
    "cpus": ["exclusive", "exclusive=2", "isolated", "isolated=2", "shared", "pool=db"],
    "cpu-kind": ["efficiency"],
    "exec-cpus": ["shared", "first"],
    "cpu-partition": ["isolated"],
    "irqs": ["away"],
    "opt-out": ["true", "false"],
    "keep-pages": ["true"],
    "may-move": ["false"],
    "placement-file": ["true", "false"],
    "placement-environment": ["openmp"],
    "add-device-hints": ["nic=0"],
    "ignore-device-hints": ["all"],
    "replace-device-hints": ["gpu=1"],
}
WITHOUT_OWN_CPUS = {("cpus", "shared"), ("cpus", "pool=db")}
OF_OWN_CPUS = {"cpu-kind", "exec-cpus", "cpu-partition", "irqs", "placement-environment"}
ALTERNATIVES = [{"preferred-nodes", "required-nodes"}, {"preferred-tier", "required-tier"}]
PAIRS = [
    ((one, text), (other, beside))
    for one, other in combinations(VALUES, 2)
    for text in VALUES[one]
    for beside in VALUES[other]
]


def test_every_key_has_values_to_be_paired() -> None:
    assert VALUES.keys() == KEYS.keys()


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: " ".join(map("=".join, pair)))
def test_of_all_pairs_of_wishes_those_that_contradict_are_named_in_one_line(
    pair: tuple[tuple[str, str], tuple[str, str]],
) -> None:
    keys = {key for key, _ in pair}
    without = WITHOUT_OWN_CPUS & set(pair)
    contradict = keys in ALTERNATIVES or bool(without and keys & OF_OWN_CPUS)
    of_pod = {f"bayplan.dev/{key}": text for key, text in pair}
    for annotations in (of_pod, {f"main.{key}": text for key, text in of_pod.items()}):
        if not contradict:
            read_wishes(annotations, "main", TIERED)
            continue
        with pytest.raises(ConfigError) as caught:
            read_wishes(annotations, "main", TIERED)
        (problem,) = caught.value.problems
        assert problem.found == "a contradiction"
        assert all(annotation in problem.expected for annotation in annotations)
        assert "\n" not in caught.value.on_one_line()


@pytest.mark.parametrize("key", sorted(OF_OWN_CPUS))
@pytest.mark.parametrize("cpus", ["shared", "pool=db"])
def test_a_container_that_is_to_have_no_cpus_of_its_own_does_without_what_its_pod_wishes_of_them(
    key: str, cpus: str
) -> None:
    levels = {f"bayplan.dev/{key}": VALUES[key][0], "log.bayplan.dev/cpus": cpus}
    alone = read_wishes({"bayplan.dev/cpus": cpus}, "log", TIERED)
    assert read_wishes(levels, "log", TIERED) == alone
    assert getattr(read_wishes(levels, "main", TIERED), KEYS[key].field)
    with pytest.raises(ConfigError, match="a contradiction"):
        read_wishes({"bayplan.dev/cpus": cpus, f"main.bayplan.dev/{key}": VALUES[key][0]}, "main", TIERED)


def test_a_machine_without_tiers_says_so() -> None:
    with pytest.raises(ConfigError, match="required-tier: found '0'"):
        read_wishes({"bayplan.dev/required-tier": "0"}, "main", machine(2))


def test_every_key_sets_a_field() -> None:
    assert {key.field for key in KEYS.values()} == set(Wishes.__struct_fields__)


def test_every_size_of_huge_pages_has_to_divide() -> None:
    wish = {"bayplan.dev/hugepages-over-nodes": "4"}
    assert read_wishes(wish, "main", TIERED, {2 * MIB: 16 * MIB, GIB: 4 * GIB}).even_hugepages
    with pytest.raises(ConfigError) as caught:
        read_wishes(wish, "main", TIERED, {2 * MIB: 12 * MIB, 32 * MIB: 128 * MIB, GIB: 2 * GIB})
    assert [problem.expected for problem in caught.value.problems] == [
        "a number that divides the 6 pages of hugepages-2Mi",
        "a number that divides the 2 pages of hugepages-1Gi",
    ]

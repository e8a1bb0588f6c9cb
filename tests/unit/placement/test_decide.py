"""A decision from annotations to placement, with the engine that is the default."""

import pytest
from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.basis import Basis
from bayplan.model.decision import (
    CpuUse,
    CpuWish,
    Decision,
    MemoryPolicyMode,
    MemoryPolicySetting,
    NodeWish,
    Outcome,
    QosClass,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import CpuPool, CpuRule, PlacementPolicy
from bayplan.model.resources import Resources, WrittenResources, read
from bayplan.model.wishes import closed_pools, unjoined_pools, unmatched_rules
from bayplan.placement.adjustment import isolated_cpus
from bayplan.placement.decide import decide_change, decide_creation, read_annotations
from bayplan.placement.memory_policy import (
    MemoryPolicyAbility,
    node_for_the_kernel,
    with_node_for_the_kernel,
)
from bayplan.placement.page_owners import allowed_nodes, stays
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.decisions import codes
from support.machines import container, machine, pod

MACHINE = machine(3)
ABLE = MemoryPolicyAbility()


def decide(annotations: dict[str, str], policy: PlacementPolicy = PlacementPolicy()):
    owner = pod("p", QosClass.GUARANTEED, annotations)
    one = container("c", owner, memory_bytes=GIB // 2, milli_cpus=500)
    asked = read_annotations(Basis(MACHINE, policy, Ledger()), owner, one)
    return decide_creation(
        Basis(MACHINE, policy, Ledger()), ExactEngine(), owner, one, annotated=asked, ability=ABLE
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


@pytest.mark.parametrize("refuse", [False, True])
def test_what_the_operator_forbids_does_not_count_and_everything_else_does(*, refuse: bool) -> None:
    policy = PlacementPolicy(
        refuse_wrong_annotations=refuse, forbidden_annotations=frozenset({"irqs", "opt-out"})
    )
    asked = {
        "bayplan.dev/irqs": "away",
        "c-name.bayplan.dev/opt-out": "true",
        "other.bayplan.dev/irqs": "away",
        "bayplan.dev/cpu-partition": "isolated",
        "bayplan.dev/required-nodes": "2",
    }
    decision = decide(asked, policy)
    assert decision.outcome is (Outcome.REFUSED if refuse else Outcome.PLACED)
    request, reason = decision.request, decision.reasons[-1]
    assert (request.irqs_away, request.opted_out, request.partition) == (False, False, True)
    assert request.nodes == NodeWish(NodeSet([2]), required=True)
    assert reason.code == "forbidden-annotation"
    assert "bayplan.dev/irqs, c-name.bayplan.dev/opt-out" in reason.text
    assert "other" not in reason.text
    assert "forbidden-annotation" not in codes(decide({"bayplan.dev/required-nodes": "2"}, policy))


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
    changed = decide_change(Basis(MACHINE, PlacementPolicy(), Ledger()), ExactEngine(), old, spec, larger)
    assert changed is not None
    assert changed.request.memory_limit_bytes == GIB // 2 + MIB
    assert changed.placement.memory_policy == old.placement.memory_policy
    assert (
        decide_change(Basis(MACHINE, PlacementPolicy(), Ledger()), ExactEngine(), old, spec, Resources())
        is None
    )


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
    asked = read_annotations(Basis(MACHINE, PlacementPolicy(), Ledger()), owner, one)
    decision = decide_creation(
        Basis(MACHINE, PlacementPolicy(), Ledger()), ExactEngine(), owner, one, annotated=asked, ability=ABLE
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
    annotated = read_annotations(Basis(MACHINE, PlacementPolicy(), Ledger()), owner, one)
    decision = decide_creation(
        Basis(MACHINE, PlacementPolicy(), Ledger()),
        ExactEngine(),
        owner,
        one,
        annotated=annotated,
        ability=ABLE,
    )
    assert 0 not in decision.placement.exclusive_cpus
    assert (decision.outcome, "exec-apart" in codes(decision)) == (outcome, named)


def test_ids_that_the_machine_does_not_have_are_named() -> None:
    owner = pod("p")
    for cpus, mems, text in (("48-95", "1", "CPUs 48-95"), ("0-1", "0-7", "nodes 3-7"), ("0", "1-2", "")):
        one = container("c", owner, resources=read(WrittenResources(cpus=cpus, mems=mems)))
        annotated = read_annotations(Basis(MACHINE, PlacementPolicy(), Ledger()), owner, one)
        decision = decide_creation(
            Basis(MACHINE, PlacementPolicy(), Ledger()),
            ExactEngine(),
            owner,
            one,
            annotated=annotated,
            ability=ABLE,
        )
        found = [reason.text for reason in decision.reasons if reason.code == "absent-ids"]
        assert len(found) == bool(text)
        assert all(text in one for one in found)


ISOLATING = Machine(MACHINE.nodes, MACHINE.cpus, isolated=CpuSet([6, 7]))


def with_cpus(
    wish: dict[str, str],
    milli_cpus: int,
    *,
    qos: QosClass = QosClass.BURSTABLE,
    machine: Machine = ISOLATING,
    policy: PlacementPolicy = PlacementPolicy(isolated_cpus=CpuSet([6, 7]), withheld_cpus=CpuSet([6, 7])),
    cpuset: str | None = None,
):
    owner = pod("p", qos, {f"bayplan.dev/{key}": text for key, text in wish.items()})
    one = container("c", owner, memory_bytes=GIB // 2, milli_cpus=milli_cpus)
    if cpuset is not None:
        one = replace(one, resources=replace(one.resources, cpuset_cpus=CpuSet.parse(cpuset)))
    asked = read_annotations(Basis(machine, policy, Ledger()), owner, one)
    return decide_creation(
        Basis(machine, policy, Ledger()), ExactEngine(), owner, one, annotated=asked, ability=ABLE
    )


@pytest.mark.parametrize(
    ("wish", "qos", "milli_cpus", "own"),
    [
        ("exclusive", QosClass.BURSTABLE, 2000, 2),
        ("shared", QosClass.GUARANTEED, 2000, 0),
        ("isolated", QosClass.BURSTABLE, 2000, 2),
        ("isolated", QosClass.GUARANTEED, 1000, 1),
    ],
)
def test_cpus_are_used_as_wished_whatever_the_class(
    wish: str, qos: QosClass, milli_cpus: int, own: int
) -> None:
    decision = with_cpus({"cpus": wish}, milli_cpus, qos=qos)
    assert decision.outcome is Outcome.PLACED
    assert len(decision.placement.exclusive_cpus) == own
    assert (decision.placement.exclusive_cpus <= CpuSet([6, 7])) is (wish != "exclusive")
    resized = decide_change(
        Basis(
            ISOLATING, PlacementPolicy(isolated_cpus=CpuSet([6, 7]), withheld_cpus=CpuSet([6, 7])), Ledger()
        ),
        ExactEngine(),
        decision,
        container("c", pod("p", qos), memory_bytes=GIB // 2, milli_cpus=milli_cpus).resources,
        container("c", pod("p", qos), milli_cpus=1500).resources,
    )
    # No whole number: none of its own, and the wish stays.
    assert resized is not None
    assert not resized.placement.exclusive_cpus
    assert resized.request.cpus == CpuWish(CpuUse(wish))


@pytest.mark.parametrize("refuse", [False, True])
@pytest.mark.parametrize(
    ("wish", "milli_cpus", "qos", "machine", "cpuset"),
    [
        ({"cpus": "exclusive"}, 0, QosClass.BEST_EFFORT, ISOLATING, None),
        ({"cpus": "exclusive"}, 1500, QosClass.BURSTABLE, ISOLATING, None),
        ({"cpus": "isolated"}, 2000, QosClass.GUARANTEED, MACHINE, None),
        ({"cpus": "isolated"}, 2000, QosClass.GUARANTEED, ISOLATING, "1-2"),
        ({"cpus": "exclusive", "opt-out": "true"}, 2000, QosClass.GUARANTEED, ISOLATING, None),
        ({"cpus": "shared", "opt-out": "true"}, 2000, QosClass.GUARANTEED, ISOLATING, None),
        ({"cpu-kind": "performance"}, 2000, QosClass.GUARANTEED, ISOLATING, None),
        ({"cpus": "exclusive=3"}, 2500, QosClass.BURSTABLE, ISOLATING, None),
        ({"cpus": "exclusive=0"}, 2500, QosClass.BURSTABLE, ISOLATING, None),
        ({"cpus": "shared=1"}, 2500, QosClass.BURSTABLE, ISOLATING, None),
        ({"cpus": "own"}, 2000, QosClass.GUARANTEED, ISOLATING, None),
    ],
)
def test_cpus_that_cannot_be_used_as_wished_are_one_wrong_annotation(
    wish: dict[str, str],
    milli_cpus: int,
    qos: QosClass,
    machine: Machine,
    cpuset: str | None,
    *,
    refuse: bool,
) -> None:
    policy = PlacementPolicy(refuse_wrong_annotations=refuse)
    decision = with_cpus(wish, milli_cpus, qos=qos, machine=machine, policy=policy, cpuset=cpuset)
    assert codes(decision).count("wrong-annotation") == 1
    assert (decision.outcome is Outcome.REFUSED) is refuse
    assert decision.request.cpus is None
    assert decision.request.cpu_kind == ""


def test_some_cpus_of_its_own_and_the_rest_shared_on_the_same_node() -> None:
    policy = PlacementPolicy()
    decision = with_cpus({"cpus": "exclusive=2"}, 2500, machine=MACHINE, policy=policy)
    own, placement = decision.placement.exclusive_cpus, decision.placement
    assert decision.outcome is Outcome.PLACED
    assert len(own) == 2
    (node,) = MACHINE.nodes_of(own)
    ledger = Ledger().with_entry(Entry(decision))
    shared = ledger.shared_cpus(MACHINE)
    assert shared.isdisjoint(own)
    assert placement.cpus_among(shared) == own | (shared & MACHINE.node_by_id[node].cpus)
    # Without any shared CPU there it has those elsewhere.
    elsewhere = shared - MACHINE.node_by_id[node].cpus
    assert placement.cpus_among(elsewhere) == own | elsewhere
    assert sum(ledger.shared_milli.values()) == 500
    # The runtime is told when the shared CPUs on its node change, and not when others do.
    told = ledger.with_notified_cpus({"c": placement.cpus_among(shared)})
    assert not told.has_due_updates(shared)
    assert told.has_due_updates(shared - CpuSet([max(shared & MACHINE.node_by_id[node].cpus)]))
    assert not told.has_due_updates(shared - CpuSet([max(elsewhere)]))
    assert Ledger.of(told.entries.values()) == told
    assert told.without("c") == Ledger(shared_milli=told.without("c").shared_milli)


def test_all_that_it_requests_of_its_own_is_as_without_a_number() -> None:
    decision = with_cpus({"cpus": "exclusive=2"}, 2000, machine=MACHINE, policy=PlacementPolicy())
    assert len(decision.placement.exclusive_cpus) == 2
    assert not decision.placement.beside_cpus


def test_what_it_shares_counts_for_the_floor_of_the_shared_pool() -> None:
    # 12 CPUs: 10 of its own leave 2, and it asks for 1.5 of these; 11 would leave 1.
    policy = PlacementPolicy()
    wide = with_cpus({"cpus": "exclusive=10"}, 11500, machine=MACHINE, policy=policy)
    assert len(wide.placement.exclusive_cpus) == 10
    wider = with_cpus({"cpus": "exclusive=11"}, 12500, machine=MACHINE, policy=policy)
    assert not wider.placement.exclusive_cpus
    assert "shared-cpus-minimum" in codes(wider)


RULES = (
    CpuRule(frozenset({"other"}), cpus="exclusive"),
    CpuRule(labels={"app": "db"}, containers=frozenset({"c-name"}), cpus="exclusive=1"),
    CpuRule(frozenset({"default"}), cpus="exclusive"),
)


@pytest.mark.parametrize(
    ("labels", "annotations", "milli_cpus", "own", "code"),
    [
        ({}, {}, 2000, 2, None),
        ({"app": "db", "tier": "1"}, {}, 2000, 1, None),
        ({"app": "web"}, {}, 1000, 1, None),
        # An annotation wins.
        ({}, {"bayplan.dev/cpus": "shared"}, 2000, 0, None),
        # What a rule gives and the container cannot have is said, and refused by nothing.
        ({}, {}, 1500, 0, "cpu-rule-not-used"),
        ({"app": "db"}, {}, 500, 0, "cpu-rule-not-used"),
        ({}, {"bayplan.dev/cpus": "exclusive"}, 1500, 0, "wrong-annotation"),
    ],
)
def test_the_first_rule_for_a_container_counts(
    labels: dict[str, str], annotations: dict[str, str], milli_cpus: int, own: int, code: str | None
) -> None:
    policy = PlacementPolicy(cpu_rules=RULES, refuse_wrong_annotations=True)
    owner = replace(pod("p", QosClass.BURSTABLE, annotations), labels=labels)
    one = container("c", owner, memory_bytes=GIB // 2, milli_cpus=milli_cpus)
    asked = read_annotations(Basis(MACHINE, policy, Ledger()), owner, one)
    decision = decide_creation(
        Basis(MACHINE, policy, Ledger()), ExactEngine(), owner, one, annotated=asked, ability=ABLE
    )
    assert (decision.outcome is Outcome.REFUSED) is (code == "wrong-annotation")
    assert len(decision.placement.exclusive_cpus) == own
    found = [one for one in codes(decision) if one in {"cpu-rule-not-used", "wrong-annotation"}]
    assert found == [code] * (code is not None)


@pytest.mark.parametrize(
    ("rule", "annotations", "pool", "code"),
    [
        ("pool=db", {}, "db", None),
        ("pool=db", {"bayplan.dev/cpus": "pool=web"}, "web", None),
        ("pool=db", {"bayplan.dev/cpus": "shared"}, "", None),
        ("exclusive", {"bayplan.dev/cpus": "pool=db"}, "db", None),
        ("pool=gone", {}, "", "cpu-rule-not-used"),
        ("shared", {"bayplan.dev/cpus": "pool=gone"}, "", "wrong-annotation"),
        (
            "shared",
            {"bayplan.dev/cpus": "pool=db", "bayplan.dev/cpu-kind": "middle"},
            "",
            "wrong-annotation",
        ),
        ("shared", {"bayplan.dev/cpus": "pool="}, "", "wrong-annotation"),
        ("pool=db", {"bayplan.dev/opt-out": "true"}, "", "cpu-rule-not-used"),
        # The pod says what its own CPUs are to be like, and a rule would leave it none.
        ("pool=db", {"bayplan.dev/cpu-partition": "isolated"}, "", "cpu-rule-not-used"),
        ("shared", {"bayplan.dev/irqs": "away"}, "", "cpu-rule-not-used"),
    ],
)
def test_a_rule_or_an_annotation_puts_a_container_into_a_pool(
    rule: str, annotations: dict[str, str], pool: str, code: str | None
) -> None:
    rules = (CpuRule(frozenset({"default"}), cpus=rule),)
    policy = PlacementPolicy(cpu_rules=rules, cpu_pools={"db": CpuPool(1, 2), "web": CpuPool(1, 1)})
    owner = pod("p", QosClass.BURSTABLE, annotations)
    one = container("c", owner, memory_bytes=GIB // 2, milli_cpus=1500)
    asked = read_annotations(Basis(MACHINE, policy, Ledger()), owner, one)
    decision = decide_creation(
        Basis(MACHINE, policy, Ledger()), ExactEngine(), owner, one, annotated=asked, ability=ABLE
    )
    assert decision.request.pool == pool
    assert len(decision.placement.pool_cpus) == {"db": 2, "web": 1, "": 0}[pool]
    assert not decision.placement.exclusive_cpus or not pool
    found = [one for one in codes(decision) if one in {"cpu-rule-not-used", "wrong-annotation"}]
    assert found == [code] * (code is not None)


@pytest.mark.parametrize("cpus", ["", "exclusive", "exclusive=1"])
@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("exec-cpus", "shared", "exec-not-apart"),
        ("exec-cpus", "first", "exec-not-apart"),
        ("cpu-partition", "isolated", "not-isolated"),
        ("irqs", "away", "not-isolated"),
        ("placement-environment", "go", "no-own-cpus"),
    ],
)
def test_what_is_wished_of_own_cpus_is_had_or_named(cpus: str, key: str, value: str, code: str) -> None:
    wished = {key: value} if not cpus else {"cpus": cpus, key: value}
    decision = with_cpus(wished, 2000, machine=MACHINE, policy=PlacementPolicy())
    own, beside = decision.placement.exclusive_cpus, decision.placement.beside_cpus
    had = {
        "shared": bool(beside),
        "isolated": bool(isolated_cpus(decision)),
    }.get(value, bool(own))
    assert codes(decision).count(code) == (not had)
    # A container that opted out is left as it is, which is all that is said.
    left = with_cpus({key: value, "opt-out": "true"}, 2000, machine=MACHINE, policy=PlacementPolicy())
    assert code not in codes(left)


@pytest.mark.parametrize(
    ("rule", "annotations", "kind"),
    [
        (CpuRule(cpu_kind="efficiency"), {}, "efficiency"),
        (CpuRule(cpu_kind="efficiency"), {"bayplan.dev/cpus": "shared"}, ""),
        (CpuRule(cpu_kind="efficiency"), {"bayplan.dev/cpus": "pool=db"}, ""),
        (CpuRule(cpus="shared", cpu_kind="efficiency"), {}, ""),
    ],
)
def test_a_rule_gives_no_kind_of_cores_to_a_container_without_cpus_of_its_own(
    rule: CpuRule, annotations: dict[str, str], kind: str
) -> None:
    cpus = tuple(replace(cpu, kind="performance" if cpu.id < 4 else "efficiency") for cpu in MACHINE.cpus)
    basis = Basis(replace(MACHINE, cpus=cpus), PlacementPolicy(cpu_rules=(rule,)), Ledger())
    owner = pod("p", QosClass.BURSTABLE, annotations)
    asked = read_annotations(basis, owner, container("c", owner))
    assert asked.wishes.cpu_kind == kind
    assert not asked.complaints


def test_rules_for_which_there_is_no_container_are_named_once_each() -> None:
    owner = replace(pod("p", QosClass.BURSTABLE), labels={"app": "db"})
    there = [(owner, "c-name"), (owner, "log")]
    unmatched = unmatched_rules(RULES, there)
    assert len(unmatched) == 1
    assert unmatched[0].startswith("cpuRules[0]")
    assert unmatched_rules((), there) == ()
    assert len(unmatched_rules(RULES, [])) == len(RULES)


def test_pools_without_members_and_those_that_nobody_can_be_in_are_named_once_each() -> None:
    assert unjoined_pools(["web", "db"], {"db", ""}) == unjoined_pools(["web"], ())
    assert unjoined_pools(["db"], ())[0].startswith("cpuPools.db ")
    rules = (CpuRule(cpus="pool=db"),)
    assert not closed_pools(rules, ["web", "db"], {"irqs"})
    (closed,) = closed_pools(rules, ["web", "db"], {"cpus"})
    assert closed.startswith("cpuPools.web ")


def with_movable(*movable: int) -> Machine:
    """Three nodes with CPUs and one without; the kernel has nothing on those that are *movable*."""
    plain = machine(3, cpu_less={3: GIB}, distances={(1, 3): 15, (3, 1): 15})
    return replace(plain, nodes=tuple(replace(one, is_movable=one.id in movable) for one in plain.nodes))


def on_movable(
    nodes: str,
    annotations: dict[str, str] | None = None,
    ability: MemoryPolicyAbility = ABLE,
    memory_bytes: int = GIB // 2,
) -> tuple[Machine, Decision, Resources]:
    hardware = with_movable(2, 3)
    owner = pod("p", QosClass.GUARANTEED, {"bayplan.dev/required-nodes": nodes, **(annotations or {})})
    one = container("c", owner, memory_bytes=memory_bytes, milli_cpus=500)
    asked = read_annotations(Basis(hardware, PlacementPolicy(), Ledger()), owner, one)
    basis = Basis(hardware, PlacementPolicy(), Ledger())
    decision = decide_creation(basis, ExactEngine(), owner, one, annotated=asked, ability=ability)
    return hardware, decision, one.resources


@pytest.mark.parametrize(("nodes", "added"), [("3", 1), ("2", 0), ("2-3", 1)])
def test_who_is_promised_movable_memory_alone_is_bound_and_gets_a_node_for_the_kernel(
    nodes: str, added: int
) -> None:
    hardware, decision, _ = on_movable(nodes, memory_bytes=GIB * 3 // 2 if nodes == "2-3" else GIB // 2)
    promised, kernel = NodeSet.parse(nodes), NodeSet([added])
    assert node_for_the_kernel(hardware, decision) == kernel
    wider = with_node_for_the_kernel(decision, kernel, bound=True)
    for one, mems in ((decision, promised), (wider, promised | kernel)):
        placement = one.placement
        assert placement.claim is not None
        assert (placement.claim.nodes, placement.claim.flexible) == (promised, False)
        assert placement.memory_policy == MemoryPolicySetting(
            MemoryPolicyMode.BIND, promised, ("static_nodes",)
        )
        assert stays(Entry(one))
        assert allowed_nodes(hardware, one) == promised
        assert (placement.mems, one.outcome) == (mems, Outcome.PLACED)
    assert "for-the-kernel" in codes(wider)
    assert node_for_the_kernel(hardware, wider) is None


@pytest.mark.parametrize("nodes", ["0", "1"])
def test_who_has_a_node_with_memory_for_the_kernel_gets_none_more(nodes: str) -> None:
    hardware, decision, _ = on_movable(nodes)
    assert decision.placement.mems == NodeSet.parse(nodes)
    assert decision.placement.memory_policy is None
    assert node_for_the_kernel(hardware, decision) is None


@pytest.mark.parametrize(
    ("annotations", "ability"),
    [
        ({}, MemoryPolicyAbility(runtime=False)),
        ({}, MemoryPolicyAbility(seen=False)),
        ({"c-name.bayplan.dev/memory-policy": "interleave"}, ABLE),
    ],
)
def test_whose_memory_cannot_be_bound_is_promised_it_on_both(
    annotations: dict[str, str], ability: MemoryPolicyAbility
) -> None:
    hardware, decision, _ = on_movable("3", annotations, ability)
    _, unset, _ = on_movable("3")
    for one in (decision, with_node_for_the_kernel(unset, NodeSet([1]), bound=False)):
        placement = one.placement
        assert placement.claim is not None
        assert placement.mems == placement.claim.nodes == allowed_nodes(hardware, one) == NodeSet([1, 3])
        assert placement.claim.amounts_bytes == {"memory": GIB // 2}
        assert (one.outcome, "for-the-kernel" in codes(one)) == (Outcome.DEGRADED, True)
        assert (placement.memory_policy is None) is not bool(annotations and one is decision)
        assert node_for_the_kernel(hardware, one) is None


@pytest.mark.parametrize("ability", [ABLE, MemoryPolicyAbility(seen=False)])
def test_whose_own_policy_binds_it_has_the_node_from_the_beginning(ability: MemoryPolicyAbility) -> None:
    """The kernel shifts a policy without `static` when nodes are added later."""
    hardware, decision, _ = on_movable("3", {"c-name.bayplan.dev/memory-policy": "bind"}, ability)
    assert decision.placement.claim is not None
    assert (decision.placement.mems, decision.placement.claim.nodes) == (NodeSet([1, 3]), NodeSet([3]))
    assert decision.placement.memory_policy == MemoryPolicySetting(MemoryPolicyMode.BIND, NodeSet([3]))
    assert decision.outcome is Outcome.PLACED
    assert node_for_the_kernel(hardware, decision) is None


def test_who_is_bound_for_the_kernel_stays_so_when_it_is_resized() -> None:
    hardware, decision, resources = on_movable("3")
    decision = with_node_for_the_kernel(decision, NodeSet([1]), bound=True)
    larger = container("c", pod("p", QosClass.GUARANTEED), memory_bytes=GIB * 3 // 4).resources
    basis = Basis(hardware, PlacementPolicy(), Ledger())
    resized = decide_change(basis, ExactEngine(), decision, resources, larger)
    assert resized is not None
    assert resized.outcome is Outcome.PLACED
    placement = resized.placement
    assert placement.mems == NodeSet([1, 3])
    assert placement.claim is not None
    assert (placement.claim.nodes, placement.claim.flexible) == (NodeSet([3]), False)
    assert placement.memory_policy == decision.placement.memory_policy
    assert resized.request.nodes == decision.request.nodes
    too_large = container("c", pod("p", QosClass.GUARANTEED), memory_bytes=GIB * 2).resources
    refused = decide_change(basis, ExactEngine(), decision, resources, too_large)
    assert refused is not None
    assert refused.outcome is Outcome.REFUSED

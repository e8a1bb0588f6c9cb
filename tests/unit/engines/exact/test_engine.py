"""The `exact` engine: placements, strict and default policies, wishes, moves, and what must never happen."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.exact.witness import shortages
from bayplan.engines.interface import Engine
from bayplan.model.basis import Allocatable, Basis
from bayplan.model.decision import (
    Claim,
    Decision,
    Interval,
    MemoryPolicyMode,
    Move,
    NodeWish,
    Outcome,
    Placement,
    PodTotals,
    QosClass,
    Request,
    TierWish,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import PlacementPolicy, TopologyPolicy, TopologyScope
from bayplan.model.request import derive_request
from bayplan.model.resources import Resources
from bayplan.placement.changed_promises import after_removal
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.decisions import codes, cut
from support.machines import container, machine, pod

ENGINE: Engine = ExactEngine()
GUARANTEED = pod("g", QosClass.GUARANTEED)
RESTRICTED = PlacementPolicy(topology=TopologyPolicy.RESTRICTED)
SINGLE = PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)


class Node:
    """A machine under a policy with what was placed on it so far."""

    def __init__(self, hardware: Machine, policy: PlacementPolicy = PlacementPolicy()) -> None:
        self.machine, self.policy, self.ledger = hardware, policy, Ledger()

    def place(self, container_id: str, memory_bytes: int, milli_cpus: int = 500, **spec: object) -> Decision:
        one = container(container_id, GUARANTEED, memory_bytes=memory_bytes, milli_cpus=milli_cpus)
        one = replace(one, resources=replace(one.resources, **spec))  # type: ignore[arg-type]  # keywords of several types
        request = derive_request(GUARANTEED, one, self.machine)
        return self.decide(request)

    def decide(self, request: Request) -> Decision:
        decision = ENGINE.decide(Basis(self.machine, self.policy, self.ledger), request)
        if decision.outcome is not Outcome.REFUSED:
            self.ledger = self.ledger.moved(decision.moves).with_entry(Entry(decision))
        return decision

    def mems(self, container_id: str, memory_bytes: int, milli_cpus: int = 500) -> str:
        return str(self.place(container_id, memory_bytes, milli_cpus).placement.mems)


def request(container_id: str, memory_bytes: int) -> Request:
    one = container(container_id, GUARANTEED, memory_bytes=memory_bytes, milli_cpus=500)
    return derive_request(GUARANTEED, one, machine(4))


def sized(asked: Request, memory_bytes: int) -> Request:
    return replace(
        asked, memory=Interval(memory_bytes, memory_bytes, "limit"), memory_limit_bytes=memory_bytes
    )


def test_one_container_per_node_until_full_then_a_refusal_that_says_why() -> None:
    node = Node(machine(4, memory_bytes=GIB), RESTRICTED)
    assert [node.mems(f"c{i}", 600 * MIB) for i in range(4)] == ["0", "1", "2", "3"]
    refused = node.place("c4", 600 * MIB)
    assert refused.outcome is Outcome.REFUSED
    assert codes(refused) == ["no-room", "shortage"]
    assert cut(refused.shortage) == ("0", GIB, 600 * MIB, 600 * MIB, ["c0"])
    assert refused.explanation() == (
        "asks for 600Mi on one node under restricted; node 0 holds 1Gi; "
        "600Mi are promised to default/g/c0-name; you asked for 600Mi there"
    )
    node.ledger = node.ledger.without("c1")
    assert node.mems("c5", 600 * MIB) == "1"


def test_the_default_policy_widens_instead() -> None:
    node = Node(machine(2, memory_bytes=GIB))
    assert [node.mems(f"c{i}", 600 * MIB) for i in range(3)] == ["0", "1", "0-1"]
    overcommitted = node.place("c3", 600 * MIB)
    assert overcommitted.outcome is Outcome.DEGRADED
    assert overcommitted.placement.mems is None
    assert codes(overcommitted) == ["overcommitted"]
    assert cut(overcommitted.shortage) == ("0-1", 2 * GIB, 1800 * MIB, 600 * MIB, ["c0", "c1", "c2"])
    assert overcommitted.explanation().endswith("; placed without a promise for all of it")
    claim = overcommitted.placement.claim
    assert claim is not None
    assert (claim.amounts_bytes, claim.short_bytes) == ({"memory": 248 * MIB}, {"memory": 352 * MIB})


def test_larger_than_a_node() -> None:
    assert Node(machine(4), RESTRICTED).mems("c", GIB + MIB) == "0-1"
    assert Node(machine(4)).mems("c", 3 * GIB) == "0-2"
    assert Node(machine(4), SINGLE).place("c", GIB + MIB).outcome is Outcome.REFUSED


def test_restricted_refuses_what_would_be_wider_than_it_ever_needs_to_be() -> None:
    node = Node(machine(2), RESTRICTED)
    node.place("a", 600 * MIB)
    node.place("b", 600 * MIB)
    assert node.place("c", 700 * MIB).outcome is Outcome.REFUSED
    assert node.place("d", 4 * GIB).outcome is Outcome.REFUSED


def test_reserved_memory_is_kept() -> None:
    policy = replace(RESTRICTED, reserved_bytes={0: {"memory": 500 * MIB}})
    assert Node(machine(2), policy).mems("c", 600 * MIB) == "1"


def test_cpu_less_nodes_are_for_those_who_ask_for_them() -> None:
    hardware = machine(1, cpu_less={5: 4 * GIB})
    degraded = Node(hardware).place("c", 2 * GIB)
    assert (degraded.outcome, str(degraded.placement.mems)) == (Outcome.DEGRADED, "0")
    assert Node(hardware, RESTRICTED).place("c", 2 * GIB).outcome is Outcome.REFUSED
    asked = Node(hardware).decide(replace(request("c", 2 * GIB), nodes=NodeWish(NodeSet([5]), required=True)))
    assert (asked.outcome, str(asked.placement.mems)) == (Outcome.PLACED, "5")


def test_huge_pages_are_placed_with_the_memory() -> None:
    hardware = machine(2, memory_bytes=GIB, hugepages_bytes={2 * MIB: 64 * MIB})
    node = Node(hardware, RESTRICTED)
    pages = {"hugepage_limits_bytes": {2 * MIB: 64 * MIB}}
    first, second = node.place("a", 100 * MIB, **pages), node.place("b", 100 * MIB, **pages)
    assert (str(first.placement.mems), str(second.placement.mems)) == ("0", "1")
    assert second.placement.booked_bytes == {1: {"memory": 100 * MIB, "hugepages-2Mi": 64 * MIB}}
    refused = node.place("c", 100 * MIB, **pages)
    assert refused.shortage is not None
    assert refused.shortage.resource == "hugepages-2Mi"
    assert cut(refused.shortage) == ("0", 64 * MIB, 64 * MIB, 64 * MIB, ["a"])


def test_cpus_and_memory_come_from_the_same_node() -> None:
    node = Node(machine(2, cpus_per_node=4), RESTRICTED)
    first = node.place("a", 100 * MIB, 3000)
    assert (str(first.placement.mems), str(first.placement.exclusive_cpus)) == ("0", "1-3")
    second = node.place("b", 100 * MIB, 2000)
    assert (str(second.placement.mems), str(second.placement.exclusive_cpus)) == ("1", "4-5")
    assert str(node.ledger.shared_cpus(node.machine)) == "0,6-7"


def test_under_policy_none_memory_is_confined_only_where_the_cpus_are() -> None:
    node = Node(machine(2, cpus_per_node=4), PlacementPolicy(topology=TopologyPolicy.NONE))
    node.place("a", 100 * MIB, 3000)
    second = node.place("b", 100 * MIB, 3000)
    assert (str(second.placement.mems), str(second.placement.exclusive_cpus)) == ("1", "4-6")
    shared = node.place("c", 100 * MIB, 500)
    assert (shared.outcome, shared.placement.mems) == (Outcome.PLACED, None)


def test_what_no_node_has_alone_is_confined_to_wider_sets_under_policy_none() -> None:
    node = Node(machine(2, cpus_per_node=4, memory_bytes=GIB), PlacementPolicy(topology=TopologyPolicy.NONE))
    node.place("a", GIB - MIB, 1000)
    node.place("b", 100 * MIB, 4000)
    wide = node.place("c", 200 * MIB, 2000)
    assert (wide.outcome, str(wide.placement.mems)) == (Outcome.PLACED, "0-1")
    assert str(wide.placement.exclusive_cpus) == "2-3"


def test_required_nodes_keep_the_memory_under_policy_none_and_say_that_the_cpus_are_elsewhere() -> None:
    node = Node(machine(2, cpus_per_node=4), PlacementPolicy(topology=TopologyPolicy.NONE))
    decision = node.decide(replace(wish("a", MIB, "0"), exclusive_cpus=4, cpu_milli=4000))
    assert (decision.outcome, decision.placement.mems) == (Outcome.DEGRADED, NodeSet([0]))
    assert "apart" in codes(decision)


def test_too_many_cpus_run_on_the_shared_pool_or_are_refused() -> None:
    degraded = Node(machine(1, cpus_per_node=4)).place("c", MIB, 4000)
    assert (degraded.outcome, degraded.placement.exclusive_cpus) == (Outcome.DEGRADED, CpuSet())
    assert "no-exclusive-cpus" in codes(degraded)
    assert Node(machine(1, cpus_per_node=4), RESTRICTED).place("c", MIB, 4000).outcome is Outcome.REFUSED


def test_cpus_elsewhere_are_better_than_no_memory() -> None:
    node = Node(machine(2, cpus_per_node=2, memory_bytes=GIB))
    node.place("a", MIB, 2000)
    decision = node.place("b", 2 * GIB - 10 * MIB, 2000)
    assert decision.outcome is Outcome.DEGRADED
    assert decision.placement.mems == NodeSet([0, 1])


def test_the_configured_cpus_stay_shared() -> None:
    policy = PlacementPolicy(reserved_cpus=CpuSet([3]))
    assert str(Node(machine(1), policy).place("c", MIB, 3000).placement.exclusive_cpus) == "0-2"
    assert Allocatable(machine(1), PlacementPolicy()).reserved_cpus == CpuSet([0])


def wish(container_id: str, memory_bytes: int, nodes: str, *, required: bool = True) -> Request:
    return replace(request(container_id, memory_bytes), nodes=NodeWish(NodeSet.parse(nodes), required))


def test_sets_that_cross_are_taken_only_when_nothing_else_fits_and_are_marked() -> None:
    node = Node(machine(4))
    assert node.mems("wide", GIB + 600 * MIB) == "0-1"
    assert node.mems("tight", 700 * MIB) == "2"
    assert node.mems("other", 700 * MIB) == "3"
    # Of the pairs with room, 1-2 and the like cross 0-1; all four nodes contain it.
    assert node.mems("nested", 900 * MIB) == "0-3"
    node = Node(machine(4), RESTRICTED)
    for name, nodes, size in (("a", "0-1", 1200), ("c", "2", 200), ("d", "3", 900)):
        node.policy = PlacementPolicy()
        node.decide(wish(name, size * MIB, nodes))
    node.policy = RESTRICTED
    crossing = node.place("e", 1100 * MIB)
    assert str(crossing.placement.mems) == "0,2"
    assert crossing.placement.overlapping
    assert codes(crossing) == ["best-set", "overlap"]
    policy = crossing.placement.memory_policy
    assert policy is not None
    assert (policy.mode, policy.flags) == (MemoryPolicyMode.PREFERRED, ("static_nodes",))
    main = max(crossing.placement.booked_bytes.items(), key=lambda item: (item[1]["memory"], -item[0]))[0]
    assert list(policy.nodes) == [main]


def test_promises_that_cross_are_refused_when_their_union_is_full() -> None:
    node = Node(machine(3, memory_bytes=10 * GIB))
    node.decide(wish("a", 20 * GIB, "0-1"))
    refused = node.decide(wish("b", 15 * GIB, "1-2"))
    assert refused.outcome is Outcome.REFUSED
    assert cut(refused.shortage) == ("0-2", 30 * GIB, 20 * GIB, 15 * GIB, ["a"])
    assert node.decide(wish("c", 10 * GIB, "1-2")).outcome is Outcome.PLACED


def test_a_flexible_container_moves_over_and_back() -> None:
    node = Node(machine(2))
    moved = node.place("flexible", 600 * MIB)
    assert str(moved.placement.mems) == "0"
    late = node.decide(wish("late", 900 * MIB, "0"))
    assert codes(late) == ["best-set", "as-wished", "moved-others"]
    assert late.moves == (
        Move("flexible", "default/g/flexible-name", NodeSet([0]), NodeSet([0, 1]), 600 * MIB - 124 * MIB),
    )
    placement = node.ledger.entries["flexible"].decision.placement
    assert (str(placement.mems), str(placement.original_nodes), str(placement.previous_mems)) == (
        "0-1",
        "0",
        "0",
    )
    assert ENGINE.moves_back(Basis(node.machine, node.policy, node.ledger)) == ()
    node.ledger = node.ledger.without("late")
    back = ENGINE.moves_back(Basis(node.machine, node.policy, node.ledger))
    assert [(move.container_id, str(move.after)) for move in back] == [("flexible", "0")]
    node.ledger = node.ledger.moved(back)
    assert node.ledger.entries["flexible"].decision.placement.original_nodes is None


def test_a_short_promise_is_made_up_for_when_somebody_goes() -> None:
    node = Node(machine(2))
    for name in ("a", "b", "short"):
        node.place(name, 900 * MIB)
    left = node.ledger.without("a")
    after, moves, more = after_removal(Basis(node.machine, node.policy, left), ENGINE)
    assert (moves, more) == ((), ("short",))
    decision = after.entries["short"].decision
    assert (decision.outcome, codes(decision)) == (Outcome.PLACED, ["promised-later"])
    assert decision.placement.claim == Claim(NodeSet([0, 1]), {"memory": 900 * MIB}, flexible=True)
    assert after_removal(Basis(node.machine, node.policy, after.without("b")), ENGINE) == (
        after.without("b"),
        (),
        (),
    )


def test_no_more_containers_move_than_needed_and_never_too_many() -> None:
    node = Node(machine(2, memory_bytes=4 * GIB))
    for number in range(40):
        node.place(f"small-{number:02}", 50 * MIB)
    for name in ("large", "larger"):
        node.decide(wish(name, 700 * MIB, "0", required=False))
    assert {str(entry.decision.placement.mems) for entry in node.ledger.entries.values()} == {"0"}
    one = node.decide(wish("first", 1000 * MIB, "0"))
    assert [move.container_id for move in one.moves] == ["large"]
    node.ledger = node.ledger.without("first").moved(
        ENGINE.moves_back(Basis(node.machine, node.policy, node.ledger.without("first")))
    )
    several = node.decide(wish("second", 2150 * MIB, "0"))
    assert [move.container_id for move in several.moves][:2] == ["large", "larger"]
    assert len(several.moves) == 4
    too_many = node.decide(wish("third", 1000 * MIB, "0"))
    assert (too_many.outcome, too_many.moves) == (Outcome.REFUSED, ())


def test_nobody_is_moved_who_asked_to_stay() -> None:
    node = Node(machine(2))
    node.decide(wish("firm", 600 * MIB, "0"))
    refused = node.decide(wish("late", 900 * MIB, "0"))
    assert (refused.outcome, refused.moves) == (Outcome.REFUSED, ())
    assert cut(refused.shortage) == ("0", GIB, 600 * MIB, 900 * MIB, ["firm"])


def test_a_preferred_wish_gives_way_and_says_so() -> None:
    node = Node(machine(2))
    node.place("first", 600 * MIB)
    second = node.decide(wish("second", 600 * MIB, "0", required=False))
    assert (second.outcome, str(second.placement.mems)) == (Outcome.DEGRADED, "1")
    assert codes(second) == ["wish-not-granted", "best-set", "fits-after-moves"]
    assert second.reasons[0].text == (
        "prefers node 0: node 0 holds 1Gi; 600Mi are promised to default/g/first-name; "
        "you asked for 600Mi there"
    )


def test_others_move_over_on_preferred_nodes_rather_than_that_a_strict_policy_refuses() -> None:
    """Node 2 has no CPUs, so that nobody is placed there who does not ask for it."""
    node = Node(machine(2, cpu_less={2: GIB}), RESTRICTED)
    assert [node.mems("a", 500 * MIB), node.mems("b", 600 * MIB)] == ["0", "1"]
    there = replace(wish("there", 600 * MIB, "2", required=False), qos=QosClass.BURSTABLE)
    assert str(node.decide(there).placement.mems) == "2"
    asked = node.decide(wish("asked", 600 * MIB, "2", required=False))
    assert (asked.outcome, str(asked.placement.mems)) == (Outcome.PLACED, "2")
    assert [(move.name, str(move.before)) for move in asked.moves] == [("default/g/there-name", "2")]
    assert node.decide(wish("more", 600 * MIB, "2", required=False)).outcome is Outcome.REFUSED


def test_others_move_over_for_a_running_container_to_grow_on_more_nodes_than_a_new_one_may_have() -> None:
    node = Node(machine(3), RESTRICTED)
    for number, memory_mib in enumerate((400, 700, 700)):
        node.decide(wish(f"firm-{number}", memory_mib * MIB, str(number)))
    node.decide(replace(wish("there", 500 * MIB, "0", required=False), qos=QosClass.BURSTABLE))
    has = Placement(NodeSet([0, 1]), claim=Claim(NodeSet([0, 1]), {"memory": 100 * MIB}, flexible=False))
    grown = ENGINE.decide(Basis(node.machine, RESTRICTED, node.ledger), request("grows", 700 * MIB), has)
    assert (grown.outcome, str(grown.placement.mems)) == (Outcome.PLACED, "0-1")
    assert [move.name for move in grown.moves] == ["default/g/there-name"]
    more = ENGINE.decide(Basis(node.machine, RESTRICTED, node.ledger), request("grows", 950 * MIB), has)
    assert more.outcome is Outcome.REFUSED


def test_a_tier_that_the_machine_lacks_is_refused_or_done_without() -> None:
    node = Node(machine(2))
    asked = replace(request("c", 100 * MIB), tier=TierWish(3, required=True))
    refused = node.decide(asked)
    assert refused.outcome is Outcome.REFUSED
    assert codes(refused) == ["no-such-nodes"]
    assert str(node.decide(replace(asked, tier=TierWish(3))).placement.mems) == "0"


def test_burstable_containers_claim_everywhere_and_count() -> None:
    node = Node(machine(2))
    burstable = replace(request("b", 1500 * MIB), qos=QosClass.BURSTABLE)
    assert node.decide(burstable).placement.claim == Claim(
        NodeSet([0, 1]), {"memory": 1500 * MIB}, flexible=True
    )
    assert node.place("small", 500 * MIB).outcome is Outcome.PLACED
    full = node.place("more", 100 * MIB)
    assert full.outcome is Outcome.DEGRADED
    assert codes(full) == ["overcommitted"]
    assert cut(full.shortage) == ("0-1", 2 * GIB, 2000 * MIB, 100 * MIB, ["b", "small"])


def test_the_pod_scope_keeps_a_pod_together() -> None:
    engine = ExactEngine(TopologyScope.POD)
    ledger, hardware, policy = Ledger(), machine(2), RESTRICTED
    totals = PodTotals(900 * MIB)
    other = engine.decide(Basis(hardware, policy, ledger), request("other", 300 * MIB))
    ledger = ledger.with_entry(Entry(other))
    placed = []
    for name, size in (("one", 600 * MIB), ("two", 300 * MIB)):
        asked = replace(request(name, size), pod_id="together", pod_totals=totals)
        decision = engine.decide(Basis(hardware, policy, ledger), asked)
        ledger = ledger.with_entry(Entry(decision))
        placed.append(str(decision.placement.mems))
    assert str(other.placement.mems) == "0"
    assert placed == ["1", "1"]
    third = replace(request("third", 100 * MIB), pod_id="apart", pod_totals=PodTotals(900 * MIB))
    refused = engine.decide(Basis(hardware, policy, ledger), third)
    assert refused.reasons[0].text == "asks for 900Mi with the rest of its pod on one node under restricted"
    assert cut(refused.shortage) == ("0", GIB, 300 * MIB, 900 * MIB, ["other"])
    loose = engine.decide(Basis(hardware, PlacementPolicy(), ledger), third)
    assert (loose.outcome, codes(loose)) == (Outcome.DEGRADED, ["pod-apart", "best-set"])


def in_pod(
    container_id: str, cpus: int, memory_bytes: int, whole_cpus: int, exclusive_cpus: int | None = None
) -> Request:
    """A container of a pod with so many CPUs in all."""
    totals = PodTotals(1000 * MIB, 1000 * whole_cpus, exclusive_cpus=exclusive_cpus)
    base = request(container_id, memory_bytes)
    return replace(base, pod_id="p", exclusive_cpus=cpus, cpu_milli=1000 * cpus, pod_totals=totals)


def test_under_the_pod_scope_the_cpus_of_the_rest_of_the_pod_count_too() -> None:
    engine, hardware = ExactEngine(TopologyScope.POD), machine(2, cpus_per_node=8, memory_bytes=2 * GIB)
    for policy in (SINGLE, RESTRICTED, PlacementPolicy()):
        ledger = Ledger()
        for name, expected in (("a", "8-11"), ("b", "12-15")):
            decision = engine.decide(Basis(hardware, policy, ledger), in_pod(name, 4, 500 * MIB, 8))
            assert (decision.outcome, str(decision.placement.exclusive_cpus)) == (Outcome.PLACED, expected)
            ledger = ledger.with_entry(Entry(decision))


def test_cpus_of_the_rest_that_may_be_shared_ones_are_no_reason_to_refuse() -> None:
    engine, hardware = ExactEngine(TopologyScope.POD), machine(2, cpus_per_node=8, memory_bytes=2 * GIB)
    unknown = engine.decide(Basis(hardware, SINGLE, Ledger()), in_pod("a", 8, 500 * MIB, 9))
    assert (unknown.outcome, str(unknown.placement.mems)) == (Outcome.PLACED, "1")
    known = engine.decide(Basis(hardware, SINGLE, Ledger()), in_pod("a", 8, 500 * MIB, 9, 9))
    assert (known.outcome, codes(known)) == (Outcome.REFUSED, ["no-room", "too-large"])
    known = engine.decide(Basis(hardware, SINGLE, Ledger()), in_pod("a", 8, 500 * MIB, 9, 8))
    assert known.outcome is Outcome.PLACED


def test_a_resize_is_answered_as_a_new_container_would_be() -> None:
    for policy in (PlacementPolicy(), RESTRICTED):
        node = Node(machine(2), policy)
        node.place("neighbour", 900 * MIB)
        before = node.place("grown", 900 * MIB)
        node.ledger = node.ledger.without("grown")
        asked = request("grown", 1200 * MIB)
        grown = ENGINE.decide(Basis(node.machine, policy, node.ledger), asked, before.placement)
        assert grown.outcome is ENGINE.decide(Basis(node.machine, policy, node.ledger), asked).outcome
        assert cut(grown.shortage) == ("0-1", 2 * GIB, 900 * MIB, 1200 * MIB, ["neighbour"])
        assert ("unchanged" in codes(grown)) == (policy is RESTRICTED)


def test_a_resize_takes_more_nodes_around_those_it_has_and_a_smaller_one_none() -> None:
    node = Node(machine(2))
    node.place("neighbour", 900 * MIB)
    before = node.place("grown", 900 * MIB)
    base = node.ledger.without("grown")

    def resized(size: int) -> Decision:
        return ENGINE.decide(Basis(node.machine, node.policy, base), request("grown", size), before.placement)

    wider = resized(1100 * MIB)
    assert (wider.outcome, str(wider.placement.mems)) == (Outcome.PLACED, "0-1")
    assert codes(resized(800 * MIB)) == ["kept"]


def test_cpus_go_where_memory_has_to_go() -> None:
    for policy in (SINGLE, RESTRICTED, PlacementPolicy()):
        node = Node(machine(2), policy)
        before = node.place("grown", 100 * MIB, 2000)
        node.decide(wish("neighbour", 800 * MIB, "0"))
        assert (str(before.placement.mems), str(before.placement.exclusive_cpus)) == ("0", "1-2")
        base = node.ledger.without("grown")
        asked = sized(before.request, 500 * MIB)
        grown = ENGINE.decide(Basis(node.machine, policy, base), asked, before.placement)
        assert grown.outcome is Outcome.PLACED
        if policy.topology is TopologyPolicy.BEST_EFFORT:  # may have both nodes, and keeps its CPUs
            assert (str(grown.placement.mems), str(grown.placement.exclusive_cpus)) == ("0-1", "1-2")
        else:
            assert (str(grown.placement.mems), str(grown.placement.exclusive_cpus)) == ("1", "4-5")


def test_memory_without_cpus_beside_it_is_refused_by_strict_policies_and_else_degraded() -> None:
    for policy in (SINGLE, PlacementPolicy()):
        node = Node(machine(2), policy)
        before = node.place("grown", 100 * MIB, 2000)
        node.decide(wish("neighbour", 800 * MIB, "0"))
        node.place("other", 600 * MIB, 4000)  # all CPUs of node 1
        base = node.ledger.without("grown")
        for size in (400 * MIB, 1200 * MIB):
            asked = sized(before.request, size)
            grown = ENGINE.decide(Basis(node.machine, policy, base), asked, before.placement)
            if policy is SINGLE:
                assert grown.outcome is Outcome.REFUSED
            elif size > GIB:
                assert (grown.outcome, codes(grown)[0]) == (Outcome.DEGRADED, "overcommitted")
            assert grown.outcome is Outcome.REFUSED or str(grown.placement.exclusive_cpus) == "1-2"


def test_a_container_whose_cpus_are_apart_may_always_shrink_and_is_told() -> None:
    node = Node(machine(2), SINGLE)
    node.place("other", 600 * MIB, 3000)  # all CPUs of node 0 that may be exclusive
    apart = Placement(NodeSet([0]), CpuSet([4, 5]), claim=Claim(NodeSet([0]), {"memory": 300 * MIB}))
    node.decide(wish("neighbour", 900 * MIB, "1"))
    asked = replace(request("shrinks", 200 * MIB), exclusive_cpus=2)
    shrunk = ENGINE.decide(Basis(node.machine, SINGLE, node.ledger), asked, apart)
    assert (shrunk.outcome, codes(shrunk)) == (Outcome.DEGRADED, ["kept", "apart"])
    assert (str(shrunk.placement.mems), str(shrunk.placement.exclusive_cpus)) == ("0", "4-5")
    more = ENGINE.decide(Basis(node.machine, SINGLE, node.ledger), sized(asked, 310 * MIB), apart)
    assert more.outcome is Outcome.REFUSED


def test_a_wish_that_was_not_granted_is_still_told_of_after_a_resize() -> None:
    node = Node(machine(2))
    node.decide(wish("neighbour", 900 * MIB, "1"))
    before = node.decide(wish("c", 500 * MIB, "1", required=False))
    assert before.outcome is Outcome.DEGRADED
    asked = sized(before.request, 400 * MIB)
    after = ENGINE.decide(Basis(node.machine, node.policy, node.ledger.without("c")), asked, before.placement)
    assert (after.outcome, codes(after)) == (Outcome.DEGRADED, ["kept", "wish-not-granted"])


def test_a_refusal_says_how_many_of_the_wished_nodes_the_policy_allows() -> None:
    node = Node(machine(3), RESTRICTED)
    node.place("a", 700 * MIB)
    node.place("b", 700 * MIB)
    refused = node.decide(wish("c", 500 * MIB, "0-1"))
    assert refused.reasons[0].text == "asks for 500Mi on one node under restricted and requires nodes 0-1"
    assert cut(refused.shortage) == ("0", GIB, 700 * MIB, 500 * MIB, ["a"])


def test_a_refusal_for_cpus_says_where_there_are_some() -> None:
    node = Node(machine(2), SINGLE)
    refused = node.place("c", 100 * MIB, 5000)
    assert codes(refused) == ["no-room", "too-large"]
    assert refused.reasons[1].text == (
        "no node is that large: node 1 has the most, 4 CPUs for containers of their own"
    )
    for _ in range(2):
        node.place(f"half-{_}", 100 * MIB, 2000)
    refused = node.place("c", 100 * MIB, 4000)
    assert codes(refused) == ["no-room", "cpus-taken"]
    assert refused.reasons[1].text == "free CPUs: 1 on node 0, 2 on node 1"


def test_what_could_never_fit_is_said_first() -> None:
    for policy, memory_bytes, fact in (
        (SINGLE, 3 * GIB // 2, "no node is that large: node 0 holds the most, 1Gi"),
        (RESTRICTED, 9 * GIB, "nodes 0-3 hold 3840Mi in all"),
    ):
        plain = machine(4)
        nodes = (*plain.nodes[:3], replace(plain.nodes[3], memory_bytes=768 * MIB))
        node = Node(Machine(nodes, plain.cpus), policy)
        node.place("a", 700 * MIB)
        refused = node.place("b", memory_bytes)
        assert (refused.outcome, refused.shortage) == (Outcome.REFUSED, None)
        assert (codes(refused), refused.reasons[1].text) == (["no-room", "too-large"], fact)


def test_a_refusal_is_about_a_node_that_could_hold_it() -> None:
    """Node 3 is empty, and too small; of the others node 1 lacks least."""
    plain = machine(4)
    nodes = (*plain.nodes[:3], replace(plain.nodes[3], memory_bytes=768 * MIB))
    node = Node(Machine(nodes, plain.cpus), SINGLE)
    for number, memory_mib in enumerate((600, 500, 700)):
        node.decide(wish(f"c{number}", memory_mib * MIB, str(number)))
    refused = node.place("b", 1000 * MIB)
    assert cut(refused.shortage) == ("1", GIB, 500 * MIB, 1000 * MIB, ["c1"])


def test_an_explanation_is_about_as_many_nodes_as_the_policy_allows() -> None:
    node = Node(
        machine(4, hugepages_bytes={2 * MIB: 64 * MIB}), PlacementPolicy(topology=TopologyPolicy.RESTRICTED)
    )
    pages = {"hugepages-2Mi": 192 * MIB}
    first = node.decide(replace(request("first", 10 * MIB), hugepages_bytes=pages))
    assert str(first.placement.mems) == "0-2"
    second = node.decide(replace(request("second", 10 * MIB), hugepages_bytes=pages))
    assert second.outcome is Outcome.REFUSED
    assert second.reasons[0].text == "asks for 10Mi and 192Mi of hugepages-2Mi on 3 nodes under restricted"
    assert cut(second.shortage) == ("0-3", 256 * MIB, 192 * MIB, 192 * MIB, ["first"])


def test_a_resize_that_asks_for_too_many_cpus_shares_all_of_them_as_a_new_container_would() -> None:
    for policy in (PlacementPolicy(), PlacementPolicy(topology=TopologyPolicy.NONE), SINGLE):
        node = Node(machine(2, cpus_per_node=5), policy)
        node.decide(replace(wish("there", 100 * MIB, "1"), exclusive_cpus=3))
        node.decide(replace(wish("here", 100 * MIB, "0"), exclusive_cpus=4))
        before = node.place("grown", 100 * MIB, 2000)
        assert str(before.placement.exclusive_cpus) == "8-9"
        base = node.ledger.without("grown")
        more = replace(before.request, exclusive_cpus=4)
        grown = ENGINE.decide(Basis(node.machine, policy, base), more, before.placement)
        if policy is SINGLE:
            assert codes(grown) == ["no-room", "cpus-taken", "unchanged"]
        else:
            assert (grown.outcome, str(grown.placement.exclusive_cpus)) == (Outcome.DEGRADED, "")
            assert "no-exclusive-cpus" in codes(grown)


def test_a_resize_by_cpus_keeps_those_that_it_has() -> None:
    node = Node(machine(2, cpus_per_node=8), SINGLE)
    before = node.place("c", 100 * MIB, 2000)
    assert str(before.placement.exclusive_cpus) == "1-2"
    node.place("neighbour", 100 * MIB, 1000)
    base = node.ledger.without("c")
    for count, cpus in ((3, "1-2,4"), (1, "1")):
        asked = replace(before.request, exclusive_cpus=count)
        changed = ENGINE.decide(Basis(node.machine, SINGLE, base), asked, before.placement)
        assert (codes(changed), str(changed.placement.exclusive_cpus)) == (["kept"], cpus)


def test_cpus_of_a_node_without_memory_are_taken_before_those_of_another_node() -> None:
    """Node 2 has no memory, and node 0 is the nearest that has; node 1 is nearer to node 0 than that."""
    far = {(0, 2): 21, (2, 0): 21, (1, 2): 31, (2, 1): 31}
    plain = machine(3, cpus_per_node=2, distances=far)
    nodes = tuple(replace(one, memory_bytes=0) if one.id == 2 else one for one in plain.nodes)
    node = Node(Machine(nodes, plain.cpus), PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE))
    placed = node.decide(replace(wish("c", 100 * MIB, "0"), exclusive_cpus=3))
    assert (placed.outcome, str(placed.placement.exclusive_cpus)) == (Outcome.PLACED, "1,4-5")


def test_a_node_that_lost_memory_takes_nothing_new() -> None:
    node = Node(machine(2))
    node.place("a", 900 * MIB)
    smaller = machine(2, memory_bytes=512 * MIB)
    (lacking,) = shortages(Basis(smaller, node.policy, node.ledger))
    assert cut(lacking) == ("0", 512 * MIB, 900 * MIB, 0, ["a"])
    node.machine = smaller
    assert node.mems("b", 100 * MIB) == "1"
    everywhere = replace(request("c", 100 * MIB), qos=QosClass.BURSTABLE)
    assert node.decide(everywhere).outcome is Outcome.PLACED
    # What node 0 lacks takes nothing from node 1.
    assert node.mems("d", 300 * MIB) == "1"
    assert node.decide(replace(everywhere, container_id="e")).outcome is Outcome.DEGRADED
    less = ENGINE.decide(
        Basis(smaller, node.policy, node.ledger.without("a")),
        request("a", 800 * MIB),
        node.ledger.entries["a"].decision.placement,
    )
    assert (less.outcome, codes(less)) == (Outcome.DEGRADED, ["kept", "overcommitted"])
    assert cut(less.shortage) == ("0", 512 * MIB, 0, 800 * MIB, [])


def test_a_resize_of_who_was_found_beside_more_than_there_is_says_so() -> None:
    node = Node(machine(1, memory_bytes=16 * GIB))
    for name, size in (("large", 12 * GIB), ("small", 6 * GIB)):
        asked = request(name, size)
        placement = ENGINE.adopt(Basis(node.machine, node.policy, node.ledger), asked, NodeSet([0]))
        node.ledger = node.ledger.with_entry(Entry(Decision(asked, Outcome.ADOPTED, placement)))

    def resized(name: str, size: int) -> Decision:
        current = node.ledger.entries[name].decision.placement
        left = node.ledger.without(name)
        return ENGINE.decide(Basis(node.machine, node.policy, left), request(name, size), current)

    still = resized("small", 5 * GIB)
    assert (still.outcome, codes(still)) == (Outcome.DEGRADED, ["kept", "overcommitted"])
    assert cut(still.shortage) == ("0", 16 * GIB, 12 * GIB, 5 * GIB, ["large"])
    claim = still.placement.claim
    assert claim is not None
    assert claim.amounts_bytes == {MEMORY: 5 * GIB}
    enough = resized("small", 4 * GIB)
    assert (enough.outcome, codes(enough)) == (Outcome.PLACED, ["kept"])


def test_what_somebody_else_pinned_is_left_alone_but_counted() -> None:
    node = Node(machine(2))
    decision = node.place("c", 300 * MIB, 2000, cpuset_cpus=CpuSet([5]), cpuset_mems=NodeSet([1]))
    assert codes(decision) == ["pinned"]
    assert decision.placement.mems is None
    assert decision.placement.claim == Claim(NodeSet([1]), {"memory": 300 * MIB})
    assert 5 not in node.place("d", MIB, 3000).placement.exclusive_cpus


def test_wishes_for_nodes_count_where_only_the_cpus_are_pinned() -> None:
    node = Node(machine(2), PlacementPolicy(topology=TopologyPolicy.NONE))
    pinned = replace(request("c", 300 * MIB), exclusive_cpus=2, pinned_cpus=CpuSet([5, 6]))
    near = node.decide(replace(pinned, nodes=NodeWish(NodeSet([1]), required=True)))
    assert (near.outcome, near.placement.mems) == (Outcome.PLACED, NodeSet([1]))
    assert near.placement.exclusive_cpus == CpuSet()
    assert codes(near) == ["best-set", "as-wished", "pinned"]
    apart = node.decide(
        replace(pinned, container_id="d", nodes=NodeWish(NodeSet([0]), required=True)),
    )
    assert (apart.outcome, apart.placement.mems) == (Outcome.DEGRADED, NodeSet([0]))
    assert codes(apart) == ["best-set", "as-wished", "pinned", "apart"]
    full = replace(sized(pinned, 900 * MIB), nodes=NodeWish(NodeSet([1]), required=True))
    assert node.decide(replace(full, container_id="e")).outcome is Outcome.REFUSED
    preferred = replace(full, container_id="f", nodes=NodeWish(NodeSet([1])))
    decision = node.decide(preferred)
    assert (decision.outcome, decision.placement.mems) == (Outcome.DEGRADED, None)
    assert "wish-not-granted" in codes(decision)


def test_wishes_for_nodes_are_held_against_pinned_nodes() -> None:
    node = Node(machine(2))
    pinned = replace(request("c", 300 * MIB), pinned_mems=NodeSet([0]))
    within = node.decide(replace(pinned, nodes=NodeWish(NodeSet([0, 1]), required=True)))
    assert (within.outcome, codes(within)) == (Outcome.PLACED, ["pinned"])
    elsewhere = replace(pinned, nodes=NodeWish(NodeSet([1]), required=True))
    assert (
        refused := ENGINE.decide(Basis(node.machine, node.policy, Ledger()), elsewhere)
    ).outcome is Outcome.REFUSED
    assert codes(refused) == ["wish-not-granted"]
    soft = ENGINE.decide(
        Basis(node.machine, node.policy, Ledger()), replace(elsewhere, nodes=NodeWish(NodeSet([1])))
    )
    assert (soft.outcome, codes(soft)) == (Outcome.DEGRADED, ["pinned", "wish-not-granted"])
    opted_out = ENGINE.decide(Basis(node.machine, node.policy, Ledger()), replace(elsewhere, opted_out=True))
    assert (opted_out.outcome, codes(opted_out)[-1]) == (Outcome.DEGRADED, "wish-not-granted")


def test_an_update_that_pins_nodes_elsewhere_is_refused_and_a_later_one_of_the_amounts_is_not() -> None:
    node = Node(machine(2))
    wish = NodeWish(NodeSet([1]), required=True)
    before = node.decide(replace(request("c", 300 * MIB), nodes=wish))
    assert before.placement.mems == NodeSet([1])
    pinned = replace(before.request, pinned_mems=NodeSet([0]), pinned_by_update=True)
    refused = ENGINE.decide(Basis(node.machine, node.policy, Ledger()), pinned, before.placement)
    assert (refused.outcome, codes(refused)) == (Outcome.REFUSED, ["wish-not-granted", "unchanged"])
    found = ENGINE.adopt(Basis(node.machine, node.policy, Ledger()), pinned, NodeSet([0]))
    resized = ENGINE.decide(Basis(node.machine, node.policy, Ledger()), sized(pinned, 400 * MIB), found)
    assert (resized.outcome, codes(resized)) == (Outcome.DEGRADED, ["pinned", "wish-not-granted"])


def test_other_classes_are_not_confined() -> None:
    burstable = pod("b", QosClass.BURSTABLE)
    request = derive_request(burstable, container("c", burstable, memory_bytes=GIB), machine(4))
    decision = ENGINE.decide(Basis(machine(4), RESTRICTED, Ledger()), request)
    assert (decision.outcome, decision.placement.mems) == (Outcome.PLACED, None)


def test_nothing_asked_is_placed_anywhere() -> None:
    request = derive_request(GUARANTEED, container("c", GUARANTEED, resources=Resources()), machine(4))
    assert codes(ENGINE.decide(Basis(machine(4), RESTRICTED, Ledger()), request)) == ["nothing-claimed"]


def test_a_changed_container_stays_where_it_is_if_it_can() -> None:
    node = Node(machine(2))
    node.place("a", 500 * MIB, 2000)
    before = node.place("b", 100 * MIB, 2000)
    request = replace(
        before.request, memory=replace(before.request.memory, low_bytes=200 * MIB, high_bytes=200 * MIB)
    )
    base = node.ledger.without("b")
    after = ENGINE.decide(Basis(node.machine, node.policy, base), request, before.placement)
    assert after.placement.mems == before.placement.mems
    assert after.placement.exclusive_cpus == before.placement.exclusive_cpus


steps = st.lists(
    st.tuples(st.integers(0, 11), st.integers(0, 5), st.sampled_from([0, 500, 1000, 2000, 3000])), max_size=40
)
policies = st.sampled_from(list(TopologyPolicy))


@given(steps, policies)
def test_nothing_is_promised_twice(operations: list[tuple[int, int, int]], policy: TopologyPolicy) -> None:
    node = Node(machine(3, cpus_per_node=4, threads_per_core=2), PlacementPolicy(topology=policy))
    for number, quarter_gib, milli in operations:
        container_id = f"c{number}"
        if quarter_gib == 0:
            node.ledger = node.ledger.without(container_id)
            continue
        node.ledger = node.ledger.without(container_id)
        decision = node.place(container_id, quarter_gib * GIB // 4, milli)
        check_invariants(node)
        if policy in (TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE_NUMA_NODE):
            assert decision.outcome is not Outcome.DEGRADED
        else:
            assert decision.outcome is not Outcome.REFUSED


def check_invariants(node: Node) -> None:
    placements = [entry.decision.placement for entry in node.ledger.entries.values()]
    exclusive = [cpu for one in placements for cpu in one.exclusive_cpus]
    assert len(exclusive) == len(set(exclusive))
    assert CpuSet(exclusive) == node.ledger.exclusive_cpus
    assert node.ledger.shared_cpus(node.machine)
    assert not shortages(Basis(node.machine, node.policy, node.ledger))

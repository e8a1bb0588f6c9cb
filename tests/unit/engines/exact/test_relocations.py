"""Who is named in a plan of moves, and who is not; the property beside it has the search."""

import pytest
from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.basis import Basis
from bayplan.model.decision import (
    Affinity,
    Claim,
    CpuUse,
    CpuWish,
    Decision,
    DeviceHint,
    EvenHugepagesWish,
    Interval,
    MemoryPolicyMode,
    MemoryPolicySetting,
    MemoryPolicyWish,
    NodeWish,
    Outcome,
    Placement,
    PodTotals,
    QosClass,
    QosSource,
    Request,
    TierWish,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import CpuAlignment, Defragment, PlacementPolicy, TopologyPolicy, TopologyScope
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.machines import machine

SINGLE = PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)
FITS_AFTER_MOVES = "fits-after-moves"


def asking(name: str, memory_bytes: int, cpus: int = 0) -> Request:
    memory = Interval(memory_bytes, memory_bytes, "limit")
    return Request(
        name,
        f"pod-{name}",
        name,
        QosClass.GUARANTEED,
        QosSource.CGROUP_PARENT,
        memory,
        memory_bytes,
        cpu_milli=1000 * cpus,
        exclusive_cpus=cpus,
    )


def entry(name: str, node: int, memory_bytes: int, *cpus: int) -> Entry:
    mems = NodeSet([node])
    placement = Placement(mems, CpuSet(cpus), claim=Claim(mems, {"memory": memory_bytes}))
    return Entry(Decision(asking(name, memory_bytes, len(cpus)), Outcome.PLACED, placement))


def with_request(one: Entry, **changes: object) -> Entry:
    return replace(one, decision=replace(one.decision, request=replace(one.decision.request, **changes)))


def with_placement(one: Entry, **changes: object) -> Entry:
    return replace(one, decision=replace(one.decision, placement=replace(one.decision.placement, **changes)))


def with_claim(one: Entry, **changes: object) -> Entry:
    claim = one.decision.placement.claim
    assert claim is not None
    return with_placement(one, claim=replace(claim, **changes))


def decided(
    hardware: Machine, request: Request, *entries: Entry, policy: PlacementPolicy = SINGLE
) -> Decision:
    return ExactEngine().decide(Basis(hardware, policy, Ledger.of(entries)), request)


def moves(decision: Decision) -> list[tuple[str, str, str]]:
    plan = decision.plan
    assert (plan is not None) == (FITS_AFTER_MOVES in [reason.code for reason in decision.reasons])
    return [(one.name, str(one.before), str(one.after)) for one in plan.relocations] if plan else []


def test_a_request_for_what_is_free_in_pieces_names_who_would_have_to_move() -> None:
    refused = decided(
        machine(2), asking("new", 600 * MIB), entry("a", 0, 500 * MIB), entry("b", 1, 450 * MIB)
    )
    assert refused.outcome is Outcome.REFUSED
    assert moves(refused) == [("b", "1", "0")]
    assert refused.plan is not None
    assert (refused.plan.moved_bytes, str(refused.plan.nodes)) == (450 * MIB, "1")


STAYING = {
    "may not move": with_request(entry("b", 1, 450 * MIB), may_move=False),
    "keeps its pages": with_request(entry("b", 1, 450 * MIB), keeps_pages=True),
    "opted out": with_request(entry("b", 1, 450 * MIB), opted_out=True),
    "pinned nodes": with_request(entry("b", 1, 450 * MIB), pinned_mems=NodeSet([1])),
    "pinned CPUs": with_request(entry("b", 1, 450 * MIB), pinned_cpus=CpuSet([4])),
    "wishes nodes": with_request(entry("b", 1, 450 * MIB), nodes=NodeWish(NodeSet([1]))),
    "wishes a tier": with_request(entry("b", 1, 450 * MIB), tier=TierWish(0)),
    "even huge pages": with_request(entry("b", 1, 450 * MIB), even_hugepages=EvenHugepagesWish(1)),
    "memory policy": with_request(
        entry("b", 1, 450 * MIB), memory_policy=MemoryPolicyWish(MemoryPolicyMode.LOCAL)
    ),
    "memory policy of its spec": with_request(
        entry("b", 1, 450 * MIB), given_policy=MemoryPolicySetting(MemoryPolicyMode.BIND, NodeSet([1]))
    ),
    "not on the nodes it was placed on": with_placement(
        entry("b", 1, 450 * MIB), original_nodes=NodeSet([0])
    ),
    "lacks a part": with_claim(entry("b", 1, 450 * MIB), short_bytes={"memory": 1}),
    "divided by its devices": with_claim(entry("b", 1, 450 * MIB), shares={1: 1}),
    "found running": replace(
        entry("b", 1, 450 * MIB),
        decision=replace(entry("b", 1, 450 * MIB).decision, outcome=Outcome.ADOPTED),
    ),
    "pod as a whole": with_request(
        entry("b", 1, 450 * MIB), pod_level=True, pod_totals=PodTotals(450 * MIB, 0)
    ),
}


@pytest.mark.parametrize("why", STAYING)
def test_who_stays_is_in_no_plan(why: str) -> None:
    staying = entry("a", 0, 500 * MIB)
    staying = with_request(staying, may_move=False)
    refused = decided(machine(2), asking("new", 600 * MIB), staying, STAYING[why])
    assert (refused.outcome, moves(refused)) == (Outcome.REFUSED, [])


def test_cpus_are_in_pieces_too() -> None:
    """Three of four CPUs are wanted on one node, and each has two left; CPU 0 is reserved."""
    taken = [entry("a", 0, MIB, 1), entry("b", 1, 2 * MIB, 4, 5)]
    refused = decided(machine(2), asking("new", MIB, 3), *taken)
    assert moves(refused) == [("a", "0", "1")]
    assert refused.plan is not None
    (move,) = refused.plan.relocations
    assert (str(move.cpus_before), str(move.cpus_after), move.moved_bytes) == ("1", "6", MIB)


def test_cpus_alone_move_where_memory_is_anywhere() -> None:
    """A Burstable container has CPUs by a wish, and its memory is confined to no node."""
    wish = CpuWish(CpuUse.EXCLUSIVE)
    free = with_request(entry("a", 0, MIB, 1), qos=QosClass.BURSTABLE, memory_limit_bytes=None, cpus=wish)
    free = with_placement(free, mems=None, claim=Claim(NodeSet([0, 1]), {"memory": MIB}))
    refused = decided(machine(2), asking("new", MIB, 3), free, entry("b", 1, 2 * MIB, 4, 5))
    assert refused.plan is not None
    (move,) = refused.plan.relocations
    assert (str(move.cpus_after), move.moved_bytes) == ("6", 0)


def test_cpus_move_within_the_nodes_of_their_container() -> None:
    wide = entry("a", 0, MIB, 1)
    wide = with_placement(wide, mems=NodeSet([0, 1]), claim=Claim(NodeSet([0, 1]), {"memory": MIB}))
    restricted = replace(SINGLE, topology=TopologyPolicy.RESTRICTED)
    refused = decided(machine(2), asking("new", MIB, 3), wide, entry("b", 1, 2 * MIB, 4), policy=restricted)
    assert refused.outcome is Outcome.PLACED
    refused = decided(
        machine(2), asking("new", MIB, 3), wide, entry("b", 1, 2 * MIB, 4, 5), policy=restricted
    )
    assert moves(refused) == [("a", "0-1", "0-1")]
    assert refused.plan is not None
    assert refused.plan.moved_bytes == 0


def test_whole_cores_stay_whole() -> None:
    """With full-pcpus-only a core of which somebody has a part is no room."""
    hardware = machine(2, cpus_per_node=6, threads_per_core=2)
    policy = replace(SINGLE, cpu_alignment=CpuAlignment(full_pcpus_only=True), reserved_cpus=CpuSet([0, 1]))
    taken = [entry("a", 0, MIB, 2, 3), entry("b", 1, 2 * MIB, 6, 7)]
    refused = decided(
        hardware, asking("new", MIB, 4), *taken[:1], entry("c", 1, MIB, 6, 7, 8, 9), policy=policy
    )
    assert moves(refused) == [("a", "0", "1")]
    one_each = [entry("a", 0, MIB, 2), entry("c", 1, MIB, 6, 7, 8), entry("d", 1, MIB, 10)]
    assert moves(decided(hardware, asking("new", MIB, 4), *one_each, policy=policy)) == []


def test_under_the_scope_pod_only_who_is_alone_in_its_pod_moves() -> None:
    aligned = with_placement(entry("b", 1, 450 * MIB), affinity=Affinity(NodeSet([1]), preferred=True))
    others = [entry("a", 0, 500 * MIB), with_request(entry("c", 1, MIB), pod_id="pod-b")]
    others = [with_request(one, may_move=False) for one in others]
    engine = ExactEngine(TopologyScope.POD)
    for beside, expected in ((others[:1], [("b", "1", "0")]), (others, [])):
        ledger = Ledger.of([aligned, *beside])
        assert moves(engine.decide(Basis(machine(2), SINGLE, ledger), asking("new", 600 * MIB))) == expected


def test_huge_pages_are_in_pieces_too() -> None:
    hardware = machine(2, hugepages_bytes={2 * MIB: 64 * MIB})

    def paged(name: str, node: int, pages: int) -> Entry:
        amounts = {"memory": MIB, "hugepages-2Mi": pages * 2 * MIB}
        one = with_claim(entry(name, node, MIB), amounts_bytes=amounts)
        return with_request(one, hugepages_bytes={"hugepages-2Mi": pages * 2 * MIB})

    asked = replace(asking("new", MIB), hugepages_bytes={"hugepages-2Mi": 40 * MIB})
    refused = decided(hardware, asked, paged("a", 0, 16), paged("b", 1, 15))
    assert moves(refused) == [("b", "1", "0")]
    assert refused.plan is not None
    assert refused.plan.moved_bytes == 31 * MIB


def test_where_more_is_promised_than_there_is_nothing_is_planned() -> None:
    """A node that lost memory takes nothing new, and what moves would do there is not known."""
    refused = decided(
        machine(2, memory_bytes=GIB),
        asking("new", 600 * MIB),
        entry("a", 0, 2 * GIB),
        entry("b", 1, 450 * MIB),
    )
    assert (refused.outcome, moves(refused)) == (Outcome.REFUSED, [])


def test_what_is_not_free_in_sum_is_known_at_once() -> None:
    taken = [entry(f"c{number:03}", number % 8, 100 * MIB) for number in range(72)]
    engine = ExactEngine(max_steps=400)
    refused = engine.decide(Basis(machine(8), SINGLE, Ledger.of(taken)), asking("new", 993 * MIB))
    assert refused.plan is None
    assert "plan-ended" not in [reason.code for reason in refused.reasons]


def test_a_wish_that_gives_way_says_what_it_would_take() -> None:
    wish = replace(asking("new", 600 * MIB), nodes=NodeWish(NodeSet([0])))
    placed = decided(machine(2), wish, entry("a", 0, 450 * MIB), policy=PlacementPolicy())
    assert (placed.outcome, str(placed.placement.mems)) == (Outcome.DEGRADED, "1")
    assert moves(placed) == [("a", "0", "1")]


def test_nobody_goes_to_a_node_without_cpus() -> None:
    """Its memory is ordinary, and farther from all CPUs than a node with CPUs is from its own."""
    hardware = machine(2, cpu_less={2: GIB})
    hardware = replace(hardware, nodes=tuple(replace(node, tier=4) for node in hardware.nodes))
    assert 2 in hardware.ordinary_nodes
    taken = [entry("a", 0, 900 * MIB), entry("b", 1, 500 * MIB)]
    refused = decided(hardware, replace(asking("new", 800 * MIB, 1), cpu_milli=1000), *taken)
    assert (refused.outcome, moves(refused)) == (Outcome.REFUSED, [])
    there = entry("d", 2, 500 * MIB)
    wish = replace(asking("new", 800 * MIB), nodes=NodeWish(NodeSet([2]), required=True))
    assert moves(decided(hardware, wish, *taken[1:], there)) == [("d", "2", "0")]


PREFERRED = replace(asking("new", 700 * MIB), nodes=NodeWish(NodeSet([0])))


@pytest.mark.parametrize(
    ("entries", "expected", "granted"),
    [
        pytest.param(
            [
                with_request(entry("a", 0, 900 * MIB), may_move=False),
                entry("b", 1, 500 * MIB),
                entry("c", 2, 500 * MIB),
            ],
            [("b", "1", "2")],
            False,
            id="moves help only where it does not prefer to be",
        ),
        pytest.param(
            [
                entry("a", 0, 400 * MIB),
                with_request(entry("b", 1, 500 * MIB), may_move=False),
                with_request(entry("c", 2, 500 * MIB), may_move=False),
            ],
            [("a", "0", "1")],
            True,
            id="moves help where it prefers to be",
        ),
    ],
)
def test_who_prefers_nodes_is_not_refused_for_them(
    entries: list[Entry], expected: list[tuple[str, str, str]], granted: bool
) -> None:
    assert moves(decided(machine(3), PREFERRED, *entries)) == expected
    moved = decided(machine(3), PREFERRED, *entries, policy=replace(SINGLE, defragment=Defragment.MOVE))
    assert [(one.name, str(one.before), str(one.after)) for one in moved.moves] == expected
    codes = [reason.code for reason in moved.reasons]
    assert moved.outcome is (Outcome.PLACED if granted else Outcome.DEGRADED)
    assert ("wish-not-granted" in codes, "as-wished" in codes) == (not granted, granted)


def test_what_would_be_in_place_of_a_second_best_is_said() -> None:
    """CPUs elsewhere, a pod apart, and too little on nodes that somebody else chose."""
    none = PlacementPolicy(topology=TopologyPolicy.NONE)
    required = replace(asking("new", MIB, 3), nodes=NodeWish(NodeSet([0]), required=True))
    apart = decided(machine(2), required, entry("a", 0, MIB, 1), policy=none)
    assert ("apart" in [reason.code for reason in apart.reasons], moves(apart)) == (True, [("a", "0", "1")])
    pinned = replace(asking("new", 600 * MIB), pinned_mems=NodeSet([0]))
    short = decided(machine(2), pinned, entry("a", 0, 500 * MIB))
    assert (short.outcome, moves(short)) == (Outcome.DEGRADED, [("a", "0", "1")])
    wish = replace(asking("new", 100 * MIB), pod_totals=PodTotals(800 * MIB), nodes=NodeWish(NodeSet([0])))
    engine, ledger = ExactEngine(TopologyScope.POD), Ledger.of([entry("a", 0, 400 * MIB)])
    divided = engine.decide(Basis(machine(2), PlacementPolicy(), ledger), wish)
    assert ("pod-apart" in [reason.code for reason in divided.reasons], moves(divided)) == (
        True,
        [("a", "0", "1")],
    )


GPUS = tuple(DeviceHint(f"gpu{number}", NodeSet([1]), required=True) for number in range(4))
RESTRICTED = replace(SINGLE, topology=TopologyPolicy.RESTRICTED)


def paged(name: str, node: int, gib: int) -> Entry:
    """A container with huge pages of 1 GiB."""
    one = with_claim(entry(name, node, MIB), amounts_bytes={"memory": MIB, "hugepages-1Gi": gib * GIB})
    return with_request(one, hugepages_bytes={"hugepages-1Gi": gib * GIB})


@pytest.mark.parametrize(
    ("hardware", "policy", "request_", "entries", "expected"),
    [
        pytest.param(
            machine(3, 6, 4 * GIB),
            RESTRICTED,
            asking("new", GIB, 4),
            (entry("a", 0, GIB, 1, 2), entry("b", 1, GIB, 6, 7, 8), entry("c", 2, GIB, 12, 13, 14)),
            [("a", "0", "1")],
            id="kubernetes 84597: CPUs are free on all of three nodes, and too few on each",
        ),
        pytest.param(
            machine(2, 32, 125 * GIB),
            SINGLE,
            asking("second", 32 * GIB, 26),
            (entry("first", 0, 32 * GIB, *range(1, 24)), entry("small", 1, GIB, *range(32, 40))),
            [("small", "1", "0")],
            id="kubernetes 123816: two pods of 26 CPUs on two nodes of 32, and a small one in the way",
        ),
        pytest.param(
            machine(2, 16, 64 * GIB),
            replace(SINGLE, reserved_cpus=CpuSet([0, 1, 2])),
            asking("app", GIB, 14),
            (entry("other", 1, GIB, 16, 17, 18),),
            [("other", "1", "0")],
            id="kubernetes 110306: 14 CPUs of two nodes of 16, of which 3 are reserved",
        ),
        pytest.param(
            machine(2, 8, 16 * 10**9),
            SINGLE,
            asking("pod", 15 * 10**9, 1),
            (entry("one", 0, 2 * 10**9, 1), entry("two", 1, 2 * 10**9, 8)),
            [("one", "0", "1")],
            id="kubernetes 110216: 15 GB where each of two nodes has 14 left",
        ),
        pytest.param(
            machine(2, 16, 100 * GIB),
            RESTRICTED,
            asking("wide", 150 * GIB, 2),
            (entry("one", 0, 10 * GIB, 1), entry("two", 1, 10 * GIB, 16)),
            [],
            id="KAI-Scheduler 2013: small pods on both nodes keep nobody off both together",
        ),
        pytest.param(
            machine(2, 16, 100 * GIB),
            SINGLE,
            replace(asking("train", 60 * GIB, 12), hints=GPUS),
            (entry("one", 0, 20 * GIB, 1, 2), entry("two", 1, 60 * GIB, *range(16, 24))),
            [("two", "1", "0")],
            id="KAI-Scheduler 1598: the CPUs near four GPUs are taken by who has none",
        ),
        pytest.param(
            machine(2, 16, 64 * GIB, hugepages_bytes={GIB: 8 * GIB}),
            SINGLE,
            replace(asking("vm", MIB), hugepages_bytes={"hugepages-1Gi": 6 * GIB}),
            (paged("one", 0, 4), paged("two", 1, 3)),
            [("two", "1", "0")],
            id="nova's numa-aware-live-migration: huge pages of 1 GiB, 8 on each of two nodes",
        ),
        pytest.param(
            machine(3, 4, 8 * GIB),
            SINGLE,
            asking("new", 4 * GIB),
            tuple(
                entry(f"{size}-of-{node}", node, size * GIB)
                for node, sizes in enumerate([(4, 2, 1), (4, 2), (4, 2, 1)])
                for size in sizes
            ),
            [("1-of-0", "0", "2"), ("2-of-0", "0", "1")],
            id="volcano 3948: three nodes of 8, of which 1, 2 and 1 are left, and 4 are asked for",
        ),
    ],
)
def test_what_others_reported(
    hardware: Machine,
    policy: PlacementPolicy,
    request_: Request,
    entries: tuple[Entry, ...],
    expected: list[tuple[str, str, str]],
) -> None:
    decision = decided(hardware, request_, *entries, policy=policy)
    assert (decision.outcome is Outcome.REFUSED, moves(decision)) == (bool(expected), expected)
    moving = replace(policy, defragment=Defragment.MOVE)
    assert decided(hardware, request_, *entries, policy=moving).outcome is Outcome.PLACED

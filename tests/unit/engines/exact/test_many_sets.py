"""Machines with more sets of nodes than are looked at one by one: found where it fits, refused where it does
not, and said where the search was given up."""

import random
import sys
from collections import Counter
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from bayplan.engines.exact.attempts import SEARCH_ENDED
from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.basis import Basis
from bayplan.model.decision import (
    Claim,
    Decision,
    Interval,
    Outcome,
    Placement,
    QosClass,
    QosSource,
    Request,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import Defragment, PlacementPolicy, TopologyPolicy
from bayplan.quantity import GIB
from bayplan.sets import NodeSet
from support.decisions import codes
from support.machines import machine

LONG = 600_000
"""Steps for proofs that take longer than a decision may."""
PLANNING = PlacementPolicy(topology=TopologyPolicy.RESTRICTED)
RESTRICTED = replace(PLANNING, defragment=Defragment.OFF)
"""Without plans of moves, about which a refusal would say something too."""
BEST_EFFORT = PlacementPolicy()


def asking(memory_bytes: int, name: str = "wide") -> Request:
    return Request(
        name,
        "p",
        name,
        QosClass.GUARANTEED,
        QosSource.INFERRED,
        Interval(memory_bytes, memory_bytes, "limit"),
        memory_bytes,
    )


def promised(
    claims: Iterable[tuple[Iterable[int], int]], *, flexible: frozenset[int] = frozenset()
) -> Ledger:
    """A ledger with these bytes on these nodes; who may get others is counted from 0."""
    ledger = Ledger()
    for number, (nodes, memory_bytes) in enumerate(claims):
        mems = NodeSet(nodes)
        claim = Claim(mems, {"memory": memory_bytes}, flexible=number in flexible)
        placement = Placement(mems, claim=claim)
        decision = Decision(asking(memory_bytes, f"c{number:04}"), Outcome.PLACED, placement)
        ledger = ledger.with_entry(Entry(decision))
    return ledger


def decide(
    hardware: Machine, ledger: Ledger, memory_bytes: int, policy: PlacementPolicy = RESTRICTED
) -> Decision:
    return ExactEngine().decide(Basis(hardware, policy, ledger), asking(memory_bytes))


@pytest.mark.parametrize(("nodes", "width"), [(16, 8), (32, 12), (64, 24), (64, 40)])
def test_the_only_set_that_fits_is_found_among_nodes_that_look_as_good(nodes: int, width: int) -> None:
    """All nodes have room for 1 GiB alone; but in pairs of the others there is only 1 GiB for both."""
    pairs = [((low, low + 1), GIB) for low in range(0, nodes - width, 2)]
    hardware, ledger = machine(nodes, memory_bytes=GIB), promised(pairs)
    halves = len(pairs)
    apart = decide(hardware, ledger, width * GIB)
    assert (str(apart.placement.mems), codes(apart)) == (f"{nodes - width}-{nodes - 1}", ["best-set"])
    found = decide(hardware, ledger, (width + halves) * GIB)
    assert found.placement.mems is not None
    assert len(found.placement.mems) == width + halves
    refused = decide(hardware, ledger, (width + halves + 1) * GIB)
    assert refused.outcome is Outcome.REFUSED
    assert codes(refused) == ["no-room", "shortage"]


def covers(elements: int, sets: Iterable[tuple[int, int, int]]) -> tuple[Machine, Ledger]:
    """Exact cover by sets of three as a machine: a node with 1 GiB left for each element, and a full node for
    each set, from which 1 GiB each could move to the nodes of its elements."""
    sets = list(sets)
    hardware = machine(elements + len(sets), memory_bytes=3 * GIB)
    claims = [((element,), 2 * GIB) for element in range(elements)]
    claims += [((element, elements + number), GIB) for number, three in enumerate(sets) for element in three]
    return hardware, promised(claims)


DECOYS = [(0, 4, 8), (1, 5, 9), (2, 6, 10), (3, 7, 11), (0, 5, 10), (1, 6, 11), (2, 7, 8), (3, 4, 9)]
DECOYS += [(0, 6, 9), (1, 7, 10), (2, 4, 11), (3, 5, 8), (0, 7, 11), (1, 4, 10), (2, 5, 9), (3, 6, 8)]


def test_an_exact_cover_is_found_and_its_absence_is_proven() -> None:
    apart = [(12, 13, 14), (12, 15, 16), (13, 15, 17), (14, 16, 17)]
    hardware, ledger = covers(18, [*DECOYS, *apart])
    refused = ExactEngine(max_steps=LONG).decide(Basis(hardware, RESTRICTED, ledger), asking(18 * GIB))
    assert (refused.outcome, codes(refused)) == (Outcome.REFUSED, ["no-room", "shortage"])
    hardware, ledger = covers(18, [*DECOYS, *apart, (15, 16, 17)])
    found = decide(hardware, ledger, 18 * GIB)
    assert found.outcome is Outcome.PLACED
    assert found.placement.mems is not None
    assert len(found.placement.mems) == 6


def test_a_refusal_without_a_proof_says_so() -> None:
    hardware, ledger = covers(18, DECOYS)
    engine = ExactEngine(max_steps=100)
    refused = engine.decide(Basis(hardware, RESTRICTED, ledger), asking(18 * GIB))
    assert refused.outcome is Outcome.REFUSED
    assert codes(refused) == ["no-room", "shortage", SEARCH_ENDED]


def test_others_move_over_on_the_only_set_that_could_have_room() -> None:
    """Nodes 0-19 are full, 32 and 33 half full; on 20-31 there is half a GiB of somebody who may move."""
    claims: list[tuple[tuple[int, ...], int]] = [((31,), GIB // 2), ((32,), GIB // 2), ((33,), GIB // 2)]
    claims += [((low, low + 1), 2 * GIB) for low in range(0, 20, 2)]
    hardware, ledger = machine(34, memory_bytes=GIB), promised(claims, flexible=frozenset([0]))
    decision = decide(hardware, ledger, 12 * GIB)
    assert str(decision.placement.mems) == "20-31"
    assert [(move.container_id, str(move.before)) for move in decision.moves] == [("c0000", "31")]
    assert decision.moves[0].after & NodeSet([32, 33])
    pinned = decide(hardware, promised(claims), 12 * GIB)
    assert (pinned.outcome, codes(pinned)) == (Outcome.REFUSED, ["no-room", "shortage"])


def sockets(nodes: int, each: int) -> dict[tuple[int, int], int]:
    """12 within a socket of *each* nodes, 21 between sockets."""
    return {
        (one, other): 12 if one // each == other // each else 21
        for one in range(nodes)
        for other in range(nodes)
        if one != other
    }


@pytest.mark.parametrize("nodes", [16, 32, 64])
def test_the_nearest_set_with_room_is_found_on_machines_with_sockets(nodes: int) -> None:
    """Of each socket one node is full; only the last two sockets are empty."""
    hardware = machine(nodes, memory_bytes=GIB, distances=sockets(nodes, 4))
    ledger = promised(((first,), GIB) for first in range(0, nodes - 8, 4))
    decision = decide(hardware, ledger, 7 * GIB, BEST_EFFORT)
    assert decision.placement.mems is not None
    assert (len(decision.placement.mems), codes(decision)) == (7, ["best-set"])
    # Three of one socket and four of another: 6 and 12 ordered pairs within, 24 between.
    assert hardware.total_distance(decision.placement.mems) == 18 * 12 + 24 * 21


def test_a_machine_at_the_kernels_limit() -> None:
    """1024 nodes, of which those that look roomiest have promises in pairs."""
    pairs = [((low, low + 1), GIB) for low in range(0, 1000, 2)]
    hardware, ledger = machine(1024, cpus_per_node=1, memory_bytes=GIB), promised(pairs)
    engine = ExactEngine(max_steps=LONG)
    found = engine.decide(Basis(hardware, RESTRICTED, ledger), asking(24 * GIB))
    assert (str(found.placement.mems), codes(found)) == ("1000-1023", ["best-set"])
    refused = engine.decide(Basis(hardware, RESTRICTED, ledger), asking(525 * GIB))
    assert (refused.outcome, codes(refused)) == (Outcome.REFUSED, ["no-room", "shortage"])
    quick = decide(hardware, ledger, 24 * GIB)
    assert str(quick.placement.mems) == "1000-1023" or SEARCH_ENDED in codes(quick)


def test_exclusive_cpus_decide_as_memory_does() -> None:
    """Memory is on some nodes, free CPUs are on others: only the last four have both."""
    hardware = machine(32, cpus_per_node=4, memory_bytes=GIB)
    ledger = promised(((node,), GIB) for node in range(0, 28, 2))
    taken = NodeSet(range(1, 28, 2))
    for node in taken:
        cpus = hardware.cpus_of(NodeSet([node]))
        busy = replace(asking(0, f"busy-{node:02}"), pinned_cpus=cpus)
        ledger = ledger.with_entry(Entry(Decision(busy, Outcome.PLACED)))
    request = replace(asking(4 * GIB), exclusive_cpus=16)
    found = ExactEngine().decide(Basis(hardware, RESTRICTED, ledger), request)
    assert str(found.placement.mems) == "28-31"
    more = replace(asking(5 * GIB), exclusive_cpus=20)
    refused = ExactEngine().decide(Basis(hardware, RESTRICTED, ledger), more)
    assert (refused.outcome, codes(refused)) == (Outcome.REFUSED, ["no-room", "cpus-taken"])


def crossing_promises(nodes: int, sets: int, largest: int) -> list[tuple[list[int], int]]:
    """Promises on random sets that cross each other, some 5 of 6 GiB in all."""
    draw = random.Random(nodes)
    return [
        (draw.sample(range(nodes), draw.randint(2, largest)), draw.randint(1, 4) * GIB // sets)
        for _ in range(sets)
    ]


@pytest.mark.parametrize(("nodes", "sets"), [(14, 600), (24, 300)])
def test_hundreds_of_crossing_sets_are_no_more_work_than_a_decision_may_take(nodes: int, sets: int) -> None:
    """Counted in calls of functions: 300000 of them are about 60 ms."""
    claims = [(some, 8 * amount) for some, amount in crossing_promises(nodes, sets, 8)]
    hardware, ledger = machine(nodes, memory_bytes=3 * GIB), promised(claims)
    refused, calls = counted(hardware, ledger, 3 * (nodes - 7) * GIB)
    assert refused.outcome is Outcome.REFUSED
    assert calls < 300_000


def test_more_moves_than_a_decision_may_have_are_not_worked_out() -> None:
    draw = random.Random(1)
    claims = [(draw.sample(range(16), draw.randint(1, 3)), 16 * GIB * 8 // 10 // 300) for _ in range(300)]
    hardware, ledger = machine(16, memory_bytes=GIB), promised(claims, flexible=frozenset(range(300)))
    refused, calls = counted(hardware, ledger, 3 * GIB)
    assert (refused.outcome, codes(refused)) == (Outcome.REFUSED, ["no-room", "shortage", "plan-ended"])
    assert calls < 200_000


def counted(hardware: Machine, ledger: Ledger, memory_bytes: int) -> tuple[Decision, int]:
    """A decision, and how many calls of functions it took."""
    calls: Counter[str] = Counter()
    sys.setprofile(lambda _frame, event, _arg: calls.update([event]))
    try:
        decision = decide(hardware, ledger, memory_bytes, PLANNING)
    finally:
        sys.setprofile(None)
    return decision, calls["call"]


def test_the_order_in_which_others_came_makes_no_difference() -> None:
    """Not even to where a search ends, although which node carries what depends on it."""
    claims = crossing_promises(20, 60, 5)
    hardware, draw = machine(20, memory_bytes=GIB // 4), random.Random(0)
    ledger, answers = promised(claims), set()
    for _ in range(4):
        entries = draw.sample(list(ledger.entries.values()), len(ledger.entries))
        engine = ExactEngine(max_steps=20_000)
        for known in (len(entries) // 2, len(entries)):
            decision = engine.decide(
                Basis(hardware, BEST_EFFORT, Ledger.of(entries[:known])), asking(2 * GIB, f"wide-{known}")
            )
        answers.add((decision.explanation(), str(decision.placement.mems), tuple(codes(decision))))
    ((_, _, found),) = answers
    assert SEARCH_ENDED in found

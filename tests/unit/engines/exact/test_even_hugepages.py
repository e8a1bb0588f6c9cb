"""Huge pages that are to lie evenly on so many nodes: promised on each of them by itself, or refused."""

from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.exact.witness import witness
from bayplan.model.basis import Basis
from bayplan.model.decision import (
    Decision,
    EvenHugepagesWish,
    Interval,
    NodeWish,
    Outcome,
    QosClass,
    Request,
    TierWish,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.quantity import GIB, MIB
from bayplan.sets import NodeSet
from support.decisions import codes
from support.machines import machine
from support.requests import guaranteed_request

PAGES = "hugepages-2Mi"
EACH = {2 * MIB: 64 * MIB}


def asking(name: str, pages_bytes: int, nodes: int | None = None) -> Request:
    wish = None if nodes is None else EvenHugepagesWish(nodes)
    return replace(guaranteed_request(name), hugepages_bytes={PAGES: pages_bytes}, even_hugepages=wish)


def on_node(node: int, request: Request) -> Request:
    return replace(request, nodes=NodeWish(NodeSet([node]), required=True))


@dataclass
class Host:
    """A machine whose containers come one after the other."""

    hardware: Machine = field(default_factory=lambda: machine(4, hugepages_bytes=EACH))
    policy: PlacementPolicy = field(default_factory=PlacementPolicy)
    engine: ExactEngine = field(default_factory=ExactEngine)
    ledger: Ledger = field(default_factory=Ledger)

    def place(self, request: Request) -> Decision:
        decision = self.engine.decide(Basis(self.hardware, self.policy, self.ledger), request)
        if decision.outcome is not Outcome.REFUSED:
            self.ledger = self.ledger.moved(decision.moves).with_entry(Entry(decision))
        return decision

    def pages(self, container_id: str) -> dict[int, int]:
        spread = witness(Basis(self.hardware, self.policy, self.ledger))[container_id]
        return {node: row[PAGES] // MIB for node, row in spread.items() if PAGES in row}


def test_each_node_has_the_same() -> None:
    host = Host()
    decision = host.place(asking("a", 64 * MIB, 4))
    assert (decision.outcome, str(decision.placement.mems)) == (Outcome.PLACED, "0-3")
    assert host.pages("a") == {0: 16, 1: 16, 2: 16, 3: 16}
    assert decision.placement.booked_bytes[3][PAGES] == 16 * MIB


def test_without_the_wish_one_node_is_enough() -> None:
    host = Host()
    host.place(asking("a", 64 * MIB))
    assert host.pages("a") == {0: 64}


def test_nothing_else_is_promised_on_them() -> None:
    host = Host()
    host.place(asking("even", 64 * MIB, 4))
    host.policy = PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)
    placed = [host.place(asking(f"one-{number}", 48 * MIB)) for number in range(4)]
    assert [str(one.placement.mems) for one in placed] == ["0", "1", "2", "3"]
    refusal = host.place(asking("more", 2 * MIB))
    assert refusal.outcome is Outcome.REFUSED
    assert refusal.shortage is not None
    assert (refusal.shortage.promised_bytes, refusal.shortage.asked_bytes) == (64 * MIB, 2 * MIB)
    assert {one.held_bytes for one in refusal.shortage.holders} == {16 * MIB, 48 * MIB}


def test_the_nodes_with_too_little_are_passed_over() -> None:
    host = Host()
    host.place(asking("full", 50 * MIB))
    assert str(host.place(asking("even", 60 * MIB, 3)).placement.mems) == "1-3"


def test_a_claim_on_several_nodes_cannot_make_room_on_all_of_them_at_once() -> None:
    """Each node alone could have 44 MiB beside the 100 MiB on both, which then lie on the other one."""
    host = Host(machine(2, hugepages_bytes=EACH))
    host.place(asking("wide", 100 * MIB))
    assert host.place(asking("even", 28 * MIB, 2)).outcome is Outcome.PLACED
    assert host.pages("even") == {0: 14, 1: 14}
    host = Host(machine(3, hugepages_bytes=EACH))
    host.place(replace(asking("wide", 100 * MIB), nodes=NodeWish(NodeSet([0, 1]), required=True)))
    assert str(host.place(asking("even", 56 * MIB, 2)).placement.mems) == "0,2"
    assert host.place(asking("more", 88 * MIB, 2)).outcome is Outcome.REFUSED


def test_only_so_many_nodes_will_do() -> None:
    """Three nodes have more room than two, and what fits on them is something else."""
    host = Host()
    for number in (0, 1, 2):
        host.place(on_node(number, asking(f"full-{number}", 50 * MIB)))
    refusal = host.place(asking("even", 32 * MIB, 2))
    assert (refusal.outcome, codes(refusal)) == (Outcome.REFUSED, ["no-room", "shortage"])
    assert (
        "asks for 100Mi and 32Mi of hugepages-2Mi, its huge pages evenly, on 2 nodes" in refusal.explanation()
    )
    assert refusal.shortage is not None
    assert refusal.shortage.asked_bytes == 16 * MIB


@pytest.mark.parametrize("qos", [QosClass.BURSTABLE, QosClass.BEST_EFFORT])
def test_in_every_class_the_container_is_bound_to_its_nodes(qos: QosClass) -> None:
    host = Host()
    request = replace(
        asking("a", 8 * MIB, 2), qos=qos, memory=Interval(0, 0, "none"), memory_limit_bytes=None
    )
    decision = host.place(request)
    assert (decision.outcome, str(decision.placement.mems)) == (Outcome.PLACED, "0-1")
    assert host.pages("a") == {0: 4, 1: 4}


def test_several_sizes_are_divided_each_for_itself() -> None:
    host = Host(machine(2, memory_bytes=8 * GIB, hugepages_bytes={**EACH, GIB: 4 * GIB}))
    both = {PAGES: 4 * MIB, "hugepages-1Gi": 4 * GIB}
    host.place(replace(asking("a", 0, 2), hugepages_bytes=both))
    spread = witness(Basis(host.hardware, host.policy, host.ledger))["a"]
    assert {
        node: {PAGES: row[PAGES], "hugepages-1Gi": row["hugepages-1Gi"]} for node, row in spread.items()
    } == {node: {PAGES: 2 * MIB, "hugepages-1Gi": 2 * GIB} for node in (0, 1)}


def test_other_wishes_say_which_nodes() -> None:
    host = Host()
    preferring = replace(asking("a", 8 * MIB, 2), nodes=NodeWish(NodeSet([1, 2, 3])))
    assert str(host.place(preferring).placement.mems) == "1-2"
    requiring = on_node(3, asking("b", 8 * MIB, 2))
    refusal = host.place(requiring)
    assert "its huge pages are to lie on 2 nodes, and it may have 1" in refusal.explanation()
    elsewhere = host.place(replace(requiring, container_id="c", nodes=NodeWish(NodeSet([3]))))
    assert elsewhere.outcome is Outcome.DEGRADED
    assert "wish-not-granted" in codes(elsewhere)
    assert set(host.pages("c").values()) == {4}


def test_where_the_nodes_are_too_small_the_refusal_says_which_are_not() -> None:
    large, *small = machine(4, hugepages_bytes=EACH).nodes
    nodes = (large, *[replace(one, hugepages_bytes={2 * MIB: 8 * MIB}) for one in small])
    host = Host(replace(machine(4), nodes=nodes))
    refusal = host.place(asking("a", 32 * MIB, 2))
    text = "each of 2 nodes is to hold 16Mi of hugepages-2Mi, and only node 0 holds as much"
    assert text in refusal.explanation()
    refusal = host.place(asking("a", 256 * MIB, 2))
    assert "128Mi of hugepages-2Mi, and no node holds as much" in refusal.explanation()


@pytest.mark.parametrize("topology", list(TopologyPolicy))
def test_a_policy_allows_the_nodes_that_it_takes(topology: TopologyPolicy) -> None:
    host = Host(policy=PlacementPolicy(topology=topology))
    decision = host.place(asking("a", 8 * MIB, 2))
    if topology is TopologyPolicy.SINGLE_NUMA_NODE:
        assert "its huge pages are to lie on 2 nodes, and it may have 1" in decision.explanation()
    else:
        assert (decision.outcome, str(decision.placement.mems)) == (Outcome.PLACED, "0-1")


def test_a_resize_leaves_them_where_they_are() -> None:
    host = Host(machine(4, memory_bytes=GIB, hugepages_bytes=EACH))
    before = host.place(asking("a", 64 * MIB, 2))
    host.place(guaranteed_request("beside", 500 * MIB))
    more = replace(before.request, memory=Interval(GIB, GIB, "limit"), memory_limit_bytes=GIB)
    base = host.ledger.without("a")
    decision = host.engine.decide(Basis(host.hardware, host.policy, base), more, before.placement)
    claim = decision.placement.claim
    assert claim is not None
    assert (str(claim.nodes), claim.even_hugepages) == ("0-1", True)
    assert not claim.flexible


def test_others_make_room_for_them_and_they_for_nobody() -> None:
    host = Host(machine(3, hugepages_bytes=EACH))
    for number in range(2):
        host.place(asking(f"wide-{number}", 40 * MIB))
    decision = host.place(asking("even", 96 * MIB, 3))
    assert decision.outcome is Outcome.PLACED
    assert host.pages("even") == {0: 32, 1: 32, 2: 32}
    assert {move.container_id for move in decision.moves} == {"wide-0", "wide-1"}
    refusal = host.place(on_node(0, asking("one", 64 * MIB)))
    assert refusal.outcome is Outcome.REFUSED


def test_a_container_that_is_found_counts_as_it_was_asked_for() -> None:
    host = Host()
    request = asking("a", 64 * MIB, 2)
    placement = host.engine.adopt(Basis(host.hardware, host.policy, host.ledger), request, NodeSet([0, 3]))
    assert placement.claim is not None
    assert placement.claim.parts == (
        (NodeSet([0]), {PAGES: 32 * MIB}),
        (NodeSet([3]), {PAGES: 32 * MIB}),
        (NodeSet([0, 3]), {"memory": 100 * MIB}),
    )
    elsewhere = host.engine.adopt(Basis(host.hardware, host.policy, host.ledger), request, NodeSet([0, 1, 3]))
    assert elsewhere.claim is not None
    assert not elsewhere.claim.even_hugepages


def test_among_many_nodes_a_search_finds_those_with_room() -> None:
    """Of 24 nodes six have room for a part, and only as many sets of six as there are could be looked at."""
    host = Host(machine(24, memory_bytes=GIB, hugepages_bytes=EACH))
    roomy = {1, 4, 9, 13, 17, 22}
    for node in range(24):
        if node not in roomy:
            assert host.place(on_node(node, asking(f"n{node}", 60 * MIB))).outcome is Outcome.PLACED
    decision = host.place(asking("even", 6 * 32 * MIB, 6))
    assert (decision.outcome, set(decision.placement.mems or ())) == (Outcome.PLACED, roomy)
    assert host.place(asking("more", 7 * 32 * MIB, 7)).outcome is Outcome.REFUSED


def test_tiers_are_left_to_those_who_ask_for_them() -> None:
    host = Host()
    refusal = host.place(replace(asking("a", 8 * MIB, 2), tier=TierWish(3, required=True)))
    assert refusal.outcome is Outcome.REFUSED

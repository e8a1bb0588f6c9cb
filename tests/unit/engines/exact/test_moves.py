"""When there is more room: containers that move back, are promised more, or get more nodes."""

from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.interface import Engine
from bayplan.model.basis import Basis
from bayplan.model.decision import (
    MOVED_OVER,
    Claim,
    Decision,
    Move,
    NodeWish,
    Outcome,
    QosClass,
    Reason,
    Request,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.model.request import derive_request
from bayplan.placement.changed_promises import after_removal, moved_back, not_moved_back
from bayplan.quantity import GIB, MIB
from bayplan.sets import NodeSet
from support.decisions import codes
from support.machines import container, machine, pod

ENGINE: Engine = ExactEngine()
GUARANTEED = pod("g", QosClass.GUARANTEED)


class Node:
    """A machine with what was placed on it so far."""

    def __init__(self, hardware: Machine) -> None:
        self.machine, self.policy, self.ledger = hardware, PlacementPolicy(), Ledger()

    def decide(self, request: Request) -> Decision:
        decision = ENGINE.decide(Basis(self.machine, self.policy, self.ledger), request)
        self.ledger = self.ledger.moved(decision.moves).with_entry(Entry(decision))
        return decision


def asking(container_id: str, memory_bytes: int) -> Request:
    one = container(container_id, GUARANTEED, memory_bytes=memory_bytes, milli_cpus=500)
    return derive_request(GUARANTEED, one, machine(4))


def test_who_grew_onto_more_nodes_goes_back_when_there_is_room() -> None:
    node = Node(machine(3))
    node.decide(asking("neighbour", 500 * MIB))
    before = node.decide(asking("grown", 400 * MIB))

    def resized(size: int, old: Decision) -> Decision:
        node.ledger = node.ledger.without("grown")
        decision = ENGINE.decide(
            Basis(node.machine, node.policy, node.ledger), asking("grown", size), old.placement
        )
        node.ledger = node.ledger.with_entry(Entry(decision))
        return decision

    wider = resized(900 * MIB, before)
    assert (
        str(wider.placement.mems),
        str(wider.placement.original_nodes),
        str(wider.placement.previous_mems),
    ) == (
        "0-1",
        "0",
        "0",
    )
    widest = resized(2500 * MIB, wider)
    assert (str(widest.placement.mems), str(widest.placement.original_nodes)) == ("0-2", "0")
    assert ENGINE.moves_back(Basis(node.machine, node.policy, node.ledger)) == ()
    smaller = resized(300 * MIB, widest)
    assert (codes(smaller), str(smaller.placement.mems)) == (["kept"], "0-2")
    (move,) = ENGINE.moves_back(Basis(node.machine, node.policy, node.ledger))
    assert (move.container_id, str(move.before), str(move.after)) == ("grown", "0-2", "0")
    assert ENGINE.moves_back(Basis(node.machine, node.policy, node.ledger), {"grown"}) == ()


def test_who_lacks_a_part_of_its_promise_does_not_go_back() -> None:
    node = Node(machine(2))
    decision = node.decide(asking("moved", 600 * MIB))
    claim = Claim(NodeSet([0, 1]), {"memory": 600 * MIB}, short_bytes={"memory": MIB})
    placement = replace(decision.placement, mems=claim.nodes, claim=claim, original_nodes=NodeSet([0]))
    node.ledger = node.ledger.with_entry(Entry(replace(decision, placement=placement)))
    assert ENGINE.moves_back(Basis(node.machine, node.policy, node.ledger)) == ()


def burstable(name: str, size: int) -> Request:
    return replace(asking(name, size), qos=QosClass.BURSTABLE, memory_limit_bytes=None)


def test_memory_that_comes_is_for_those_who_may_use_all_of_it() -> None:
    node = Node(machine(2))
    node.decide(burstable("first", 1000 * MIB))
    node.decide(asking("confined", 900 * MIB))
    assert node.decide(burstable("short", 1000 * MIB)).outcome is Outcome.DEGRADED
    node.machine = machine(3)
    after, moves, more = after_removal(Basis(node.machine, node.policy, node.ledger), ENGINE)
    assert (moves, more) == ((), ("short",))
    places = {key: entry.decision.placement for key, entry in after.entries.items()}
    assert {key: str(one.claim.nodes) for key, one in places.items() if one.claim} == {
        "first": "0-2",
        "confined": "0",
        "short": "0-2",
    }
    assert {key: str(one.mems) for key, one in places.items()} == {
        "first": "None",
        "confined": "0",
        "short": "None",
    }
    # What has left is not taken for a reason to go elsewhere.
    assert after_removal(Basis(machine(2), node.policy, after), ENGINE)[0] == after


def test_memory_that_comes_is_opened_where_other_memory_is_kept_off() -> None:
    node = Node(machine(2, cpu_less={8: GIB}))
    assert str(node.decide(burstable("free", 100 * MIB)).placement.mems) == "0-1"
    node.machine = machine(3, cpu_less={8: GIB})
    after, _, _ = after_removal(Basis(node.machine, node.policy, node.ledger), ENGINE)
    placement = after.entries["free"].decision.placement
    assert (str(placement.mems), placement.original_nodes, str(placement.previous_mems)) == (
        "0-2",
        None,
        "0-1",
    )


def test_who_may_use_every_node_still_may_after_it_moved_over() -> None:
    node = Node(machine(2))
    node.decide(burstable("free", 600 * MIB))
    node.machine = machine(3)
    # The machine has grown, and nobody has looked for room yet.
    node.ledger = node.ledger.moved([Move("free", "free", NodeSet([0, 1]), NodeSet([0, 1, 2]))])
    placement = node.ledger.entries["free"].decision.placement
    assert placement.claim is not None
    assert (placement.mems, placement.original_nodes, str(placement.claim.nodes)) == (None, None, "0-2")


def test_why_somebody_stays_wide_is_said_until_it_does_not() -> None:
    node = Node(machine(2))
    node.decide(asking("flexible", 600 * MIB))
    node.decide(replace(asking("late", 900 * MIB), nodes=NodeWish(NodeSet([0]), required=True)))
    ledger = node.ledger.without("late")
    (move,) = ENGINE.moves_back(Basis(node.machine, node.policy, ledger))
    assert ledger.entries["flexible"].decision.reasons[-1].text == (
        "moved over for others from node 0 to nodes 0-1; goes back when there is room"
    )
    once = not_moved_back(ledger, move, "no way")
    assert not_moved_back(once, move, "no way") is once
    twice = not_moved_back(once, move, "still no way")
    assert twice.entries["flexible"].decision.reasons[-1].text == (
        "there is room on node 0 again, but it stays on nodes 0-1: still no way"
    )
    assert codes(twice.entries["flexible"].decision) == ["best-set", "moved-over", "stays-wide"]
    back = moved_back(twice, move).entries["flexible"].decision
    assert (codes(back), str(back.placement.mems), back.placement.original_nodes) == (["best-set"], "0", None)


def test_what_happened_since_does_not_keep_a_promise_made_up_for_degraded() -> None:
    node = Node(machine(2))
    for name in ("a", "b", "short"):
        node.decide(asking(name, 900 * MIB))
    (entry, claim) = (node.ledger.entries["short"], node.ledger.entries["short"].decision.placement.claim)
    assert claim is not None
    assert claim.short_bytes
    since = Reason(MOVED_OVER, "moved over for others")
    moved = replace(entry, decision=replace(entry.decision, reasons=(*entry.decision.reasons, since)))
    after, _, more = after_removal(
        Basis(node.machine, node.policy, node.ledger.with_entry(moved).without("a")), ENGINE
    )
    decision = after.entries["short"].decision
    assert (more, decision.outcome) == (("short",), Outcome.PLACED)
    assert codes(decision) == ["moved-over", "promised-later"]

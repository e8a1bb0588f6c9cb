"""The sentence about a minimum cut: what a human reads in a refusal."""

from bayplan.model.decision import Booking, Claim, Holder, Placement, Shortage
from bayplan.quantity import GIB, MIB
from bayplan.sets import NodeSet


def holder(name: str, held_bytes: int) -> Holder:
    return Holder(f"{name}-id", name, held_bytes)


def test_a_shortage_names_nodes_promises_and_holders() -> None:
    holders = (holder("a", 30 * GIB), holder("b", 20 * GIB), holder("c", 8 * GIB))
    shortage = Shortage("memory", NodeSet([1, 2]), 64 * GIB, 58 * GIB, 10 * GIB, holders)
    assert shortage.sentence() == (
        "nodes 1-2 hold 64Gi; 58Gi are promised to a, b, c; you asked for 10Gi there"
    )


def test_a_shortage_counts_the_holders_it_does_not_name() -> None:
    shortage = Shortage(
        "hugepages-2Mi", NodeSet([3]), 4 * GIB, 3 * GIB, 2 * GIB, (holder("a", GIB),), more_holders=7
    )
    assert shortage.sentence() == (
        "node 3 holds 4Gi of hugepages-2Mi; 3Gi are promised to a and 7 more; you asked for 2Gi there"
    )


def test_a_request_larger_than_the_nodes_needs_nobody_in_the_way() -> None:
    shortage = Shortage("memory", NodeSet([0]), GIB, 0, 2 * GIB)
    assert shortage.sentence() == "node 0 holds 1Gi; you asked for 2Gi there"


def test_a_shortage_that_rounding_would_hide_is_said() -> None:
    short = Shortage("memory", NodeSet([0]), 4 * GIB - 4096, 0, 4 * GIB)
    assert short.sentence() == "node 0 holds 4.00Gi; you asked for 4Gi there, 4Ki too much"
    beside = Shortage(
        "memory", NodeSet([0]), 16 * GIB - 100 * MIB, 10 * GIB, 6 * GIB, (holder("a", 10 * GIB),)
    )
    assert beside.sentence().endswith("10Gi are promised to a; you asked for 6Gi there")
    hardly = Shortage("memory", NodeSet([0]), 16 * GIB - 5, 10 * GIB, 6 * GIB, (holder("a", 10 * GIB),))
    assert hardly.sentence().endswith("you asked for 6Gi there, 5 too much")
    enormous = Shortage("memory", NodeSet([0]), GIB, 0, 2**63 - 1)
    assert enormous.sentence().endswith("you asked for 8.00Ei there")


def test_a_booking_is_claimed_node_by_node() -> None:
    by_node = {0: {"memory": GIB}, 2: {"memory": 2 * GIB, "hugepages-2Mi": MIB}}
    booked = Placement(NodeSet([0, 2]), booked_bytes=by_node)
    assert booked.promise == Booking(by_node)
    assert booked.promise.is_by_node
    claim = booked.claimed
    assert claim.parts == booked.promise.parts
    assert (claim.nodes, claim.amounts_bytes) == (booked.promise.nodes, booked.promise.amounts_bytes)
    assert booked.staying(NodeSet([1])) == booked


def test_what_stays_is_moved_for_nobody() -> None:
    claim = Claim(NodeSet([0, 1]), {"memory": GIB}, flexible=True)
    placed = Placement(NodeSet([0, 1]), claim=claim)
    assert placed.claimed is placed.promise is claim
    assert placed.staying().promise == Claim(NodeSet([0, 1]), {"memory": GIB})
    assert placed.staying(NodeSet([1])).promise.nodes == NodeSet([1])

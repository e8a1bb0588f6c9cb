"""What is reported when memory or CPUs leave that were promised."""

from msgspec.structs import replace

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
from bayplan.model.machine import MEMORY, Machine, hugepages
from bayplan.model.policy import PlacementPolicy
from bayplan.placement.shortfall import CrowdedPool, LostCpus, crowded_pool, lost_cpus, overclaims
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.machines import machine

MACHINE = machine(2, memory_bytes=4 * GIB, hugepages_bytes={2 * MIB: 64 * MIB})
PAGES = hugepages(2 * MIB)


def entry(name: str, mems: str, booked, cpus: str = "") -> Entry:
    request = Request(
        name, "p", f"ns/p/{name}", QosClass.GUARANTEED, QosSource.INFERRED, Interval(0, 0, "limit")
    )
    placement = Placement(NodeSet.parse(mems), CpuSet.parse(cpus), booked)
    return Entry(Decision(request, Outcome.PLACED, placement))


LEDGER = Ledger.of(
    [
        entry("a", "0", {0: {MEMORY: 2 * GIB}}, "1-2"),
        entry("b", "0-1", {0: {MEMORY: GIB}, 1: {MEMORY: GIB, PAGES: 8 * MIB}}, "5"),
        entry("c", "1", {1: {MEMORY: GIB}}),
    ]
)


def without(gone: int) -> Machine:
    return Machine(tuple(node for node in MACHINE.nodes if node.id != gone), MACHINE.cpus)


def shrunk(node: int, memory_bytes: int) -> Machine:
    nodes = (replace(one, memory_bytes=memory_bytes) if one.id == node else one for one in MACHINE.nodes)
    return Machine(tuple(nodes), MACHINE.cpus)


def test_nothing_is_reported_while_everything_fits():
    assert overclaims(Basis(MACHINE, PlacementPolicy(), LEDGER)) == ()


def test_memory_that_left_a_node():
    smaller = shrunk(0, 2 * GIB)
    (one,) = overclaims(Basis(smaller, PlacementPolicy(), LEDGER))
    assert (one.shortage.nodes, one.shortage.resource, one.gone) == (NodeSet([0]), MEMORY, NodeSet())
    assert str(one) == (
        "node 0 has 1984Mi for containers, and 3Gi memory are promised to ns/p/a, ns/p/b; "
        "nothing new is placed there"
    )
    assert Basis(smaller, PlacementPolicy(), LEDGER).free_bytes[0][MEMORY] == 0


def test_a_node_that_is_gone_with_its_huge_pages():
    found = overclaims(Basis(without(1), PlacementPolicy(), LEDGER))
    assert [(one.shortage.resource, one.gone) for one in found] == [
        (PAGES, NodeSet([1])),
        (MEMORY, NodeSet([1])),
    ]
    assert str(found[1]) == "node 1 is gone, and 2Gi memory there are promised to ns/p/b, ns/p/c"


def test_a_claim_on_several_nodes_is_short_only_if_all_of_them_are():
    def claim(name: str, nodes: str, amount_bytes: int) -> Entry:
        plain = entry(name, nodes, {})
        claimed = Claim(NodeSet.parse(nodes), {MEMORY: amount_bytes})
        placement = replace(plain.decision.placement, claim=claimed)
        return Entry(replace(plain.decision, placement=placement))

    ledger = Ledger.of([claim("a", "0-1", 3 * GIB), claim("b", "0-1", 3 * GIB)])
    assert overclaims(Basis(shrunk(0, 3 * GIB), PlacementPolicy(), ledger)) == ()
    (one,) = overclaims(Basis(shrunk(0, 2 * GIB), PlacementPolicy(), ledger))
    promised = "for containers, and 6Gi memory are promised to ns/p/a, ns/p/b"
    assert str(one).startswith(f"nodes 0-1 have 6016Mi {promised}")
    (one,) = overclaims(Basis(without(0), PlacementPolicy(), ledger))
    assert str(one).startswith(f"nodes 0-1 (node 0 is gone) have 4032Mi {promised}")


def test_a_reservation_that_grew_over_what_is_promised():
    (one,) = overclaims(Basis(MACHINE, PlacementPolicy(reserved_bytes={0: {MEMORY: 2 * GIB}}), LEDGER))
    assert (one.shortage.capacity_bytes, one.shortage.promised_bytes) == (2 * GIB - 64 * MIB, 3 * GIB)


def test_what_is_held_outside_of_containers_is_named_with_what_it_leaves():
    policy = PlacementPolicy(reserved_bytes={0: {MEMORY: 2 * GIB}})
    (one,) = overclaims(Basis(MACHINE, policy, LEDGER), {0: 2 * GIB, 1: GIB})
    assert one.held_bytes == 2 * GIB
    assert "has 1984Mi for containers, 2Gi are held outside of containers, and 3Gi memory are" in str(one)


def test_a_long_list_is_cut():
    ledger = Ledger.of([entry(f"c{number}", "0", {0: {MEMORY: GIB}}) for number in range(8)])
    (one,) = overclaims(Basis(MACHINE, PlacementPolicy(), ledger))
    assert "ns/p/c0, ns/p/c1, ns/p/c2, ns/p/c3, ns/p/c4 and 3 more" in str(one)


def test_exclusive_cpus_that_went_offline():
    assert lost_cpus(Basis(MACHINE, PlacementPolicy(), LEDGER)) == ()
    cpus = tuple(replace(cpu, online=cpu.id not in (2, 5)) for cpu in MACHINE.cpus)
    found = lost_cpus(Basis(Machine(MACHINE.nodes, cpus), PlacementPolicy(), LEDGER))
    assert found == (
        LostCpus("a", "ns/p/a", CpuSet([2]), CpuSet([1])),
        LostCpus("b", "ns/p/b", CpuSet([5]), CpuSet()),
    )
    assert str(found[0]) == "ns/p/a lost CPU 2, offline now, of its own; it runs on 1"
    assert str(found[1]).endswith("; it runs on the shared CPUs")


def test_a_pool_with_fewer_cpus_than_its_containers_request_is_named() -> None:
    def shares(name: str, milli: int, cpus: str = "", **changed: object) -> Entry:
        one = entry(name, "0", {}, cpus)
        return Entry(replace(one.decision, request=replace(one.decision.request, cpu_milli=milli, **changed)))

    policy = PlacementPolicy(reserved_cpus=CpuSet([0]))
    ledger = Ledger.of([shares("own", 6000, "1-6"), shares("a", 1500), shares("b", 500), shares("idle", 0)])
    # CPUs 0 and 7 are left: as many as are requested.
    assert crowded_pool(Basis(MACHINE, policy, ledger)) is None
    more = ledger.with_entry(shares("c", 1))
    assert crowded_pool(Basis(MACHINE, policy, more)) == CrowdedPool(CpuSet([0, 7]), 2001, 3)
    # Those that are left as they are run elsewhere, and a weight requests nothing.
    for elsewhere in (
        shares("pinned", 4000, pinned_cpus=CpuSet([3])),
        shares("out", 4000, opted_out=True),
        shares("weighed", 4000, cpu_weighed=True),
    ):
        assert crowded_pool(Basis(MACHINE, policy, ledger.with_entry(elsewhere))) is None

"""What a container's own CPUs are of cores and L3 caches, and what stays whole beside them, in words."""

from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.basis import Basis
from bayplan.model.decision import CpuUse, CpuWish, QosClass
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.policy import CpuPool, PlacementPolicy
from bayplan.views.node_room import cpu_uses
from support.layouts import Layout
from support.machines import machine
from support.requests import guaranteed_request

MACHINE = Layout(caches=4, cores=2).machine()
"""Cores 0 to 7 of CPUs 0,8 to 7,15; two to a cache."""


def uses(counts: list[int], policy: PlacementPolicy = PlacementPolicy()) -> tuple[Basis, list[list[str]]]:
    """The basis after containers with so many CPUs each, and what is said of each by then."""
    basis, decisions = Basis(MACHINE, policy, Ledger()), []
    for number, count in enumerate(counts):
        decisions.append(ExactEngine().decide(basis, guaranteed_request(f"c{number}", exclusive_cpus=count)))
        basis = basis.with_ledger(basis.ledger.with_entry(Entry(decisions[-1])))
    return basis, [cpu_uses(basis, decision) for decision in decisions]


def test_whole_cores_and_caches_are_told_with_what_stays() -> None:
    _, ((cores, cache, kept),) = uses([4])
    assert cores == "2 cores as a whole"
    assert cache == "L3 cache of CPUs 2-3,10-11: all of it"
    assert kept == "2 of 4 L3 caches of these nodes stay whole: 4-5,12-13; 6-7,14-15"


def test_a_core_that_was_broken_is_told_with_what_is_left_of_it() -> None:
    # The first one gets the sibling of the reserved CPU 0, the second one has to break a core.
    _, (first, (cores, cache, kept)) = uses([1, 1])
    assert first[0] == "CPU 8 of the core of CPUs 0,8, of which CPU 0 is reserved"
    assert first[1] == "L3 cache of CPUs 0-1,8-9: 1 of 4 CPUs, beside default/c1/main"
    assert cores == "CPU 1 of the core of CPUs 1,9, of which nobody has CPU 9"
    assert cache == "L3 cache of CPUs 0-1,8-9: 1 of 4 CPUs, beside default/c0/main"
    assert kept.startswith("3 of 4 ")


def test_who_has_the_rest_of_a_core_is_named() -> None:
    _, said = uses([1, 1, 1])
    assert said[1][0].endswith("of the core of CPUs 1,9, beside default/c2/main")
    assert said[2][0].endswith("of the core of CPUs 1,9, beside default/c1/main")


def test_clusters_are_told_where_they_are_more_than_cores_and_less_than_caches() -> None:
    clustered = Layout(cores=8, threads=1, cluster=4).machine()
    begun = "CPUs 1-3 of the cluster of CPUs 0-3, of which CPU 0 is reserved"
    for count, said in ((4, "1 cluster as a whole"), (7, f"1 cluster as a whole; {begun}"), (3, begun)):
        basis = Basis(clustered, PlacementPolicy(), Ledger())
        decision = ExactEngine().decide(basis, guaranteed_request("c", exclusive_cpus=count))
        basis = basis.with_ledger(basis.ledger.with_entry(Entry(decision)))
        assert cpu_uses(basis, decision) == [said]
    of_cores = Layout(cores=8, cluster=1).machine()
    of_caches = Layout(caches=2, cores=4, threads=1, cluster=4).machine()
    for hardware in (of_cores, of_caches):
        basis = Basis(hardware, PlacementPolicy(), Ledger())
        decision = ExactEngine().decide(basis, guaranteed_request("c", exclusive_cpus=2))
        basis = basis.with_ledger(basis.ledger.with_entry(Entry(decision)))
        assert not [said for said in cpu_uses(basis, decision) if "cluster" in said]


def test_a_pool_is_told_as_its_members_have_it() -> None:
    policy = PlacementPolicy(cpu_pools={"db": CpuPool(2, 2)})
    asked = replace(
        guaranteed_request("m"), qos=QosClass.BURSTABLE, cpus=CpuWish(CpuUse.POOL, pool="db"), cpu_milli=1000
    )
    basis = Basis(MACHINE, policy, Ledger())
    decision = ExactEngine().decide(basis, asked)
    basis = basis.with_ledger(basis.ledger.with_entry(Entry(decision)))
    cores, cache, _ = cpu_uses(basis, decision)
    assert cores == "1 core as a whole"
    assert cache.endswith("2 of 4 CPUs, nobody else has any")


def test_nothing_is_said_where_cores_and_caches_do_not_matter() -> None:
    plain = machine(2)
    basis = Basis(plain, PlacementPolicy(), Ledger())
    decision = ExactEngine().decide(basis, guaranteed_request("c", exclusive_cpus=1))
    assert cpu_uses(basis.with_ledger(basis.ledger.with_entry(Entry(decision))), decision) == []
    shared = ExactEngine().decide(Basis(MACHINE, PlacementPolicy(), Ledger()), guaranteed_request("s"))
    assert cpu_uses(Basis(MACHINE, PlacementPolicy(), Ledger()), shared) == []

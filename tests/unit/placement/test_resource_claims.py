"""Resource claims hold what was allocated, and their containers run there: nothing is counted twice, or
lost."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.engines.exact.claiming import claimed_amounts
from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.basis import Basis
from bayplan.model.decision import Outcome, QosClass
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.model.resources import Resources
from bayplan.model.workload import Container, Pod
from bayplan.placement.adjustment import Ability, adjustment_for
from bayplan.placement.decide import decide_change, decide_creation, read_annotations
from bayplan.placement.ledger_check import check
from bayplan.placement.memory_policy import MemoryPolicyAbility
from bayplan.placement.page_owners import container_pages, with_claims_shared_out
from bayplan.placement.resource_claims import decide_claim, pod_hugepages
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from bayplan.state.record import decode_entry, encode
from bayplan.views.node_room import claimable_by_node
from support.exact_draws import draw_machine, draw_request
from support.machines import container, machine, pod
from support.resource_claims import claim, device, draw_claim, having

ENGINE, POLICY = ExactEngine(), PlacementPolicy()
MACHINE = machine(2, cpus_per_node=4, memory_bytes=GIB, hugepages_bytes={2 * MIB: 256 * MIB})
POD = pod("web", QosClass.BEST_EFFORT)


def held(ledger: Ledger, one, on: Machine = MACHINE) -> Ledger:
    entry = decide_claim(Basis(on, POLICY, ledger), ENGINE, one)
    assert entry.decision.outcome is Outcome.PLACED, entry.decision.explanation()
    return ledger.with_entry(entry)


def why(ledger: Ledger, one) -> str:
    entry = decide_claim(Basis(MACHINE, POLICY, ledger), ENGINE, one)
    assert entry.decision.outcome is Outcome.REFUSED
    return entry.decision.explanation()


def created(ledger: Ledger, owner: Pod, one: Container):
    asked = read_annotations(Basis(MACHINE, POLICY, Ledger()), owner, one)
    basis = Basis(MACHINE, POLICY, ledger)
    return decide_creation(basis, ENGINE, owner, one, annotated=asked, ability=MemoryPolicyAbility())


def test_a_claim_holds_what_was_allocated_on_each_node() -> None:
    one = claim(device(0, 512, 2), device(1, 256, hugepages_2Mi=64, request="far"))
    ledger = held(Ledger(), one)
    assert check(Basis(MACHINE, POLICY, ledger)) == ()
    assert ledger.claimed_bytes == {
        NodeSet([0]): {MEMORY: 512 * MIB},
        NodeSet([1]): {MEMORY: 256 * MIB, "hugepages-2Mi": 64 * MIB},
    }
    assert len(ledger.exclusive_cpus) == 2
    assert ledger.exclusive_cpus <= CpuSet([0, 1, 2, 3])
    # Nobody else is promised it, and what is published to the scheduler stays, as that subtracts it itself.
    before, after = (claimable_by_node(Basis(MACHINE, POLICY, each)) for each in (Ledger(), ledger))
    assert before == after
    assert ledger.without_retained(one.key) == Ledger(bound=ledger.bound)
    assert decode_entry(encode(ledger.retained[one.key])) == ledger.retained[one.key]


def test_the_same_claim_again_is_the_same_promise() -> None:
    one = claim(device(0, 512, 2))
    ledger = held(Ledger(), one)
    assert decide_claim(Basis(MACHINE, POLICY, ledger), ENGINE, one) == ledger.retained[one.key]
    # Another allocation under the same uid takes the place of the first.
    other = claim(device(1, 512, 1))
    assert held(ledger, other).claimed_bytes == {NodeSet([1]): {MEMORY: 512 * MIB}}


def test_a_claim_stays_that_of_the_first_pod_it_is_reserved_for() -> None:
    one = claim(device(0, 512, 2))
    (pod_uid,) = one.pod_uids
    ledger = held(Ledger(), one)
    shared = replace(one, pod_uids=(pod_uid, "another"))
    assert decide_claim(Basis(MACHINE, POLICY, ledger), ENGINE, shared) == ledger.retained[one.key]
    assert "2 pods" in why(ledger, replace(one, pod_uids=("another", "a-third")))
    assert "0 pods" in why(ledger, replace(one, pod_uids=()))
    assert held(ledger, replace(one, pod_uids=("another",))).resource_claims[one.key].claim.pod_uids == (
        "another",
    )


@pytest.mark.parametrize(
    ("one", "word"),
    [
        (claim(device(0, 800)), "768Mi"),
        (claim(device(0, 400), device(0, 400)), "768Mi"),
        (claim(device(7, 1)), "no node 7"),
        (claim(device(0, cpus=4)), "4 CPUs"),
        (claim(device(0, hugepages_2Mi=257)), "hugepages-2Mi"),
        (replace(claim(device(0, 1)), pod_uids=("a", "b")), "2 pods"),
        (replace(claim(device(0, 1)), pod_uids=()), "0 pods"),
    ],
)
def test_what_cannot_be_held_is_refused_with_the_reason(one, word: str) -> None:
    assert word in why(Ledger(), one)


def test_containers_run_on_what_their_claim_holds_and_are_not_promised_it_again() -> None:
    one = claim(device(1, 512, 2))
    ledger = held(Ledger(), one)
    decision = created(ledger, POD, having(container("c", POD), one))
    assert decision.outcome is Outcome.PLACED
    assert decision.placement.mems == NodeSet([1])
    assert decision.placement.cpus_among(CpuSet([0])) == ledger.exclusive_cpus
    after = ledger.with_entry(Entry(decision))
    assert check(Basis(MACHINE, POLICY, after)) == ()
    assert (after.claimed_bytes, after.exclusive_cpus) == (ledger.claimed_bytes, ledger.exclusive_cpus)
    assert after.without("c") == ledger


def test_what_a_container_asks_for_beyond_its_claim_is_promised_beside_it() -> None:
    one, owner = claim(device(0, 256)), pod("web", QosClass.GUARANTEED)
    ledger = held(Ledger(), one)
    spec = container("c", owner, memory_bytes=400 * MIB, milli_cpus=2000)
    first = created(ledger, owner, having(spec, one))
    assert claimed_amounts(first.request) == {MEMORY: 144 * MIB}
    assert first.placement.mems == NodeSet([0])
    # The claim is of memory only: CPUs are the container's own, near that.
    assert len(first.placement.exclusive_cpus) == 2
    assert first.placement.exclusive_cpus <= CpuSet([0, 1, 2, 3])
    ledger = ledger.with_entry(Entry(first))
    # The second one of the pod has nothing of the claim left.
    second = created(
        ledger, owner, having(container("d", owner, memory_bytes=100 * MIB, milli_cpus=500), one)
    )
    assert claimed_amounts(second.request) == {MEMORY: 100 * MIB}
    both = ledger.with_entry(Entry(second))
    assert check(Basis(MACHINE, POLICY, both)) == ()
    # Whoever comes after the first has ended, has it again.
    third = created(both.without("c"), owner, having(spec, one))
    assert claimed_amounts(third.request) == {MEMORY: 144 * MIB}


def test_a_resize_is_beside_the_claim_too() -> None:
    one, owner = claim(device(0, 256, 1)), pod("web", QosClass.GUARANTEED)
    ledger = held(Ledger(), one)
    spec = having(container("c", owner, memory_bytes=200 * MIB, milli_cpus=2000), one)
    old = created(ledger, owner, spec)
    assert (claimed_amounts(old.request), old.placement.exclusive_cpus) == ({}, CpuSet())
    change = Resources(memory_limit_bytes=300 * MIB)
    changed = decide_change(Basis(MACHINE, POLICY, ledger), ENGINE, old, spec.resources, change)
    assert changed is not None
    assert claimed_amounts(changed.request) == {MEMORY: 44 * MIB}
    assert changed.placement.claimed_cpus == old.placement.claimed_cpus == ledger.exclusive_cpus
    assert changed.placement.exclusive_cpus == CpuSet()


def test_containers_have_the_requests_that_they_name() -> None:
    one = claim(device(0, 64, 1, request="a"), device(1, 64, 2, request="b"))
    ledger = held(Ledger(), one)
    alone = created(ledger, POD, having(container("c", POD), one, requests=("b",)))
    assert alone.placement.mems == NodeSet([1])
    assert len(alone.placement.own_cpus) == 2
    together = created(ledger, POD, having(container("d", POD), one))
    assert together.placement.mems == NodeSet([0, 1])
    assert together.placement.own_cpus == ledger.exclusive_cpus


def test_a_claim_that_is_not_held_or_of_another_pod_is_no_place() -> None:
    one = claim(device(0, 64))
    for ledger, owner in ((Ledger(), POD), (held(Ledger(), one), pod("other", QosClass.BEST_EFFORT))):
        decision = created(ledger, owner, having(container("c", owner), one))
        assert decision.outcome is Outcome.REFUSED
        assert [reason.code for reason in decision.reasons] == ["resource-claim-not-held"]


def test_a_claim_of_cpus_alone_binds_no_memory() -> None:
    one = claim(device(1, cpus=2))
    decision = created(held(Ledger(), one), POD, having(container("c", POD), one))
    assert decision.placement.mems is None
    assert len(decision.placement.own_cpus) == 2


def test_a_claim_whose_record_was_lost_gets_the_cpus_that_its_containers_run_on() -> None:
    one, others = claim(device(1, cpus=2)), claim(device(1, cpus=1), uid="first", pod="first")
    ledger = held(held(Ledger(), others), one)
    used = ledger.with_entry(Entry(created(ledger, POD, having(container("c", POD), one))))
    lost = used.without_retained(one.key).without_retained(others.key)
    assert held(lost, one).retained[one.key].resource_claim == used.retained[one.key].resource_claim


def changed(draw: random.Random, on: Machine, ledger: Ledger, number: int) -> Ledger:
    """A claim or a container comes or goes, if it can."""
    kind = draw.choice(["claim", "claim", "container", "end", "release"])
    if kind == "claim":
        entry = decide_claim(Basis(on, POLICY, ledger), ENGINE, draw_claim(draw, on, number))
        return ledger if entry.decision.outcome is Outcome.REFUSED else ledger.with_entry(entry)
    if kind == "container":
        decision = ENGINE.decide(Basis(on, POLICY, ledger), draw_request(draw, on, f"c{number}"))
        refused = decision.outcome is Outcome.REFUSED
        return ledger if refused else ledger.moved(decision.moves).with_entry(Entry(decision))
    if kind == "end":
        return ledger.without(draw.choice(sorted(ledger.entries))) if ledger.entries else ledger
    return ledger.without_retained(draw.choice(sorted(ledger.retained))) if ledger.retained else ledger


@given(seed=st.integers(0, 10**6))
def test_claims_and_containers_come_and_go_and_nothing_is_lost(seed: int) -> None:
    """What claims hold is part of what is published; after the last has gone all is as before."""
    draw = random.Random(seed)
    on, ledger = draw_machine(draw, draw.randint(2, 5)), Ledger()
    for number in range(draw.randint(1, 25)):
        ledger = changed(draw, on, ledger, number)
        assert [one for one in check(Basis(on, POLICY, ledger)) if one.is_ours] == []
        published = claimable_by_node(Basis(on, POLICY, ledger))
        for one in ledger.resource_claims.values():
            for node, row in one.by_node().items():
                assert all(amount <= published[node][resource] for resource, amount in row.items())
    for key in list(ledger.retained):
        ledger = ledger.without_retained(key)
    for key in list(ledger.entries):
        ledger = ledger.without(key)
    assert not any(sum(row.values()) for row in ledger.claimed_bytes.values())
    assert ledger.exclusive_cpus == CpuSet()


@given(st.integers(0, 1 << 32))
def test_what_claims_hold_is_promised_once_whoever_uses_it(seed: int) -> None:
    """Relief, eviction and what containers are told go by one count."""
    draw = random.Random(seed)
    amounts = [draw.choice([0, 64, 256]) for _ in range(2)]
    one = claim(*(device(node, amount, request=f"r{node}") for node, amount in enumerate(amounts)))
    ledger = held(Ledger(), one)
    for number in range(draw.randint(0, 3)):
        limit_bytes = draw.choice([None, 32 * MIB, 128 * MIB])
        requests = tuple(draw.sample(one.requests, draw.randint(1, 2)))
        spec = having(container(f"c{number}", POD, memory_bytes=limit_bytes), one, requests=requests)
        decision = created(ledger, POD, spec)
        ledger = ledger.with_entry(Entry(decision))
        claimed_bytes = min(512 * MIB if limit_bytes is None else limit_bytes, sum(amounts) * MIB)
        assert decision.own_bytes <= decision.promised_bytes <= decision.own_bytes + claimed_bytes
    pages = {
        key: container_pages(MACHINE, entry, {0: draw.choice([0, 16, 200]) * MIB}, {}, {})
        for key, entry in ledger.entries.items()
    }
    shared_out, idle = with_claims_shared_out(ledger, pages)
    own_bytes = sum(entry.decision.own_bytes for entry in ledger.entries.values())
    promised = [page.promised_bytes for page in (*shared_out.values(), *idle)]
    assert min([0, *promised]) >= 0
    assert sum(promised) == own_bytes + sum(amounts) * MIB
    assert all(page.promised_bytes <= pages[key].promised_bytes for key, page in shared_out.items())
    assert ledger.claimed_memory_bytes == ({POD.uid: sum(amounts) * MIB})


def test_claimed_huge_pages_raise_limits_that_know_nothing_of_them() -> None:
    one = claim(device(0, hugepages_2Mi=64), device(1, hugepages_2Mi=32))
    ledger = held(Ledger(), one)
    for spec_bytes, wanted in ((0, 96), (None, 96), (200 * MIB, None)):
        limits = {} if spec_bytes is None else {2 * MIB: spec_bytes}
        spec = having(container("c", POD, resources=Resources(hugepage_limits_bytes=limits)), one)
        decision = created(ledger, POD, spec)
        found = adjustment_for(Basis(MACHINE, POLICY, Ledger()), Ability(), CpuSet([0]), decision, spec)
        assert found.hugepage_limits_bytes == ({} if wanted is None else {2 * MIB: wanted * MIB})
        with_it = ledger.with_entry(Entry(decision))
        # The limit of 200 MiB is promised beside the claim as far as it is more.
        assert pod_hugepages(with_it, POD.uid) == {2 * MIB: max(96 * MIB, spec_bytes or 0)}
        assert pod_hugepages(with_it, "another") == {}

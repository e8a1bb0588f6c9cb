"""Named pools: what is decided about their members, and how many CPUs they have."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.engines.exact.cpu_pools import IN_POOL, POOL_FULL, POOL_SHORT
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.exact.exclusive_cpus import SHARED_CPUS_MINIMUM
from bayplan.model.basis import Basis
from bayplan.model.decision import CpuUse, CpuWish, Decision, Interval, Outcome, QosClass, QosSource, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import CpuAlignment, CpuPool, PlacementPolicy, TopologyPolicy
from bayplan.placement.changed_promises import with_resized_pools
from bayplan.placement.ledger_check import contradictions
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet
from support.layouts import Layout, alder_lake
from support.machines import machine

ENGINE = ExactEngine()
HYBRID = Machine(
    alder_lake().nodes,
    tuple(replace(cpu, kind="performance" if cpu.id < 16 else "efficiency") for cpu in alder_lake().cpus),
)


def member(name: str, milli: int, pool: str = "db", memory_bytes: int = 0) -> Request:
    """A container in a pool: Guaranteed with that memory, or Burstable without a claim."""
    qos = QosClass.GUARANTEED if memory_bytes else QosClass.BURSTABLE
    return Request(
        name,
        f"pod-{name}",
        f"ns/{name}/main",
        qos,
        QosSource.CGROUP_PARENT,
        Interval(memory_bytes, memory_bytes, "limit"),
        memory_bytes or None,
        cpu_milli=milli,
        cpus=CpuWish(CpuUse.POOL, pool=pool),
    )


def owner(name: str, cpus: int) -> Request:
    """A container with CPUs of its own."""
    return replace(
        member(name, 1000 * cpus, memory_bytes=64 * MIB),
        exclusive_cpus=cpus,
        cpus=None,
        name=f"ns/{name}/own",
    )


class Node:
    """A machine under a policy on which containers come and go, one after the other."""

    def __init__(self, on: Machine, policy: PlacementPolicy) -> None:
        self.machine, self.policy, self.ledger = on, policy, Ledger()

    @property
    def basis(self) -> Basis:
        """What decisions depend on."""
        return Basis(self.machine, self.policy, self.ledger)

    def create(self, request: Request) -> Decision:
        """Decide about it; unless it is refused it is there."""
        decision = ENGINE.decide(self.basis, request)
        if decision.outcome is not Outcome.REFUSED:
            self.ledger = self.ledger.moved(decision.moves).with_entry(Entry(decision))
        return decision

    def resize(self, name: str, milli: int) -> Decision:
        """A member requests another amount of CPU."""
        old, base = self.ledger.entries[name].decision, self.ledger.without(name)
        request = replace(old.request, cpu_milli=milli)
        decision = ENGINE.decide(self.basis.with_ledger(base), request, old.placement)
        if decision.outcome is not Outcome.REFUSED:
            self.ledger = base.with_entry(Entry(decision))
        return decision

    def end(self, name: str) -> None:
        """It ends."""
        self.ledger = self.ledger.after_end_of(name)
        self.settle()

    def settle(self) -> None:
        """What the daemon does when there is room, or another policy."""
        self.ledger = with_resized_pools(self.basis, ENGINE)

    def pool(self, name: str = "db") -> CpuSet:
        """The CPUs of that pool."""
        return self.ledger.pool_cpus(name)


def node(nodes: int = 2, cpus: int = 8, **pools: CpuPool) -> Node:
    return Node(machine(nodes, cpus), PlacementPolicy(cpu_pools=pools))


def codes(decision: Decision) -> set[str]:
    return {reason.code for reason in decision.reasons}


def test_a_pool_has_what_its_members_request_from_least_to_most() -> None:
    one = node(db=CpuPool(2, 5))
    assert codes(one.create(member("a", 500))) >= {IN_POOL}
    assert len(one.pool()) == 2
    one.create(member("b", 2200))
    assert len(one.pool()) == 3
    last = one.create(member("c", 3000))
    assert len(one.pool()) == 5
    assert last.outcome is Outcome.DEGRADED
    assert POOL_FULL in codes(last)
    assert {entry.decision.placement.pool_cpus for entry in one.ledger.entries.values()} == {one.pool()}


def test_a_pool_that_shrinks_keeps_some_of_what_it_had_and_ends_with_its_last_member() -> None:
    one = node(db=CpuPool(1, 6))
    for name in "abc":
        one.create(member(name, 2000))
    most = one.pool()
    one.end("b")
    assert len(one.pool()) == 4
    assert one.pool() <= most
    one.end("a")
    one.end("c")
    assert one.ledger.exclusive_cpus == CpuSet()
    assert one.ledger.pool_ids == {}


def test_a_pool_grows_near_what_it_has_and_follows_resizes() -> None:
    one = node(2, 8, db=CpuPool(1, 6))
    one.create(member("a", 1000, memory_bytes=100 * MIB))
    first = one.pool()
    one.resize("a", 4000)
    assert first <= one.pool()
    assert len(one.pool()) == 4
    assert one.machine.nodes_of(one.pool()) == one.machine.nodes_of(first)
    one.resize("a", 1500)
    assert len(one.pool()) == 2


def test_the_memory_of_a_member_is_near_the_cpus_of_its_pool() -> None:
    one = node(4, 8, db=CpuPool(2, 6))
    one.create(owner("x", 3))
    one.create(member("a", 2000, memory_bytes=100 * MIB))
    where = one.machine.nodes_of(one.pool())
    for name in "bc":
        decision = one.create(member(name, 1000, memory_bytes=100 * MIB))
        assert decision.placement.mems == where
        assert one.machine.nodes_of(one.pool()) == where


@pytest.mark.parametrize("policy", TopologyPolicy)
def test_a_member_whose_memory_has_no_room_near_the_pool(policy: TopologyPolicy) -> None:
    one = node(2, 8, db=CpuPool(2, 6))
    one.policy = replace(one.policy, topology=policy)
    one.create(member("a", 2000, memory_bytes=100 * MIB))
    where, room = one.machine.nodes_of(one.pool()), GIB - 50 * MIB
    decision = one.create(member("b", 1000, memory_bytes=room))
    if policy in (TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE_NUMA_NODE):
        assert decision.outcome is Outcome.REFUSED
    else:
        assert decision.outcome is Outcome.DEGRADED
        assert decision.placement.mems != where
        assert decision.placement.pool_cpus == one.pool()


@pytest.mark.parametrize("policy", [TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE_NUMA_NODE])
def test_strict_policies_refuse_a_new_member_of_a_full_pool_and_let_the_pool_span_nodes(
    policy: TopologyPolicy,
) -> None:
    one = node(2, 4, db=CpuPool(5, 6))
    one.policy = replace(one.policy, topology=policy)
    assert one.create(member("a", 500, memory_bytes=MIB)).outcome is Outcome.PLACED
    assert len(one.pool()) == 5
    assert one.create(member("b", 6000)).outcome is Outcome.REFUSED
    assert one.create(member("c", 0)).outcome is Outcome.PLACED
    assert one.resize("a", 9000).outcome is not Outcome.REFUSED
    assert len(one.pool()) == 6


def test_what_a_pool_may_grow_to_stays_in_the_shared_pool() -> None:
    one = node(1, 8, db=CpuPool(1, 4))
    refused = one.create(owner("x", 5))
    assert SHARED_CPUS_MINIMUM in codes(refused)
    assert not refused.placement.exclusive_cpus
    one.end("x")
    assert len(one.create(owner("y", 3)).placement.exclusive_cpus) == 3
    one.create(member("a", 4000))
    assert len(one.pool()) == 4
    assert one.ledger.shared_cpus(one.machine) == one.basis.allocatable.reserved_cpus


def test_a_pool_of_one_member_grows_by_no_more_than_may_leave_the_shared_pool() -> None:
    pools = {"db": CpuPool(1, 6)}
    one = Node(machine(1, cpus_per_node=8), PlacementPolicy(cpu_pools=pools, shared_cpus_minimum=5))
    assert len(one.create(member("a", 1000)).placement.pool_cpus) == 1
    resized = one.resize("a", 6000)
    assert len(resized.placement.pool_cpus) == 3
    assert POOL_SHORT in codes(resized)


def test_pools_of_one_kind_of_cores_and_in_whole_cores() -> None:
    kinds = HYBRID.cpus_by_kind
    one = Node(HYBRID, PlacementPolicy(cpu_pools={"db": CpuPool(2, 4, "efficiency")}))
    one.create(member("a", 3000))
    assert len(one.pool()) == 3
    assert one.pool() <= kinds["efficiency"]
    strong = PlacementPolicy(
        cpu_pools={"db": CpuPool(1, 3, "performance")}, cpu_alignment=CpuAlignment(full_pcpus_only=True)
    )
    both = Node(HYBRID, strong)
    both.create(member("a", 3000))
    both.create(member("b", 100))
    assert str(both.pool()) == "2-5"
    whole = node(1, 16, db=CpuPool(1, 6))
    whole.machine = _threads()
    whole.policy = replace(whole.policy, cpu_alignment=CpuAlignment(full_pcpus_only=True))
    whole.create(member("a", 1000))
    assert len(whole.pool()) == 2
    assert len({whole.machine.cpu_by_id[cpu].core_id for cpu in whole.pool()}) == 1


def test_a_pool_that_had_no_room_gets_its_cpus_when_others_leave() -> None:
    one = node(1, 4, db=CpuPool(2, 3))
    one.policy = replace(one.policy, cpu_pools={})
    one.create(owner("x", 3))
    one.policy = replace(one.policy, cpu_pools={"db": CpuPool(2, 3)})
    alone = one.create(member("a", 1000))
    assert POOL_SHORT in codes(alone)
    assert one.ledger.entries["a"].decision.shares_cpus
    one.end("x")
    assert len(one.pool()) == 2
    assert not one.ledger.entries["a"].decision.shares_cpus


def test_other_sizes_in_the_configuration_count_at_once_and_a_removed_pool_stays() -> None:
    one = node(2, 8, db=CpuPool(1, 6))
    one.create(member("a", 4000))
    one.policy = replace(one.policy, cpu_pools={"db": CpuPool(1, 2)})
    one.settle()
    assert len(one.pool()) == 2
    one.policy = replace(one.policy, cpu_pools={})
    one.settle()
    assert len(one.pool()) == 2
    assert one.resize("a", 1000).placement.pool_cpus == one.pool()


def test_a_pool_loses_what_goes_offline_and_gets_others() -> None:
    one = node(2, 8, db=CpuPool(1, 6))
    one.create(member("a", 3000))
    gone = max(one.pool())
    cpus = tuple(replace(cpu, online=cpu.id != gone) for cpu in one.machine.cpus)
    one.machine = Machine(one.machine.nodes, cpus)
    one.settle()
    assert len(one.pool()) == 3
    assert gone not in one.pool()


@given(st.integers(0, 2**32))
def test_random_lives_of_members_and_owners(seed: int) -> None:
    """Whatever comes and goes: no CPU has two owners, a pool that shrinks gets no new CPU and one that grows
    keeps all, it has what it is to have, and there is always room for what it may grow to."""
    draw = random.Random(seed)
    layout = draw.choice([machine(2, 8), machine(4, 4), machine(1, 16), _threads(), HYBRID])
    pools = {"db": CpuPool(draw.randint(1, 2), draw.randint(2, 4)), "web": CpuPool(1, draw.randint(1, 2))}
    alignment = CpuAlignment(full_pcpus_only=draw.random() < 0.3)
    policy = PlacementPolicy(
        topology=draw.choice(list(TopologyPolicy)), cpu_pools=pools, cpu_alignment=alignment
    )
    one = Node(layout, policy)
    for number in range(40):
        before = {name: one.pool(name) for name in pools}
        present = sorted(one.ledger.entries)
        action = draw.choice(["member", "member", "owner", "end", "end", "resize"])
        if action == "member":
            memory = draw.choice([0, 0, 64 * MIB])
            one.create(member(f"c{number}", draw.choice([0, 300, 1000, 1700]), draw.choice([*pools]), memory))
        elif action == "owner":
            one.create(owner(f"c{number}", draw.randint(1, 4)))
        elif present and action == "end":
            one.end(draw.choice(present))
        elif present and one.ledger.entries[name := draw.choice(present)].decision.request.pool:
            one.resize(name, draw.choice([0, 900, 2500]))
            one.settle()
        assert contradictions(one.ledger) == ()
        shared = one.ledger.shared_cpus(layout)
        growth = 0
        for name, pool in pools.items():
            requests = [entry.decision.request.cpu_milli for entry in one.ledger.members(name)]
            cpus = one.pool(name)
            assert cpus.isdisjoint(one.basis.allocatable.reserved_cpus)
            assert cpus <= before[name] or before[name] <= cpus
            growth += max(0, pool.maximum - len(cpus))
            wanted = min(max(pool.minimum, math.ceil(sum(requests) / 1000)), pool.maximum) if requests else 0
            if not alignment.full_pcpus_only:
                assert len(cpus) == wanted
        if not alignment.full_pcpus_only:
            assert len(shared - one.basis.allocatable.reserved_cpus) >= growth


def test_cores_of_the_kind_that_a_pool_may_grow_to_are_kept_for_it() -> None:
    one = Node(HYBRID, PlacementPolicy(cpu_pools={"db": CpuPool(1, 4, "efficiency")}))
    for number in range(4):
        one.create(replace(owner(f"x{number}", 2), cpu_kind="efficiency"))
    assert len(one.ledger.exclusive_cpus) == 4
    one.create(member("a", 4000))
    assert len(one.pool()) == 4
    assert one.pool() <= HYBRID.cpus_by_kind["efficiency"]


def _threads() -> Machine:
    return Layout(sockets=2, cores=4).machine()

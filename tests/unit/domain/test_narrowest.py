"""The `narrowest` engine: placements, strict and default policies, and what must never happen."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from bayplan.domain.decision import Decision, Outcome, QosClass
from bayplan.domain.engine import Engine, allocatable_bytes, reserved_cpus
from bayplan.domain.ledger import Entry, Ledger
from bayplan.domain.narrowest import NarrowestEngine
from bayplan.domain.policy import Policy, TopologyPolicy
from bayplan.domain.request import derive_request
from bayplan.domain.topology import Machine
from bayplan.domain.workload import Resources
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from bayplan.testing.machines import container, machine, pod

ENGINE: Engine = NarrowestEngine()
GUARANTEED = pod("g", QosClass.GUARANTEED)
RESTRICTED = Policy(topology=TopologyPolicy.RESTRICTED)
SINGLE = Policy(topology=TopologyPolicy.SINGLE_NUMA_NODE)


class Node:
    """A machine under a policy with what was placed on it so far."""

    def __init__(self, hardware: Machine, policy: Policy = Policy()) -> None:
        self.machine, self.policy, self.ledger = hardware, policy, Ledger()

    def place(self, container_id: str, memory_bytes: int, milli_cpus: int = 500, **spec: object) -> Decision:
        one = container(container_id, GUARANTEED, memory_bytes=memory_bytes, milli_cpus=milli_cpus)
        one = replace(one, resources=replace(one.resources, **spec))  # type: ignore[arg-type]
        request = derive_request(GUARANTEED, one, self.machine.memory_bytes)
        decision = ENGINE.decide(self.machine, self.policy, self.ledger, request)
        if decision.outcome is not Outcome.REFUSED:
            self.ledger = self.ledger.with_entry(Entry(decision))
        return decision

    def mems(self, container_id: str, memory_bytes: int, milli_cpus: int = 500) -> str:
        return str(self.place(container_id, memory_bytes, milli_cpus).placement.mems)


def codes(decision: Decision) -> list[str]:
    return [reason.code for reason in decision.reasons]


def test_one_container_per_node_until_full_then_a_refusal_that_says_why() -> None:
    node = Node(machine(4, memory_bytes=GIB), RESTRICTED)
    assert [node.mems(f"c{i}", 600 * MIB) for i in range(4)] == ["0", "1", "2", "3"]
    refused = node.place("c4", 600 * MIB)
    assert refused.outcome is Outcome.REFUSED
    assert refused.explanation() == (
        "asks for 600Mi on one node under restricted; "
        "free are node 0 424Mi, node 1 424Mi, node 2 424Mi, node 3 424Mi"
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
    assert "node 0 0, node 1 248Mi" in overcommitted.explanation()


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


def test_cpu_less_nodes_come_last_and_never_under_a_strict_policy() -> None:
    hardware = machine(1, cpu_less={5: 4 * GIB})
    degraded = Node(hardware).place("c", 2 * GIB)
    assert (degraded.outcome, str(degraded.placement.mems)) == (Outcome.DEGRADED, "5")
    assert codes(degraded) == ["cpu-less-nodes"]
    assert Node(hardware, RESTRICTED).place("c", 2 * GIB).outcome is Outcome.REFUSED


def test_huge_pages_are_placed_with_the_memory() -> None:
    hardware = machine(2, memory_bytes=GIB, hugepages_bytes={2 * MIB: 64 * MIB})
    node = Node(hardware, RESTRICTED)
    pages = {"hugepage_limits_bytes": {2 * MIB: 64 * MIB}}
    first, second = node.place("a", 100 * MIB, **pages), node.place("b", 100 * MIB, **pages)
    assert (str(first.placement.mems), str(second.placement.mems)) == ("0", "1")
    assert second.placement.booked_bytes == {1: {"memory": 100 * MIB, "hugepages-2Mi": 64 * MIB}}
    refused = node.place("c", 100 * MIB, **pages)
    assert "64Mi of hugepages-2Mi" in refused.explanation()


def test_cpus_and_memory_come_from_the_same_node() -> None:
    node = Node(machine(2, cpus_per_node=4), RESTRICTED)
    first = node.place("a", 100 * MIB, 3000)
    assert (str(first.placement.mems), str(first.placement.exclusive_cpus)) == ("0", "1-3")
    second = node.place("b", 100 * MIB, 2000)
    assert (str(second.placement.mems), str(second.placement.exclusive_cpus)) == ("1", "4-5")
    assert str(node.ledger.shared_cpus(node.machine)) == "0,6-7"


def test_policy_none_places_memory_and_cpus_each_for_itself() -> None:
    node = Node(machine(2, cpus_per_node=4), Policy(topology=TopologyPolicy.NONE))
    node.place("a", 100 * MIB, 3000)
    second = node.place("b", 100 * MIB, 2000)
    assert (str(second.placement.mems), str(second.placement.exclusive_cpus)) == ("0", "4-5")


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
    policy = Policy(reserved_cpus=CpuSet([3]))
    assert str(Node(machine(1), policy).place("c", MIB, 3000).placement.exclusive_cpus) == "0-2"
    assert reserved_cpus(machine(1), Policy()) == CpuSet([0])


def test_sets_of_nodes_that_overlap_are_avoided_and_marked() -> None:
    node = Node(machine(4))
    assert node.mems("wide", GIB + 600 * MIB) == "0-1"
    assert node.mems("small", 100 * MIB) == "2"
    assert node.mems("b", GIB) == "3"
    marked = node.place("c", 300 * MIB)
    assert str(marked.placement.mems) == "2"
    late = node.place("d", 700 * MIB)
    assert codes(late) == ["narrowest", "overlap"]


def test_what_somebody_else_pinned_is_left_alone_but_counted() -> None:
    node = Node(machine(2))
    decision = node.place("c", 300 * MIB, 2000, cpuset_cpus=CpuSet([5]), cpuset_mems=NodeSet([1]))
    assert codes(decision) == ["pinned"]
    assert decision.placement.mems is None
    assert decision.placement.booked_bytes == {1: {"memory": 300 * MIB}}
    assert 5 not in node.place("d", MIB, 3000).placement.exclusive_cpus


def test_other_classes_are_not_confined() -> None:
    burstable = pod("b", QosClass.BURSTABLE)
    request = derive_request(burstable, container("c", burstable, memory_bytes=GIB), 4 * GIB)
    decision = ENGINE.decide(machine(4), RESTRICTED, Ledger(), request)
    assert (decision.outcome, decision.placement.mems) == (Outcome.PLACED, None)


def test_nothing_asked_is_placed_anywhere() -> None:
    request = derive_request(GUARANTEED, container("c", GUARANTEED, resources=Resources()), 4 * GIB)
    assert codes(ENGINE.decide(machine(4), RESTRICTED, Ledger(), request)) == ["nothing-asked"]


def test_a_changed_container_stays_where_it_is_if_it_can() -> None:
    node = Node(machine(2))
    node.place("a", 500 * MIB, 2000)
    before = node.place("b", 100 * MIB, 2000)
    request = replace(
        before.request, memory=replace(before.request.memory, low_bytes=200 * MIB, high_bytes=200 * MIB)
    )
    base = node.ledger.without("b")
    after = ENGINE.decide(node.machine, node.policy, base, request, before.placement)
    assert after.placement.mems == before.placement.mems
    assert after.placement.exclusive_cpus == before.placement.exclusive_cpus


steps = st.lists(
    st.tuples(st.integers(0, 11), st.integers(0, 5), st.sampled_from([0, 500, 1000, 2000, 3000])), max_size=40
)
policies = st.sampled_from(list(TopologyPolicy))


@settings(max_examples=150, deadline=None)
@given(steps, policies)
def test_nothing_is_promised_twice(operations: list[tuple[int, int, int]], policy: TopologyPolicy) -> None:
    node = Node(machine(3, cpus_per_node=4, threads_per_core=2), Policy(topology=policy))
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
    for place, capacity in allocatable_bytes(node.machine, node.policy).items():
        for resource, amount in capacity.items():
            promised = sum(one.booked_bytes.get(place, {}).get(resource, 0) for one in placements)
            assert promised <= amount
            assert promised == node.ledger.booked_bytes.get(place, {}).get(resource, 0)
    exclusive = [cpu for one in placements for cpu in one.exclusive_cpus]
    assert len(exclusive) == len(set(exclusive))
    assert CpuSet(exclusive) == node.ledger.exclusive_cpus
    assert node.ledger.shared_cpus(node.machine)
    for entry in node.ledger.entries.values():
        if entry.decision.outcome is Outcome.PLACED:
            claim = sum(sum(row.values()) for row in entry.decision.placement.booked_bytes.values())
            assert claim == entry.decision.request.memory.high_bytes

"""The exact engine with slow, fast and devices' memory: only for those who ask for it or have it."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.basis import Basis
from bayplan.model.decision import (
    Decision,
    DeviceHint,
    Interval,
    NodeWish,
    Outcome,
    QosClass,
    QosSource,
    Request,
    TierWish,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine, Node
from bayplan.model.memory_kinds import device_nodes, usable_nodes
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.decisions import codes
from support.machines import machine

GPU = "0009:01:00.0"
HAS_GPU = DeviceHint("/dev/nvidia0", NodeSet([0]), names=("/dev/nvidia0", GPU))
PLAIN = machine(2, cpus_per_node=4)
MACHINE = Machine(
    (
        *(replace(node, tier=1) for node in PLAIN.nodes),
        Node(2, CpuSet(), GIB, tier=2),
        Node(3, CpuSet(), GIB, tier=0),
        Node(9, CpuSet(), 8 * GIB, tier=1, owner=GPU),
    ),
    PLAIN.cpus,
)


def asking(qos: QosClass, memory_bytes: int = 100 * MIB, **more: object) -> Request:
    plain = Request(
        "c", "p", "ns/p/c", qos, QosSource.INFERRED, Interval(memory_bytes, memory_bytes, "limit")
    )
    return replace(plain, memory_limit_bytes=memory_bytes, **more)


def decide(
    request: Request, policy: PlacementPolicy = PlacementPolicy(), ledger: Ledger = Ledger()
) -> Decision:
    return ExactEngine().decide(Basis(MACHINE, policy, ledger), request)


def test_nobody_gets_other_memory_unasked() -> None:
    for qos in QosClass:
        mems = decide(asking(qos)).placement.mems
        assert mems is not None
        assert mems <= NodeSet([0, 1])


def test_whose_cpus_somebody_else_pinned_is_kept_off_it_too() -> None:
    decision = decide(asking(QosClass.BURSTABLE, pinned_cpus=CpuSet([1])))
    assert decision.placement.mems == NodeSet([0, 1])
    untouched = decide(asking(QosClass.BURSTABLE, pinned_mems=NodeSet([0, 9])))
    assert untouched.placement.mems is None


def test_a_full_machine_does_not_overflow_into_it() -> None:
    strict = PlacementPolicy(topology=TopologyPolicy.RESTRICTED)
    assert decide(asking(QosClass.GUARANTEED, 3 * GIB), strict).outcome is Outcome.REFUSED
    degraded = decide(asking(QosClass.GUARANTEED, 3 * GIB))
    assert (degraded.outcome, degraded.placement.mems) == (Outcome.DEGRADED, NodeSet([0, 1]))


def test_who_asks_for_a_tier_gets_it() -> None:
    slow = decide(asking(QosClass.GUARANTEED, tier=TierWish(2, required=True)))
    assert (slow.outcome, slow.placement.mems) == (Outcome.PLACED, NodeSet([2]))
    assert slow.placement.booked_bytes == {2: {"memory": 100 * MIB}}
    too_much = decide(asking(QosClass.GUARANTEED, 2 * GIB, tier=TierWish(2, required=True)))
    assert too_much.outcome is Outcome.REFUSED
    rather = decide(asking(QosClass.GUARANTEED, 2 * GIB - MIB, tier=TierWish(2)))
    assert rather.placement.mems == NodeSet([0, 1])


def test_who_has_the_device_may_use_its_memory_and_is_promised_none() -> None:
    decision = decide(asking(QosClass.GUARANTEED, hints=(HAS_GPU,)))
    assert decision.placement.mems == NodeSet([0, 9])
    assert set(decision.placement.booked_bytes) == {0}
    wished = NodeWish(NodeSet([9]), required=True)
    named = decide(asking(QosClass.GUARANTEED, 4 * GIB, hints=(HAS_GPU,), nodes=wished))
    assert named.placement.booked_bytes == {9: {"memory": 4 * GIB}}
    refused = decide(asking(QosClass.GUARANTEED, nodes=wished))
    assert codes(refused) == ["no-such-nodes"]
    assert GPU in refused.explanation()
    partly = decide(asking(QosClass.GUARANTEED, nodes=NodeWish(NodeSet([1, 9]))))
    assert partly.placement.mems == NodeSet([1])
    assert partly.reasons[-1].text == (
        "prefers nodes 1,9 (but not node 9, the memory of a device that it does not have)"
    )


some_nodes = st.sets(st.sampled_from([0, 1, 2, 3, 9]), min_size=1).map(NodeSet)
requests = st.builds(
    asking,
    st.sampled_from(QosClass),
    st.integers(1, 3 * GIB),
    exclusive_cpus=st.integers(0, 2),
    tier=st.none() | st.builds(TierWish, st.integers(0, 2), st.booleans()),
    nodes=st.none() | st.builds(NodeWish, some_nodes, st.booleans()),
    hints=st.sampled_from([(), (HAS_GPU,), (DeviceHint(GPU, NodeSet([1])),)]),
)


@given(st.lists(requests, max_size=6), st.sampled_from(TopologyPolicy))
def test_whatever_is_asked_the_rules_hold(asked: list[Request], topology: TopologyPolicy) -> None:
    ledger, policy = Ledger(), PlacementPolicy(topology=topology)
    engine = ExactEngine()
    for number, one in enumerate(asked):
        request = replace(one, container_id=f"c{number}")
        decision = engine.decide(Basis(MACHINE, policy, ledger), request)
        if decision.outcome is Outcome.REFUSED:
            continue
        allowed = usable_nodes(MACHINE, request) | MACHINE.ordinary_nodes
        placement = decision.placement
        assert placement.mems is not None
        assert placement.mems <= allowed | device_nodes(MACHINE, request)
        assert placement.claim is not None
        assert placement.claim.nodes <= allowed
        assert all(move.after <= MACHINE.ordinary_nodes | move.before for move in decision.moves)
        ledger = ledger.moved(decision.moves).with_entry(Entry(decision))

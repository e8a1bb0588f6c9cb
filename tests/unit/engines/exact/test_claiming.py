"""What a request claims, who is confined, and who may be moved."""

import pytest
from msgspec.structs import replace

from bayplan.engines.exact.claiming import (
    claimed_amounts,
    fewest_near,
    is_bounded,
    is_flexible,
    wished_nodes,
)
from bayplan.model.decision import (
    Interval,
    MemoryPolicyMode,
    MemoryPolicyWish,
    NodeWish,
    QosClass,
    QosSource,
    Request,
    TierWish,
)
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.model.request import NO_SIGNAL
from bayplan.quantity import GIB, MIB
from bayplan.sets import NodeSet
from support.machines import machine

PAGES = "hugepages-2Mi"
SOME = Request(
    "c",
    "p",
    "ns/p/c",
    QosClass.GUARANTEED,
    QosSource.CGROUP_PARENT,
    Interval(GIB, GIB, "limit"),
    GIB,
    hugepages_bytes={PAGES: 4 * MIB},
)
BURSTABLE = replace(SOME, qos=QosClass.BURSTABLE, memory=Interval(GIB, 2 * GIB, "oom_score_adj"))


@pytest.mark.parametrize(
    ("request_", "memory_bytes"),
    [
        (SOME, GIB),
        (BURSTABLE, 2 * GIB),
        (replace(BURSTABLE, memory=Interval(0, 64 * GIB, NO_SIGNAL)), None),
        (replace(BURSTABLE, memory=Interval(3 * MIB, 64 * GIB, NO_SIGNAL)), 3 * MIB),
        (replace(SOME, qos=QosClass.BEST_EFFORT, memory=Interval(0, 0, "QoS class")), None),
    ],
)
def test_claims(request_: Request, memory_bytes: int | None) -> None:
    amounts = claimed_amounts(request_)
    assert amounts.pop(PAGES) == 4 * MIB
    assert amounts == ({} if memory_bytes is None else {"memory": memory_bytes})


def test_only_a_container_that_cannot_use_more_than_it_claims_is_bounded() -> None:
    assert is_bounded(SOME)
    assert not is_bounded(BURSTABLE)
    assert not is_bounded(replace(SOME, memory_limit_bytes=None))
    assert not is_bounded(replace(SOME, memory_limit_bytes=2 * GIB))
    assert not is_bounded(replace(SOME, memory=Interval(0, GIB, NO_SIGNAL)))


@pytest.mark.parametrize(
    "firm",
    [
        replace(SOME, opted_out=True),
        replace(SOME, pinned_mems=NodeSet([0])),
        replace(SOME, nodes=NodeWish(NodeSet([0]), required=True)),
        replace(SOME, tier=TierWish(0, required=True)),
        replace(SOME, memory_policy=MemoryPolicyWish(MemoryPolicyMode.INTERLEAVE)),
    ],
)
def test_who_asked_to_stay_is_not_flexible(firm: Request) -> None:
    assert is_flexible(PlacementPolicy(), SOME)
    assert not is_flexible(PlacementPolicy(), firm)


def test_a_strict_policy_makes_what_it_confines_firm() -> None:
    restricted = PlacementPolicy(topology=TopologyPolicy.RESTRICTED)
    assert not is_flexible(restricted, SOME)
    assert is_flexible(restricted, BURSTABLE)


def test_two_wishes_leave_what_both_allow() -> None:
    hardware = machine(3)
    assert wished_nodes(hardware, SOME) is None
    both = replace(SOME, nodes=NodeWish(NodeSet([0, 7]), required=True), tier=TierWish(0))
    ground = wished_nodes(hardware, both)
    assert ground is not None
    # The kernel shows no tiers here.
    assert (ground.nodes, ground.exactly, ground.required) == (NodeSet(), True, True)
    assert ground.why == "requires tier 0 and nodes 0,7"
    preferred = wished_nodes(hardware, replace(SOME, nodes=NodeWish(NodeSet([1, 2]))))
    assert preferred is not None
    assert (preferred.nodes, preferred.required) == (NodeSet([1, 2]), False)


@pytest.mark.parametrize("nodes", [4, 13, 16, 64])
def test_the_fewest_nodes_near_devices_are_those_that_have_them(nodes: int) -> None:
    last = [1 << node for node in range(nodes - 4, nodes)]
    assert fewest_near((1 << nodes) - 1, last) == 4
    assert fewest_near((1 << (nodes - 1)) - 1, last) == nodes
    together = [1 | near for near in last]
    assert fewest_near((1 << nodes) - 1, together) == 1

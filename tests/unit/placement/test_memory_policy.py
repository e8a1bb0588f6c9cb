"""Which memory policy a container starts with, and what becomes of one that cannot be set."""

import pytest
from msgspec.structs import replace

from bayplan.model.decision import (
    Decision,
    Interval,
    MemoryPolicyMode,
    MemoryPolicySetting,
    MemoryPolicyWish,
    Outcome,
    Placement,
    QosClass,
    QosSource,
    Request,
)
from bayplan.placement.memory_policy import MemoryPolicyAbility, with_memory_policy
from bayplan.sets import NodeSet
from support.machines import machine

MACHINE = machine(4)
ABLE = MemoryPolicyAbility()
ON_0_AND_1 = Placement(NodeSet([0, 1]), booked_bytes={0: {"memory": 1}, 1: {"memory": 2}})


def decision(wish: MemoryPolicyWish | None, placement: Placement = ON_0_AND_1) -> Decision:
    request = Request(
        "c", "p", "default/p/c", QosClass.GUARANTEED, QosSource.INFERRED, Interval(3, 3, "limit"),
        memory_policy=wish,
    )  # fmt: skip
    return Decision(request, Outcome.PLACED, placement)


@pytest.mark.parametrize(
    ("wish", "setting"),
    [
        (
            MemoryPolicyWish(MemoryPolicyMode.INTERLEAVE),
            MemoryPolicySetting(MemoryPolicyMode.INTERLEAVE, NodeSet([0, 1])),
        ),
        (
            MemoryPolicyWish(MemoryPolicyMode.INTERLEAVE, NodeSet([1, 2])),
            MemoryPolicySetting(MemoryPolicyMode.INTERLEAVE, NodeSet([1])),
        ),
        (
            MemoryPolicyWish(MemoryPolicyMode.PREFERRED),
            MemoryPolicySetting(MemoryPolicyMode.PREFERRED, NodeSet([1])),
        ),
        (
            MemoryPolicyWish(MemoryPolicyMode.BIND, NodeSet([0, 3]), ("relative_nodes",)),
            MemoryPolicySetting(MemoryPolicyMode.BIND, NodeSet([0, 3]), ("relative_nodes",)),
        ),
        (MemoryPolicyWish(MemoryPolicyMode.LOCAL), MemoryPolicySetting(MemoryPolicyMode.LOCAL)),
    ],
)
def test_a_policy_is_cut_to_the_placement(wish: MemoryPolicyWish, setting: MemoryPolicySetting) -> None:
    found = with_memory_policy(MACHINE, ABLE, decision(wish))
    assert found.placement.memory_policy == setting
    assert found.outcome is Outcome.PLACED
    assert found.reasons[-1].code == "memory-policy"


@pytest.mark.parametrize(
    ("ability", "wish", "code", "text"),
    [
        (
            MemoryPolicyAbility(runtime=False),
            MemoryPolicyWish(MemoryPolicyMode.LOCAL),
            "unsupported",
            "NRI 0.12",
        ),
        (
            MemoryPolicyAbility(weighted=False),
            MemoryPolicyWish(MemoryPolicyMode.WEIGHTED_INTERLEAVE),
            "unsupported",
            "from 6.9 on",
        ),
        (ABLE, MemoryPolicyWish(MemoryPolicyMode.BIND, NodeSet([3])), "elsewhere", "none of nodes 3"),
    ],
)
def test_what_cannot_be_set_degrades_with_a_reason(
    ability: MemoryPolicyAbility, wish: MemoryPolicyWish, code: str, text: str
) -> None:
    found = with_memory_policy(MACHINE, ability, decision(wish))
    assert found.placement.memory_policy is None
    assert found.outcome is Outcome.DEGRADED
    assert found.reasons[-1].code == f"memory-policy-{code}"
    assert text in found.reasons[-1].text


def test_what_the_engine_chose_is_set_where_it_can_be() -> None:
    chosen = replace(ON_0_AND_1, memory_policy=MemoryPolicySetting(MemoryPolicyMode.PREFERRED, NodeSet([0])))
    assert with_memory_policy(MACHINE, ABLE, decision(None, chosen)).placement == chosen
    dropped = with_memory_policy(MACHINE, MemoryPolicyAbility(runtime=False), decision(None, chosen))
    assert dropped == decision(None)


def test_refusals_and_those_who_opted_out_get_none() -> None:
    wish = MemoryPolicyWish(MemoryPolicyMode.INTERLEAVE)
    refused = replace(decision(wish), outcome=Outcome.REFUSED)
    assert with_memory_policy(MACHINE, ABLE, refused) == refused
    out = decision(wish)
    out = replace(out, request=replace(out.request, opted_out=True))
    assert with_memory_policy(MACHINE, ABLE, out) == out


def test_without_nodes_of_its_own_a_container_interleaves_over_the_ordinary_ones() -> None:
    found = with_memory_policy(
        machine(2, cpu_less={5: 1}),
        ABLE,
        decision(MemoryPolicyWish(MemoryPolicyMode.INTERLEAVE), Placement()),
    )
    assert found.placement.memory_policy == MemoryPolicySetting(MemoryPolicyMode.INTERLEAVE, NodeSet([0, 1]))

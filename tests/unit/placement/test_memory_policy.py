"""Which memory policy a container starts with, and what becomes of one that cannot be set."""

import pytest
from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.interface import Engine
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.model.basis import Basis
from bayplan.model.decision import (
    Decision,
    Interval,
    MemoryPolicyMode,
    MemoryPolicySetting,
    MemoryPolicyWish,
    NodeWish,
    Outcome,
    Placement,
    QosClass,
    QosSource,
    Request,
)
from bayplan.model.ledger import Ledger
from bayplan.model.policy import PlacementPolicy
from bayplan.placement.memory_policy import (
    GIVEN_POLICY,
    MemoryPolicyAbility,
    decide_by_given_policy,
    with_memory_policy,
)
from bayplan.quantity import GIB, MIB
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
        (ABLE, MemoryPolicyWish(MemoryPolicyMode.BIND, NodeSet([3])), "elsewhere", "not on node 3"),
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


def given(
    policy: MemoryPolicySetting,
    *,
    nodes: NodeWish | None = None,
    wish: MemoryPolicyWish | None = None,
    pinned: NodeSet | None = None,
    memory_bytes: int = MIB,
    engine: Engine | None = None,
) -> Decision:
    """What becomes of a container whose spec has a memory policy, on an empty machine."""
    request = Request(
        "c", "p", "default/p/c", QosClass.GUARANTEED, QosSource.INFERRED,
        Interval(memory_bytes, memory_bytes, "limit"), memory_bytes, exclusive_cpus=1, cpu_milli=1000,
        nodes=nodes, memory_policy=wish, pinned_mems=pinned, given_policy=policy,
    )  # fmt: skip
    found = decide_by_given_policy(
        Basis(MACHINE, PlacementPolicy(), Ledger()), engine or ExactEngine(), request
    )
    assert found.request.nodes == nodes
    return with_memory_policy(MACHINE, ABLE, found)


def on(mode: MemoryPolicyMode, nodes: str, *flags: str) -> MemoryPolicySetting:
    return MemoryPolicySetting(mode, NodeSet.parse(nodes), flags)


def test_who_is_bound_by_its_spec_is_placed_there_with_its_cpus() -> None:
    found = given(on(MemoryPolicyMode.BIND, "2"))
    assert (str(found.placement.mems), found.outcome) == ("2", Outcome.PLACED)
    assert found.placement.exclusive_cpus <= MACHINE.cpus_of(NodeSet([2]))
    assert [one.code for one in found.reasons] == ["best-set", GIVEN_POLICY]


@pytest.mark.parametrize("engine", [ExactEngine(), KubeletEngine()])
def test_who_finds_no_place_where_it_is_bound_is_counted_there(engine: Engine) -> None:
    found = given(on(MemoryPolicyMode.BIND, "2"), memory_bytes=2 * GIB, engine=engine)
    assert found.placement.mems is None
    assert found.request.pinned_mems == NodeSet([2])
    assert sum(found.placement.booked_bytes.get(0, {}).values()) == 0


def test_other_policies_keep_their_nodes_among_those_of_the_container() -> None:
    wide = given(on(MemoryPolicyMode.INTERLEAVE, "0-3"))
    assert str(wide.placement.mems) == "0-3"
    added = given(on(MemoryPolicyMode.PREFERRED, "3"), nodes=NodeWish(NodeSet([0])))
    assert (str(added.placement.mems), added.outcome) == ("0,3", Outcome.DEGRADED)
    kept = given(on(MemoryPolicyMode.INTERLEAVE, "0-1"), nodes=NodeWish(NodeSet([1]), required=True))
    assert (str(kept.placement.mems), kept.outcome) == ("1", Outcome.DEGRADED)


@pytest.mark.parametrize("mode", [MemoryPolicyMode.BIND, MemoryPolicyMode.PREFERRED_MANY])
def test_nodes_that_are_required_elsewhere_are_a_refusal_that_names_both(mode: MemoryPolicyMode) -> None:
    found = given(on(mode, "2"), nodes=NodeWish(NodeSet([0]), required=True))
    assert found.outcome is Outcome.REFUSED
    assert "node 0" in found.explanation()
    assert f"{mode.value}:2" in found.explanation()


def test_a_cpuset_of_the_spec_and_its_policy_hold_together() -> None:
    both = given(on(MemoryPolicyMode.BIND, "2"), pinned=NodeSet([1, 2]))
    assert both.placement.claim is not None
    assert (str(both.placement.claim.nodes), both.request.pinned_mems) == ("2", NodeSet([1, 2]))
    apart = given(on(MemoryPolicyMode.BIND, "2"), pinned=NodeSet([1]))
    assert apart.outcome is Outcome.DEGRADED
    assert apart.reasons[-1].code == GIVEN_POLICY


def test_a_policy_that_is_wished_gives_way_to_that_of_the_spec() -> None:
    wish = MemoryPolicyWish(MemoryPolicyMode.INTERLEAVE)
    found = given(on(MemoryPolicyMode.LOCAL, ""), wish=wish)
    assert (found.placement.memory_policy, found.outcome) == (None, Outcome.DEGRADED)


def test_relative_nodes_are_counted_among_those_with_memory() -> None:
    found = given(on(MemoryPolicyMode.BIND, "5", "relative_nodes"))
    assert str(found.placement.mems) == "1"
    required = NodeWish(NodeSet([3]), required=True)
    assert str(given(on(MemoryPolicyMode.BIND, "0", "relative_nodes"), nodes=required).placement.mems) == "3"

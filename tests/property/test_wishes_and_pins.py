"""What a pod wishes beside what somebody else has pinned: both are kept, or the decision says what is not.

Judged by counting nodes, without the engine's own rules: a container that was placed without a complaint runs
where it wishes; one that must run there never runs elsewhere; and no pin is ever changed.
"""

import random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.interface import Engine
from bayplan.engines.kubelet.engine import KubeletEngine
from bayplan.model.basis import Basis
from bayplan.model.decision import (
    Decision,
    EvenHugepagesWish,
    MemoryPolicyMode,
    MemoryPolicyWish,
    NodeWish,
    Outcome,
    Placement,
    QosClass,
    Request,
    TierWish,
)
from bayplan.model.ledger import Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy, TopologyPolicy
from bayplan.placement.memory_policy import MemoryPolicyAbility, with_memory_policy
from bayplan.quantity import MIB
from bayplan.sets import NodeSet
from support.exact_draws import PAGES, draw_machine, draw_request

REQUESTS = 12


@given(st.randoms(use_true_random=False), st.sampled_from([ExactEngine, KubeletEngine]))
def test_every_wish_is_kept_beside_every_pin_or_the_decision_says_so(
    draw: random.Random, engine: type[ExactEngine | KubeletEngine]
) -> None:
    machine = draw_machine(draw, draw.randint(2, 4))
    policy = PlacementPolicy(topology=draw.choice(list(TopologyPolicy)))
    for number in range(REQUESTS):
        request = wishing(draw, machine, draw_request(draw, machine, f"c{number}"))
        request = pinned(draw, machine, request)
        current = draw.choice([None, running(draw, machine, policy, engine(), request)])
        decision = engine().decide(Basis(machine, policy, Ledger()), request, current)
        decision = with_memory_policy(machine, MemoryPolicyAbility(), decision)
        check(machine, request, decision, current, knows_wishes=engine is ExactEngine)


def wishing(draw: random.Random, machine: Machine, request: Request) -> Request:
    """*request* with more wishes than are usual."""
    ids = list(machine.memory_nodes)
    some = NodeSet(draw.sample(ids, draw.randint(1, len(ids))))
    kind = draw.choice(["nodes", "tier", "both", "pages", "policy", "as drawn"])
    required = draw.choice([True, False])
    if kind in ("nodes", "both"):
        request = replace(request, nodes=NodeWish(some, required=required))
    if kind in ("tier", "both"):
        request = replace(request, tier=TierWish(draw.randint(0, 1), required=draw.choice([True, False])))
    if kind == "pages":
        count = draw.randint(1, len(ids))
        pages = {PAGES: count * 2 * MIB}
        request = replace(request, hugepages_bytes=pages, even_hugepages=EvenHugepagesWish(count))
    if kind == "policy":
        wish = MemoryPolicyWish(MemoryPolicyMode.BIND, draw.choice([None, some]))
        request = replace(request, memory_policy=wish)
    return replace(request, opted_out=not draw.randrange(8))


def pinned(draw: random.Random, machine: Machine, request: Request) -> Request:
    """*request* with cpusets of somebody else: CPUs, nodes, both, or none."""
    node = machine.node_by_id[draw.choice(list(machine.memory_nodes))]
    kind = draw.choice(["cpus", "mems", "both", "none"])
    if kind in ("cpus", "both") and node.cpus:
        request = replace(request, pinned_cpus=node.cpus)
    if kind in ("mems", "both"):
        count = draw.randint(1, len(machine.memory_nodes))
        request = replace(request, pinned_mems=NodeSet(draw.sample(list(machine.memory_nodes), count)))
    return replace(request, pinned_by_update=draw.choice([True, False]))


def running(
    draw: random.Random, machine: Machine, policy: PlacementPolicy, engine: Engine, request: Request
) -> Placement | None:
    """Where the container ran before somebody pinned it, None where it would not."""
    before = replace(request, pinned_cpus=None, pinned_mems=None, pinned_by_update=False)
    if draw.choice([True, False]):
        before = replace(before, nodes=None, tier=None, even_hugepages=None)
    decision = engine.decide(Basis(machine, policy, Ledger()), before)
    return None if decision.outcome is Outcome.REFUSED else decision.placement


def check(
    machine: Machine, request: Request, decision: Decision, current: Placement | None, *, knows_wishes: bool
) -> None:
    placement, codes = decision.placement, {reason.code for reason in decision.reasons}
    if decision.outcome is Outcome.REFUSED:
        assert not request.opted_out
        assert decision.reasons
        return
    # No pin is changed.
    assert request.pinned_mems is None or placement.mems is None
    assert request.pinned_cpus is None or not placement.exclusive_cpus
    assert not request.opted_out or (placement.mems is None and placement.memory_policy is None)
    given = request.pinned_mems if placement.mems is None else placement.mems
    mems = machine.memory_nodes if given is None else given
    wishes = list(wished(machine, request))
    if all(mems <= nodes for nodes, _ in wishes) and is_even(request, mems):
        if knows_wishes:
            check_cpus(machine, request, decision, mems)
        return
    # Not as wished: it says so, and what is required it is only where nobody can change it any more.
    assert decision.outcome is Outcome.DEGRADED, decision
    firm = any(required and not mems <= nodes for nodes, required in wishes) or not is_even(request, mems)
    assert "wish-not-granted" in codes or not firm
    if firm and knows_wishes and not request.opted_out:
        assert current is not None


def wished(machine: Machine, request: Request) -> list[tuple[NodeSet, bool]]:
    """The nodes that satisfy each wish, and whether it is required."""
    found = []
    if request.nodes is not None:
        found.append((request.nodes.nodes, request.nodes.required))
    if request.tier is not None:
        of_tier = NodeSet(node.id for node in machine.nodes if node.tier == request.tier.tier)
        found.append((of_tier, request.tier.required))
    return found


def is_even(request: Request, mems: NodeSet) -> bool:
    return request.even_hugepages is None or len(mems) == request.even_hugepages.node_count


def check_cpus(machine: Machine, request: Request, decision: Decision, mems: NodeSet) -> None:
    """Where CPUs of somebody else are apart from nodes that were wished, that is said."""
    if request.pinned_cpus is None or request.opted_out or not request.wishes_nodes:
        return
    if request.pinned_mems is not None or request.qos is QosClass.BEST_EFFORT:
        return
    cpus = machine.cpus_of(mems)
    without_memory = machine.cpu_nodes - machine.memory_nodes
    if cpus and not without_memory and cpus.isdisjoint(request.pinned_cpus):
        assert any(reason.code == "apart" for reason in decision.reasons), decision

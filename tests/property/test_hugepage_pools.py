"""Pools that grow and shrink, compared with brute force: every subset of the nodes, every way to grow."""

import re
from collections.abc import Iterator
from itertools import product

from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.interface import Engine
from bayplan.model.basis import Basis
from bayplan.model.decision import Claim, Decision, Interval, Outcome, Placement, QosClass, QosSource, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import PlacementPolicy, PoolBounds, TopologyPolicy
from bayplan.placement.hugepage_pools import (
    POOL_LIMIT,
    Pools,
    decide_with_pools,
    grown,
    idle_pools,
    lacks_pages,
    with_pools,
)
from bayplan.quantity import MIB
from bayplan.sets import NodeSet
from support.machines import machine
from support.subsets import Claims, room, slack_by_subset

SIZE = 2 * MIB
PAGES = "hugepages-2Mi"
MOST = 6
"""Pages of a node, pools and memory together."""

sizes = st.integers(0, MOST)
sets_of_nodes = st.integers(1, 7)


@st.composite
def bases(draw: st.DrawFn) -> Basis:
    """Three nodes with small pools, and claims that fit, most of them on several nodes."""
    pools = [draw(st.integers(0, 3)) for _ in range(3)]
    bounds = {
        node: {SIZE: PoolBounds(0, draw(st.integers(0, MOST)) * SIZE)}
        for node in range(3)
        if draw(st.booleans())
    }
    base = machine(3, cpus_per_node=2, memory_bytes=MOST * SIZE, hugepages_bytes={SIZE: 0})
    base = with_pools(base, {node: {SIZE: pages * SIZE} for node, pages in enumerate(pools)})
    policy = PlacementPolicy(
        topology=draw(st.sampled_from(TopologyPolicy)),
        hugepage_pools=bounds,
        reserved_bytes={node: {MEMORY: draw(st.integers(0, 1)) * SIZE} for node in range(3)},
    )
    entries = []
    for number, (nodes, memory, pages) in enumerate(
        draw(st.lists(st.tuples(sets_of_nodes, st.integers(0, 4), st.integers(0, 2)), max_size=5))
    ):
        amounts = {MEMORY: memory * SIZE, PAGES: pages * SIZE}
        claim = Claim(NodeSet.of_mask(nodes), {name: amount for name, amount in amounts.items() if amount})
        entry = Entry(
            Decision(asking(f"held-{number}", memory, pages), Outcome.PLACED, Placement(claim=claim))
        )
        entries.append(entry)
    basis = Basis(base, policy, Ledger.of(entries))
    assume(all(min(slack(basis, base, name).values()) >= 0 for name in (MEMORY, PAGES)))
    return basis


def asking(name: str, memory: int, pages: int) -> Request:
    return Request(
        name,
        f"pod-{name}",
        name,
        QosClass.GUARANTEED,
        QosSource.INFERRED,
        Interval(memory * SIZE, memory * SIZE, "limit"),
        memory * SIZE,
        hugepages_bytes={PAGES: pages * SIZE} if pages else {},
    )


def claims_of(basis: Basis, resource: str) -> Claims:
    return [
        (claim.nodes.mask, claim.amounts_bytes.get(resource, 0))
        for entry in basis.ledger.entries.values()
        if (claim := entry.decision.placement.claim) is not None
    ]


def slack(basis: Basis, on: Machine, resource: str) -> dict[int, int]:
    reserved = basis.policy.reserved_bytes
    capacity = {
        node.id: max(0, node.capacity_bytes()[resource] - reserved.get(node.id, {}).get(resource, 0))
        for node in on.nodes
    }
    return slack_by_subset(capacity, claims_of(basis, resource), (0, 1, 2))


def every_growth(basis: Basis) -> Iterator[Pools]:
    """Every way in which the pools may grow with all claims kept."""
    most = [
        max(0, row[SIZE].maximum_bytes - node.hugepages_bytes[SIZE]) // SIZE
        if (row := basis.policy.hugepage_pools.get(node.id))
        else 0
        for node in basis.machine.nodes
    ]
    for pages in product(*(range(each + 1) for each in most)):
        added = {node: {SIZE: each * SIZE} for node, each in enumerate(pages) if each}
        on = with_pools(basis.machine, grown(basis.machine, added))
        if min(slack(basis, on, MEMORY).values()) >= 0 and all(
            node.capacity_bytes()[MEMORY] >= basis.policy.reserved_bytes[node.id][MEMORY] for node in on.nodes
        ):
            yield added


@given(bases())
def test_what_all_nodes_can_give_together_is_said_and_had(basis: Basis) -> None:
    """A set that others are promised pages on gives less than the sum of what each node could."""
    pools = {node: {SIZE: PoolBounds(0, MOST * SIZE)} for node in range(3)}
    policy = replace(basis.policy, topology=TopologyPolicy.RESTRICTED, hugepage_pools=pools)
    anywhere = replace(basis, policy=policy)

    def grown_for(pages: int) -> tuple[Decision, Pools]:
        def decide(on: Basis, deciding: Engine) -> Decision:
            return deciding.decide(on, asking("new", 0, pages))

        return decide_with_pools(
            anywhere, ExactEngine(), decide=decide, decision=decide(anywhere, ExactEngine())
        )

    most = max(
        (
            pages
            for pages in range(1, 20)
            if (found := grown_for(pages))[1] or found[0].outcome is Outcome.PLACED
        ),
        default=0,
    )
    refused, _ = grown_for(19)
    told = next(reason.text for reason in refused.reasons if reason.code == POOL_LIMIT)
    had = [int(one) for one in re.findall(r"(\d+)Mi on (?:each of )?node", told)]
    if in_all := re.search(r"(\d+)Mi in all", told):
        assert int(in_all[1]) == most * 2
    elif not had:
        assert most == 0


@given(bases(), st.integers(1, 4))
def test_a_refusal_for_something_else_says_nothing_of_pages(basis: Basis, pages: int) -> None:
    few = asking("few", 0, pages)
    much_memory = asking("much", 4 * MOST, pages)
    many_cpus = replace(few, exclusive_cpus=7, cpu_milli=7000)
    strict = replace(basis, policy=replace(basis.policy, topology=TopologyPolicy.SINGLE_NUMA_NODE))
    for request in (few, much_memory, many_cpus):
        decision, engine = ExactEngine().decide(strict, request), ExactEngine()

        def decide(on: Basis, deciding: Engine, request: Request = request) -> Decision:
            return deciding.decide(on, request)

        found, added = decide_with_pools(strict, engine, decide=decide, decision=decision)
        says = POOL_LIMIT in [reason.code for reason in found.reasons]
        if request is few:
            assert says == (lacks_pages(decision, strict.policy) and not added)
        elif decision.outcome is Outcome.REFUSED:
            assert not says


@given(bases(), st.integers(0, 4), st.integers(1, 4))
def test_a_container_gets_pages_where_some_growth_would_have_it_placed(
    basis: Basis, memory: int, pages: int
) -> None:
    request, engine = asking("new", memory, pages), ExactEngine()

    def decide(on: Basis, deciding: Engine) -> Decision:
        return deciding.decide(on, request)

    before = decide(basis, engine)
    decision, added = decide_with_pools(basis, engine, decide=decide, decision=before)
    if not added:
        assert decision.outcome is before.outcome
    else:
        machine_then = with_pools(basis.machine, grown(basis.machine, added))
        after = decide(replace(basis, machine=machine_then), ExactEngine())
        # Nothing is taken from anybody, whatever part of it is carried out.
        for part in parts(added):
            on = with_pools(basis.machine, grown(basis.machine, part))
            assert min(slack(basis, on, MEMORY).values()) >= 0
        for node, row in added.items():
            bounds = basis.policy.hugepage_pools[node][SIZE]
            assert grown(basis.machine, added)[node][SIZE] <= bounds.maximum_bytes
            assert row[SIZE] % SIZE == 0
        assert before.outcome is not Outcome.PLACED
        assert after.outcome is not Outcome.REFUSED
        if after.outcome is Outcome.PLACED:
            return
    if before.outcome is Outcome.PLACED:
        return
    possible = [
        each
        for each in every_growth(basis)
        if each
        and decide(
            replace(basis, machine=with_pools(basis.machine, grown(basis.machine, each))), ExactEngine()
        ).outcome
        is Outcome.PLACED
    ]
    assert possible == []


@given(bases(), st.data())
def test_a_resize_takes_nothing_from_what_it_holds_until_then(basis: Basis, data: st.DataObject) -> None:
    """As a creation beside all others, with its old promise kept through every part of the growth."""
    assume(basis.ledger.entries)
    entry = data.draw(
        st.sampled_from(sorted(basis.ledger.entries.values(), key=lambda one: one.container_id))
    )
    request = asking(entry.container_id, data.draw(st.integers(0, 4)), data.draw(st.integers(1, 4)))
    current, engine = entry.decision.placement, ExactEngine()

    def decide(on: Basis, deciding: Engine) -> Decision:
        return deciding.decide(on, request, current)

    beside = basis.with_ledger(basis.ledger.without(entry.container_id))
    before = decide(beside, engine)
    _, added = decide_with_pools(beside, engine, decide=decide, decision=before, held=basis.ledger)
    for part in parts(added):
        on = with_pools(basis.machine, grown(basis.machine, part))
        assert min(slack(basis, on, MEMORY).values()) >= 0
    if added:
        machine_then = with_pools(basis.machine, grown(basis.machine, added))
        after = decide(replace(beside, machine=machine_then), ExactEngine())
        assert after.outcome is not Outcome.REFUSED


def parts(added: Pools) -> Iterator[Pools]:
    """What a kernel may have given of it."""
    rows = [(node, row[SIZE] // SIZE) for node, row in added.items()]
    for pages in product(*(range(most + 1) for _, most in rows)):
        yield {node: {SIZE: each * SIZE} for (node, _), each in zip(rows, pages, strict=True) if each}


@given(bases(), st.lists(sizes, min_size=3, max_size=3))
def test_what_is_idle_is_promised_to_nobody(basis: Basis, free: list[int]) -> None:
    idle = idle_pools(basis, {node: {SIZE: pages * SIZE} for node, pages in enumerate(free)})
    for part in parts(idle):
        shrunk = {node: {SIZE: -row[SIZE]} for node, row in part.items()}
        on = with_pools(basis.machine, grown(basis.machine, shrunk))
        assert min(slack(basis, on, PAGES).values()) >= 0
    for node in basis.policy.hugepage_pools:
        left = slack(basis, with_pools(basis.machine, grown(basis.machine, shrunk_by(idle))), PAGES)
        more = min(basis.machine.nodes[node].hugepages_bytes[SIZE], free[node] * SIZE)
        if idle.get(node, {}).get(SIZE, 0) < more:
            assert room(left, 1 << node) == 0


def shrunk_by(idle: Pools) -> Pools:
    return {node: {SIZE: -row[SIZE]} for node, row in idle.items()}

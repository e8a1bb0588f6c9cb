"""Promises on more nodes, because their own are taken: never against another one, and only if it helps."""

import random
from collections.abc import Iterable, Iterator

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.exact.moves import MAX_MOVES, movers_of
from bayplan.engines.exact.resources import ResourceFlows
from bayplan.engines.exact.witness import shortages
from bayplan.model.basis import Basis
from bayplan.model.decision import (
    MEMORY_TAKEN,
    Claim,
    Decision,
    Interval,
    Move,
    Outcome,
    Placement,
    QosClass,
    QosSource,
    Request,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.placement.changed_promises import (
    LEAST_GAIN_BYTES,
    MOST_TRIED,
    goes_back,
    widening,
    widenings,
    with_widened,
)
from bayplan.placement.page_owners import container_pages, goal_bytes, start_bytes, stays
from bayplan.placement.page_placement import (
    ContainerPages,
    LivePages,
    NodeMemory,
    PageMove,
    homeward,
    plan,
    unmet_bytes,
)
from bayplan.quantity import MIB
from bayplan.sets import NodeSet
from support.exact_draws import draw_machine, draw_request
from support.machines import machine as simple_machine

POLICY = PlacementPolicy()
CONTAINERS = 12


def drawn(seed: int) -> tuple[Machine, Ledger, LivePages]:
    """A machine with promises, of which some is used, and memory that was taken by nobody who was promised
    any."""
    draw = random.Random(seed)
    machine, ledger, engine = draw_machine(draw, draw.randint(2, 4)), Ledger(), ExactEngine()
    for number in range(draw.randint(1, CONTAINERS)):
        request = draw_request(draw, machine, f"c{number}")
        request = replace(request, keeps_pages=not draw.randrange(5))
        decision = engine.decide(Basis(machine, POLICY, ledger), request)
        if decision.outcome is not Outcome.REFUSED:
            ledger = ledger.with_entry(Entry(decision)).moved(decision.moves)
    pages, held = [], dict.fromkeys(machine.memory_nodes, 0)
    for entry in ledger.entries.values():
        one = container_pages(machine, entry, {}, {}, {})
        there = draw.choice(list(one.nodes))
        amount = draw.choice([0, one.promised_bytes // 3, one.promised_bytes])
        held[there] = held.get(there, 0) + amount
        pages.append(container_pages(machine, entry, {there: amount}, {there: amount}, {}))
    nodes = {
        node: NodeMemory(
            max(0, draw.randint(0, machine.node_by_id[node].memory_bytes) - held[node]),
        )
        for node in machine.memory_nodes
    }
    found = plan(nodes, pages, start_bytes(machine), goal_bytes(machine), machine.distance)
    return machine, ledger, LivePages(0, nodes, {one.container_id: one for one in pages}, found)


@given(st.integers(0, 1 << 32))
def test_a_promise_only_gets_wider_where_it_fits_and_helps(seed: int) -> None:
    machine, ledger, live = drawn(seed)
    lacking_bytes = unmet_bytes(live.nodes, live.everybody)
    move = widening(Basis(machine, POLICY, ledger), live)
    if move is None:
        return
    entry = ledger.entries[move.container_id]
    assert not stays(entry)
    assert entry.decision.placement.claim is not None
    assert entry.decision.placement.claim.flexible
    assert move.before != move.after
    assert move.before <= move.after <= NodeSet(live.nodes)
    after = with_widened(ledger, move, live)
    # All that was promised before is promised still, to everybody, and fits.
    assert {key for key in ledger.entries if after.entries[key] != ledger.entries[key]} == {move.container_id}
    assert shortages(Basis(machine, POLICY, after)) == shortages(Basis(machine, POLICY, ledger))
    wider = after.entries[move.container_id].decision
    assert wider.placement.claim is not None
    assert wider.placement.claim.amounts_bytes == entry.decision.placement.claim.amounts_bytes
    assert wider.reasons[-1].code == MEMORY_TAKEN
    # And less has no place than before.
    one = live.containers[move.container_id]
    everybody = {**live.containers, move.container_id: replace(one, nodes=move.after)}
    left_bytes = unmet_bytes(live.nodes, everybody.values())
    assert left_bytes < lacking_bytes
    # So that it would not go back.
    if wider.placement.original_nodes:
        back = Move(move.container_id, move.name, move.after, wider.placement.original_nodes)
        assert goes_back(_widened(live, one, move.after), [back], {}) is None


@given(st.integers(0, 1 << 32))
@example(1321)  # Who helps has pages on the node that lacks memory, and may lie on another one as well.
def test_nobody_is_overlooked_who_could_have_helped(seed: int) -> None:
    """What lacks then would lack, but for less than is worth it, if everybody might lie wherever they may."""
    machine, ledger, live = drawn(seed)
    found = widenings(Basis(machine, POLICY, ledger), live)
    left = _moved(live, found)
    left_bytes = unmet_bytes(left.nodes, left.everybody)
    movers = [one for one in movers_of(ResourceFlows(Basis(machine, POLICY, ledger))) if not stays(one.entry)]
    for mover in movers:
        one = live.containers[mover.entry.container_id]
        live = _widened(live, one, mover.widest & NodeSet(live.nodes))
    least_bytes = unmet_bytes(live.nodes, live.everybody)
    worth = least_bytes < left_bytes - LEAST_GAIN_BYTES or 0 == least_bytes < left_bytes
    assert not worth or len(found) >= MAX_MOVES or len(movers) > MOST_TRIED


@given(st.integers(0, 1 << 32))
def test_who_goes_back_brings_all_along_and_nobody_has_to_leave_for_it(seed: int) -> None:
    """Each container in turn came to lie on all nodes, with pages where it was not placed."""
    machine, _, live = drawn(seed)
    goal = goal_bytes(machine)
    for wide, move, outside in strayed(random.Random(seed), live):
        if goes_back(wide, [move], goal) is None:
            continue
        moves = homeward(wide, move, outside, goal, machine.distance)
        assert sum(one.amount_bytes for one in moves) == sum(outside.values())
        assert {one.source for one in moves} == set(outside)
        assert all(one.target in move.after for one in moves)
        after = brought(wide, move, moves)
        for amount in after.nodes.values():
            assert amount.free_bytes >= 0
        found = plan(after.nodes, after.everybody, start_bytes(machine), goal, machine.distance)
        assert not any(one.source in move.after for one in found.moves)
        assert not any(risk.nodes & move.after for risk in found.risks)


def test_some_go_back_and_some_do_not() -> None:
    found = []
    for seed in range(200):
        machine, _, live = drawn(seed)
        for wide, move, _ in strayed(random.Random(seed), live):
            found.append(goes_back(wide, [move], goal_bytes(machine)) is not None)
    assert 50 < sum(found) < len(found) - 50


def strayed(draw: random.Random, live: LivePages) -> Iterator[tuple[LivePages, Move, dict[int, int]]]:
    """Each container of *live* as if it might lie on all nodes, and had some of its promise beside its own;
    the move by which it goes back, and what it has outside by node."""
    everywhere = NodeSet(live.nodes)
    for key, one in live.containers.items():
        outside = {
            node: part
            for node in everywhere - one.nodes
            if (part := min(live.nodes[node].free_bytes, draw.randint(0, one.outstanding_bytes // 4)))
        }
        if not outside:
            continue
        nodes = {
            node: NodeMemory(amount.free_bytes - outside.get(node, 0), amount.reclaimable_bytes)
            for node, amount in live.nodes.items()
        }
        held = {**one.held_bytes, **outside}
        wider = replace(one, nodes=everywhere, held_bytes=held, movable_bytes=held)
        move = Move(key, one.name, everywhere, one.nodes)
        yield LivePages(0, nodes, {**live.containers, key: wider}, live.plan), move, outside


def brought(live: LivePages, move: Move, moves: Iterable[PageMove]) -> LivePages:
    """*live* with *moves* made and the container on its own nodes."""
    one = live.containers[move.container_id]
    held, nodes = dict(one.held_bytes), dict(live.nodes)
    for each in moves:
        held[each.source] -= each.amount_bytes
        held[each.target] = held.get(each.target, 0) + each.amount_bytes
        for node, more in ((each.source, each.amount_bytes), (each.target, -each.amount_bytes)):
            nodes[node] = replace(nodes[node], free_bytes=nodes[node].free_bytes + more)
    back = replace(one, nodes=move.after, held_bytes=held, movable_bytes=held)
    return LivePages(0, nodes, {**live.containers, move.container_id: back}, live.plan)


def _widened(live: LivePages, one: ContainerPages, nodes: NodeSet) -> LivePages:
    containers = {**live.containers, one.container_id: replace(one, nodes=nodes)}
    return LivePages(0, live.nodes, containers, live.plan)


def _moved(live: LivePages, moves: Iterable[Move]) -> LivePages:
    for move in moves:
        live = _widened(live, live.containers[move.container_id], move.after)
    return live


def test_the_draws_have_what_it_is_about() -> None:
    """Promises that get wider, some of several, and some that nobody helps."""
    moves = [
        widening(Basis(machine, POLICY, ledger), live) for machine, ledger, live in map(drawn, range(300))
    ]
    lacking = [unmet_bytes(live.nodes, live.everybody) for _, _, live in map(drawn, range(300))]
    assert sum(one is not None for one in moves) >= 20
    assert sum(bool(amount) and one is None for amount, one in zip(lacking, moves, strict=True)) >= 20


@given(st.integers(0, 1 << 32))
def test_all_that_helps_is_done_at_once(seed: int) -> None:
    machine, ledger, live = drawn(seed)
    lacking_bytes = unmet_bytes(live.nodes, live.everybody)
    found = widenings(Basis(machine, POLICY, ledger), live)
    assert len({move.container_id for move in found}) == len(found)
    after, left = ledger, _moved(live, found)
    for move in found:
        assert move.before == ledger.entries[move.container_id].decision.placement.claim.nodes
        after = with_widened(after, move, live)
    assert shortages(Basis(machine, POLICY, after)) == shortages(Basis(machine, POLICY, ledger))
    if found:
        assert unmet_bytes(left.nodes, left.everybody) < lacking_bytes
    # The next look finds nobody else.
    assert widenings(Basis(machine, POLICY, after), left) == () or len(found) >= MAX_MOVES


def test_two_whose_nodes_overlap_get_more_although_neither_alone_helps_much() -> None:
    """As seen beside a tmpfs: "a" on node 0 and "b" on nodes 0 and 1, which lack hardly more together than
    node 0 does. For "b" alone more nodes were not worth it, "a" could get none that "b" has not all of."""
    machine = simple_machine(4)
    promised = {"a": NodeSet([0]), "b": NodeSet([0, 1])}
    ledger = Ledger.of(Entry(claiming(key, nodes, 400 * MIB)) for key, nodes in promised.items())
    pages = {key: container_pages(machine, ledger.entries[key], {}, {}, {}) for key in promised}
    nodes = {node: NodeMemory(free * MIB) for node, free in enumerate((100, 390, 900, 900))}
    found = plan(nodes, [*pages.values()], start_bytes(machine), goal_bytes(machine), machine.distance)
    live = LivePages(0, nodes, pages, found)
    basis = Basis(machine, POLICY, ledger)
    assert unmet_bytes(nodes, pages.values()) == 310 * MIB
    moves = widenings(basis, live)
    left = _moved(live, moves)
    assert unmet_bytes(nodes, left.everybody) == 0
    sets = [one.nodes for one in left.containers.values()]
    assert all(one <= other or other <= one for one in sets for other in sets)


def claiming(name: str, nodes: NodeSet, amount_bytes: int) -> Decision:
    claim = Claim(nodes, {"memory": amount_bytes}, flexible=True)
    interval = Interval(amount_bytes, amount_bytes, "limit")
    request = Request(name, f"pod-{name}", name, QosClass.GUARANTEED, QosSource.INFERRED, interval)
    return Decision(request, Outcome.PLACED, Placement(nodes, claim=claim))

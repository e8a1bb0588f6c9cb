"""Plans of moves against a planner that tries every set of up to three containers on all nodes: a plan is
found if there is one, with the fewest containers and the fewest bytes, and after it the request fits."""

import random
from collections import Counter
from collections.abc import Callable
from itertools import chain, combinations, product

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.exact.confined import PLAN_ENDED
from bayplan.engines.exact.engine import ExactEngine
from bayplan.engines.exact.relocations import may_relocate
from bayplan.model.basis import Basis
from bayplan.model.decision import (
    Claim,
    Decision,
    DeviceHint,
    Interval,
    Outcome,
    Placement,
    QosClass,
    QosSource,
    Request,
)
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY, Machine
from bayplan.model.policy import Defragment, PlacementPolicy, TopologyPolicy
from bayplan.placement.changed_promises import after_removal
from bayplan.placement.ledger_check import check
from bayplan.quantity import GIB
from bayplan.sets import CpuSet, NodeSet
from support.machines import machine
from support.relocations import carried_out

SINGLE = PlacementPolicy(topology=TopologyPolicy.SINGLE_NUMA_NODE)
RESTRICTED = replace(SINGLE, topology=TopologyPolicy.RESTRICTED)
MOST = 3
UNBOUNDED = 10_000_000
DRAWN = 250
MOST_LAID = 12


class Scene(Struct, frozen=True):
    """A request that may or may not fit beside what is promised already."""

    machine: Machine
    policy: PlacementPolicy
    ledger: Ledger
    request: Request


def asking(name: str, memory: int, cpus: int = 0, hints: tuple[DeviceHint, ...] = ()) -> Request:
    limit = memory * GIB
    return Request(
        name,
        name,
        name,
        QosClass.GUARANTEED,
        QosSource.INFERRED,
        Interval(limit, limit, "limit"),
        limit,
        cpu_milli=cpus * 1000,
        exclusive_cpus=cpus,
        hints=hints,
    )


def scene(seed: int) -> Scene:
    """Containers laid anywhere on a machine with little left in one piece."""
    draw = random.Random(seed)
    nodes = draw.choice([2, 3, 3, 4])
    distances = {(a, b): draw.choice([11, 21]) for a in range(nodes) for b in range(nodes) if a < b}
    distances |= {(b, a): distance for (a, b), distance in distances.items()}
    hardware = machine(nodes, draw.choice([4, 5, 6]), draw.choice([4, 6, 8]) * GIB, distances=distances)
    policy = draw.choice([SINGLE, RESTRICTED])
    ledger = Ledger()
    most = draw.choice([0.6, 0.75, 0.9]) * sum(node.memory_bytes for node in hardware.nodes)
    for number in range(MOST_LAID):
        entry = laid(draw, hardware, ledger, f"c{number}")
        if entry is not None and entry.decision.request.memory.high_bytes + claimed_bytes(ledger) <= most:
            ledger = ledger.with_entry(entry)
    claimed = claimed_bytes(ledger) // GIB
    size = hardware.nodes[0].memory_bytes // GIB
    free = max(1, min(size, len(hardware.nodes) * size - claimed))
    hints = (DeviceHint("gpu", NodeSet([draw.randrange(nodes)])),) if not draw.randrange(6) else ()
    cpus, more = draw.choice([0, 0, 1, 2, 3]), draw.randrange(2)
    least = next(
        (amount for amount in range(1, free + 1) if not fits(hardware, policy, ledger, amount, cpus)), free
    )
    return Scene(hardware, policy, ledger, asking("new", min(free, least + more), cpus, hints))


def claimed_bytes(ledger: Ledger) -> int:
    return sum(row[MEMORY] for row in ledger.claimed_bytes.values())


def fits(hardware: Machine, policy: PlacementPolicy, ledger: Ledger, memory: int, cpus: int) -> bool:
    off = replace(policy, defragment=Defragment.OFF)
    decision = ExactEngine().decide(Basis(hardware, off, ledger), asking("new", memory, cpus))
    return decision.outcome is Outcome.PLACED


def laid(draw: random.Random, hardware: Machine, ledger: Ledger, name: str) -> Entry | None:
    """A container on a random set of nodes and CPUs; None where it does not fit there."""
    count = len(hardware.nodes)
    mems = NodeSet(draw.sample(range(count), draw.choice([1, 1, 1, min(2, count)])))
    hints = (DeviceHint("nic", NodeSet([min(mems)])),) if not draw.randrange(5) else ()
    request = asking(name, draw.randint(1, 4), draw.choice([0, 1, 1, 2]), hints)
    request = replace(request, may_move=bool(draw.randrange(5)), keeps_pages=not draw.randrange(9))
    free = list(hardware.cpus_of(mems) - ledger.exclusive_cpus - CpuSet([0]))
    if len(free) < request.exclusive_cpus:
        return None
    cpus = CpuSet(draw.sample(free, request.exclusive_cpus))
    placement = Placement(mems, cpus, claim=Claim(mems, {MEMORY: request.memory.high_bytes}))
    entry = Entry(Decision(request, Outcome.PLACED, placement))
    return entry if kept(hardware, ledger.with_entry(entry)) else None


def kept(hardware: Machine, ledger: Ledger) -> bool:
    """Whether all memory that is claimed can be had."""
    claims = [one.decision.placement.claim for one in ledger.entries.values()]
    return holds(hardware, [(one.nodes, one.amounts_bytes[MEMORY]) for one in claims if one], memory_of)


def memory_of(hardware: Machine, node: int) -> int:
    return hardware.node_by_id[node].memory_bytes


def sets(hardware: Machine, most: int) -> list[NodeSet]:
    ids = list(hardware.memory_nodes)
    return [NodeSet(some) for width in range(1, most + 1) for some in combinations(ids, width)]


def holds(hardware: Machine, claims: list[tuple[NodeSet, int]], has: Callable[[Machine, int], int]) -> bool:
    """Hall's condition, set by set."""
    every = sets(hardware, len(hardware.nodes))
    return all(
        sum(amount for nodes, amount in claims if nodes <= one) <= sum(has(hardware, node) for node in one)
        for one in every
    )


def movable(entry: Entry) -> bool:
    request = entry.decision.request
    return request.may_move and not request.keeps_pages


def targets(hardware: Machine, entry: Entry) -> list[NodeSet]:
    """Where it would be as well off."""
    home, request = entry.decision.placement.mems, entry.decision.request
    assert home is not None
    far = sum(hint.nodes.isdisjoint(home) for hint in request.hints)
    return [
        nodes
        for nodes in sets(hardware, len(home))
        if hardware.total_distance(nodes) <= hardware.total_distance(home)
        and sum(hint.nodes.isdisjoint(nodes) for hint in request.hints) <= far
        and (nodes != home or (request.exclusive_cpus and len(home) > 1))
    ]


def allowed(one: Scene) -> list[NodeSet]:
    """The sets that the request may end on: restricted has as few nodes as an empty machine would take."""
    hardware, request = one.machine, one.request
    near = [
        nodes
        for nodes in sets(hardware, len(hardware.nodes))
        if not any(hint.nodes.isdisjoint(nodes) for hint in request.hints)
    ]
    empty = [
        nodes
        for nodes in near
        if sum(memory_of(hardware, node) for node in nodes) >= request.memory.high_bytes
        and len(hardware.cpus_of(nodes) - CpuSet([0])) >= request.exclusive_cpus
    ]
    if one.policy.topology is TopologyPolicy.SINGLE_NUMA_NODE:
        return [nodes for nodes in near if len(nodes) == 1]
    return [nodes for nodes in near if empty and len(nodes) <= min(map(len, empty))]


def moved_bytes(hardware: Machine, entry: Entry, nodes: NodeSet) -> int:
    claim = entry.decision.placement.claim
    assert claim is not None
    left = claim.nodes - nodes
    amount = claim.amounts_bytes[MEMORY]
    return amount if left == claim.nodes else min(amount, sum(memory_of(hardware, node) for node in left))


def works(one: Scene, places: dict[str, NodeSet], nodes: NodeSet) -> bool:
    """Whether everything fits with *places* for those who move, and the request on *nodes*."""
    memory, cpus = [(nodes, one.request.memory.high_bytes)], [(nodes, one.request.exclusive_cpus)]
    taken = CpuSet([0])
    for key, entry in one.ledger.entries.items():
        claim = entry.decision.placement.claim
        assert claim is not None
        memory.append((places.get(key, claim.nodes), claim.amounts_bytes[MEMORY]))
        if key in places:
            cpus.append((places[key], entry.decision.request.exclusive_cpus))
        else:
            taken |= entry.decision.placement.exclusive_cpus

    def free(hardware: Machine, node: int) -> int:
        return len(hardware.node_by_id[node].cpus - taken)

    return holds(one.machine, memory, memory_of) and holds(one.machine, cpus, free)


def best(one: Scene) -> tuple[int, int] | None:
    """How many have to move at least, and how many bytes of these at least; None if no three suffice."""
    movers = [entry for entry in one.ledger.entries.values() if movable(entry)]
    for count in range(1, MOST + 1):
        costs = [
            sum(moved_bytes(one.machine, entry, nodes) for entry, nodes in zip(some, where, strict=True))
            for some in combinations(movers, count)
            for where in product(*(targets(one.machine, entry) for entry in some))
            for mine in allowed(one)
            if works(one, dict(zip([entry.container_id for entry in some], where, strict=True)), mine)
        ]
        if costs:
            return count, min(costs)
    return None


def decided(one: Scene, steps: int = UNBOUNDED) -> Decision:
    return ExactEngine(max_steps=steps).decide(Basis(one.machine, one.policy, one.ledger), one.request)


def check_sound(one: Scene, decision: Decision) -> None:
    """What the plan says can be done, and then the request is placed as it was asked."""
    plan = decision.plan
    assert plan is not None
    assert 1 <= len(plan.relocations) <= MOST
    for move in plan.relocations:
        entry = one.ledger.entries[move.container_id]
        assert movable(entry)
        assert move.before == entry.decision.placement.mems
        assert move.cpus_before == entry.decision.placement.exclusive_cpus
        assert move.after in targets(one.machine, entry)
        assert len(move.cpus_after) == entry.decision.request.exclusive_cpus
        assert move.cpus_after <= one.machine.cpus_of(move.after)
        assert move.moved_bytes == moved_bytes(one.machine, entry, move.after)
    after = carried_out(one.ledger, plan)
    every = list(
        chain.from_iterable(entry.decision.placement.exclusive_cpus for entry in after.entries.values())
    )
    assert len(every) == len(set(every))
    assert 0 not in every
    assert kept(one.machine, after)
    assert decided(replace(one, ledger=after)).outcome is Outcome.PLACED


@given(st.integers(0, 1 << 32))
def test_a_plan_is_found_if_there_is_one_and_it_is_the_least(seed: int) -> None:
    one = scene(seed)
    decision = decided(one)
    if decision.outcome is Outcome.PLACED:
        assert decision.plan is None
        return
    least = best(one)
    assert (decision.plan is None) == (least is None), seed
    if decision.plan is not None:
        check_sound(one, decision)
        assert decision.plan.proven
        assert (len(decision.plan.relocations), decision.plan.moved_bytes) == least


@given(st.integers(0, 1 << 32), st.sampled_from([40, 200, 1000]))
def test_few_steps_find_less_and_say_so(seed: int, steps: int) -> None:
    one = scene(seed)
    decision, whole = decided(one, steps), decided(one)
    if decision.plan is not None:
        check_sound(one, decision)
    if whole.plan is not None and decision.plan is None and decision.outcome is whole.outcome:
        assert PLAN_ENDED in [reason.code for reason in decision.reasons]
    if whole.plan is not None and decision.plan is not None and decision.plan.proven:
        assert decision.plan.moved_bytes == whole.plan.moved_bytes


def test_the_scenes_have_what_it_is_about() -> None:
    """Plans of one, two and three moves, and requests that no moves help."""
    counts = Counter[int]()
    for seed in range(DRAWN):
        decision = decided(scene(seed))
        if decision.outcome is not Outcome.PLACED:
            counts[0 if decision.plan is None else len(decision.plan.relocations)] += 1
    assert all(counts[many] >= least for many, least in ((0, 10), (1, 30), (2, 5), (3, 1))), counts


def test_nothing_is_said_where_it_is_switched_off() -> None:
    found = next(one for one in map(scene, range(DRAWN)) if decided(one).plan is not None)
    off = replace(found, policy=replace(found.policy, defragment=Defragment.OFF))
    assert decided(off).plan is None
    assert decided(off).reasons == tuple(
        reason for reason in decided(found).reasons if reason.code != "fits-after-moves"
    )


@given(st.integers(0, 1 << 32))
def test_carried_out_every_promise_holds_at_every_step(seed: int) -> None:
    """With `move` the request is placed where the plan says; those who move are promised all of it on their
    new nodes at once, may use the old ones until they have left, and nobody else is touched."""
    one = scene(seed)
    planned = decided(one)
    moving = replace(one, policy=replace(one.policy, defragment=Defragment.MOVE))
    decision = decided(moving)
    assert decision.plan == planned.plan
    if planned.plan is None or planned.outcome is not Outcome.REFUSED:
        assert (decision.outcome, decision.moves) == (planned.outcome, ())
        return
    assert decision.outcome is Outcome.PLACED
    assert decision.placement.mems == planned.plan.nodes
    assert len(decision.placement.exclusive_cpus) == one.request.exclusive_cpus
    assert decision.placement.exclusive_cpus <= one.machine.cpus_of(planned.plan.nodes)
    after = one.ledger.moved(decision.moves).with_entry(Entry(decision))
    assert check(Basis(one.machine, one.policy, after)) == ()
    assert kept(one.machine, after)
    moved = {move.container_id: move for move in planned.plan.relocations}
    for key, entry in one.ledger.entries.items():
        placement = after.entries[key].decision.placement
        if key not in moved:
            assert after.entries[key] == entry
            continue
        move = moved[key]
        assert placement.relocated
        assert placement.claim is not None
        assert (placement.claim.nodes, placement.exclusive_cpus) == (move.after, move.cpus_after)
        assert placement.mems == move.before | move.after
        assert placement.leaving == (move.before - move.after or None)
        assert not may_relocate(after.entries[key], after)
    # Their pages follow, and then they have their new nodes alone.
    basis = Basis(one.machine, one.policy, after)
    left, returned, _ = after_removal(basis, ExactEngine())
    assert {move.container_id for move in returned} == {
        move.container_id for move in planned.plan.relocations if move.before != move.after
    }
    assert check(basis.with_ledger(left)) == ()
    for key, move in moved.items():
        placement = left.entries[key].decision.placement
        assert (placement.mems, placement.leaving) == (move.after, None)
    assert claimed_bytes(left) == claimed_bytes(after)

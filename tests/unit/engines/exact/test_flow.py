"""The flow of one resource, held against Hall's condition over all subsets."""

import random
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from bayplan.engines.exact.flow import Flow, bits, crosses
from support.subsets import room, slack_by_subset

NODES = 5
EVERYTHING = (1 << NODES) - 1
capacities = st.lists(st.integers(0, 12), min_size=NODES, max_size=NODES)
masks = st.integers(1, EVERYTHING)
changes = st.lists(st.tuples(masks, st.integers(1, 9)), max_size=14)


def flow_of(capacity: list[int]) -> Flow:
    return Flow({1 << node: amount for node, amount in enumerate(capacity)})


def brute(capacity: list[int], claims: dict[int, int]) -> dict[int, int]:
    return slack_by_subset(dict(enumerate(capacity)), list(claims.items()), tuple(range(NODES)))


def check_balance(flow: Flow) -> None:
    """The invariant of the module, and that every claim is carried on its own nodes."""
    for node, capacity in flow.capacity.items():
        load = flow.carried[node]
        assert flow.free[node] + sum(load.values()) == capacity
        assert flow.free[node] >= 0
        assert all(amount > 0 and claimant & node for claimant, amount in load.items())
    for claimant, amount in flow.claimed.items():
        carried = sum(flow.carried[node].get(claimant, 0) for node in bits(claimant))
        assert carried + flow.unmet.get(claimant, 0) == amount
    crossing = sum(crosses(a, b) for a, b in combinations(flow.claimed, 2))
    assert flow.crossings == crossing


@given(capacities, changes, masks, st.integers(1, 40))
def test_what_fits_is_what_no_subset_forbids(
    capacity: list[int], wanted: list[tuple[int, int]], nodes: int, amount: int
) -> None:
    flow, claims = flow_of(capacity), dict[int, int]()
    for mask, size in wanted:
        possible = room(brute(capacity, claims), mask)
        assert flow.room(mask, size) == min(size, possible)
        if size <= possible:
            flow.change(mask, size)
            claims[mask] = claims.get(mask, 0) + size
        elif claims:
            # Somebody has to go, in part.
            victim = max(claims)
            claims[victim] -= 1
            flow.change(victim, -1)
            if not claims[victim]:
                del claims[victim]
        check_balance(flow)
        assert not flow.unmet
    slack = brute(capacity, claims)
    possible = room(slack, nodes)
    assert flow.room(nodes, amount) == min(amount, possible)
    if possible < amount:
        cut = flow.cut([(nodes, amount)])
        assert not nodes & ~cut
        assert slack[cut] == possible
        assert flow.capacity_of(cut) - flow.claimed_within(cut) == possible
        # The smallest such set.
        assert all(
            slack[mask] > possible for mask in slack if not nodes & ~mask and mask & cut == mask != cut
        )


@given(capacities, changes)
def test_too_much_is_noted_and_met_as_soon_as_there_is_room(
    capacity: list[int], wanted: list[tuple[int, int]]
) -> None:
    flow = flow_of(capacity)
    for mask, size in wanted:
        flow.change(mask, size)
        check_balance(flow)
    for mask in sorted(flow.claimed):
        others = [other for other in flow.unmet if other != mask]
        flow.change(mask, -flow.claimed[mask])
        check_balance(flow)
        for waiting in others:
            assert waiting not in flow.unmet or flow.room(waiting, 1) == 0
    assert flow.free == flow.capacity
    assert not flow.claimed
    assert not flow.unmet
    assert flow.slack == flow.capacity


def test_a_claim_that_too_much_is_promised_for_takes_nothing_elsewhere() -> None:
    flow = flow_of([10, 10, 0, 0, 0])
    flow.change(0b01, 15)
    flow.change(0b11, 3)
    assert flow.unmet == {0b01: 5}
    assert flow.room(0b01, 1) == 0
    assert flow.room(0b10, 20) == 7


def test_a_set_of_unknown_nodes_has_no_room() -> None:
    flow = flow_of([1, 0, 0, 0, 0])
    assert flow.room(1 << 40, 1) == 0
    assert flow.cut([(1 << 40, 1)]) == 1 << 40


def test_the_cut_does_not_depend_on_the_order_of_claims_that_are_too_many() -> None:
    wide, narrow = (0b11, 6), (0b01, 4)
    cuts = set()
    for claims in ([wide, narrow], [narrow, wide]):
        flow = flow_of([4, 4, 0, 0, 0])
        for mask, size in [*claims, (0b10, 2)]:
            flow.change(mask, size)
        assert flow.unmet
        cuts.add(flow.cut([(0b01, 6)]))
    assert cuts == {0b01}


SPARSE = [1 << node for node in (0, 3, 4, 9, 70, 1023)]


def random_flow(seed: int) -> Flow:
    """Claims on sets of `SPARSE` and of a node that is gone, in some trials more than there is."""
    draw = random.Random(seed)
    flow = Flow({node: draw.choice([0, 5, 9]) for node in SPARSE})
    gone = 1 << 12
    for _ in range(draw.randint(0, 9)):
        wanted = sum(draw.sample([*SPARSE, gone], draw.randint(1, len(SPARSE))))
        amount = draw.randint(1, 6)
        if seed % 3 == 0 or flow.room(wanted, amount) == amount:
            flow.change(wanted, amount)
    return flow


def test_what_nodes_add_one_by_one_is_what_all_of_them_have_room_for() -> None:
    over = 0
    for seed in range(150):
        flow = random_flow(seed)
        over += bool(flow.unmet)
        one, other, members, held = flow.trial(), flow.rebuilt(), 0, 0
        for node in random.Random(seed).sample(SPARSE, len(SPARSE)):
            aside = other.copy()
            added = aside.push(node, 1 << 40)
            assert added == one.push(node, 1 << 40) == other.push(node, 1 << 40), seed
            members, held = members | node, held + added
            assert held == flow.room(members, 1 << 40), seed
    assert over


def test_rebuilt_loads_do_not_depend_on_the_order_of_the_claims() -> None:
    claims = [(0b11, 4), (0b110, 5), (0b101, 3), (0b111, 2), (0b1, 1)]
    seen, rebuilt = set(), set()
    for seed in range(20):
        flow = Flow({1 << node: 6 for node in range(3)})
        for nodes, amount in random.Random(seed).sample(claims, len(claims)):
            flow.change(nodes, amount)
        seen.add(str([sorted(flow.carried[node].items()) for node in bits(0b111)]))
        rebuilt.add(str([list(flow.rebuilt().carried[node].items()) for node in bits(0b111)]))
    assert len(seen) > 1
    assert len(rebuilt) == 1

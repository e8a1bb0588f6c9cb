"""Tables of all sets of a few nodes, held against what the books answer about each."""

import random

from bayplan.engines.exact.flow import Flow, bits, crosses
from bayplan.engines.exact.tables import Positions, TableTrial, crossing_table, room_table

SPARSE = [1 << node for node in (0, 3, 4, 9, 70, 1023)]
DENSE = [1 << node for node in range(6)]


def flows(seed: int, nodes: list[int]) -> Flow:
    """Claims on sets of *nodes* and of one that is gone, in some trials more than there is."""
    draw = random.Random(seed)
    flow = Flow({node: draw.choice([0, 5, 9]) for node in nodes})
    gone = 1 << 12
    for _ in range(draw.randint(0, 9)):
        wanted = sum(draw.sample([*nodes, gone], draw.randint(1, len(nodes))))
        amount = draw.randint(1, 6)
        if seed % 3 == 0 or flow.room(wanted, amount) == amount:
            flow.change(wanted, amount)
    return flow


def test_they_say_of_every_set_what_the_flow_says() -> None:
    over = 0
    for seed in range(150):
        nodes = SPARSE if seed % 2 else DENSE
        flow, positions = flows(seed, nodes), Positions(nodes)
        over += bool(flow.unmet)
        rooms, crossings = room_table(flow, positions), crossing_table(flow.wide, positions)
        for place in range(1, positions.sets):
            members = sum(node for index, node in enumerate(nodes) if place >> index & 1)
            assert positions.of(members) == place
            assert rooms[place] == flow.room(members, 1 << 40), seed
            assert crossings[place] == sum(crosses(members, other) for other in flow.wide), seed
    assert over


def test_a_growing_set_has_room_for_what_a_trial_pushes() -> None:
    for seed in range(100):
        nodes = SPARSE if seed % 2 else DENSE
        flow, positions = flows(seed, nodes), Positions(nodes)
        looked_up, tried = TableTrial(room_table(flow, positions), positions), flow.afresh()
        order = random.Random(seed).sample(nodes, len(nodes))
        for node in order:
            aside = looked_up.copy()
            assert aside.push(node, 1 << 40) == looked_up.push(node, 1 << 40) == tried.push(node, 1 << 40)


def test_fresh_loads_do_not_depend_on_the_order_of_the_claims() -> None:
    claims = [(0b11, 4), (0b110, 5), (0b101, 3), (0b111, 2), (0b1, 1)]
    seen, afresh = set(), set()
    for seed in range(20):
        flow = Flow({1 << node: 6 for node in range(3)})
        for nodes, amount in random.Random(seed).sample(claims, len(claims)):
            flow.change(nodes, amount)
        seen.add(str([sorted(flow.carried[node].items()) for node in bits(0b111)]))
        afresh.add(str([list(flow.afresh().carried[node].items()) for node in bits(0b111)]))
    assert len(seen) > 1
    assert len(afresh) == 1

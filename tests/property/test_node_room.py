"""What is said to be left on a node: a container of that size gets it there, and one byte more does not fit
unless others move."""

import random

from hypothesis import given
from hypothesis import strategies as st

from bayplan.engines.exact.engine import ExactEngine
from bayplan.model.basis import Basis
from bayplan.model.decision import Interval, NodeWish, Outcome, QosClass, QosSource, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.machine import MEMORY
from bayplan.model.policy import PlacementPolicy
from bayplan.sets import NodeSet
from bayplan.views.node_room import free_bytes_by_node
from support.exact_draws import draw_machine, draw_request

POLICY = PlacementPolicy()
CONTAINERS = 12


def asking(amount_bytes: int, node: int) -> Request:
    return Request(
        container_id="probe",
        pod_id="probe",
        name="probe/probe/probe",
        qos=QosClass.GUARANTEED,
        qos_source=QosSource.INFERRED,
        memory=Interval(amount_bytes, amount_bytes, "limit"),
        memory_limit_bytes=amount_bytes,
        nodes=NodeWish(NodeSet([node]), required=True),
    )


@given(st.integers(0, 2**32))
def test_as_much_as_is_left_fits_and_not_a_byte_more(seed: int) -> None:
    draw, engine, ledger = random.Random(seed), ExactEngine(), Ledger()
    machine = draw_machine(draw, draw.randint(2, 6))
    for number in range(draw.randint(1, CONTAINERS)):
        decision = engine.decide(Basis(machine, POLICY, ledger), draw_request(draw, machine, f"c{number}"))
        if decision.outcome is not Outcome.REFUSED:
            ledger = ledger.moved(decision.moves).with_entry(Entry(decision))
    free = free_bytes_by_node(Basis(machine, POLICY, ledger))
    for node in machine.ordinary_nodes:
        left_bytes = free[node][MEMORY]
        for amount_bytes in (left_bytes, left_bytes + 1):
            decision = engine.decide(Basis(machine, POLICY, ledger), asking(amount_bytes, node))
            granted = decision.outcome is Outcome.PLACED and not decision.moves
            assert granted == (amount_bytes <= left_bytes)

"""A machine and a container on it, of which something is told in every field."""

from msgspec.structs import replace

from bayplan.model.decision import Claim, Decision, Outcome, Placement
from bayplan.model.ledger import Entry
from bayplan.model.machine import Cpu, Machine, Node
from bayplan.quantity import GIB, MIB
from bayplan.sets import CpuSet, NodeSet
from support.requests import guaranteed_request

# Two nodes of two cores with two threads each: cores 0 and 1 on node 0, 2 and 3 on node 2.
MACHINE = Machine(
    (
        Node(0, CpuSet([0, 1, 4, 5]), 8 * GIB, {2 * MIB: GIB}, {0: 10, 2: 21}),
        Node(2, CpuSet([2, 3, 6, 7]), 8 * GIB, {2 * MIB: GIB}, {0: 21, 2: 10}),
    ),
    tuple(Cpu(cpu, cpu % 4, cpu % 4 // 2, cpu % 4 // 2 * 2, cpu % 4 // 2 * 2) for cpu in range(8)),
)
OWN = Placement(
    NodeSet([2]),
    CpuSet([2, 3, 6]),
    claim=Claim(NodeSet([2]), {"memory": 3 * GIB, "hugepages-2Mi": 512 * MIB}),
)


def entry(placement: Placement = OWN, **more: object) -> Entry:
    """A container with three CPUs, by default of its own."""
    request = replace(guaranteed_request("c", 3 * GIB, 3), name="shop/db-0/main", **more)
    return Entry(Decision(request, Outcome.PLACED, placement))

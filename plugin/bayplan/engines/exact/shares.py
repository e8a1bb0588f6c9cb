"""How much of each node is taken already: what the strategy `spread` compares sets of nodes by.

A claim on several nodes counts as if it lay evenly on them: which node carries it is the witness's, and may
change, and where the kernel puts its pages is not known. Worked out once for an attempt, from its flows.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from bayplan.engines.exact.flow import bits
from bayplan.engines.exact.resources import ResourceFlows
from bayplan.engines.exact.topology import NodeTopology
from bayplan.model.machine import MEMORY

THOUSANDTHS: Final = 1000


class Taken(Struct, frozen=True):
    """What of one resource each node has promised, and what it can promise; nodes are masks with one bit."""

    promised: Mapping[int, int]
    capacity: Mapping[int, int]


class Shares(Struct, frozen=True):
    """The resources that count for one attempt: memory, what is asked for beside it, and exclusive CPUs."""

    resources: tuple[Taken, ...]

    @classmethod
    def of(cls, topology: NodeTopology, flows: ResourceFlows, asked: Iterable[str]) -> "Shares":
        """What is promised by *flows*, and the CPUs that containers have to themselves."""
        found = [_promised(flows, resource) for resource in dict.fromkeys((MEMORY, *asked))]
        cpus = topology.counted(flows.basis.allocatable.exclusive_cpus.mask)
        free = topology.counted(flows.basis.exclusive_candidates().mask)
        owned = {node: count - free.get(node, 0) for node, count in cpus.items()}
        return cls((*found, Taken(owned, cpus)))

    def of_set(self, nodes: int) -> int:
        """The share of *nodes* together that is taken of the resource of which the most is, in
        thousandths."""
        return max(_share(one, nodes) for one in self.resources)


def _promised(flows: ResourceFlows, resource: str) -> Taken:
    promised: dict[int, int] = {}
    for nodes, amount_bytes in flows.flow(resource).claimed.items():
        width = nodes.bit_count()
        for node in bits(nodes):
            promised[node] = promised.get(node, 0) + amount_bytes // width
    return Taken(promised, flows.capacity.get(resource, {}))


def _share(one: Taken, nodes: int) -> int:
    capacity = sum(one.capacity.get(node, 0) for node in bits(nodes))
    promised = sum(one.promised.get(node, 0) for node in bits(nodes))
    return promised * THOUSANDTHS // capacity if capacity > 0 else 0

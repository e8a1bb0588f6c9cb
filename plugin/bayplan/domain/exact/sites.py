"""What only depends on the machine: distances, initiators, and the sets of nodes in the order of both.

Worked out once for a machine and kept, because a machine changes with hotplug only.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Final

from bayplan.domain.exact.flow import bits
from bayplan.domain.topology import Machine
from bayplan.sets import CpuSet, NodeSet

MAX_COMBINATIONS: Final = 5000
"""Up to here every set of a size is looked at (all sets of 8 nodes are 255). Above, the sets grown from each
node by adding the nearest ones, and the roomiest nodes."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A set of nodes with what the machine says of it; *order* is its place by the lowest ids."""

    nodes: int
    distance: int
    remote_initiators: int
    order: int


class Site:
    """See the module."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._distances: dict[int, int] = {0: 0}
        # Both ways at once; only the sum of them ever counts.
        self._pairs = {
            1 << one: {
                1 << other: machine.distance(one, other) + machine.distance(other, one)
                for other in machine.node_ids
            }
            for one in machine.node_ids
        }
        self._ranked: dict[tuple[int, int], list[Ranked]] = {}
        self._initiators = {
            1 << node.id: node.initiators.mask for node in machine.nodes if node.initiators or not node.cpus
        }
        self._cpus = {1 << node: cpus for node, cpus in _cpus_by_memory_node(machine).items()}

    def distance(self, nodes: int) -> int:
        """Sum of the distances over all ordered pairs of different nodes; nodes that are gone have none."""
        found = self._distances.get(nodes)
        if found is None:
            first = nodes & -nodes
            others = nodes ^ first
            pairs = self._pairs.get(first, {})
            found = self.distance(others) + sum([pairs.get(other, 0) for other in bits(others)])
            self._distances[nodes] = found
        return found

    def remote_initiators(self, nodes: int) -> int:
        """How many of *nodes* have initiators, none of which is among *nodes*, or no CPUs to begin with."""
        best = self._initiators
        return sum(1 for node in bits(nodes) if node in best and not best[node] & nodes)

    def free_cpus(self, candidates: CpuSet) -> dict[int, int]:
        """How many of *candidates* each node with memory has; a node without gives them to the nearest."""
        return {node: len(cpus & candidates) for node, cpus in self._cpus.items()}

    def ranked(self, ground: int, width: int, rooms: Mapping[int, int]) -> list[Ranked]:
        """The sets of *width* nodes of *ground*: by distance, initiators and ids.

        Where these are too many to enumerate only good ones, among them the nodes with the most of *rooms*.
        """
        found = self._ranked.get((ground, width))
        if found is not None:
            return found
        if comb(ground.bit_count(), width) > MAX_COMBINATIONS:
            roomiest = sorted(bits(ground), key=lambda node: (-rooms.get(node, 0), node))
            found = self._sorted({*self._grown(ground, width), _joined(roomiest[:width])})
        else:
            every = [_joined(members) for members in combinations(bits(ground), width)]
            found = self._ranked[ground, width] = self._sorted(every)
        return found

    def among_roomiest(self, ground: int, width: int, rooms: Mapping[int, int]) -> Iterator[int]:
        """Every set of *width* nodes of as many of the roomiest as can be enumerated."""
        nodes = sorted(bits(ground), key=lambda node: (-rooms.get(node, 0), node))
        most = width
        while most < len(nodes) and comb(most + 1, width) <= MAX_COMBINATIONS:
            most += 1
        return (_joined(members) for members in combinations(nodes[:most], width))

    def _grown(self, ground: int, width: int) -> Iterable[int]:
        ids = NodeSet.of_mask(ground)
        for seed in ids:
            nearest = sorted(ids, key=lambda node: (self.machine.distance(seed, node), node != seed, node))
            yield NodeSet(nearest[:width]).mask

    def _sorted(self, masks: Iterable[int]) -> list[Ranked]:
        by_ids = sorted(masks, key=lambda nodes: tuple(NodeSet.of_mask(nodes)))
        rows = [
            Ranked(nodes, self.distance(nodes), self.remote_initiators(nodes), order)
            for order, nodes in enumerate(by_ids)
        ]
        return sorted(rows, key=lambda row: (row.distance, row.remote_initiators, row.order))


def _joined(members: Iterable[int]) -> int:
    joined = 0
    for node in members:
        joined |= node
    return joined


def _cpus_by_memory_node(machine: Machine) -> dict[int, CpuSet]:
    """The CPUs of each node with memory; those of a node without count for the nearest node that has."""
    found = {node: machine.node_by_id[node].cpus for node in machine.memory_nodes}
    for node in machine.cpu_nodes - machine.memory_nodes:
        if found:
            near = min(found, key=lambda other: (machine.distance(node, other), other))
            found[near] |= machine.node_by_id[node].cpus
    return found

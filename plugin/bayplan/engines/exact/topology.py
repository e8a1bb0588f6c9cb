"""What depends on the machine only: distances, initiators, and the sets of nodes in the order of both.

Worked out once for a machine and kept, because a machine changes with hotplug only; `NearestNodes` once for a
set of allowed nodes.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import accumulate, combinations, compress
from math import comb
from operator import add
from typing import Final, TypeAlias

from bayplan.engines.exact.cpu_choice import CpuLayout
from bayplan.engines.exact.flow import bits
from bayplan.model.machine import MEMORY, Machine
from bayplan.sets import CpuSet, NodeSet

Pairs = Mapping[int, Mapping[int, int]]
"""Distance between two nodes, both masks with one bit and in the order of the ids."""

MAX_COMBINATIONS: Final = 1000
"""Up to here every set of a size is looked at (all sets of 8 nodes are 255). Above, the sets grown from each
node by adding the nearest ones, the roomiest nodes, and what `Branching` finds."""

DEVICES: Final = "devices"
"""What devices count as beside memory and huge pages."""

EIGHTHS: Final = 8
_MOST_KINDS: Final = 64
"""Each node is compared with so many kinds of nodes at most; to miss that two are alike only costs time."""
_MAX_REMEMBERED: Final = 1 << 16
"""Distances of so many sets are kept."""
_FEW_PAIRS: Final = 4
"""To go through the distances of all nodes costs as much as to look up so many pairs for each of them."""
_MOST_GROWN: Final = 64
"""From so many nodes sets are grown; on machines with hundreds of nodes not from every one."""

Place: TypeAlias = tuple[int, int, int]
"""Of a set of nodes: how many they are, the sum of their distances, and the remote initiators."""


class NearestNodes:
    """``nearest[node][r]`` is the sum of the distances from the node to the r nearest other *allowed* nodes,
    for r up to *width*. ``representative`` maps a node to a representative with identical distances: the
    lowest node that it could change places with."""

    __slots__ = ("nearest", "representative", "width")

    def __init__(self, pairs: Pairs, allowed: int, width: int) -> None:
        self.width = width
        rows = rows_on(pairs, allowed)
        nodes = list(rows)
        self.nearest: dict[int, list[int]] = {}
        for index, node in enumerate(nodes):
            row = rows[node]
            others = sorted(row[:index] + row[index + 1 :])
            self.nearest[node] = list(accumulate(others[:width], initial=0))
        self.representative = _representatives(nodes, rows)


def rows_on(pairs: Pairs, allowed: int) -> dict[int, list[int]]:
    """The distances from each of the *allowed* nodes to all of them, in the order of the ids.

    By position, because to look up as many as a million pairs of large bitmasks takes a second.
    """
    there = [node & allowed != 0 for node in pairs]
    return {node: list(compress(row.values(), there)) for node, row in pairs.items() if node & allowed}


def _representatives(nodes: list[int], rows: Mapping[int, list[int]]) -> dict[int, int]:
    """See `NearestNodes`. Two nodes can change places if their rows are equal once the two columns of these
    nodes are exchanged in one of them: with distances 12 within a socket and 21 between sockets, all nodes of
    a socket can."""
    position = {node: index for index, node in enumerate(nodes)}
    kinds: dict[tuple[int, ...], list[int]] = defaultdict(list)
    representatives = {}
    for node in nodes:
        row, here = rows[node], position[node]
        kind = kinds[tuple(sorted(row))]
        for other in kind:
            exchanged, there = rows[other].copy(), position[other]
            exchanged[here], exchanged[there] = row[here], row[there]
            if row == exchanged:
                representatives[node] = other
                break
        else:
            representatives[node] = node
            if len(kind) < _MOST_KINDS:
                kind.append(node)
    return representatives


class NodeTopology:
    """See the module. ``pairs`` has the distances of both directions added up: only their sum counts
    anywhere."""

    def __init__(self, machine: Machine, max_combinations: int = MAX_COMBINATIONS) -> None:
        self.machine, self.max_combinations = machine, max_combinations
        self._distances: dict[int, int] = {}
        self.places: dict[int, Place] = {}
        away = {node.id: machine.distances_from(node) for node in machine.nodes}
        masks = [1 << node for node in machine.node_ids]
        self.pairs = {
            1 << one: dict(zip(masks, map(add, there, back), strict=True))
            for (one, there), back in zip(away.items(), zip(*away.values(), strict=True), strict=True)
        }
        self._ranked: dict[tuple[int, int], list[int]] = {}
        self._nearest: dict[int, NearestNodes] = {}
        self._growing: dict[int, list[_Growing]] = {}
        self._initiators = {
            1 << node.id: node.initiators.mask for node in machine.nodes if node.initiators or not node.cpus
        }
        self._near = {1 << node: cpus.mask for node, cpus in _cpus_by_memory_node(machine).items()}
        self._cpus = {1 << node.id: node.cpus.mask for node in machine.nodes}
        self._more = _more_than_others(machine)

    @cached_property
    def cpu_layout(self) -> CpuLayout:
        """The CPUs by what they share."""
        return CpuLayout(self.machine)

    def distance(self, nodes: int) -> int:
        """Sum of the distances over all ordered pairs of different nodes; nodes that are gone have none."""
        found = self._distances.get(nodes)
        if found is None:
            found = self._summed(nodes)
            if len(self._distances) >= _MAX_REMEMBERED:
                self._distances.clear()
            self._distances[nodes] = found
        return found

    def place(self, nodes: int) -> Place:
        """What the machine says of *nodes*; it is kept in ``places``."""
        if len(self.places) >= _MAX_REMEMBERED:
            self.places.clear()
        found = nodes.bit_count(), self.distance(nodes), self.remote_initiators(nodes)
        self.places[nodes] = found
        return found

    def _summed(self, nodes: int) -> int:
        count = nodes.bit_count()
        if count * count <= _FEW_PAIRS * len(self.pairs):
            members = [node for node in bits(nodes) if node in self.pairs]
            return sum(
                [
                    sum(map(self.pairs[node].__getitem__, members[:index]))
                    for index, node in enumerate(members)
                ]
            )
        rows = rows_on(self.pairs, nodes).values()
        # Each pair is in two rows, and each node's distance from itself in one.
        return (sum(map(sum, rows)) - sum([row[index] for index, row in enumerate(rows)])) // 2

    def remote_initiators(self, nodes: int) -> int:
        """How many of *nodes* have initiators, none of which is among *nodes*, or no CPUs to begin with."""
        best = self._initiators
        if not best:
            return 0
        return sum(1 for node in bits(nodes) if node in best and not best[node] & nodes)

    def scarce(self, asked: Collection[str]) -> Mapping[int, int]:
        """What each node has more of than the ordinary node with the least, of huge pages of each size and of
        devices, without what is *asked* for: in eighths of what the node with the most has of it. Empty
        where all have the same."""
        found: dict[int, int] = {}
        for resource, by_node in self._more.items():
            if resource not in asked:
                for node, more in by_node.items():
                    found[node] = found.get(node, 0) + more
        return found

    def counted(self, cpus: int) -> dict[int, int]:
        """How many of *cpus* each node with memory has; a node without gives them to the nearest."""
        return {node: (near & cpus).bit_count() for node, near in self._near.items()}

    def near(self, nodes: int) -> int:
        """The CPUs that count as those of *nodes*."""
        found = self._near.get(nodes)  # most sets have one node
        if found is None:
            return sum([near for node, near in self._near.items() if node & nodes])
        return found

    def cpus_of(self, node: int) -> int:
        """The CPUs of *node* itself."""
        return self._cpus.get(node, 0)

    def cpus_near(self, nodes: NodeSet) -> CpuSet:
        """`near`, as sets."""
        return CpuSet.of_mask(self.near(nodes.mask))

    def nodes_near(self, cpus: CpuSet) -> NodeSet:
        """The nodes with memory that have some of *cpus*."""
        return NodeSet.of_mask(sum([node for node, near in self._near.items() if near & cpus.mask]))

    def ranked(self, allowed: int, width: int, rooms: Mapping[int, int]) -> list[int]:
        """The sets of *width* of the *allowed* nodes: by distance, initiators and ids.

        Where these are too many to enumerate only good ones, among them the nodes with the most of *rooms*.
        """
        sets = self._ranked.get((allowed, width))
        many = self.too_many(allowed, width)
        if sets is None:
            if many:
                sets = sorted(set(self._grown(allowed, width)), key=self._rank)
            else:
                # They come by ids already.
                every = list(map(sum, combinations(bits(allowed), width)))
                sets = sorted(every, key=lambda nodes: (self.distance(nodes), self.remote_initiators(nodes)))
            self._ranked[allowed, width] = sets
        if not many:
            return sets
        roomiest = sum(sorted(bits(allowed), key=lambda node: (-rooms.get(node, 0), node))[:width])
        if roomiest not in sets:
            sets = sets.copy()
            insort(sets, roomiest, key=self._rank)
        return sets

    def too_many(self, allowed: int, width: int) -> bool:
        """Whether the sets of *width* of the *allowed* nodes are more than are looked at one by one."""
        return comb(allowed.bit_count(), width) > self.max_combinations

    def nearest_nodes(self, allowed: int, width: int) -> NearestNodes:
        """The bounds of distances for sets of up to *width* of the *allowed* nodes."""
        found = self._nearest.get(allowed)
        if found is None or found.width < width:
            found = self._nearest[allowed] = NearestNodes(self.pairs, allowed, width)
        return found

    def _grown(self, allowed: int, width: int) -> Iterator[int]:
        """The sets of the *width* nodes that are nearest to some node, with their distances remembered."""
        growing = self._growing.get(allowed)
        if growing is None:
            rows = rows_on(self.pairs, allowed)
            nodes = list(rows)
            growing = self._growing[allowed] = [
                _Growing([nodes[other] for other in sorted(range(len(nodes)), key=rows[node].__getitem__)])
                for node in nodes[:: -(-len(nodes) // _MOST_GROWN)]
            ]
        for one in growing:
            one.grow(self.pairs, width)
            self._distances[one.sets[width]] = one.distances[width]
            yield one.sets[width]

    def _rank(self, nodes: int) -> tuple[int, int, tuple[int, ...]]:
        return self.distance(nodes), self.remote_initiators(nodes), tuple(NodeSet.of_mask(nodes))


class _Growing:
    """The sets of the first nodes of *order*, by their width, with the distances within each."""

    __slots__ = ("_order", "distances", "sets")

    def __init__(self, order: list[int]) -> None:
        self._order, self.sets, self.distances = order, [0], [0]

    def grow(self, pairs: Pairs, width: int) -> None:
        """Have the sets of up to *width* nodes."""
        for count in range(len(self.sets) - 1, width):
            node = self._order[count]
            added = sum(map(pairs[node].__getitem__, self._order[:count]))
            self.sets.append(self.sets[-1] | node)
            self.distances.append(self.distances[-1] + added)


def _more_than_others(machine: Machine) -> dict[str, dict[int, int]]:
    """See `NodeTopology.scarce`, by resource; nodes are masks. Nodes differ by what their kernel took at
    boot, so that everything is rounded."""
    has: dict[str, dict[int, int]] = {DEVICES: {}}
    for node in machine.nodes:
        if node.id in machine.ordinary_nodes:
            for resource, amount in {**node.capacity_bytes(), DEVICES: node.devices}.items():
                has.setdefault(resource, {})[1 << node.id] = amount
    by_resource = {}
    for resource, by_node in has.items():
        most = max(by_node.values(), default=0)
        if resource == MEMORY or not most:
            continue
        parts = {1 << node: 0 for node in machine.ordinary_nodes}
        parts |= {node: (2 * EIGHTHS * amount + most) // (2 * most) for node, amount in by_node.items()}
        least = min(parts.values())
        more = {node: part - least for node, part in parts.items() if part > least}
        if more:
            by_resource[resource] = more
    return by_resource


def _cpus_by_memory_node(machine: Machine) -> dict[int, CpuSet]:
    """The CPUs of each node with memory; those of a node without count for the nearest node that has."""
    found = {node: machine.node_by_id[node].cpus for node in machine.memory_nodes}
    for node in machine.cpu_nodes - machine.memory_nodes:
        if found:
            near = min(found, key=lambda other: (machine.distance(node, other), other))
            found[near] |= machine.node_by_id[node].cpus
    return found

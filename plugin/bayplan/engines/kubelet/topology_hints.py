"""Topology hints, and how far the nodes of a hint are from each other.

Topology hints: on which sets of NUMA nodes a resource could be had, and which of them are preferred.

kubelet's managers list every set, up to 2^n of them. Here a list may also be described by regions: all
sets inside some nodes (its *ground set*) that hold enough of something. A region is monotone (a set stays
in it when nodes of its ground set are added), which is what lets `merge` find the answer without listing.

Distances between NUMA nodes as kubelet's option prefer-closest-numa-nodes compares them.

Only the comparison; the distances come from the machine. Among sets of equal size the one with
the smaller average distance is closer; a node's distance to itself counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, combinations
from typing import Final

from msgspec import Struct, field

from bayplan.model.machine import LOCAL_DISTANCE, REMOTE_DISTANCE, Machine
from bayplan.sets import NodeSet


class Hint(Struct, frozen=True):
    """One set of nodes on which a resource could be had. ``nodes`` None: any node will do."""

    nodes: NodeSet | None
    preferred: bool


NO_HINT: Final = Hint(None, preferred=False)
"""What the Topology Manager has stored for a container that it knows nothing of, as under its policy none."""


class NodeAmounts(Struct, frozen=True):
    """At least ``needed`` of something, of which each node holds its amount.

    ``amounts`` maps node ids to what is there (CPUs, bytes, devices); nodes that are left out hold none.
    ``shared`` lists amounts that count once as soon as the set touches any of several nodes, such as a
    device attached to two nodes. Amounts are never negative.
    """

    amounts: Mapping[int, int]
    needed: int
    shared: tuple[tuple[NodeSet, int], ...] = ()

    def held(self, nodes: NodeSet) -> int:
        """How much of it *nodes* hold together."""
        total = sum(self.amounts.get(node, 0) for node in nodes)
        return total + sum(amount for where, amount in self.shared if not nodes.isdisjoint(where))


class OfSize(Struct, frozen=True):
    """Preferred are the sets of exactly this many nodes."""

    size: int

    def holds(self, nodes: NodeSet) -> bool:
        """Whether *nodes* are preferred."""
        return len(nodes) == self.size


class Touching(Struct, frozen=True):
    """Preferred are the sets which touch exactly ``count`` of the ``blocks`` (disjoint; sockets).

    The CPU Manager's option align-by-socket prefers in this way.
    """

    blocks: tuple[NodeSet, ...]
    count: int

    def holds(self, nodes: NodeSet) -> bool:
        """Whether *nodes* are preferred."""
        return sum(not nodes.isdisjoint(block) for block in self.blocks) == self.count


Preference = OfSize | Touching


class Region(Struct, frozen=True):
    """All non-empty sets M with ``must`` <= M <= ``ground`` in which every demand is met.

    Invariant (monotone): with M, every larger set inside the ground is in the region too. So the region is
    empty exactly when its ground is not in it.
    """

    ground: NodeSet
    demands: tuple[NodeAmounts, ...]
    preferred: Preference
    must: NodeSet = NodeSet()

    def __contains__(self, nodes: NodeSet) -> bool:
        return (
            bool(nodes)
            and nodes <= self.ground
            and self.must <= nodes
            and all(demand.held(nodes) >= demand.needed for demand in self.demands)
        )

    def __bool__(self) -> bool:
        return self.ground in self


class HintSet(Struct, frozen=True):
    """What a provider answers for one resource: hints one by one, and whole regions of them.

    The same nodes may be described more than once; that changes no answer. An empty set means that the
    resource cannot be had anywhere, which is not the same as having no preference.
    """

    hints: tuple[Hint, ...] = ()
    regions: tuple[Region, ...] = field(default=())

    def __bool__(self) -> bool:
        return bool(self.hints) or any(self.regions)

    def listed(self) -> tuple[Hint, ...]:
        """Every hint, in kubelet's order (size, then ids), the ones for any node first. Up to 2^n of them:
        for people, tests and small machines, never needed for a decision. Nodes that several regions hold
        are listed once, preferred if one of the regions prefers them."""
        found: dict[NodeSet, bool] = {}
        for region in self.regions:
            for nodes in subsets(region.ground):
                if nodes in region:
                    found[nodes] = found.get(nodes, False) or region.preferred.holds(nodes)
        hints = {*self.hints, *(Hint(nodes, preferred) for nodes, preferred in found.items())}
        return tuple(sorted(hints, key=_listing_order))


ProviderHints = Mapping[str, HintSet | None] | None
"""A provider's answer by resource name. None, nothing at all, or None for a resource: no preference."""

ANYWHERE: Final = HintSet((Hint(None, preferred=True),))
"""The provider has no preference."""

NOWHERE: Final = HintSet((Hint(None, preferred=False),))
"""What kubelet makes of an empty list: no set of nodes will do, and that is not preferred."""


def flatten(providers: Iterable[ProviderHints]) -> tuple[HintSet, ...]:
    """One hint set per resource of every provider, as kubelet's filterProvidersHints gives them.

    A provider or resource without preference becomes ANYWHERE, a resource without any hint NOWHERE.
    """
    sets: list[HintSet] = []
    for answer in providers:
        if not answer:
            sets.append(ANYWHERE)
            continue
        sets.extend(ANYWHERE if hints is None else hints or NOWHERE for hints in answer.values())
    return tuple(sets)


def bits(mask: int) -> list[int]:
    """The members of a mask, ascending. The searches work on bare masks, where a NodeSet per step would cost
    more than the step."""
    members = []
    while mask:
        low = mask & -mask
        members.append(low.bit_length() - 1)
        mask ^= low
    return members


def subsets(nodes: NodeSet) -> Iterable[NodeSet]:
    """All non-empty subsets, by size and then by ids: the order in which kubelet visits them."""
    ids = tuple(nodes)
    for size in range(1, len(ids) + 1):
        for members in combinations(ids, size):
            yield NodeSet(members)


def _listing_order(hint: Hint) -> tuple[int, tuple[int, ...], bool]:
    nodes = hint.nodes or NodeSet()
    return len(nodes), tuple(nodes), not hint.preferred


class Distances(Struct, frozen=True, dict=True):
    """``rows`` maps every node id to the distances from it, by node id; the kernel's defaults stand in for
    distances that are left out. Distances may be asymmetric."""

    rows: Mapping[int, Mapping[int, int]]

    @classmethod
    def of(cls, machine: Machine) -> "Distances":
        """The distances of *machine*."""
        return cls({node.id: node.distances for node in machine.nodes})

    def between(self, source: int, target: int) -> int:
        """The distance from one node to another, or to itself."""
        default = LOCAL_DISTANCE if source == target else REMOTE_DISTANCE
        return self.rows.get(source, {}).get(target, default)

    def total(self, mask: int) -> int:
        """The sum over all ordered pairs of nodes, each node with itself included. It orders sets of equal
        size as the average does."""
        members = bits(mask)
        return sum(self.between(a, b) for a in members for b in members)

    def added(self, costs: Sequence[int], ids: Sequence[int], chosen: int) -> Sequence[int]:
        """What each of the nodes before position *chosen* adds to a total once that node is in the set;
        *costs* says what each added before."""
        node = ids[chosen]
        return [costs[index] + self._pair(ids[index], node) for index in range(chosen)]

    def nearest(self, node: int, count: int) -> int:
        """The sum of the distances between a node and the *count* nodes nearest to it, both ways."""
        return self._nearest[node][count]

    @cached_property
    def _nearest(self) -> Mapping[int, Sequence[int]]:
        return {
            node: list(
                accumulate(sorted(self._pair(node, other) for other in self.rows if other != node), initial=0)
            )
            for node in self.rows
        }

    def _pair(self, a: int, b: int) -> int:
        return self.between(a, b) + self.between(b, a)

"""Which nodes: the fewest that hold what is needed, then the nearest to each other, then the lowest ids.

A need is a vector (resource -> amount), so that memory, huge pages and CPUs are asked for together.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from math import comb
from typing import Final

from bayplan.domain.topology import Machine
from bayplan.sets import NodeSet

MAX_COMBINATIONS: Final = 5000
"""Up to here every set of a size is looked at (all sets of 8 nodes are 255). Above, the sets grown from each
node by adding the nearest ones, and the richest nodes, which hold enough of a single resource if any set of
that size does."""

Amounts = Mapping[str, int]


def narrowest_width(free: Mapping[int, Amounts], need: Amounts) -> int | None:
    """How many nodes it takes at least: the smallest k for which the k richest nodes hold enough, in the
    worst of the resources. None when all nodes together do not."""
    width = 1
    for resource, amount in need.items():
        left, used = amount, 0
        for have in sorted((amounts.get(resource, 0) for amounts in free.values()), reverse=True):
            if left <= 0:
                break
            left, used = left - have, used + 1
        if left > 0:
            return None
        width = max(width, used)
    return width


def choose_nodes(
    machine: Machine,
    free: Mapping[int, Amounts],
    need: Amounts,
    penalty: Callable[[NodeSet], int],
) -> NodeSet | None:
    """The best set of nodes of *free* whose amounts together cover *need*, or None.

    Order: fewest nodes; lowest *penalty*; least sum of distances over all ordered pairs; lowest ids.
    """
    first_width = narrowest_width(free, need)
    if first_width is None:
        return None
    useful = [node for node in sorted(free) if any(free[node].get(resource, 0) for resource in need)]
    nodes = useful if len(useful) >= first_width else sorted(free)
    for width in range(first_width, len(nodes) + 1):
        best = min(
            (chosen for chosen in _sets(machine, free, nodes, width, need) if covers(free, chosen, need)),
            key=lambda chosen: (penalty(chosen), machine.total_distance(chosen), tuple(chosen)),
            default=None,
        )
        if best is not None:
            return best
    return None


def covers(free: Mapping[int, Amounts], nodes: NodeSet, need: Amounts) -> bool:
    """Whether *nodes* together have what is needed of every resource."""
    return all(
        sum(free[node].get(resource, 0) for node in nodes if node in free) >= amount
        for resource, amount in need.items()
    )


def book(free: Mapping[int, Amounts], nodes: NodeSet, need: Amounts) -> dict[int, dict[str, int]]:
    """Which node keeps how much of *need*: each resource is filled up node by node, lowest id first.

    Where *nodes* lack something the booking stays short by as much.
    """
    booked: dict[int, dict[str, int]] = {}
    for resource, amount in need.items():
        left = amount
        for node in nodes:
            part = min(left, free.get(node, {}).get(resource, 0))
            if part:
                booked.setdefault(node, {})[resource] = part
                left -= part
    return booked


def _sets(
    machine: Machine, free: Mapping[int, Amounts], nodes: list[int], width: int, need: Amounts
) -> Iterable[NodeSet]:
    if comb(len(nodes), width) <= MAX_COMBINATIONS:
        return (NodeSet(members) for members in combinations(nodes, width))
    grown = {_nearest(machine, nodes, seed, width) for seed in nodes}
    richest = {
        NodeSet(sorted(nodes, key=lambda node: (-free[node].get(resource, 0), node))[:width])
        for resource in need
    }
    return grown | richest


def _nearest(machine: Machine, nodes: list[int], seed: int, width: int) -> NodeSet:
    by_distance = sorted(nodes, key=lambda node: (machine.distance(seed, node), node != seed, node))
    return NodeSet(by_distance[:width])

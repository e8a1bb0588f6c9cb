"""Booking node by node, as kubelet does: whether nodes hold what is needed, and which keeps how much of it.

A need is a vector (resource -> amount), so that memory and huge pages are asked for together.
"""

from collections.abc import Mapping

from bayplan.sets import NodeSet

Amounts = Mapping[str, int]


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

"""The memory that a request needs, whether nodes have it, and which node gives how much, as kubelet does it.

A need is a vector (resource -> amount), so that memory and huge pages are asked for together. The managers'
own arithmetic, with groups and counts, is in `bayplan.engines.kubelet.memory.state`.
"""

from collections.abc import Mapping

from bayplan.model.decision import Request
from bayplan.model.machine import MEMORY
from bayplan.sets import NodeSet

Amounts = Mapping[str, int]


def memory_need(request: Request) -> dict[str, int]:
    """The memory resources that a Guaranteed request claims: its limit and its huge pages.

    A Guaranteed container whose limit is not visible claims no ordinary memory.
    """
    memory_bytes = request.memory.high_bytes if request.memory.exact else 0
    need = {MEMORY: memory_bytes, **request.hugepages_bytes}
    return {resource: amount for resource, amount in need.items() if amount}


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

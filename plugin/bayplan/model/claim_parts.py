"""What one claim promises on which nodes: everything on its set as a whole, or on each of its nodes by
itself, huge pages evenly, or all of it in proportion to the devices there.

Invariant: the parts of a claim sum to it, to the byte. Everybody who counts claims counts parts.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from bayplan.model.machine import MEMORY, hugepage_size_bytes
from bayplan.sets import NodeSet

Amounts = Mapping[str, int]
"""Resource -> bytes."""
Parts = tuple[tuple[NodeSet, Amounts], ...]
"""Sets of nodes with what is promised on each as a whole, single nodes first."""

_NOTHING: Final[Amounts] = {}


def sum_of(rows: Iterable[Amounts]) -> dict[str, int]:
    """The sums of *rows* by resource."""
    total: dict[str, int] = {}
    for row in rows:
        for resource, amount in row.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def hugepages_of(amounts_bytes: Amounts) -> Amounts:
    """The huge pages of *amounts_bytes*."""
    return {resource: amount for resource, amount in amounts_bytes.items() if resource != MEMORY}


def by_page_size(amounts_bytes: Amounts) -> dict[int, int]:
    """The huge pages of *amounts_bytes* by their size."""
    return {hugepage_size_bytes(resource): amount for resource, amount in hugepages_of(amounts_bytes).items()}


def divided(nodes: NodeSet, amounts_bytes: Amounts, even_bytes: Amounts = _NOTHING) -> Parts:
    """*amounts_bytes* on *nodes*, of which *even_bytes* are to lie evenly on them.

    What does not divide is on the lowest nodes, a byte each.
    """
    if not even_bytes:
        return ((nodes, amounts_bytes),)
    count = len(nodes)
    each = tuple(
        (
            NodeSet([node]),
            {
                resource: amount // count + (number < amount % count)
                for resource, amount in even_bytes.items()
            },
        )
        for number, node in enumerate(nodes)
    )
    rest = {resource: amount - even_bytes.get(resource, 0) for resource, amount in amounts_bytes.items()}
    rest = {resource: amount for resource, amount in rest.items() if amount}
    return (*each, (nodes, rest)) if rest else each


def in_proportion(amounts_bytes: Amounts, shares: Mapping[int, int]) -> Parts:
    """*amounts_bytes* on nodes by themselves, by their *shares*: whole huge pages, memory to the byte."""
    rows: dict[int, dict[str, int]] = {node: {} for node in sorted(shares)}
    for resource, amount in amounts_bytes.items():
        unit = 1 if resource == MEMORY else hugepage_size_bytes(resource)
        for node, units in proportional(amount // unit, shares).items():
            rows[node][resource] = units * unit
        lowest = rows[min(rows)]
        lowest[resource] += amount % unit
    return tuple(
        (NodeSet([node]), {resource: amount for resource, amount in row.items() if amount})
        for node, row in rows.items()
    )


def proportional(count: int, shares: Mapping[int, int]) -> dict[int, int]:
    """*count* divided by *shares*, as near to them as whole numbers are: what is left of the division goes to
    those who lack most, of equal ones to the lowest."""
    whole = sum(shares.values())
    found = {node: count * part // whole for node, part in shares.items()}
    left = count - sum(found.values())
    for node in sorted(shares, key=lambda one: (-(count * shares[one] % whole), one))[:left]:
        found[node] += 1
    return found

"""What one claim promises on which nodes: everything on its set as a whole, or huge pages evenly, on each of
its nodes by itself.

Invariant: the parts of a claim sum to it, to the byte. Everybody who counts claims counts parts.
"""

from collections.abc import Mapping
from typing import Final

from bayplan.model.machine import MEMORY
from bayplan.sets import NodeSet

Amounts = Mapping[str, int]
"""Resource -> bytes."""
Parts = tuple[tuple[NodeSet, Amounts], ...]
"""Sets of nodes with what is promised on each as a whole, single nodes first."""

_NOTHING: Final[Amounts] = {}


def hugepages_of(amounts_bytes: Amounts) -> Amounts:
    """The huge pages of *amounts_bytes*."""
    return {resource: amount for resource, amount in amounts_bytes.items() if resource != MEMORY}


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

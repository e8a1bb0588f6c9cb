"""How much earlier relief begins on nodes that lose memory fast: a fixed band would be gone within one look.

Only what is lost beside the promises counts. What an owner uses of its promise is expected of the node no
longer, and what relief itself moved to a node is not lost there. Pure.
"""

from collections.abc import Mapping
from typing import Final

from bayplan.placement.page_placement import LivePages, NodeMemory

LEAD_S: Final = 2.0
"""The next look is a second away at most, and then pages move within half a second."""
LEAST_S: Final = 1.0
"""While pages are moved looks follow each other at once: what is lost in so little time may be all of it."""


def soon_lost_bytes(
    before: LivePages,
    nodes: Mapping[int, NodeMemory],
    expected_bytes: Mapping[int, int],
    passed_s: float,
    most_bytes: int,
) -> dict[int, int]:
    """By node, what it loses within `LEAD_S` if it goes on as since *before*, *passed_s* ago; *most_bytes* at
    most, which is what can be moved meanwhile. *nodes* have what they have now, and are expected to give
    *expected_bytes*. Nodes that lose nothing are left out.
    """
    arrived: dict[int, int] = {}
    for move in before.plan.moves:
        arrived[move.target] = arrived.get(move.target, 0) + move.amount_bytes
    found = {}
    for node, now in nodes.items():
        if (was := before.nodes.get(node)) is None:
            continue
        spare_bytes = now.room_bytes - expected_bytes.get(node, 0)
        spare_before_bytes = was.room_bytes - before.plan.expected_bytes.get(node, 0)
        lost_bytes = spare_before_bytes - spare_bytes - arrived.get(node, 0)
        if lost_bytes > 0:
            found[node] = min(most_bytes, round(lost_bytes * LEAD_S / max(passed_s, LEAST_S)))
    return found


def widened(
    start_bytes: Mapping[int, int], goal_bytes: Mapping[int, int], soon_lost: Mapping[int, int]
) -> tuple[dict[int, int], dict[int, int]]:
    """*start_bytes* and *goal_bytes* where relief begins at what is *soon_lost*, if that is more; it ends as
    far beyond as ever."""
    more = {node: max(0, soon_lost.get(node, 0) - band) for node, band in start_bytes.items()}
    return (
        {node: band + more[node] for node, band in start_bytes.items()},
        {node: goal + more.get(node, 0) for node, goal in goal_bytes.items()},
    )

"""Nodes that lose memory: how much earlier relief begins there, and whether they have lost so much that it
has to be counted again who holds what. Pure.

A fixed band would be gone within one look. Only what is lost beside the promises counts: what an owner uses
of its promise is expected of the node no longer, and what relief itself moved to a node is not lost there.

Numbers of nodes can be had at any time, those of containers cannot. So by the numbers of a node alone it is
judged whether what was worked out when all was counted still holds.
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


def have_lost_much(
    before: LivePages, nodes: Mapping[int, NodeMemory], bands_bytes: Mapping[int, int]
) -> bool:
    """Whether one of *nodes* lost half of what it had at *before* beside what it is expected to give and its
    band, or half a band where that is little."""
    return any(
        before.nodes[node].room_bytes - now.room_bytes > _bearable_bytes(before, node, bands_bytes)
        for node, now in nodes.items()
    )


def have_to_reclaim(
    before: LivePages, nodes: Mapping[int, NodeMemory], bands_bytes: Mapping[int, int]
) -> bool:
    """Whether one of *nodes* has less free than what it is soon to give, so that some should be reclaimed."""
    return any(now.free_bytes < _soon_bytes(before, node, bands_bytes) for node, now in nodes.items())


def enough_free_bytes(before: LivePages, bands_bytes: Mapping[int, int]) -> dict[int, int]:
    """By node, the free bytes with which neither of both is true of it, whatever became of the rest."""
    return {
        node: max(
            was.room_bytes - _bearable_bytes(before, node, bands_bytes),
            _soon_bytes(before, node, bands_bytes),
            0,
        )
        for node, was in before.nodes.items()
    }


def _bearable_bytes(before: LivePages, node: int, bands_bytes: Mapping[int, int]) -> int:
    band_bytes = bands_bytes.get(node, 0)
    spare_bytes = before.nodes[node].room_bytes - before.plan.expected_bytes.get(node, 0) - band_bytes
    return max(spare_bytes // 2, band_bytes // 2)


def _soon_bytes(before: LivePages, node: int, bands_bytes: Mapping[int, int]) -> int:
    return min(before.plan.expected_bytes.get(node, 0), bands_bytes.get(node, 0))

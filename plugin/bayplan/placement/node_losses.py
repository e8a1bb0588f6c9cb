"""Whether nodes have lost so much that it has to be counted again who holds what on them. Pure.

Numbers of nodes can be had at any time, those of containers cannot. So by the numbers of a node alone it is
judged whether what was worked out when all was counted still holds.
"""

from collections.abc import Mapping

from bayplan.placement.page_placement import LivePages, NodeMemory


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

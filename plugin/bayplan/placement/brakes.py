"""Which containers' memory may grow by how much, while nodes cannot give yet what was promised there.

Pages that are in the way move at one rate, and containers touch memory at a higher one. Until a promise is
backed, the kernel therefore slows down the containers that could take its memory (`memory.high`), instead of
killing one. Two kinds are slowed down. A container whose own promise has no memory yet may grow by less than
it lacks. So may any other container that starts, or was seen to take memory, where it could soon take what is
promised to containers that cannot go elsewhere. A container on nodes that have enough for all, or one that
does not grow, is left alone.

Invariant: on each of these nodes, what all of those together may take is at most what is there. A container
may lie on several of its nodes, and which one the kernel takes is not known: its growth counts on each. Pure.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from bayplan.placement.page_placement import LivePages, takeable_bytes
from bayplan.quantity import MIB
from bayplan.sets import NodeSet

LEAST_GROWTH_BYTES: Final = 2 * MIB
"""A container that took less of a node than this since the look before is not growing there: counters lag,
and programs give memory back and take it again."""
_SLICE_BYTES: Final = 4 * MIB
"""A container that has room elsewhere may always take so much of its promise: where it takes it from shows
whether it is in the way of others."""
_FEW: Final = 16
"""A container that took less than this part of what it took of a node goes on elsewhere."""


class _Taker(NamedTuple):
    """A container that is about to take memory: so much of nodes that are ``short``, and so much of others,
    of which only those count where it takes memory already. It gets ``least_bytes`` in any case."""

    short: NodeSet
    short_bytes: int
    others: NodeSet
    other_bytes: int
    least_bytes: int = 0


def unbacked(live: LivePages) -> frozenset[str]:
    """The ids of the containers that must stay on nodes that have not got what was promised there."""
    return frozenset(
        key for key, one in live.containers.items() if one.outstanding_bytes and one.nodes <= live.short
    )


def allowed_growth(
    live: LivePages, grown_bytes: Mapping[str, Mapping[int, int]], held_back: Collection[str] = ()
) -> dict[str, int]:
    """How many bytes more each container may use for now, by its id. A container that may use all of its
    promise, or is in the way of none, is left out.

    *grown_bytes* is what each took of each node since the look before, by container and node. *held_back* are
    the ids of containers that are about to start, or are slowed down already, so that they would be seen to
    grow no longer.
    """
    short = live.short
    at_risk = NodeSet(node for risk in live.plan.risks for node in risk.nodes)
    takers: dict[str, _Taker] = {}
    for container in live.containers.values():
        key, amount = container.container_id, container.outstanding_bytes
        if amount and container.nodes <= short:
            takers[key] = _Taker(container.nodes, amount, NodeSet(), 0)
            continue
        row = grown_bytes.get(key, {})
        taken = sum(row.get(node, 0) for node in container.nodes)
        grows = taken >= LEAST_GROWTH_BYTES
        if not (grows or key in held_back):
            continue
        soon_bytes = max(2 * taken, LEAST_GROWTH_BYTES)
        if not grows or key in held_back:
            # How fast it would go on is not known: looks may follow each other within a moment.
            soon_bytes = max(soon_bytes, amount)
        there = container.nodes & NodeSet(live.nodes)
        used = NodeSet(node for node in there if row.get(node, 0) * _FEW >= taken)
        # It goes on where it was, until nothing is left there.
        if not grows or sum(live.nodes[node].room_bytes for node in used) <= soon_bytes:
            used = there
        if amount:
            takers[key] = _Taker(
                used & short, min(soon_bytes, amount), used - short, soon_bytes, _SLICE_BYTES
            )
        else:
            # Beyond its claim no container was promised that it goes on.
            takers[key] = _Taker(used & short, LEAST_GROWTH_BYTES, used & at_risk - short, soon_bytes)
    takeable = _Takeable(live)
    wanted, wanted_of_others = Counter[int](), Counter[int]()
    for taker in takers.values():
        wanted.update(dict.fromkeys(taker.short, taker.short_bytes))
        wanted_of_others.update(dict.fromkeys(taker.others, taker.other_bytes))
    found = {}
    for key, taker in takers.items():
        nodes = takeable.for_nodes(live.containers[key].nodes, taker.others)
        part = _part(live, wanted, wanted_of_others, taker, nodes)
        if part is not None:
            found[key] = part
    return found


def _part(
    live: LivePages,
    wanted: Mapping[int, int],
    wanted_of_others: Mapping[int, int],
    taker: _Taker,
    takeable: Mapping[int, int],
) -> int | None:
    """How many bytes *taker* may take; None if that is all it wants. On each node every container gets the
    same part of what it wants there: *wanted* is what all want of short nodes, *wanted_of_others* what all
    want of others, by node."""
    shares = [
        (live.nodes[node].room_bytes, wanted[node], taker.short_bytes)
        for node in taker.short & NodeSet(live.nodes)
    ]
    # Where all that is there may be taken no other container needs it.
    shares += [
        (has, wanted_of_others[node], taker.other_bytes)
        for node, has in takeable.items()
        if has < live.nodes[node].room_bytes
    ]
    parts = [its * has // demand for has, demand, its in shares if has < demand]
    return max(taker.least_bytes, min(parts)) if parts else None


class _Takeable:
    """What can be taken of single nodes while others still get there what they were promised."""

    def __init__(self, live: LivePages) -> None:
        self._live = live
        self._found: dict[tuple[NodeSet, int], int] = {}

    def for_nodes(self, nodes: NodeSet, there: NodeSet) -> dict[int, int]:
        """What a container on *nodes* may take of each node of *there*. A container that can go wherever this
        one can has the same numbers."""
        found = {}
        for node in there & NodeSet(self._live.nodes):
            if (nodes, node) not in self._found:
                others = [one for one in self._live.containers.values() if not nodes <= one.nodes]
                self._found[nodes, node] = takeable_bytes(self._live.nodes, others, node)
            found[node] = self._found[nodes, node]
        return found


def grown(before: LivePages | None, now: LivePages) -> dict[str, dict[int, int]]:
    """What each container took of each node between two looks, as far as it took any. Of one that was not
    there before it is what it holds; nothing is known before the first look."""
    by_container: dict[str, dict[int, int]] = {}
    if before is None:
        return by_container
    for key, pages in now.containers.items():
        was = before.containers[key].held_bytes if key in before.containers else {}
        arrived = _arrived(before, key)
        row = {
            node: more
            for node, amount in pages.held_bytes.items()
            if (more := amount - was.get(node, 0) - arrived.get(node, 0)) > 0
        }
        if row:
            by_container[key] = row
    return by_container


def _arrived(before: LivePages, key: str) -> dict[int, int]:
    """The bytes that were to be moved to nodes of the container *key* meanwhile, by node: it did not take
    these itself."""
    found: dict[int, int] = {}
    for move in before.plan.moves:
        if move.container_id == key:
            found[move.target] = found.get(move.target, 0) + move.amount_bytes
    return found

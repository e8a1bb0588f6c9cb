"""Which promised containers get more nodes, because their own cannot give what they were promised to give.

Memory that nobody promised, or an eviction threshold, can take what the ledger counts on. Pages that may lie
elsewhere are moved first (`page_placement`). For what still has no place a container is promised the same on
one node more, and on those without which its set would cross another one with promises, if the exact engine's
flows prove that all of it fits there beside every other promise, and the nodes have the memory. Its pages may
then be moved there, too. It goes back when its own nodes have what they need. What may not be moved stays
(`page_owners.stays`). Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from bayplan.engines.exact.moves import MAX_MOVES, Mover, movers_of, wider_sets
from bayplan.engines.exact.resources import ResourceFlows
from bayplan.engines.exact.topology import NodeTopology
from bayplan.model.basis import Basis
from bayplan.model.decision import MEMORY_TAKEN, Move, Reason
from bayplan.model.ledger import Ledger
from bayplan.placement.page_owners import stays
from bayplan.placement.page_placement import ContainerPages, LivePages, short_nodes, unmet_bytes
from bayplan.quantity import MIB
from bayplan.sets import NodeSet

MOST_TRIED: Final = 16
"""So many containers are tried: each costs a flow for each node."""
LEAST_GAIN_BYTES: Final = 32 * MIB
"""Nobody gets more nodes for less than this, unless that is all that lacks; several together may."""


def widenings(basis: Basis, live: LivePages) -> tuple[Move, ...]:
    """All that get more nodes, so that as much as possible has a place at once: who starts meanwhile is not
    to wait for one look after the other."""
    ledger, worth = basis.ledger, 0
    found = list[Move]()
    left_bytes = unmet_bytes(live.nodes, live.everybody)
    while len(found) < MAX_MOVES and (move := widening(basis.with_ledger(ledger), live)) is not None:
        found.append(move)
        ledger = ledger.moved([move])
        one = replace(live.containers[move.container_id], nodes=move.after)
        live = replace(live, containers={**live.containers, one.container_id: one})
        now_bytes = unmet_bytes(live.nodes, live.everybody)
        if not now_bytes or left_bytes - now_bytes >= LEAST_GAIN_BYTES:
            worth, left_bytes = len(found), now_bytes
    moves: dict[str, Move] = {}
    for move in found[:worth]:
        known = moves.get(move.container_id, move)
        moves[move.container_id] = replace(move, before=known.before)
    return tuple(moves.values())


def widening(basis: Basis, live: LivePages) -> Move | None:
    """The container that gets another node, with all of its nodes then; None if nothing lacks or that would
    not help.

    The smallest that suffices; if none does, the one that helps most.
    """
    lacking_bytes = unmet_bytes(live.nodes, live.everybody)
    if not lacking_bytes:
        return None
    flows, topology = ResourceFlows(basis), NodeTopology(basis.machine)
    best, best_bytes = None, lacking_bytes
    for mover in list(_movers(flows, live))[:MOST_TRIED]:
        key, before = mover.entry.container_id, mover.claim.nodes
        for wider in wider_sets(topology, flows, mover):
            if not wider <= NodeSet(live.nodes):
                continue
            left_bytes = unmet_bytes(live.nodes, _with_nodes(live, {key: wider}))
            if left_bytes < best_bytes:
                best, best_bytes = Move(key, mover.entry.decision.request.name, before, wider), left_bytes
        if best is not None and not best_bytes:
            break
    return best


def with_widened(ledger: Ledger, move: Move, live: LivePages) -> Ledger:
    """*ledger* after *move*, which says why."""
    # Where something has no place, something is at risk; of those sets that which the container may lie on.
    risk = min(live.plan.risks, key=lambda one: not move.before & one.nodes)
    moved = ledger.moved([move])
    entry = moved.entries[move.container_id]
    reasons = (*entry.decision.reasons, Reason(MEMORY_TAKEN, str(risk)))
    return moved.with_entry(replace(entry, decision=replace(entry.decision, reasons=reasons)))


def goes_back(live: LivePages, moves: Iterable[Move], kept_bytes: Mapping[int, int]) -> Move | None:
    """The first of *moves*, which lead containers back to the nodes they were placed on, that can be made:
    these nodes can give then what is outstanding there with *kept_bytes* left beside it, without anybody's
    pages leaving them. So nobody goes back to a node that is short, nor to where it or somebody else would
    have to leave again."""
    for move in moves:
        if move.container_id in live.containers:
            back = _with_nodes(live, {move.container_id: move.after})
            if not short_nodes(live.nodes, back, kept_bytes) & move.after:
                return move
    return None


def _movers(flows: ResourceFlows, live: LivePages) -> Iterator[Mover]:
    """What may be moved: those that may lie where memory lacks, then those that may make room for these; the
    smallest promises first."""
    at_risk = NodeSet(node for one in live.plan.risks for node in one.nodes)

    def order(mover: Mover) -> tuple[bool, int, str]:
        return not mover.claim.nodes & at_risk, mover.size_bytes, mover.entry.container_id

    for mover in sorted(movers_of(flows), key=order):
        if mover.entry.container_id in live.containers and not stays(mover.entry):
            yield mover


def _with_nodes(live: LivePages, nodes: Mapping[str, NodeSet]) -> list[ContainerPages]:
    """Everybody, as if some containers could lie on other *nodes*. What one holds beside these is taken for
    pages that it takes along."""
    return [
        replace(one, nodes=nodes[one.container_id]) if one.container_id in nodes else one
        for one in live.everybody
    ]

"""Making room: which flexible containers get more nodes, so that a request fits that would not fit otherwise.

A container only ever gets wider: its pages stay until the kernel or the daemon moves them, and what it was
promised stays promised. Containers that are pinned, require nodes or a tier, were placed under a strict
policy or have a memory policy are not moved. As few as suffice, the smallest first; none if it takes more
than `MAX_MOVES`.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from heapq import nlargest
from operator import or_
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.exact.claiming import is_confined, without
from bayplan.engines.exact.flow import bits, crosses
from bayplan.engines.exact.question import StepBudget
from bayplan.engines.exact.resources import Parts, ResourceFlows, parts_of
from bayplan.engines.exact.topology import NodeTopology
from bayplan.engines.exact.witness import share
from bayplan.model.basis import Basis
from bayplan.model.claims import Amounts
from bayplan.model.decision import Claim, Move
from bayplan.model.ledger import Entry, Ledger
from bayplan.sets import NodeSet

MAX_MOVES: Final = 16
"""How many containers one decision may move: each is an update in the reply that the runtime waits for."""
MAX_RETURNS: Final = 4
"""How many containers are moved back at once: the witness of each is computed."""


_STEPS_OF_A_TRIAL: Final = 40
_SETS_A_STEP: Final = 8
"""What it costs to try something on a copy of the flows."""


class Mover(Struct, frozen=True):
    """A container that could become wider: its claim, and the widest set of nodes that it may have."""

    entry: Entry
    claim: Claim
    widest: NodeSet

    @property
    def size_bytes(self) -> int:
        """What it claims of all resources."""
        return sum(self.claim.amounts_bytes.values())


def with_all_widened(flows: ResourceFlows, movers: Iterable[Mover]) -> ResourceFlows:
    """The flows as if all *movers* were as wide as they may be: no moves make room for what does not fit
    there."""
    leaving = {(resource, mover.claim.nodes) for mover in movers for resource in mover.claim.amounts_bytes}
    claims = {
        (resource, NodeSet.of_mask(mask)): amount
        for resource, flow in flows.by_resource.items()
        for mask, amount in flow.claimed.items()
    }
    # Where most sets are left by all, it is quicker to begin with empty flows.
    afresh = 2 * len(leaving) > len(claims)
    loose, changes = flows.empty() if afresh else flows.copy(), claims if afresh else {}
    for mover in movers:
        for resource, amount_bytes in mover.claim.amounts_bytes.items():
            for nodes, difference in ((mover.claim.nodes, -amount_bytes), (mover.widest, amount_bytes)):
                changes[resource, nodes] = changes.get((resource, nodes), 0) + difference
    # Those that leave make the room that those that come take.
    for (resource, nodes), difference in sorted(changes.items(), key=lambda one: one[1]):
        if difference:
            loose.flow(resource).change(nodes.mask, difference)
    return loose


class RoomSearch:
    """What it takes to make room on one set or another, for one decision. *flows* are those of the ledger
    that the *movers* are of; *budget* bounds what is tried."""

    def __init__(
        self, topology: NodeTopology, flows: ResourceFlows, movers: Sequence[Mover], budget: StepBudget
    ) -> None:
        self.topology, self.flows, self.movers, self.budget = topology, flows, movers, budget
        self._claimed = [other for flow in flows.by_resource.values() for other in flow.wide]

    def make(self, nodes: int, amounts: Amounts, parts: Parts) -> dict[str, NodeSet]:
        """The containers that must become wider so that *amounts* fit on *nodes*, divided into *parts*, with
        their new nodes.

        Empty if no moves help, or if that took too many steps to find out.
        """
        for most in (self.flows.bound, self.flows.room):
            lacking = without(amounts, most(nodes, amounts))
            if _too_small(self.movers, lacking):
                return {}
        chosen = self._fewest(self._in_the_way(parts), parts, lacking)
        if not chosen or len(chosen) > MAX_MOVES:
            return {}
        sets = {mover.entry.container_id: mover.widest for mover in chosen}
        for mover in chosen:
            for wider in self._wider_sets(mover):
                trial = {**sets, mover.entry.container_id: wider}
                if self._works(chosen, trial, parts):
                    sets = trial
                    break
        return sets

    def _take(self, movers: int = 0) -> bool:
        """Count a trial with that many movers against the budget; False if it is used up."""
        each = _STEPS_OF_A_TRIAL // 2 + len(self._claimed) // _SETS_A_STEP
        return self.budget.take(_STEPS_OF_A_TRIAL + (1 + movers) * each)

    def _in_the_way(self, parts: Parts) -> list[Mover]:
        """The movers within the minimum cut, which grows as they are taken to be wider; none if even with
        all of them wider the request does not fit."""
        candidates = {mover.entry.container_id: mover for mover in self.movers}
        relaxed, movers = self.flows.copy(), list[Mover]()
        while candidates:
            cut = relaxed.cut(parts)
            if cut is None:
                return movers
            within = [one for one in candidates.values() if one.claim.nodes <= cut.nodes]
            useful = [one for one in within if not one.widest <= cut.nodes]
            if not useful or not self._take(len(useful)):
                return []
            for mover in useful:
                del candidates[mover.entry.container_id]
                relaxed.change(mover.claim, -1)
                relaxed.change(replace(mover.claim, nodes=mover.widest))
            movers += useful
        return movers if relaxed.cut(parts) is None else []

    def _fewest(self, movers: Sequence[Mover], parts: Parts, lacking: Amounts) -> list[Mover]:
        """One mover if one suffices, the smallest such; else the fewest of the largest, without those that
        are not needed after all. Each try costs a flow, so that nothing here tries all subsets."""
        by_size = sorted(movers, key=lambda mover: (mover.size_bytes, mover.entry.container_id))
        if _too_small(movers, lacking):
            return []

        def suffice(some: Sequence[Mover]) -> bool:
            return self._works(some, _widest(some), parts)

        for mover in by_size:
            if not without(lacking, mover.claim.amounts_bytes) and suffice([mover]):
                return [mover]
        most = range(1, min(len(by_size), 2 * MAX_MOVES) + 1)
        count = bisect_left(most, x=True, key=lambda k: suffice(by_size[-k:]))
        kept = by_size[-most[count] :] if count < len(most) else []
        for mover in tuple(kept):
            fewer = [one for one in kept if one is not mover]
            if suffice(fewer):
                kept = fewer
        return kept

    def _works(self, movers: Sequence[Mover], sets: Mapping[str, NodeSet], parts: Parts) -> bool:
        """Whether everything fits once the *movers* have the nodes in *sets*."""
        if not self._take(len(movers)):
            return False
        trial = self.flows.copy()
        for mover in movers:
            trial.release(mover.claim)
        moved = [(sets[mover.entry.container_id].mask, mover.claim.amounts_bytes) for mover in movers]
        return trial.carry([*moved, *parts])

    def _wider_sets(self, mover: Mover) -> list[NodeSet]:
        """One node more, without crossing a set with promises, the nearest first."""
        own = mover.claim.nodes.mask
        masks = [own | node for node in bits(mover.widest.mask & ~own)]
        self.budget.take(len(masks) * (1 + len(self._claimed) // _SETS_A_STEP))
        clean = [mask for mask in masks if not any(crosses(mask, other) for other in self._claimed)]
        clean.sort(key=lambda mask: (self.topology.distance(mask), mask))
        return [NodeSet.of_mask(mask) for mask in clean]


def moves_to(ledger: Ledger, sets: Mapping[str, NodeSet]) -> tuple[Move, ...]:
    """The *sets* as moves out of *ledger*."""
    found = []
    for container_id, wider in sorted(sets.items()):
        decision = ledger.entries[container_id].decision
        found.append(Move(container_id, decision.request.name, decision.placement.promise.nodes, wider))
    return tuple(found)


def wider_sets(topology: NodeTopology, flows: ResourceFlows, mover: Mover) -> list[NodeSet]:
    """For each node that the *mover* may get the smallest set with it on which all of its claim fits beside
    all other promises; those with few nodes first, then the nearest. None crosses another set with promises,
    unless the mover may have no larger one that does not."""
    own, widest, claimed = mover.claim.nodes.mask, mover.widest.mask, flows.claimed_sets()
    masks = set[int]()
    for node in bits(widest & ~own):
        clean = _uncrossed(own | node, claimed)
        masks.add(own | node if clean & ~widest else clean)
    without_it = flows.copy()
    without_it.change(mover.claim, -1)
    fitting = [mask for mask in masks if without_it.fits([(mask, mover.claim.amounts_bytes)])]
    fitting.sort(key=lambda one: (one.bit_count(), topology.distance(one), one))
    return [NodeSet.of_mask(mask) for mask in fitting]


def _uncrossed(mask: int, claimed: Collection[int]) -> int:
    """The smallest set with all of *mask* that crosses none of those *claimed*."""
    while crossed := [other for other in claimed if crosses(mask, other)]:
        mask = reduce(or_, crossed, mask)
    return mask


def measured(moves: Iterable[Move], after: Basis) -> tuple[Move, ...]:
    """*moves* with the bytes that the witness of *after* has outside the old nodes."""
    found = []
    for move in moves:
        moved_bytes = _outside_bytes(after, move.container_id, move.before)
        found.append(replace(move, moved_bytes=moved_bytes))
    return tuple(found)


def moves_back(flows: ResourceFlows, staying: Collection[str]) -> tuple[Move, ...]:
    """The first few moves that lead containers back: those that became wider, if there is room again where
    they were placed, and those that are to leave nodes together with their pages; none of *staying*. A
    container that lacks a part of its promise stays wide: on more nodes it is more likely to get that
    part."""
    trial, moves = None, []
    for container_id, entry in sorted(flows.ledger.entries.items()):
        if container_id in staying or not entry.decision.placement.promise.amounts_bytes:
            continue
        placement, claim = entry.decision.placement, entry.decision.placement.claimed
        if placement.leaving is not None:
            # What it is promised is elsewhere already.
            before = claim.nodes | placement.leaving
            moves.append(Move(container_id, entry.decision.request.name, before, claim.nodes))
        if placement.original_nodes is None or claim.short_bytes or not is_confined(entry.decision.request):
            continue
        trial = trial or flows.copy()
        back = replace(claim, nodes=placement.original_nodes)
        trial.change(claim, -1)
        if trial.fits(parts_of(back)):
            trial.change(back)
            moved_bytes = _outside_bytes(flows.basis, container_id, back.nodes)
            name = entry.decision.request.name
            moves.append(Move(container_id, name, claim.nodes, back.nodes, moved_bytes))
            if len(moves) >= MAX_RETURNS:
                break
        else:
            trial.change(claim)
    return tuple(moves)


def _outside_bytes(basis: Basis, container_id: str, nodes: NodeSet) -> int:
    """What the witness has of a container outside of *nodes*."""
    spread = share(basis, container_id)
    return sum(sum(row.values()) for node, row in spread.items() if node not in nodes)


def movers_of(flows: ResourceFlows) -> list[Mover]:
    """All containers that may become wider, by id."""
    everywhere, found = flows.machine.ordinary_nodes, []
    for _, entry in sorted(flows.ledger.entries.items()):
        promise = entry.decision.placement.promise
        if promise.flexible and promise.amounts_bytes and not everywhere <= promise.nodes:
            found.append(Mover(entry, entry.decision.placement.claimed, promise.nodes | everywhere))
    return found


def _too_small(movers: Iterable[Mover], lacking: Amounts) -> bool:
    """Whether even the largest that may be moved at once have less than is lacking."""
    claims = [mover.claim.amounts_bytes for mover in movers]
    return any(
        sum(nlargest(MAX_MOVES, [claim.get(resource, 0) for claim in claims])) < amount_bytes
        for resource, amount_bytes in lacking.items()
    )


def _widest(movers: Iterable[Mover]) -> dict[str, NodeSet]:
    return {mover.entry.container_id: mover.widest for mover in movers}

"""Making room: which flexible containers get more nodes, so that a request fits that would not fit otherwise.

A container only ever gets wider: its pages stay until the kernel or somebody else moves them, and what it was
promised stays promised. Nobody is moved who was pinned, required nodes or a tier, was placed under a strict
policy or has a memory policy. As few as suffice, the smallest first; none if it takes more than `MAX_MOVES`.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import Final

from bayplan.domain.decision import Claim, Move
from bayplan.domain.exact.books import Amounts, Books, claim_of
from bayplan.domain.exact.claiming import is_confined, without
from bayplan.domain.exact.flow import bits, crosses
from bayplan.domain.exact.sites import Site
from bayplan.domain.exact.witness import share
from bayplan.domain.ledger import Entry, Ledger
from bayplan.sets import NodeSet

MAX_MOVES: Final = 16
"""How many containers one decision may move: each is an update in the reply that the runtime waits for."""
MAX_RETURNS: Final = 4
"""How many containers are told at once that they can go back: the witness of each is worked out."""


@dataclass(frozen=True, slots=True)
class _Mover:
    """A container that could become wider: its claim, and the widest set it may have."""

    entry: Entry
    claim: Claim
    widest: NodeSet

    @property
    def size_bytes(self) -> int:
        return sum(self.claim.amounts_bytes.values())


def with_all_wider(books: Books, ledger: Ledger) -> Books | None:
    """The books as if everybody who may become wider were as wide as possible: what does not fit there, no
    moves make room for. None if there is nobody."""
    movers = _movers(books, ledger)
    if not movers:
        return None
    loose = books.copy()
    for mover in movers:
        loose.change(mover.claim, -1)
        loose.change(replace(mover.claim, nodes=mover.widest))
    return loose


def make_room(site: Site, books: Books, ledger: Ledger, nodes: int, amounts: Amounts) -> dict[str, NodeSet]:
    """The containers that must become wider so that *amounts* fit on *nodes*, with their new nodes.

    Empty if no moves help. *books* are those of *ledger*.
    """
    movers = _in_the_way(books, ledger, nodes, amounts)
    chosen = _fewest(books, movers, nodes, amounts)
    if not chosen or len(chosen) > MAX_MOVES:
        return {}
    sets = {mover.entry.container_id: mover.widest for mover in chosen}
    for mover in chosen:
        for wider in _wider_sets(site, books, mover):
            trial = {**sets, mover.entry.container_id: wider}
            if _works(books, chosen, trial, nodes, amounts):
                sets = trial
                break
    return sets


def moves_to(ledger: Ledger, sets: Mapping[str, NodeSet]) -> tuple[Move, ...]:
    """The *sets* as moves out of *ledger*."""
    found = []
    for container_id, wider in sorted(sets.items()):
        entry = ledger.entries[container_id]
        claim = claim_of(entry)
        before = NodeSet() if claim is None else claim.nodes
        found.append(Move(container_id, entry.decision.request.name, before, wider))
    return tuple(found)


def measured(moves: Iterable[Move], after: Ledger, books: Books) -> tuple[Move, ...]:
    """*moves* with the bytes that the witness of *after* has outside the old nodes."""
    found = []
    for move in moves:
        spread = share(books.machine, books.policy, after, move.container_id)
        moved_bytes = sum(sum(row.values()) for node, row in spread.items() if node not in move.before)
        found.append(replace(move, moved_bytes=moved_bytes))
    return tuple(found)


def returns(books: Books, ledger: Ledger, staying: Collection[str]) -> tuple[Move, ...]:
    """The first few of the containers that became wider and for which there is room again where they were
    placed, without those *staying*. Who lacks a part of its promise has better prospects on more nodes."""
    trial, found = None, []
    for container_id, entry in sorted(ledger.entries.items()):
        placement, claim = entry.decision.placement, claim_of(entry)
        if placement.home is None or claim is None or claim.short_bytes or container_id in staying:
            continue
        if not is_confined(entry.decision.request):
            continue
        trial = trial or books.copy()
        back = replace(claim, nodes=placement.home)
        trial.change(claim, -1)
        if trial.fits(back.nodes.mask, back.amounts_bytes):
            trial.change(back)
            spread = share(books.machine, books.policy, ledger, container_id)
            moved_bytes = sum(sum(row.values()) for node, row in spread.items() if node not in back.nodes)
            name = entry.decision.request.name
            found.append(Move(container_id, name, claim.nodes, back.nodes, moved_bytes))
            if len(found) == MAX_RETURNS:
                break
        else:
            trial.change(claim)
    return tuple(found)


def _movers(books: Books, ledger: Ledger) -> list[_Mover]:
    everywhere, found = books.machine.ordinary_nodes, []
    for _, entry in sorted(ledger.entries.items()):
        claim = claim_of(entry)
        if claim is not None and claim.flexible and not everywhere <= claim.nodes:
            found.append(_Mover(entry, claim, claim.nodes | everywhere))
    return found


def _in_the_way(books: Books, ledger: Ledger, nodes: int, amounts: Amounts) -> list[_Mover]:
    """The movers within the minimum cut, which grows as they are thought to be wider; none if even with all
    of them wider the request does not fit."""
    candidates = {mover.entry.container_id: mover for mover in _movers(books, ledger)}
    relaxed, movers = books.copy(), list[_Mover]()
    while candidates:
        cut = relaxed.cut(nodes, amounts)
        if cut is None:
            return movers
        within = [one for one in candidates.values() if one.claim.nodes <= cut.nodes]
        useful = [one for one in within if not one.widest <= cut.nodes]
        if not useful:
            return []
        for mover in useful:
            del candidates[mover.entry.container_id]
            relaxed.change(mover.claim, -1)
            relaxed.change(replace(mover.claim, nodes=mover.widest))
        movers += useful
    return movers if relaxed.cut(nodes, amounts) is None else []


def _fewest(books: Books, movers: Sequence[_Mover], nodes: int, amounts: Amounts) -> list[_Mover]:
    """One mover if one suffices, the smallest such; else the fewest of the largest, without those that are
    not needed after all. Each try costs a flow, so that nothing here tries all subsets."""
    by_size = sorted(movers, key=lambda mover: (mover.size_bytes, mover.entry.container_id))
    lacking = without(amounts, books.room(nodes, amounts))
    if _too_small(movers, lacking):
        return []
    for mover in by_size:
        if without(lacking, mover.claim.amounts_bytes):
            continue
        if _works(books, [mover], _widest([mover]), nodes, amounts):
            return [mover]
    most = range(1, min(len(by_size), 2 * MAX_MOVES) + 1)
    count = bisect_left(
        most, x=True, key=lambda k: _works(books, by_size[-k:], _widest(by_size[-k:]), nodes, amounts)
    )
    kept = by_size[-most[count] :] if count < len(most) else []
    for mover in tuple(kept):
        fewer = [one for one in kept if one is not mover]
        if _works(books, fewer, _widest(fewer), nodes, amounts):
            kept = fewer
    return kept


def _too_small(movers: Iterable[_Mover], lacking: Amounts) -> bool:
    """Whether even the largest that may be moved at once have less than is lacking."""
    claims = [mover.claim.amounts_bytes for mover in movers]
    return any(
        sum(nlargest(MAX_MOVES, [claim.get(resource, 0) for claim in claims])) < amount_bytes
        for resource, amount_bytes in lacking.items()
    )


def _widest(movers: Iterable[_Mover]) -> dict[str, NodeSet]:
    return {mover.entry.container_id: mover.widest for mover in movers}


def _works(
    books: Books, movers: Iterable[_Mover], sets: Mapping[str, NodeSet], nodes: int, amounts: Amounts
) -> bool:
    """Whether everything fits once the *movers* have the nodes in *sets*."""
    trial = books.copy()
    moved = [(mover.claim, replace(mover.claim, nodes=sets[mover.entry.container_id])) for mover in movers]
    for before, _ in moved:
        trial.change(before, -1)
    for _, after in moved:
        if not trial.fits(after.nodes.mask, after.amounts_bytes):
            return False
        trial.change(after)
    return trial.fits(nodes, amounts)


def _wider_sets(site: Site, books: Books, mover: _Mover) -> list[NodeSet]:
    """One node more, the sets that cross no other first, then the nearest."""
    claimed = {other for flow in books.flows.values() for other in flow.claimed}
    own = mover.claim.nodes.mask
    masks = [own | node for node in bits(mover.widest.mask & ~own)]
    masks.sort(key=lambda mask: (sum(crosses(mask, other) for other in claimed), site.distance(mask), mask))
    return [NodeSet.of_mask(mask) for mask in masks if not any(crosses(mask, other) for other in claimed)]

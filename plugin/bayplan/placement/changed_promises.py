"""What becomes of promises after they were made: more where room became free, other nodes where their own
cannot give what was promised, and back. Pure.

*Room became free*: a container was removed, or it became known that it requests something else. Short claims
are completed first, then containers that were moved go back. A container goes back to its original nodes
together with its pages; where these cannot be moved it stays on more nodes, and its decision says why.

When the request of a placed container is corrected, neither this container nor any other one is moved. What
was claimed too much is free again; what was claimed too little is promised as far as there is room, the rest
when others are gone.

*More nodes.* Memory that was promised to no container, or an eviction threshold, can take what the ledger
counts on. Pages that may lie elsewhere are moved first (`page_placement`). For what still has no place, a
container is promised the same on one node more, and on those nodes without which its set would cross another
one with promises. The exact engine's flows must prove that all of it fits there beside every other promise,
and the nodes must have the memory. Its pages may then be moved there, too. It goes back when its own nodes
have what they need. A container whose pages may not be moved stays (`page_owners.stays`).

*Pages* come to nodes for three reasons. They are *astray* on nodes that their container may not use: it was
created without a decision, or the kernel could not move them when its cpuset changed. They *leave* nodes when
all of the container's promise is on others. They *go back* when the container was placed on fewer nodes than
it has. In the first two cases the promise is already where the pages go, so that they come in pieces, as far
as there is room beside what is outstanding to others. In the third case they go only where all that is
outstanding then has room, with a band beside it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from bayplan.engines.exact.moves import MAX_MOVES, Mover, movers_of, wider_sets
from bayplan.engines.exact.resources import ResourceFlows
from bayplan.engines.exact.topology import NodeTopology
from bayplan.engines.interface import Engine
from bayplan.model.basis import Basis
from bayplan.model.decision import (
    MEMORY_TAKEN,
    OVERCOMMITTED,
    PAGES_ASTRAY,
    STAYS_WIDE,
    Claim,
    Move,
    Reason,
    Request,
)
from bayplan.model.ledger import Ledger
from bayplan.placement.page_owners import stays
from bayplan.placement.page_placement import (
    REST_BYTES,
    ContainerPages,
    Distance,
    LivePages,
    Return,
    Waiting,
    homeward,
    short_nodes,
    unmet_bytes,
)
from bayplan.quantity import MIB, format_bytes
from bayplan.sets import NodeSet, nodes_text


def after_removal(basis: Basis, engine: Engine) -> tuple[Ledger, tuple[Move, ...], tuple[str, ...]]:
    """The ledger of *basis*, after a removal, with all that follows where no pages have to be moved.

    Returns:
        The ledger, the moves, and the ids of the containers that are promised more.
    """
    left, _ = with_widened_placements(basis, engine)
    left, promised = with_completed_claims(basis.with_ledger(left), engine)
    found, tried = list[Move](), set[str]()
    while moves := engine.moves_back(basis.with_ledger(left), tried):
        left = left.moved(moves)
        found += moves
        tried |= {move.container_id for move in moves}
    return left, tuple(found), promised


def with_widened_placements(basis: Basis, engine: Engine) -> tuple[Ledger, tuple[str, ...]]:
    """The ledger on a machine that may have more ordinary nodes than before, and the ids of the containers
    that may use these as well."""
    ledger, placements = basis.ledger, engine.widened_placements(basis)
    for container_id, placement in placements.items():
        entry = ledger.entries[container_id]
        decision = replace(entry.decision, placement=placement)
        ledger = ledger.with_entry(replace(entry, decision=decision))
    return ledger, tuple(sorted(placements))


def with_completed_claims(basis: Basis, engine: Engine) -> tuple[Ledger, tuple[str, ...]]:
    """The ledger with short promises completed as far as there is room now, and with as many CPUs in each
    named pool as its members request; and the ids of the containers that are promised more."""
    claims = engine.completed_claims(basis)
    ledger = basis.ledger.with_claims(claims)
    return with_resized_pools(basis.with_ledger(ledger), engine), tuple(sorted(claims))


def with_resized_pools(basis: Basis, engine: Engine) -> Ledger:
    """The ledger in which the named pools have as many CPUs as their members request, as far as there is
    room."""
    ledger = basis.ledger
    for name, cpus in engine.resized_pools(basis).items() if ledger.pool_ids else ():
        ledger = ledger.with_pool_cpus(name, cpus)
    return ledger


def moved_back(ledger: Ledger, move: Move) -> Ledger:
    """*ledger* after the container of *move* went back."""
    return _with_reasons(ledger.moved([move]), move.container_id)


def not_moved_back(ledger: Ledger, move: Move, why: str) -> Ledger:
    """*ledger* with the reason *why* the container of *move* stays where it is."""
    there, here = nodes_text(move.after), nodes_text(move.before)
    text = f"there is room on {there} again, but it stays on {here}: {why}"
    if ledger.entries[move.container_id].decision.placement.leaving is not None:
        text = f"its pages are to go to {there}, and it stays on {here}: {why}"
    return _with_reasons(ledger, move.container_id, Reason(STAYS_WIDE, text))


def not_gathered(ledger: Ledger, move: Move, why: str) -> Ledger:
    """*ledger* with the reason *why* pages of the container of *move* are where it may not have any."""
    there, here = nodes_text(move.before - move.after), nodes_text(move.after)
    text = f"pages of it are on {there}, and it may have them on {here} alone: {why}"
    return _with_reasons(ledger, move.container_id, Reason(PAGES_ASTRAY, text), ended=PAGES_ASTRAY)


def gathered(ledger: Ledger, container_id: str) -> Ledger:
    """*ledger* after the pages of a container have come to its nodes."""
    return _with_reasons(ledger, container_id, ended=PAGES_ASTRAY)


def _with_reasons(ledger: Ledger, container_id: str, *more: Reason, ended: str = STAYS_WIDE) -> Ledger:
    entry = ledger.entries[container_id]
    kept = tuple(reason for reason in entry.decision.reasons if reason.code != ended)
    if (*kept, *more) == entry.decision.reasons:
        return ledger
    return ledger.with_entry(replace(entry, decision=replace(entry.decision, reasons=(*kept, *more))))


def with_corrected_requests(
    basis: Basis,
    engine: Engine,
    requests: Mapping[str, Request],
) -> Ledger:
    """The ledger after containers turned out to ask for these *requests*, by their ids."""
    ledger = basis.ledger
    for container_id, request in requests.items():
        entry = ledger.entries[container_id]
        placement = entry.decision.placement
        if isinstance(before := placement.promise, Claim):
            wanted = engine.adopt(basis.with_ledger(ledger), request, before.nodes).promise
            assert isinstance(wanted, Claim), "an engine that claims for some claims for all"
            placement = replace(placement, claim=_up_to(before, wanted), booked_bytes={})
        decision = replace(entry.decision, request=request, placement=placement)
        ledger = ledger.with_entry(replace(entry, decision=decision))
    ledger, _ = with_completed_claims(basis.with_ledger(ledger), engine)
    for container_id in requests:
        ledger = _marked(ledger, container_id)
    return ledger


def _up_to(claim: Claim, wanted: Claim) -> Claim:
    """*claim* with the amounts that are *wanted*: what it has of them already, and the rest short."""
    amounts = {
        resource: min(amount, claim.amounts_bytes.get(resource, 0))
        for resource, amount in wanted.amounts_bytes.items()
    }
    short = {
        resource: amount - amounts[resource]
        for resource, amount in wanted.amounts_bytes.items()
        if amount > amounts[resource]
    }
    kept = {resource: amount for resource, amount in amounts.items() if amount}
    return replace(claim, amounts_bytes=kept, short_bytes=short, explained_bytes=0, shares={})


def _marked(ledger: Ledger, container_id: str) -> Ledger:
    """*ledger* with the reason why not all that the container requests is promised, if that is so."""
    entry = ledger.entries[container_id]
    decision, short_bytes = entry.decision, entry.decision.placement.promise.short_bytes
    kept = tuple(reason for reason in decision.reasons if reason.code != OVERCOMMITTED)
    if short_bytes:
        lacking = ", ".join(f"{format_bytes(amount)} {name}" for name, amount in short_bytes.items())
        reason = Reason(OVERCOMMITTED, f"{lacking} of what it requests could not be promised yet")
        decision = replace(decision, reasons=(*kept, reason))
    if decision == entry.decision:
        return ledger
    return ledger.with_entry(replace(entry, decision=decision))


MOST_TRIED: Final = 16
"""So many containers are tried: each costs a flow for each node."""
LEAST_GAIN_BYTES: Final = 32 * MIB
"""A container does not get more nodes for less than this, unless that is all that lacks; several together
may."""
SHORT_FIRST: Final = "pages are moved off a node that is short of memory first"


def widenings(basis: Basis, live: LivePages) -> tuple[Move, ...]:
    """The moves of all containers that get more nodes at this look, so that as much as possible has a place
    at once: a container that starts meanwhile does not wait for one look after the other."""
    ledger, worth = basis.ledger, 0
    widened = list[Move]()
    left_bytes = unmet_bytes(live.nodes, live.everybody)
    while len(widened) < MAX_MOVES and (move := widening(basis.with_ledger(ledger), live)) is not None:
        widened.append(move)
        ledger = ledger.moved([move])
        container = replace(live.containers[move.container_id], nodes=move.after)
        live = replace(live, containers={**live.containers, container.container_id: container})
        now_bytes = unmet_bytes(live.nodes, live.everybody)
        if not now_bytes or left_bytes - now_bytes >= LEAST_GAIN_BYTES:
            worth, left_bytes = len(widened), now_bytes
    moves: dict[str, Move] = {}
    for move in widened[:worth]:
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
    """The first of *moves*, which lead containers back to the nodes they were placed on, that can be made;
    None if none can. The nodes can then give what is outstanding there, with *kept_bytes* left beside it,
    although no pages leave them. So no container goes back to a node that is short, or to one that it or
    another container would have to leave again."""
    for move in moves:
        if move.container_id in live.containers:
            back = _with_nodes(live, {move.container_id: move.after})
            if not short_nodes(live.nodes, back, kept_bytes) & move.after:
                return move
    return None


class Left(NamedTuple):
    """What of a container's memory can be moved off the nodes that it leaves, by node; how many bytes of its
    processes are there; and why some did not move."""

    movable_bytes: Mapping[int, int]
    there_bytes: int
    obstacle: str


Seen = Callable[[Move], Left]
"""Says what the container of a move has on the nodes that it leaves."""


def astray(live: LivePages) -> tuple[Move, ...]:
    """The moves of the containers whose pages lie on nodes that they may not use, in the order of the ids."""
    found = []
    for key, one in sorted(live.containers.items()):
        if one.has_astray:
            found.append(Move(key, one.name, one.nodes | NodeSet(one.astray_bytes), one.nodes))
    return tuple(found)


def astray_no_more(ledger: Ledger, live: LivePages) -> tuple[str, ...]:
    """The ids of the containers whose entry says that pages lie on nodes they may not use, and which have
    none there."""
    return tuple(
        key
        for key, entry in ledger.entries.items()
        if any(reason.code == PAGES_ASTRAY for reason in entry.decision.reasons)
        and key in live.containers
        and not live.containers[key].has_astray
    )


class Gathering(NamedTuple):
    """What it takes to choose which container's pages come to its nodes next; *kept_bytes* are left free
    beside the promises where possible, by node."""

    live: LivePages
    ledger: Ledger
    kept_bytes: Mapping[int, int]
    distance: Distance
    seen: Seen

    def next_of(self, stray: Sequence[Move], returns: Sequence[Move], *, short_first: bool) -> LivePages:
        """What is seen, with the moves of the first of *stray*, then of *returns*, that can be made, and why
        those before it cannot; none of them while pages are moved off a node that is *short_first*."""
        waiting = list[Waiting]()
        for move in (*stray, *returns):
            is_astray = move in stray
            if move.container_id not in self.live.containers:
                continue
            found = SHORT_FIRST if short_first else self._begun(move, is_astray=is_astray)
            if isinstance(found, LivePages):
                return replace(found, waiting=tuple(waiting))
            waiting.append(Waiting(move, found, is_astray))
        return replace(self.live, waiting=tuple(waiting)) if waiting else self.live

    def _begun(self, move: Move, *, is_astray: bool) -> LivePages | str:
        """What is seen with *move* being made, or why it cannot be."""
        live, entry = self.live, self.ledger.entries.get(move.container_id)
        is_there = is_astray or (entry is not None and entry.decision.placement.leaving is not None)
        if not is_there and goes_back(live, [move], self.kept_bytes) is None:
            return f"{nodes_text(move.after)} cannot give what is promised there at the moment"
        there = self.seen(move)
        moves = homeward(live, move, there.movable_bytes, self.kept_bytes, self.distance)
        if is_there and not moves:
            # Pages that two containers have on each other's nodes come through little room.
            moves = homeward(live, move, there.movable_bytes, {}, self.distance)
        if is_there and not moves and self._is_full(move, there):
            return f"{nodes_text(move.after)} cannot give what is promised there at the moment"
        back = Return(move, there.there_bytes, there.obstacle, is_astray)
        return replace(live, plan=replace(live.plan, moves=moves), back=back)

    def _is_full(self, move: Move, there: Left) -> bool:
        """Whether a container that has its promise where it goes with *move* has to wait until there is room:
        for its pages, or for what is outstanding there once it has no other nodes."""
        if there.there_bytes > REST_BYTES:
            return any(there.movable_bytes.values())
        after = _with_nodes(self.live, {move.container_id: move.after})
        return bool(short_nodes(self.live.nodes, after) & move.after)


def _movers(flows: ResourceFlows, live: LivePages) -> Iterator[Mover]:
    """The containers that may be moved: first those that may lie where memory lacks, then those that may make
    room for these; of each the smallest promises first."""
    at_risk = NodeSet(node for one in live.plan.risks for node in one.nodes)

    def order(mover: Mover) -> tuple[bool, int, str]:
        return not mover.claim.nodes & at_risk, mover.size_bytes, mover.entry.container_id

    for mover in sorted(movers_of(flows), key=order):
        if mover.entry.container_id in live.containers and not stays(mover.entry):
            yield mover


def _with_nodes(live: LivePages, nodes: Mapping[str, NodeSet]) -> list[ContainerPages]:
    """All containers, as if some could lie on other *nodes*, by id. What such a container holds beside these
    nodes counts as pages that come along."""
    return [
        replace(one, nodes=nodes[one.container_id]) if one.container_id in nodes else one
        for one in live.everybody
    ]

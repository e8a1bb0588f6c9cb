"""The promises held against the pages that lie on the nodes: where memory may run out although all fits.

The kernel fills nodes by first touch, so that pages of containers that may lie anywhere can take what was
promised to those that may not. For every set of nodes, what is free there, what can be reclaimed at once, and
pages there that may lie elsewhere (as far as there is room for them) must be at least what is outstanding to
containers that must stay within the set: promised and not yet used there. That is Hall's condition, and one
maximum flow answers it for all sets. Pure: nothing here knows how pages are counted or moved.

*Between two looks.* Where a node loses memory, relief begins earlier: a fixed band would be gone within one
look. Only what is lost beside the promises counts: what an owner uses of its promise is expected of the node
no longer, and what relief itself moved to a node is not lost there. Numbers of nodes can be had at any time,
those of containers cannot. So by the numbers of a node alone it is judged whether what was worked out when
all was counted still holds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial, reduce
from itertools import groupby
from operator import or_
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.device_hints import names_text
from bayplan.engines.exact.flow import Loads, bits
from bayplan.model.decision import Move
from bayplan.quantity import MIB, format_bytes
from bayplan.sets import NodeSet, nodes_text

_PAGES: Final = 1 << (NodeSet.max_id + 1)
"""A bit that no node has. In a set of nodes it says that the load is pages that lie there and can be moved,
not a promise that is still outstanding."""

NAMED: Final = 5
"""How many containers a `Risk` names."""
CRUMB_BYTES: Final = 2 * MIB
"""What a container has less of on a node is moved last: to find out which of its pages are there costs as
much as to move this."""
REST_BYTES: Final = 16 * MIB
"""As much as this may be left where pages are to leave nodes: the kernel moves it while cpuset.mems is
written. It covers what is allocated during the last step, and what the counters of a cgroup are behind on a
machine with 64 CPUs (64 pages for each)."""
MOST_RISKS: Final = 16
"""How many sets a plan names, the narrowest ones; what is moved does not depend on it."""

Distance = Callable[[int, int], int]
"""How far it is from one node to another, as `Machine.distance` says."""


class NodeMemory(Struct, frozen=True):
    """What one node can still give: ``free_bytes`` above what the kernel keeps for itself, and
    ``reclaimable_bytes`` of page cache and other memory that the kernel can take back. ``used_bytes`` cannot
    be taken back, whoever uses them. ``low``: less is free than the kernel's low watermark."""

    free_bytes: int
    reclaimable_bytes: int = 0
    used_bytes: int = 0
    low: bool = False

    @property
    def room_bytes(self) -> int:
        """What is free, or can be reclaimed."""
        return self.free_bytes + self.reclaimable_bytes


class ContainerPages(Struct, frozen=True):
    """One container, or other processes that may be moved: where its memory may lie (``nodes``), what it was
    promised there, what it holds on each node that cannot be reclaimed, how much of that could be moved, to
    others of its nodes if it has several, and its page cache. The lowest ``rank`` is moved first.
    ``astray_bytes`` of its processes' memory are on nodes where it may not have any."""

    container_id: str
    name: str
    nodes: NodeSet
    promised_bytes: int = 0
    held_bytes: Mapping[int, int] = {}
    movable_bytes: Mapping[int, int] = {}
    rank: int = 0
    cache_bytes: Mapping[int, int] = {}
    astray_bytes: Mapping[int, int] = {}

    @property
    def used_bytes(self) -> int:
        """The bytes that it holds on its nodes."""
        return sum(amount for node, amount in self.held_bytes.items() if node in self.nodes)

    @property
    def has_astray(self) -> bool:
        """Whether there are pages on nodes where it may not have any, beside a few that do not count."""
        return sum(self.astray_bytes.values()) > REST_BYTES

    @property
    def outstanding_bytes(self) -> int:
        """Promised, and not yet used on its nodes."""
        return max(0, self.promised_bytes - self.used_bytes)


class PageMove(Struct, frozen=True):
    """So many bytes of a container that should go from the node ``source`` to the node ``target``."""

    container_id: str
    source: int
    target: int
    amount_bytes: int


class Risk(Struct, frozen=True):
    """A set of nodes on which memory can run out, by ``lacking_bytes``: what is outstanding to the
    ``owners``, which must stay there (``outstanding_bytes``), is more than the ``room_bytes`` that are free
    or can be reclaimed. ``occupants`` hold most of what else lies there."""

    nodes: NodeSet
    outstanding_bytes: int
    room_bytes: int
    lacking_bytes: int
    owners: tuple[str, ...] = ()
    occupants: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{nodes_text(self.nodes)}: {format_bytes(self.outstanding_bytes)} of what was promised to "
        text += (
            f"{names_text(self.owners)} is not used yet, and only {format_bytes(self.room_bytes)} can be had"
        )
        hold = "holds" if len(self.occupants) == 1 else "hold"
        return f"{text}; {names_text(self.occupants)} {hold} memory there" if self.occupants else text


class Plan(Struct, frozen=True):
    """``risks`` are the sets where the kernel would have to kill, if all promises were used now; ``moves``
    are the pages to be moved so that it need not. ``unmet_bytes`` would have no place wherever pages lie.
    ``expected_bytes`` is what each node will have to give of the outstanding promises, ``reclaim_bytes`` what
    should be reclaimed there first, so that no container waits for it; both by node."""

    risks: tuple[Risk, ...] = ()
    moves: tuple[PageMove, ...] = ()
    unmet_bytes: int = 0
    expected_bytes: Mapping[int, int] = {}
    reclaim_bytes: Mapping[int, int] = {}


class Return(Struct, frozen=True):
    """A container whose pages come to the nodes where it is to have them. ``left_bytes`` of its processes'
    memory are not there yet; ``obstacle`` says why some of it did not move, as far as that is known.
    ``astray``: it may not use the nodes that they leave, so that nothing else changes."""

    move: Move
    left_bytes: int
    obstacle: str = ""
    astray: bool = False


class Waiting(Struct, frozen=True):
    """A container whose pages do not come to the nodes where it is to have them at the moment, and why; the
    rest as for `Return`."""

    move: Move
    why: str
    astray: bool = False


class LivePages(Struct, frozen=True, dict=True):
    """What was seen at ``measured_us`` (since the epoch) of every node and container, and what follows.
    ``outside`` are the machine's own services, by the paths of their cgroups. ``kept`` is memory for no
    container, as if it were promised on the node: what eviction thresholds that are met want available, and
    what resource claims hold that no container can use yet. ``back``: all moves of the plan bring the pages
    of this container to its nodes, because none have to make room. ``waiting`` are the containers that come
    after it, or cannot at the moment."""

    measured_us: int
    nodes: Mapping[int, NodeMemory]
    containers: Mapping[str, ContainerPages]
    plan: Plan
    outside: Mapping[str, ContainerPages] = {}
    kept: tuple[ContainerPages, ...] = ()
    back: Return | None = None
    waiting: tuple[Waiting, ...] = ()

    @property
    def everybody(self) -> tuple[ContainerPages, ...]:
        """All for which there is to be memory: containers, services, and ``kept``."""
        return (*self.containers.values(), *self.outside.values(), *self.kept)

    @cached_property
    def short(self) -> NodeSet:
        """The nodes that have not got what is outstanding to containers that must stay on them."""
        return short_nodes(self.nodes, self.containers.values())

    def holder(self, container_id: str) -> ContainerPages:
        """One of the containers or services."""
        found = self.containers.get(container_id)
        return self.outside[container_id] if found is None else found


def plan(
    nodes: Mapping[int, NodeMemory],
    containers: Sequence[ContainerPages],
    start_bytes: Mapping[int, int],
    goal_bytes: Mapping[int, int],
    distance: Distance,
) -> Plan:
    """What is at risk, and which pages to move.

    A set is at risk if what is outstanding there would leave less than *start_bytes* on its nodes. Then pages
    are moved until it would leave *goal_bytes*, which are more: so no move begins for a few pages, and none
    has to be repeated at once. If nothing lacks but these bytes, and no page could be moved for them, nothing
    is at risk: everything is promised, as it may be. Pages go to the nearest nodes that have room for them.

    Where not everything has a place, pages make room for the promises on narrow sets first. A container that
    must stay on one node is killed when that node is full, one that may lie on every node only when all are.
    """
    outstanding = _outstanding(containers)
    loads, lacking = _promises(nodes, outstanding, start_bytes)
    expected = _expected(loads, lacking)
    calm = Plan(expected_bytes=expected, reclaim_bytes=_to_reclaim(nodes, expected, start_bytes, goal_bytes))
    if not lacking:
        return calm
    at_risk = {loads.reached(one) for one in lacking}
    narrowest = sorted(at_risk, key=lambda one: (one.bit_count(), one))[:MOST_RISKS]
    risks = tuple(_risk(nodes, containers, one) for one in narrowest)
    unmet, there = unmet_bytes(nodes, containers), NodeSet.of_mask(reduce(or_, at_risk))
    moves: tuple[PageMove, ...] = ()
    # What is promised comes before what is to be left beside it.
    for kept_bytes in (goal_bytes, start_bytes, {}):
        moves = _moves_for(nodes, containers, outstanding, there, kept_bytes, distance)
        if _lacking_after(nodes, moves, outstanding) == unmet:
            break
    if not moves and not _promises(nodes, outstanding, {})[1]:
        return calm
    return replace(calm, risks=risks, moves=moves, unmet_bytes=unmet)


def _moves_for(
    nodes: Mapping[int, NodeMemory],
    containers: Sequence[ContainerPages],
    outstanding: Mapping[int, int],
    at_risk: NodeSet,
    kept_bytes: Mapping[int, int],
    distance: Distance,
) -> tuple[PageMove, ...]:
    """The moves by which as much as possible has a place beside *kept_bytes*, and nodes *at_risk* have
    these."""
    loads, lacking = _promises(nodes, _placeable(nodes, containers, outstanding, kept_bytes), kept_bytes)
    before = _with_pages(loads, containers)
    _push(loads, lacking)
    _push(loads, _debts(nodes, at_risk, kept_bytes))
    return _moves(loads, before, containers, distance)


def _lacking_after(
    nodes: Mapping[int, NodeMemory], moves: Iterable[PageMove], outstanding: Mapping[int, int]
) -> int:
    """What of *outstanding* has no place once the *moves* were made."""
    free = {node: one.room_bytes for node, one in nodes.items()}
    for move in moves:
        free[move.source] += move.amount_bytes
        free[move.target] -= move.amount_bytes
    _, lacking = _promises({node: NodeMemory(amount) for node, amount in free.items()}, outstanding, {})
    return sum(lacking.values())


def short_nodes(
    nodes: Mapping[int, NodeMemory],
    containers: Iterable[ContainerPages],
    kept_bytes: Mapping[int, int] = MappingProxyType({}),
) -> NodeSet:
    """The nodes that cannot give what is outstanding to those that must stay on them, alone or together, with
    *kept_bytes* left beside it, unless pages are moved."""
    loads, lacking = _promises(nodes, _outstanding(containers), kept_bytes)
    return NodeSet.of_mask(reduce(or_, (loads.reached(one) for one in lacking), 0))


def takeable_bytes(nodes: Mapping[int, NodeMemory], containers: Iterable[ContainerPages], node: int) -> int:
    """How much of what *node* has could be taken, with what is outstanding to *containers* still having a
    place."""
    loads, _ = _promises(nodes, _outstanding(containers), {})
    return loads.push(1 << node, nodes[node].room_bytes)


def in_order(live: LivePages) -> tuple[PageMove, ...]:
    """The moves of the plan of *live* as they are to be made: off nodes that lack what is promised before
    those that may soon, the node with the least left first, and of each the largest first. A move of few
    pages costs as much as one of many before it moves any: such wait for all others."""
    short = short_nodes(live.nodes, live.everybody)

    def order(move: PageMove) -> tuple[bool, bool, int, int, int, str]:
        crumb = move.amount_bytes < CRUMB_BYTES
        left_bytes = live.nodes[move.source].room_bytes
        key = move.source, -move.amount_bytes, move.container_id
        return crumb, move.source not in short, left_bytes, *key

    return tuple(sorted(live.plan.moves, key=order))


def unmet_bytes(
    nodes: Mapping[int, NodeMemory],
    containers: Iterable[ContainerPages],
    kept_bytes: Mapping[int, int] = MappingProxyType({}),
) -> int:
    """What of the outstanding promises has no place beside *kept_bytes*, wherever pages lie that may lie
    elsewhere."""
    containers = tuple(containers)
    outstanding = _outstanding(containers)
    return sum(outstanding.values()) - sum(_placeable(nodes, containers, outstanding, kept_bytes).values())


def unpromised_bytes(
    nodes: Mapping[int, NodeMemory], containers: Iterable[ContainerPages], kept_bytes: Mapping[int, int]
) -> dict[int, int]:
    """By node, how much of its room is left beside *kept_bytes* and what is outstanding to *containers*."""
    loads, _ = _promises(nodes, _outstanding(containers), kept_bytes)
    return {_id(node): amount for node, amount in loads.free.items()}


def homeward(
    live: LivePages,
    move: Move,
    movable_bytes: Mapping[int, int],
    kept_bytes: Mapping[int, int],
    distance: Distance,
) -> tuple[PageMove, ...]:
    """The moves by which *movable_bytes* of a container, by the nodes that it leaves with *move*, come to
    those where it stays: as far as there is room beside *kept_bytes* and what is outstanding to others, the
    nearest first."""
    others = (one for one in live.everybody if one.container_id != move.container_id)
    loads, _ = _promises(live.nodes, _outstanding(others), kept_bytes)
    claimant = move.after.mask | _PAGES
    loads.push(claimant, sum(movable_bytes.values()))
    coming = {_id(node): row.get(claimant, 0) for node, row in loads.carried.items()}
    found = list[PageMove]()
    for source, amount in sorted(movable_bytes.items()):
        left_bytes = amount
        for target in sorted(move.after & NodeSet(coming), key=partial(distance, source)):
            if part := min(left_bytes, coming[target]):
                found.append(PageMove(move.container_id, source, target, part))
                left_bytes, coming[target] = left_bytes - part, coming[target] - part
    return tuple(found)


def _to_reclaim(
    nodes: Mapping[int, NodeMemory],
    expected: Mapping[int, int],
    start_bytes: Mapping[int, int],
    goal_bytes: Mapping[int, int],
) -> dict[int, int]:
    """What to reclaim where less than *start_bytes* are free of what the node is expected to give."""
    found = {}
    for node, one in nodes.items():
        due_bytes = expected.get(node, 0)
        if one.free_bytes < min(due_bytes, start_bytes.get(node, 0)):
            wanted_bytes = min(due_bytes, goal_bytes.get(node, 0)) - one.free_bytes
            if part := min(wanted_bytes, one.reclaimable_bytes):
                found[node] = part
    return found


def _outstanding(containers: Iterable[ContainerPages]) -> dict[int, int]:
    sums: dict[int, int] = {}
    for one in containers:
        if amount := one.outstanding_bytes:
            sums[one.nodes.mask] = sums.get(one.nodes.mask, 0) + amount
    return sums


def _promises(
    nodes: Mapping[int, NodeMemory], outstanding: Mapping[int, int], kept_bytes: Mapping[int, int]
) -> tuple[Loads, dict[int, int]]:
    """The outstanding promises on what is free or can be reclaimed beside *kept_bytes*, and what does not fit
    of each set."""
    room = {1 << node: max(0, one.room_bytes - kept_bytes.get(node, 0)) for node, one in nodes.items()}
    loads = Loads(room, {node: {} for node in room}, {})
    return loads, _push(loads, outstanding)


def _placeable(
    nodes: Mapping[int, NodeMemory],
    containers: Iterable[ContainerPages],
    outstanding: Mapping[int, int],
    kept_bytes: Mapping[int, int],
) -> dict[int, int]:
    """What of *outstanding* has a place beside *kept_bytes* if pages lie where they are in nobody's way: as
    much as possible, and of that as much as possible for narrow sets."""
    loads, _ = _promises(nodes, {}, kept_bytes)
    _with_pages(loads, containers)
    lacking = _push(loads, outstanding)
    return {one: amount - lacking.get(one, 0) for one, amount in outstanding.items()}


def _debts(
    nodes: Mapping[int, NodeMemory], at_risk: NodeSet, kept_bytes: Mapping[int, int]
) -> dict[int, int]:
    """By node at risk, what it has less than *kept_bytes*: so much of what leaves it brings no room."""
    found = {}
    for node, one in nodes.items():
        if node not in at_risk:
            continue
        found[1 << node] = max(0, kept_bytes.get(node, 0) - one.free_bytes - one.reclaimable_bytes)
    return found


def _push(loads: Loads, amounts: Mapping[int, int]) -> dict[int, int]:
    """Have *loads* carry *amounts* by set. Narrow sets come first; of equally narrow ones first what fits
    without moving other loads, so that nothing leaves a node for another one that then lacks as much. What
    does not fit of each."""
    left, by_width = dict(amounts), sorted(amounts, key=lambda one: (one.bit_count(), one))
    for _, group in groupby(by_width, key=int.bit_count):
        sets = tuple(group)
        for one in sets:
            left[one] -= loads.push(one, min(left[one], sum(loads.free.get(node, 0) for node in bits(one))))
        for one in sets:
            left[one] -= loads.push(one, left[one])
    return {one: amount for one, amount in left.items() if amount}


def _with_pages(loads: Loads, containers: Iterable[ContainerPages]) -> dict[int, dict[int, int]]:
    """Have the nodes of *loads* carry the pages that lie there and can be moved, after the promises, as far
    as these leave room; what they carry of them: node -> set -> bytes."""
    carried: dict[int, dict[int, int]] = {node: {} for node in loads.carried}
    for container in containers:
        claimant = container.nodes.mask | _PAGES
        for node, amount in container.movable_bytes.items():
            row = carried.get(1 << node)
            if row is not None and amount and node in container.nodes:
                row[claimant] = row.get(claimant, 0) + amount
    for node, row in carried.items():
        loads.carried[node].update(row)
    loads.onward.clear()
    return carried


def _moves(
    loads: Loads,
    before: Mapping[int, Mapping[int, int]],
    containers: Iterable[ContainerPages],
    distance: Distance,
) -> tuple[PageMove, ...]:
    """The moves that lead from *before* to what *loads* carry, or to where it is nearer: for each set, from
    the nodes that have less of its pages to those that have more."""
    amounts: dict[tuple[int, int, str], int] = {}
    movers, room = _movers(containers), dict(loads.free)
    for claimant in sorted({claimant for row in before.values() for claimant in row}):
        changes = {
            node: loads.carried[node].get(claimant, 0) - row.get(claimant, 0) for node, row in before.items()
        }
        coming = {node: more for node, more in sorted(changes.items()) if more > 0}
        for node, more in sorted(changes.items()):
            for container_id, part in _taken(movers.get((_id(node), claimant), ()), -more):
                for target, amount in _targets(node, claimant, part, coming, room, distance):
                    key = _id(node), _id(target), container_id
                    amounts[key] = amounts.get(key, 0) + amount
    return tuple(
        PageMove(one, source, target, part) for (source, target, one), part in sorted(amounts.items())
    )


def _targets(
    source: int,
    claimant: int,
    amount: int,
    coming: dict[int, int],
    room: dict[int, int],
    distance: Distance,
) -> Iterator[tuple[int, int]]:
    """Where *amount* of the pages of a set goes from *source*: to the nearest of the nodes that get some by
    the flow (*coming*), or to a nearer one of the set that has *room* left, to which the node that it was
    meant for then gives its own. *coming* and *room* are changed."""
    by_distance = sorted(
        (node for node in room if node & claimant and node != source),
        key=lambda node: (distance(_id(source), _id(node)), node),
    )
    while amount:
        meant = next(node for node in by_distance if coming.get(node))
        part = min(amount, coming[meant])
        # Up to the node itself: nothing is nearer, or nothing else has room.
        target = next(node for node in by_distance if node == meant or room[node])
        if target != meant:
            part = min(part, room[target])
            room[target] -= part
            room[meant] += part
        coming[meant] -= part
        amount -= part
        yield target, part


def _movers(containers: Iterable[ContainerPages]) -> dict[tuple[int, int], list[tuple[str, int]]]:
    """What can be moved from a node within a set: ids and bytes, in the order in which they are moved."""
    found: dict[tuple[int, int], list[tuple[bool, int, int, str]]] = {}
    for one in containers:
        for node, amount in one.movable_bytes.items():
            if amount:
                found.setdefault((node, one.nodes.mask | _PAGES), []).append(
                    (amount < CRUMB_BYTES, one.rank, -amount, one.container_id)
                )
    return {key: [(name, -amount) for *_, amount, name in sorted(rows)] for key, rows in found.items()}


def _taken(movers: Iterable[tuple[str, int]], wanted_bytes: int) -> Iterator[tuple[str, int]]:
    """*wanted_bytes* of the *movers*, in their order."""
    for container_id, amount in movers:
        if wanted_bytes <= 0:
            return
        part = min(amount, wanted_bytes)
        wanted_bytes -= part
        yield container_id, part


def _risk(nodes: Mapping[int, NodeMemory], containers: Sequence[ContainerPages], reached: int) -> Risk:
    there = NodeSet.of_mask(reached)
    owners = {
        one.name: amount for one in containers if one.nodes <= there and (amount := one.outstanding_bytes)
    }
    room_bytes = sum(one.room_bytes for node, one in nodes.items() if node in there)
    occupants: dict[str, int] = {}
    for one in containers:
        held = sum(amount for node, amount in one.held_bytes.items() if node in there)
        foreign = held if not one.nodes <= there else held - one.promised_bytes
        if foreign > 0:
            occupants[one.name] = foreign
    outstanding_bytes = sum(owners.values())
    lacking_bytes = max(0, outstanding_bytes - room_bytes)
    return Risk(there, outstanding_bytes, room_bytes, lacking_bytes, _largest(owners), _largest(occupants))


def _largest(amounts: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(sorted(amounts, key=lambda name: (-amounts[name], name))[:NAMED])


def _expected(loads: Loads, lacking: Mapping[int, int]) -> dict[int, int]:
    """What each node is to give; of what the nodes of a set lack each is to give the same."""
    found = {_id(node): sum(row.values()) for node, row in loads.carried.items()}
    for one, amount in lacking.items():
        there = [node for node in NodeSet.of_mask(one) if node in found]
        for number, node in enumerate(there):
            found[node] += amount // len(there) + (number < amount % len(there))
    return found


def _id(node: int) -> int:
    return node.bit_length() - 1


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
    """By node, the free bytes from which on neither `have_lost_much` nor `have_to_reclaim` is true of it,
    whatever became of the rest."""
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

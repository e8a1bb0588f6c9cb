"""Pools of huge pages that grow for a container or a resource claim and shrink when nobody needs them: by how
much, as values.

A pool grows out of the ordinary memory of its node, and only by what no claim needs: as much as could still
be claimed on that node alone, also beside what the one that is decided about holds until then. It shrinks by
what could still be claimed of it, and is free in the kernel. Invariant: what fitted before such a step fits
after it, whatever its size; so a step that was cut short, or that nobody recorded, takes nothing from any
promise. What is decided is the size of a pool in bytes, surplus pages left out. Pure;
`bayplan.daemon.pool_growth` has the steps taken.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, islice
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.engines.exact.claiming import claimed_amounts
from bayplan.engines.exact.resources import ResourceFlows
from bayplan.engines.interface import Engine
from bayplan.model.basis import Basis
from bayplan.model.claims import Parts, divided, hugepages_of
from bayplan.model.decision import Claim, Decision, Outcome, Reason, Request
from bayplan.model.ledger import Ledger
from bayplan.model.machine import MEMORY, Machine, Node, hugepage_size_bytes, hugepages
from bayplan.model.memory_kinds import usable_nodes
from bayplan.model.policy import PlacementPolicy
from bayplan.model.sentences import pages_to_be_had, pools_grown
from bayplan.sets import NodeSet

Pools = Mapping[int, Mapping[int, int]]
"""Node id -> page size -> bytes."""

Decide = Callable[[Basis, Engine], Decision]

POOL_GROWN: Final = "pool-grown"
"""Code of the reason that a pool of huge pages grew for a container, and by how much."""
POOL_LIMIT: Final = "pool-limit"
"""Code of the reason that pools cannot grow as far as a container needs, and what could be had."""

_MOST_TRIALS: Final = 12
"""Decisions on pools that have grown, of which each takes as long as the first one."""
_MOST_SETS: Final = 64
"""Sets of one width that are worked out; on 8 nodes nearly all of them."""
_WIDEST: Final = 8


def pools_of(machine: Machine) -> Pools:
    """The sizes of all pools of *machine*."""
    return {node.id: node.hugepages_bytes for node in machine.nodes}


def with_pools(machine: Machine, pools: Pools) -> Machine:
    """*machine* with the sizes of *pools*; those it does not have, and all others, stay as they are."""

    def of(node: Node) -> Node:
        known = node.hugepages_bytes
        new = {size: amount for size, amount in pools.get(node.id, {}).items() if size in known}
        return node if all(known[size] == new[size] for size in new) else _resized(node, new)

    nodes = tuple(map(of, machine.nodes))
    return machine if nodes == machine.nodes else replace(machine, nodes=nodes)


def at_greatest(basis: Basis) -> Machine:
    """The machine with each pool as large as it may become: for what a container can ask for at all."""
    sizes = {
        node.id: {
            size: max(one.maximum_bytes, node.hugepages_bytes.get(size, 0))
            for size, one in basis.policy.hugepage_pools.get(node.id, {}).items()
        }
        for node in basis.machine.nodes
    }
    return with_pools(basis.machine, sizes)


def grown(machine: Machine, added: Pools) -> Pools:
    """The sizes of the pools to which something is *added*, with that."""
    known = pools_of(machine)
    return {
        node: {size: known[node][size] + amount for size, amount in row.items()}
        for node, row in added.items()
    }


def decide_with_pools(
    basis: Basis,
    engine: Engine,
    *,
    decide: Decide,
    decision: Decision,
    held: Ledger | None = None,
    parts: Parts = (),
) -> tuple[Decision, Pools]:
    """*decision*, made on *basis*, or a better one that needs larger pools, with the bytes by which pools
    have to grow for it (empty for none). If huge pages lack all the same, the decision says how many could be
    had. *held*: the ledger with what the container or claim holds until then, if that is not the ledger of
    *basis*. *parts*: what has to be on single nodes, because it was allocated there."""
    if not lacks_pages(decision, basis.policy):
        return decision, {}
    rooms, request = _Rooms.beside(basis, held or basis.ledger), decision.request
    nodes = NodeSet(node for part, _ in parts for node in part) or _reachable(basis.machine, request)
    growths = iter((rooms.growth_for(parts),)) if parts else _growths(rooms, request, nodes)
    # An engine keeps what it worked out for a machine, and the one that there is stays the usual one.
    trying, best, found = engine.separate_copy(), _rank(decision), dict[int, dict[int, int]]()
    for added in islice(growths, _MOST_TRIALS):
        machine = with_pools(basis.machine, grown(basis.machine, added))
        rank = _rank(decide(replace(basis, machine=machine), trying))
        if rank < best:
            best, found = rank, added
        if not any(rank):
            break
    if found or not _lacks(decision):
        return decision, found
    if _rank(decide(replace(basis, machine=_with_plenty(basis.machine, request)), trying))[0]:
        # It is refused for something else.
        return decision, {}
    had = dict(rooms.to_be_had(request, nodes))
    in_all_bytes = {resource: rooms.in_all_bytes(resource, nodes) for resource in had}
    reason = Reason(POOL_LIMIT, pages_to_be_had(had, in_all_bytes))
    return replace(decision, reasons=(*decision.reasons, reason)), {}


def with_growth(decision: Decision, wanted: Pools, came: Pools) -> Decision:
    """*decision*, made once pools that were to grow by *wanted* grew by what *came*, which it says."""
    texts = [
        pools_grown(hugepages(size), node, amount, came.get(node, {}).get(size, 0))
        for node, row in sorted(wanted.items())
        for size, amount in sorted(row.items())
    ]
    code = POOL_GROWN if came == wanted else POOL_LIMIT
    return replace(decision, reasons=(*decision.reasons, Reason(code, "; ".join(texts))))


def lacks_pages(decision: Decision, policy: PlacementPolicy) -> bool:
    """Whether larger pools may make a better decision of it: it asks for pages of a size whose pools may
    grow, and is not as asked."""
    if decision.outcome is Outcome.PLACED or not decision.request.hugepages_bytes:
        return False
    sizes = {hugepages(size) for row in policy.hugepage_pools.values() for size in row}
    return not sizes.isdisjoint(decision.request.hugepages_bytes)


def _with_plenty(machine: Machine, request: Request) -> Machine:
    """*machine* with as many huge pages more on each node as *request* asks for, and no less of other
    memory."""
    more = {
        hugepage_size_bytes(resource): amount
        for resource, amount in hugepages_of(claimed_amounts(request)).items()
    }

    def of(node: Node) -> Node:
        pools = {size: node.hugepages_bytes[size] + more.get(size, 0) for size in node.hugepages_bytes}
        added_bytes = sum(pools.values()) - sum(node.hugepages_bytes.values())
        return replace(node, hugepages_bytes=pools, memory_bytes=node.memory_bytes + added_bytes)

    return replace(machine, nodes=tuple(map(of, machine.nodes)))


def idle_pools(basis: Basis, free_bytes: Pools) -> Pools:
    """By how much the configured pools could shrink: what nobody is promised, and what the kernel has free
    (*free_bytes*), down to their minimum."""
    flows, idle = ResourceFlows(basis), dict[int, dict[int, int]]()
    for node, size, pool_bytes in _configured(basis):
        least = basis.policy.hugepage_pools[node][size].minimum_bytes
        most = min(pool_bytes - least, free_bytes.get(node, {}).get(size, 0))
        if most <= 0:
            continue
        spare = flows.flow(hugepages(size)).room(1 << node, most) // size * size
        if spare:
            idle.setdefault(node, {})[size] = spare
            flows.change(Claim(NodeSet([node]), {hugepages(size): spare}))
    return idle


def below_minimum(basis: Basis) -> Pools:
    """By how much the configured pools can grow to their minimum."""
    flows, added = ResourceFlows(basis), dict[int, dict[int, int]]()
    for node, size, pool_bytes in _configured(basis):
        lacking = basis.policy.hugepage_pools[node][size].minimum_bytes - pool_bytes
        more = min(-(-lacking // size) * size, _most_growth(basis, flows, node, size))
        if more > 0:
            added.setdefault(node, {})[size] = more
            flows.change(Claim(NodeSet([node]), {MEMORY: more}))
    return added


def _configured(basis: Basis) -> Iterator[tuple[int, int, int]]:
    """Node, page size and bytes of the pools that may grow and shrink."""
    for node in basis.machine.nodes:
        for size in sorted(basis.policy.hugepage_pools.get(node.id, {})):
            if size in node.hugepages_bytes:
                yield node.id, size, node.hugepages_bytes[size]


def _resized(node: Node, sizes: Mapping[int, int]) -> Node:
    return replace(node, hugepages_bytes={**node.hugepages_bytes, **sizes})


def _lacks(decision: Decision) -> bool:
    """Whether the decision lacks huge pages."""
    shortage = decision.shortage
    short = any(hugepages_of(decision.placement.promise.short_bytes).values())
    return (
        short or (shortage is not None and shortage.resource != MEMORY) or decision.outcome is Outcome.REFUSED
    )


def _rank(decision: Decision) -> tuple[bool, bool, bool]:
    """How far from what was asked, nothing of it for a container that is placed as asked."""
    return (
        decision.outcome is Outcome.REFUSED,
        decision.outcome is not Outcome.PLACED and _lacks(decision),
        decision.outcome is Outcome.DEGRADED,
    )


def _reachable(machine: Machine, request: Request) -> NodeSet:
    """The nodes that may hold the huge pages of *request*."""
    nodes = usable_nodes(machine, request)
    return nodes if request.pinned_mems is None else nodes & request.pinned_mems


def _growths(rooms: "_Rooms", request: Request, nodes: NodeSet) -> Iterator[dict[int, dict[int, int]]]:
    """By how much pools would grow so that the huge pages of *request* fit on a set of *nodes*, by node and
    page size: one for each set that can have them. Narrow sets come first; of equally wide ones those that
    the container is on, then those that need least."""
    pages, home, even = hugepages_of(claimed_amounts(request)), rooms.home(request), request.even_hugepages
    widths = range(1, min(len(nodes), _WIDEST) + 1) if even is None else (even.node_count,)
    for width in widths:
        found = []
        for some in islice(combinations(nodes, width), _MOST_SETS):
            on = NodeSet(some)
            added = rooms.growth_for(divided(on, pages, {} if even is None else pages))
            if added:
                taken = sum(sum(row.values()) for row in added.values())
                apart = rooms.basis.machine.total_distance(on)
                found.append((not on <= home, apart, taken, some, added))
        yield from (added for *_, added in sorted(found, key=lambda one: one[:4]))


class _Rooms(Struct, frozen=True):
    """What is left on each node. ``pages``: huge pages beside all claims but those of the container that is
    decided about. ``memory``: ordinary memory that pools may take, beside this container too, as it may keep
    what it has."""

    basis: Basis
    pages: ResourceFlows
    memory: ResourceFlows

    @classmethod
    def beside(cls, basis: Basis, held: Ledger) -> "_Rooms":
        """What is left beside the ledger of *basis*, and beside all that is *held*."""
        pages = ResourceFlows(basis)
        return cls(basis, pages, pages if held is basis.ledger else ResourceFlows(basis.with_ledger(held)))

    def home(self, request: Request) -> NodeSet:
        """The nodes on which the container has a claim already; none if it is new."""
        entry = self.memory.basis.ledger.entries.get(request.container_id)
        return NodeSet() if entry is None else entry.decision.placement.claimed.nodes

    def growth_for(self, parts: Parts) -> dict[int, dict[int, int]]:
        """By how much pools have to grow to hold the huge pages of all *parts* as well; nothing if they need
        not, or cannot as far."""
        pages, memory, added = self.pages.copy(), self.memory.copy(), dict[int, dict[int, int]]()
        for nodes, amounts in parts:
            for resource, amount in hugepages_of(amounts).items():
                size = hugepage_size_bytes(resource)
                asked = -(-amount // size) * size
                had = pages.flow(resource).room(nodes.mask, asked)
                pages.change(Claim(nodes, {resource: had}))
                lacking = -(-(asked - had) // size) * size
                most = {node: _most_growth(self.basis, memory, node, size) for node in nodes}
                for node in sorted(nodes, key=lambda one: (-most[one], one)):
                    more = min(lacking, _most_growth(self.basis, memory, node, size, added))
                    if more > 0:
                        row = added.setdefault(node, {})
                        row[size] = row.get(size, 0) + more
                        memory.change(Claim(NodeSet([node]), {MEMORY: more}))
                        lacking -= more
                if lacking > 0:
                    return {}
        return added

    def to_be_had(self, request: Request, nodes: NodeSet) -> Iterator[tuple[str, Mapping[int, int]]]:
        """How much of each size that *request* asks for each of *nodes* could give it: what is left of its
        pool, and what that may grow by."""
        for resource in hugepages_of(claimed_amounts(request)):
            size, flow = hugepage_size_bytes(resource), self.pages.flow(resource)
            yield (
                resource,
                {
                    node: flow.room(1 << node, self.pages.capacity.get(resource, {}).get(1 << node, 0))
                    + _most_growth(self.basis, self.memory, node, size)
                    for node in nodes
                },
            )

    def in_all_bytes(self, resource: str, nodes: NodeSet) -> int:
        """How much of *resource* all *nodes* could give together to one container."""
        size, memory, grown_bytes = hugepage_size_bytes(resource), self.memory.copy(), 0
        pools = self.pages.capacity.get(resource, {})
        for node in nodes:
            more = _most_growth(self.basis, memory, node, size)
            memory.change(Claim(NodeSet([node]), {MEMORY: more}))
            grown_bytes += more
        most = sum(pools.get(1 << node, 0) for node in nodes)
        return grown_bytes + self.pages.flow(resource).room(nodes.mask, most)


def _most_growth(
    basis: Basis, flows: ResourceFlows, node: int, size: int, added: Pools = MappingProxyType({})
) -> int:
    """The bytes by which the pool of a node, to which so much is *added* already, may grow, in whole
    pages."""
    bounds = basis.policy.hugepage_pools.get(node, {}).get(size)
    pools = basis.machine.node_by_id[node].hugepages_bytes
    if bounds is None or size not in pools:
        return 0
    most = bounds.maximum_bytes - pools[size] - added.get(node, {}).get(size, 0)
    return flows.flow(MEMORY).room(1 << node, most) // size * size if most > 0 else 0

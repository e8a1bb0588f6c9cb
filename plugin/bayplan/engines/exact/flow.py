"""Claims of one resource on sets of nodes, and a maximum flow that says whether they can all be kept.

Claims on the same set are one vertex. Sets of nodes are bitmasks, a node is a mask with one bit. What fits
does not depend on the order of the changes; which node carries what does (`witness` starts anew for that).
Invariant: on every node the carried bytes and the free ones sum to its capacity, and neither is negative.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Final

# What parts of a flow cost in steps, as measured.
_STEPS_OF_A_PUSH: Final = 5
_STEPS_OF_A_SEARCH: Final = 2
_NODES_A_STEP: Final = 4
_STEPS_OF_A_MOVE: Final = 3
_LOADS_A_STEP: Final = 16


def bits(mask: int) -> Iterator[int]:
    """The nodes of *mask*, lowest first, each as a mask with one bit."""
    while mask:
        low = mask & -mask
        yield low
        mask ^= low


def crosses(one: int, other: int) -> bool:
    """Whether two sets share nodes, and neither lies within the other."""
    shared = one & other
    return shared != 0 and shared not in (one, other)


class Loads:
    """What nodes carry of which sets, and how it moves where something else is to have its place.

    ``free`` and ``carried`` map nodes to bytes, and to bytes by set. ``onward`` has for a node all nodes that
    something it carries could move to; where it is missing it is worked out when it is needed. In a trial
    loads are copied before they change, unless their node is ``owned``, and what is pushed is not carried.
    ``steps`` is what the last push cost (see `StepBudget`).
    """

    __slots__ = ("carried", "free", "onward", "owned", "steps")

    def __init__(
        self,
        free: Mapping[int, int],
        carried: Mapping[int, dict[int, int]],
        onward: Mapping[int, int],
        owned: set[int] | None = None,
    ) -> None:
        self.free, self.carried, self.onward = dict(free), dict(carried), dict(onward)
        self.owned = owned
        self.steps = 0

    def push(self, nodes: int, amount: int) -> int:
        """Carry *amount* more for the set *nodes*, moving the load of other sets where that makes room.

        First whatever is free on the nodes themselves is taken. For the rest it is a maximum flow by shortest
        augmenting paths. Example: nodes 1 and 2 hold 4 each, and node 1 carries 4 for the set {1, 2}. To push
        6 for {1}, nothing is free there; but what node 1 carries may also lie on node 2, which has 4 free. So
        4 are moved from 1 to 2, and 4 are carried on node 1 instead. Then no path leads to anything free any
        more, and 4 are returned. On a longer path 1 -> 2 -> 3 node 2 passes on to 3 as much as it gets.

        Returns:
            How much of it could be carried: all that fits.
        """
        left = amount - self._take_free(nodes, amount)
        roomy = self._roomy() if left else 0
        while left:
            path, most = self._path(nodes, roomy)
            if not path:
                break
            part = min(left, most)
            self._own(path)
            self.free[path[0]] -= part
            if not self.free[path[0]]:
                roomy ^= path[0]
            # From the end with something free, so that each node has room before it gets something.
            for node, previous in pairwise(path):
                self.steps += _STEPS_OF_A_MOVE + len(self.carried[previous]) // _LOADS_A_STEP
                self._move(previous, node, part)
            if self.owned is None:
                self._load(path[-1], nodes, part)
            left -= part
        return amount - left

    def _take_free(self, nodes: int, amount: int) -> int:
        """Carry for the set *nodes* what is free on them, up to *amount*; how much that is."""
        free, left = self.free, amount
        self.steps = _STEPS_OF_A_PUSH
        for node in (nodes,) if nodes in free else bits(nodes):  # most sets have one node
            part = min(free.get(node, 0), left)
            if part:
                free[node] -= part
                if self.owned is None:
                    self._load(node, nodes, part)
                left -= part
        return amount - left

    def _roomy(self) -> int:
        """All nodes with something free."""
        return sum([node for node, left in self.free.items() if left])

    def _path(self, nodes: int, roomy: int) -> tuple[list[int], int]:
        """A shortest path from one of the *roomy* nodes back to one of *nodes*, and how much can move along
        it at most; empty if there is none."""
        groups, node = self._reached(nodes, roomy)
        if not node:
            return [], 0
        most, path = self.free[node], [node]
        for group, previous in reversed(groups):
            if previous and group & node:
                movable = sum([load for claimant, load in self.carried[previous].items() if claimant & node])
                most, node = min(most, movable), previous
                path.append(node)
        return path, most

    def reached(self, nodes: int) -> int:
        """All nodes that something on *nodes* could make others move to."""
        return sum([group for group, _ in self._reached(nodes, self._roomy())[0]])

    def _reached(self, nodes: int, roomy: int) -> tuple[list[tuple[int, int]], int]:
        """Breadth-first from *nodes*: from a node to every node of a set that it carries a load of.

        Returns:
            What was reached, as disjoint sets in the order of the search, each with the node before it: 0 for
            *nodes* themselves. And the first of the *roomy* nodes, with which the search ends; 0 if there is
            none.
        """
        carried, onward = self.carried, self.onward
        groups, reached, last = [(nodes, 0)], nodes, 0
        for group, _ in groups:
            waiting = group
            while waiting and not last:
                node = waiting & -waiting
                waiting ^= node
                ways = onward.get(node)
                if ways is None:
                    ways = onward[node] = reduce(or_, carried.get(node, ()), 0)
                ways &= ~reached
                if not ways:
                    continue
                if free := ways & roomy:
                    last = free & -free
                    ways &= 2 * last - 1
                reached |= ways
                groups.append((ways, node))
        self.steps += _STEPS_OF_A_SEARCH + reached.bit_count() // _NODES_A_STEP
        return groups, last

    def _own(self, nodes: Iterable[int]) -> None:
        if self.owned is None:
            return
        for node in nodes:
            if node not in self.owned:
                self.carried[node] = self.carried[node].copy()
                self.owned.add(node)

    def _move(self, node: int, other: int, amount: int) -> None:
        """Have *other* carry so much of the load of *node*, whichever sets it is of."""
        for claimant, load in [(one, load) for one, load in self.carried[node].items() if one & other]:
            part = min(amount, load)
            self._load(node, claimant, -part)
            self._load(other, claimant, part)
            amount -= part
            if not amount:
                break

    def _load(self, node: int, claimant: int, difference_bytes: int) -> None:
        load = self.carried[node]
        before = load.get(claimant, 0)
        after = before + difference_bytes
        if after:
            load[claimant] = after
        else:
            del load[claimant]
        if not before or not after:
            self.onward.pop(node, None)


class Flow(Loads):
    """What is claimed on each set, and how it is spread over the nodes.

    ``unmet`` is what the nodes of a set cannot carry: only of claims that were there before they could be
    refused (found containers, capacity that went away).
    """

    __slots__ = ("capacity", "claimed", "crossings", "slack", "unmet", "wide")

    def __init__(self, capacity: Mapping[int, int]) -> None:
        """*capacity* maps nodes (masks with one bit) to bytes; other nodes have none."""
        super().__init__(capacity, {node: {} for node in capacity}, {})
        self.capacity = dict(capacity)
        self.claimed: dict[int, int] = {}
        self.unmet: dict[int, int] = {}
        # What is left of a set once all claims within it are kept: for each node and each set that is
        # claimed.
        self.slack = dict(capacity)
        # The claimed sets of several nodes: a single node lies within every set that it shares a node with.
        self.wide: set[int] = set()
        self.crossings = 0

    def copy(self) -> "Flow":
        """An independent flow with the same claims."""
        twin = Flow.__new__(Flow)
        twin.capacity = self.capacity
        carried = {node: dict(load) for node, load in self.carried.items()}
        Loads.__init__(twin, self.free, carried, self.onward)
        twin.claimed, twin.unmet = dict(self.claimed), dict(self.unmet)
        twin.slack, twin.wide, twin.crossings = dict(self.slack), set(self.wide), self.crossings
        return twin

    def capacity_of(self, nodes: int) -> int:
        """Bytes that *nodes* hold together."""
        capacity = self.capacity
        found = capacity.get(nodes)  # most sets have one node
        return sum([capacity.get(node, 0) for node in bits(nodes)]) if found is None else found

    def claimed_within(self, nodes: int) -> int:
        """Bytes claimed on sets that lie within *nodes*."""
        return sum([amount for claimant, amount in self.claimed.items() if claimant & ~nodes == 0])

    def left_within(self, nodes: int) -> int:
        """What *nodes* hold less all that is claimed within them, counted anew."""
        held_bytes = sum([amount for node, amount in self.capacity.items() if node & nodes])
        return held_bytes - sum([amount for one, amount in self.claimed.items() if one & ~nodes == 0])

    def change(self, nodes: int, difference_bytes: int) -> None:
        """Claim so much more (or less) on *nodes*; what they cannot carry is noted as unmet."""
        before = self.claimed.get(nodes, 0)
        after = before + difference_bytes
        if not before:
            self._enter(nodes)
        for watched in self.slack:
            if nodes & ~watched == 0:
                self.slack[watched] -= difference_bytes
        if after:
            self.claimed[nodes] = after
        else:
            self._leave(nodes)
        if difference_bytes > 0:
            self.carry(nodes, difference_bytes)
        else:
            self.release(nodes, -difference_bytes)

    def room(self, nodes: int, wanted_bytes: int) -> int:
        """How much of *wanted_bytes* could be claimed on *nodes*, beside everything that is claimed."""
        free = self.free
        if free.get(nodes, 0) >= wanted_bytes:
            return wanted_bytes
        if sum([free.get(node, 0) for node in bits(nodes)]) >= wanted_bytes:
            return wanted_bytes
        if not self.unmet:
            bound = self.bound(nodes, wanted_bytes)
            # Where all sets are nested or disjoint, the slack of the sets around decides alone.
            if bound <= 0 or not (self.crossings or self.crossed(nodes)):
                return max(0, bound)
        return self.trial().push(nodes, wanted_bytes)

    def fits(self, claims: Sequence[tuple[int, int]]) -> bool:
        """Whether all *claims* (set and bytes) can be made beside everything that is claimed. Of several, the
        narrow ones come first."""
        if len(claims) == 1:
            nodes, wanted_bytes = claims[0]
            return self.room(nodes, wanted_bytes) >= wanted_bytes
        trial = self.trial()
        return all(trial.push(nodes, amount) == amount for nodes, amount in claims)

    def bound(self, nodes: int, wanted_bytes: int) -> int:
        """What `room` is at most: what is left of *nodes*, or of a claimed set around them. No flow is needed
        to know it, and mostly it is all there is."""
        if self.unmet:
            return wanted_bytes  # what is unmet within a set takes nothing from its other nodes
        bound = min(wanted_bytes, self.capacity_of(nodes) - self.claimed_within(nodes))
        for watched, left in self.slack.items():
            if left < bound and nodes & ~watched == 0:
                bound = left
        return bound

    def trial(self) -> "Trial":
        """What else could be carried, to try out."""
        return Trial(self)

    def rebuilt(self) -> "Trial":
        """What else could be carried, with loads that do not depend on the order of the changes."""
        loads = Loads(self.capacity, {node: {} for node in self.capacity}, {})
        for nodes in sorted(self.claimed, key=lambda each: (each.bit_count(), each)):
            loads.push(nodes, self.claimed[nodes])
        return Trial(loads)

    def cut(self, claims: Sequence[tuple[int, int]]) -> int:
        """The smallest set around one of *claims* (set and bytes, the narrow ones first) whose capacity is
        what keeps it out, beside those before it; 0 if nothing does.

        It is the same for every maximum flow: the nodes that can be reached from those of the claim once all
        that fits was added. Everything that loads them is claimed within them. Where claims are unmet already
        it depends on which they are: then the loads are taken as they are in a fixed order.
        """
        trial = self.rebuilt() if self.unmet else self.trial()
        for nodes, wanted_bytes in claims:
            if trial.push(nodes, wanted_bytes) < wanted_bytes:
                return trial.reached(nodes)
        return 0

    def crossed(self, nodes: int) -> int:
        """How many claimed sets cross *nodes*."""
        if not nodes & (nodes - 1):
            return 0
        return sum([crosses(nodes, other) for other in self.wide])

    def _enter(self, nodes: int) -> None:
        self.crossings += self.crossed(nodes)
        if nodes & (nodes - 1):
            self.wide.add(nodes)
        if nodes not in self.slack:
            self.slack[nodes] = self.capacity_of(nodes) - self.claimed_within(nodes)

    def _leave(self, nodes: int) -> None:
        self.claimed.pop(nodes, None)
        self.wide.discard(nodes)
        self.crossings -= self.crossed(nodes)
        if nodes not in self.capacity:
            del self.slack[nodes]

    def carry(self, nodes: int, amount: int) -> bool:
        """Carry *amount* more for the set *nodes*, and record as unmet what does not fit; whether all of it
        fits.

        As `release`, only for a flow that is asked for nothing but what its nodes carry: the claims, and what
        is left of each set, are not brought up to date.
        """
        missing = amount - self.push(nodes, amount)
        if missing:
            self.unmet[nodes] = self.unmet.get(nodes, 0) + missing
        return not missing

    def release(self, nodes: int, amount: int) -> None:
        """Carry *amount* less for the set *nodes*, and carry unmet claims on what becomes free. See
        `carry`."""
        missing = self.unmet.pop(nodes, 0)
        if missing > amount:
            self.unmet[nodes] = missing - amount
        left = amount - min(missing, amount)
        for node in bits(nodes):
            load = self.carried.get(node)
            if not left or load is None or nodes not in load:
                continue
            part = min(left, load[nodes])
            self._load(node, nodes, -part)
            self.free[node] += part
            left -= part
        self._carry_unmet()

    def grow(self, node: int, most_bytes: int) -> int:
        """Let *node*, which has a capacity, hold up to *most_bytes* more, as far as unmet claims can use it;
        how many bytes that is.

        A growth that does not help on one node does not help once others have grown either. So nodes that
        grow one after the other, in any order, carry as much as they could together, with the least growth
        that suffices.
        """
        before = self.free[node]
        self.free[node] += max(0, most_bytes)
        self._carry_unmet()
        unused = self.free[node] - before
        self.free[node] = before
        used = max(0, most_bytes) - unused
        self.capacity = {**self.capacity, node: self.capacity[node] + used}
        for watched in self.slack:
            if watched & node:
                self.slack[watched] += used
        return used

    def _carry_unmet(self) -> None:
        for waiting, lacking in list(self.unmet.items()):
            del self.unmet[waiting]
            self.carry(waiting, lacking)


class Trial(Loads):
    """What else a flow could carry, tried out beside it.

    The loads of the flow move, and take room from each other as they would. What is pushed is not carried
    itself: it may start on every node it was pushed for and never moves on.
    """

    __slots__ = ()

    def __init__(self, loads: Loads) -> None:
        super().__init__(loads.free, loads.carried, loads.onward, set())

    def copy(self) -> "Trial":
        """An independent trial with the same loads.

        The loads of a node are a dict, which is copied when a trial first changes it (``owned`` are the nodes
        for which that was done): most trials change few nodes. After a copy both trials refer to the same
        dicts, so that neither owns any. Example: a trial owns node 1 and is copied; were it still to own it,
        its next push would change what the copy sees.
        """
        assert self.owned is not None
        self.owned.clear()
        return Trial(self)

"""Claims of one resource on sets of nodes, and a maximum flow that says whether they can all be kept.

Claims on the same set are one vertex. Sets of nodes are bitmasks, a node is a mask with one bit. What fits
does not depend on the order of the changes; which node carries what does (`witness` starts anew for that).
Invariant: on every node the carried bytes and the free ones sum to its capacity, and neither is negative.
"""

from collections.abc import Iterator, Mapping


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


class Flow:
    """What is claimed on each set, and how it is spread over the nodes.

    ``unmet`` is what the nodes of a set cannot carry: only of claims that were there before they could be
    refused (found containers, capacity that went away).
    """

    __slots__ = ("capacity", "carried", "claimed", "crossings", "free", "slack", "unmet", "wide")

    def __init__(self, capacity: Mapping[int, int]) -> None:
        """*capacity* maps nodes (masks with one bit) to bytes; other nodes have none."""
        self.capacity = dict(capacity)
        self.free = dict(capacity)
        self.carried: dict[int, dict[int, int]] = {node: {} for node in capacity}
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
        twin.free = dict(self.free)
        twin.carried = {node: dict(load) for node, load in self.carried.items()}
        twin.claimed, twin.unmet = dict(self.claimed), dict(self.unmet)
        twin.slack, twin.wide, twin.crossings = dict(self.slack), set(self.wide), self.crossings
        return twin

    def capacity_of(self, nodes: int) -> int:
        """Bytes that *nodes* hold together."""
        capacity = self.capacity
        return sum(capacity.get(node, 0) for node in bits(nodes))

    def claimed_within(self, nodes: int) -> int:
        """Bytes claimed on sets that lie within *nodes*."""
        return sum(amount for claimant, amount in self.claimed.items() if claimant & ~nodes == 0)

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
            self._release(nodes, -difference_bytes)

    def room(self, nodes: int, wanted_bytes: int) -> int:
        """How much of *wanted_bytes* could be claimed on *nodes*, beside everything that is claimed."""
        free = self.free
        if free.get(nodes, 0) >= wanted_bytes:
            return wanted_bytes
        if sum([free.get(node, 0) for node in bits(nodes)]) >= wanted_bytes:
            return wanted_bytes
        if not self.unmet:
            bound = min(wanted_bytes, self.capacity_of(nodes) - self.claimed_within(nodes))
            for watched, left in self.slack.items():
                if left < bound and nodes & ~watched == 0:
                    bound = left
            # Where all sets are nested or disjoint, the slack of the sets around decides alone.
            if bound <= 0 or not (self.crossings or self.crossed(nodes)):
                return max(0, bound)
        return self.trial().push(nodes, wanted_bytes)

    def trial(self) -> "Trial":
        """What else could be carried, to try out."""
        return Trial(self.free, self.carried)

    def cut(self, nodes: int, wanted_bytes: int) -> int:
        """The smallest set around *nodes* whose capacity is what keeps *wanted_bytes* out.

        It is the same for every maximum flow: the nodes that can be reached from *nodes* once all that fits
        was added. Everything that loads them is claimed within them.
        """
        trial = self.trial()
        trial.push(nodes, wanted_bytes)
        return sum(_reached(trial.free, trial.carried, nodes)[0])

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

    def carry(self, nodes: int, amount: int) -> None:
        """Carry *amount* more for the set *nodes*, and note what they cannot. By itself, for a flow that is
        only asked what its nodes carry: what is claimed and what is left of each set does not follow."""
        missing = amount - _push(self.free, self.carried, nodes, amount)
        if missing:
            self.unmet[nodes] = self.unmet.get(nodes, 0) + missing

    def _release(self, nodes: int, amount: int) -> None:
        missing = self.unmet.pop(nodes, 0)
        if missing > amount:
            self.unmet[nodes] = missing - amount
        left = amount - min(missing, amount)
        for node in bits(nodes):
            load = self.carried.get(node)
            if not left or load is None or nodes not in load:
                continue
            part = min(left, load[nodes])
            _carry(load, nodes, -part)
            self.free[node] += part
            left -= part
        for waiting, lacking in list(self.unmet.items()):
            del self.unmet[waiting]
            self.carry(waiting, lacking)


class Trial:
    """What else a flow could carry, tried out beside it.

    The loads of the flow move, and take room from each other as they would. What is pushed is not carried
    itself: it may start on every node it was pushed for and never moves on.
    """

    __slots__ = ("carried", "free")

    def __init__(self, free: Mapping[int, int], carried: Mapping[int, dict[int, int]]) -> None:
        self.free = dict(free)
        # The loads themselves are copied as they change.
        self.carried = dict(carried)

    def copy(self) -> "Trial":
        """An independent trial with the same loads."""
        return Trial(self.free, self.carried)

    def push(self, nodes: int, amount: int) -> int:
        """How much of *amount* fits on *nodes* beside everything that is there, and push that."""
        return _push(self.free, self.carried, nodes, amount, trial=True)


def _push(
    free: dict[int, int], carried: dict[int, dict[int, int]], nodes: int, amount: int, *, trial: bool = False
) -> int:
    """Carry *amount* more for the set *nodes*, moving the load of other sets where that makes room.

    A *trial* changes *free* and *carried*, but not the loads in it, and does not carry what is asked for:
    no load of *nodes* itself is ever moved, so that this changes no answer.

    Returns:
        How much of it could be carried: all that fits, by shortest augmenting paths.
    """
    left = amount
    for node in bits(nodes):
        part = min(free.get(node, 0), left)
        if part:
            free[node] -= part
            if not trial:
                _carry(carried[node], nodes, part)
            left -= part
    while left:
        parents, found = _reached(free, carried, nodes)
        if not found:
            break
        part, node = min(left, free[found]), found
        while (step := parents[node]) is not None:
            part, node = min(part, carried[step[0]][step[1]]), step[0]
        free[found] -= part
        node = found
        while (step := parents[node]) is not None:
            if trial:
                carried[node], carried[step[0]] = dict(carried[node]), dict(carried[step[0]])
            _carry(carried[node], step[1], part)
            _carry(carried[step[0]], step[1], -part)
            node = step[0]
        if not trial:
            _carry(carried[node], nodes, part)
        left -= part
    return amount - left


def _reached(
    free: Mapping[int, int], carried: Mapping[int, Mapping[int, int]], nodes: int
) -> tuple[dict[int, tuple[int, int] | None], int]:
    """Breadth-first from *nodes*: from a node to every node of a set that it carries a load of.

    Returns:
        For each node that was reached the node before it and the set whose load would move on, None for the
        first ones; and the first node with something free, 0 if there is none.
    """
    parents: dict[int, tuple[int, int] | None] = dict.fromkeys(bits(nodes))
    queue, seen = list(parents), {nodes}
    for node in queue:
        if free.get(node, 0):
            return parents, node
        for claimant in carried.get(node, ()):
            if claimant in seen:
                continue
            seen.add(claimant)
            for other in bits(claimant):
                if other not in parents:
                    parents[other] = (node, claimant)
                    queue.append(other)
    return parents, 0


def _carry(load: dict[int, int], claimant: int, difference_bytes: int) -> None:
    after = load.get(claimant, 0) + difference_bytes
    if after:
        load[claimant] = after
    else:
        del load[claimant]

"""Which CPUs: kubelet's packed, spread and uncore-aligned choice. Pure; nothing here knows of containers.

Best fit throughout: elements are tried in ascending order of their free CPUs, then of their id, so that
the most used one is filled first. Source: Kubernetes v1.36, takeByTopologyNUMAPacked. One difference:
kubelet calls an element whole when its number of free CPUs equals the machine's average, and then takes
all of its CPUs, free or not. Here all of them must be free as well, so that on hybrid machines no CPU is
given away twice.

Spread (distribute-cpus-across-numa)
====================================

Source: Kubernetes v1.37, takeByTopologyNUMADistributed. Two differences, both where kubelet is defective:
it never returns when a subset of nodes cannot give the remainder in whole groups (here such a subset is
not considered), and its lists of four or of six to eight nodes are overwritten while they are remembered
(here they are not). The uncore cache is not considered, as in kubelet.

Which NUMA nodes share a request so that the rest is balanced best is kubelet's answer without its search.
kubelet tries every combination of nodes, and for each every subset that could give the remainder. Both
are exponential. Here the nodes are walked once, because the balance depends on sums only:

* The number of CPUs given is fixed and so is the mean of what stays free, so that a lower deviation is a
  lower sum of squares. The *gain* of a choice is how much it shrinks that sum.
* A subset gives its groups in rounds. What each node gives follows from the number of complete rounds and
  from where in the order the last, partial round ends.

Exact and polynomial; bounds on the gain keep the tables small. Ties go to the first combination, then to
the largest and first subset, in the order of the nodes, as in kubelet.

Example: nodes with 4, 3 and 3 free CPUs, and 5 CPUs wanted from two nodes: each gives a share of 2, one
of them 1 more. Node 0 gains 16 by its share (2 * 2 * 4) and 3 by the further CPU (2 * 2 - 1 * 1), nodes 1
and 2 gain 12 and 1. The most is 31: nodes 0 and 1, the further CPU from node 0. 1, 1 and 3 CPUs stay
free.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from math import comb, isqrt
from typing import Final, final

from msgspec import Struct

from bayplan.engines.kubelet.cpu_state import CpuShortageError
from bayplan.engines.kubelet.cpu_topology import CpuTopology
from bayplan.sets import CpuSet


def take_packed(
    topology: CpuTopology,
    available: CpuSet,
    count: int,
    *,
    spread: bool = False,
    align_uncore: bool = False,
) -> CpuSet:
    """Exactly *count* CPUs of *available*: whole NUMA nodes and sockets, then whole uncore caches if
    *align_uncore*, then whole cores unless *spread*, then single CPUs.

    Raises:
        CpuShortageError: *available* holds fewer.
    """
    free = FreeCpus(topology, available, count)
    if free.satisfied:
        return free.taken
    if free.failed:
        raise CpuShortageError(count, len(available))
    whole_nodes = (free.free_nodes, topology.node_cpus)
    whole_sockets = (free.free_sockets, topology.socket_cpus)
    levels = (whole_nodes, whole_sockets) if topology.nodes_first else (whole_sockets, whole_nodes)
    for listed, cpus in levels:
        free.take_whole(listed(), cpus)
        if free.satisfied:
            return free.taken
    if align_uncore:
        free.take_uncores()
    if not spread and not free.satisfied:
        free.take_whole(free.free_cores(), topology.core_cpus)
    if not free.satisfied:
        free.take_single(free.cpus_spread() if spread else free.cpus_packed())
    assert free.satisfied
    return free.taken


@final
class FreeCpus:
    """The CPUs still free while one request is being served, in the orders in which they are tried.

    A working object, never kept: what it started with is ``taken`` and what is left of it, without overlap.
    """

    __slots__ = ("_free", "_taken", "_topology", "needed")

    def __init__(self, topology: CpuTopology, available: CpuSet, count: int) -> None:
        self._topology = topology
        self._free = available.mask & topology.all_cpus.mask
        self._taken = 0
        self.needed = count

    @property
    def taken(self) -> CpuSet:
        """What was taken so far."""
        return CpuSet.of_mask(self._taken)

    @property
    def satisfied(self) -> bool:
        """Whether nothing more is needed."""
        return self.needed < 1

    @property
    def failed(self) -> bool:
        """Whether more is needed than is left."""
        return self.needed > self._free.bit_count()

    def take(self, cpus: CpuSet) -> None:
        """Take *cpus*, all of which must still be free."""
        assert cpus.mask & ~self._free == 0
        self._take(cpus.mask)

    def nodes(self) -> list[int]:
        """NUMA nodes with free CPUs in the order in which they are tried."""
        topology = self._topology
        if topology.nodes_first:
            return self._by_use(topology.node_cpus, topology.node_cpus, self._free)
        return [
            node
            for socket in self.sockets()
            for node in self._by_use(
                topology.nodes_of_socket[socket], topology.node_cpus, topology.socket_cpus[socket]
            )
        ]

    def sockets(self) -> list[int]:
        """Sockets with free CPUs in the order in which they are tried."""
        topology = self._topology
        if not topology.nodes_first:
            return self._by_use(topology.socket_cpus, topology.socket_cpus, self._free)
        return [
            socket
            for node in self.nodes()
            for socket in self._by_use(
                topology.sockets_of_node[node], topology.socket_cpus, topology.node_cpus[node]
            )
        ]

    def uncores(self) -> list[int]:
        """Uncore caches with free CPUs in the order in which they are tried."""
        topology = self._topology
        return [
            uncore
            for node in self.nodes()
            for uncore in self._by_use(
                topology.uncores_of_node[node], topology.uncore_cpus, topology.node_cpus[node]
            )
        ]

    def cores(self) -> list[int]:
        """Cores with free CPUs in the order in which they are tried."""
        topology = self._topology
        if topology.nodes_first:
            outer, cpus, inner = self.sockets(), topology.socket_cpus, topology.cores_of_socket
        else:
            outer, cpus, inner = self.nodes(), topology.node_cpus, topology.cores_of_node
        return [
            core
            for element in outer
            for core in self._by_use(inner[element], topology.core_cpus, cpus[element])
        ]

    def cpus_packed(self) -> list[int]:
        """Free CPUs core by core."""
        core_cpus = self._topology.core_cpus
        return [cpu for core in self.cores() for cpu in CpuSet.of_mask(core_cpus[core] & self._free)]

    def cpus_spread(self) -> list[int]:
        """Free CPUs socket by socket, ascending ids, so that neighbouring ones are on different cores."""
        socket_cpus = self._topology.socket_cpus
        return [cpu for socket in self.sockets() for cpu in CpuSet.of_mask(socket_cpus[socket] & self._free)]

    def free_nodes(self) -> list[int]:
        """NUMA nodes all of whose CPUs are free."""
        cpus = self._topology.node_cpus
        return [node for node in self.nodes() if cpus[node] & ~self._free == 0]

    def free_sockets(self) -> list[int]:
        """Sockets all of whose CPUs are free, as many as the average socket has."""
        return self._whole(self.sockets(), self._topology.socket_cpus, self._topology.cpus_per_socket)

    def free_uncores(self) -> list[int]:
        """Uncore caches all of whose CPUs are free."""
        cpus = self._topology.uncore_cpus
        return [uncore for uncore in self.uncores() if cpus[uncore] & ~self._free == 0]

    def free_cores(self) -> list[int]:
        """Cores all of whose CPUs are free, as many as the average core has."""
        return self._whole(self.cores(), self._topology.core_cpus, self._topology.cpus_per_core)

    def take_whole(self, elements: Iterable[int], cpus: Mapping[int, int]) -> None:
        """Take each of *elements* that is still free and not larger than what is needed."""
        for element in elements:
            mask = cpus[element]
            if mask & ~self._free == 0 and self.needed >= mask.bit_count():
                self._take(mask)

    def take_uncores(self) -> None:
        """Whole uncore caches first; what remains comes from one further cache, or not at all.

        One pass over the whole caches does what kubelet's repeated passes do: between them nothing changes.
        """
        ordered = self.uncores()
        if self.needed >= self._topology.cpus_per_uncore:
            self.take_whole(self.free_uncores(), self._topology.uncore_cpus)
        for uncore in ordered:
            if self.satisfied:
                return
            self._take_part_of_uncore(uncore)

    def take_single(self, cpus: Iterable[int]) -> None:
        """Take CPUs in the given order until satisfied."""
        for cpu in cpus:
            if self.satisfied:
                return
            if self._free >> cpu & 1:
                self._take(1 << cpu)

    def _take_part_of_uncore(self, uncore: int) -> None:
        """Take all that is needed from one cache, but only if its lowest cores give exactly that number.

        With SMT an odd request may leave the last sibling of the last core behind.
        """
        topology = self._topology
        cpus_per_core = topology.cpus_per_core
        cores_needed = -(-self.needed // max(1, cpus_per_core))
        mask = 0
        inside = topology.uncore_cpus[uncore] & self._free
        for core in topology.cores_of_uncore[uncore]:
            if cores_needed == 0:
                break
            if topology.core_cpus[core] & inside:
                mask |= topology.core_cpus[core] & self._free
                cores_needed -= 1
        if self.needed % 2 and cpus_per_core > 1 and mask.bit_count() > self.needed:
            mask ^= 1 << mask.bit_length() - 1
        if mask.bit_count() == self.needed:
            self._take(mask)

    def _whole(self, elements: list[int], cpus: Mapping[int, int], size: int) -> list[int]:
        return [
            element
            for element in elements
            if cpus[element] & ~self._free == 0 and cpus[element].bit_count() == size
        ]

    def _by_use(self, elements: Iterable[int], cpus: Mapping[int, int], within: int) -> list[int]:
        """Those of *elements* with a free CPU inside *within*, the ones with the fewest free CPUs first."""
        free, inside = self._free, self._free & within
        counted = [
            ((cpus[element] & free).bit_count(), element) for element in elements if cpus[element] & inside
        ]
        counted.sort()
        return [element for _, element in counted]

    def _take(self, mask: int) -> None:
        self._taken |= mask
        self._free &= ~mask
        self.needed -= mask.bit_count()


_GOING, _ENDED = 1, 2
"""Whether the last round still reaches the nodes that the walk comes to, or ended before them."""

_IMPOSSIBLE: Final = -(1 << 200)

State = tuple[int, int, int]
"""What the nodes from here on provide: members, groups beyond the shares; and whether the round is going."""

Step = tuple[int, int, int, int]
"""What one node does: members (0 or 1), groups beyond the share, gain, and the round after it."""

Steps = Callable[[int, int], Sequence[Step]]
"""What the node at a position may do while the round is going or ended, besides nothing."""

Table = Mapping[State, int]
"""The largest gain of the nodes from some position on, by what they provide."""


class Split(Struct, frozen=True):
    """Positions of the members, each of which gives the share, and of those which also give the remainder
    among them, one group at a time in rounds."""

    members: tuple[int, ...]
    remainder: tuple[int, ...]


def best_split(free: Sequence[int], count: int, share: int, group: int, extra: int) -> Split | None:
    """The split of a request over *count* nodes that leaves the least deviation of free CPUs.

    Args:
        free: free CPUs of every node, in the order by which ties are broken.
        count: how many nodes take part.
        share: CPUs that each of them gives, a multiple of *group*.
        group: how many CPUs are given together.
        extra: groups to give beyond the shares.

    Returns:
        None if no *count* nodes can give that much.
    """
    problem = _Problem(tuple(free), count, share, group, extra)
    able = tuple(place for place, cpus in enumerate(free) if cpus >= share)
    spare = sorted((problem.spare(place) for place in able), reverse=True)
    if len(able) < count or sum(spare[:count]) < extra:
        return None
    return _by_bound(problem, able) or _by_walk(problem, able)


MOST_COMBINATIONS: Final = 20_000
"""Of nodes that `best_aligned_split` looks at: all of 16 nodes, of which kubelet tries as many."""


def best_aligned_split(
    free: Sequence[int], sockets: Sequence[frozenset[int]], count: int, groups: int, group: int
) -> tuple[Split, int] | None:
    """The split of *groups* over *count* nodes that kubelet takes with align-by-socket, and its share: nodes
    of one socket before nodes of several, whatever the balance. *sockets* are those of every node.

    The share is even as far as the emptiest member has so many, so that it differs from combination to
    combination, and these are tried one by one: a deviation of less than what is known to be best is looked
    for only where the bound allows it. Where there are more than `MOST_COMBINATIONS`, which is beyond what
    kubelet ends with, the fullest nodes are taken.

    Returns:
        None if no *count* nodes can give that much.
    """
    best: tuple[bool, int, Split, int] | None = None
    for members in _combinations(free, sockets, count):
        if sum(free[place] // group for place in members) < groups:
            continue
        apart = len(frozenset().union(*(sockets[place] for place in members))) > 1
        if best is not None and (best[0] < apart or best[:2] == (apart, 0)):
            continue
        share = min(groups // count, *(free[place] // group for place in members)) * group
        problem = _Problem(tuple(free), count, share, group, groups - share // group * count)
        beaten = None if best is None or best[0] > apart else best[1]
        if beaten is not None and problem.deviation(problem.bound(members)) >= beaten:
            continue
        split = _by_bound(problem, members) or _by_walk(problem, members)
        gain = sum(map(problem.share_gain, members)) + problem.rounds_gain(split.remainder)
        if beaten is None or problem.deviation(gain) < beaten:
            best = (apart, problem.deviation(gain), split, share)
    return None if best is None else best[2:]


def _combinations(
    free: Sequence[int], sockets: Sequence[frozenset[int]], count: int
) -> Iterable[tuple[int, ...]]:
    """The sets of *count* places in order; if too many, only the fullest of each socket and of all."""
    places = range(len(free))
    if comb(len(free), count) <= MOST_COMBINATIONS:
        return combinations(places, count)
    fullest = sorted(places, key=lambda place: (-free[place], place))
    within = [[place for place in fullest if sockets[place] == socket] for socket in dict.fromkeys(sockets)]
    return [tuple(sorted(each[:count])) for each in (*within, fullest) if len(each) >= count]


class _Problem(Struct, frozen=True):
    """The arguments of `best_split`, and what choices gain."""

    free: tuple[int, ...]
    count: int
    share: int
    group: int
    extra: int

    def spare(self, place: int) -> int:
        """Whole groups that a node has beyond its share."""
        return (self.free[place] - self.share) // self.group

    def share_gain(self, place: int) -> int:
        """Gain of a member's share, less what is the same for all nodes."""
        return 2 * self.share * self.free[place]

    def spare_gain(self, place: int, groups: int) -> int:
        """Gain of *groups* given beyond the share."""
        given = groups * self.group
        return (2 * (self.free[place] - self.share) - given) * given

    def rounds_gain(self, places: Sequence[int]) -> int:
        """Gain of giving the remainder in rounds from *places*, which must have enough."""
        given = dict.fromkeys(places, 0)
        left = self.extra
        while left:
            for place in places:
                if left and given[place] < self.spare(place):
                    given[place] += 1
                    left -= 1
        return sum(self.spare_gain(place, groups) for place, groups in given.items())

    def bound(self, members: Sequence[int]) -> int:
        """No less than the gain of any remainder given by *members*, with their shares: the remainder is
        taken from whoever has most left, rounds or not."""
        most = [(-self.spare_gain(place, 1), place, 1) for place in members if self.spare(place)]
        heapq.heapify(most)
        gain = sum(map(self.share_gain, members))
        for _ in range(self.extra):
            if not most:
                return _IMPOSSIBLE
            step, place, groups = most[0]
            gain -= step
            if groups < self.spare(place):
                step = self.spare_gain(place, groups) - self.spare_gain(place, groups + 1)
                heapq.heapreplace(most, (step, place, groups + 1))
            else:
                heapq.heappop(most)
        return gain

    def threshold(self, gain: int) -> int:
        """The lowest gain that kubelet cannot tell from *gain*, as it rounds mean and deviation to 1/1000.

        The largest sum that is rounded to the same `deviation` is ``worst``; the gain that belongs to it is
        returned.

        Example: of 8 nodes with 128 free CPUs and 8 with 8, two give 4 each, and one of them 1 more. The best
        choice gains 2295. One that gains 2294 leaves the same deviation in thousandths: of the two, kubelet
        takes the one that comes first.
        """
        nodes = len(self.free)
        squares, offset = self._squares_and_offset()
        worst = (nodes * (2 * self.deviation(gain) + 1) ** 2 - 1) // 4
        return squares - (worst - offset) // 1_000_000

    def deviation(self, gain: int) -> int:
        """The deviation, in thousandths, of what a choice with that gain leaves free on the nodes, as kubelet
        rounds it: that of the mean first, then the root, both half up.

        Let x be what stays free on each of n nodes. The squares of all x add up to ``squares - gain``, and
        the x themselves to the same, whatever is chosen. So, in thousandths, the squared differences from
        the rounded mean add up to 1,000,000 * (squares - gain) + ``offset``.
        """
        squares, offset = self._squares_and_offset()
        nodes = len(self.free)
        return (isqrt(4 * (1_000_000 * (squares - gain) + offset) // nodes) + 1) // 2

    def _squares_and_offset(self) -> tuple[int, int]:
        nodes = len(self.free)
        total = sum(self.free) - self.count * self.share - self.extra * self.group
        mean = (2000 * total + nodes) // (2 * nodes)
        squares = sum(cpus * cpus for cpus in self.free) + self.count * self.share * self.share
        return squares, nodes * mean * mean - 2000 * mean * total


def _by_bound(problem: _Problem, able: tuple[int, ...]) -> Split | None:
    """The answer, if rounds can attain the bound on every combination's gain; it usually is the answer."""
    fullest = sorted(able, key=lambda place: (-problem.free[place], place))
    most = problem.bound(fullest[: problem.count])
    enough = problem.threshold(most)
    if enough == most:
        members = tuple(sorted(fullest[: problem.count]))
    else:
        members = _first_within(problem, able, fullest, enough)
    remainder = _remainder(problem, members, enough)
    return None if remainder is None else Split(members, remainder)


def _first_within(
    problem: _Problem, able: Iterable[int], fullest: Sequence[int], enough: int
) -> tuple[int, ...]:
    """The first combination whose bound is *enough*; nodes that follow are completed by the fullest."""
    members: list[int] = []
    for place in able:
        if len(members) < problem.count:
            later = [other for other in fullest if other > place]
            tried = [*members, place, *later[: problem.count - len(members) - 1]]
            if len(tried) == problem.count and problem.bound(tried) >= enough:
                members.append(place)
    return tuple(members)


def _by_walk(problem: _Problem, able: tuple[int, ...]) -> Split:
    """The answer by dynamic programming over the nodes in order, once for each number of complete rounds."""
    enough = problem.threshold(_good(problem, able))
    walks = []
    share_bounds = _share_bounds(problem, able)
    for rounds in range(problem.extra):
        if share_bounds[-1][-1] + _spare_bound(problem, able, rounds) >= enough:
            walk = _Walk(able, partial(_member_steps, problem, rounds), problem.extra, problem.count)
            walks.append((walk, walk.tables(share_bounds, _spare_bounds(problem, able, rounds), enough)))
    most = max(tables[0].get((problem.count, problem.extra, _GOING), _IMPOSSIBLE) for _, tables in walks)
    enough = problem.threshold(most)
    members = _first(walks, problem.count, enough)
    remainder = _remainder(problem, members, enough)
    assert remainder is not None
    return Split(members, remainder)


def _good(problem: _Problem, able: Sequence[int]) -> int:
    """The gain of a good choice: the fullest nodes, the remainder from the fullest few of them."""
    members = sorted(able, key=lambda place: (-problem.free[place], place))[: problem.count]
    gains = []
    for size in range(1, len(members) + 1):
        places = sorted(members[:size])
        if sum(map(problem.spare, places)) >= problem.extra:
            gains.append(problem.rounds_gain(places))
    return sum(map(problem.share_gain, members)) + max(gains)


def _remainder(problem: _Problem, members: tuple[int, ...], enough: int) -> tuple[int, ...] | None:
    """The largest, then first subset of *members* which gives the remainder with *enough* gain in all."""
    enough -= sum(map(problem.share_gain, members))
    if not problem.extra:
        return () if enough <= 0 else None
    places = tuple(place for place in members if problem.spare(place))
    assert sum(map(problem.spare, places)) >= problem.extra
    if problem.rounds_gain(places) >= enough:
        return places
    walks = []
    no_shares = [[0] * (len(places) + 1)] * (len(places) + 1)
    for rounds in range(problem.extra):
        if _spare_bound(problem, places, rounds) >= enough:
            walk = _Walk(places, partial(_spare_steps, problem, rounds), problem.extra, len(places))
            walks.append((walk, walk.tables(no_shares, _spare_bounds(problem, places, rounds), enough)))
    for size in range(len(places), 0, -1):
        wanted = (size, problem.extra, _GOING)
        if any(tables[0].get(wanted, _IMPOSSIBLE) >= enough for _, tables in walks):
            return _first(walks, size, enough)
    return None


def _spare_steps(problem: _Problem, rounds: int, place: int, going: int) -> Sequence[Step]:
    """What a member that gives some of the remainder does: all it has, or one group in every round."""
    spare = problem.spare(place)
    if not spare:
        return ()
    if spare <= rounds:
        return ((1, spare, problem.spare_gain(place, spare), going),)
    without = (1, rounds, problem.spare_gain(place, rounds), _ENDED)
    if going == _ENDED:
        return (without,)
    return ((1, rounds + 1, problem.spare_gain(place, rounds + 1), _GOING), without)


def _member_steps(problem: _Problem, rounds: int, place: int, going: int) -> Sequence[Step]:
    """What a member does: its share, with or without some of the remainder."""
    gain = problem.share_gain(place)
    giving = _spare_steps(problem, rounds, place, going)
    return (
        (1, 0, gain, going),
        *((1, groups, gain + more, after) for _, groups, more, after in giving if groups),
    )


def _share_bounds(problem: _Problem, places: Sequence[int]) -> list[list[int]]:
    """By how many of *places* come first: the largest gain of the shares of so many members among them."""
    bounds = [[0] + [_IMPOSSIBLE] * problem.count]
    gains: list[int] = []
    for place in places:
        gains.append(-problem.share_gain(place))
        gains.sort()
        row = [0]
        for gain in gains[: problem.count]:
            row.append(row[-1] - gain)
        bounds.append(row + [_IMPOSSIBLE] * (problem.count + 1 - len(row)))
    return bounds


def _spare_bounds(problem: _Problem, places: Sequence[int], rounds: int) -> list[list[int]]:
    """By how many of *places* come first: no less than the gain of so many groups given by them in so many
    complete rounds and a partial one."""
    bounds = [[0] + [_IMPOSSIBLE] * problem.extra]
    offers: list[tuple[int, int]] = []
    for place in places:
        offers += _offers(problem, place, rounds)
        offers.sort(reverse=True)
        row = [0]
        for gain, groups in offers:
            wanted = min(groups, problem.extra + 1 - len(row))
            row += range(row[-1] + gain, row[-1] + gain * wanted + 1, gain)
        bounds.append(row + [_IMPOSSIBLE] * (problem.extra + 1 - len(row)))
    return bounds


def _spare_bound(problem: _Problem, places: Sequence[int], rounds: int) -> int:
    """The bound for the whole remainder, given by all of *places*."""
    left, total = problem.extra, 0
    offers = [offer for place in places for offer in _offers(problem, place, rounds)]
    for gain, groups in sorted(offers, reverse=True):
        total += gain * min(groups, left)
        left -= min(groups, left)
    return _IMPOSSIBLE if left else total


def _offers(problem: _Problem, place: int, rounds: int) -> list[tuple[int, int]]:
    """Gain per group and number of groups: what a node gives in the complete rounds, by its average, and what
    in the partial one. They are positive, and fall from the first to the second, so that taking the best
    offers of all nodes bounds every choice."""
    spare = problem.spare(place)
    full = min(rounds, spare)
    offers = [(problem.spare_gain(place, full) // full, full)] if full else []
    if spare > rounds:
        offers.append((problem.spare_gain(place, rounds + 1) - problem.spare_gain(place, rounds), 1))
    return offers


class _Walk(Struct, frozen=True):
    """The nodes at *places* in order, each of which takes one of its steps or none."""

    places: tuple[int, ...]
    steps: Steps
    extra: int
    count: int

    def tables(
        self, share_bounds: Sequence[Sequence[int]], spare_bounds: Sequence[Sequence[int]], enough: int
    ) -> list[Table]:
        """By position: the largest gain from there on by state, if the nodes before can make it *enough*.

        A state says what the nodes from the position on provide, and whether the last round still goes on
        when the walk reaches them. The tables are filled from the last node to the first; what is wanted is
        in the first table, under (count, extra, going on).

        In the module's example, the table for the last node (position 2) has: nothing provided, gain 0; a
        member with its share, 12; a member with the further CPU, 13, but only while the round goes on. The
        table for position 0 has (2, 1, going on): 31. A state is left out where even the bounds for the nodes
        before (*share_bounds*, *spare_bounds*: the most that so many members, or groups, can gain there)
        cannot make it *enough*.
        """
        tables: list[dict[State, int]] = [{} for _ in range(len(self.places) + 1)]
        tables[-1] = {(0, 0, _GOING): 0, (0, 0, _ENDED): 0}
        for position in range(len(self.places) - 1, -1, -1):
            shares, spares = share_bounds[position], spare_bounds[position]
            table = tables[position]
            for (members, groups, going), gain in self._backward(position, tables[position + 1]):
                if members > self.count or groups > self.extra:
                    continue
                reachable = gain + shares[self.count - members] + spares[self.extra - groups]
                state = (members, groups, going)
                if reachable >= enough and gain > table.get(state, _IMPOSSIBLE):
                    table[state] = gain
        return list(tables)

    def _backward(self, position: int, later: Table) -> Iterator[tuple[State, int]]:
        """The states before the node at *position* takes part, with their gains: each state *later* extended
        by nothing, and by each step of the node after which the round is as that state says."""
        into: dict[int, list[Step]] = {_GOING: [(0, 0, 0, _GOING)], _ENDED: [(0, 0, 0, _ENDED)]}
        for going in (_GOING, _ENDED):
            for members, groups, gain, after in self.steps(self.places[position], going):
                into[after].append((members, groups, gain, going))
        for (members, groups, after), gain in later.items():
            for more_members, more_groups, more, going in into[after]:
                yield (members + more_members, groups + more_groups, going), gain + more

    def forward(self, place: int, reached: Table) -> Table:
        """The states after the node at *place* took part; here a state says what was provided so far."""
        states: dict[State, int] = {}
        for (members, groups, going), gain in reached.items():
            for more_members, more_groups, more, after in self.steps(place, going):
                state = (members + more_members, groups + more_groups, after)
                states[state] = max(gain + more, states.get(state, _IMPOSSIBLE))
        return states

    def within(self, count: int, reached: Table, later: Table, enough: int) -> Table:
        """Those of the *reached* states that can be completed to *count* members with *enough* gain."""
        return {
            (members, groups, going): gain
            for (members, groups, going), gain in reached.items()
            if gain + later.get((count - members, self.extra - groups, going), _IMPOSSIBLE) >= enough
        }


def _first(walks: Sequence[tuple[_Walk, Sequence[Table]]], count: int, enough: int) -> tuple[int, ...]:
    """The first *count* places for which some walk gains *enough*."""
    reached: list[Table] = [{(0, 0, _GOING): 0} for _ in walks]
    chosen: list[int] = []
    for position, place in enumerate(walks[0][0].places):
        taken = [
            walk.within(count, walk.forward(place, states), tables[position + 1], enough)
            for (walk, tables), states in zip(walks, reached, strict=True)
        ]
        if any(taken):
            chosen.append(place)
            reached = taken
    return tuple(chosen)


def take_distributed(
    topology: CpuTopology,
    available: CpuSet,
    count: int,
    group: int,
    *,
    spread: bool = False,
    align_by_socket: bool = False,
) -> CpuSet:
    """Exactly *count* CPUs of *available*, in groups of *group*, evenly from the fewest NUMA nodes that can
    share them; packed if *count* is not a number of groups, or if no nodes can share them. Of as many nodes,
    those of one socket come first with *align_by_socket*, also where they share less evenly.

    Raises:
        CpuShortageError: *available* holds fewer.
    """
    if count % group:
        return take_packed(topology, available, count, spread=spread)
    free = FreeCpus(topology, available, count)
    if free.satisfied:
        return free.taken
    if free.failed:
        raise CpuShortageError(count, len(available))
    nodes = tuple(dict.fromkeys(free.nodes()))  # a node that spans sockets would be listed once for each
    node_cpus = [CpuSet.of_mask(topology.node_cpus[node]) & available for node in nodes]
    free_counts = [len(cpus) for cpus in node_cpus]
    groups = count // group
    groups_per_node = _ceil(_ceil(len(topology.all_cpus), group), len(topology.nodes))
    for width in range(_ceil(groups, groups_per_node), min(groups, len(nodes)) + 1):
        found: tuple[Split, int] | None = None
        if align_by_socket:
            sockets = [frozenset(topology.sockets_of_node[node]) for node in nodes]
            found = best_aligned_split(free_counts, sockets, width, groups, group)
        else:
            share = groups // width * group
            split = best_split(free_counts, width, share, group, groups % width)
            found = None if split is None else (split, share)
        if found is not None:
            return _take(topology, node_cpus, *found, count, group, spread=spread)
    return take_packed(topology, available, count, spread=spread)


def _take(
    topology: CpuTopology,
    node_cpus: list[CpuSet],
    split: Split,
    share: int,
    count: int,
    group: int,
    *,
    spread: bool,
) -> CpuSet:
    """The share of every member, then the remainder in rounds, one group at a time."""
    taken = CpuSet()
    for place in split.members:
        taken |= take_packed(topology, node_cpus[place], share, spread=spread)
    while len(taken) < count:
        for place in split.remainder:
            left = node_cpus[place] - taken
            if len(taken) < count and len(left) >= group:
                taken |= take_packed(topology, left, group, spread=spread)
    return taken


def _ceil(amount: int, size: int) -> int:
    return -(-amount // size)

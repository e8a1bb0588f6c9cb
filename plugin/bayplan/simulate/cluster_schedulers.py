"""The schedulers of a simulated cluster: which node a pod is sent to, by what the scheduler knows of the
nodes.

As kube-scheduler 1.37 does it (pkg/scheduler/schedule_one.go): nodes are filtered from where the last search
stopped until enough are feasible, those are scored, one of the best is taken at random. What differs is what
filters and scores beside the sums of requests:

* ``least-allocated``, ``most-allocated``: nothing; NodeResourcesFit with that strategy and
  NodeResourcesBalancedAllocation.
* ``nrt``: NodeResourceTopologyMatch of scheduler-plugins (pkg/noderesourcetopology). It filters for the
  policy ``single-numa-node`` alone, and scores for others only with its strategy LeastNUMANodes
  (``nrt-least-numa``). It sees what agents have published, `NRT_DELAY_S` late, and with a cache
  (`TopologyView`) even later.
* ``dra``: claims for one device per NUMA node, first one node, then two, four and so on, in equal parts; the
  allocator takes the first devices that suffice. What it allocated is what the node books, so that no node
  refuses.
* ``ask``: like ``least-allocated``, but candidates are asked, best first, what their engine would decide.

A filter is monotone: a pod that no node fits can fit only on nodes that changed since (`Scheduler.choose`
among these). What a node scores for a pod depends on that node and the pod's shape alone, so that it is
worked out again only once the node has changed: `Scheduler.changed` is told of each change.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, combinations
from typing import Final

from bayplan.model.decision import QosClass
from bayplan.model.machine import Machine
from bayplan.model.policy import TopologyPolicy
from bayplan.sets import NodeSet
from bayplan.simulate.cluster_nodes import (
    MISSING_BYTES,
    MISSING_MILLI,
    ClusterNode,
    NumaRoom,
    PodOutcome,
    memory_nodes,
)
from bayplan.simulate.pod_trace import TimedPod

MAX_SCORE: Final = 100
_LEAST_FEASIBLE, _LEAST_PERCENTAGE = 100, 5
NRT_DELAY_S: Final = 1.0
"""An agent writes its object at most once a second."""
_ASKED: Final = 32
"""So many nodes that would take a pod, though not as well as can be, are compared."""
_HIGHEST_NUMA: Final = 8
"""NodeResourceTopologyMatch's default for the number of NUMA nodes that its scores are divided by."""
_NOT_FEASIBLE, _UNKNOWN = -1, -2
"""In place of a score."""
_SHAPES: Final = 512
"""Of so many shapes of pods the scores are kept, of those that came last: 20 MB for 5,000 nodes."""


class Scheduler:
    """kube-scheduler with its default plugins; *strategy* is that of NodeResourcesFit."""

    def __init__(self, nodes: Sequence[ClusterNode], seed: int, strategy: str = "least-allocated") -> None:
        self.nodes = nodes
        self.writes = 0
        """Of objects that exist for the sake of this scheduler, beside pods and their bindings."""
        self._least = strategy == "least-allocated"
        self._rng = random.Random(seed)  # noqa: S311 - ties, repeatable
        self._start = 0
        self._scores: dict[tuple[object, ...], list[int]] = {}

    def choose(self, pod: TimedPod, among: Sequence[ClusterNode] | None = None) -> ClusterNode | None:
        """The node for *pod*, *among* some or all; None if there is none."""
        scores = self._scores_of(pod)
        if among is None:
            feasible = self._feasible(scores, pod)
        else:
            feasible = [
                index for index in (node.index for node in among) if self._known(scores, index, pod) >= 0
            ]
        return self.select(feasible, scores, pod) if feasible else None

    def changed(self, node: ClusterNode) -> None:
        """What *node* has, or what is known of it, is not what it was."""
        for scores in self._scores.values():
            scores[node.index] = _UNKNOWN

    def passes(self, node: ClusterNode, pod: TimedPod) -> bool:  # noqa: ARG002 - others need it
        """Whether *node* is feasible beyond its sums."""
        return True

    def score(self, node: ClusterNode, pod: TimedPod) -> int:
        """NodeResourcesFit and NodeResourcesBalancedAllocation, each up to 100, of equal weight."""
        software = node.software
        cpus, size_bytes = software.milli_cpus, software.memory_bytes
        used_milli, used_bytes = cpus - node.free_milli, size_bytes - node.free_bytes
        scored_milli = node.scored_milli + (pod.milli_cpus or MISSING_MILLI)
        scored_bytes = node.scored_bytes + (pod.memory_bytes or MISSING_BYTES)
        fit = (self._share(scored_milli, cpus) + self._share(scored_bytes, size_bytes)) // 2
        if not pod.milli_cpus and not pod.memory_bytes:
            return fit
        before = _balance(used_milli / cpus, used_bytes / size_bytes)
        balance = _balance((used_milli + pod.milli_cpus) / cpus, (used_bytes + pod.memory_bytes) / size_bytes)
        return fit + MAX_SCORE // 2 + (MAX_SCORE // 2 + balance - before) // 2

    def _share(self, used: int, has: int) -> int:
        """What is left or used of a resource, in hundredths; more than all is scored as nothing left, or as
        all used."""
        used = min(used, has)
        return (has - used if self._least else used) * MAX_SCORE // has

    def select(self, feasible: Sequence[int], scores: Sequence[int], pod: TimedPod) -> ClusterNode | None:  # noqa: ARG002 - others need it
        """One of the nodes with these indices: of those with the highest score one at random. *scores* are by
        index."""
        best = max(map(scores.__getitem__, feasible))
        return self.nodes[self._rng.choice([index for index in feasible if scores[index] == best])]

    def bound(self, node: ClusterNode, pod: TimedPod) -> None:  # noqa: ARG002 - others need it
        """*pod* was bound to *node*."""
        self.changed(node)

    def left(self, node: ClusterNode, pod: TimedPod) -> None:  # noqa: ARG002 - others need it
        """*pod* has ended, and no longer has anything of *node*."""
        self.changed(node)

    def published(self, node: ClusterNode) -> None:
        """*node* has published a new object about its NUMA nodes."""

    def rooms_left(self, node: ClusterNode) -> Mapping[int, NumaRoom]:
        """What one more pod could have of each NUMA node: what the node's ledger says, or the claims where
        these are what is booked."""
        return node.rooms()

    def tick(self) -> Sequence[ClusterNode]:
        """Nodes of which the scheduler has learned something by its own clock."""
        return ()

    def _scores_of(self, pod: TimedPod) -> list[int]:
        """What each node is worth for pods of this shape, as far as it is known."""
        shape = pod.shape
        scores = self._scores.pop(shape, None)
        if scores is None:
            scores = [_UNKNOWN] * len(self.nodes)
            if len(self._scores) >= _SHAPES:
                del self._scores[next(iter(self._scores))]
        self._scores[shape] = scores
        return scores

    def _known(self, scores: list[int], index: int, pod: TimedPod) -> int:
        """The score of a node, negative where it is not feasible."""
        score = scores[index]
        if score == _UNKNOWN:
            node = self.nodes[index]
            feasible = node.fits(pod) and self.passes(node, pod)
            score = scores[index] = self.score(node, pod) if feasible else _NOT_FEASIBLE
        return score

    def _feasible(self, scores: list[int], pod: TimedPod) -> list[int]:
        """The indices of feasible nodes, until there are enough of them; the next search begins behind the
        last one looked at."""
        total, start = len(scores), self._start
        enough = feasible_to_find(total)
        found: list[int] = []
        for index in chain(range(start, total), range(start)):
            score = scores[index]
            if score == _UNKNOWN:
                score = self._known(scores, index, pod)
            if score >= 0:
                found.append(index)
                if len(found) == enough:
                    self._start = (index + 1) % total
                    break
        return found


def feasible_to_find(total: int) -> int:
    """How many feasible nodes of *total* are enough (``numFeasibleNodesToFind`` with no percentage
    configured)."""
    if total < _LEAST_FEASIBLE:
        return total
    percentage = max(50 - total // 125, _LEAST_PERCENTAGE)
    return max(total * percentage // 100, _LEAST_FEASIBLE)


class TopologyView:
    """What NodeResourceTopologyMatch knows of each node: the object as it was last taken over.

    Without a cache (*resync_s* 0) that is the newest one published. With the cache OverReserve a pod that was
    bound is subtracted from every NUMA node until the node is resynchronized, which happens, each *resync_s*,
    only to nodes that were filtered out since and whose object lists the pods that the scheduler knows.
    """

    def __init__(self, resync_s: float) -> None:
        self.resync_s = resync_s
        self._published: dict[int, Mapping[int, NumaRoom]] = {}
        self._known: dict[int, Mapping[int, NumaRoom]] = {}
        self._assumed: dict[int, dict[str, TimedPod]] = {}
        self._doubted: set[int] = set()
        self._fresh: set[int] = set()

    def rooms(self, node: ClusterNode) -> Mapping[int, NumaRoom]:
        """What is left on the NUMA nodes of *node*, as far as the plugin knows."""
        known = self._known.get(node.index, node.software.empty_rooms)
        assumed = self._assumed.get(node.index)
        if not assumed:
            return known
        cpus = -(-sum(pod.milli_cpus for pod in assumed.values()) // 1000)
        size_bytes = sum(pod.memory_bytes for pod in assumed.values())
        return {
            numa: NumaRoom(max(0, room.cpus - cpus), max(0, room.memory_bytes - size_bytes))
            for numa, room in known.items()
        }

    def doubt(self, node: ClusterNode) -> None:
        """*node* was filtered out."""
        if self.resync_s:
            self._doubted.add(node.index)

    def bound(self, node: ClusterNode, pod: TimedPod) -> None:
        """*pod* was bound; what is published does not have it yet."""
        self._fresh.discard(node.index)
        if self.resync_s:
            self._assumed.setdefault(node.index, {})[pod.name] = pod

    def left(self, node: ClusterNode) -> None:
        """A pod of *node* has ended: what the object says is no longer what is free."""
        self._fresh.discard(node.index)

    def published(self, node: ClusterNode) -> None:
        """See `Scheduler.published`: what is free there is known anew."""
        self._published[node.index] = node.rooms()
        self._fresh.add(node.index)
        if not self.resync_s:
            self._known[node.index] = self._published[node.index]

    def resync(self) -> list[int]:
        """The nodes that were taken over anew."""
        taken = sorted(self._doubted & self._fresh)
        for index in taken:
            self._known[index] = self._published[index]
            self._assumed.pop(index, None)
            self._doubted.discard(index)
        return taken


NumaSets = tuple[int, tuple[tuple[tuple[int, ...], int], ...]]
"""The sets of NUMA nodes of one width, with the distances between their members added up, and the least of
these."""


class TopologyScheduler(Scheduler):
    """NodeResourceTopologyMatch beside the default plugins; *least_numa* is its strategy LeastNUMANodes, else
    LeastAllocated."""

    def __init__(
        self, nodes: Sequence[ClusterNode], seed: int, *, least_numa: bool = False, resync_s: float = 0
    ) -> None:
        super().__init__(nodes, seed)
        self.view = TopologyView(resync_s)
        self._least_numa = least_numa
        self._sets: dict[tuple[object, ...], tuple[NumaSets, ...]] = {}

    def passes(self, node: ClusterNode, pod: TimedPod) -> bool:
        """For ``single-numa-node``: one NUMA node has what a Guaranteed pod requests."""
        if pod.qos is not QosClass.GUARANTEED or not _single(node):
            return True
        if any(_has(room, pod) for room in self.view.rooms(node).values()):
            return True
        self.view.doubt(node)
        return False

    def score(self, node: ClusterNode, pod: TimedPod) -> int:
        """The sums' score, and the plugin's."""
        return super().score(node, pod) + self._topology_score(node, pod)

    def _topology_score(self, node: ClusterNode, pod: TimedPod) -> int:
        if pod.qos is not QosClass.GUARANTEED:
            return MAX_SCORE
        rooms = self.view.rooms(node)
        if self._least_numa:
            return least_numa_score(rooms, pod, self._sets_of(node, rooms))
        if not _single(node):
            return 0
        scores = [score for room in rooms.values() if (score := _left_over(room, pod))]
        return min(scores, default=0)

    def _sets_of(self, node: ClusterNode, rooms: Mapping[int, NumaRoom]) -> tuple[NumaSets, ...]:
        key = (node.kind.name, *rooms)
        if key not in self._sets:
            self._sets[key] = numa_sets(rooms, node.software.machine)
        return self._sets[key]

    def bound(self, node: ClusterNode, pod: TimedPod) -> None:
        """See `Scheduler.bound`."""
        super().bound(node, pod)
        self.view.bound(node, pod)

    def left(self, node: ClusterNode, pod: TimedPod) -> None:
        """See `Scheduler.left`."""
        super().left(node, pod)
        self.view.left(node)

    def published(self, node: ClusterNode) -> None:
        """See `Scheduler.published`."""
        self.writes += 1
        self.view.published(node)
        self.changed(node)

    def tick(self) -> Sequence[ClusterNode]:
        """Nodes that were resynchronized."""
        taken = [self.nodes[index] for index in self.view.resync()]
        for node in taken:
            self.changed(node)
        return taken


def numa_sets(numa_nodes: Iterable[int], machine: Machine) -> tuple[NumaSets, ...]:
    """All sets of *numa_nodes*, the narrowest first."""
    members = tuple(numa_nodes)
    found = []
    for width in range(1, len(members) + 1):
        row = tuple((one, machine.total_distance(NodeSet(one))) for one in combinations(members, width))
        found.append((min(distance for _, distance in row), row))
    return tuple(found)


def least_numa_score(rooms: Mapping[int, NumaRoom], pod: TimedPod, sets: Iterable[NumaSets]) -> int:
    """LeastNUMANodes: the fewer NUMA nodes suffice, the better, and a little better where no others of that
    number are nearer to each other; 0 if all of them do not. *sets* are those of `numa_sets`."""
    cpus = sorted((room.cpus for room in rooms.values()), reverse=True)
    sizes_bytes = sorted((room.memory_bytes for room in rooms.values()), reverse=True)
    for width, (nearest, row) in enumerate(sets, 1):
        # Most are too narrow for the pod whichever NUMA nodes they have.
        if sum(cpus[:width]) * 1000 < pod.milli_cpus or sum(sizes_bytes[:width]) < pod.memory_bytes:
            continue
        fitting = [
            distance
            for members, distance in row
            if sum([rooms[numa].cpus for numa in members]) * 1000 >= pod.milli_cpus
            and sum([rooms[numa].memory_bytes for numa in members]) >= pod.memory_bytes
        ]
        if fitting:
            step = MAX_SCORE // _HIGHEST_NUMA
            return MAX_SCORE - width * step + (step // 2 if min(fitting) == nearest else 0)
    return 0


class ClaimScheduler(Scheduler):
    """Claims of NUMA nodes' devices beside the default plugins. Only Guaranteed pods have one: for their
    memory, and for whole CPUs. The others are not counted where claims are, as Kubernetes does not count them
    either."""

    def __init__(self, nodes: Sequence[ClusterNode], seed: int) -> None:
        super().__init__(nodes, seed)
        self._rooms: dict[int, dict[int, NumaRoom]] = {}
        self._claims: dict[str, tuple[NodeSet, NumaRoom]] = {}

    def passes(self, node: ClusterNode, pod: TimedPod) -> bool:
        """Whether the claim can be allocated."""
        return pod.qos is not QosClass.GUARANTEED or self._allocate(node, pod) is not None

    def score(self, node: ClusterNode, pod: TimedPod) -> int:
        """The sums' score, and twice (the plugin's default weight) that of the first alternative that was
        possible: 100 for the first of eight, a step less for each further one."""
        found = self._allocate(node, pod) if pod.qos is QosClass.GUARANTEED else None
        rank = len(found[0]).bit_length() - 1 if found else 0
        return super().score(node, pod) + 2 * (MAX_SCORE - rank * MAX_SCORE // 8)

    def bound(self, node: ClusterNode, pod: TimedPod) -> None:
        """The claim is allocated: one more write, of its status, and one that reserves it for the pod."""
        super().bound(node, pod)
        found = self._allocate(node, pod) if pod.qos is QosClass.GUARANTEED else None
        if found is not None:
            self._claims[pod.name] = found
            self.writes += 2
            self._take(node, found, 1)

    def left(self, node: ClusterNode, pod: TimedPod) -> None:
        """The claim goes with its pod."""
        super().left(node, pod)
        found = self._claims.pop(pod.name, None)
        if found is not None:
            self._take(node, found, -1)

    def claim_of(self, pod: TimedPod) -> NodeSet | None:
        """The NUMA nodes that were allocated to a pod."""
        found = self._claims.get(pod.name)
        return None if found is None else found[0]

    def _allocate(self, node: ClusterNode, pod: TimedPod) -> tuple[NodeSet, NumaRoom] | None:
        rooms = self.rooms_left(node)
        whole = pod.milli_cpus // 1000 if not pod.milli_cpus % 1000 else 0
        width = 1
        while width <= len(rooms):
            part = NumaRoom(-(-whole // width), -(-pod.memory_bytes // width))
            fitting = [
                numa
                for numa, room in rooms.items()
                if room.cpus >= part.cpus and room.memory_bytes >= part.memory_bytes
            ]
            if len(fitting) >= width:
                return NodeSet(fitting[:width]), part
            width *= 2
        return None

    def _take(self, node: ClusterNode, found: tuple[NodeSet, NumaRoom], sign: int) -> None:
        rooms, (nodes, part) = self.rooms_left(node), found
        for numa in nodes:
            room = rooms[numa]
            rooms[numa] = NumaRoom(room.cpus - sign * part.cpus, room.memory_bytes - sign * part.memory_bytes)

    def rooms_left(self, node: ClusterNode) -> dict[int, NumaRoom]:
        """See `Scheduler.rooms_left`: what is not allocated."""
        found = self._rooms.get(node.index)
        if found is None:
            found = self._rooms[node.index] = dict(node.rooms())
        return found


class AskingScheduler(Scheduler):
    """Candidates are asked, the best score first: the first one that would place a Guaranteed pod as asked on
    as few NUMA nodes as it needs is taken, else the best of those that would take it."""

    def __init__(self, nodes: Sequence[ClusterNode], seed: int) -> None:
        super().__init__(nodes, seed)
        self._answers: dict[object, tuple[int, dict[tuple[object, ...], tuple[PodOutcome, int, int]]]] = {}

    def select(self, feasible: Sequence[int], scores: Sequence[int], pod: TimedPod) -> ClusterNode | None:
        """See `Scheduler.select`. None if all refuse."""
        if pod.qos is not QosClass.GUARANTEED:
            return super().select(feasible, scores, pod)
        order = sorted(feasible, key=lambda index: (-scores[index], self._rng.random()))
        found: list[tuple[bool, int, int, int, ClusterNode]] = []
        for position, node in enumerate(self.nodes[index] for index in order):
            answer, width, distance = self._ask(node, pod)
            if answer is PodOutcome.REFUSED:
                continue
            if answer is PodOutcome.PLACED and width == _least_width(node, pod):
                return node
            found.append((answer is PodOutcome.DEGRADED, width, distance, position, node))
            if len(found) == _ASKED:
                break
        return min(found)[-1] if found else None

    def _ask(self, node: ClusterNode, pod: TimedPod) -> tuple[PodOutcome, int, int]:
        # Nodes of a kind that nothing has reached answer alike.
        key: object = node.index if node.reached else node.kind.name
        generation, answers = self._answers.get(key, (-1, {}))
        if generation != node.generation:
            answers = {}
            self._answers[key] = (node.generation, answers)
        known = answers.get(pod.shape)
        if known is None:
            answer, decisions = node.would(pod)
            nodes = memory_nodes(node, decisions)
            distance = node.software.machine.total_distance(nodes)
            known = answers[pod.shape] = (answer, len(nodes), distance)
        return known


def scheduler_named(name: str, nodes: Sequence[ClusterNode], seed: int, resync_s: float) -> Scheduler:
    """The scheduler of a *name* among `SCHEDULERS`; *resync_s* is the period of NodeResourceTopologyMatch's
    cache."""
    if name in ("nrt", "nrt-least-numa"):
        return TopologyScheduler(nodes, seed, least_numa=name == "nrt-least-numa", resync_s=resync_s)
    if name == "dra":
        return ClaimScheduler(nodes, seed)
    if name == "ask":
        return AskingScheduler(nodes, seed)
    return Scheduler(nodes, seed, name)


SCHEDULERS: Final = ("least-allocated", "most-allocated", "nrt", "nrt-least-numa", "dra", "ask")


def _balance(first: float, second: float) -> int:
    """100 for equal shares; half of their difference less."""
    return int((1 - abs(min(first, 1.0) - min(second, 1.0)) / 2) * MAX_SCORE)


def _single(node: ClusterNode) -> bool:
    return node.software.policy.topology is TopologyPolicy.SINGLE_NUMA_NODE


def _has(room: NumaRoom, pod: TimedPod) -> bool:
    return room.cpus * 1000 >= pod.milli_cpus and room.memory_bytes >= pod.memory_bytes


def _left_over(room: NumaRoom, pod: TimedPod) -> int:
    """LeastAllocated of one NUMA node: the mean share that is left of what is available."""
    pairs = ((pod.milli_cpus, room.cpus * 1000), (pod.memory_bytes, room.memory_bytes))
    parts = [(has - wants) * MAX_SCORE // has if 0 < has >= wants else 0 for wants, has in pairs if wants]
    return sum(parts) // len(parts) if parts else 0


def _least_width(node: ClusterNode, pod: TimedPod) -> int:
    """On how many NUMA nodes a pod lies at least on an empty node of this kind."""
    software = node.software
    widest = len(software.machine.ordinary_nodes)
    cpus = -(-pod.milli_cpus * widest // max(software.milli_cpus, 1))
    memory = -(-pod.memory_bytes * widest // max(software.memory_bytes, 1))
    return max(1, min(widest, cpus), min(widest, memory))

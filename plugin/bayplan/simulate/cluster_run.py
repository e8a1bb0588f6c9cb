"""One run of a cluster: pods come, are scheduled, refused or started by their nodes, and end; and what came
of it.

Time is that of the trace; deciding takes none of it. As Kubernetes does it:

* A pod that no node fits waits. When a pod leaves, or a scheduler learns more of a node, the waiting pods are
  tried again in the order of their arrival, on the nodes that changed (a filter is monotone, see
  `bayplan.simulate.cluster_schedulers`).
* A pod that kubelet's admission refuses has failed. Its controller makes another one after 10 s, doubled with
  each failure up to 6 min (the Job controller's back-off).
* A pod whose container an NRI plugin refuses stays where it is, and holds its requests. kubelet tries it
  again after 10 s, doubled up to 5 min; the engine is asked at such a time only if its node has changed.
* A pod runs as long as the trace says from the moment it starts.

Invariant: each pod is at one place: to come, waiting, held on a node, running, or gone.
"""

import heapq
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any, Final

from msgspec import Struct, field

from bayplan.model.decision import Decision, QosClass
from bayplan.model.machine import MEMORY, Machine
from bayplan.placement.adjustment import cpus_for
from bayplan.sets import NodeSet
from bayplan.simulate.cluster_nodes import ClusterNode, NodeKind, NodeSoftware, PodOutcome, memory_nodes
from bayplan.simulate.cluster_schedulers import NRT_DELAY_S, ClaimScheduler, scheduler_named
from bayplan.simulate.pod_trace import TimedPod

LONG_WAIT_S: Final = 600
_CONTROLLER_S: Final = (10, 360)
_KUBELET_S: Final = (10, 300)
_SAMPLE_EVERY: Final = 500
_SAMPLED_NODES: Final = 20
_MOST_SUBSETS: Final = 8
"""Overcommit is looked for over all sets of up to so many NUMA nodes."""


class ClusterQuality(Struct):
    """What came of a run. Counts are of pods unless they say otherwise. Widths, and sums with ``byte_``,
    which are weighted with memory, are of Guaranteed pods."""

    pods: int = 0
    started: int = 0
    refusals: int = 0
    """By nodes, each time that a pod was new there."""
    refused_pods: int = 0
    degraded: int = 0
    never_started: int = 0
    long_waits: int = 0
    wait_s: float = 0.0
    widths: Counter[int] = field(default_factory=Counter)
    placed_bytes: int = 0
    byte_remote: float = 0.0
    byte_distance: float = 0.0
    samples: int = 0
    overcommitted: int = 0
    worst_overcommit_bytes: int = 0
    moves: int = 0
    binds: int = 0
    busiest_minute: int = 0
    """Writes in it, each minute of the trace for itself."""
    decisions: int = 0
    peak_milli: int = 0
    peak_bytes: int = 0


class _Place(Struct):
    """A pod that has come and is not gone. ``node`` is where it is bound; ``held``: and was refused, so that
    kubelet tries it again there. ``refused``: some node refused it once."""

    pod: TimedPod
    order: int
    arrived_s: float
    failures: int = 0
    node: ClusterNode | None = None
    held: bool = False
    refused: bool = False


_MEASURED: Final = 16


class SampledTime:
    """CPU time of something short that is done a million times: one in `_MEASURED` is measured and stands for
    the others, as to ask the kernel took a third of a simulation. Use it in a ``with``."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._times = 0
        self._began_s = 0.0

    def __enter__(self) -> None:
        self._times += 1
        if self._times % _MEASURED == 0:
            self._began_s = time.process_time()

    def __exit__(self, *_: object) -> None:
        if self._times % _MEASURED == 0:
            self.total_s += (time.process_time() - self._began_s) * _MEASURED


class ClusterRun:
    """One run; `play` is called once."""

    def __init__(
        self,
        kinds: Sequence[NodeKind],
        software: Sequence[NodeSoftware],
        scheduler: str,
        *,
        seed: int = 0,
        resync_s: float = 0,
    ) -> None:
        self.nodes = [
            ClusterNode(index, kind, runs)
            for index, (kind, runs) in enumerate(
                (kind, runs) for kind, runs in zip(kinds, software, strict=True) for _ in range(kind.count)
            )
        ]
        self.scheduler = scheduler_named(scheduler, self.nodes, seed, resync_s)
        self.quality = ClusterQuality()
        self.deciding, self.scheduling = SampledTime(), SampledTime()
        self._resync_s = resync_s
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._sequence = 0
        self._waiting: dict[tuple[object, ...], deque[_Place]] = {}
        self._held: dict[int, list[_Place]] = {}
        self._unpublished: set[int] = set()
        self._changed_nodes: dict[int, ClusterNode] = {}
        self._used_milli = self._used_bytes = 0
        self._places: dict[str, _Place] = {}

    def play(self, pods: Sequence[TimedPod]) -> Iterator[float]:
        """Play *pods*; yields now and then which part of the events is over. Ends with the last event of the
        trace: who waits then has not started."""
        self.quality.pods = len(pods)
        horizon_s = max((pod.arrives_s + (pod.lasts_s or 0) for pod in pods), default=0.0)
        for order, pod in enumerate(pods):
            self._at(pod.arrives_s, partial(self._arrive, _Place(pod, order, pod.arrives_s)))
        if self._resync_s:
            self._at(self._resync_s, partial(self._tick, horizon_s))
        done, minute, written = 0, 0.0, 0
        while self._heap and self._heap[0][0] <= horizon_s:
            now_s, _, event = heapq.heappop(self._heap)
            if now_s >= minute + 60:
                minute, written = now_s // 60 * 60, self._written
            event(now_s)
            self.quality.busiest_minute = max(self.quality.busiest_minute, self._written - written)
            done += 1
            if not done % _SAMPLE_EVERY:
                self._sample(done)
                yield min(now_s / horizon_s, 1.0) if horizon_s else 1.0
        for place in self._places.values():
            if place.node is None or place.held:
                self.quality.never_started += 1
                self._waited(place, horizon_s)
        yield 1.0

    def held_on(self, node: ClusterNode) -> list[_Place]:
        """The pods that are bound to *node* and were refused there."""
        return [one for one in self._places.values() if one.node is node and one.held]

    @property
    def _written(self) -> int:
        return self.quality.binds + self.scheduler.writes

    def _at(self, when_s: float, event: Callable[[float], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (when_s, self._sequence, event))

    def _arrive(self, place: _Place, now_s: float) -> None:
        self._places[place.pod.name] = place
        queue = self._waiting.get(place.pod.shape)
        # Alike pods are waiting: what they do not fit, this one does not fit either.
        if queue or not self._schedule(place, now_s):
            self._waiting.setdefault(place.pod.shape, deque()).append(place)

    def _schedule(self, place: _Place, now_s: float, among: Sequence[ClusterNode] | None = None) -> bool:
        """Whether a node was found; what the node makes of the pod is dealt with."""
        with self.scheduling:
            node = self.scheduler.choose(place.pod, among)
        if node is None:
            return False
        node.bind(place.pod)
        place.node = node
        self.quality.binds += 1
        self.scheduler.bound(node, place.pod)
        self._admit(place, node, now_s)
        return True

    def _admit(self, place: _Place, node: ClusterNode, now_s: float) -> None:
        pod = place.pod
        if isinstance(self.scheduler, ClaimScheduler):
            self._start(place, node, now_s, self.scheduler.claim_of(pod))
            return
        with self.deciding:
            answer, decisions = node.admit(pod)
        self.quality.decisions += 1
        if answer is not PodOutcome.REFUSED:
            self.quality.degraded += answer is PodOutcome.DEGRADED
            self.quality.moves += sum(len(one.moves) for one in decisions)
            self._start(place, node, now_s, memory_nodes(node, decisions), decisions)
            self._changed(node, now_s)
            return
        if not place.held:
            self.quality.refusals += 1
            self.quality.refused_pods += not place.refused
            place.refused = True
        place.failures += 1
        if node.software.rejects:
            self._take_away(place, node, now_s)
            self._at(now_s + _backoff_s(place.failures, _CONTROLLER_S), partial(self._arrive, place))
        else:
            place.held = True
            self._held.setdefault(node.index, []).append(place)

    def _start(
        self,
        place: _Place,
        node: ClusterNode,
        now_s: float,
        nodes: NodeSet | None,
        decisions: Sequence[Decision] = (),
    ) -> None:
        pod, quality = place.pod, self.quality
        place.held = False
        quality.started += 1
        self._waited(place, now_s)
        self._used_milli += pod.milli_cpus
        self._used_bytes += pod.memory_bytes
        quality.peak_milli = max(quality.peak_milli, self._used_milli)
        quality.peak_bytes = max(quality.peak_bytes, self._used_bytes)
        if nodes is not None and pod.qos is QosClass.GUARANTEED:
            machine = node.software.machine
            remote, distance = _reach(machine, nodes, _cpu_nodes(node, nodes, decisions))
            quality.widths[len(nodes)] += 1
            quality.placed_bytes += pod.memory_bytes
            quality.byte_remote += remote * pod.memory_bytes
            quality.byte_distance += distance * pod.memory_bytes
        if pod.lasts_s is not None:
            self._at(now_s + pod.lasts_s, partial(self._end, place, node))

    def _end(self, place: _Place, node: ClusterNode, now_s: float) -> None:
        pod = place.pod
        self._used_milli -= pod.milli_cpus
        self._used_bytes -= pod.memory_bytes
        del self._places[pod.name]
        self._take_away(place, node, now_s)

    def _take_away(self, place: _Place, node: ClusterNode, now_s: float) -> None:
        booked = node.leave(place.pod)
        place.node = None
        self.scheduler.left(node, place.pod)
        if booked:
            self._changed(node, now_s)
            self._retry_held(node, now_s)
        self._look_again((node,), now_s)

    def _changed(self, node: ClusterNode, now_s: float) -> None:
        """The agent of *node* writes its object a moment later; changes until then are one write."""
        if node.index not in self._unpublished:
            self._unpublished.add(node.index)
            self._at(now_s + NRT_DELAY_S, partial(self._publish, node))

    def _publish(self, node: ClusterNode, now_s: float) -> None:
        self._unpublished.discard(node.index)
        self.scheduler.published(node)
        self._look_again((node,), now_s)

    def _tick(self, horizon_s: float, now_s: float) -> None:
        self._look_again(self.scheduler.tick(), now_s)
        # Nothing happens at most ticks: the next one that matters comes after the next event.
        following = self._heap[0][0] if self._heap else horizon_s
        periods = max(1, int((following - now_s) // self._resync_s))
        self._at(now_s + periods * self._resync_s, partial(self._tick, horizon_s))

    def _look_again(self, nodes: Iterable[ClusterNode], now_s: float) -> None:
        """*nodes* may have room now: whoever waits is tried there, once what happens at this moment is
        over."""
        if self._waiting:
            before = len(self._changed_nodes)
            self._changed_nodes.update((node.index, node) for node in nodes)
            if not before and self._changed_nodes:
                self._at(now_s, self._reconsider)

    def _reconsider(self, now_s: float) -> None:
        """Try waiting pods on the nodes that changed, the oldest first; of those that are alike, none after
        one that did not fit."""
        nodes, self._changed_nodes = tuple(self._changed_nodes.values()), {}
        untried = [
            (queue[0].order, shape)
            for shape, queue in self._waiting.items()
            if any(node.fits(queue[0].pod) for node in nodes)
        ]
        heapq.heapify(untried)
        while untried:
            _, shape = untried[0]
            queue = self._waiting[shape]
            if not self._schedule(queue[0], now_s, nodes):
                heapq.heappop(untried)
                continue
            queue.popleft()
            if queue:
                heapq.heapreplace(untried, (queue[0].order, shape))
            else:
                del self._waiting[shape]
                heapq.heappop(untried)

    def _retry_held(self, node: ClusterNode, now_s: float) -> None:
        """The pods that were refused here are asked for again, each when kubelet's back-off is over."""
        for place in self._held.pop(node.index, []):
            wait_s = _backoff_s(place.failures, _KUBELET_S)
            self._at(now_s + wait_s, partial(self._retry, place))

    def _retry(self, place: _Place, now_s: float) -> None:
        if place.node is not None and place.held:
            self._admit(place, place.node, now_s)

    def _waited(self, place: _Place, now_s: float) -> None:
        wait_s = now_s - place.arrived_s
        self.quality.wait_s += wait_s
        self.quality.long_waits += wait_s > LONG_WAIT_S

    def _sample(self, number: int) -> None:
        """Look for sets of NUMA nodes that are promised more than they have, on some of the nodes in use."""
        used = [node for node in self.nodes if node.reached and node.pods]
        if not used:
            return
        step = max(1, len(used) // _SAMPLED_NODES)
        for node in used[number // _SAMPLE_EVERY % step :: step][:_SAMPLED_NODES]:
            excess = overcommit_bytes(node)
            self.quality.samples += 1
            self.quality.overcommitted += excess > 0
            self.quality.worst_overcommit_bytes = max(self.quality.worst_overcommit_bytes, excess)


def overcommit_bytes(node: ClusterNode) -> int:
    """The worst excess over all sets of the first 8 NUMA nodes."""
    basis = node.rehearsal.basis
    promised: Counter[NodeSet] = Counter()
    for entry in basis.ledger.entries.values():
        for nodes, row in entry.decision.placement.promise.parts:
            promised[nodes] += row.get(MEMORY, 0)
    allocatable = basis.allocatable.bytes_by_node
    numa_nodes = tuple(basis.machine.ordinary_nodes)[:_MOST_SUBSETS]
    has_bytes = {numa: allocatable[numa].get(MEMORY, 0) for numa in numa_nodes}
    return worst_excess_bytes(has_bytes, promised.items())


def worst_excess_bytes(has_bytes: Mapping[int, int], promised: Collection[tuple[NodeSet, int]]) -> int:
    """How much more than it has is promised within a set of nodes, at the worst of all sets, by brute force;
    negative where each has more. *promised* are bytes, each with the nodes that they may be on."""
    return max(
        sum(size for nodes, size in promised if nodes <= chosen) - sum(has_bytes[one] for one in chosen)
        for width in range(1, len(has_bytes) + 1)
        for chosen in (NodeSet(members) for members in combinations(has_bytes, width))
    )


def _cpu_nodes(node: ClusterNode, nodes: NodeSet, decisions: Sequence[Decision]) -> Mapping[int, float]:
    """Which part of a pod's CPUs is on which NUMA node, were it to use all of them alike."""
    machine = node.software.machine
    cpus = None
    if decisions:
        decision = decisions[0]
        cpus = decision.placement.exclusive_cpus or cpus_for(decision, node.rehearsal.basis.shared_cpus)
    counts = {
        one.id: len(one.cpus) if cpus is None else len(one.cpus & cpus)
        for one in machine.nodes
        if cpus is not None or one.id in nodes
    }
    total = sum(counts.values())
    return {one: count / total for one, count in counts.items() if count} if total else {}


def _reach(machine: Machine, nodes: NodeSet, cpu_parts: Mapping[int, float]) -> tuple[float, float]:
    """The part of accesses that leaves a NUMA node, and their mean distance, where memory lies evenly on
    *nodes*."""
    part = 1 / len(nodes)
    local = sum(part * share for one, share in cpu_parts.items() if one in nodes)
    distance = sum(
        part * share * machine.distance(one, other) for one, share in cpu_parts.items() for other in nodes
    )
    return 1 - local, distance


def _backoff_s(failures: int, bounds_s: tuple[int, int]) -> float:
    """Doubled from the first to the second of *bounds_s*."""
    first, most = bounds_s
    return float(min(most, first << min(failures - 1, 16)))


def run_view(run: ClusterRun) -> dict[str, Any]:
    """What came of *run*, as plain values for JSON. What depends on the machine that it ran on is below
    ``speed``, in seconds of CPU time."""
    quality = run.quality
    span = max(quality.placed_bytes, 1)
    placed = quality.widths.total()
    waited = quality.started + quality.never_started
    return {
        "nodes": len(run.nodes),
        "nodesReached": sum(node.reached or bool(node.pods) for node in run.nodes),
        "pods": quality.pods,
        "started": quality.started,
        "neverStarted": quality.never_started,
        "refusedAtNode": quality.refusals,
        "podsRefused": quality.refused_pods,
        "waitedLong": quality.long_waits,
        "meanWaitSeconds": round(quality.wait_s / max(waited, 1), 1),
        "degraded": quality.degraded,
        "moves": quality.moves,
        "meanWidth": round(sum(width * count for width, count in quality.widths.items()) / max(placed, 1), 4),
        "widths": {str(width): count for width, count in sorted(quality.widths.items())},
        "remoteShare": round(quality.byte_remote / span, 4),
        "meanDistance": round(quality.byte_distance / span, 3),
        "overcommit": {
            "samples": quality.samples,
            "found": quality.overcommitted,
            "worstBytes": quality.worst_overcommit_bytes,
        },
        "peak": {"milliCpus": quality.peak_milli, "memoryBytes": quality.peak_bytes},
        "largestPods": _largest(run),
        "writes": {
            "bindings": quality.binds,
            "topology": run.scheduler.writes,
            "busiestMinute": quality.busiest_minute,
        },
        "speed": {
            "decisions": quality.decisions,
            "decidingSeconds": round(run.deciding.total_s, 3),
            "schedulingSeconds": round(run.scheduling.total_s, 3),
        },
    }


def _largest(run: ClusterRun) -> dict[str, int]:
    """The most CPUs and memory that one NUMA node anywhere still has at the end."""
    rooms = [room for node in run.nodes for room in run.scheduler.rooms_left(node).values()]
    return {
        "cpus": max((room.cpus for room in rooms), default=0),
        "memoryBytes": max((room.memory_bytes for room in rooms), default=0),
    }

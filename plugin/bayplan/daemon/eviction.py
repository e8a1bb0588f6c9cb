"""Ends pods where eviction thresholds are met and eviction is switched on: kubelet's eviction manager.

The formulas are in `bayplan.host.eviction_signals`, the rules in `bayplan.kubelet.eviction_manager`. Nodes
are relieved by `memory_pressure`.

The API server deletes the pod, so that its controller makes another one where there is room; the containers
of a pod that was only ended are started again by kubelet. Nothing depends on the agent: where it does not
answer, or the processes are still there after the time that kubelet has for them, they are ended here.

The runtime cannot be asked: no runtime carries out what NRI has for it, and CRI takes gRPC. The runtime
reports the end as it does every other one.

One pod is evicted at a time, in kubelet's order, of those that `bayplan.placement.eviction` leaves. Memory of
a node is relieved first: no pod is evicted for it as long as pages can go elsewhere. No pod is evicted for a
disk as long as removing what ended pods left there would do. Where a kubelet runs pods, the machine's own
signals are kubelet's to act on, and no pod is evicted here while one of them on memory is met; those of a
single node are ours. Each eviction is recorded before it is carried out.

Of what a container uses only a disk is costly to measure: that is done at most every ten seconds, within a
time that the containers share. Files stay when their container ends, until its runtime removes it, which
bayplan has no right to do: they are remembered, so that no other pod is ended for what is to be had by
removing them.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from bayplan.agent_protocol import EvictionAnswer, EvictionOutcome, EvictPod
from bayplan.config.settings import MemoryPressure
from bayplan.control.placements import Creation
from bayplan.control.state import NodeState
from bayplan.control.threads import InThread
from bayplan.daemon.memory_pressure import PressureWatch, lookups_of
from bayplan.errors import BayplanError, HostError, StateError
from bayplan.host.container import ContainerCgroup
from bayplan.host.container_processes import end_processes, wait_for_end
from bayplan.host.eviction_signals import (
    DiskUsage,
    FileSystems,
    disk_usage,
    has_kubelet,
    log_directory,
    read_signals,
    thread_count,
    working_set_bytes,
    writable_layer,
)
from bayplan.host.hierarchy import CPUSET, Hierarchy, pod_path
from bayplan.host.hierarchy import MEMORY as MEMORY_CONTROLLER
from bayplan.host.live_memory import read_held
from bayplan.kubelet.eviction_manager import (
    EPHEMERAL_STORAGE,
    INODES,
    PIDS,
    DiskUse,
    EvictionNote,
    NodeCondition,
    Pressure,
    SignalObservation,
    Threshold,
    after_look,
    conditions,
    disk_uses,
    eviction_note,
    node_of,
    node_signal,
    reclaimed_first,
    shortage,
    starved,
    wanted,
)
from bayplan.kubelet.pod import FeatureGates
from bayplan.model.decision import Decision, EvictionRecord, Outcome, Reason
from bayplan.model.kubelet_version import KubeletRules
from bayplan.model.machine import MEMORY
from bayplan.model.qos import qos_from_cgroup_parent
from bayplan.model.workload import Container, Pod
from bayplan.placement.eviction import EvictablePod, PodMemory, RunningContainer, candidates, victim
from bayplan.placement.page_placement import NodeMemory
from bayplan.views.metrics import eviction_counter

DISK_LOOK_S: Final = 10.0
"""kubelet looks as often."""
DISKS_S: Final = 10.0
"""So long the disks are measured at most, all containers together."""

_OnDisk = dict[tuple[DiskUse, Path], DiskUsage]
"""By what it is and its directory."""


class ContainerUsage:
    """See the module. *image_fs*: images and writable layers have a file system of their own."""

    def __init__(
        self,
        state: NodeState,
        hierarchy: Hierarchy,
        watch: PressureWatch,
        *,
        image_fs: bool,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._hierarchy = hierarchy
        self._watch = watch
        self._image_fs = image_fs
        self._clock_s = clock_s
        self._on_disk: dict[str, _OnDisk | None] = {}
        """By container; None where its writable layer cannot be found."""
        self._measured_at_s = -DISK_LOOK_S
        self._left: dict[str, _OnDisk] = {}
        """What ended pods left, by the pod's name."""

    def running(self, signal: str) -> list[RunningContainer]:
        """What every container uses now of what *signal* is about."""
        containers, ledger = list(self._state.known.containers.values()), self._state.ledger
        # What has just started may be the one that uses most.
        for lookup in lookups_of(self._state):
            with suppress(HostError):
                self._watch.memory.find(*lookup)
        resource = starved(signal)
        if resource not in (MEMORY, PIDS):
            self._measure_disks(containers)
        latest = self._watch.latest
        held = {} if latest is None else latest.containers
        found = []
        for container in containers:
            entry = ledger.entries.get(container.id)
            if entry is None:
                continue
            if resource == MEMORY:
                used = self._of_cgroup(container, working_set_bytes)
            elif resource == PIDS:
                used = self._of_cgroup(container, thread_count)
            else:
                used = self._of_disk(signal, self._on_disk.get(container.id))
            pages = held.get(container.id)
            found.append(RunningContainer(entry, container, used, {} if pages is None else pages.held_bytes))
        return found

    def of_pods(self, running: Iterable[RunningContainer]) -> dict[str, PodMemory]:
        """What the cgroups of kubelet's pods are charged for, by the pod's id; nothing of those that have no
        cgroup of their own, or that cannot be read."""
        found = {}
        for pod_id in {one.container.pod_id for one in running}:
            pod = self._state.known.pods.get(pod_id)
            if pod is None or qos_from_cgroup_parent(pod.cgroup_parent) is None:
                continue
            with suppress(BayplanError):
                path = pod_path(pod.cgroup_parent)
                held_bytes = read_held(self._hierarchy, path).unreclaimable_bytes
                found[pod_id] = PodMemory(working_set_bytes(self._hierarchy, path), held_bytes)
        return found

    def ended(self, pod: str, container_ids: Iterable[str]) -> None:
        """Note that a pod's containers were ended for a disk: from now on what they have there is left
        over."""
        left = self._left.setdefault(pod, {})
        for container_id in container_ids:
            left.update(self._on_disk.pop(container_id, None) or {})

    def forget_ended(self) -> None:
        """Note that ended pods may come back now: what is theirs is in use again."""
        self._left.clear()

    def left_over(self, signal: str) -> tuple[int, str]:
        """What ended pods still take of the disk that *signal* is about, and the names of these pods."""
        for pod, left in list(self._left.items()):
            for use, directory in list(left):
                if not directory.is_dir():
                    del left[use, directory]
            if not left:
                del self._left[pod]
        amounts = {pod: self._of_disk(signal, left) or 0 for pod, left in self._left.items()}
        return sum(amounts.values()), ", ".join(pod for pod, amount in amounts.items() if amount)

    def _of_disk(self, signal: str, on_disk: _OnDisk | None) -> int | None:
        if on_disk is None:
            return None
        counted = disk_uses(signal, image_fs=self._image_fs)
        usages = [one for (use, _), one in on_disk.items() if use in counted]
        inodes = starved(signal) == INODES
        return sum(one.inodes if inodes else one.used_bytes for one in usages)

    def _of_cgroup(self, container: Container, read: Callable[[Hierarchy, str], int]) -> int | None:
        try:
            for path in self._watch.memory.cgroups_of([container.id]):
                return read(self._hierarchy, path)
        except BayplanError:
            return None  # It is gone, or not to be known.
        return None

    def _measure_disks(self, containers: list[Container]) -> None:
        now_s = self._clock_s()
        if now_s - self._measured_at_s < DISK_LOOK_S:
            return
        end_s, self._on_disk = now_s + DISKS_S, {}
        for number, one in enumerate(containers):
            now_s = self._clock_s()
            # What one does not use of its share is for those after it.
            until_s = now_s + (end_s - now_s) / (len(containers) - number)
            self._on_disk[one.id] = self._written(one, until_s)
        self._measured_at_s = self._clock_s()

    def _written(self, container: Container, until_s: float) -> _OnDisk | None:
        layer = self._writable_layer(container)
        if layer is None:
            return None
        places = {(DiskUse.WRITABLE_LAYER, layer)}
        pod = self._state.known.pods.get(container.pod_id)
        if pod is not None:
            logs = log_directory(pod.namespace, pod.name, pod.uid, container.name, self._hierarchy.root)
            places |= set() if logs is None else {(DiskUse.LOGS, logs)}
        return {(use, path): disk_usage(path, until_s, clock_s=self._clock_s) for use, path in places}

    def _writable_layer(self, container: Container) -> Path | None:
        for path in self._watch.memory.cgroups_of([container.id]):
            try:
                with ContainerCgroup(
                    self._hierarchy, dict.fromkeys((CPUSET, MEMORY_CONTROLLER), path)
                ) as cgroup:
                    pids = cgroup.processes()
            except BayplanError:
                continue
            for pid in pids:
                if (found := writable_layer(pid, self._hierarchy.root)) is not None:
                    return found
        return None


logger = logging.getLogger(__name__)

NEAR: Final = 1.5
"""A threshold is near where less than so many times what it asks for is available."""


class PressureSignals:
    """See the module. *thresholds* and *transition_ns* are asked at each look. ``pressure`` is what the looks
    have found so far."""

    def __init__(
        self,
        state: NodeState,
        hierarchy: Hierarchy,
        disks: FileSystems,
        in_thread: InThread,
        watch: PressureWatch,
        *,
        thresholds: Callable[[], tuple[Threshold, ...]],
        transition_ns: Callable[[], int],
        clock_ns: Callable[[], int] = time.monotonic_ns,
        read: Callable[[Hierarchy, FileSystems, KubeletRules], dict[str, SignalObservation]] = read_signals,
    ) -> None:
        self.pressure = Pressure()
        self.clock_ns = clock_ns
        self._observations: Mapping[str, SignalObservation] = {}
        self._state = state
        self._hierarchy = hierarchy
        self._disks = disks
        self._in_thread = in_thread
        self._watch = watch
        self._thresholds = thresholds
        self._transition_ns = transition_ns
        self._read = read
        self._unobserved: frozenset[str] = frozenset()
        self._problem = ""

    async def look(self) -> None:
        """Look once, and have relief keep available what thresholds of nodes ask for that are met."""
        if self._watch.mode is MemoryPressure.OFF:
            self.pressure, self._observations, self._problem = Pressure(), {}, ""
            return
        thresholds = self._thresholds()
        found, nodes, self._problem = await self._in_thread(self._read_all)
        self._observations = {**found, **self._of_nodes(nodes)}
        if found:
            self._name_unobserved(thresholds)
        before = self.pressure
        self.pressure = after_look(before, thresholds, self._observations, self.clock_ns())
        self._report(before)
        self._watch.keep_available(self._kept_bytes())

    def is_any_near(self) -> bool:
        """Whether a threshold is met, or half as much again as it asks for is not available."""
        return bool(self.pressure.since_ns) or any(
            seen.available < NEAR * one.value.of(seen.capacity)
            for one in self._thresholds()
            if (seen := self._observations.get(one.signal)) is not None
        )

    def seen(self, threshold: Threshold) -> SignalObservation:
        """What was observed of a threshold that is met."""
        return self._observations[threshold.signal]

    def conditions(self) -> tuple[NodeCondition, ...]:
        """The conditions that kubelet would report of the node."""
        return self.pressure.conditions(self.clock_ns(), self._transition_ns())

    def problems(self) -> tuple[str, ...]:
        """What lasts and an operator should know, each a sentence."""
        problems = [f"eviction signals cannot be read: {self._problem}"] if self._problem else []
        met = (f"eviction threshold met: {self._shortage(one)}" for one in self.pressure.since_ns)
        return (*problems, *met)

    def _read_all(self) -> tuple[dict[str, SignalObservation], dict[int, NodeMemory], str]:
        """The signals, what the nodes have, and the problem with the signals. Blocks. Nothing is done by
        numbers of an earlier look; what is wrong with the nodes the watch says."""
        found, problem = {}, ""
        try:
            found = self._read(self._hierarchy, self._disks, self._state.policy.kubelet_rules)
        except BayplanError as error:
            problem = str(error)
        try:
            return found, self._watch.read_nodes(), problem
        except BayplanError:
            return found, {}, problem

    def _of_nodes(self, nodes: Mapping[int, NodeMemory]) -> dict[str, SignalObservation]:
        """What each node can give, free or to be reclaimed at once, by signal. Unlike kubelet's formula for
        the machine this counts what the kernel itself holds."""
        machine = self._state.machine
        return {
            node_signal(node): SignalObservation(one.room_bytes, machine.node_by_id[node].memory_bytes)
            for node, one in nodes.items()
            if node in machine.node_by_id
        }

    def _kept_bytes(self) -> dict[int, int]:
        kept: dict[int, int] = {}
        for one in self.pressure.since_ns:
            node = node_of(one.signal)
            if node is not None:
                kept[node] = max(kept.get(node, 0), wanted(one, self.seen(one)))
        return kept

    def _shortage(self, threshold: Threshold) -> str:
        return shortage(threshold, self._observations.get(threshold.signal))

    def _report(self, before: Pressure) -> None:
        for one in self.pressure.since_ns.keys() - before.since_ns.keys():
            logger.warning("eviction threshold met", extra={"threshold": self._shortage(one)})
        for one in before.since_ns.keys() - self.pressure.since_ns.keys():
            logger.info("eviction threshold no longer met", extra={"threshold": self._shortage(one)})

    def _name_unobserved(self, thresholds: Iterable[Threshold]) -> None:
        """Log once which thresholds can never be met, because nothing is known of their signals. Signals of
        nodes are left out: the watch of the nodes observes them, perhaps later."""
        missing = {one.signal for one in thresholds} - self._observations.keys()
        unobserved = frozenset(signal for signal in missing if node_of(signal) is None)
        if unobserved - self._unobserved:
            extra = {"signals": sorted(unobserved)}
            logger.warning("eviction signals that cannot be observed here", extra=extra)
        self._unobserved = unobserved


RELIEF_NS: Final = 60_000_000_000
"""For so long pages are moved before a pod is ended for memory."""
HARD_GRACE_S: Final = 1
"""kubelet's own for hard thresholds."""
SOFT_GRACE_S: Final = 30
"""Kubernetes' default of terminationGracePeriodSeconds; the pod's own is not known here."""
ANSWER_S: Final = 5.0
"""For the agent's answer. Until then the pod goes on using what is short."""
KUBELET_S: Final = 10.0
"""For kubelet, beside the grace period: to notice the deletion, and to have the runtime stop the pod."""

AskAgent = Callable[[EvictPod, float], Awaitable[EvictionAnswer | None]]
EndProcesses = Callable[[Hierarchy, Sequence[str], float], str]
WaitForEnd = Callable[[Hierarchy, Sequence[str], float], bool]


async def no_agent(_: EvictPod, __: float) -> None:
    """The answer where no agent is connected: none."""


class PodEnd:
    """See the module. Blocking calls run where *in_thread* says; ``ask_agent`` is `AgentServer.evict`.
    ``obstacle`` says why no pod is ended, empty where pods are. No pod is ended for memory before pages were
    moved for ``relief_ns``."""

    obstacle: ClassVar[str] = ""
    relief_ns: ClassVar[float] = RELIEF_NS

    def __init__(
        self,
        hierarchy: Hierarchy,
        in_thread: InThread,
        end: EndProcesses = end_processes,
        wait: WaitForEnd = wait_for_end,
    ) -> None:
        self.ask_agent: AskAgent = no_agent
        self._hierarchy = hierarchy
        self._in_thread = in_thread
        self._end = end
        self._wait = wait

    async def ask_api_server(self, pod: Pod, grace_s: int) -> EvictionAnswer | None:
        """What the API server says of evicting *pod*; None if it was not asked."""
        if not pod.uid:
            return None
        asked = EvictPod(pod.uid, pod.namespace, pod.name, grace_s)
        answer = await self.ask_agent(asked, ANSWER_S)
        if answer is not None and answer.outcome is not EvictionOutcome.ACCEPTED:
            extra = {"pod": f"{pod.namespace}/{pod.name}", "problem": answer.problem}
            logger.warning("the API server does not evict a pod", extra=extra)
        return answer

    async def end(self, cgroups: Sequence[str], grace_s: int, *, deleted: bool) -> str:
        """End all processes in *cgroups*, or have kubelet do so if the pod is *deleted*; what is left, as a
        sentence, empty if nothing is."""
        try:
            if deleted:
                wait = partial(self._wait, self._hierarchy, cgroups, grace_s + KUBELET_S)
                if await self._in_thread(wait):
                    return ""
                logger.warning("kubelet has not ended a pod that was deleted", extra={"cgroups": cgroups})
            return await self._in_thread(partial(self._end, self._hierarchy, cgroups, grace_s))
        except BayplanError as error:
            return str(error)


LOOK_S: Final = 2.0
"""Where a threshold is near: what happens between two looks is missed."""
FAR_LOOK_S: Final = 10.0
"""Where none is, and no node loses what it has: kubelet's own, always."""
SETTLE_NS: Final = 10_000_000_000
"""After an eviction, until the next one may follow: what was ended has to be seen in the numbers first."""
"""So long pages are moved off a node, before somebody is ended although there are more to be moved."""
BUDGET_NS: Final = 60_000_000_000
"""So long a pod that a PodDisruptionBudget keeps from a soft threshold is left alone."""
MOST_NAMED: Final = 3
ON_DISK: Final = (EPHEMERAL_STORAGE, INODES)

EVICTED: Final = "evicted"
"""Code of the reason that a container of an evicted pod is refused."""


class EvictionManager:
    """See the module. Blocking calls run where *in_thread* says."""

    def __init__(
        self,
        state: NodeState,
        hierarchy: Hierarchy,
        in_thread: InThread,
        watch: PressureWatch,
        signals: PressureSignals,
        usage: ContainerUsage,
        pod_end: PodEnd,
    ) -> None:
        self.signals = signals
        self.pod_end = pod_end
        self._state = state
        self._hierarchy = hierarchy
        self._in_thread = in_thread
        self._watch = watch
        self._usage = usage
        self._not_before_ns = 0
        self._obstacle = ""
        self._evicted: dict[str, tuple[NodeCondition, str]] = {}
        """For each evicted pod, by `_key`, the node's condition that it went for, and kubelet's message."""
        self._left_running: dict[str, NodeCondition] = {}
        self._kept_until_ns: dict[str, int] = {}
        """By the pod's id, until when a pod that a disruption budget keeps is left alone."""

    async def follow(self, pause_s: float = LOOK_S, far_pause_s: float = FAR_LOOK_S) -> None:
        """Look for ever, until cancelled: after *pause_s*, or where no threshold is near when the nodes are
        looked at, *far_pause_s* at the latest."""
        while True:
            looked = self._watch.looked
            if looked.is_set() or self.signals.is_any_near():
                await asyncio.sleep(pause_s)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(far_pause_s):
                        await looked.wait()
            looked.clear()
            try:
                await self.look()
            except Exception:
                # Placing containers does not depend on it.
                logger.exception("eviction thresholds could not be looked at")

    async def look(self) -> EvictablePod | None:
        """Look once; the pod that was evicted, if any was."""
        await self.signals.look()
        lasting = self.signals.conditions()
        self._evicted = {key: one for key, one in self._evicted.items() if one[0] in lasting}
        self._left_running = {key: one for key, one in self._left_running.items() if one in lasting}
        if NodeCondition.DISK_PRESSURE not in lasting:
            self._usage.forget_ended()
        self._obstacle = ""
        if self._watch.mode is not MemoryPressure.EVICT or self.signals.clock_ns() < self._not_before_ns:
            return None
        for threshold in self._thresholds_to_act_on():
            if (evicted := await self._evict_for(threshold)) is not None:
                return evicted
        return None

    def admitted(self, creation: Creation, decision: Decision) -> Decision:
        """*decision* about a new container, or its refusal: a pod that was evicted does not come back as long
        as the node has the condition that it was evicted for. kubelet starts the containers of such a pod
        again and again."""
        evicted = self._evicted.get(_key(creation.pod))
        if evicted is None or decision.outcome is Outcome.REFUSED:
            return decision
        condition, message = evicted
        reason = Reason(EVICTED, f"the pod was evicted, and {condition.value} lasts. {message.strip()}")
        return Decision(decision.request, Outcome.REFUSED, reasons=(reason,), refused_as="Evicted")

    def problems(self) -> tuple[str, ...]:
        """What lasts and an operator should know, each a sentence."""
        found = self.signals.problems()
        return (*found, self._obstacle) if self._obstacle and self.signals.pressure.since_ns else found

    def _thresholds_to_act_on(self) -> tuple[Threshold, ...]:
        """The thresholds that are due and ours to act on, and for which relief can do no more, in kubelet's
        order."""
        all_met = list(self.signals.pressure.since_ns)
        if has_kubelet(self._hierarchy):
            of_kubelet = [one for one in all_met if node_of(one.signal) is None]
            if of_kubelet:
                self._obstacle = "nobody is evicted for the machine: that is left to kubelet"
            if any(starved(one.signal) == MEMORY for one in of_kubelet):
                self._obstacle = "nobody is evicted: that is left to kubelet"
                return ()
            all_met = [one for one in all_met if one not in of_kubelet]
        due = [one for one in all_met if one in self.signals.pressure.due and not self._is_relieved(one)]
        found: list[Threshold] = []
        while first := reclaimed_first(one for one in due if one not in found):
            found.append(first[0])
        return tuple(found)

    def _is_relieved(self, threshold: Threshold) -> bool:
        """Whether pages are still being moved for *threshold*, and not for too long."""
        node = node_of(threshold.signal)
        if node is None or self._watch.is_exhausted(node):
            return False  # For the machine's own signals there is nothing to move.
        since_ns = self.signals.clock_ns() - self.signals.pressure.since_ns[threshold]
        return since_ns < self.pod_end.relief_ns

    async def _evict_for(self, threshold: Threshold) -> EvictablePod | None:
        state, seen = self._state, self.signals.seen(threshold)
        signal, lacking = threshold.signal, wanted(threshold, seen) - seen.available
        resource = starved(signal) or ""
        if resource in ON_DISK:
            left, pods_left = await self._in_thread(partial(self._usage.left_over, signal))
            if left >= lacking:
                self._obstacle = (
                    f"what ended pods left would do for {signal}: remove their containers ({pods_left})"
                )
                return None
        running = await self._in_thread(partial(self._usage.running, signal))
        now_ns = self.signals.clock_ns()
        self._kept_until_ns = {key: until for key, until in self._kept_until_ns.items() if now_ns < until}
        passed_over = self._left_running.keys() | self._kept_until_ns.keys()
        offered = {key: pod for key, pod in state.known.pods.items() if key not in passed_over}
        memory = await self._in_thread(partial(self._usage.of_pods, running)) if resource == MEMORY else {}
        facts, claimed = state.kubelet_pods.get, state.ledger.claimed_memory_bytes
        pods, kept = candidates(running, offered, facts, resource, memory, claimed)
        chosen = victim(pods, node_of(signal), lacking)
        if chosen is None:
            named = f" ({'; '.join(kept[:MOST_NAMED])})" if kept else ""
            self._obstacle = f"nobody may be evicted for {signal}{named}"
            return None
        # Of inodes and process ids kubelet names no containers.
        by_container = {one.container.name: one.used or 0 for one in chosen.containers}
        note = eviction_note(
            resource,
            chosen.spec,
            by_container if resource in (MEMORY, EPHEMERAL_STORAGE) else {},
            FeatureGates(rules=state.policy.kubelet_rules),
            pod_usage_bytes=chosen.used,
            shortage=(threshold.value.of(seen.capacity), seen.available),
        )
        return chosen if await self._carry_out(chosen, threshold, note) else None

    async def _carry_out(self, pod: EvictablePod, threshold: Threshold, note: EvictionNote) -> bool:
        """Record the eviction, then end the pod; False if a disruption budget keeps it."""
        records = self._records(pod, threshold, note.message, self.pod_end.obstacle)
        await self._record(records)
        self._not_before_ns = self.signals.clock_ns() + SETTLE_NS
        grace_s = HARD_GRACE_S if threshold.hard else SOFT_GRACE_S
        answer = await self.pod_end.ask_api_server(pod.pod, grace_s)
        # As kubelet's evictions, those for a hard threshold heed no budget.
        if answer is not None and answer.outcome is EvictionOutcome.LATER and not threshold.hard:
            await self._record(self._records(pod, threshold, note.message, answer.problem))
            self._obstacle = f"{pod.name} is not evicted for {threshold.signal}: {answer.problem}"
            self._kept_until_ns[pod.pod.id] = self.signals.clock_ns() + BUDGET_NS
            return False
        self._state.counters[eviction_counter(threshold.signal, pod.qos.value)] += 1
        extra = {"pod": pod.name, "signal": threshold.signal, "record": str(records[0])}
        logger.warning("pod is evicted", extra=extra)
        (condition,) = conditions([threshold])
        if self.pod_end.obstacle:
            self._left_running[pod.pod.id] = condition
            return True
        self._state.changes.evicted(records[0], note.annotations)
        self._evicted[_key(pod.pod)] = condition, note.message
        container_ids = [one.container.id for one in pod.containers]
        if pod.resource in ON_DISK:
            self._usage.ended(pod.name, container_ids)
        cgroups = self._watch.memory.cgroups_of(container_ids)
        deleted = answer is not None and answer.outcome is EvictionOutcome.ACCEPTED
        if deleted:
            self._state.counters["evicted_by_api_server"] += 1
        left = await self.pod_end.end(cgroups, grace_s, deleted=deleted)
        self._not_before_ns = self.signals.clock_ns() + SETTLE_NS
        if left:
            self._state.counters["evictions_failed"] += 1
            logger.error("an evicted pod has not ended", extra={"pod": pod.name, "problem": left})
        return True

    async def _record(self, records: list[EvictionRecord]) -> None:
        try:
            await self._state.recorder.evicted(records)
        except StateError as error:
            logger.error("an eviction is not recorded", extra={"problem": str(error)})  # noqa: TRY400 - expected, so that a traceback says nothing

    def _records(
        self, pod: EvictablePod, threshold: Threshold, message: str, obstacle: str
    ) -> list[EvictionRecord]:
        seen = self.signals.seen(threshold)
        return [
            EvictionRecord(
                time.time_ns() // 1000,
                one.container.id,
                one.entry.decision.request.name,
                threshold.signal,
                pod.qos,
                threshold.value.of(seen.capacity),
                seen.available,
                pod.used,
                pod.request,
                pod.priority,
                message,
                obstacle,
                in_bytes=pod.resource in (MEMORY, EPHEMERAL_STORAGE),
            )
            for one in pod.containers
        ]


def _key(pod: Pod) -> str:
    """The pod's name and uid: kubelet may make a new sandbox, which has another id, for the same pod."""
    return pod.uid or pod.id

"""Measures what each container uses of what runs short: memory, process ids, or a disk. Blocks.

Only a disk is costly to measure: that is done at most every ten seconds, within a time that the containers
share. Files stay when their container ends, until somebody removes the container, which bayplan has no right
to do: they are remembered, so that nobody else is ended for what is to be had by removing them.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from bayplan.control.state import NodeState
from bayplan.daemon.memory_pressure import PressureWatch, lookups_of
from bayplan.errors import BayplanError, HostError
from bayplan.host.container import ContainerCgroup
from bayplan.host.disk_usage import DiskUsage, disk_usage, log_directory, writable_layer
from bayplan.host.eviction_signals import thread_count, working_set_bytes
from bayplan.host.hierarchy import CPUSET, MEMORY, Hierarchy, pod_path
from bayplan.host.live_memory import read_held
from bayplan.kubelet.eviction_manager import INODES, PIDS, DiskUse, disk_uses, starved
from bayplan.model import machine
from bayplan.model.qos import qos_from_cgroup_parent
from bayplan.model.workload import Container
from bayplan.placement.eviction import PodMemory, RunningContainer

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
        if resource not in (machine.MEMORY, PIDS):
            self._measure_disks(containers)
        latest = self._watch.latest
        held = {} if latest is None else latest.containers
        found = []
        for container in containers:
            entry = ledger.entries.get(container.id)
            if entry is None:
                continue
            if resource == machine.MEMORY:
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
        """A pod's containers were ended for a disk: from now on what they have there is left over."""
        left = self._left.setdefault(pod, {})
        for container_id in container_ids:
            left.update(self._on_disk.pop(container_id, None) or {})

    def forget_ended(self) -> None:
        """Ended pods may come back now, and what is theirs is in use again."""
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
                with ContainerCgroup(self._hierarchy, dict.fromkeys((CPUSET, MEMORY), path)) as cgroup:
                    pids = cgroup.processes()
            except BayplanError:
                continue
            for pid in pids:
                if (found := writable_layer(pid, self._hierarchy.root)) is not None:
                    return found
        return None

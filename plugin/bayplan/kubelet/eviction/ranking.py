"""Whom kubelet evicts first: its orders for memory, disks and processes, and what of a disk counts.

Source: pkg/kubelet/eviction/helpers.go (rankMemoryPressure, rankDiskPressureFunc, rankPIDPressure,
buildSignalToRankFunc).
"""

from collections.abc import Iterable
from enum import Enum

from msgspec import Struct

from bayplan.kubelet.eviction.thresholds import PIDS
from bayplan.model.machine import MEMORY


class PodUsage(Struct, frozen=True):
    """What the order of eviction depends on. ``used`` is None while nothing was measured; ``request`` is the
    pod's own, by `bayplan.kubelet.resources.pod_requests`. ``deducted`` is what the use beyond the
    request is counted from, where that is something else: of inodes kubelet deducts the request in bytes."""

    name: str
    used: int | None
    request: int = 0
    priority: int = 0
    deducted: int | None = None


class DiskUse(Enum):
    """What a container writes to a disk that bayplan can measure. kubelet's local volumes are its own."""

    WRITABLE_LAYER = "writable layer"
    LOGS = "logs"


def eviction_order(pods: Iterable[PodUsage], resource: str = MEMORY) -> tuple[PodUsage, ...]:
    """The pods in the order in which kubelet evicts them when *resource* runs short.

    First those of which nothing is known, then those that use more than they request; within each, those of
    lower priority first, and then those that use most beyond their request. Nobody requests processes: only
    the priority and how many there are count. Ties, which kubelet leaves to chance, go by name.
    """
    return tuple(sorted(pods, key=_process_key if resource == PIDS else _request_key))


def disk_uses(signal: str, *, image_fs: bool) -> frozenset[DiskUse]:
    """What counts when *signal* of a disk is met. *image_fs*: images and writable layers have a disk of their
    own, and logs are not on it."""
    if not image_fs:
        return frozenset(DiskUse)
    return frozenset([DiskUse.LOGS if signal.startswith("nodefs.") else DiskUse.WRITABLE_LAYER])


def _request_key(pod: PodUsage) -> tuple[bool, bool, int, int, str]:
    if pod.used is None:
        return False, False, pod.priority, 0, pod.name
    deducted = pod.request if pod.deducted is None else pod.deducted
    return True, pod.used <= pod.request, pod.priority, deducted - pod.used, pod.name


def _process_key(pod: PodUsage) -> tuple[int, bool, int, str]:
    if pod.used is None:
        return pod.priority, False, 0, pod.name
    return pod.priority, True, -pod.used, pod.name

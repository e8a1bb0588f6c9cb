"""What kubelet does when a resource runs short: which thresholds are met, what follows, and what it says.

These are the rules of kubelet's eviction manager as pure functions, so that they can be held against its
records like those of the other managers. The daemon goes by them, too; what it adds are the signals of NUMA
nodes. Rules for one look: what lasts from one to the next is in `bayplan.kubelet.eviction.pressure`;
who goes first in `bayplan.kubelet.eviction.ranking`.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.kubelet.eviction.node_signals import node_of
from bayplan.kubelet.eviction.thresholds import (
    ALLOCATABLE_MEMORY,
    INODES,
    MEMORY_AVAILABLE,
    PIDS,
    Threshold,
    starved,
)
from bayplan.kubelet.pod import FeatureGates, PodSpec
from bayplan.kubelet.resources import pod_level_requests
from bayplan.model.machine import MEMORY
from bayplan.quantity import format_count, format_page_size


class NodeCondition(Enum):
    """The conditions of a node that come from eviction thresholds, as the API spells them."""

    MEMORY_PRESSURE = "MemoryPressure"
    DISK_PRESSURE = "DiskPressure"
    PID_PRESSURE = "PIDPressure"


_MEMORY_SIGNALS: Final = (MEMORY_AVAILABLE, ALLOCATABLE_MEMORY)
_CONTAINER_FS: Final = "containerfs"


class Observation(Struct, frozen=True):
    """What of a signal's resource is available, and how much there is in all (MemTotal, say)."""

    available: int
    capacity: int = 0


class EvictionNote(Struct, frozen=True):
    """What kubelet reports of an eviction: the message in the pod's status, and the event's annotations."""

    message: str
    annotations: Mapping[str, str]


def met(
    thresholds: Iterable[Threshold], observations: Mapping[str, Observation], *, until_reclaimed: bool = False
) -> tuple[Threshold, ...]:
    """The thresholds that are met, whatever their grace period. A signal that was not observed meets none.

    *until_reclaimed*: whether they are still met, once they have been: until their minimum was reclaimed too.
    """
    found = []
    for each in thresholds:
        seen = observations.get(each.signal)
        if seen is None:
            continue
        wanted = each.value.of(seen.capacity)
        if until_reclaimed and each.min_reclaim is not None:
            wanted += each.min_reclaim.of(seen.capacity)
        if wanted > seen.available:
            found.append(each)
    return tuple(found)


def conditions(thresholds: Iterable[Threshold]) -> tuple[NodeCondition, ...]:
    """The conditions that a node has while *thresholds* are met, each once, in their order."""
    found = (_condition(each.signal) for each in thresholds)
    return tuple(dict.fromkeys(each for each in found if each is not None))


def has_condition(reported: Collection[str], condition: NodeCondition) -> bool:
    """Whether a node that reports these conditions, which may be others too, is under that pressure."""
    return condition.value in reported


def reclaimed_first(thresholds: Iterable[Threshold]) -> tuple[Threshold, str] | None:
    """The threshold that kubelet acts on of all that are met, and the resource it reclaims; None if there is
    nothing that it could do about any of them.

    Memory comes before everything else. Of several thresholds on memory kubelet's sort leaves the last first.
    Memory of a NUMA node, which kubelet knows nothing of, comes after the machine's.
    """
    possible = [(each, resource) for each in thresholds if (resource := starved(each.signal)) is not None]
    of_memory = [one for one in possible if one[0].signal in _MEMORY_SIGNALS]
    of_nodes = (one for one in possible if node_of(one[0].signal) is not None)
    return of_memory[-1] if of_memory else next(of_nodes, next(iter(possible), None))


def with_container_fs(
    thresholds: Iterable[Threshold], *, image_fs: bool, container_fs: bool
) -> tuple[tuple[Threshold, ...], tuple[Threshold, ...]]:
    """*thresholds* with those of the file system of containers, and the configured ones that kubelet drops.

    Nobody can configure these. They are those of the node's file system, or, if images and containers share
    one of their own (*image_fs* alone), those of the images'. *container_fs* says that containers have a file
    system apart from the images'; kubelet knows of no such case without *image_fs* and changes nothing then.
    """
    found = tuple(thresholds)
    dropped = tuple(each for each in found if _file_system(each) == _CONTAINER_FS)
    if container_fs and not image_fs:
        return found, dropped
    source = "imagefs" if image_fs and not container_fs else "nodefs"
    derived = [
        replace(each, signal=each.signal.replace(source, _CONTAINER_FS))
        for each in found
        if _file_system(each) == source
    ]
    return (*(each for each in found if each not in dropped), *derived), dropped


def eviction_note(
    resource: str,
    pod: PodSpec,
    usage: Mapping[str, int],
    gates: FeatureGates,
    *,
    pod_usage_bytes: int | None = None,
    shortage: tuple[int, int] | None = None,
) -> EvictionNote:
    """What kubelet says when it evicts *pod*: who of it used more than was requested.

    *usage* is what containers use by name, in the order in which it was measured; for inodes and processes
    kubelet names no containers. Init containers count, ephemeral ones don't. A pod that requests memory as a
    whole is named whatever it used (*pod_usage_bytes*), also with less than it requested. *shortage* is the
    threshold and what was available.
    """
    message = f"The node was low on resource: {resource}. "
    if shortage is not None:
        threshold, available = map(format_count if resource in (INODES, PIDS) else format_page_size, shortage)
        message += f"Threshold quantity: {threshold}, available: {available}. "
    annotations = {"starved_resource": resource}
    request_bytes = pod_level_requests(pod, gates).get(MEMORY)
    if resource == MEMORY and request_bytes is not None and pod_usage_bytes is not None:
        message += _larger("Pod", pod.name, pod_usage_bytes, request_bytes, resource)
        annotations["offending_pod"] = pod.name
        annotations["offending_pod_usage"] = format_page_size(pod_usage_bytes)
    requests = {each.name: each.requests.get(resource, 0) for each in pod.all_containers}
    offending = {name: used for name, used in usage.items() if name in requests and used > requests[name]}
    for name, used in offending.items():
        message += _larger("Container", name, used, requests[name], resource)
    annotations["offending_containers"] = ",".join(offending)
    annotations["offending_containers_usage"] = ",".join(
        format_page_size(each) for each in offending.values()
    )
    return EvictionNote(message, annotations)


def _condition(signal: str) -> NodeCondition | None:
    resource = starved(signal)
    if resource is None:
        return None
    if resource == MEMORY:
        return NodeCondition.MEMORY_PRESSURE
    return NodeCondition.PID_PRESSURE if signal == "pid.available" else NodeCondition.DISK_PRESSURE


def _file_system(threshold: Threshold) -> str:
    return threshold.signal.partition(".")[0]


def _larger(kind: str, name: str, used: int, requested: int, resource: str) -> str:
    return (
        f"{kind} {name} was using {format_page_size(used)}, request is {format_page_size(requested)}, "
        f"has larger consumption of {resource}. "
    )

"""cpusets that are not ours: set by kubelet's own managers, recognised by what they set, or by others.

kubelet's CPU Manager gives cpuset.cpus to every container of the node, those of the shared pool included, in
the spec or with UpdateContainer when it reconciles; its Memory Manager gives cpuset.mems to Guaranteed
containers, in the spec only. Nothing here changes a pin: see `bayplan.engines.kubelet.trivial_decision`.
"""

import enum
from collections.abc import Collection, Iterable, Iterator

from bayplan.model.decision import QosClass, QosSource, Request
from bayplan.quantity import counted


class PinningManager(enum.Enum):
    """The managers of kubelet that pin containers."""

    CPU = "CPU Manager"
    MEMORY = "Memory Manager"


class DetectedBy(enum.Enum):
    """How it is known that somebody pins containers."""

    CONFIGURATION = "kubelet's configuration"
    SPEC = "a spec that already carried a cpuset"
    UPDATE = "UpdateContainer"


def is_pinned(request: Request) -> bool:
    """Whether somebody else set a cpuset of the container."""
    return request.pinned_cpus is not None or request.pinned_mems is not None


def how_detected(request: Request) -> DetectedBy:
    """How a pin of a container became known."""
    return DetectedBy.UPDATE if request.pinned_by_update else DetectedBy.SPEC


def pinning_managers(request: Request) -> tuple[PinningManager, ...]:
    """The managers of kubelet that a container's pins come from; none if it was somebody else.

    Only pods in kubelet's cgroup tree are kubelet's. There the CPU Manager gives as many CPUs as a container
    has to itself, or the shared pool; the Memory Manager leaves alone what is not Guaranteed.
    """
    if request.qos_source is not QosSource.CGROUP_PARENT:
        return ()
    found = []
    if request.pinned_cpus is not None and request.exclusive_cpus in (0, len(request.pinned_cpus)):
        found.append(PinningManager.CPU)
    if request.pinned_mems is not None and request.qos is QosClass.GUARANTEED:
        found.append(PinningManager.MEMORY)
    return tuple(found)


def pin_sentences(requests: Iterable[Request], configured: Collection[PinningManager] = ()) -> Iterator[str]:
    """What to say of the pins of others, one sentence for each manager of kubelet and one for all others.

    *requests* are those of the containers that exist, *configured* the managers that kubelet's configuration
    switches on.
    """
    pinned = [request for request in requests if is_pinned(request)]
    others = sum(not pinning_managers(request) for request in pinned)
    for manager in PinningManager:
        its = [request for request in pinned if manager in pinning_managers(request)]
        seen = {how_detected(request) for request in its}
        if manager in configured:
            seen.add(DetectedBy.CONFIGURATION)
        if seen:
            how = " and ".join(way.value for way in DetectedBy if way in seen)
            yield kubelet_sentence(manager, f"{how}; containers: {len(its)}" if its else how)
    if others:
        pinned_ones = counted(others, "container is", "containers are")
        yield f"{pinned_ones} pinned by somebody else; that stays as it is"


def kubelet_sentence(manager: PinningManager, seen: str) -> str:
    """That a manager of kubelet pins containers, and how that was *seen*."""
    return f"kubelet's {manager.value} pins containers itself (seen in {seen}); what it sets stays as it is"

"""cpusets that are not ours: set by kubelet's own managers, recognised by what they set, or by others; and
whose cpusets have CPUs that were given to somebody as its own.

kubelet's CPU Manager gives cpuset.cpus to every container of the node, those of the shared pool included, in
the spec or with UpdateContainer when it reconciles; its Memory Manager gives cpuset.mems to Guaranteed
containers, in the spec only. Nothing here changes a pin: see `bayplan.engines.kubelet.engine`.
"""

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.model.decision import QosClass, QosSource, Request
from bayplan.model.ledger import Entry, Ledger
from bayplan.model.pod_as_a_whole import held_cpus
from bayplan.placement.adjustment import cpus_for
from bayplan.quantity import counted
from bayplan.sets import CpuSet

TAKEN_OVER: Final = "taken-over"
"""Code of the reason why a container is where kubelet's managers, or another driver, have put it."""


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
    """The managers of kubelet that a container's pins come from; none if something else set them.

    Only pods in kubelet's cgroup tree are kubelet's. There the CPU Manager gives as many CPUs as a container
    has to itself, or the shared pool. The Memory Manager leaves alone what is not Guaranteed, so that nodes
    of such a container were set by another plugin.
    """
    guaranteed = request.qos is QosClass.GUARANTEED
    if request.qos_source is not QosSource.CGROUP_PARENT or (
        request.pinned_mems is not None and not guaranteed
    ):
        return ()
    found = []
    if request.pinned_cpus is not None and request.exclusive_cpus in (0, len(request.pinned_cpus)):
        found.append(PinningManager.CPU)
    if request.pinned_mems is not None:
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


def sharing(ledger: Ledger, is_shared: Callable[[CpuSet], bool]) -> Iterator[Entry]:
    """The entries of kubelet's containers that are pinned to CPUs which *is_shared* knows as those of
    everybody; they are on our shared CPUs from now on."""
    for entry in ledger.entries.values():
        request = entry.decision.request
        kubelets = request.qos_source is QosSource.CGROUP_PARENT and not request.opted_out
        cpus = request.pinned_cpus
        if kubelets and cpus is not None and is_shared(cpus) and not entry.decision.placement.own_cpus:
            request = replace(request, pinned_cpus=None, pinned_by_update=False)
            decision = replace(entry.decision, request=request)
            yield replace(entry, decision=decision, notified_cpus=cpus)


class CpuHolder(Struct, frozen=True):
    """A container whose cpuset has some of the exclusive CPUs, and which of these."""

    container_id: str
    pod_id: str
    name: str
    cpus: CpuSet


class CpuHolders:
    """Which containers' cpusets have which exclusive CPUs: all that is said about it anywhere comes from
    here.

    A container has what was decided for it, or what somebody else chose; where the kernel was found to have
    something else, it has that. A container that is to be left alone may have all CPUs, as long as the kernel
    was not asked. A pod counts as one where it has exclusive CPUs as a whole.
    """

    def __init__(self, ledger: Ledger, shared: CpuSet, kernel_cpus: Mapping[str, CpuSet]) -> None:
        """*shared* are the CPUs of the containers that have none of their own; *kernel_cpus* is what the
        kernel was found to have otherwise, by container id."""
        self._holders: list[CpuHolder] = []
        by_pod: dict[str, CpuSet] = {}
        for pod_id, last in ledger.retained.items():
            by_pod[pod_id] = held_cpus(last.decision.placement)
        exclusive = ledger.own_cpus
        for key, entry in ledger.entries.items() if exclusive else ():
            request, own = entry.decision.request, entry.decision.placement.exclusive_cpus
            given = kernel_cpus.get(key, request.pinned_cpus)
            if given is None:
                given = exclusive if request.opted_out else cpus_for(entry.decision, shared) or CpuSet()
            # What was given to it stays its own, also where the kernel does not have it.
            there = (given | own) & exclusive
            if (claimed := entry.decision.placement.claimed_cpus) is not None:
                there -= claimed
            if there:
                self._holders.append(CpuHolder(key, request.pod_id, request.name, there))
                by_pod[request.pod_id] = by_pod.get(request.pod_id, CpuSet()) | there
        once = CpuSet()
        self.contested = CpuSet()
        """The exclusive CPUs that cpusets of more than one pod have."""
        for cpus in by_pod.values():
            self.contested |= once & cpus
            once |= cpus
        self.alone = exclusive - self.contested
        """The exclusive CPUs that no other pod's cpuset has."""

    def others(self, entry: Entry) -> list[str]:
        """The names of the other containers whose cpusets have some of the exclusive CPUs of *entry*."""
        own = entry.decision.placement.exclusive_cpus
        return sorted(
            {
                one.name
                for one in self._holders
                if one.container_id != entry.container_id and not one.cpus.isdisjoint(own)
            }
        )

"""Which pod to evict when memory, a disk or process ids run short: kubelet's order, without the pods that
must stay. Pure.

The order is `bayplan.kubelet.eviction_manager`. These pods are left out before it: those within what they
request, opted out, static or critical; those of which request or priority is not known for certain, unless
they are BestEffort; and, for the memory of one node, those that hold next to nothing there.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from bayplan.kubelet.eviction_manager import EPHEMERAL_STORAGE, INODES, PodUsage, eviction_order
from bayplan.kubelet.pod import ContainerSpec, FeatureGates, PodLevelResources, PodSpec, pod_requests
from bayplan.model.decision import QosClass, Request
from bayplan.model.kubelet_requests import (
    ContainerFacts,
    ContainerKind,
    ContainerResources,
    PodFacts,
    promised_bytes,
    requested_bytes,
)
from bayplan.model.ledger import Entry
from bayplan.model.machine import MEMORY
from bayplan.model.qos import qos_from_cgroup_parent
from bayplan.model.workload import Container, Pod
from bayplan.quantity import MIB

CRITICAL_PRIORITY: Final = 2_000_000_000
"""kubelet's SystemCriticalPriority: pods with it, or above it, are never evicted."""

SYSTEM_NAMESPACE: Final = "kube-system"
"""Its pods are mostly of a system priority, which a runtime is not told."""

HELPFUL_BYTES: Final = 16 * MIB
"""A pod that holds less on a node than this, and less than what lacks there, is not evicted for the node's
sake."""

_SOURCE: Final = "kubernetes.io/config.source"
_FROM_API: Final = "api"
"""Pods from elsewhere are static: kubelet starts them again at once."""
_BEST_EFFORT_SCORES: Final = (None, 0, 1000)
"""kubelet gives a BestEffort container 1000, and a lower score only if the pod is critical for the node."""


class RunningContainer(Struct, frozen=True):
    """A container as ledger and runtime have it, with what it uses of the resource that runs short (of memory
    the working set; None if it is not known) and what it holds on each node that cannot be reclaimed."""

    entry: Entry
    container: Container
    used: int | None
    held_bytes: Mapping[int, int] = {}


class PodMemory(Struct, frozen=True):
    """What the cgroup of a pod is charged for: what its containers use, and what ended ones left in a volume
    in memory, which is charged to none of those that run. Working set, and by node what is unreclaimable."""

    used_bytes: int
    held_bytes: Mapping[int, int] = {}


class EvictablePod(Struct, frozen=True):
    """A pod that may be evicted, with the numbers that its place in the order depends on."""

    pod: Pod
    spec: PodSpec
    qos: QosClass
    containers: tuple[RunningContainer, ...]
    resource: str
    used: int
    request: int
    priority: int
    memory: PodMemory | None = None

    @property
    def name(self) -> str:
        """The pod's name for people."""
        return f"{self.pod.namespace}/{self.pod.name}"

    @property
    def usage(self) -> PodUsage:
        """What its place in the order depends on."""
        of_disk = pod_requests(self.spec, FeatureGates()).get(EPHEMERAL_STORAGE, 0)
        deducted = of_disk if self.resource == INODES else None
        return PodUsage(f"{self.name} {self.pod.id}", self.used, self.request, self.priority, deducted)

    def held_bytes(self, node: int) -> int:
        """What its end gives back on *node* at least."""
        of_pod = 0 if self.memory is None else self.memory.held_bytes.get(node, 0)
        return max(of_pod, sum(one.held_bytes.get(node, 0) for one in self.containers))


def evictable(
    pod: Pod,
    containers: Sequence[RunningContainer],
    facts: PodFacts | None,
    resource: str = MEMORY,
    memory: PodMemory | None = None,
    claimed_bytes: int = 0,
) -> EvictablePod | str:
    """*pod* with its running *containers*, or why it is not evicted because *resource* runs short. *facts* is
    what kubelet says of it, *memory* what its own cgroup is charged for, by which kubelet ranks pods; of
    memory its resource claims hold *claimed_bytes*."""
    requests = [one.entry.decision.request for one in containers]
    amounts = [one.used for one in containers]
    if any(request.opted_out for request in requests):
        return "it opted out"
    if pod.annotations.get(_SOURCE, _FROM_API) != _FROM_API:
        return "it is a static pod"
    known = facts if facts is not None and _is_proved(facts, containers) else None
    if known is None and (obstacle := _obstacle_to_unknown(pod, containers)):
        return obstacle
    if known is not None and (known.priority or 0) >= CRITICAL_PRIORITY:
        return "it is critical"
    if None in amounts and memory is None:
        return "it is not known what it uses"
    spec = _spec(pod, containers, known)
    request = pod_requests(spec, FeatureGates()).get(resource, 0)
    if resource == MEMORY and known is not None:
        # What is said of the pod as a whole no spec shows: it cannot make less of what its containers prove.
        request = max(request, sum(_proved_bytes(one, requests) for one in requests))
    if resource == MEMORY and claimed_bytes:
        # A claim is promised like a request, beside what its containers are promised themselves.
        request = max(request, claimed_bytes + sum(one.entry.decision.own_bytes for one in containers))
    used = sum(amount for amount in amounts if amount is not None)
    if memory is not None:
        used = max(used, memory.used_bytes)
    if used <= request:
        return "it uses no more than it requests"
    qos, priority = (QosClass.BEST_EFFORT, 0) if known is None else (known.qos, known.priority or 0)
    return EvictablePod(pod, spec, qos, tuple(containers), resource, used, request, priority, memory)


def _obstacle_to_unknown(pod: Pod, containers: Iterable[RunningContainer]) -> str:
    """Why a pod of which kubelet says nothing is not evicted; empty if it may be."""
    if any(one.entry.decision.request.qos is not QosClass.BEST_EFFORT for one in containers):
        return "nobody said for certain what it requests, and with which priority"
    if any(one.container.oom_score_adj not in _BEST_EFFORT_SCORES for one in containers):
        return "by its oom_score_adj it is critical"
    if pod.namespace == SYSTEM_NAMESPACE and qos_from_cgroup_parent(pod.cgroup_parent) is not None:
        return f"nobody said its priority, and pods of {SYSTEM_NAMESPACE} are mostly critical"
    return ""


def candidates(
    running: Iterable[RunningContainer],
    pods: Mapping[str, Pod],
    facts: Callable[[str], PodFacts | None],
    resource: str = MEMORY,
    memory: Mapping[str, PodMemory] = {},
    claimed_bytes: Mapping[str, int] = {},
) -> tuple[list[EvictablePod], list[str]]:
    """Those of *pods* (by id) that may be evicted for *resource*, and why each other one with *running*
    containers is not. *facts* is what kubelet says of the pod with a uid, *memory* what cgroups of pods are
    charged for, as far as that is known; *claimed_bytes* is what resource claims hold, by the pod's uid."""
    by_pod: dict[str, list[RunningContainer]] = {}
    for one in running:
        if one.container.pod_id in pods:
            by_pod.setdefault(one.container.pod_id, []).append(one)
    found, kept = [], []
    for pod_id, containers in by_pod.items():
        pod = pods[pod_id]
        of_claims = claimed_bytes.get(pod.uid, 0)
        outcome = evictable(pod, containers, facts(pod.uid), resource, memory.get(pod_id), of_claims)
        if isinstance(outcome, str):
            kept.append(f"{pod.namespace}/{pod.name}: {outcome}")
        else:
            found.append(outcome)
    return found, kept


def victim(
    pods: Iterable[EvictablePod], node: int | None = None, lacking_bytes: int = 0
) -> EvictablePod | None:
    """Which of *pods*, all for one resource, is evicted first; None if none is. Of the memory of *node*
    (None: of the machine) *lacking_bytes* lack."""
    least_bytes = min(lacking_bytes, HELPFUL_BYTES)
    helpful = [one for one in pods if node is None or one.held_bytes(node) >= least_bytes]
    by_name = {one.usage.name: one for one in helpful}
    order = eviction_order((one.usage for one in helpful), helpful[0].resource) if helpful else ()
    return by_name[order[0].name] if order else None


def _is_proved(facts: PodFacts, containers: Collection[RunningContainer]) -> bool:
    """Whether the ledger has each container's request as kubelet says it is. It has not where the spec
    disproves it, and then the priority that kubelet says does not count either."""
    for one in containers:
        request, known = one.entry.decision.request, facts.container(one.container.name)
        if known is None or facts.qos is not request.qos or not request.memory.exact:
            return False
        said = [each for each in (known.allocated, known.desired) if each is not None]
        amounts = {requested_bytes(each) for each in said}
        amounts |= {promised_bytes(facts, known, each) for each in said}
        if request.memory.high_bytes not in amounts:
            return False
    return True


def _proved_bytes(request: Request, of_pod: Collection[Request]) -> int:
    """What *request* is at least, by its spec and those of the others *of_pod*."""
    if not request.memory_waits_for_proof or any(
        other.score == request.score and not other.memory_waits_for_proof for other in of_pod
    ):
        return request.memory.high_bytes
    return request.shown_memory.likely_low_bytes


def _spec(pod: Pod, containers: Iterable[RunningContainer], facts: PodFacts | None) -> PodSpec:
    """The pod as kubelet's rules know it; without *facts* one that requests nothing."""
    if facts is None:
        plain = tuple(ContainerSpec(one.container.name) for one in containers)
        return PodSpec(pod.uid, plain, name=pod.name, namespace=pod.namespace)
    main = [one for one in facts.containers if one.kind is ContainerKind.MAIN]
    init = [one for one in facts.containers if one.kind is not ContainerKind.MAIN]
    level = facts.pod_level
    return PodSpec(
        pod.uid,
        tuple(map(_container_spec, main)),
        tuple(map(_container_spec, init)),
        None if level is None else PodLevelResources(_requests(level)),
        priority=facts.priority,
        name=pod.name,
        namespace=pod.namespace,
    )


def _container_spec(one: ContainerFacts) -> ContainerSpec:
    return ContainerSpec(one.name, _requests(one.allocated), restartable=one.kind is ContainerKind.SIDECAR)


def _requests(resources: ContainerResources) -> dict[str, int]:
    of_disk = resources.requests.ephemeral_storage_bytes
    return {MEMORY: requested_bytes(resources), EPHEMERAL_STORAGE: of_disk or 0}

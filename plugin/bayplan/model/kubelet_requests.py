"""What kubelet says of a pod that a container runtime never learns (requests, sidecars, priority), and what a
container requests by it, as far as its spec allows that: `with_kubelet_request`.

kubelet knows the requests; the agent that passes them on may be late, wrong, or somebody else. So the spec
bounds what it may say, whatever it says and whenever. Of a Guaranteed container the spec says everything, and
nothing else of any container is ever taken but its memory request: no class, limit, CPU or node. That lies
between what the spec proves and what it allows:

* The oom_score_adj proves a request to a thousandth of the machine; memory.low, memory.min and an annotation
  prove it to the byte. Nothing below that is promised.
* A sidecar is scored by the smallest of its pod's other containers, and may request less than its own score
  stands for. That it is one counts once another container of the pod has the same score
  (`bayplan.model.qos`); until then what the score stands for is promised.
* A pod with requests as a whole shares out what its containers do not request; that share is part of the
  score, and of what is promised. So its containers together are promised what the pod requests.
* kubelet tells no runtime of another memory request alone. So a resize counts up to the limit, where there is
  none up to the machine, and not below what the spec proves.

What is taken depends on the facts, the spec and nothing else: neither on their order nor on what was said
before. Pure.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from bayplan.model.decision import Interval, QosClass, QosSource, Request
from bayplan.model.qos import request_from_oom_score_adj, shares_from_milli
from bayplan.model.request import BY_ANNOTATION, NO_SIGNAL, up_to
from bayplan.model.resources import MEMORY_LOW, MEMORY_MIN
from bayplan.quantity import format_bytes

MAX_CONTAINERS: Final = 512
"""In one pod. etcd limits a pod to 1.5 MiB; kubelet starts pods of some dozens."""


MAX_PAGE_SIZES: Final = 16
"""No architecture has more sizes of huge pages than five."""

Name = Annotated[str, Meta(min_length=1, max_length=253)]
"""Of a pod, a namespace, a class, or a uid, as long as Kubernetes allows."""

Amount = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""Kubernetes' own range."""


class ContainerKind(enum.Enum):
    """Init containers run one after the other before the others; a sidecar is an init container that
    restarts always and stays."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


class Amounts(Struct, frozen=True):
    """Requests, or limits. None where the pod names none. ``hugepages_bytes``: by resource, as in
    ``hugepages-2Mi``."""

    cpu_milli: Amount | None = None
    memory_bytes: Amount | None = None
    hugepages_bytes: Annotated[Mapping[Name, Amount], Meta(max_length=MAX_PAGE_SIZES)] = field(
        default_factory=dict
    )
    ephemeral_storage_bytes: Amount | None = None


class ContainerResources(Struct, frozen=True):
    """The requests and limits of a container or of a pod as a whole."""

    requests: Amounts = Amounts()
    limits: Amounts = Amounts()


class ContainerFacts(Struct, frozen=True):
    """One container of a pod. ``allocated`` is what kubelet has admitted; ``desired`` is what the pod's
    specification asks for since, while a resize is under way, else None."""

    name: Name
    kind: ContainerKind
    allocated: ContainerResources = ContainerResources()
    desired: ContainerResources | None = None


class PodFacts(Struct, frozen=True):
    """One pod. ``uid`` is the one of the pod sandbox in the runtime.

    ``pod_level`` are the resources of the pod as a whole (``spec.resources``), None where it has none.
    ``resized``: its specification was changed since it was created, so that running containers may request
    something else than they did at their creation.
    """

    uid: Name
    namespace: Name
    name: Name
    qos: QosClass
    containers: Annotated[tuple[ContainerFacts, ...], Meta(max_length=MAX_CONTAINERS)]
    priority: Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)] | None = None
    pod_level: ContainerResources | None = None
    resized: bool = False

    def container(self, name: str) -> ContainerFacts | None:
        """The container of that name; None if the pod has none."""
        return next((one for one in self.containers if one.name == name), None)


BY_KUBELET: Final = "kubelet"
"""The source of a request that kubelet has from the pod's specification."""

_ROUNDED_SHARES: Final = 1
"""From shares to thousandths of a CPU and back one of them can get lost."""


class Contradiction(Struct, frozen=True):
    """Why what kubelet is said to know of a container does not count: ``problem`` is a sentence."""

    problem: str


def with_kubelet_request(
    request: Request, pod: PodFacts, name: str, capacity_bytes: int, *, running: bool = False
) -> Request | Contradiction:
    """*request*, which the spec of the container *name* shows, with the memory request that *pod* has for it.

    *capacity_bytes* is the machine's memory. *running*: it was created before, so that it can have been
    resized since. While a resize is under way a container has what was allocated or what is desired.
    """
    container = pod.container(name)
    if container is None:
        return Contradiction(f"the pod has no container {name!r}")
    if request.qos_source is QosSource.INFERRED:
        return Contradiction("nothing in its spec says that it is kubelet's")
    if pod.qos is not request.qos:
        return Contradiction(f"the pod is {pod.qos.value}, the container {request.qos.value}")
    allowed = _Allowed.by(request, capacity_bytes, resized=running and pod.resized)
    problems = []
    for resources in (container.allocated, container.desired):
        if resources is None:
            continue
        problem = next(_problems(request, pod, container, resources, allowed), None)
        if problem is None:
            return _with(request, _claimed_bytes(pod, container, resources, allowed), allowed)
        problems.append(problem)
    return Contradiction("; nor the desired amounts: ".join(problems))


def requested_bytes(resources: ContainerResources) -> int:
    """The memory request. The API server takes a missing one from the limit."""
    requested, limit = resources.requests.memory_bytes, resources.limits.memory_bytes
    return requested if requested is not None else limit or 0


def promised_bytes(pod: PodFacts, container: ContainerFacts, resources: ContainerResources) -> int:
    """What *container* with these *resources* is to be promised: its request, and an equal share of what
    *pod* requests as a whole beyond its containers."""
    return max(0, requested_bytes(resources) + _share_of_rest_bytes(pod, container, resources))


class _Allowed(Struct, frozen=True):
    """What the spec allows the memory request to be. ``shown`` is what it shows by itself; what is less than
    ``least_bytes`` is disproved, unless the container is a sidecar."""

    shown: Interval
    least_bytes: int
    most_bytes: int
    resized: bool

    @classmethod
    def by(cls, request: Request, capacity_bytes: int, *, resized: bool) -> "_Allowed":
        """What *request* allows. The score of a container that was resized says nothing of its request of
        now, but that it was promised that much."""
        ceiling_bytes = min(request.memory_limit_bytes or capacity_bytes, capacity_bytes)
        by_score = (
            None if request.score is None else request_from_oom_score_adj(request.score, capacity_bytes)
        )
        by_score = by_score and up_to(by_score, ceiling_bytes)
        shown = request.shown_memory
        if shown.source == BY_KUBELET:  # recorded by a version that did not keep what the spec shows
            shown = by_score or Interval(0, ceiling_bytes, NO_SIGNAL)
        most_bytes = min(shown.high_bytes, capacity_bytes)
        if resized:
            most_bytes = ceiling_bytes
        elif shown.source == BY_ANNOTATION:
            # The author is the nearest to it that the spec allows; kubelet's word goes before that.
            most_bytes = ceiling_bytes if by_score is None else by_score.high_bytes
        return cls(shown, shown.likely_low_bytes, max(most_bytes, shown.likely_low_bytes), resized)


def _claimed_bytes(
    pod: PodFacts, container: ContainerFacts, resources: ContainerResources, allowed: _Allowed
) -> int:
    """MemoryQoS protects what the container requests itself, and leaves the rest of the pod to its cgroup."""
    own = allowed.shown.source in (MEMORY_LOW, MEMORY_MIN)
    return requested_bytes(resources) if own else promised_bytes(pod, container, resources)


def _with(request: Request, memory_bytes: int, allowed: _Allowed) -> Request:
    shown = allowed.shown
    if request.qos is QosClass.GUARANTEED:
        return request
    if shown.low_bytes == shown.high_bytes == memory_bytes:
        return replace(request, memory=shown, spec_memory=None)
    return replace(request, memory=Interval(memory_bytes, memory_bytes, BY_KUBELET), spec_memory=shown)


def _problems(
    request: Request,
    pod: PodFacts,
    container: ContainerFacts,
    resources: ContainerResources,
    allowed: _Allowed,
) -> Iterator[str]:
    """Everything that speaks against *resources* being what the container of *request* has."""
    limit_bytes, ceiling_bytes = resources.limits.memory_bytes, request.memory_limit_bytes
    if limit_bytes is not None and limit_bytes != ceiling_bytes:
        found = "none" if ceiling_bytes is None else format_bytes(ceiling_bytes)
        yield f"a memory limit of {format_bytes(limit_bytes)}, its spec has {found}"
    yield from _cpu_problems(request, pod, resources)
    if request.qos is QosClass.GUARANTEED:
        yield from _guaranteed_problems(request, pod, resources)
    else:
        yield from _memory_problems(request, pod, container, resources, allowed)


def _guaranteed_problems(request: Request, pod: PodFacts, resources: ContainerResources) -> Iterator[str]:
    """In a pod with resources as a whole a container need not request its limit, or anything. Nothing is
    taken of that: whether the pod is one its spec says."""
    said_bytes = resources.requests.memory_bytes
    stated = pod.pod_level is None or (said_bytes is not None and not request.pod_level)
    memory_bytes = requested_bytes(resources)
    if stated and memory_bytes != request.memory_limit_bytes:
        yield f"a request of {format_bytes(memory_bytes)} of a Guaranteed container is not its limit"


def _cpu_problems(request: Request, pod: PodFacts, resources: ContainerResources) -> Iterator[str]:
    """Shares are made of the request, and where a pod with resources as a whole gives its container none, of
    a limit that can be the pod's. Where a Guaranteed container shows that its pod is one, its CPUs are known
    from its limit."""
    if request.pod_level or (pod.pod_level is not None and resources.requests.cpu_milli is None):
        return
    claimed, shown = (shares_from_milli(milli) for milli in (_requested_milli(resources), request.cpu_milli))
    if abs(claimed - shown) > _ROUNDED_SHARES:
        asked = f"{_requested_milli(resources)}m CPU"
        yield f"a request of {asked} stands for {claimed} CPU shares, its spec has {shown}"


def _requested_milli(resources: ContainerResources) -> int:
    requested, limit = resources.requests.cpu_milli, resources.limits.cpu_milli
    return requested if requested is not None else limit or 0


def _memory_problems(
    request: Request,
    pod: PodFacts,
    container: ContainerFacts,
    resources: ContainerResources,
    allowed: _Allowed,
) -> Iterator[str]:
    memory_bytes = _claimed_bytes(pod, container, resources, allowed)
    asked = f"a request of {format_bytes(memory_bytes)}"
    ceiling_bytes = request.memory_limit_bytes
    if ceiling_bytes is not None and memory_bytes > ceiling_bytes:
        yield f"{asked} is above its limit of {format_bytes(ceiling_bytes)}"
    least_bytes, most_bytes = allowed.least_bytes, allowed.most_bytes
    if least_bytes <= memory_bytes <= most_bytes:
        return
    if memory_bytes < least_bytes and container.kind is ContainerKind.SIDECAR and not allowed.shown.exact:
        scored_bytes = memory_bytes - requested_bytes(resources) + _smallest_main(pod)
        if allowed.resized or least_bytes <= max(memory_bytes, scored_bytes) <= most_bytes:
            return
    yield f"{asked}, {_said_by_spec(request, allowed)}"


def _said_by_spec(request: Request, allowed: _Allowed) -> str:
    """What the spec says of the memory request instead, as it stands after what kubelet is said to know."""
    low, high = format_bytes(allowed.least_bytes), format_bytes(allowed.most_bytes)
    source = allowed.shown.source
    if source in (MEMORY_LOW, MEMORY_MIN, BY_ANNOTATION):
        whose = "an annotation" if source == BY_ANNOTATION else f"its {source}"
        return f"{whose} says {format_bytes(allowed.shown.high_bytes)}"
    if request.score is None:
        return f"its spec allows {low} to {high}"
    since = ", as far as a resize can have changed that" if allowed.resized else ""
    return f"its oom_score_adj of {request.score} stands for {low} to {high}{since}"


def _smallest_main(pod: PodFacts) -> int:
    """The smallest request of the containers that are no init containers: kubelet scores no sidecar by
    less."""
    mains = (requested_bytes(one.allocated) for one in pod.containers if one.kind is ContainerKind.MAIN)
    return min(mains, default=0)


def _share_of_rest_bytes(pod: PodFacts, container: ContainerFacts, resources: ContainerResources) -> int:
    """An equal share, truncated toward zero, of what *pod* requests as a whole beyond its containers, of
    which *container* has *resources*. Source: GetContainerOOMScoreAdjust, pkg/kubelet/qos/policy.go."""
    whole_bytes = None if pod.pod_level is None else pod.pod_level.requests.memory_bytes
    if not whole_bytes:
        return 0
    amounts = [
        (one.kind, requested_bytes(resources if one is container else one.allocated))
        for one in pod.containers
    ]
    rest_bytes = whole_bytes - _at_worst_moment(amounts)
    share_bytes = abs(rest_bytes) // len(amounts)
    return share_bytes if rest_bytes >= 0 else -share_bytes


def _at_worst_moment(amounts: Iterable[tuple[ContainerKind, int]]) -> int:
    """What the containers of a pod request at most at the same time: init containers run one after the
    other, beside the sidecars before them, and end before the others come."""
    sidecars = running = peak = 0
    for kind, amount in amounts:
        if kind is ContainerKind.INIT:
            peak = max(peak, sidecars + amount)
            continue
        running += amount
        if kind is ContainerKind.SIDECAR:
            sidecars += amount
            peak = max(peak, sidecars)
    return max(running, peak)

"""What a container requests according to kubelet, compared with what its spec proves.

kubelet knows the requests; the agent that passes them on may be late, or wrong. So what it says is used only
where nothing contradicts it: the QoS class, the limit, the CPU shares and the oom_score_adj, which kubelet
made of the same requests. While a resize is under way a container has either what was allocated or what is
desired.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.model.decision import Interval, QosClass, QosSource, Request
from bayplan.model.pod_facts import Amounts, ContainerFacts, ContainerKind, ContainerResources, PodFacts
from bayplan.model.qos import (
    MEMORY_LOW,
    MEMORY_MIN,
    exclusive_cpu_count,
    request_from_oom_score_adj,
    shares_from_milli,
)
from bayplan.quantity import format_bytes

BY_KUBELET: Final = "kubelet"
"""The source of a request that kubelet has from the pod's specification."""

_ROUNDED_SHARES: Final = 1
"""From shares to thousandths of a CPU and back one of them can get lost."""


class Contradiction(Struct, frozen=True):
    """Why what is said of a container does not count: ``problem`` is a sentence."""

    problem: str


def with_kubelet_request(
    request: Request, pod: PodFacts, name: str, capacity_bytes: int, *, running: bool = False
) -> Request | Contradiction:
    """*request*, which the spec of the container *name* shows, with the numbers that *pod* has for it.

    *capacity_bytes* is the machine's memory. *running*: it was created before; after a resize its
    oom_score_adj and what else was given at its creation do not say anything about its request any more.
    """
    container = pod.container(name)
    if container is None:
        return Contradiction(f"the pod has no container {name!r}")
    if request.qos_source is QosSource.INFERRED:
        return Contradiction("nothing in its spec says that it is kubelet's")
    if pod.qos is not request.qos:
        return Contradiction(f"the pod is {pod.qos.value}, the container {request.qos.value}")
    problems = []
    for resources in (container.allocated, container.desired):
        if resources is None:
            continue
        problem = next(
            _problems(request, pod, container, resources, capacity_bytes, resized=running and pod.resized),
            None,
        )
        if problem is None:
            return _with(request, pod, resources, running=running)
        problems.append(problem)
    return Contradiction("; nor the desired amounts: ".join(problems))


def _with(request: Request, pod: PodFacts, resources: ContainerResources, *, running: bool) -> Request:
    memory_bytes, cpu_milli = requested_bytes(resources), requested_milli(resources)
    if not (request.memory.exact and request.memory.high_bytes == memory_bytes):
        request = replace(request, memory=Interval(memory_bytes, memory_bytes, BY_KUBELET))
    if running:
        # Its CPUs were settled at its creation, or by the resize.
        return request if request.exclusive_cpus else replace(request, cpu_milli=cpu_milli)
    pod_level = pod.pod_level is not None
    return replace(
        request,
        cpu_milli=cpu_milli,
        exclusive_cpus=exclusive_cpu_count(request.qos, cpu_milli, pod_level=pod_level),
        pod_level=pod_level,
    )


def requested_bytes(resources: ContainerResources) -> int:
    """The memory request. The API server takes a missing one from the limit."""
    requested, limit = resources.requests.memory_bytes, resources.limits.memory_bytes
    return requested if requested is not None else limit or 0


def requested_milli(resources: ContainerResources) -> int:
    """The CPU request, likewise."""
    requested, limit = resources.requests.cpu_milli, resources.limits.cpu_milli
    return requested if requested is not None else limit or 0


def _problems(
    request: Request,
    pod: PodFacts,
    container: ContainerFacts,
    resources: ContainerResources,
    capacity_bytes: int,
    *,
    resized: bool,
) -> Iterator[str]:
    """Everything that speaks against *resources* being what the container of *request* has."""
    memory_bytes, limit_bytes = requested_bytes(resources), resources.limits.memory_bytes
    ceiling_bytes = request.memory_limit_bytes
    if limit_bytes is not None and limit_bytes != ceiling_bytes:
        found = "none" if ceiling_bytes is None else format_bytes(ceiling_bytes)
        yield f"a memory limit of {format_bytes(limit_bytes)}, its spec has {found}"
    if ceiling_bytes is not None and memory_bytes > ceiling_bytes:
        yield f"a request of {format_bytes(memory_bytes)} is above its limit of {format_bytes(ceiling_bytes)}"
    if memory_bytes > capacity_bytes:
        yield f"a request of {format_bytes(memory_bytes)} is more than the machine has"
    if request.qos is QosClass.GUARANTEED and pod.pod_level is None and memory_bytes != ceiling_bytes:
        yield f"a request of {format_bytes(memory_bytes)} of a Guaranteed container is not its limit"
    yield from _cpu_problems(request, pod, resources)
    if not resized:
        yield from _memory_problems(request, pod, container, memory_bytes, capacity_bytes)


def _cpu_problems(request: Request, pod: PodFacts, resources: ContainerResources) -> Iterator[str]:
    """Shares are made of the request, and where a pod with resources as a whole gives its container none, of
    a limit that can be the pod's."""
    if pod.pod_level is not None and resources.requests.cpu_milli is None:
        return
    claimed, shown = (shares_from_milli(milli) for milli in (requested_milli(resources), request.cpu_milli))
    if abs(claimed - shown) > _ROUNDED_SHARES:
        asked = f"{requested_milli(resources)}m CPU"
        yield f"a request of {asked} stands for {claimed} CPU shares, its spec has {shown}"


def _memory_problems(
    request: Request, pod: PodFacts, container: ContainerFacts, memory_bytes: int, capacity_bytes: int
) -> Iterator[str]:
    """What was made of the memory request at the creation: an oom_score_adj, and perhaps a protection."""
    shown = request.memory
    if shown.source in (MEMORY_LOW, MEMORY_MIN) and memory_bytes != shown.high_bytes:
        protected = f"its {shown.source} is {format_bytes(shown.high_bytes)}"
        yield f"a request of {format_bytes(memory_bytes)}, {protected}"
    scored = None if request.score is None else request_from_oom_score_adj(request.score, capacity_bytes)
    if scored is None:
        return
    counted_bytes = memory_bytes
    if container.kind is ContainerKind.SIDECAR:
        mains = [requested_bytes(one.allocated) for one in pod.containers if one.kind is ContainerKind.MAIN]
        counted_bytes = max(memory_bytes, min(mains, default=0))
    # A pod with requests as a whole gives each container a share of what is left of those, beside its own.
    least_bytes = scored.likely_low_bytes if not _requests_as_a_whole(pod) else 0
    if not least_bytes <= counted_bytes <= scored.high_bytes:
        low, high = format_bytes(least_bytes), format_bytes(scored.high_bytes)
        yield (
            f"a request of {format_bytes(memory_bytes)}, "
            f"its oom_score_adj of {request.score} stands for {low} to {high}"
        )


def _requests_as_a_whole(pod: PodFacts) -> bool:
    return pod.pod_level is not None and pod.pod_level.requests != Amounts()

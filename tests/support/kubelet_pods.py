"""Pods as kubelet describes them, and the containers that it asks a runtime for: its own formulas, forwards.

Source: pkg/kubelet/qos/policy.go and kuberuntime_container_linux.go of Kubernetes 1.36.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from bayplan.model.decision import QosClass
from bayplan.model.kubelet_requests import (
    Amounts,
    ContainerFacts,
    ContainerKind,
    ContainerResources,
    PodFacts,
)
from bayplan.model.qos import oom_score_adj, shares_from_milli
from bayplan.model.resources import Resources
from bayplan.model.workload import Container, Pod
from support.machines import PERIOD_US, pod


def facts(
    name: str,
    request_bytes: int | None = None,
    limit_bytes: int | None = None,
    *,
    milli: int | None = 100,
    kind: ContainerKind = ContainerKind.MAIN,
    desired: ContainerResources | None = None,
) -> ContainerFacts:
    """A container with these requests and this memory limit."""
    return ContainerFacts(f"{name}-name", kind, amounts(request_bytes, limit_bytes, milli), desired)


def amounts(
    request_bytes: int | None, limit_bytes: int | None = None, milli: int | None = 100
) -> ContainerResources:
    """Requests of memory and CPU, and a limit of memory."""
    return ContainerResources(Amounts(milli, request_bytes), Amounts(None, limit_bytes))


def kubelet_pod(
    *containers: ContainerFacts,
    name: str = "web",
    qos: QosClass = QosClass.BURSTABLE,
    pod_level: ContainerResources | None = None,
    resized: bool = False,
) -> PodFacts:
    """The pod of `support.machines.pod` with that name."""
    return PodFacts(name, "default", name, qos, tuple(containers), pod_level=pod_level, resized=resized)


def sandbox(described: PodFacts) -> Pod:
    """The pod as the runtime has it."""
    return replace(pod(described.name, described.qos), uid=described.uid)


def asked(described: PodFacts, name: str, capacity_bytes: int) -> Container:
    """The container *name* of the pod, in which it may be called *name*-name, as kubelet asks for it on a
    machine with *capacity_bytes*."""
    one = next(each for each in described.containers if each.name in (name, f"{name}-name"))
    requests, limits = one.allocated.requests, one.allocated.limits
    limit_bytes = limits.memory_bytes
    if limit_bytes is None and described.pod_level is not None:
        limit_bytes = described.pod_level.limits.memory_bytes
    spec = Resources(
        memory_limit_bytes=limit_bytes,
        cpu_shares=shares_from_milli(requests.cpu_milli or 0),
        cpu_quota_us=None if limits.cpu_milli is None else limits.cpu_milli * PERIOD_US // 1000,
        cpu_period_us=PERIOD_US,
    )
    score = oom_score_adj(described.qos, _scored_bytes(described, one), capacity_bytes)
    return Container(name, sandbox(described).id, one.name, resources=spec, oom_score_adj=score)


def _scored_bytes(described: PodFacts, one: ContainerFacts) -> int:
    own_bytes, extra_bytes = _memory(one), 0
    pod_level = described.pod_level
    if pod_level is not None and pod_level.requests.memory_bytes is not None:
        left_bytes = pod_level.requests.memory_bytes - sum(map(_memory, described.containers))
        extra_bytes = left_bytes // len(described.containers)
    if one.kind is ContainerKind.SIDECAR:
        own_bytes = max(own_bytes, min(_memory(each) for each in _mains(described.containers)))
    return own_bytes + extra_bytes


def _mains(containers: Sequence[ContainerFacts]) -> list[ContainerFacts]:
    return [one for one in containers if one.kind is ContainerKind.MAIN]


def _memory(one: ContainerFacts) -> int:
    return one.allocated.requests.memory_bytes or 0

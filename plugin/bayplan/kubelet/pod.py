"""A pod as kubelet knows it: the API object's requests and limits, not what a container runtime shows; and
their sums.

Values only. Amounts are integers by resource name: ``cpu`` in thousandths of a CPU, everything else in
bytes (or pieces). A name that is present with 0 is not the same as an absent one; kubelet's rules
distinguish them.

Sums go by kubelet's rules for init containers, sidecars and pod-level values. Three different ones are in
use: the one for cgroups and scores (`pod_requests`, `pod_limits`), the one the managers place
(`bayplan.engines.kubelet.memory_manager`), and the plain one of the QoS class. Nothing here knows nodes
or cgroups.
"""

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct, field

from bayplan.errors import ParseError
from bayplan.model.claims import sum_of
from bayplan.model.decision import QosClass
from bayplan.model.kubelet_version import NEWEST, KubeletRules
from bayplan.model.machine import MEMORY
from bayplan.quantity import MILLI_PER_CPU, parse_bytes

CPU: Final = "cpu"
"""Resource name of CPU time; its amounts are thousandths of a CPU."""

Amounts = Mapping[str, int]
"""Amounts by resource name, as in requests and limits."""


class FeatureGates(Struct, frozen=True):
    """kubelet's feature gates that change an answer, with their defaults, and the rules of its version.

    ``pod_level_resources``: ``spec.resources`` of a pod counts (on since 1.34).
    ``pod_level_resource_managers``: the managers place such pods as a whole (off in all versions); without it
    they leave them alone. ``no_quota_for_exclusive_cpus``: containers with exclusive CPUs get no CFS quota.
    """

    pod_level_resources: bool = True
    pod_level_resource_managers: bool = False
    no_quota_for_exclusive_cpus: bool = True
    rules: KubeletRules = NEWEST

    @property
    def manages_pod_level(self) -> bool:
        """Whether the managers place pods with pod-level resources at all."""
        return self.pod_level_resources and self.pod_level_resource_managers


class ContainerSpec(Struct, frozen=True):
    """A container of a pod. ``restartable`` marks an init container whose restart policy is Always, which
    makes it a sidecar; it means nothing on other containers."""

    name: str
    requests: Amounts = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)
    restartable: bool = False


class PodLevelResources(Struct, frozen=True):
    """``spec.resources`` of a pod: requests and limits for the pod as a whole."""

    requests: Amounts = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)


class PodSpec(Struct, frozen=True):
    """A pod. ``qos`` is ``status.qosClass``, which wins over the computed class where it is set."""

    uid: str
    containers: tuple[ContainerSpec, ...]
    init_containers: tuple[ContainerSpec, ...] = ()
    resources: PodLevelResources | None = None
    overhead: Amounts = field(default_factory=dict)
    priority: int | None = None
    priority_class_name: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    qos: QosClass | None = None
    name: str = ""
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_containers(self) -> tuple[ContainerSpec, ...]:
        """Init containers, then the others: the order in which kubelet admits them."""
        return self.init_containers + self.containers

    def is_regular_init(self, name: str) -> bool:
        """Whether *name* is an init container that ends before the pod's containers start."""
        found = next((init for init in self.init_containers if init.name == name), None)
        return found is not None and not found.restartable


HUGEPAGES_PREFIX: Final = "hugepages-"


def is_hugepages(resource: str) -> bool:
    """Whether *resource* names huge pages, by its prefix alone, as Kubernetes does."""
    return resource.startswith(HUGEPAGES_PREFIX)


def is_memory(resource: str) -> bool:
    """Whether the Memory Manager accounts *resource*: ordinary memory and huge pages."""
    return resource == MEMORY or is_hugepages(resource)


def page_size_bytes(resource: str) -> int | None:
    """The page size that a resource name ``hugepages-<quantity>`` says; None if it says none."""
    if not is_hugepages(resource):
        return None
    try:
        return parse_bytes(resource.removeprefix(HUGEPAGES_PREFIX)) or None
    except ParseError:
        return None


def has_pod_level(pod: PodSpec) -> bool:
    """Whether the pod sets cpu, memory or huge pages for itself as a whole."""
    level = pod.resources
    return level is not None and any(
        name == CPU or is_memory(name) for name in (*level.requests, *level.limits)
    )


def pod_level_requests(pod: PodSpec, gates: FeatureGates) -> Amounts:
    """The pod-level requests that count; empty if the gate is off or the pod has none."""
    if not gates.pod_level_resources or pod.resources is None:
        return {}
    return _supported(pod.resources.requests)


def pod_level_limits(pod: PodSpec, gates: FeatureGates) -> Amounts:
    """The pod-level limits that count; empty if the gate is off or the pod has none."""
    if not gates.pod_level_resources or pod.resources is None:
        return {}
    return _supported(pod.resources.limits)


def container_requests(pod: PodSpec) -> dict[str, int]:
    """What the pod's containers request together at the worst moment of its life, by resource.

    That is the larger of two sums: containers and sidecars, or one regular init container and the sidecars
    that started before it.
    """
    return _worst_moment(pod, lambda container: container.requests)


def pod_requests(pod: PodSpec, gates: FeatureGates) -> dict[str, int]:
    """What the pod requests: pod-level values instead of the containers' sum where there are any, and the
    overhead of its sandbox on top."""
    total = {**container_requests(pod), **pod_level_requests(pod, gates)}
    return _add(total, pod.overhead)


def pod_limits(pod: PodSpec, gates: FeatureGates) -> dict[str, int]:
    """What the pod is limited to, in the same way; the overhead counts where there is a limit at all."""
    total = {**_worst_moment(pod, lambda container: container.limits), **pod_level_limits(pod, gates)}
    return _add(total, {name: amount for name, amount in pod.overhead.items() if total.get(name)})


def limited_throughout(pod: PodSpec, resource: str, gates: FeatureGates) -> bool:
    """Whether kubelet takes every container of the pod for limited in *resource*.

    Before 1.37 an init container without a limit passes if a sidecar before it has one, because kubelet looks
    at the sum that it adds up while walking through the init containers.
    """
    if gates.rules.limits_by_container:
        return all(container.limits.get(resource, 0) for container in pod.all_containers)
    sidecars = 0
    for init in pod.init_containers:
        own = init.limits.get(resource, 0)
        if not own + sidecars:
            return False
        sidecars += own if init.restartable else 0
    return all(container.limits.get(resource, 0) for container in pod.containers)


def guaranteed_alone(container: ContainerSpec) -> bool:
    """Whether the container by itself has equal, non-zero requests and limits of cpu and memory. In a pod
    with pod-level resources only such containers get anything of their own from the managers."""
    return all(
        container.requests.get(name, 0) > 0 and container.requests[name] == container.limits.get(name, 0)
        for name in (CPU, MEMORY)
    )


def most_exclusive_cpus(pod: PodSpec) -> int:
    """How many CPUs the containers of a Guaranteed pod have to themselves at most at the same time: all of
    those that ask for a whole number."""

    def whole(container: ContainerSpec) -> Amounts:
        milli = container.requests.get(CPU, 0)
        return {} if milli % MILLI_PER_CPU else {CPU: milli}

    return _worst_moment(pod, whole).get(CPU, 0) // MILLI_PER_CPU


def _worst_moment(pod: PodSpec, amounts: Callable[[ContainerSpec], Amounts]) -> dict[str, int]:
    running = sum_of(amounts(container) for container in pod.containers)
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for init in pod.init_containers:
        if init.restartable:
            _add(running, amounts(init))
            moment = _add(sidecars, amounts(init))
        else:
            moment = sum_of((sidecars, amounts(init)))
        _raise(peak, moment)
    return _raise(running, peak)


def _supported(amounts: Amounts) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if name == CPU or is_memory(name)}


def _add(total: dict[str, int], amounts: Mapping[str, int]) -> dict[str, int]:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount
    return total


def _raise(total: dict[str, int], amounts: Mapping[str, int]) -> dict[str, int]:
    for name, amount in amounts.items():
        total[name] = max(total.get(name, amount), amount)
    return total

"""A pod as kubelet knows it: the API object's requests and limits, not what a container runtime shows.

Values only. Amounts are integers by resource name: ``cpu`` in thousandths of a CPU, everything else in bytes
(or pieces). A name that is present with 0 is not the same as an absent one; kubelet's rules distinguish them.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from bayplan.model.decision import QosClass
from bayplan.model.kubelet_version import NEWEST, KubeletRules

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

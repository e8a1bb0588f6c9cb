"""What kubelet says of a pod that a container runtime never learns: requests, sidecars, priority.

Values only. Where they come from: `bayplan.agent`; what of them counts: `bayplan.model.kubelet_requests`.
"""

import enum
from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from bayplan.model.decision import QosClass

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

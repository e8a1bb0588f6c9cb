"""What the daemon knows of running containers beside the ledger. Changed by the controller and `placements`
only."""

from collections.abc import Collection, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.model.ledger import Entry
from bayplan.model.origin import Nri
from bayplan.model.request import carried_oom_score_adj
from bayplan.model.wishes import DEFAULT_CPUS_ANNOTATION
from bayplan.model.workload import Adjustment, Container, Pod
from bayplan.sets import CpuSet


class KnownContainers(Struct):
    """The containers and their pods by id; rebuilt at each Synchronize.

    ``oom_score_adj`` maps ids to the value in force, ours or the spec's, ``defaulted`` ids to the CPUs that a
    runtime was sent by default, when there was no time for a decision. ``ids_by_pod``: a pod is known as long
    as one of its containers is.
    """

    pods: dict[str, Pod] = field(default_factory=dict)
    containers: dict[str, Container] = field(default_factory=dict)
    oom_score_adj: dict[str, int] = field(default_factory=dict)
    defaulted: dict[str, CpuSet] = field(default_factory=dict)
    ids_by_pod: dict[str, set[str]] = field(default_factory=dict)

    def add(self, pod: Pod, container: Container) -> None:
        """Remember *container*; a later description may lack what an earlier one had, never the reverse."""
        self.pods[pod.id] = pod
        self.containers[container.id] = container
        self.ids_by_pod.setdefault(container.pod_id, set()).add(container.id)
        carried = carried_oom_score_adj(container)
        if carried is not None:
            self.oom_score_adj[container.id] = carried

    def without_default_cpus(self, container: Container) -> Container:
        """*container* without CPUs that were only a default: of this process, or of an earlier one, which
        left an annotation."""
        cpus = container.resources.cpuset_cpus
        noted = _default_annotation(container, cpus).items() <= container.annotations.items()
        ours = cpus is not None and (noted or cpus == self.defaulted.get(container.id))
        return without_cpus(container) if ours else container

    def default_adjustment(self, container: Container, cpus: CpuSet) -> Adjustment:
        """The adjustment that gives *container* those *cpus* without a decision."""
        self.defaulted[container.id] = cpus
        return Adjustment(cpuset_cpus=cpus, annotations=_default_annotation(container, cpus))

    def forget(self, container_id: str) -> None:
        """Forget a container, and its pod with its last container."""
        gone = self.containers.pop(container_id, None)
        self.oom_score_adj.pop(container_id, None)
        self.defaulted.pop(container_id, None)
        if gone is None:
            return
        ids = self.ids_by_pod[gone.pod_id]
        ids.discard(container_id)
        if not ids:
            del self.ids_by_pod[gone.pod_id]
            self.pods.pop(gone.pod_id, None)

    def add_recorded(self, entries: Mapping[str, Entry], seen: Collection[str] = ()) -> None:
        """Remember those *entries* that no session lists: all that is known of them is in the ledger."""
        for container_id, entry in entries.items():
            origin = entry.origin
            if isinstance(origin, Nri) or container_id in seen:
                continue
            self.add(origin.pod, origin.container)
            applied = origin.applied.oom_score_adj
            if applied is not None:
                self.oom_score_adj[container_id] = applied


def _default_annotation(container: Container, cpus: CpuSet | None) -> dict[str, str]:
    """The annotation of a container that got *cpus* by default; it has the container's id, as that of a
    decision has."""
    return {DEFAULT_CPUS_ANNOTATION: f"{container.id} {cpus}"}


def without_cpus(container: Container) -> Container:
    """*container* as if nobody had chosen its CPUs."""
    return replace(container, resources=replace(container.resources, cpuset_cpus=None))

"""What the CPU Manager has given away: the shared CPUs, and the CPUs of each container that has its own.

An immutable value; changes return a new one. Invariant, kept by the policy: a CPU is shared or given away,
and two containers hold the same one only inside a pod whose init container left it to a later container.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.sets import CpuSet

Assignments = Mapping[str, Mapping[str, CpuSet]]
"""Pod uid -> container name -> CPUs."""


class CpuState(Struct, frozen=True):
    """``shared`` is kubelet's default CPU set. ``budgets`` holds the CPUs of pods that have a budget of their
    own, by pod uid. ``reusable`` maps a pod uid to CPUs that its finished init containers leave to its other
    containers; it is not part of what is saved, so that a restart forgets it, as in kubelet."""

    shared: CpuSet = CpuSet()
    assignments: Assignments = field(default_factory=dict)
    budgets: Mapping[str, CpuSet] = field(default_factory=dict)
    reusable: Mapping[str, CpuSet] = field(default_factory=dict)

    def of(self, pod_uid: str, container: str) -> CpuSet | None:
        """The CPUs of a container that has its own; None if it shares."""
        return self.assignments.get(pod_uid, {}).get(container)

    def effective(self, pod_uid: str, container: str) -> CpuSet:
        """The CPUs that a container may use: its own, or the shared ones."""
        own = self.of(pod_uid, container)
        return self.shared if own is None else own

    def items(self) -> Iterator[tuple[str, str, CpuSet]]:
        """Pod uid, container name and CPUs of every container that has its own, in order of the names."""
        for pod_uid, containers in sorted(self.assignments.items()):
            for container, cpus in sorted(containers.items()):
                yield pod_uid, container, cpus

    def with_assignment(self, pod_uid: str, container: str, cpus: CpuSet) -> "CpuState":
        """The same state, but *container* has *cpus*."""
        containers = {**self.assignments.get(pod_uid, {}), container: cpus}
        return replace(self, assignments={**self.assignments, pod_uid: containers})

    def without_assignment(self, pod_uid: str, container: str) -> "CpuState":
        """The same state, but *container* has nothing of its own. A pod without any is not listed."""
        assignments = dict(self.assignments)
        containers = dict(assignments.pop(pod_uid, {}))
        containers.pop(container, None)
        if containers:
            assignments[pod_uid] = containers
        return replace(self, assignments=assignments)

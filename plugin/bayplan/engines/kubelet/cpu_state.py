"""What the CPU Manager has given away: the shared CPUs, and the CPUs of each container that has its own; and
what it refuses.

An immutable value; changes return a new one. Invariant, kept by the policy: a CPU is shared or given
away, and two containers hold the same one only inside a pod whose init container left it to a later
container.

Refusals are in kubelet's own words: operators search for these texts. Each error knows the reason that
kubelet puts into the pod's status beside the text.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from msgspec import Struct, field
from msgspec.structs import replace

from bayplan.errors import BayplanError
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

    def items(self) -> Iterator[tuple[str, str, CpuSet]]:
        """Pod uid, container name and CPUs of every container that has its own, in order of the names."""
        for pod_uid, containers in sorted(self.assignments.items()):
            for container, cpus in sorted(containers.items()):
                yield pod_uid, container, cpus

    def with_assignment(self, pod_uid: str, container: str, cpus: CpuSet) -> "CpuState":
        """The same state, but *container* has *cpus*."""
        containers = {**self.assignments.get(pod_uid, {}), container: cpus}
        return replace(self, assignments={**self.assignments, pod_uid: containers})


class CpuManagerError(BayplanError):
    """The CPU Manager cannot do what was asked. ``reason`` is the word for the pod's status."""

    reason: ClassVar[str] = "UnexpectedAdmissionError"


class CpuShortageError(CpuManagerError):
    """Fewer CPUs are available than were asked for."""

    def __init__(self, requested: int, available: int) -> None:
        super().__init__(requested, available)
        self.requested = requested
        self.available = available

    def __str__(self) -> str:
        return (
            "not enough cpus available to satisfy request: "
            f"requested={self.requested}, available={self.available}"
        )


class SmtAlignmentError(CpuManagerError):
    """full-pcpus-only: the request is not a number of whole cores, or not enough whole cores are left.

    ``available_physical`` is None in the first case, else the number of CPUs in whole cores.
    """

    reason = "SMTAlignmentError"

    def __init__(self, requested: int, cpus_per_core: int, available_physical: int | None = None) -> None:
        super().__init__(requested, cpus_per_core, available_physical)
        self.requested = requested
        self.cpus_per_core = cpus_per_core
        self.available_physical = available_physical

    def __str__(self) -> str:
        if self.available_physical is None:
            return (
                f"SMT Alignment Error: requested {self.requested} cpus "
                f"not multiple cpus per core = {self.cpus_per_core}"
            )
        return (
            "SMT Alignment Error: not enough free physical CPUs: "
            f"available physical CPUs = {self.available_physical}, "
            f"requested CPUs = {self.requested}, CPUs per core = {self.cpus_per_core}"
        )


class EmptySharedPoolError(CpuManagerError):
    """A pod with its own budget leaves no CPUs for those of its containers that share the rest.

    ``init``: whether the sharing container is an init container.
    """

    reason = "EmptyPodSharedPoolError"

    def __init__(self, *, init: bool) -> None:
        super().__init__(init)
        self.init = init

    def __str__(self) -> str:
        if self.init:
            return "pod rejected, pod has shared init containers but no cpus available for them"
        return (
            "pod rejected, sum of exclusive container cpu requests equals pod budget, "
            "leaving no cpus for shared containers"
        )


class CpuStateError(CpuManagerError):
    """The state that was restored is not one that this policy on this machine could have left."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem

"""What the CPU Manager refuses, in kubelet's own words: operators search for these texts.

Each error knows the reason that kubelet puts into the pod's status beside the text.
"""

from typing import ClassVar

from bayplan.errors import BayplanError


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

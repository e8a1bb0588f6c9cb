"""What the Memory Manager refuses, in kubelet's own words: operators search for these texts.

Each error knows the reason that kubelet puts into the pod's status, and the figures that kubelet leaves out.
"""

import enum
from collections.abc import Mapping
from typing import ClassVar

from bayplan.errors import BayplanError
from bayplan.quantity import format_bytes
from bayplan.sets import NodeSet, nodes_text


class MemoryManagerError(BayplanError):
    """The Memory Manager cannot do what was asked. ``reason`` is the word for the pod's status."""

    reason: ClassVar[str] = "UnexpectedAdmissionError"


class Refusal(enum.Enum):
    """The ways in which a container, or a pod as a whole, gets no memory; the values are kubelet's texts.

    NO_NODES: no set of nodes has enough free, or all that have are barred by other containers' groups.
    NOT_PREFERRED: the Topology Manager's hint is preferred, the best set of nodes is not.
    NOT_EXTENDABLE: the hint's nodes do not have enough free, and no larger set will do.
    NOT_PREFERRED_EXTENDED: a larger set would do, but is larger than the hint promised.
    GROUP: the nodes are in use by containers which are bound to other sets of nodes.
    """

    NO_NODES = "failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
    NOT_PREFERRED = "failed to find the default preferred hint"
    NOT_EXTENDABLE = "failed to find NUMA nodes to extend the current topology hint"
    NOT_PREFERRED_EXTENDED = "failed to find the extended preferred hint"
    GROUP = "preferred hint violates NUMA node allocation"


class MemoryAllocationError(MemoryManagerError):
    """No memory for a container (or for a pod with pod-level resources, whose ``container`` is empty).

    ``requested_bytes`` is by resource; ``nodes`` is the set of nodes in question, None if there was none.
    """

    def __init__(
        self,
        pod: str,
        container: str,
        refusal: Refusal,
        requested_bytes: Mapping[str, int],
        nodes: NodeSet | None,
    ) -> None:
        super().__init__(pod, container, refusal, requested_bytes, nodes)
        self.pod = pod
        self.container = container
        self.refusal = refusal
        self.requested_bytes = requested_bytes
        self.nodes = nodes

    def __str__(self) -> str:
        return f"[memorymanager] {self.refusal.value}"

    def explanation(self) -> str:
        """The same with names and figures, for humans."""
        wanted = ", ".join(f"{format_bytes(size)} {name}" for name, size in self.requested_bytes.items())
        where = "" if self.nodes is None else f" on {nodes_text(self.nodes)}"
        who = f"{self.pod}/{self.container}" if self.container else self.pod
        return f"{who} requests {wanted or 'nothing'}{where}: {self.refusal.value}"


class EmptyPodSharedPoolError(MemoryManagerError):
    """A pod with pod-level resources leaves nothing for those of its containers that share the rest."""

    reason = "EmptyPodSharedPoolError"

    def __init__(self, pod: str, problem: str) -> None:
        super().__init__(pod, problem)
        self.pod = pod
        self.problem = problem

    def __str__(self) -> str:
        return f"pod rejected, {self.problem}"


class MemoryStateError(MemoryManagerError):
    """A recorded state cannot be this machine's: kubelet refuses to start on it."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"[memorymanager] {self.problem}"


class MemoryConfigurationError(MemoryManagerError):
    """The manager cannot be made from what the operator configured."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem

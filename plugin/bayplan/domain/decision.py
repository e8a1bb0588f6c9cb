"""A request, the decision about it, and the reasons: what logs, status, explain and refusals show.

Nothing here decides. A Decision is complete in itself: the store keeps it, the ledger is rebuilt from it.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from bayplan.sets import CpuSet, NodeSet


class QosClass(enum.Enum):
    """Kubernetes' quality-of-service classes, by their API names."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class QosSource(enum.Enum):
    """How the class is known: from kubelet's cgroup tree, from kubelet's oom_score_adj, or inferred from
    the resources asked for, because the pod is outside kubelet's tree."""

    CGROUP_PARENT = "cgroup parent"
    OOM_SCORE_ADJ = "oom_score_adj"
    INFERRED = "inferred from resources"


@dataclass(frozen=True, slots=True)
class Interval:
    """A memory request known to lie in [low_bytes, high_bytes], and the signal that says so.

    The OCI spec carries no memory request; only where low and high are equal is it exact.
    """

    low_bytes: int
    high_bytes: int
    source: str

    @property
    def exact(self) -> bool:
        """Whether the request is known to the byte."""
        return self.low_bytes == self.high_bytes


@dataclass(frozen=True, slots=True)
class PodTotals:
    """What the pod of a container asks for as a whole, its containers together. ``memory_bytes`` and
    ``hugepages_bytes`` are limits."""

    memory_bytes: int
    cpu_milli: int = 0
    hugepages_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """What one container asks for, and how we know.

    ``name`` is for humans: ``namespace/pod/container``. ``exclusive_cpus`` is the number of whole CPUs to
    give to it alone, 0 for the shared pool. ``pinned_cpus`` and ``pinned_mems`` were set in the spec by
    somebody else (kubelet's own managers, another plugin) and are respected, never changed. ``pod_totals`` is
    None where the runtime does not show the pod's sums.
    """

    container_id: str
    pod_id: str
    name: str
    qos: QosClass
    qos_source: QosSource
    memory: Interval
    memory_limit_bytes: int | None = None
    cpu_milli: int = 0
    exclusive_cpus: int = 0
    hugepages_bytes: Mapping[str, int] = field(default_factory=dict)
    pinned_cpus: CpuSet | None = None
    pinned_mems: NodeSet | None = None
    pod_totals: PodTotals | None = None


@dataclass(frozen=True, slots=True)
class Affinity:
    """The nodes on which a pod is aligned as a whole, None if any will do, and whether no better ones were
    conceivable."""

    nodes: NodeSet | None
    preferred: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a container goes.

    ``mems`` None leaves it free to use every node. ``exclusive_cpus`` empty means the shared pool.
    ``booked_bytes`` maps node id -> resource -> bytes promised there: the witness of the promise. It sums
    to the claim in each resource, unless the decision is degraded. ``affinity`` is what the later containers
    of the same pod are held to; None where containers are placed one by one.
    """

    mems: NodeSet | None = None
    exclusive_cpus: CpuSet = CpuSet()
    booked_bytes: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    affinity: Affinity | None = None


class Outcome(enum.Enum):
    """PLACED as asked; DEGRADED: placed, but not as well as asked, the reasons say why; REFUSED: not placed;
    ADOPTED: found running without a decision of ours, recorded as it is."""

    PLACED = "placed"
    DEGRADED = "degraded"
    REFUSED = "refused"
    ADOPTED = "adopted"


@dataclass(frozen=True, slots=True)
class Reason:
    """One step of the argument. ``code`` is stable, for machines and metrics; ``text`` is for humans."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a request, with its reasons. A refusal has an empty placement; ``refused_as`` is the word
    that kubelet has for it in a pod's status, empty for the usual one."""

    request: Request
    outcome: Outcome
    placement: Placement = Placement()
    reasons: tuple[Reason, ...] = ()
    refused_as: str = ""

    def explanation(self) -> str:
        """The reasons as one line for humans."""
        return "; ".join(reason.text for reason in self.reasons)

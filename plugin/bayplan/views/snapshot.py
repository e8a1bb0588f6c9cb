"""The daemon's state at one moment, as the value that all views are made of.

`Snapshot` is what decisions depend on (machine, policy, engine, ledger) with everything that was observed
beside it. `bayplan.admin.snapshot_source` takes one in the daemon, `bayplan.agent.mirror` puts one together
elsewhere. How long answers took is counted in the buckets of a histogram (`Durations`): those of kubelet's
own histogram of admissions, so that both can be compared, and above them how long an answer of ours may
take, and how long the runtime waits for one.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct, field

from bayplan import __version__
from bayplan.model.basis import Basis, SeenSize
from bayplan.model.ledger import Ledger
from bayplan.model.machine import Machine
from bayplan.model.policy import PlacementPolicy
from bayplan.placement.page_placement import LivePages
from bayplan.sets import CpuSet

KUBELET_BOUNDS_MS: Final = tuple(0.05 * 2**step for step in range(15))
"""Of kubelet's topology_manager_admission_duration_ms: 0.05 to 819.2."""

BOUNDS_MS: Final = (*KUBELET_BOUNDS_MS, 1000.0, 2000.0)


class Durations(Struct, frozen=True):
    """``counts`` has a number for each of `BOUNDS_MS`, of what took no longer and longer than the bound
    before, and a last one for all else; ``total_ms`` is the sum."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_MS) + 1)
    total_ms: float = 0.0


class RuntimeState(Struct, frozen=True):
    """The connected container runtime; ``capabilities`` are those of `bayplan.nri.versions`, by name."""

    name: str
    version: str
    nri_version: str
    capabilities: Mapping[str, bool] = field(default_factory=dict)


class Unmanaged(Struct, frozen=True):
    """A container that the runtime created without asking us."""

    container_id: str
    name: str


class Drifted(Struct, frozen=True):
    """A container whose cgroup is not as decided; ``difference`` is for people."""

    container_id: str
    name: str
    difference: str


class MemoryReservation(Struct, frozen=True):
    """The sources of a node's memory reservation: the settings, and the memory that others than containers
    were found to hold, when (microseconds since the epoch); None where nothing was measured. ``margin_bytes``
    is by how much the reservation may rise next, 0 where it does not depend on measurements."""

    configured_bytes: int = 0
    held_bytes: int | None = None
    measured_us: int | None = None
    margin_bytes: int = 0


class Observation(Struct, frozen=True, kw_only=True):
    """What is known at one moment beside the promises. Times are microseconds since the epoch; ``version``
    and ``pid`` are the daemon's.

    ``runtime`` is None while no runtime is connected. ``oom_score_adj`` maps container ids to the value that
    was set by us or carried by the spec, ``kernel_oom_score_adj`` to what the first process has, as far as
    there is one. ``kernel_cpus`` are the CPUs of containers, by id, where the kernel was found to have other
    ones than the decided ones, or where somebody else decides. ``partitions`` are the ids of the containers
    whose CPUs are an isolated partition. ``placement_directory`` is where placement files are. ``problems``
    are conditions that last, each a sentence. ``live`` is what was seen last of the nodes' memory, None where
    it is not watched. ``shadow``: nothing of all this is applied. ``kubelet_known_by`` is the source of
    kubelet's version, "" where it is not known. ``unmatched_cpu_rules`` are the rules about CPUs that are for
    no container that runs, each a sentence. ``seen`` are the requests of late that decisions depend on.
    """

    taken_us: int
    started_us: int
    version: str = __version__
    pid: int = 0
    runtime: RuntimeState | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    durations: Mapping[str, Durations] = field(default_factory=dict)
    unmanaged: tuple[Unmanaged, ...] = ()
    drift: tuple[Drifted, ...] = ()
    oom_score_adj: Mapping[str, int] = field(default_factory=dict)
    kernel_oom_score_adj: Mapping[str, int] = field(default_factory=dict)
    kernel_cpus: Mapping[str, CpuSet] = field(default_factory=dict)
    partitions: frozenset[str] = frozenset()
    placement_directory: str = ""
    problems: tuple[str, ...] = ()
    reservations: Mapping[int, MemoryReservation] = field(default_factory=dict)
    live: LivePages | None = None
    shadow: bool = False
    kubelet_known_by: str = ""
    unmatched_cpu_rules: tuple[str, ...] = ()
    seen: tuple[SeenSize, ...] = ()


class Snapshot(Observation, frozen=True, kw_only=True):
    """Everything that the views show, at one moment: an observation, and what decisions depend on."""

    machine: Machine
    policy: PlacementPolicy
    ledger: Ledger
    engine: str = ""

    @property
    def basis(self) -> Basis:
        """What decisions depend on."""
        return Basis(self.machine, self.policy, self.ledger, self.seen)

    @property
    def observation(self) -> Observation:
        """The snapshot without what decisions depend on."""
        return Observation(**{name: getattr(self, name) for name in Observation.__struct_fields__})

"""The settings as values: everything the operator can choose, with the defaults.

`bayplan.config.keys` has the name and the reader of each field, `bayplan.config.load` reads and checks them.
"""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from msgspec import Struct, field

from bayplan.admin_protocol import DEFAULT_OCI_SOCKET, DEFAULT_SOCKET
from bayplan.agent_protocol import DEFAULT_GROUP
from bayplan.agent_protocol import DEFAULT_SOCKET as DEFAULT_AGENT_SOCKET
from bayplan.engines.interface import EXACT, EngineKind
from bayplan.host.placement_files import DIRECTORY
from bayplan.kubelet.eviction_manager import (
    DEFAULT_MEMORY,
    DEFAULT_TRANSITION_NS,
    MEMORY_AVAILABLE,
    ThresholdValue,
    Values,
)
from bayplan.kubelet.manager_options import STATIC, MemoryManagerPolicy
from bayplan.kubelet.pod import Amounts
from bayplan.model.kubelet_version import NEWEST, KubeletRules, rules_of
from bayplan.model.policy import (
    CpuPool,
    CpuRule,
    Defragment,
    KeepWhole,
    MemoryReservationPolicy,
    OutsideRequests,
    PlacementFiles,
    PlacementStrategy,
    PoolBounds,
    TopologyPolicy,
    TopologyScope,
)
from bayplan.model.sentences import kubelet_unknown
from bayplan.placement.foreign_cpusets import PinningManager, kubelet_sentence
from bayplan.quantity import GIB
from bayplan.sets import CpuSet


class Undecided(Enum):
    """The answer to a hook or wrapper for a container for which no decision could be made or carried out: its
    own configuration says what happens (CLIENT), it must not start (REFUSE), it may start (ALLOW)."""

    CLIENT = "client"
    REFUSE = "refuse"
    ALLOW = "allow"


class MemoryPressure(Enum):
    """What is done where nodes cannot give what was promised on them. OFF: nothing is looked at. OBSERVE: it
    is logged and counted. RELIEVE: page cache is reclaimed and pages are moved to other nodes. EVICT: where
    that is not enough for an eviction threshold, pods are ended."""

    OFF = "off"
    OBSERVE = "observe"
    RELIEVE = "relieve"
    EVICT = "evict"

    @property
    def relieves(self) -> bool:
        """Whether pages are moved and reclaimed."""
        return self in (MemoryPressure.RELIEVE, MemoryPressure.EVICT)


class Settings(Struct, frozen=True):
    """What files and flags say, before it is held against the machine.

    ``reserved_memory`` is None where no source sets it, ``shared_cpus_minimum`` where what containers request
    counts. ``kube_reserved`` and
    ``system_reserved`` are bytes of memory and huge pages, and billionths of a CPU. The ``eviction_`` tables
    are by signal; only memory.available of ``eviction_hard`` counts as reserved. ``device_memory`` maps
    nodes to the devices that own their memory, "" for none. ``sources`` are the files that were read;
    ``notices`` are messages for the operator about what is not wrong.
    ``kubelet_managers`` are the managers that pin containers by kubelet's own file, with the file's name;
    ``of_kubelets_file``: such a file is among the sources. ``kubelet_known_by`` is the source of
    ``kubelet_minor``, "" where the newest one is assumed.
    """

    engine: str = EXACT
    kubelet_minor: int = NEWEST.minor
    placement_strategy: PlacementStrategy = PlacementStrategy.PACK
    keep_whole: KeepWhole = KeepWhole.CACHE
    topology: TopologyPolicy = TopologyPolicy.BEST_EFFORT
    topology_scope: TopologyScope = TopologyScope.CONTAINER
    topology_options: Mapping[str, str] = field(default_factory=dict)
    memory_manager: MemoryManagerPolicy = MemoryManagerPolicy.STATIC
    cpu_manager: str = STATIC
    cpu_options: Mapping[str, str] = field(default_factory=dict)
    reserved_memory: Mapping[int, Mapping[str, int]] | None = None
    reserved_cpus: CpuSet = CpuSet()
    shared_cpus_minimum: int | None = None
    cpu_rules: tuple[CpuRule, ...] = ()
    cpu_pools: Mapping[str, CpuPool] = field(default_factory=dict)
    kube_reserved: Amounts = field(default_factory=dict)
    system_reserved: Amounts = field(default_factory=dict)
    eviction_hard: Values = field(default_factory=lambda: {MEMORY_AVAILABLE: DEFAULT_MEMORY})
    eviction_soft: Values = field(default_factory=dict)
    eviction_grace_ns: Mapping[str, int] = field(default_factory=dict)
    eviction_min_reclaim: Mapping[str, ThresholdValue] = field(default_factory=dict)
    eviction_transition_ns: int = DEFAULT_TRANSITION_NS
    merge_default_eviction: bool = False
    shadow: bool = False
    measured_reservation: bool = True
    device_memory: Mapping[int, str] = field(default_factory=dict)
    feature_gates: Mapping[str, bool] = field(default_factory=dict)
    memory_throttling_factor: float | None = 0.9
    memory_reservation: MemoryReservationPolicy = MemoryReservationPolicy.NONE
    single_process_oom_kill: bool = False
    set_oom_score_adj: bool = True
    default_memory_limit_bytes: Mapping[str, int] = field(default_factory=dict)
    refuse_wrong_annotations: bool = False
    forbidden_annotations: frozenset[str] = frozenset()
    refuse_undecided: bool = False
    undecided_namespaces: frozenset[str] = frozenset({"kube-system"})
    outside_requests: OutsideRequests = OutsideRequests.LIMITS
    placement_files: PlacementFiles = PlacementFiles.ASKED
    placement_directory: Path = DIRECTORY
    cdi_directory: Path = Path("/var/run/cdi")
    nri_socket: Path = Path("/var/run/nri/nri.sock")
    plugin_name: str = "bayplan"
    plugin_index: str = "90"
    request_deadline_ms: int = 1000
    state_directory: Path = Path("/var/lib/bayplan")
    admin_socket: Path = DEFAULT_SOCKET
    agent_socket: Path | None = DEFAULT_AGENT_SOCKET
    agent_group: str = DEFAULT_GROUP
    oci_socket: Path | None = DEFAULT_OCI_SOCKET
    crio_socket: Path = Path("/var/run/crio/crio.sock")
    containerd_socket: Path = Path("/run/containerd/containerd.sock")
    oci_deadline_ms: int = 1500
    oci_undecided: Undecided = Undecided.CLIENT
    return_deadline_ms: int = 30_000
    return_most_bytes: int = 64 * GIB
    memory_pressure: MemoryPressure = MemoryPressure.RELIEVE
    page_move_rate_bytes: int = GIB
    defragment: Defragment = Defragment.PLAN
    relocations_per_hour: int | None = 6
    hugepage_pools: Mapping[int, Mapping[int, PoolBounds]] = field(default_factory=dict)
    list_fraction: int = 0
    log_level: str = "info"
    log_format: str = "auto"
    recording: Path | None = None
    sources: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    kubelet_managers: Mapping[PinningManager, str] = field(default_factory=dict)
    of_kubelets_file: bool = False
    kubelet_known_by: str = ""

    @property
    def record_directory(self) -> Path:
        """Where the records are. Those of shadow mode are apart: none of them is a promise that was kept."""
        return self.state_directory / "shadow" if self.shadow else self.state_directory

    @property
    def engine_kind(self) -> EngineKind:
        """What the engine's name says of it."""
        return EngineKind.of(self.engine)

    @property
    def remarks(self) -> tuple[str, ...]:
        """All messages for the operator at the start."""
        managers = self.kubelet_managers.items()
        pinning = (kubelet_sentence(manager, file) for manager, file in managers)
        return (*pinning, *self.notices, *self.unknown_kubelet)

    @property
    def unknown_kubelet(self) -> tuple[str, ...]:
        """A sentence where a version of kubelet was assumed: what depends on it, if anything does. A node of
        which neither a file of kubelet's nor the engine speaks has none, or one that is found by its process.
        """
        if self.kubelet_known_by or not (self.of_kubelets_file or self.engine_kind.is_kubelets):
            return ()
        depends = {
            "what kubelet's file leaves out": self.of_kubelets_file,
            "what the engine kubelet answers": self.engine_kind.is_kubelets,
            "memory.min, memory.low and memory.high of MemoryQoS": self.memory_qos,
            "whether huge pages count as available to evictions": self.memory_pressure
            is MemoryPressure.EVICT,
        }
        words = [text for text, does in depends.items() if does]
        return (kubelet_unknown(f"{self.kubelet_rules}", words),)

    @property
    def kubelet_rules(self) -> KubeletRules:
        """What the node's kubelet does differently from those of other versions."""
        return rules_of(self.kubelet_minor)

    @property
    def memory_qos(self) -> bool:
        """Whether the feature gate MemoryQoS is on: if kubelet's file says nothing of it, as for kubelet."""
        default = self.of_kubelets_file and self.kubelet_rules.memory_qos
        return self.feature_gates.get("MemoryQoS", default)

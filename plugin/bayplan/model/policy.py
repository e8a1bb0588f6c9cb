"""What the operator decided: the policy under which containers are placed.

Values only, already validated; `bayplan.config.load` reads them from flags and files under
KubeletConfiguration's own field names.
"""

import enum
from collections.abc import Mapping

from msgspec import Struct, field

from bayplan.model.kubelet_version import NEWEST, KubeletRules, rules_of
from bayplan.quantity import GIB, MILLI_PER_CPU
from bayplan.sets import CpuSet


class TopologyPolicy(enum.Enum):
    """kubelet's Topology Manager policies.

    NONE aligns nothing with anything else; BEST_EFFORT places as well as possible and never refuses;
    RESTRICTED refuses what cannot have the narrowest placement that the machine could ever give it;
    SINGLE_NUMA_NODE refuses what does not fit on one node.
    """

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class TopologyScope(enum.Enum):
    """kubelet's Topology Manager scopes, what is aligned at a time: each container, or the pod as a whole."""

    CONTAINER = "container"
    POD = "pod"


class PlacementStrategy(enum.Enum):
    """Which of the sets of nodes that are equally narrow and near is taken. PACK: the fullest, so that room
    for large requests stays in one piece. SPREAD: the emptiest, so that containers share bandwidth and caches
    with few others. What fits, and what is refused, is the same."""

    PACK = "pack"
    SPREAD = "spread"


class KeepWhole(enum.Enum):
    """What is kept in one piece for later requests, where containers are packed. NODE: room on nodes that
    requests like those of late need, so that decisions depend on these requests; then nodes on which no
    memory is promised. CACHE: L3 caches of which no container has CPUs. OFF: nothing; the lowest ids are
    taken."""

    NODE = "node"
    CACHE = "cache"
    OFF = "off"


class Defragment(enum.Enum):
    """What is done for a request that does not fit as asked, and would if containers went to other nodes.
    OFF: nothing. PLAN: the decision says which ones. MOVE: they are moved, rather than that it is refused."""

    OFF = "off"
    PLAN = "plan"
    MOVE = "move"


class OutsideRequests(enum.Enum):
    """What counts as a request where kubelet gives none, outside of its cgroup tree: memory reservations,
    limits too, or nothing."""

    NOTHING = "nothing"
    RESERVATIONS = "reservations"
    LIMITS = "limits"


class PlacementFiles(enum.Enum):
    """Which containers get a file that says what they were given: none, those that ask for it by annotation,
    or all that do not ask for the contrary."""

    OFF = "off"
    ASKED = "asked"
    ALL = "all"


class MemoryReservationPolicy(enum.Enum):
    """kubelet's memoryReservationPolicy: whether MemoryQoS also sets memory.min and memory.low."""

    NONE = "None"
    TIERED = "TieredReservation"


class MemoryQos(Struct, frozen=True):
    """MemoryQoS (KEP-2570) switched on. ``throttling_factor`` in (0, 1], None sets no memory.high."""

    throttling_factor: float | None = 0.9
    reservation: MemoryReservationPolicy = MemoryReservationPolicy.NONE


class CpuAlignment(Struct, frozen=True):
    """Which CPUs of its own a container gets with the engine `exact`: kubelet's cpuManagerPolicyOptions of
    these names, without strict-cpu-reservation, which is ``withheld_cpus`` of the policy.

    Here ``prefer_align_cpus_by_uncorecache`` is on unless said otherwise.
    """

    full_pcpus_only: bool = False
    distribute_cpus_across_numa: bool = False
    align_by_socket: bool = False
    distribute_cpus_across_cores: bool = False
    prefer_align_cpus_by_uncorecache: bool = True


class CpuRule(Struct, frozen=True):
    """What containers are to have of CPUs that say nothing of it themselves: those of ``namespaces`` (none:
    of all) in pods with all of ``labels`` that have one of the names ``containers`` (none: any).

    ``cpus`` and ``cpu_kind`` are texts of the annotations of these names, empty for no wish.
    """

    namespaces: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    containers: frozenset[str] = frozenset()
    cpus: str = ""
    cpu_kind: str = ""

    def covers(self, other: "CpuRule") -> bool:
        """Whether this rule is for every container that *other* is for."""
        sets = ((self.namespaces, other.namespaces), (self.containers, other.containers))
        named = all(not mine or (theirs and theirs <= mine) for mine, theirs in sets)
        return named and self.labels.items() <= other.labels.items()


class CpuPool(Struct, frozen=True):
    """How many CPUs a named pool has as long as it has members: what these request together in whole CPUs,
    but from ``minimum`` to ``maximum``; all of them of the kind ``cpu_kind``, if that is given."""

    minimum: int
    maximum: int
    cpu_kind: str = ""

    def size(self, milli: int) -> int:
        """How many CPUs it is to have where its members request *milli* thousandths of a CPU."""
        return min(max(self.minimum, -(-milli // MILLI_PER_CPU)), self.maximum)


class PoolBounds(Struct, frozen=True):
    """The least and the largest size of a pool of huge pages of one node: it grows when a container needs it,
    and shrinks when none does."""

    minimum_bytes: int
    maximum_bytes: int


class PlacementPolicy(Struct, frozen=True):
    """All of the operator's choices that a decision depends on.

    ``reserved_bytes`` maps node id -> resource name -> bytes kept from containers.
    ``reserved_cpus`` never become exclusive; they stay in the shared pool, except for ``withheld_cpus``,
    on which no container runs as long as there are others.
    ``isolated_cpus`` are for containers that ask for such alone, neither shared nor exclusive to others; all
    of them are withheld too.
    ``cpu_rules``: the first one that is for a container counts. ``cpu_pools`` are by name.
    ``default_memory_limit_bytes`` maps a QoS class name (``Burstable``, ``BestEffort``) to the memory limit
    for containers whose spec has none. ``set_oom_score_adj`` can be switched off for nodes where negative
    values can't be written. ``refuse_wrong_annotations`` refuses a container whose annotations are wrong,
    instead of ignoring them, and ``forbidden_annotations`` are the keys that count for nobody;
    ``refuse_undecided`` refuses one over NRI about which nothing could be decided in time,
    but for those in ``undecided_namespaces``. ``strategy`` is for the engine `exact`, and for pods that say
    nothing of it.
    ``shared_cpus_minimum``, for the same engine, is how many CPUs stay in the shared pool at least: None for
    as many as those of its containers that are kubelet's request.
    ``kubelet_minor``: the kubelet of the node is that of Kubernetes 1.``kubelet_minor``.
    ``outside_requests`` is for containers outside of kubelet's tree. ``cpu_alignment`` is for the engine
    `exact`. ``placement_files``: who gets a file that says what it was given.
    ``defragment``, for the engine `exact`: what is done where moving others makes room;
    ``page_move_rate_bytes`` is how much memory is moved in a second at most, ``return_most_bytes`` how much
    of one container.
    ``hugepage_pools``, for the same engine: the pools that may grow and shrink, node id -> page size.
    """

    topology: TopologyPolicy = TopologyPolicy.BEST_EFFORT
    reserved_bytes: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    reserved_cpus: CpuSet = CpuSet()
    memory_qos: MemoryQos | None = None
    single_process_oom_kill: bool = False
    default_memory_limit_bytes: Mapping[str, int] = field(default_factory=dict)
    set_oom_score_adj: bool = True
    refuse_wrong_annotations: bool = False
    forbidden_annotations: frozenset[str] = frozenset()
    refuse_undecided: bool = False
    undecided_namespaces: frozenset[str] = frozenset()
    withheld_cpus: CpuSet = CpuSet()
    strategy: PlacementStrategy = PlacementStrategy.PACK
    outside_requests: OutsideRequests = OutsideRequests.LIMITS
    shared_cpus_minimum: int | None = None
    cpu_alignment: CpuAlignment = CpuAlignment()
    kubelet_minor: int = NEWEST.minor
    isolated_cpus: CpuSet = CpuSet()
    cpu_rules: tuple[CpuRule, ...] = ()
    cpu_pools: Mapping[str, CpuPool] = field(default_factory=dict)
    placement_files: PlacementFiles = PlacementFiles.ASKED
    defragment: Defragment = Defragment.PLAN
    page_move_rate_bytes: int = GIB
    return_most_bytes: int = 64 * GIB
    hugepage_pools: Mapping[int, Mapping[int, PoolBounds]] = field(default_factory=dict)
    keep_whole: KeepWhole = KeepWhole.CACHE

    @property
    def kubelet_rules(self) -> KubeletRules:
        """What the node's kubelet does differently from those of other versions."""
        return rules_of(self.kubelet_minor)

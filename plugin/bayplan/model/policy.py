"""What the operator decided: the policy under which containers are placed.

Values only, already validated; `bayplan.config.load` reads them from flags and files under
KubeletConfiguration's own field names.
"""

import enum
from collections.abc import Mapping

from msgspec import Struct, field

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


class MemoryReservationPolicy(enum.Enum):
    """kubelet's memoryReservationPolicy: whether MemoryQoS also sets memory.min and memory.low."""

    NONE = "None"
    TIERED = "TieredReservation"


class MemoryQos(Struct, frozen=True):
    """MemoryQoS (KEP-2570) switched on. ``throttling_factor`` in (0, 1], None sets no memory.high."""

    throttling_factor: float | None = 0.9
    reservation: MemoryReservationPolicy = MemoryReservationPolicy.NONE


class PlacementPolicy(Struct, frozen=True):
    """All of the operator's choices that a decision depends on.

    ``reserved_bytes`` maps node id -> resource name -> bytes kept from containers.
    ``reserved_cpus`` never become exclusive; they stay in the shared pool, except for ``withheld_cpus``,
    on which no container runs as long as there are others.
    ``default_memory_limit_bytes`` maps a QoS class name (``Burstable``, ``BestEffort``) to the memory limit
    for containers whose spec has none. ``set_oom_score_adj`` can be switched off for nodes where negative
    values can't be written. ``refuse_wrong_annotations`` refuses a container whose annotations are wrong,
    instead of ignoring them.
    """

    topology: TopologyPolicy = TopologyPolicy.BEST_EFFORT
    reserved_bytes: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    reserved_cpus: CpuSet = CpuSet()
    memory_qos: MemoryQos | None = None
    single_process_oom_kill: bool = False
    default_memory_limit_bytes: Mapping[str, int] = field(default_factory=dict)
    set_oom_score_adj: bool = True
    refuse_wrong_annotations: bool = False
    withheld_cpus: CpuSet = CpuSet()

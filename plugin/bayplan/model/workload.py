"""Pods and containers as the container runtime describes them, and what we answer about them.

The same values whether they came over NRI or from an OCI bundle: nothing here knows a wire format.
None means "not given". Zero never does: the edges that read the wire turn a runtime's "0 = unset" into None.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field

from bayplan.model.decision import MemoryPolicySetting
from bayplan.model.resources import Resources
from bayplan.sets import CpuSet, NodeSet


class ContainerState(enum.Enum):
    """The runtime's view of a container's life. UNKNOWN while it is being created."""

    UNKNOWN = "unknown"
    CREATED = "created"
    PAUSED = "paused"
    RUNNING = "running"
    STOPPED = "stopped"


class DeviceType(enum.Enum):
    """The two kinds of device nodes, by their letters in the OCI spec."""

    CHARACTER = "c"
    BLOCK = "b"


class DeviceNode(Struct, frozen=True):
    """A device node of the OCI spec; ``path`` is the one in the container."""

    path: str
    type: DeviceType
    major: int
    minor: int


class Mount(Struct, frozen=True):
    """A mount of the OCI spec; ``source`` is a path of the host, ``type`` is ``bind`` or a file system."""

    source: str
    type: str = "bind"


PLACEMENT_MOUNT: Final = "/run/bayplan.dev"
"""Where a container finds what it was given; the directory has one file."""
MOUNT_OPTIONS: Final = ("bind", "ro", "nosuid", "nodev", "noexec")
VARIABLES: Final = frozenset(
    {"DPDK_EAL_ARGS", "GOMAXPROCS", "JAVA_TOOL_OPTIONS", "OMP_NUM_THREADS", "OMP_PLACES"}
)
"""All variables of the environment that are ever set."""


def given_variables(environment: Iterable[str]) -> tuple[str, ...]:
    """The names of those of VARIABLES that an *environment* of ``name=value`` has."""
    return tuple(name for one in environment if (name := one.partition("=")[0]) in VARIABLES)


class Pod(Struct, frozen=True):
    """A pod sandbox. ``cgroup_parent`` is empty for many pods made with crictl. ``network_namespace`` is the
    path of its own network namespace, empty for a pod on the host's network."""

    id: str
    name: str = ""
    namespace: str = ""
    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    cgroup_parent: str = ""
    resources: Resources = Resources()
    network_namespace: str = ""


class Container(Struct, frozen=True):
    """A container as the runtime lists it or is about to create it. ``pid`` is 0 before it has a process.

    ``device_mounts`` are the mounts with a source below /dev or /sys, the only ones that can say something
    about devices. ``cdi_devices`` are names like ``vendor.com/class=name``. The device nodes of a container
    that may use all devices of the machine (a privileged one) are left out of ``devices``. ``memory_policy``
    is the one of its spec, ``exec_cpus`` those of processes that enter it later; NRI shows neither.
    ``placement_source`` is the source of what is mounted at PLACEMENT_MOUNT, empty where nothing is;
    ``given_environment`` are the names of the variables that its processes have, of those that we set.
    ``resource_claims`` are the requests of claims of its pod that it has, as ``uid/request``, or as ``uid/``
    where it has all of one that another driver prepared.
    """

    id: str
    pod_id: str
    name: str = ""
    state: ContainerState = ContainerState.UNKNOWN
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Resources = Resources()
    oom_score_adj: int | None = None
    cgroups_path: str = ""
    pid: int = 0
    devices: tuple[DeviceNode, ...] = ()
    device_mounts: tuple[Mount, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    memory_policy: MemoryPolicySetting | None = None
    exec_cpus: CpuSet | None = None
    placement_source: str = ""
    given_environment: tuple[str, ...] = ()
    resource_claims: tuple[str, ...] = ()

    @property
    def has_our_placement(self) -> bool:
        """Whether what is mounted at PLACEMENT_MOUNT is the directory that we made for it."""
        return self.placement_source.endswith(f"/{self.id}")


class Adjustment(Struct, frozen=True):
    """What we change in the spec of a container that is being created; None leaves a field as it is.
    ``hugepage_limits_bytes`` are by the size of the pages.
    ``placement_source`` is the host's directory to mount at PLACEMENT_MOUNT, empty for none; ``environment``
    has the variables to add. ``exec_cpus`` are those of processes that enter it later, which only a spec
    that is still to be read can have."""

    cpuset_cpus: CpuSet | None = None
    cpuset_mems: NodeSet | None = None
    memory_limit_bytes: int | None = None
    oom_score_adj: int | None = None
    unified: Mapping[str, str] = field(default_factory=dict)
    memory_policy: MemoryPolicySetting | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    placement_source: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    exec_cpus: CpuSet | None = None
    hugepage_limits_bytes: Mapping[int, int] = field(default_factory=dict)


class Update(Struct, frozen=True):
    """What we change in a container that already exists. Never more than one per container in a reply:
    NRI treats a second claim of a field as a conflict and fails the whole request."""

    container_id: str
    cpuset_cpus: CpuSet | None = None
    cpuset_mems: NodeSet | None = None
    memory_limit_bytes: int | None = None
    unified: Mapping[str, str] = field(default_factory=dict)

"""Pods and containers as the container runtime describes them, what they are called, and what we answer about
them.

The same values whether they came over NRI or from an OCI bundle: nothing here knows a wire format.
None means "not given". Zero never does: the edges that read the wire turn a runtime's "0 = unset" into None.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field

from bayplan.model.decision import MemoryPolicySetting
from bayplan.model.resources import Resources
from bayplan.printable import MOST_NAME_CHARACTERS, printable
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
"""The directory in which a container finds its placement file."""
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


MIN_ID_PREFIX: Final = 12
"""So many characters of a container's id stand for it; crictl shows 13, docker 12."""

_NOTHING: Final = "-"
"""In place of the name of a pod or namespace that is not there."""

_PARTS: Final = 3
_MIN_SIMILAR_ID: Final = 4
_MAX_SPELLINGS: Final = 1000
"""To compare the spelling of a word with so many takes 50 ms."""


def container_name(pod: Pod, container: Container) -> str:
    """The name people know a container by: ``namespace/pod/container``; the id where a name is missing,
    ``-/-/id`` without a pod. It stands in sentences, so that each part is printable and bounded."""
    # A container without a pod has one of its own, with its id.
    pod_name = pod.name or (_NOTHING if pod.id == container.id else pod.id or container.pod_id)
    parts = (pod.namespace or _NOTHING, pod_name, container.name or container.id)
    name = "/".join(parts)
    if len(name) <= MOST_NAME_CHARACTERS and name.isprintable():
        return name
    return "/".join(printable(part, MOST_NAME_CHARACTERS) for part in parts)


def parts_in_pod(name: str) -> tuple[str, str, str] | None:
    """Namespace, pod and container of a *name* as `container_name` makes it; None for a container in no
    pod of Kubernetes.

    >>> parts_in_pod("shop/web-0/main")
    ('shop', 'web-0', 'main')
    >>> parts_in_pod("-/-/1f")
    """
    parts = name.split("/")
    if len(parts) != _PARTS or parts[0] == _NOTHING:
        return None
    namespace, pod, container = parts
    return namespace, pod, container


def names_container(subject: str, name: str, container_id: str) -> bool:
    """Whether *subject* names the container *name* (``namespace/pod/container``) with that id.

    It may be the id, the beginning of one, the whole name, ``namespace/pod``, ``pod/container`` or a pod.
    """
    if subject == container_id or (len(subject) >= MIN_ID_PREFIX and container_id.startswith(subject)):
        return True
    wanted, parts = subject.split("/"), name.split("/")
    if len(wanted) == 1:
        return wanted == parts[1:2]
    return wanted in (parts, parts[:2], parts[1:])


def similar_pods(subject: str, containers: Iterable[tuple[str, str]]) -> list[str]:
    """The pods (``namespace/pod``) that *subject* may mean although it names none of *containers* (name and
    id), in their order: those with it somewhere in a name or at the beginning of an id, else those that are
    spelled alike.

    >>> similar_pods("web", [("shop/web-0/main", "1f"), ("shop/web-1/main", "2f"), ("shop/db/main", "3f")])
    ['shop/web-0', 'shop/web-1']
    >>> similar_pods("web0", [("shop/web-0/main", "1f"), ("shop/web-1/main", "2f")])
    ['shop/web-0']
    >>> similar_pods("shop/bd", [("shop/web-0/main", "1f"), ("shop/db/main", "3f")])
    ['shop/db']
    """
    wanted, letters = subject.lower(), _letters(subject)
    found, spellings = dict[str, None](), dict[str, str]()
    for name, container_id in containers:
        pod = name.rpartition("/")[0]
        by_id = len(wanted) >= _MIN_SIMILAR_ID and container_id.lower().startswith(wanted)
        if by_id or (letters and letters in _letters(name)):
            found[pod] = None
        elif len(spellings) < _MAX_SPELLINGS:
            spellings.setdefault(pod.lower() if "/" in wanted else pod.rpartition("/")[2].lower(), pod)
    # Of names with a namespace that much is the same anyway.
    least = 0.75 if "/" in wanted else 0.6
    if found:
        return list(found)
    from difflib import get_close_matches  # noqa: PLC0415 - only for what is not there

    return [spellings[one] for one in get_close_matches(wanted, spellings, cutoff=least)]


def _letters(name: str) -> str:
    """*name* without characters that are easily left out of it."""
    return name.lower().replace("-", "").replace("_", "").replace(".", "")


DEVICE_TYPES: Final = {"c": DeviceType.CHARACTER, "u": DeviceType.CHARACTER, "b": DeviceType.BLOCK}
"""``u`` is an unbuffered character device, the same to the kernel. Pipes (``p``) are no devices."""

DEVICE_TREES: Final = ("/dev/", "/sys/")
"""Mounts with a source below can be about devices, all others cannot."""

NETWORK: Final = "network"
"""The type of the namespace that interfaces are in."""

_CDI_ANNOTATION: Final = "cdi.k8s.io/"
_EVERY_TYPE: Final = frozenset({"", "a"})


def opens_everything(*, allow: bool, kind: str, major: int | None, minor: int | None) -> bool:
    """Whether a rule of the device cgroup opens all devices, as those of privileged containers do. Numbers
    below zero are any number."""
    return allow and kind in _EVERY_TYPE and all(one is None or one < 0 for one in (major, minor))


def cdi_names(listed: Iterable[str], annotations: Mapping[str, str]) -> tuple[str, ...]:
    """CDI names that a runtime lists, and those in annotations, where clients put them before CRI had a field
    for them; each once."""
    names = list(listed)
    for key in annotations:
        if key.startswith(_CDI_ANNOTATION):
            names += [name.strip() for name in annotations[key].split(",")]
    return tuple(dict.fromkeys(filter(None, names)))

"""From a spec to a pod and a container: what CRI-O, podman, containerd and docker leave in it. Pure.

The names of annotations are theirs (CRI-O pkg/annotations, containerd internal/cri/annotations). What one
of them does not write stays empty, and a wrong annotation of theirs is ignored: only the spec's own fields
are errors.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from bayplan.errors import ParseError
from bayplan.model.claims import claims_in
from bayplan.model.decision import MEMORY_POLICY_FLAGS, MemoryPolicyMode, MemoryPolicySetting
from bayplan.model.resources import Resources, WrittenResources, read
from bayplan.model.workload import (
    DEVICE_TREES,
    DEVICE_TYPES,
    NETWORK,
    PLACEMENT_MOUNT,
    Container,
    DeviceNode,
    Mount,
    Pod,
    cdi_names,
    given_variables,
    opens_everything,
)
from bayplan.oci.documents import LinuxCpu, LinuxResources, Memory, OciError, Spec
from bayplan.printable import pattern, printable
from bayplan.quantity import whole_number
from bayplan.sets import CpuSet, NodeSet

_CRIO: Final = "io.kubernetes.cri-o."
_CONTAINERD: Final = "io.kubernetes.cri."
_TYPES: Final = (f"{_CRIO}ContainerType", f"{_CONTAINERD}container-type", "io.kubernetes.docker.type")
_SANDBOXES: Final = frozenset({"sandbox", "podsandbox"})
_SANDBOX_IDS: Final = (f"{_CRIO}SandboxID", f"{_CONTAINERD}sandbox-id")
_POD_RESOURCES: Final = ("pod-linux-resources.crio.io", f"{_CRIO}PodLinuxResources")
_MANAGER: Final = "io.container.manager"
PODMAN: Final = "libpod"
"""podman's name for itself in its containers' annotations."""
_IN_PODMANS_POD: Final = pattern(r"libpod_pod_[0-9a-f]{64}\.slice:|/[0-9a-f]{64}/libpod-")
_ID_AT_THE_END: Final = pattern(r"[0-9a-f]{64}")
_SYSTEMD_FIELDS: Final = 3
_MODES: Final = {mode.kernel_name: mode for mode in MemoryPolicyMode}
_FLAGS: Final = {kernel_name: flag for flag, kernel_name in MEMORY_POLICY_FLAGS.items()}


def is_sandbox(spec: Spec) -> bool:
    """Whether it is a pod's own container (pause, infra), which is not placed.

    podman does not mark its own: in the pod's cgroup it is the one that names no container as the pod's.
    """
    annotations = spec.annotations or {}
    if any(annotations.get(key) in _SANDBOXES for key in _TYPES):
        return True
    if annotations.get(_MANAGER) != PODMAN or sandbox_id(spec):
        return False
    return _IN_PODMANS_POD.search(cgroups_path_of(spec)) is not None


def sandbox_id(spec: Spec) -> str:
    """The id of the pod's own container; empty outside of a pod."""
    return _first(spec.annotations or {}, *_SANDBOX_IDS)


def container_engine_of(spec: Spec) -> str:
    """The container engine that calls the OCI runtime: ``cri-o``, ``libpod``, ``containerd``; empty where
    nothing says so."""
    annotations = spec.annotations or {}
    if manager := annotations.get(_MANAGER, ""):
        return manager
    return "containerd" if any(key.startswith(_CONTAINERD) for key in annotations) else ""


def cgroups_path_of(spec: Spec) -> str:
    """``linux.cgroupsPath``, empty where there is none."""
    return (spec.linux and spec.linux.cgroups_path) or ""


def id_in_cgroups_path(spec: Spec) -> str | None:
    """The container's id as ``linux.cgroupsPath`` ends with it (``machine.slice:libpod:ID``,
    ``/libpod_parent/libpod-ID``), for where only the spec is known; None where it has none."""
    last = re.split(r"[/:]", cgroups_path_of(spec))[-1].removesuffix(".scope")
    candidate = last.rpartition("-")[2]
    return candidate if _ID_AT_THE_END.fullmatch(candidate) else None


def container_from(spec: Spec, container_id: str, pid: int = 0) -> Container:
    """The container that *spec* describes.

    Raises:
        OciError: a cpuset, a limit, the memory policy or an affinity of the spec cannot be read.
    """
    annotations, linux = spec.annotations or {}, spec.linux
    labels = _texts(annotations.get(f"{_CRIO}Labels", ""))
    metadata = _texts(annotations.get(f"{_CRIO}Metadata", ""))
    name = (
        _first(annotations, "io.kubernetes.container.name", f"{_CONTAINERD}container-name")
        or labels.get("io.kubernetes.container.name", "")
        or metadata.get("name", "")
    )
    return Container(
        id=container_id,
        pod_id=sandbox_id(spec) or container_id,
        name=name,
        annotations=annotations,
        labels=labels,
        resources=resources_from((linux and linux.resources) or LinuxResources()),
        oom_score_adj=spec.process.oom_score_adj if spec.process is not None else None,
        cgroups_path=cgroups_path_of(spec),
        pid=pid,
        devices=() if _opens_everything(spec) else _device_nodes(spec),
        device_mounts=tuple(
            Mount(mount.source, mount.type or "bind")
            for mount in spec.mounts or ()
            if mount.source is not None and mount.source.startswith(DEVICE_TREES)
        ),
        cdi_devices=cdi_names((), annotations),
        placement_source=next(
            (mount.source or "" for mount in spec.mounts or () if mount.destination == PLACEMENT_MOUNT), ""
        ),
        given_environment=given_variables((spec.process and spec.process.env) or ()),
        resource_claims=claims_in((spec.process and spec.process.env) or ()),
        memory_policy=_memory_policy(spec),
        exec_cpus=_exec_cpus(spec),
    )


def pod_from(spec: Spec, container_id: str, sandbox: Mapping[str, str]) -> Pod:
    """The pod of the container that *spec* describes, one of its own where it is in none; *sandbox* are the
    annotations of the pod's own container, empty where they cannot be had.

    CRI-O copies the pod's annotations into every container's spec, so that the containers' are the pod's; for
    podman a container's own ``--annotation`` counts as one.
    """
    own = spec.annotations or {}
    labels = _texts(sandbox.get(f"{_CRIO}Labels", ""))
    metadata = _texts(sandbox.get(f"{_CRIO}Metadata", ""))
    return Pod(
        id=sandbox_id(spec) or container_id,
        name=_first(own, "io.kubernetes.pod.name", f"{_CONTAINERD}sandbox-name") or metadata.get("name", ""),
        namespace=_first(own, "io.kubernetes.pod.namespace", f"{_CONTAINERD}sandbox-namespace")
        or metadata.get("namespace", ""),
        uid=_first(own, "io.kubernetes.pod.uid", f"{_CONTAINERD}sandbox-uid") or metadata.get("uid", ""),
        annotations={**_texts(sandbox.get(f"{_CRIO}Annotations", "")), **own},
        labels=labels,
        cgroup_parent=sandbox.get(f"{_CRIO}CgroupParent", "") or _parent_of(spec),
        resources=_pod_resources(sandbox),
        network_namespace=_network_namespace(spec),
    )


def resources_from(resources: LinuxResources) -> Resources:
    """Resources of a spec or an update.

    Raises:
        OciError: a cpuset, a limit of ``unified`` or a size of huge pages cannot be read.
    """
    cpu, memory = resources.cpu or LinuxCpu(), resources.memory or Memory()
    written = WrittenResources(
        memory_limit_bytes=memory.limit,
        memory_reservation_bytes=memory.reservation,
        memory_swap_bytes=memory.swap,
        cpu_shares=cpu.shares,
        cpu_quota_us=cpu.quota,
        cpu_period_us=cpu.period,
        cpu_idle=cpu.idle,
        cpus=cpu.cpus or "",
        mems=cpu.mems or "",
        hugepage_limits=tuple((one.page_size, one.limit or 0) for one in resources.hugepage_limits or ()),
        unified=resources.unified or {},
    )
    found = read(written)
    if found.unreadable:
        problems = [(f"linux.resources.{path}", problem) for path, problem in found.unreadable.items()]
        others = "".join(f"; {path}: {problem}" for path, problem in problems[1:])
        raise OciError(problems[0][0], f"{problems[0][1]}{others}")
    return found


def _memory_policy(spec: Spec) -> MemoryPolicySetting | None:
    """linux.memoryPolicy, whose names are the kernel's."""
    written = spec.linux and spec.linux.memory_policy
    if not written:
        return None
    for field, found, known in (
        ("mode", [written.mode], _MODES.keys()),
        ("flags", written.flags or [], _FLAGS.keys()),
    ):
        unknown = next((one for one in found if one not in known), None)
        if unknown is not None:
            expected = f"found {printable(repr(unknown), 80)}, expected one of {', '.join(sorted(known))}"
            raise OciError(f"linux.memoryPolicy.{field}", expected)
    try:
        nodes = NodeSet.parse(written.nodes or "")
    except ParseError as error:
        raise OciError("linux.memoryPolicy.nodes", str(error)) from error
    flags = tuple(_FLAGS[flag] for flag in written.flags or ())
    return MemoryPolicySetting(_MODES[written.mode], nodes, flags)


def _exec_cpus(spec: Spec) -> CpuSet | None:
    """The CPUs of processes that enter the container later."""
    affinity = spec.process and spec.process.exec_affinity
    try:
        return CpuSet.parse((affinity and affinity.final) or "") or None
    except ParseError as error:
        raise OciError("process.execCPUAffinity.final", str(error)) from error


def _device_nodes(spec: Spec) -> tuple[DeviceNode, ...]:
    return tuple(
        DeviceNode(device.path, DEVICE_TYPES[device.type], device.major or 0, device.minor or 0)
        for device in (spec.linux and spec.linux.devices) or ()
        if device.type in DEVICE_TYPES
    )


def _opens_everything(spec: Spec) -> bool:
    resources = spec.linux and spec.linux.resources
    return any(
        opens_everything(allow=bool(rule.allow), kind=rule.type or "", major=rule.major, minor=rule.minor)
        for rule in (resources and resources.devices) or ()
    )


def _network_namespace(spec: Spec) -> str:
    """The path of a network namespace that was made before the container; empty for the host's, and for a new
    one, which is still without interfaces."""
    for namespace in (spec.linux and spec.linux.namespaces) or ():
        if namespace.type == NETWORK:
            return namespace.path or ""
    return ""


def _parent_of(spec: Spec) -> str:
    """The cgroup parent in ``linux.cgroupsPath``: the slice in ``slice:prefix:name``, else the directory."""
    path = cgroups_path_of(spec)
    if not path.startswith("/") and len(path.split(":")) == _SYSTEMD_FIELDS:
        return path.partition(":")[0]
    return path.rpartition("/")[0]


def _pod_resources(sandbox: Mapping[str, str]) -> Resources:
    """The sums over the pod's containers, which CRI-O keeps as the CRI's message in JSON, and containerd as
    one annotation each."""
    written = _object(_first(sandbox, *_POD_RESOURCES))
    numbers = {key: value for key, value in written.items() if isinstance(value, int)}
    for key, annotation in (
        ("memory_limit_in_bytes", "sandbox-memory"),
        ("cpu_shares", "sandbox-cpu-shares"),
        ("cpu_quota", "sandbox-cpu-quota"),
        ("cpu_period", "sandbox-cpu-period"),
    ):
        number = whole_number(sandbox.get(f"{_CONTAINERD}{annotation}", ""))
        if number is not None:
            numbers.setdefault(key, number)
    limit_bytes = numbers.get("memory_limit_in_bytes", 0)
    return Resources(
        memory_limit_bytes=limit_bytes if limit_bytes > 0 else None,
        cpu_shares=numbers.get("cpu_shares") or None,
        cpu_quota_us=numbers.get("cpu_quota") or None,
        cpu_period_us=numbers.get("cpu_period") or None,
    )


def _first(annotations: Mapping[str, str], *keys: str) -> str:
    return next((annotations[key] for key in keys if annotations.get(key)), "")


def _object(text: str) -> Mapping[str, Any]:
    """The JSON object in an annotation; empty where there is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _texts(text: str) -> dict[str, str]:
    return {key: value for key, value in _object(text).items() if isinstance(value, str)}

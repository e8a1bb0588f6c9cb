"""OCI documents as typed values: the state that hooks get, the parts of a spec that placing needs, resources;
and changes to documents that leave everything else as it is, byte for byte.

Strict: a field of another type than the specification gives it is an error with its path. Fields that are not
named here are skipped, and null counts as absent, as Go's decoder has it.

Only the objects on the path to a changed field are decoded; the rest stays the same text, so that
unknown fields, numbers beyond 64 bits and Go's spelling of floats survive.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, field

from bayplan.errors import SubjectError
from bayplan.model.decision import MemoryPolicySetting
from bayplan.model.workload import MOUNT_OPTIONS, PLACEMENT_MOUNT, Adjustment
from bayplan.printable import pattern, printable
from bayplan.quantity import hugetlb_size
from bayplan.sets import CpuSet


class OciError(SubjectError):
    """A document, or a field of it, is not what it should be; nothing was changed."""


_ID: Final = pattern(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,254}")
"""What runc takes for a container id, but for a leading dot or dash."""


class State(Struct, frozen=True):
    """The state of a container (runtime.md). ``pid`` is 0 or absent where the container has no process."""

    id: str
    bundle: str = ""
    pid: int | None = None
    status: str = ""


class LinuxCpu(Struct, frozen=True):
    """linux.resources.cpu."""

    shares: int | None = None
    quota: int | None = None
    period: int | None = None
    cpus: str | None = None
    mems: str | None = None
    idle: int | None = None


class Memory(Struct, frozen=True):
    """linux.resources.memory. ``swap`` is memory and swap together."""

    limit: int | None = None
    reservation: int | None = None
    swap: int | None = None


class HugepageLimit(Struct, frozen=True, rename="camel"):
    """An item of linux.resources.hugepageLimits."""

    page_size: str
    limit: int | None = None


class DeviceRule(Struct, frozen=True):
    """An item of linux.resources.devices, the device cgroup."""

    allow: bool | None = None
    type: str | None = None
    major: int | None = None
    minor: int | None = None


class LinuxResources(Struct, frozen=True, rename="camel"):
    """linux.resources."""

    devices: list[DeviceRule] | None = None
    cpu: LinuxCpu | None = None
    memory: Memory | None = None
    hugepage_limits: list[HugepageLimit] | None = None
    unified: dict[str, str] | None = None


class Device(Struct, frozen=True):
    """An item of linux.devices."""

    path: str
    type: str
    major: int | None = None
    minor: int | None = None


class Namespace(Struct, frozen=True):
    """An item of linux.namespaces; without a path it is a new one."""

    type: str
    path: str | None = None


class MountPoint(Struct, frozen=True):
    """An item of mounts."""

    source: str | None = None
    type: str | None = None
    destination: str | None = None


class MemoryPolicy(Struct, frozen=True):
    """linux.memoryPolicy, of the runtime specification 1.3."""

    mode: str
    nodes: str | None = None
    flags: list[str] | None = None


class Linux(Struct, frozen=True, rename="camel"):
    """linux."""

    devices: list[Device] | None = None
    namespaces: list[Namespace] | None = None
    cgroups_path: str | None = None
    resources: LinuxResources | None = None
    memory_policy: MemoryPolicy | None = None


class ExecAffinity(Struct, frozen=True):
    """process.execCPUAffinity: the CPUs of processes that enter the container later, once they are in its
    cgroup."""

    final: str | None = None


class SpecProcess(Struct, frozen=True, rename="camel"):
    """process."""

    oom_score_adj: int | None = None
    env: list[str] | None = None
    exec_affinity: ExecAffinity | None = field(default=None, name="execCPUAffinity")


class Root(Struct, frozen=True):
    """root. A path that is not absolute is below the bundle."""

    path: str = ""


class Spec(Struct, frozen=True):
    """config.json. ``linux`` is absent in bundles of other systems, which have an object of their own."""

    annotations: dict[str, str] | None = None
    root: Root | None = None
    mounts: list[MountPoint] | None = None
    process: SpecProcess | None = None
    linux: Linux | None = None
    windows: dict[str, Any] | None = None
    solaris: dict[str, Any] | None = None
    zos: dict[str, Any] | None = None
    freebsd: dict[str, Any] | None = None


_PLACE: Final = pattern(r"(?P<what>.*) - at `\$(?P<place>.*)`")
"""How msgspec says where a value of a wrong type is."""
_STEP: Final = pattern(r"[\w]+|\.\.\.")
_ANY_KEY: Final = "..."
_SHOWN: Final = 80
"""So many characters of a value are shown."""
_OTHER_SYSTEMS: Final = ("windows", "solaris", "zos", "freebsd")
Document = TypeVar("Document", State, Spec, LinuxResources)


def parse_state(document: bytes) -> State:
    """The state in *document*.

    Raises:
        OciError: not JSON, not a state, or without a usable id.
    """
    state = _decode(document, State, "state of the container")
    check_id(state.id)
    return state


def parse_spec(document: bytes, source: str) -> Spec:
    """The spec in *document*; *source* is its file, for messages.

    Raises:
        OciError: not JSON, not a spec, or not one of a Linux container.
    """
    spec = _decode(document, Spec, source)
    if spec.linux is None:
        other = next((name for name in _OTHER_SYSTEMS if getattr(spec, name) is not None), None)
        if other is not None:
            raise OciError(source, f"is of a container of {other!r}: only those of Linux have a cgroup")
        raise OciError(source, "has no 'linux', which names a container's cgroup and resources: not placed")
    return spec


def parse_resources(document: bytes) -> LinuxResources:
    """The resources in *document*, as ``runc update -r -`` takes them.

    Raises:
        OciError: not JSON, or not resources.
    """
    return _decode(document, LinuxResources, "resources of the update")


def check_id(container_id: str) -> str:
    """*container_id*, once it is sure that it is one, and safe in a path.

    Raises:
        OciError: it is not.
    """
    if _ID.fullmatch(container_id) is None:
        expected = "letters, digits and _.+-, at most 255"
        raise OciError("container id", f"found {container_id[:80]!r}, expected {expected}")
    return container_id


def _decode(document: bytes, kind: type[Document], source: str) -> Document:
    try:
        return msgspec.json.decode(document, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise OciError(source, f"cannot be read: {_problem(document, str(error))}") from error


def _problem(document: bytes, said: str) -> str:
    """What is wrong with *document*, with the value; the decoder names no keys of maps, and no values."""
    found = _PLACE.fullmatch(said)
    if found is None:
        return said
    try:
        value, place = msgspec.json.decode(document), "$"
        for step in _STEP.findall(found["place"]):
            if isinstance(value, list):
                value, place = value[int(step)], f"{place}[{step}]"
            elif step == _ANY_KEY:
                key, value = next(item for item in value.items() if not isinstance(item[1], str))
                place += f"[{printable(key, _SHOWN)}]"
            else:
                value, place = value[step], f"{place}.{step}"
    except (msgspec.MsgspecError, RecursionError, LookupError, StopIteration):
        return said
    return f"{found['what']} - at `{place}`: {printable(json.dumps(value), _SHOWN)}"


Patch = Mapping[str, Any]
"""Values by key; a mapping stands for changes inside of that object."""

_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw] | None)


class Appended(NamedTuple):
    """Stands for *items* after what a list has; an item with the same value of *key* goes."""

    items: Sequence[Any]
    key: str = ""


def merged(document: bytes, patch: Patch, source: str) -> bytes:
    """*document* with the values of *patch*; objects that it lacks are made. *source* is named in messages.

    Raises:
        OciError: not JSON, or something else than an object where *patch* has one.
    """
    try:
        fields = _OBJECT.decode(document) or {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise OciError(source, f"cannot be read: {error}") from error
    for key, value in patch.items():
        if isinstance(value, Mapping):
            inner = bytes(fields.get(key, b"null"))
            fields[key] = msgspec.Raw(merged(inner, value, f"{source}: {key}"))
        elif isinstance(value, Appended):
            fields[key] = msgspec.Raw(_appended(bytes(fields.get(key, b"null")), value, f"{source}: {key}"))
        else:
            fields[key] = msgspec.Raw(msgspec.json.encode(value))
    return msgspec.json.encode(fields)


def _appended(document: bytes, added: Appended, source: str) -> bytes:
    try:
        present = _LIST.decode(document) or []
        if added.key:
            replaced = [msgspec.json.encode(one[added.key]) for one in added.items]
            present = [one for one in present if _value(one, added.key) not in replaced]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise OciError(source, f"cannot be read: {error}") from error
    return msgspec.json.encode([*present, *added.items])


def _value(item: msgspec.Raw, key: str) -> bytes | None:
    value = (_OBJECT.decode(item) or {}).get(key)
    return None if value is None else msgspec.json.encode(msgspec.json.decode(value))


def spec_patch(adjustment: Adjustment, spec: Spec) -> Patch:
    """What *adjustment* changes in *spec*; empty for nothing. A spec without a process gets none; a memory
    policy that somebody else chose stays."""
    present = spec.linux if spec.linux is not None else Linux()
    patch: dict[str, Any] = {}
    linux: dict[str, Any] = {}
    inner = resources_patch(adjustment, present.resources or LinuxResources())
    if inner:
        linux["resources"] = inner
    if adjustment.memory_policy is not None and present.memory_policy is None:
        linux["memoryPolicy"] = _memory_policy(adjustment.memory_policy)
    if linux:
        patch["linux"] = linux
    process: dict[str, Any] = {}
    if adjustment.oom_score_adj is not None:
        process["oomScoreAdj"] = adjustment.oom_score_adj
    if adjustment.environment:
        process["env"] = Appended([f"{name}={value}" for name, value in adjustment.environment.items()])
    process |= exec_patch(adjustment.exec_cpus, spec)
    if process and spec.process is not None:
        patch["process"] = process
    if adjustment.placement_source:
        # A bundle that is used again has the mount of the time before.
        mount = {
            "destination": PLACEMENT_MOUNT,
            "type": "bind",
            "source": adjustment.placement_source,
            "options": MOUNT_OPTIONS,
        }
        patch["mounts"] = Appended([mount], "destination")
    return patch


def exec_patch(cpus: CpuSet | None, spec: Spec) -> Patch:
    """What is to be changed in ``process`` so that processes which enter the container later begin on *cpus*;
    what somebody else chose stays."""
    if not cpus or spec.process is None or spec.process.exec_affinity is not None:
        return {}
    return {"execCPUAffinity": {"initial": str(cpus)}}


def _memory_policy(setting: MemoryPolicySetting) -> Patch:
    """linux.memoryPolicy of the runtime specification 1.3, whose names are the kernel's."""
    patch: dict[str, Any] = {"mode": setting.mode.kernel_name}
    if setting.nodes:
        patch["nodes"] = str(setting.nodes)
    if setting.flags:
        patch["flags"] = setting.kernel_flags
    return patch


def resources_patch(adjustment: Adjustment, present: LinuxResources) -> Patch:
    """What *adjustment* changes in the resources *present*; keys that ``unified`` has already stay."""
    cpu = {
        key: str(ids)
        for key, ids in (("cpus", adjustment.cpuset_cpus), ("mems", adjustment.cpuset_mems))
        if ids
    }
    unified = {key: value for key, value in adjustment.unified.items() if key not in (present.unified or {})}
    limit_bytes = adjustment.memory_limit_bytes
    memory = {} if limit_bytes is None else {"limit": limit_bytes}
    parts: dict[str, Patch] = {"cpu": cpu, "memory": memory, "unified": unified}
    limits = [
        {"pageSize": hugetlb_size(size_bytes), "limit": amount}
        for size_bytes, amount in adjustment.hugepage_limits_bytes.items()
    ]
    changed: Patch = {key: part for key, part in parts.items() if part}
    return {**changed, "hugepageLimits": Appended(limits, "pageSize")} if limits else changed

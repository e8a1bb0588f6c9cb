"""OCI documents as typed values: the state that hooks get, the parts of a spec that placing needs, resources.

Strict: a field of another type than the specification gives it is an error with its path. Fields that are not
named here are skipped, and null counts as absent, as Go's decoder has it.
"""

import json
import re
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct, field

from bayplan.oci.errors import OciError
from bayplan.printable import printable

_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,254}")
"""What runc takes for a container id, but for a leading dot or dash."""


class State(Struct, frozen=True):
    """The state of a container (runtime.md). ``pid`` is 0 or absent where the container has no process."""

    id: str
    bundle: str = ""
    pid: int | None = None
    status: str = ""


class Cpu(Struct, frozen=True):
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
    cpu: Cpu | None = None
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


class Process(Struct, frozen=True, rename="camel"):
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
    process: Process | None = None
    linux: Linux | None = None
    windows: dict[str, Any] | None = None
    solaris: dict[str, Any] | None = None
    zos: dict[str, Any] | None = None
    freebsd: dict[str, Any] | None = None


_PLACE: Final = re.compile(r"(?P<what>.*) - at `\$(?P<place>.*)`")
"""How msgspec says where a value of a wrong type is."""
_STEP: Final = re.compile(r"[\w]+|\.\.\.")
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

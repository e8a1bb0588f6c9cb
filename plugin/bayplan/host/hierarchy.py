"""Where cgroups are: which cgroup file systems this host has (cgroup v2, v1, or both side by side: hybrid),
and where a container is below their mounts, by the runtime's fields.

Paths are pure text: nothing is looked up. Both cgroup drivers, in the spelling of containerd and of CRI-O.
Sources: the cgroupsPath rules of runc and crun, systemd.slice(5) for the nesting that the names of slices
spell out.

Also which cgroups nothing may be written to, and in which cgroup a process is. Values of cgroups are read and
written in `bayplan.host.cgroup`; nothing is changed here.
"""

import ctypes
import enum
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from msgspec import Struct

from bayplan.errors import HostError, ParseError
from bayplan.host.kernelfs import AbsentError, parse_file, read_text, refusal
from bayplan.host.libc import libc

ROOT: Final = "/"
SCOPE: Final = ".scope"
CRUN_CHILD: Final = "container"
"""On cgroup v2 with the systemd driver, crun puts the processes into this child of the scope."""

_SLICE: Final = ".slice"
_DEFAULT_SLICE: Final = "system.slice"
_RUNTIME_PREFIXES: Final = ("cri-containerd", "crio")
_SYSTEMD_FIELDS: Final = 3
_REMEMBERED: Final = 1024
"""Those of a full node: each is looked for again and again."""


@lru_cache(_REMEMBERED)
def container_paths(cgroups_path: str, cgroup_parent: str = "", container_id: str = "") -> tuple[str, ...]:
    """The places where a container's cgroup may be, the most certain first; never empty.

    *cgroups_path* is the spec's ``linux.cgroupsPath``: ``slice:prefix:name`` for the systemd driver, else
    a path. Without one (some runtimes do not pass it on), the pod's *cgroup_parent* and the container's id
    give it, in each spelling that runtimes use.

    Raises:
        ParseError: the path is not one, leads out of the cgroup mount, or nothing was given to go by.
    """
    if cgroups_path:
        return (container_path(cgroups_path),)
    if not (cgroup_parent and container_id):
        raise ParseError("cgroup of a container", "", "a cgroups path, or a cgroup parent and a container id")
    parent = pod_path(cgroup_parent)
    names = [f"{prefix}-{container_id}{SCOPE}" for prefix in _RUNTIME_PREFIXES]
    names += [container_id, f"crio-{container_id}"]
    return tuple(clean(f"{parent}/{name}") for name in names)


def container_path(cgroups_path: str) -> str:
    """The path that a runtime makes of the spec's ``linux.cgroupsPath``.

    Raises:
        ParseError: it is none, or a relative path (relative to the runtime's own cgroup, which is unknown).
    """
    fields = cgroups_path.split(":")
    if cgroups_path.startswith(ROOT) or len(fields) != _SYSTEMD_FIELDS:
        return clean(cgroups_path)
    slice_name, prefix, name = fields
    if "/" in cgroups_path or not name:
        raise ParseError("cgroups path", cgroups_path, "slice:prefix:name, or an absolute path")
    parent = expand_slice(slice_name or _DEFAULT_SLICE)
    if name.endswith(_SLICE):
        return clean(f"{parent}/{name}")
    return clean(f"{parent}/{prefix}-{name}{SCOPE}" if prefix else f"{parent}/{name}{SCOPE}")


def pod_path(cgroup_parent: str) -> str:
    """The path of a pod's cgroup from its cgroup parent: a path, or the bare name of a slice (CRI-O).

    Raises:
        ParseError: it is neither.
    """
    if cgroup_parent.endswith(_SLICE) and "/" not in cgroup_parent:
        return expand_slice(cgroup_parent)
    return clean(cgroup_parent)


def kubepods_path(path: str) -> str:
    """The path of kubelet's cgroup of all pods, in which the cgroup *path* of a pod lies; "" if it lies in
    none."""
    parts = path.split("/")
    for at, part in enumerate(parts):
        if part == "kubepods" or f"-{part}".endswith("-kubepods.slice"):
            return "/".join(parts[: at + 1])
    return ""


def expand_slice(name: str) -> str:
    """The path that the name of a slice spells: ``a-b.slice`` lies in ``/a.slice/a-b.slice``.

    Raises:
        ParseError: not the name of a slice.
    """
    stem = name.removesuffix(_SLICE)
    if name == f"-{_SLICE}":
        return ROOT
    if stem == name or "/" in stem or not all(stem.split("-")):
        raise ParseError("slice", name, "a name such as kubepods-burstable.slice")
    parts = stem.split("-")
    return "".join(f"/{'-'.join(parts[: depth + 1])}{_SLICE}" for depth in range(len(parts)))


def clean(path: str) -> str:
    """*path* without doubled and trailing slashes, once it is sure that it stays below the mount.

    Raises:
        ParseError: it is relative, or has a part ``..``, ``.`` or a NUL.
    """
    parts = [part for part in path.split(ROOT) if part]
    if not path.startswith(ROOT) or "\0" in path or not {".", ".."}.isdisjoint(parts):
        raise ParseError("cgroup path", path, "an absolute path without '..', below the cgroup mount")
    return ROOT + ROOT.join(parts)


def is_within(path: str, ancestor: str) -> bool:
    """Whether *path* is *ancestor* or below it; both clean."""
    return ancestor in (ROOT, path) or path.startswith(f"{ancestor}/")


def parse_membership(text: str) -> dict[str, str]:
    """/proc/PID/cgroup: path by controller; the controller ``""`` stands for the cgroup v2 hierarchy.

    Raises:
        ParseError: a line is not ``id:controllers:path``.
    """
    paths = {}
    for line in text.splitlines():
        fields = line.split(":", 2)
        if len(fields) != _SYSTEMD_FIELDS or not fields[0].isdigit() or not fields[2].startswith(ROOT):
            raise ParseError("cgroup membership", line, "a line 'number:controllers:/path'")
        for controller in fields[1].split(","):
            paths[controller] = fields[2]
    return paths


CGROUP2_SUPER_MAGIC: Final = 0x63677270
CGROUP_SUPER_MAGIC: Final = 0x27E0EB
"""include/uapi/linux/magic.h"""

CPUSET: Final = "cpuset"
MEMORY: Final = "memory"
UNIFIED: Final = ""
"""The name of the cgroup v2 hierarchy in /proc/PID/cgroup."""

_MOUNT: Final = "sys/fs/cgroup"
_INIT_SCOPE: Final = "/init.scope"
_DELETED: Final = " (deleted)"
_OUTSIDE: Final = "/.."
_STATFS_BYTES: Final = 256
_CONTROLLERS: Final = (CPUSET, MEMORY)


class Layout(enum.Enum):
    """How the host mounts cgroups. HYBRID keeps cpuset and memory in v1, with an almost idle v2 beside."""

    UNIFIED = "cgroup v2"
    HYBRID = "cgroup v1 with v2 beside it"
    LEGACY = "cgroup v1"


def file_system_magic(directory: str) -> int:
    """The type of the file system that holds *directory* (fstatfs(2), which Python's os module lacks).

    Raises:
        HostError: it is not there, or cannot be opened.
    """
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if libc().fstatfs(descriptor, buffer) != 0:
                raise OSError(ctypes.get_errno(), "fstatfs")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise refusal(directory, "cannot be examined", error) from error
    # f_type comes first: a long everywhere but on s390x, where it is an unsigned int.
    kind = ctypes.c_uint if os.uname().machine == "s390x" else ctypes.c_long
    return int(kind.from_buffer(buffer).value)


class Hierarchy(Struct, frozen=True):
    """The cgroup mounts of a host.

    ``mounts`` maps the controllers cpuset and memory to the directory of their root, with cgroup v2 both to
    the same one. ``own`` is this process's own cgroup by controller.
    """

    layout: Layout
    mounts: Mapping[str, str]
    own: Mapping[str, str]
    root: Path = Path("/")

    @classmethod
    def detect(cls, root: Path = Path("/"), magic: Callable[[str], int] = file_system_magic) -> "Hierarchy":
        """Look at /sys/fs/cgroup below *root*. Tests that build a tree pass their own *magic*.

        Raises:
            HostError: no cgroup file system is there, or it lacks the controller cpuset or memory.
        """
        base = str(root / _MOUNT)
        own = parse_file(str(root / "proc/self/cgroup"), parse_membership)
        if magic(base) == CGROUP2_SUPER_MAGIC:
            mounts = dict.fromkeys(read_text(f"{base}/cgroup.controllers").split(), base)
            layout = Layout.UNIFIED
        else:
            mounts = {
                controller: f"{base}/{controller}"
                for controller in _CONTROLLERS
                if _has_magic(f"{base}/{controller}", CGROUP_SUPER_MAGIC, magic)
            }
            beside = _has_magic(f"{base}/unified", CGROUP2_SUPER_MAGIC, magic)
            layout = Layout.HYBRID if beside else Layout.LEGACY
        if missing := [controller for controller in _CONTROLLERS if controller not in mounts]:
            problem = f"no cgroup controller {' and '.join(missing)} is to be found there"
            raise HostError(base, f"{problem}; expected cgroup v2, or v1 mounts of both below")
        return cls(layout, {controller: mounts[controller] for controller in _CONTROLLERS}, own, root)

    @property
    def unified(self) -> bool:
        """Whether cpuset and memory are cgroup v2's."""
        return self.layout is Layout.UNIFIED

    def why_protected(self, path: str) -> str | None:
        """Why nothing may be written to the cgroup *path*, or None where it may be."""
        if path == ROOT:
            return "it is the root of the hierarchy"
        if is_within(path, _INIT_SCOPE):
            return "it is the cgroup of the system's first process"
        for controller in (UNIFIED,) if self.unified else _CONTROLLERS:
            own = self.own.get(controller, ROOT)
            if is_within(own, path):
                return f"this process is in it ({own})"
        return None

    def paths_of_process(self, pid: int) -> dict[str, str]:
        """The cgroup of a process, by controller (cpuset and memory).

        Raises:
            AbsentError: the process or its cgroup is gone.
            HostError: the process is outside of our cgroup namespace, so that its path cannot be known.
        """
        source = str(self.root / "proc" / str(pid) / "cgroup")
        paths = parse_file(source, parse_membership)
        found = {}
        for controller, mount in self.mounts.items():
            path = paths.get(UNIFIED if self.unified else controller)
            if path is None:
                raise HostError(source, f"no line for {mount}")
            if path.endswith(_DELETED):
                raise AbsentError(f"{mount}{path.removesuffix(_DELETED)}", "the cgroup has been removed")
            if path.startswith(_OUTSIDE):
                raise HostError(
                    source,
                    f"found {path!r}: process {pid} is outside of this process's cgroup namespace; "
                    "run in the host's cgroup namespace",
                )
            found[controller] = parse_file(source, clean, path)
        return found


def _has_magic(directory: str, wanted: int, magic: Callable[[str], int]) -> bool:
    try:
        return magic(directory) == wanted
    except AbsentError:
        return False

"""Where a container's cgroup is: from the runtime's fields to paths below the cgroup mount.

Pure text: nothing is looked up. Both cgroup drivers, containerd's and CRI-O's spelling. Sources: the
cgroupsPath rules of runc and crun, systemd.slice(5) for the nesting that the names of slices spell out.
"""

from functools import lru_cache
from typing import Final

from bayplan.errors import ParseError

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

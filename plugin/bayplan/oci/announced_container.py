"""A container that an OCI hook or the runtime wrapper announces: read, checked, compared with its entry, and
placed in the kernel.

All calls block and belong into a thread. A container is announced by root, but from outside of this
process: before anything is written, it is checked that process, cgroup and bundle are those of one container.
"""

import errno
import logging
import posixpath
from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from bayplan.errors import ParseError
from bayplan.host import proc
from bayplan.host.container import ContainerCgroup
from bayplan.host.hierarchy import CPUSET, MEMORY, SCOPE, Hierarchy, container_path
from bayplan.host.kernelfs import RefusedError
from bayplan.host.namespaces import mount_in_container
from bayplan.model.ledger import Entry
from bayplan.model.origin import Hook, Nri, Precreate, WithoutNri, Wrapper
from bayplan.model.resources import Resources
from bayplan.model.workload import PLACEMENT_MOUNT, Adjustment, Container, Pod, Update
from bayplan.oci.bundle import CONFIG, read_config, sibling_config
from bayplan.oci.documents import OciError, Spec, State, parse_spec
from bayplan.oci.workloads import (
    PODMAN,
    cgroups_path_of,
    container_engine_of,
    container_from,
    id_in_cgroups_path,
    is_sandbox,
    pod_from,
    sandbox_id,
)

logger = logging.getLogger(__name__)

_NO_CGROUP: Final = "linux.cgroupsPath names no cgroup of its own, as with podman's --cgroups=disabled"
_AMOUNTS: Final = ("cpu.max", "cpu.weight", "memory.limit_in_bytes", "memory.max", "pids.max")


class AnnouncedContainer(Struct, frozen=True):
    """A container that is about to start. ``pod`` and ``container`` have their annotations; ``origin`` is
    what the ledger keeps; ``document`` is the text of its spec."""

    pod: Pod
    container: Container
    origin: WithoutNri
    spec: Spec
    document: bytes


def from_bundle(bundle: str, container_id: str) -> AnnouncedContainer | None:
    """The container that a runtime is about to create from *bundle*; None for a pod's own container.

    Raises:
        OciError: the bundle or its spec cannot be used.
    """
    return _described(Wrapper, _read(bundle), container_id, bundle)


def from_spec(document: bytes) -> AnnouncedContainer | None:
    """The container that podman is about to create from the spec in *document*; None for a pod's own one.

    podman shows its precreate hooks nothing else, so that the id must come from the path of the cgroup.

    Raises:
        OciError: not a spec of a Linux container, or without an id.
    """
    spec = parse_spec(document, "spec")
    container_id = id_in_cgroups_path(spec)
    if container_id is None and not is_sandbox(spec):
        found = cgroups_path_of(spec)
        if not found:
            raise OciError("spec", _NO_CGROUP)
        raise OciError("spec: linux.cgroupsPath", f"found {found!r}, expected the container's id at its end")
    return _described(Precreate, _Read(spec, document), container_id or "", "")


class _Read(Struct, frozen=True):
    spec: Spec
    document: bytes


def _read(bundle: str) -> _Read:
    document = read_config(bundle)
    return _Read(parse_spec(document, f"{bundle}/{CONFIG}"), document)


def _described(
    form: type[WithoutNri], read: _Read, container_id: str, bundle: str, pid: int = 0
) -> AnnouncedContainer | None:
    spec = read.spec
    if is_sandbox(spec):
        return None
    if not cgroups_path_of(spec) and container_engine_of(spec) == PODMAN:
        # Other engines leave the place of the cgroup to the OCI runtime.
        raise OciError(f"container {container_id}", _NO_CGROUP)
    pod = pod_from(spec, container_id, _annotations_of_sandbox(spec, container_id, bundle))
    container = container_from(spec, container_id, pid)
    origin = form.of(pod, container, bundle, container_engine_of(spec))
    return AnnouncedContainer(pod, container, origin, spec, read.document)


def from_hook_state(hierarchy: Hierarchy, state: State) -> AnnouncedContainer | None:
    """The container that a createRuntime hook announces with *state*; None for a pod's own container.

    Raises:
        OciError: state, bundle, process and cgroup are not those of one container.
        HostError: the process is gone, or cannot be examined.
    """
    pid = state.pid or 0
    if pid <= 1:
        problem = f"found the pid {pid}, expected one above 1: is it announced at createRuntime?"
        raise OciError(f"state of container {state.id}", problem)
    announced = _described(Hook, _read(state.bundle), state.id, state.bundle, pid)
    if announced is None:
        return None
    process = proc.identify(pid, hierarchy.root)
    cgroups = _checked(hierarchy, hierarchy.paths_of_process(pid), pid, announced)
    origin = replace(announced.origin, cgroups=cgroups, start_ticks=process.start_ticks)
    # Before it is decided about: then any look at all containers may write to its cgroup.
    with ContainerCgroup(hierarchy, cgroups) as cgroup:
        _check_alone(hierarchy, origin, cgroup)
    return replace(announced, origin=origin)


def place(hierarchy: Hierarchy, origin: WithoutNri) -> Adjustment:
    """Set what ``origin.applied`` says for a container that has not started, and return what was set.

    Setting oom_score_adj below the present value needs a capability that daemons in containers may lack: that
    is reported and left out.

    Raises:
        OciError: the process has moved to another cgroup, or is not alone in it.
        HostError: the kernel refuses a value; those before it stay.
    """
    wanted, pid = origin.applied, origin.container.pid
    process = proc.Process(pid, origin.start_ticks)
    with ContainerCgroup(hierarchy, dict(origin.cgroups)) as cgroup:
        _check_alone(hierarchy, origin, cgroup)
        cgroup.apply(
            Update(
                origin.container.id,
                cpuset_cpus=wanted.cpuset_cpus,
                cpuset_mems=wanted.cpuset_mems,
                memory_limit_bytes=wanted.memory_limit_bytes,
                unified=wanted.unified,
            )
        )
    if wanted.oom_score_adj is None:
        return wanted
    try:
        proc.write_oom_score_adj(process, wanted.oom_score_adj, hierarchy.root)
    except RefusedError as error:
        if error.errno not in (errno.EACCES, errno.EPERM):
            raise
        extra = {"container_id": origin.container.id, "problem": str(error)}
        logger.warning("oom_score_adj not set", extra=extra)
        return replace(wanted, oom_score_adj=None)
    return wanted


def mount_placement(hierarchy: Hierarchy, announced: AnnouncedContainer, applied: Adjustment) -> None:
    """Mount what tells the container its place, before it enters its root.

    Raises:
        OciError: its spec has no root.
        HostError: it cannot be mounted.
    """
    root = announced.spec.root.path if announced.spec.root is not None else ""
    if not root:
        raise OciError(f"container {announced.container.id}", "its spec has no root, where to mount")
    path = posixpath.join(announced.origin.bundle, root)
    namespace = str(hierarchy.root / f"proc/{announced.origin.container.pid}/ns/mnt")
    mount_in_container(namespace, applied.placement_source, path, PLACEMENT_MOUNT)


def _check_alone(hierarchy: Hierarchy, origin: WithoutNri, cgroup: ContainerCgroup) -> None:
    pid = origin.container.pid
    others = [other for other in cgroup.processes() if other != pid]
    if others:
        raise OciError(f"cgroup {cgroup.path}", f"holds other processes than {pid}: {others}")
    if hierarchy.paths_of_process(pid) != origin.cgroups:
        raise OciError(f"cgroup {cgroup.path}", f"does not hold {pid} any more")


def amounts_shown(hierarchy: Hierarchy, origin: WithoutNri) -> Mapping[str, str]:
    """The amounts that an update by the runtime would set, as the container's cgroup shows them, by file. On
    cgroup v1 those of the CPUs are in another hierarchy, and left out.

    Raises:
        HostError: the cgroup is gone, or cannot be read.
    """
    with ContainerCgroup(hierarchy, dict(origin.cgroups)) as cgroup:
        return cgroup.texts(_AMOUNTS)


def _checked(
    hierarchy: Hierarchy, paths: Mapping[str, str], pid: int, announced: AnnouncedContainer
) -> dict[str, str]:
    """The *paths* of the process, after a check that they are the container's own."""
    container = announced.container
    try:
        expected = container_path(container.cgroups_path) if container.cgroups_path else None
    except ParseError:
        expected = None  # relative to the runtime's own cgroup, which is not known
    for controller in (CPUSET, MEMORY):
        path = paths[controller]
        if not container.cgroups_path and not _is_own(path, expected, container.id):
            raise OciError(f"cgroup {path} of process {pid}", f"is not the container's: {_NO_CGROUP}")
        protected = hierarchy.why_protected(path)
        if protected is not None:
            raise OciError(f"cgroup {path} of process {pid}", f"will not be changed: {protected}")
        if not _is_own(path, expected, container.id):
            shown = container.cgroups_path
            raise OciError(f"cgroup {path} of process {pid}", f"is not the container's, which is {shown}")
    return dict(paths)


def _is_own(path: str, expected: str | None, container_id: str) -> bool:
    """Whether the cgroup *path* is the container's: the *expected* one, or a child of its scope, which crun
    makes; where nothing is expected, one that is named after the container."""
    if expected is not None:
        return path == expected or (expected.endswith(SCOPE) and posixpath.dirname(path) == expected)
    names = [name.removesuffix(SCOPE) for name in path.split("/")]
    return any(name == container_id or name.endswith(f"-{container_id}") for name in names)


def _annotations_of_sandbox(spec: Spec, container_id: str, bundle: str) -> Mapping[str, str]:
    sandbox = sandbox_id(spec)
    document = sibling_config(bundle, sandbox, container_id) if sandbox and bundle else None
    if document is None:
        return {}
    try:
        return parse_spec(document, f"config.json of sandbox {sandbox}").annotations or {}
    except OciError as error:
        logger.warning("the annotations of a pod cannot be read", extra={"problem": str(error)})
        return {}


def origin_of(entry: Entry) -> WithoutNri:
    """How the container came, if that was not over NRI.

    Raises:
        OciError: it came over NRI.
    """
    if isinstance(entry.origin, Nri):
        raise OciError(f"container {entry.container_id}", "came over NRI")
    return entry.origin


def is_same_start(entry: Entry, present: Entry | None) -> bool:
    """Whether *present* is of the same start of the container as *entry*. The shared CPUs that it was
    notified of and the nodes of its memory can differ: decisions about others change them."""
    return present is not None and present.origin is entry.origin


def was_rewritten(entry: Entry, announced: WithoutNri) -> bool:
    """Whether the spec of this very start of the container was rewritten already."""
    origin = entry.origin
    if isinstance(origin, Nri) or not origin.changes_spec:
        return False
    return origin.container.pid in (0, announced.container.pid)


def with_process(entry: Entry, announced: WithoutNri) -> Entry:
    """*entry* with the process and the cgroup that were *announced*."""
    origin = origin_of(entry)
    container = replace(origin.container, pid=announced.container.pid)
    placed = replace(
        origin,
        container=container,
        bundle=announced.bundle,
        cgroups=announced.cgroups,
        start_ticks=announced.start_ticks,
    )
    return replace(entry, recorded_origin=placed)


def without_ours(entry: Entry, wanted: Adjustment, change: Resources) -> Resources:
    """*change* without cpusets that we have set, or that are *wanted* now: a runtime that repeats them did
    not choose them."""
    cpus, mems = change.cpuset_cpus, change.cpuset_mems
    applied = origin_of(entry).applied
    return replace(
        change,
        cpuset_cpus=None if cpus in (entry.notified_cpus, applied.cpuset_cpus, wanted.cpuset_cpus) else cpus,
        cpuset_mems=None if mems in (entry.decision.placement.mems, applied.cpuset_mems) else mems,
    )

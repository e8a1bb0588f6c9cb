"""A container's cgroup as the daemon uses it: found, read in one go, changed with care; v1 and v2 alike.

Opened once and held by descriptor, so that a container that has ended can't be confused with a later one.
Calls block: a write of ``cpuset.mems`` or of a memory limit may have to migrate or reclaim pages first.
"""

import errno
import os
import posixpath
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from msgspec import Struct
from msgspec.structs import replace

from bayplan.errors import HostError
from bayplan.host.cgroup import (
    CgroupFiles,
    LegacyCpusetFiles,
    LegacyMemoryFiles,
    UnifiedFiles,
)
from bayplan.host.hierarchy import CPUSET, CRUN_CHILD, MEMORY, SCOPE, Hierarchy, clean, container_paths
from bayplan.host.kernelfs import (
    AbsentError,
    CgroupIdentity,
    Directory,
    RefusedError,
    WatchedFiles,
    parse_file,
    parse_number,
    read_optional,
)
from bayplan.model.workload import Update
from bayplan.quantity import format_bytes, hugetlb_size
from bayplan.sets import CpuSet, IdSet, NodeSet

_UNIFIED_KEYS: Final = {
    "cpuset.cpus": "cpus",
    "cpuset.mems": "mems",
    "memory.max": "memory_max",
    "memory.high": "memory_high",
    "memory.low": "memory_low",
    "memory.min": "memory_min",
    "memory.oom.group": "memory_oom_group",
}
"""The keys of an OCI spec's ``unified`` that this program writes, and the attributes of UnifiedFiles."""

_POSSIBLE: Final = {
    b"cpuset.cpus": "sys/devices/system/cpu/possible",
    b"cpuset.mems": "sys/devices/system/node/possible",
}
_HUGETLB_MOUNT: Final = "sys/fs/cgroup/hugetlb"
_ONLY_NODE: Final = "0"
"""Of a kernel without NUMA, which has no list of nodes."""

_MONITOR: Final = "-conmon-"
"""In the names of the cgroups that CRI-O and podman make for the processes that watch their containers."""


class Readings(Struct, frozen=True):
    """What the kernel enforces for one container, read at about the same time.

    ``cpus`` and ``mems`` are as written (empty: inherited, v2 only), ``*_effective`` what is used in fact.
    None is "no limit"; the kernel keeps limits rounded down to whole pages. On cgroup v1 there is no
    protection (low and min are 0), no memory.high and no group kill.
    """

    path: str
    cpus: CpuSet
    mems: NodeSet
    cpus_effective: CpuSet
    mems_effective: NodeSet
    memory_max_bytes: int | None
    memory_high_bytes: int | None = None
    memory_low_bytes: int | None = 0
    memory_min_bytes: int | None = 0
    memory_oom_group: bool = False


class ContainerCgroup:
    """The cgroup of one container. Close it, or use it in a ``with``.

    ``path`` is where its processes are, below the cgroup mount; ``identity`` distinguishes it from a cgroup
    of the same name before or after it.

    Every method raises AbsentError once the container is gone; HostError where a file is missing or shows
    something that cannot be; RefusedError, with the kernel's errno, where the kernel will not.
    """

    def __init__(self, hierarchy: Hierarchy, paths: dict[str, str]) -> None:
        """Open *paths* (by controller: cpuset, memory), as `Hierarchy.paths_of_process` gives them."""
        self._hierarchy = hierarchy
        self._stack = ExitStack()
        try:
            self._open({controller: clean(path) for controller, path in paths.items()})
        except BaseException:
            self.close()
            raise

    @classmethod
    def find(
        cls, hierarchy: Hierarchy, cgroups_path: str, cgroup_parent: str = "", container_id: str = ""
    ) -> Self:
        """Open the cgroup of a container by the fields of its runtime; see `cgroup_paths.container_paths`.

        Raises:
            ParseError: they give no path below the cgroup mount.
            AbsentError: there is no such cgroup (yet, or any more).
        """
        candidates = container_paths(cgroups_path, cgroup_parent, container_id)
        mount = hierarchy.mounts[CPUSET]
        # All are in one directory, the pod's; a failed open and its message take ten times as long as this.
        parent = f"{mount}{posixpath.dirname(candidates[0])}"
        for path in candidates if os.access(parent, os.F_OK) else ():
            try:
                return cls(hierarchy, dict.fromkeys((CPUSET, MEMORY), path))
            except AbsentError:
                continue
        raise AbsentError(
            f"{mount}{candidates[0]}",
            "there is no such cgroup" + "".join(f", nor {mount}{path}" for path in candidates[1:]),
        )

    @property
    def root(self) -> Path:
        """The root directory of the host that it is on."""
        return self._hierarchy.root

    @property
    def identity(self) -> CgroupIdentity:
        """The device and inode of the directory."""
        return self._cpusets[-1].directory.identity

    @property
    def directory(self) -> str:
        """The full path of its cpuset: of the scope, where crun has the processes in a cgroup below that."""
        return self._cpusets[0].directory.path

    def partition(self) -> str:
        """What cpuset.cpus.partition of that shows; empty where the kernel has no such file."""
        files = self._cpusets[0]
        return (
            files.partition if isinstance(files, UnifiedFiles) and files.has(UnifiedFiles.partition) else ""
        )

    def is_current(self) -> bool:
        """Whether this cgroup is still the one at its path."""
        return self._cpusets[-1].directory.is_current()

    def read(self) -> Readings:
        """All values at once: some ten small files."""
        cpuset, memory = self._cpusets[-1], self._memories[-1]
        try:
            limits = [files.memory_max for files in self._memories]
            readings = Readings(
                self.path,
                cpuset.cpus,
                cpuset.mems,
                cpuset.cpus_effective,
                cpuset.mems_effective,
                min((limit for limit in limits if limit is not None), default=None),
            )
            if isinstance(memory, LegacyMemoryFiles):
                return readings
            return replace(
                readings,
                memory_high_bytes=memory.memory_high,
                memory_low_bytes=memory.memory_low,
                memory_min_bytes=memory.memory_min,
                memory_oom_group=memory.memory_oom_group,
            )
        except AbsentError as error:
            raise self._explained(error) from error

    def effective(self, *, mems: bool) -> tuple[CpuSet, NodeSet | None]:
        """The CPUs that are used in fact, and with *mems* the nodes."""
        cpuset = self._cpusets[-1]
        try:
            return cpuset.cpus_effective, cpuset.mems_effective if mems else None
        except AbsentError as error:
            raise self._explained(error) from error

    def watch(self, watched: WatchedFiles, amounts: Iterable[str]) -> None:
        """Have *watched* what `effective` reads, and of the *amounts* that `read` reads those that there are
        (attributes of UnifiedFiles)."""
        cpuset = self._cpusets[-1]
        for effective in (type(cpuset).cpus_effective.filename, type(cpuset).mems_effective.filename):
            cpuset.directory.watch(effective, watched)
        for files in self._memories:
            for name in amounts:
                field = getattr(type(files), name, None)
                if field is not None:
                    files.directory.watch(field.filename, watched)

    def texts(self, names: Iterable[str]) -> Mapping[str, str]:
        """Files of any controller, as they are; those that it does not have are left out."""
        found = {}
        for name in names:
            try:
                found[name] = self._memories[-1].directory.read(name.encode())
            except AbsentError:
                continue
        return found

    def processes(self) -> tuple[int, ...]:
        """The ids of all processes in it and below, ascending.

        Raises:
            HostError: some are in a PID namespace that this process can't see into.
        """
        try:
            pids = frozenset(_processes(self._cpusets[-1].directory))
        except AbsentError as error:
            raise self._explained(error) from error
        if 0 in pids:
            raise HostError(self.path, "has processes that this PID namespace cannot see: run in the host's")
        return tuple(sorted(pids))

    def write_cpus(self, cpus: CpuSet) -> None:
        """Run the processes on *cpus* only, at least one."""
        self._set("cpus", cpus)

    def write_mems(self, mems: NodeSet) -> None:
        """Allocate memory from *mems* only. cgroup v2 also moves there what is elsewhere; v1 does not."""
        self._set("mems", mems)

    def write_memory_max(self, limit_bytes: int | None) -> None:
        """Limit the memory; None removes the limit.

        Raises:
            RefusedError: EBUSY, the limit is below what is in use: cgroup v2 would take it and kill.
        """
        self._refuse_if_protected()
        for files in self._memories:
            path = files.directory.path_of(type(files).memory_max.filename)
            try:
                used_bytes = files.memory_current
                if limit_bytes is not None and limit_bytes < used_bytes:
                    problem = f"{format_bytes(limit_bytes)} is below the {format_bytes(used_bytes)} in use"
                    raise RefusedError(path, problem, errno.EBUSY)
                if isinstance(files, LegacyMemoryFiles):
                    _make_room_for_swap(files, limit_bytes)
                files.memory_max = limit_bytes
            except AbsentError as error:
                raise self._explained(error) from error

    def write_unified(self, key: str, value: str) -> None:
        """Write a cgroup v2 file by its name, with its value as an OCI spec's ``unified`` has it.

        Raises:
            HostError: not a file that this program writes, not a value of it, or the host has cgroup v1.
        """
        path = f"{self.path}/{key}"
        if key not in _UNIFIED_KEYS:
            raise HostError(path, f"is not one of {', '.join(_UNIFIED_KEYS)}")
        if not self._hierarchy.unified:
            raise HostError(path, f"needs cgroup v2, and this host has {self._hierarchy.layout.value}")
        attribute = _UNIFIED_KEYS[key]
        parsed = getattr(UnifiedFiles, attribute).parse(value.strip(), self.path)
        if attribute == "memory_max":
            self.write_memory_max(parsed)
        else:
            self._set(attribute, parsed)

    def apply(self, update: Update) -> None:
        """Write everything that *update* has, in a fixed order. Where one value fails, those before stay."""
        if update.cpuset_cpus is not None:
            self.write_cpus(update.cpuset_cpus)
        if update.cpuset_mems is not None:
            self.write_mems(update.cpuset_mems)
        if update.memory_limit_bytes is not None:
            self.write_memory_max(update.memory_limit_bytes)
        for key, value in sorted(update.unified.items()):
            self.write_unified(key, value)

    def inherit(self, *, cpus: bool, mems: bool) -> None:
        """Use all that the parent cgroup may use: on v1 its sets; on cgroup v2 all possible CPUs and nodes,
        of which the kernel takes those that the parent has. It refuses an empty cpuset while processes are
        in the cgroup (cpuset.c, validate_change())."""
        self._refuse_if_protected()
        try:
            if self._hierarchy.unified:
                names = [name for name, wanted in ((b"cpuset.cpus", cpus), (b"cpuset.mems", mems)) if wanted]
                for name in names:
                    possible = read_optional(str(self._hierarchy.root / _POSSIBLE[name])) or _ONLY_NODE
                    for files in self._cpusets:
                        files.directory.write(name, possible)
                return
            own = self._cpusets[-1]
            with Directory.open(posixpath.dirname(own.directory.path)) as parent:
                its = LegacyCpusetFiles(parent)
                if cpus:
                    own.cpus = its.cpus
                if mems:
                    own.mems = its.mems
        except AbsentError as error:
            raise self._explained(error) from error

    def close(self) -> None:
        """Give the descriptors back; a second time does nothing."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, paths: dict[str, str]) -> None:
        mounts = self._hierarchy.mounts
        self._cpusets: tuple[UnifiedFiles | LegacyCpusetFiles, ...]
        self._memories: tuple[UnifiedFiles | LegacyMemoryFiles, ...]
        self._paths = frozenset(paths.values())
        self.path = paths[CPUSET]
        if not self._hierarchy.unified:
            self._cpusets = (LegacyCpusetFiles(self._keep(Directory.open(mounts[CPUSET] + paths[CPUSET]))),)
            self._memories = (LegacyMemoryFiles(self._keep(Directory.open(mounts[MEMORY] + paths[MEMORY]))),)
            return
        if self.path.endswith(f"{SCOPE}/{CRUN_CHILD}"):
            self.path = self.path.removesuffix(f"/{CRUN_CHILD}")
        outer = self._keep(Directory.open(mounts[CPUSET] + self.path))
        levels = [UnifiedFiles(outer)]
        if self.path.endswith(SCOPE):
            try:
                levels.append(UnifiedFiles(self._keep(outer.child(CRUN_CHILD))))
                self.path += f"/{CRUN_CHILD}"
            except AbsentError:
                pass  # runc: the processes are in the scope itself
        self._cpusets = self._memories = tuple(levels)

    def _keep(self, directory: Directory) -> Directory:
        return self._stack.enter_context(directory)

    def _set(self, attribute: str, value: object) -> None:
        self._refuse_if_protected()
        if isinstance(value, IdSet) and not value:
            raise HostError(
                f"{self.path}/cpuset.{attribute}", "found the empty set, expected at least one id"
            )
        for files in self._cpusets:
            try:
                setattr(files, attribute, value)
            except AbsentError as error:
                raise self._explained(error) from error

    def _refuse_if_protected(self) -> None:
        reasons = [self._hierarchy.why_protected(path) for path in self._paths]
        # Paths lie in a cgroup namespace; process ids of the reader's own PID namespace do not.
        if any(os.getpid() in files.procs for files in (*self._cpusets, *self._memories)):
            reasons.append("this process is in it")
        for reason in reasons:
            if reason is not None:
                raise HostError(self.path, f"will not be changed: {reason}")

    def _explained(self, error: AbsentError) -> HostError:
        """A file is not there: because the cgroup is gone, or because its controller is not switched on."""
        if not self.is_current():
            return AbsentError(self._cpusets[-1].directory.path, "the cgroup is gone")
        return HostError(
            error.subject, "there is no such file: is the controller in the parent's cgroup.subtree_control?"
        )


def _make_room_for_swap(files: LegacyMemoryFiles, limit_bytes: int | None) -> None:
    """Raise the limit of memory and swap together first: cgroup v1 refuses a memory limit above it."""
    if files.has(LegacyMemoryFiles.memory_and_swap_max):
        both_bytes = files.memory_and_swap_max
        if both_bytes is not None and (limit_bytes is None or limit_bytes > both_bytes):
            files.memory_and_swap_max = limit_bytes


def _processes(directory: Directory) -> Iterator[int]:
    try:
        yield from CgroupFiles(directory).procs
    except RefusedError as error:
        if error.errno != errno.EOPNOTSUPP:  # a threaded cgroup: its processes are listed further up
            raise
    for name in directory.children():
        try:
            with directory.child(name) as child:
                yield from _processes(child)
        except AbsentError:
            continue  # removed since it was listed


def raise_hugepage_limits(hierarchy: Hierarchy, path: str, limits_bytes: Mapping[int, int]) -> None:
    """Have the cgroup *path* (a pod's, or a container's) allow so many bytes of huge pages, by their size, if
    it allows fewer: of those in use and of those reserved, where the kernel limits these. Blocks.

    Raises:
        AbsentError: there is no such cgroup, or it has no limit of huge pages.
        HostError: it shows something that cannot be, or the kernel refuses.
    """
    mount = hierarchy.mounts[MEMORY] if hierarchy.unified else str(hierarchy.root / _HUGETLB_MOUNT)
    limit, reserved = ("max", "rsvd.max") if hierarchy.unified else ("limit_in_bytes", "rsvd.limit_in_bytes")
    with Directory.open(f"{mount}{clean(path)}") as directory:
        for size_bytes, wanted_bytes in limits_bytes.items():
            for kind in (limit, reserved):
                name = f"hugetlb.{hugetlb_size(size_bytes)}.{kind}".encode()
                try:
                    text = directory.read(name)
                except AbsentError:
                    if kind == reserved:
                        continue  # Linux before 5.7.
                    raise
                known_bytes = (
                    None if text == "max" else parse_file(directory.path_of(name), parse_number, text)
                )
                if known_bytes is not None and known_bytes < wanted_bytes:
                    directory.write(name, str(wanted_bytes))


def paths_by_id(hierarchy: Hierarchy, container_ids: Collection[str]) -> dict[str, dict[str, str]]:
    """Where the cgroups of containers are, by id, where nothing else is known of them: runtimes name them
    by the container's id, with or without a prefix and ``.scope``. Those of monitors are left out."""
    mount, wanted = hierarchy.mounts[CPUSET], frozenset(container_ids)
    found: dict[str, dict[str, str]] = {}
    for directory, children, _ in os.walk(mount):
        for name in children:
            if _MONITOR in name:
                continue
            words = name.removesuffix(SCOPE).split("-")
            ends = ("-".join(words[at:]) for at in range(len(words)))
            container_id = next((one for one in ends if one in wanted), "")
            if container_id and container_id not in found:
                path = f"{directory.removeprefix(mount)}/{name}"
                found[container_id] = dict.fromkeys((CPUSET, MEMORY), path)
    return found

"""The processes of containers: which containers have one, and how all processes of some cgroups are ended.

Whether there are any is asked again and again, of hundreds of containers. As long as the first process of a
container runs it has one: pidfds tell of that, and one poll(2) asks all of them. Where the first process is
not known, the file that says so stays open, and a pread(2) of it takes 1 us. cgroup v2 has `populated` in
cgroup.events, which counts the cgroups below; on v1 cgroup.procs is read, and where it is empty the cgroups
below. A cgroup that is removed and made again under the same name is another one: before it is said that a
container has no process, its path is opened anew. Blocks.

A process is signalled through a pidfd, opened before it was seen to be in the cgroup, so that no successor
of its id is meant. cgroup v2 kills a whole cgroup itself from Linux 5.14 on, however fast it forks. Blocks.
"""

import os
import select
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from msgspec import Struct, field

from bayplan.errors import HostError, ParseError
from bayplan.host import proc, shadow_mode
from bayplan.host.container import ContainerCgroup
from bayplan.host.hierarchy import CPUSET, CRUN_CHILD, MEMORY, Hierarchy, container_paths
from bayplan.host.kernelfs import AbsentError, refusal, write_text
from bayplan.model.origin import NRI, Origin
from bayplan.model.workload import Container, Pod

_POPULATED: Final = b"populated 1"
_MOST_BYTES: Final = 4096


class Place(Struct, frozen=True):
    """Where a container's processes are looked for.

    ``cgroups`` are the paths below the mounts, by controller, where they are known; else ``cgroups_path`` is
    the spec's, and ``cgroup_parent`` the pod's. ``pid`` is its first process, 0 where that is not known;
    ``start_ticks`` distinguishes it from a later one with its id. Without these it counts if its cgroup has
    one of ``names`` in its path: in sandboxes with a kernel of their own it is the sandbox's.
    """

    container_id: str
    cgroups_path: str = ""
    cgroup_parent: str = ""
    cgroups: Mapping[str, str] = field(default_factory=dict)
    pid: int = 0
    start_ticks: int = 0
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, pod: Pod, container: Container, origin: Origin = NRI) -> Self:
        """The place of *container*, which came as *origin* says."""
        parent = pod.cgroup_parent.rpartition("/")[2]
        return cls(
            container.id,
            container.cgroups_path,
            pod.cgroup_parent,
            origin.cgroups,
            origin.known(container).pid,
            origin.start_ticks,
            tuple(name for name in (container.id, container.pod_id, parent) if name),
        )


class Occupancy:
    """Keeps a file open for each of at most *most_files* containers: its first process if *pidfd_open* opens
    that, else what says whether there is one."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        most_files: int = 0,
        pidfd_open: Callable[[int], int] | None = None,
    ) -> None:
        self._hierarchy = hierarchy
        self._most_files = most_files
        self._pidfd_open = pidfd_open
        self._file = "cgroup.events" if hierarchy.unified else "cgroup.procs"
        self._open: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._ends = select.poll()
        """Of the first processes: which of them have ended."""

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close all files."""
        self.keep(())

    def keep(self, container_ids: Collection[str]) -> None:
        """Close the files of all other containers, and of the first processes that have ended."""
        for container_id in self._open.keys() - container_ids:
            os.close(self._open.pop(container_id))
        ended = self._ended()
        for container_id, pidfd in list(self._first.items()):
            if pidfd in ended or container_id not in container_ids:
                self._ends.unregister(pidfd)
                os.close(self._first.pop(container_id))

    def have_processes(self, container_ids: Collection[str]) -> bool:
        """Whether all of these have one by the files that are open: False where that is not known of one."""
        files = [self._open.get(one, -1) for one in container_ids if one not in self._first]
        return -1 not in files and not self._ended() and all(map(self._shows_process, files))

    def has_process(self, place: Place) -> bool:
        """Whether the container has a process: any in its cgroup, or its first one elsewhere. Of a first
        process that is followed it is known since the last `keep`.

        Raises:
            HostError: the kernel does not say.
        """
        if place.container_id in self._first:
            return True
        descriptor = self._open.get(place.container_id)
        if descriptor is not None:
            if self._shows_process(descriptor):
                return True
            os.close(self._open.pop(place.container_id))
        return any(self._is_occupied(place, path) for path in _paths(place)) or self._first_runs(place)

    def _ended(self) -> set[int]:
        """The first processes that have ended, by their files."""
        return {descriptor for descriptor, _ in self._ends.poll(0)} if self._first else set()

    def _is_followed(self, place: Place) -> bool:
        """Whether a file of the first process is open from now on: it ran after that was opened."""
        if self._pidfd_open is None or place.pid <= 1:
            return False
        try:
            pidfd = self._pidfd_open(place.pid)
        except OSError:
            return False  # gone, or a kernel without
        runs = False
        try:
            runs = self._first_runs(place)
        finally:
            if not runs:
                os.close(pidfd)
        if runs:
            self._first[place.container_id] = pidfd
            self._ends.register(pidfd, select.POLLIN)
        return runs

    def _is_occupied(self, place: Place, path: str) -> bool:
        """Whether there is a process in the cgroup *path*, whose file is kept open then."""
        name = f"{self._hierarchy.mounts[CPUSET]}{path}/{self._file}"
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return self._has_processes(path)
        except OSError as error:
            raise refusal(name, "cannot be opened", error) from error
        occupied = self._shows_process(descriptor)
        has_room = len(self._open) + len(self._first) < self._most_files
        if occupied and has_room and not self._is_followed(place):
            self._open[place.container_id] = descriptor
        else:
            os.close(descriptor)
        return occupied or (not self._hierarchy.unified and self._has_processes(path))

    def _shows_process(self, descriptor: int) -> bool:
        try:
            text = os.pread(descriptor, _MOST_BYTES, 0)
        except OSError:
            return False  # the cgroup is gone
        return _POPULATED in text if self._hierarchy.unified else bool(text.strip())

    def _has_processes(self, path: str) -> bool:
        """Whether there is a process in the cgroup *path* or below it, by lists of all."""
        try:
            with ContainerCgroup(self._hierarchy, dict.fromkeys((CPUSET, MEMORY), path)) as cgroup:
                return bool(cgroup.processes())
        except AbsentError:
            return False

    def _first_runs(self, place: Place) -> bool:
        if place.pid <= 1:
            return False
        if place.start_ticks:
            return proc.runs(proc.Process(place.pid, place.start_ticks), self._hierarchy.root)
        return proc.runs_within(place.pid, place.names, self._hierarchy.root)


def _paths(place: Place) -> tuple[str, ...]:
    """The paths of the cgroup below the mount, the most certain one first."""
    if place.cgroups:
        return (place.cgroups[CPUSET].removesuffix(f"/{CRUN_CHILD}"),)
    try:
        return container_paths(place.cgroups_path, place.cgroup_parent, place.container_id)
    except ParseError:
        return ()


LOOK_S: Final = 0.1
KILLED_S: Final = 10.0
"""So long the kernel may take to end what was killed, e.g. processes that wait for a disk."""

_KILL: Final = "cgroup.kill"


def wait_for_end(
    hierarchy: Hierarchy,
    cgroups: Sequence[str],
    limit_s: float,
    clock_s: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> bool:
    """Whether there are no processes in *cgroups* any more within *limit_s*.

    Raises:
        HostError: they cannot be listed.
    """
    end_s = clock_s() + limit_s
    while running := any(_pids(hierarchy, path) for path in cgroups):
        if clock_s() >= end_s:
            break
        pause(LOOK_S)
    return not running


def end_processes(
    hierarchy: Hierarchy,
    cgroups: Sequence[str],
    grace_s: float,
    clock_s: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] = time.sleep,
) -> str:
    """End all processes in *cgroups*, paths below the mount: asked to by SIGTERM, and killed after *grace_s*.
    What is still there at last as a sentence, empty if nothing is.

    Raises:
        ShadowModeError: no process is ended.
        HostError: they cannot be listed, or not be killed.
    """
    for path in cgroups:
        shadow_mode.check_off(path)
        if (reason := hierarchy.why_protected(path)) is not None:
            raise HostError(path, f"nobody there is ended: {reason}")
    for path in cgroups:
        _signal(hierarchy, path, signal.SIGTERM)
    if wait_for_end(hierarchy, cgroups, grace_s, clock_s, pause):
        return ""
    for path in cgroups:
        _kill(hierarchy, path)
    if wait_for_end(hierarchy, cgroups, KILLED_S, clock_s, pause):
        return ""
    left = [pid for path in cgroups for pid in _pids(hierarchy, path)]
    return f"processes {', '.join(map(str, left))} were killed and are still there after {KILLED_S:g} s"


def _kill(hierarchy: Hierarchy, path: str) -> None:
    directory = Path(f"{hierarchy.mounts[CPUSET]}{path}")
    if hierarchy.unified and (directory / _KILL).exists():
        with suppress(AbsentError):
            write_text(str(directory / _KILL), "1")
        return
    # Those that are forked meanwhile, too: nothing forks faster for long than it is killed.
    for _ in range(10):
        if not _signal(hierarchy, path, signal.SIGKILL):
            return


def _signal(hierarchy: Hierarchy, path: str, number: signal.Signals) -> int:
    """Send a signal to all processes in the cgroup; how many there were."""
    pids = _pids(hierarchy, path)
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if pid in _pids(hierarchy, path):
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            continue
        except OSError as error:
            raise HostError(f"process {pid}", f"cannot be ended: {error.strerror}") from error
        finally:
            os.close(descriptor)
    return len(pids)


def _pids(hierarchy: Hierarchy, path: str) -> tuple[int, ...]:
    try:
        with ContainerCgroup(hierarchy, dict.fromkeys((CPUSET, MEMORY), path)) as cgroup:
            return cgroup.processes()
    except AbsentError:
        return ()

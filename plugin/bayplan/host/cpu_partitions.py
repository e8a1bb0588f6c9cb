"""Isolated partitions of cgroup v2: the CPUs of a container on which the kernel balances no load.

The kernel takes such CPUs from every other cgroup, whatever their cpuset.cpus say, and gives them back when
the partition ends. It is a remote partition (Documentation/admin-guide/cgroup-v2.rst): the cgroups above are
none, and each of them, up to the one below the root, has the CPUs in its cpuset.cpus.exclusive, which Linux
has from 6.7 on. What those files were is recorded before (`bayplan.host.changed_files`), and what others have
in them stays: CPUs are added for as long as a container below has them, and taken out again. When the
state of one changes, the kernel says so (`StateEvents`).

Invariant: a cgroup is one of our partitions, on the CPUs that it was given, or it and those above show
nothing of it. Where the kernel refuses, or takes one back, it is undone whole.
"""

import asyncio
import ctypes
import errno
import os
import posixpath
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from bayplan.errors import HostError
from bayplan.host.changed_files import ChangedFiles, Value
from bayplan.host.kernelfs import AbsentError, RefusedError, parse_file, read_optional, read_text, refusal
from bayplan.host.libc import libc
from bayplan.sets import CpuSet, cpus_text

RECORD: Final = "cpu_partitions.json"
"""In the state directory."""

ISOLATED: Final = "isolated"
_MEMBER: Final = "member"
_PARTITION: Final = "/cpuset.cpus.partition"
_EXCLUSIVE: Final = "/cpuset.cpus.exclusive"
_CPUS: Final = "cpuset.cpus"
_KEPT: Final = "cpuset.cpus.isolated"

_IN_MODIFY: Final = 0x2
_EVENT_BYTES: Final = 64 * 1024
"""Of a queue of 16384 events of 16 bytes each: what is left is said again at once."""

RETRY_S: Final = 10.0
"""Between two attempts that the kernel refuses: each writes the files of all levels, and syncs a record."""


class _Refused(Struct, frozen=True):
    cpus: CpuSet
    at_s: float
    error: HostError


class StateEvents:
    """What the kernel says of the states of partitions: inotify(7) on cpuset.cpus.partition, as cgroup-v2.rst
    has it. Our own changes are said as well. A cgroup that goes takes its watch along."""

    def __init__(self) -> None:
        """Raises HostError: there are too many of the kind on the host."""
        self._descriptor: int = libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            error = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            raise refusal("inotify", "cannot be opened", error)

    def watch(self, directory: str) -> None:
        """From now on also the one in *directory*; one that is not there, or watched already, is passed
        over. From any thread."""
        libc().inotify_add_watch(self._descriptor, os.fsencode(f"{directory}{_PARTITION}"), _IN_MODIFY)

    async def changed(self) -> None:
        """Wait until the state of a partition has changed since the last time."""
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._descriptor, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._descriptor)
        os.read(self._descriptor, _EVENT_BYTES)

    def close(self) -> None:
        """Watch no partition any more."""
        os.close(self._descriptor)


class CpuPartitions:
    """The partitions below *mount*, the root of cgroup v2. All calls block, and come one after the other.
    Directories are full paths."""

    def __init__(self, mount: str, files: ChangedFiles, now_s: Callable[[], float] = time.monotonic) -> None:
        self._mount = mount
        self._files = files
        self._now_s = now_s
        self._refused: dict[str, _Refused] = {}
        self.events: StateEvents | None = None
        """Hears of the state of the partitions that are taken."""

    @classmethod
    def recorded(cls, mount: str, directory: Path, root: Path = Path("/")) -> "CpuPartitions":
        """The partitions that there are, by the record in the state *directory*."""
        return cls(mount, ChangedFiles(directory / RECORD, root))

    @property
    def held(self) -> Mapping[str, CpuSet]:
        """The CPUs of each partition, by its directory."""
        changes = self._files.changes
        found = [path.removesuffix(_PARTITION) for path in changes if path.endswith(_PARTITION)]
        own = {directory: changes.get(f"{directory}{_EXCLUSIVE}") for directory in found}
        return {path: CpuSet() if one is None else CpuSet.parse(one.ours) for path, one in own.items()}

    def take(self, directory: str, cpus: CpuSet) -> None:
        """Have *cpus*, which its cpuset.cpus has, isolated for the cgroup in *directory*.

        Raises:
            AbsentError: there is no such cgroup.
            HostError: the kernel will not, in its own words; or it was refused less than `RETRY_S` ago.
        """
        if self.events is not None:
            self.events.watch(directory)
        held = self.held.get(directory)
        state = self._state(directory)
        if held == cpus and state == ISOLATED:
            return
        before = self._refused.get(directory)
        if before is not None and before.cpus == cpus and self._now_s() - before.at_s < RETRY_S:
            raise before.error
        try:
            self._take(directory, cpus, state, ours=held is not None)
        except AbsentError:
            raise
        except HostError as error:
            self._refused[directory] = _Refused(cpus, self._now_s(), error)
            raise
        self._refused.pop(directory, None)

    def give_back(self, directory: str) -> None:
        """Have its CPUs be like others again, and what it added to the files of cgroups above taken out.

        Raises:
            HostError: the kernel will not; it is still known what there was.
        """
        held = {path: cpus for path, cpus in self.held.items() if path != directory}
        values: dict[str, Value] = {f"{directory}{name}": _as_before for name in (_PARTITION, _EXCLUSIVE)}
        for above in reversed(list(self._above(directory))):
            values[f"{above}{_EXCLUSIVE}"] = partial(_with_cpus, above, _below(above, held))
        self._refused.pop(directory, None)
        for error in self._files.set(values).values():
            raise error

    def give_all_back(self) -> dict[str, HostError]:
        """Leave nothing of ours; what the kernel will not let go, by path."""
        return self._files.restore()

    def lost_cpus(self, isolated_at_boot: CpuSet) -> CpuSet:
        """CPUs that the kernel keeps isolated for a cgroup that is no more: Linux 6.12 does so where one
        ended while its partition was invalid, and gives them to no cgroup until the next boot.

        Raises:
            HostError: a list of CPUs is garbage.
        """
        kept = _cpus_of(Path(self._mount) / _KEPT)
        lost = kept - isolated_at_boot
        for directory, cpus in self.held.items():
            if Path(directory).is_dir():
                lost -= cpus
        # To look at all cgroups takes a second where there are thousands, and is needed only where others
        # have partitions as well.
        states = Path(self._mount).rglob(_PARTITION[1:]) if lost else ()
        for state in states:
            if (read_optional(str(state)) or "").startswith(ISOLATED):
                lost -= _cpus_of(state.with_name(_CPUS)) | _cpus_of(state.with_name(_EXCLUSIVE[1:]))
        # What was given back meanwhile is not kept any more.
        return lost & _cpus_of(Path(self._mount) / _KEPT) if lost else lost

    def _take(self, directory: str, cpus: CpuSet, state: str, *, ours: bool) -> None:
        if ours:
            self.give_back(directory)
        elif state != _MEMBER:
            raise HostError(f"{directory}{_PARTITION}", f"is {state!r}, set by somebody else")
        held = {**self.held, directory: cpus}
        values: dict[str, Value] = {
            f"{level}{_EXCLUSIVE}": partial(_with_cpus, level, _below(level, held))
            for level in (*self._above(directory), directory)
        }
        try:
            _read(directory, _EXCLUSIVE)
            self._set(values)
            self._set({f"{directory}{_PARTITION}": lambda _: ISOLATED})
            state = self._state(directory)
            if state != ISOLATED:
                path = f"{directory}{_PARTITION}"
                raise RefusedError(path, f"{ISOLATED} for {cpus_text(cpus)} became {state!r}", errno.EINVAL)
        except HostError:
            self.give_back(directory)
            raise

    def _set(self, values: Mapping[str, Value]) -> None:
        for error in self._files.set(values).values():
            raise error

    def _state(self, directory: str) -> str:
        return _read(directory, _PARTITION)

    def _above(self, directory: str) -> Iterator[str]:
        """The cgroups above that one, from below the root downwards."""
        above = posixpath.dirname(directory)
        if above.startswith(f"{self._mount}/"):
            yield from self._above(above)
            yield above


def _cpus_of(path: Path) -> CpuSet:
    return parse_file(str(path), CpuSet.parse, (read_optional(str(path)) or "").strip())


def _read(directory: str, name: str) -> str:
    try:
        return read_text(f"{directory}{name}").strip()
    except AbsentError as error:
        if not Path(directory).is_dir():
            raise
        raise HostError(error.subject, "there is no such file: the kernel has it from 6.7 on") from error


def _below(level: str, held: Mapping[str, CpuSet]) -> CpuSet:
    """The CPUs of all *held* partitions that are in *level* or below."""
    found = CpuSet()
    for directory, cpus in held.items():
        if directory == level or directory.startswith(f"{level}/"):
            found |= cpus
    return found


def _with_cpus(level: str, cpus: CpuSet, before: str) -> str:
    return str(parse_file(f"{level}{_EXCLUSIVE}", CpuSet.parse, before) | cpus)


def _as_before(before: str) -> str:
    return before

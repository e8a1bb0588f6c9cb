"""Processes: whether they run, and their oom_score_adj.

A process is its id *and* its start time, because ids are used again. Everything is done through one open
descriptor of /proc/PID, which never leads to a successor. Process 1 and below are refused: runtimes report
pid 0 or 1 for a process in another PID namespace.
"""

import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from bayplan.errors import HostError, ParseError
from bayplan.host.kernelfs import AbsentError, Directory, RefusedError, garbage, parse_file

OOM_SCORE_ADJ_MIN: Final = -1000
OOM_SCORE_ADJ_MAX: Final = 1000

_STARTTIME_AFTER_NAME: Final = 19
"""proc_pid_stat(5): field 22, counted from the one after the name, which may contain anything."""
_ENDED: Final = frozenset({"Z", "X"})
"""The states of a process that has ended: zombie, dead."""

_ATTEMPTS: Final = 10


class Process(Struct, frozen=True):
    """One process. ``start_ticks`` is its start in clock ticks since boot."""

    pid: int
    start_ticks: int


def identify(pid: int, root: Path = Path("/")) -> Process:
    """The process that has this id now.

    Raises:
        AbsentError: there is none.
        HostError: *pid* is 1 or less, or /proc/PID/stat is garbage.
    """
    with _open(pid, root) as directory:
        return Process(pid, _start_ticks(directory))


def runs(process: Process, root: Path = Path("/")) -> bool:
    """Whether *process* runs; a zombie does not.

    Raises:
        HostError: /proc/PID/stat is garbage.
    """
    try:
        with _same(process, root) as directory:
            return not _ENDED.issuperset(_state(directory))
    except AbsentError:
        return False


def runs_within(pid: int, names: Iterable[str], root: Path = Path("/")) -> bool:
    """Whether process *pid* runs in a cgroup with one of *names* in its path; a zombie does not.

    Raises:
        HostError: *pid* is 1 or less, or a file cannot be read.
    """
    try:
        with _open(pid, root) as directory:
            cgroups = directory.read(b"cgroup")
            return any(name in cgroups for name in names) and not _ENDED.issuperset(_state(directory))
    except AbsentError:
        return False


def read_oom_score_adj(process: Process, root: Path = Path("/")) -> int:
    """The oom_score_adj of *process*, -1000 to 1000.

    Raises:
        AbsentError: the process is gone, even if another one has its id.
        HostError: the file is garbage.
    """
    with _same(process, root) as directory:
        path = directory.path_of(b"oom_score_adj")
        return parse_file(path, _parse_oom_score_adj, directory.read(b"oom_score_adj"))


def oom_score_adj_within(pid: int, name: str, root: Path = Path("/")) -> int | None:
    """The oom_score_adj of process *pid*, if that is in a cgroup with *name* in its path; else None.

    Raises:
        HostError: *pid* is 1 or less, or a file is garbage.
    """
    try:
        with _open(pid, root) as directory:
            if name not in directory.read(b"cgroup"):
                return None
            text = directory.read(b"oom_score_adj")
            return parse_file(directory.path_of(b"oom_score_adj"), _parse_oom_score_adj, text)
    except AbsentError:
        return None


def write_oom_score_adj(process: Process, value: int, root: Path = Path("/")) -> None:
    """Set the oom_score_adj of *process* (of all its threads; children made later inherit it).

    Raises:
        AbsentError: the process is gone, even if another one has its id.
        RefusedError: the kernel will not; EACCES: lowering it needs CAP_SYS_RESOURCE.
        ParseError: *value* is not between -1000 and 1000.
    """
    _check_range(value)
    with _same(process, root) as directory:
        try:
            directory.write(b"oom_score_adj", str(value))
        except RefusedError as error:
            if error.errno == errno.EACCES:
                problem = f"cannot be lowered to {value}: this program lacks CAP_SYS_RESOURCE"
                raise RefusedError(error.subject, problem, error.errno) from error
            raise


def write_oom_score_adj_of_all(
    pids: Callable[[], Iterable[int]], value: int, root: Path = Path("/")
) -> tuple[Process, ...]:
    """Set the oom_score_adj of all processes that *pids* lists, and of those that they start meanwhile.

    *pids* is called again until it lists nothing new: a child forked before its parent was written has the
    old value. A process that ends meanwhile is left out. Returns those written, ascending.

    Raises:
        RefusedError: as `write_oom_score_adj`; those written before keep their new value.
        HostError: a pid of 1 or less, or new processes kept coming.
    """
    seen: set[Process] = set()
    written: list[Process] = []
    for _ in range(_ATTEMPTS):
        found = set(_identify_all(pids(), root)) - seen
        if not found:
            return tuple(sorted(written, key=_by_pid))
        seen |= found
        for process in sorted(found, key=_by_pid):
            try:
                write_oom_score_adj(process, value, root)
            except AbsentError:
                continue
            written.append(process)
    raise HostError(str(root / "proc"), f"new processes kept coming while oom_score_adj {value} was written")


@contextmanager
def _open(pid: int, root: Path) -> Iterator[Directory]:
    path = str(root / "proc" / str(pid))
    if pid <= 1:
        raise HostError(path, f"process {pid} is never a container's; expected an id above 1")
    with Directory.open(path) as directory:
        yield directory


@contextmanager
def _same(process: Process, root: Path) -> Iterator[Directory]:
    with _open(process.pid, root) as directory:
        started = _start_ticks(directory)
        if started != process.start_ticks:
            problem = f"is another process by now: it started at {started}, not {process.start_ticks}"
            raise AbsentError(directory.path, problem)
        yield directory


def _identify_all(pids: Iterable[int], root: Path) -> Iterator[Process]:
    for pid in pids:
        try:
            yield identify(pid, root)
        except AbsentError:
            continue


def _by_pid(process: Process) -> int:
    return process.pid


def _state(directory: Directory) -> list[str]:
    """The letter of the process's state, alone in a list."""
    return directory.read(b"stat").rpartition(")")[2].split()[:1]


def _start_ticks(directory: Directory) -> int:
    text = directory.read(b"stat")
    fields = text.rpartition(")")[2].split()
    if len(fields) <= _STARTTIME_AFTER_NAME or not fields[_STARTTIME_AFTER_NAME].isdigit():
        raise garbage(directory.path_of(b"stat"), text, "the start time of the process as field 22")
    return int(fields[_STARTTIME_AFTER_NAME])


def _check_range(value: int) -> int:
    if not OOM_SCORE_ADJ_MIN <= value <= OOM_SCORE_ADJ_MAX:
        raise ParseError("oom_score_adj", str(value), "a number from -1000 to 1000")
    return value


def _parse_oom_score_adj(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise ParseError("oom_score_adj", text, "a number from -1000 to 1000")
    return _check_range(int(text))

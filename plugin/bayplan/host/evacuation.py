"""Moves a container's memory off the nodes that it is to leave, before its cpuset.mems is written.

Before, so that a container whose memory does not fit stays where it is. What counts is what
the kernel cannot give up: page cache stays behind and is reclaimed by whoever needs the node. Pages move in
pieces, as relief moves them: migrate_pages(2) takes all of a process at once, and whoever maps memory in it
waits for that. Only huge pages of hugetlbfs need it. Everything blocks; the time is checked between pieces.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Event
from typing import Final, NamedTuple

from msgspec import Struct

from bayplan.errors import HostError
from bayplan.host.container import ContainerCgroup
from bayplan.host.kernelfs import AbsentError
from bayplan.host.live_memory import read_nodes
from bayplan.host.page_migration import huge_page_bytes, migrate_pages
from bayplan.host.page_moves import Pace, move_pages
from bayplan.quantity import GIB, MIB, format_bytes
from bayplan.sets import NodeSet, nodes_text

REST_BYTES: Final = 16 * MIB
"""As much as this may be left: the kernel moves it while cpuset.mems is written. It covers what is allocated
during the last step, and what the counters of a cgroup are behind on a machine with 64 CPUs (64 pages for
each)."""

SETTLING_S: Final = 2.1
"""The kernel sums up a cgroup's counters every two seconds; until then they may show moved pages."""

TURN_BYTES: Final = GIB
"""So much goes to one of several nodes before it is looked again which of them has most room."""

_NEVER: Final = Event()
"""Never set."""


class Bounds(NamedTuple):
    """For one container: after so many seconds no step begins, and so many bytes are moved at most, not more
    than ``rate_bytes`` in a second. What is waited for the sake of the rate does not count as time."""

    deadline_s: float
    most_bytes: int
    rate_bytes: int = sys.maxsize


class Evacuation(Struct, frozen=True):
    """What became of it: ``moved_bytes`` were moved, ``left_bytes`` are still on the nodes to leave.
    ``obstacle`` says why the container cannot leave them, and is empty if it can."""

    moved_bytes: int = 0
    left_bytes: int = 0
    obstacle: str = ""


class _Held(NamedTuple):
    """What a container has on some nodes: ordinary memory that cannot be reclaimed, and huge pages."""

    memory_bytes: int
    huge_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.memory_bytes + self.huge_bytes

    @property
    def is_rest(self) -> bool:
        """Whether so little is left that the kernel moves it with the write of cpuset.mems. Of huge pages
        nothing may be left."""
        return self.memory_bytes <= REST_BYTES and not self.huge_bytes


Migrate = Callable[[int, NodeSet, NodeSet], object]
"""Moves what a process has on nodes to others, as far as it can be moved."""


def evacuate(
    cgroup: ContainerCgroup,
    leave: NodeSet,
    stay: NodeSet,
    bounds: Bounds,
    *,
    huge_pages: bool = False,
    stop: Event = _NEVER,
    migrate: Migrate | None = None,
    clock_s: Callable[[], float] = time.monotonic,
    pause: Callable[[float], object] | None = None,
) -> Evacuation:
    """Move what the processes in *cgroup* have on *leave* to *stay*; with *huge_pages* those of hugetlbfs
    have to move as well. Once *stop* is set no further step begins.

    Raises:
        AbsentError: the container is gone.
        HostError: the kernel does not say where its memory is, or which processes it has.
    """

    def held() -> _Held:
        return _held(cgroup, leave, huge_pages=huge_pages)

    wait = pause or stop.wait
    until_s = clock_s() + bounds.deadline_s

    def in_time(moved_bytes: int = 0) -> bool:
        nonlocal until_s
        if moved_bytes:
            paced_s = moved_bytes / bounds.rate_bytes
            wait(paced_s)
            until_s += paced_s
        return clock_s() < until_s and not stop.is_set()

    in_pieces = partial(move_in_pieces, go_on=in_time, root=cgroup.root)
    migrate = migrate or (migrate_pages if huge_pages else in_pieces)
    before = now = held()
    if before.total_bytes > bounds.most_bytes:
        most = format_bytes(bounds.most_bytes)
        return Evacuation(
            0, before.total_bytes, f"it has {_on(before, leave)}, and at most {most} are moved at once"
        )
    problem, stuck = "", False
    while not (now.is_rest or stuck) and in_time():
        problem = _one_pass(cgroup, leave, stay, migrate, in_time)
        last, now = now, held()
        if not now.is_rest and now.total_bytes >= last.total_bytes:
            wait(SETTLING_S)
            now = held()
            stuck = now.total_bytes >= last.total_bytes
    moved_bytes = max(0, before.total_bytes - now.total_bytes)
    if now.is_rest:
        return Evacuation(moved_bytes, now.total_bytes)
    time_text = "" if stuck else f" within {bounds.deadline_s:g} s"
    what = f"{_on(now, leave)} could not be moved{time_text}"
    return Evacuation(moved_bytes, now.total_bytes, f"{what}: {problem}" if problem else what)


def move_in_pieces(
    pid: int, leave: NodeSet, stay: NodeSet, go_on: Callable[[int], bool], root: Path = Path("/")
) -> int:
    """Move what process *pid* has on *leave* to *stay*, each time to the node there with most free memory,
    for as long as *go_on* says, which is given what was moved since it was asked last; how many bytes were
    moved.

    Raises:
        AbsentError: the process is gone.
        HostError: nothing of it can be moved.
    """
    pace, moved_bytes, obstacle = Pace(), 0, ""
    turn_bytes = TURN_BYTES if len(stay) > 1 else sys.maxsize
    for source in leave:
        while go_on(0):
            target = _most_room(stay, root)
            found = move_pages(pid, source, target, turn_bytes, pace, go_on, root)
            moved_bytes, obstacle = moved_bytes + found.moved_bytes, found.obstacle or obstacle
            if found.exhausted or not found.moved_bytes:
                break
    if obstacle and not moved_bytes:
        problem = f"its pages cannot be moved to {nodes_text(stay)}: {obstacle}"
        raise HostError(f"process {pid}", problem)
    return moved_bytes


def _most_room(nodes: NodeSet, root: Path) -> int:
    """That of *nodes* with most free memory."""
    if len(nodes) == 1:
        return min(nodes)
    found = read_nodes(dict.fromkeys(nodes, 0), {}, root)
    return max(nodes, key=lambda node: found[node].free_bytes if node in found else -1)


def _held(cgroup: ContainerCgroup, nodes: NodeSet, *, huge_pages: bool) -> _Held:
    huge_bytes = 0
    if huge_pages:
        huge_bytes = sum(huge_page_bytes(pid, nodes, cgroup.root) for pid in cgroup.processes())
    by_node = cgroup.held_pages().of_processes_bytes
    return _Held(sum(by_node.get(node, 0) for node in nodes), huge_bytes)


def _one_pass(
    cgroup: ContainerCgroup,
    leave: NodeSet,
    stay: NodeSet,
    migrate: Migrate,
    in_time: Callable[[], bool],
) -> str:
    """Move the pages of every process once. What went wrong the last time something did."""
    problem = ""
    for pid in cgroup.processes():
        if not in_time():
            break
        try:
            migrate(pid, leave, stay)
        except AbsentError:
            continue
        except HostError as error:
            problem = str(error)
    return problem


def _on(held: _Held, nodes: NodeSet) -> str:
    return f"{format_bytes(held.total_bytes)} on {nodes_text(nodes)}"

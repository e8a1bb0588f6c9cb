"""Pages of real processes are moved, also where some of them end or may not be touched meanwhile."""

import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from threading import Event

import pytest
from msgspec.structs import replace

from bayplan.daemon.page_relief import PASSING_S, PageRelief
from bayplan.host.page_moves import PagesMoved
from bayplan.host.reclaim import shorten_cpu_lists
from bayplan.placement.page_placement import ContainerPages, LivePages, NodeMemory, PageMove, Plan, Risk
from bayplan.quantity import GIB, MIB
from bayplan.sets import NodeSet
from support.oci_node import OciNode

PATH = "/pods/batch"
HOLDS = """
import mmap, os, sys
size = 8 << 20
memory = mmap.mmap(-1, 8 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:size] = b"x" * size
print("touched", flush=True)
for _ in sys.stdin:
    if not os.fork():
        memory[:size] = b"y" * size
        os._exit(0)
    os.wait()
    print(memory[:size] == b"x" * size, flush=True)
"""
NOBODY = 1 << 22
"""Above the highest pid that the kernel gives."""


@pytest.fixture
def holders() -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes with 8 MiB each."""
    found = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for one in found:
        assert one.stdout is not None
        assert one.stdout.readline() == "touched\n"
    yield found
    for one in found:
        one.kill()
        one.communicate()


def seen(wanted_bytes: int) -> LivePages:
    """A plan to move so much of the container; this machine has one node, to which it is moved."""
    one = ContainerPages("batch", "batch", NodeSet([0]), 0, {0: wanted_bytes}, {0: wanted_bytes})
    nodes = {0: NodeMemory(GIB)}
    return LivePages(0, nodes, {"batch": one}, Plan(moves=(PageMove("batch", 0, 0, wanted_bytes),)))


def relief(
    root: Path,
    pids: list[int],
    stopping: Event | None = None,
    clock_s: Callable[[], float] = time.monotonic,
    shorten: Callable[[Collection[int], Path], int] = shorten_cpu_lists,
) -> tuple[PageRelief, OciNode]:
    node = OciNode(root)
    directory = node.make_cgroup(PATH)
    (directory / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return PageRelief(node.hierarchy, GIB, clock_s=clock_s, stopping=stopping, shorten=shorten), node


class Meanwhile(Event):
    """Something happens before each call to the kernel, where relief waits for its rate."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self.happens = happens

    def wait(self, timeout: float | None = None) -> bool:
        self.happens()
        return super().wait(timeout)


def test_a_process_that_forks_while_it_is_moved_keeps_what_it_has(
    tmp_path: Path, holders: list[subprocess.Popen[str]]
) -> None:
    holder, kept = holders[0], list[str]()

    def fork() -> None:
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write("\n")
        holder.stdin.flush()
        kept.append(holder.stdout.readline())

    made, _ = relief(tmp_path, [holder.pid], Meanwhile(fork))
    assert made.carry_out(seen(8 * MIB), {"batch": PATH}, step_s=60) == 8 * MIB
    assert len(kept) > 1
    assert set(kept) == {"True\n"}


def test_a_process_that_ends_while_it_is_moved_does_not_keep_others_from_it(
    tmp_path: Path, holders: list[subprocess.Popen[str]]
) -> None:
    first, second = holders
    calls = list[int]()

    def end() -> None:
        calls.append(1)
        if len(calls) == 2:
            first.kill()
            first.wait()

    made, _ = relief(tmp_path, [first.pid, second.pid], Meanwhile(end))
    assert made.carry_out(seen(GIB), {"batch": PATH}, step_s=60) >= 8 * MIB
    (record,) = made.records(all_of_them=True)
    assert record.obstacle == ""
    assert made.movable("batch", {0: 64 * MIB}) == {0: 64 * MIB}


def test_what_the_kernel_refuses_is_said_and_tried_again_soon(
    tmp_path: Path, holders: list[subprocess.Popen[str]]
) -> None:
    """As where its cpuset has just changed: here there is no such node."""
    now_s = [0.0]
    made, node = relief(tmp_path, [holders[0].pid], clock_s=lambda: now_s[0])
    (node.directory(PATH) / "memory.numa_stat").write_text(
        f"inactive_anon N0={8 * MIB}\nactive_anon N0=0\nunevictable N0=0\n"
    )
    look = seen(8 * MIB)
    refused = replace(look, plan=Plan(moves=(PageMove("batch", 0, 1000, 8 * MIB),)))
    assert made.carry_out(refused, {"batch": PATH}) == 0
    (record,) = made.records(all_of_them=True)
    assert f"process {holders[0].pid}: " in record.obstacle
    made.keep({"batch"})
    assert made.movable("batch", {0: 8 * MIB}) == {0: 0}
    now_s[0] += PASSING_S
    assert made.movable("batch", {0: 8 * MIB}) == {0: 8 * MIB}
    # Nor is it said of another container that gets the id of one that has ended.
    now_s[0] -= PASSING_S
    made.keep(())
    assert made.movable("batch", {0: 8 * MIB}) == {0: 8 * MIB}
    assert made.carry_out(look, {"batch": PATH}) == 8 * MIB


def test_of_several_processes_those_that_ended_are_passed_over(
    tmp_path: Path, holders: list[subprocess.Popen[str]]
) -> None:
    first, second = holders
    first.kill()
    first.wait()
    made, _ = relief(tmp_path, [NOBODY, first.pid, second.pid])
    assert made.carry_out(seen(4 * MIB), {"batch": PATH}) == 4 * MIB
    (record,) = made.records(all_of_them=True)
    assert (record.moved_bytes, record.obstacle) == (4 * MIB, "")


def test_who_has_nothing_left_there_is_not_taken_for_unmovable(
    tmp_path: Path, holders: list[subprocess.Popen[str]]
) -> None:
    """All processes end while it is planned that much more of them is moved."""
    for one in holders:
        one.kill()
        one.wait()
    made, node = relief(tmp_path, [one.pid for one in holders])
    (node.directory(PATH) / "memory.numa_stat").write_text(
        "inactive_anon N0=0\nactive_anon N0=0\nunevictable N0=0\n"
    )
    assert made.carry_out(seen(64 * MIB), {"batch": PATH}) == 0
    assert made.movable("batch", {0: 64 * MIB}) == {0: 64 * MIB}


def test_it_ends_in_the_middle_when_it_is_stopped(
    tmp_path: Path, holders: list[subprocess.Popen[str]]
) -> None:
    made, _ = relief(tmp_path, [one.pid for one in holders])
    made.stopping.set()
    assert made.carry_out(seen(GIB), {"batch": PATH}) == 0
    assert made.records(all_of_them=True) == ()


def test_the_node_that_has_least_left_comes_first_also_where_another_lacks_more(tmp_path: Path) -> None:
    moves, asked = tuple(PageMove("batch", source, 2, 64 * MIB) for source in (0, 1)), list[int]()
    held = dict.fromkeys((0, 1), 64 * MIB)
    risks = (
        Risk(NodeSet([0]), 500 * MIB, 100 * MIB, 400 * MIB),
        Risk(NodeSet([1]), 50 * MIB, 5 * MIB, 45 * MIB),
    )
    look = LivePages(
        0,
        {0: NodeMemory(100 * MIB), 1: NodeMemory(4 * MIB, MIB), 2: NodeMemory(GIB)},
        {"batch": ContainerPages("batch", "batch", NodeSet([0, 1, 2]), 0, held, held)},
        Plan(risks, moves),
    )

    def move(_: str, source: int, target: int, wanted_bytes: int, go_on: object) -> PagesMoved:
        asked.append(source)
        return PagesMoved(wanted_bytes)

    made = PageRelief(OciNode(tmp_path).hierarchy, GIB, move)
    assert made.carry_out(look, {"batch": PATH}) == 128 * MIB
    assert asked == [1, 0]


class Lists:
    """Lists of CPUs that have so many bytes of any node."""

    def __init__(self, *bytes_by_call: int) -> None:
        self.left = list(bytes_by_call)
        self.asked: list[set[int]] = []

    def __call__(self, nodes: Collection[int], root: Path) -> int:
        self.asked.append(set(nodes))
        return self.left.pop(0) if self.left else 0


def test_what_lists_of_cpus_give_back_is_not_moved(
    tmp_path: Path, holders: list[subprocess.Popen[str]]
) -> None:
    lists = Lists(8 * MIB, 8 * MIB - 1)
    made, _ = relief(tmp_path, [holders[0].pid], shorten=lists)
    assert made.carry_out(seen(8 * MIB), {"batch": PATH}, step_s=60) == 8 * MIB
    assert made.records(all_of_them=True) == ()
    assert made.carry_out(seen(8 * MIB), {"batch": PATH}, step_s=60) == 8 * MIB
    assert [one.moved_bytes for one in made.records(all_of_them=True)] == [8 * MIB]
    # And once more, for what was moved.
    assert lists.asked == [{0}, {0}, {0}]


def test_lists_are_asked_for_what_nobody_can_make_room_for(tmp_path: Path) -> None:
    lists = Lists(MIB)
    made, _ = relief(tmp_path, [], shorten=lists)
    risk = Risk(NodeSet([0, 3]), GIB, 0, GIB)
    at_risk = LivePages(0, {}, {}, Plan(risks=(risk,), unmet_bytes=GIB, reclaim_bytes={2: MIB}))
    assert made.carry_out(at_risk, {}) == MIB
    assert lists.asked == [{0, 2, 3}]

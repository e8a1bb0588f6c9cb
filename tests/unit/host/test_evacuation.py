"""Which memory has to leave, when it has, and what is said when it cannot."""

import subprocess
import sys
from threading import Event

import pytest

from bayplan.errors import HostError
from bayplan.host.container import ContainerCgroup
from bayplan.host.evacuation import (
    REST_BYTES,
    SETTLING_S,
    Bounds,
    Evacuation,
    evacuate,
    move_in_pieces,
)
from bayplan.host.kernelfs import AbsentError, RefusedError
from bayplan.host.page_moves import MOST_PAGES
from bayplan.quantity import GIB, MIB
from bayplan.sets import NodeSet
from support.pages import CgroupPages

SCOPE = "/kubepods.slice/kubepods-pod1.slice/crio-c1.scope"
CGROUPS_PATH = "kubepods-pod1.slice:crio:c1"
HOME, LEFT = NodeSet([0]), NodeSet([1])
BOUNDS = Bounds(30.0, GIB)


class Clock:
    """Time that passes where somebody pauses, and a second with each process."""

    def __init__(self):
        self.now_s = 100.0
        self.pauses = []

    def __call__(self):
        return self.now_s

    def pause(self, duration_s):
        self.pauses.append(duration_s)
        self.now_s += duration_s


@pytest.fixture
def node(v2):
    v2.add(SCOPE, cgroup__procs="41\n42")
    v2.add(f"{SCOPE}/inner", cgroup__procs="43")
    return v2


@pytest.fixture
def pages(node):
    return CgroupPages(node.base / SCOPE.lstrip("/"))


def moved(node, pages, bounds=BOUNDS, clock=None, migrate=None, **more):
    clock = clock or Clock()
    with ContainerCgroup.find(node.detect(), CGROUPS_PATH) as cgroup:
        return evacuate(
            cgroup,
            LEFT,
            HOME,
            bounds,
            migrate=migrate or pages.migrate,
            clock_s=clock,
            pause=clock.pause,
            **more,
        )


def test_all_processes_are_asked_to_move_and_page_cache_stays(node, pages):
    pages.hold(
        {
            "anon": {0: 5 * MIB, 1: 300 * MIB},
            "file": {0: 0, 1: 700 * MIB},
            "kernel_stack": {0: 0, 1: 32 * MIB},
            "inactive_anon": {0: 5 * MIB, 1: 200 * MIB},
            "active_anon": {0: 0, 1: 60 * MIB},
            "unevictable": {0: 0, 1: 40 * MIB},
        }
    )
    assert moved(node, pages) == Evacuation(moved_bytes=300 * MIB)
    assert pages.calls == [(pid, LEFT, HOME) for pid in (41, 42, 43)]
    assert pages.held["file"][1] == 700 * MIB


def test_nothing_is_asked_where_only_little_is_left(node, pages):
    pages.hold({"inactive_anon": {0: 0, 1: REST_BYTES}, "file": {1: GIB}})
    assert moved(node, pages) == Evacuation(left_bytes=REST_BYTES)
    assert pages.calls == []


def test_what_does_not_fit_is_said_after_the_counters_have_settled(node, pages):
    pages.hold({"inactive_anon": {0: 0, 1: 300 * MIB}})
    pages.room_bytes = 100 * MIB
    clock = Clock()

    def migrate(pid, leave, stay):
        if pages.migrate(pid, leave, stay):
            raise RefusedError(f"process {pid}", "no room on node 0", 12)
        return 0

    found = moved(node, pages, clock=clock, migrate=migrate)
    assert found == Evacuation(
        100 * MIB, 200 * MIB, "200Mi on node 1 could not be moved: process 43: no room on node 0"
    )
    assert clock.pauses == [SETTLING_S]


def test_counters_that_lag_behind_are_waited_for(node, pages):
    pages.hold({"inactive_anon": {0: 0, 1: 300 * MIB}})
    clock = Clock()

    def migrate(*_):
        return 0

    def pause(duration_s):
        clock.pauses.append(duration_s)
        pages.hold({"inactive_anon": {0: 300 * MIB, 1: 0}})

    clock.pause = pause
    assert moved(node, pages, clock=clock, migrate=migrate) == Evacuation(300 * MIB)
    assert clock.pauses == [SETTLING_S]


def test_no_step_begins_after_the_deadline(node, pages):
    pages.hold({"inactive_anon": {0: 0, 1: 300 * MIB}})
    clock, seen = Clock(), []

    def migrate(pid, *_):
        seen.append(pid)
        clock.now_s += 20
        held = pages.held
        held["inactive_anon"][1] -= 50 * MIB
        pages.hold(held)
        return 0

    found = moved(node, pages, clock=clock, migrate=migrate)
    assert seen == [41, 42]
    assert found == Evacuation(100 * MIB, 200 * MIB, "200Mi on node 1 could not be moved within 30 s")


def test_no_step_begins_once_it_is_to_stop(node, pages):
    pages.hold({"inactive_anon": {0: 0, 1: 300 * MIB}})
    stop, seen = Event(), []

    def migrate(pid, *_):
        seen.append(pid)
        stop.set()
        return 0

    with ContainerCgroup.find(node.detect(), CGROUPS_PATH) as cgroup:
        found = evacuate(cgroup, LEFT, HOME, BOUNDS, stop=stop, migrate=migrate)
    assert (seen, found.left_bytes, bool(found.obstacle)) == ([41], 300 * MIB, True)


def test_too_much_is_not_begun_with(node, pages):
    pages.hold({"inactive_anon": {0: 0, 1: 300 * MIB}})
    found = moved(node, pages, Bounds(30.0, 200 * MIB))
    assert found == Evacuation(0, 300 * MIB, "it has 300Mi on node 1, and at most 200Mi are moved at once")
    assert pages.calls == []


def test_processes_that_end_meanwhile_are_passed_over(node, pages):
    pages.hold({"inactive_anon": {0: 0, 1: 300 * MIB}})

    def migrate(pid, leave, stay):
        if pid == 41:
            raise AbsentError("process 41", "it is gone")
        return pages.migrate(pid, leave, stay)

    assert moved(node, pages, migrate=migrate) == Evacuation(300 * MIB)


def test_huge_pages_must_not_stay_behind(node, pages):
    pages.hold({"inactive_anon": {0: 0, 1: 0}})
    maps = node.root / "proc" / "42" / "numa_maps"
    maps.parent.mkdir(parents=True)
    maps.write_text("7f00 default file=/anon_hugepage huge anon=3 N1=3 kernelpagesize_kB=2048\n")
    assert moved(node, pages) == Evacuation()
    found = moved(node, pages, huge_pages=True)
    assert found == Evacuation(0, 6 * MIB, "6Mi on node 1 could not be moved")

    def migrate(*_):
        maps.write_text("7f00 default file=/anon_hugepage huge anon=3 N0=3 kernelpagesize_kB=2048\n")
        return 0

    assert moved(node, pages, huge_pages=True, migrate=migrate) == Evacuation(6 * MIB)


def test_cgroup_v1_counts_in_pages(v1):
    v1.add_v1(SCOPE, SCOPE, cgroup__procs="41")
    stat = v1.base / "memory" / SCOPE.lstrip("/") / "memory.numa_stat"
    stat.write_text(
        "total=9 N0=9\nhierarchical_anon=8192 N0=0 N1=8192\nhierarchical_unevictable=0 N0=0 N1=0\n"
    )
    with ContainerCgroup.find(v1.detect(), CGROUPS_PATH) as cgroup:

        def migrate(pid, *_):
            assert pid == 41
            stat.write_text("total=9 N0=9\nhierarchical_anon=8192 N0=8192 N1=0\n")
            return 0

        assert evacuate(cgroup, LEFT, HOME, BOUNDS, migrate=migrate) == Evacuation(32 * MIB)


def test_a_container_that_is_gone(node, pages):
    hierarchy = node.detect()
    with ContainerCgroup.find(hierarchy, CGROUPS_PATH) as cgroup:
        for file in sorted((node.base / SCOPE.lstrip("/")).rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        (node.base / SCOPE.lstrip("/")).rmdir()
        with pytest.raises(AbsentError):
            evacuate(cgroup, LEFT, HOME, BOUNDS)


HOLDS = """
import mmap, sys
memory = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:] = b"x" * (16 << 20)
print("touched", flush=True)
sys.stdin.read()
print(memory[:] == b"x" * (16 << 20), flush=True)
"""


@pytest.fixture
def holder():
    """A process with 16 MiB, on the only node of many machines: from there to there the kernel moves too."""
    one = subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert one.stdout.readline() == "touched\n"
    yield one
    one.kill()
    one.communicate()


def test_pages_of_a_process_move_in_pieces_and_are_what_they_were(holder):
    assert move_in_pieces(holder.pid, HOME, HOME, lambda _: True) >= 16 * MIB
    assert holder.communicate()[0] == "True\n"


def test_a_process_with_much_memory_is_left_in_the_middle(holder):
    asked = []

    def go_on(_):
        asked.append(1)
        return len(asked) < 3

    assert 0 < move_in_pieces(holder.pid, HOME, HOME, go_on) <= MOST_PAGES * 4096


def test_no_more_is_moved_in_a_second_than_asked_and_waiting_for_that_is_no_lost_time(node, pages, holder):
    root = node.detect().root
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc" / str(holder.pid)).symlink_to(f"/proc/{holder.pid}")
    node.add(SCOPE, cgroup__procs=str(holder.pid))
    pages.hold({"inactive_anon": {0: 20 * MIB}})
    clock, bounds = Clock(), Bounds(1.0, GIB, 2 * MIB)
    with ContainerCgroup.find(node.detect(), CGROUPS_PATH) as cgroup:
        found = evacuate(cgroup, HOME, HOME, bounds, clock_s=clock, pause=clock.pause)
    paced_s = sum(pause for pause in clock.pauses if pause != SETTLING_S)
    # The last call is not waited for.
    assert paced_s >= (16 * MIB - MOST_PAGES * 4096) / (2 * MIB)
    assert "within" not in found.obstacle


def test_what_cannot_be_moved_is_said(holder):
    with pytest.raises(HostError, match="its pages cannot be moved"):
        move_in_pieces(holder.pid, HOME, NodeSet([1000]), lambda _: True)


def test_of_several_nodes_the_one_with_most_room_is_taken(tmp_path, holder):
    maps = tmp_path / "proc" / str(holder.pid)
    maps.parent.mkdir()
    maps.symlink_to(f"/proc/{holder.pid}")

    def moved_with(free_kib):
        for node, free in free_kib.items():
            directory = tmp_path / f"sys/devices/system/node/node{node}"
            directory.mkdir(parents=True, exist_ok=True)
            rows = {"MemTotal": 999, "MemFree": free, "Active(file)": 0, "Inactive(file)": 0}
            text = "".join(f"Node {node} {name}: {amount} kB\n" for name, amount in rows.items())
            (directory / "meminfo").write_text(text)
        return move_in_pieces(holder.pid, HOME, NodeSet(free_kib), lambda _: True, tmp_path)

    assert moved_with({0: 300, 1000: 200}) >= 16 * MIB
    with pytest.raises(HostError, match="its pages cannot be moved"):
        moved_with({0: 200, 1000: 300})

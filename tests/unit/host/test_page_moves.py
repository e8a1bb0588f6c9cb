"""move_pages(2) on this kernel, which pages it is asked to move by recorded text, and how many at once."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bayplan.host.kernelfs import AbsentError, RefusedError
from bayplan.host.page_moves import (
    CALL_S,
    FEWEST_PAGES,
    FIRST_PAGES,
    MOST_PAGES,
    Pace,
    PagesMoved,
    movable_ranges,
    move_pages,
)
from bayplan.host.sysfs import read_machine
from bayplan.quantity import MIB

HERE = min(read_machine().memory_nodes)

MAPS = """\
00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/db
00651000-00652000 rw-p 00051000 08:02 173521      /usr/bin/db
00e03000-00e24000 rw-p 00000000 00:00 0           [heap]
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
7f0000200000-7f0000300000 rw-p 00000000 00:00 0
7f0000400000-7f0000500000 rw-s 00000000 00:01 9   /memfd:buffers (deleted)
7f0000600000-7f0000700000 rw-s 00000000 08:02 7   /var/lib/db/pages
7f0000800000-7f0000a00000 rw-p 00000000 00:0e 4   /anon_hugepage (deleted)
7f0000c00000-7f0000d00000 rw-p 00000000 00:00 0
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0   [stack]
7ffd00100000-7ffd00102000 r-xp 00000000 00:00 0   [vdso]
"""
NUMA_MAPS = """\
00400000 default file=/usr/bin/db mapped=82 N1=82 kernelpagesize_kB=4
00651000 default file=/usr/bin/db anon=1 dirty=1 N1=1 kernelpagesize_kB=4
00e03000 default heap anon=33 dirty=33 N0=33 kernelpagesize_kB=4
7f0000000000 bind:1-2 anon=256 dirty=256 N1=256 kernelpagesize_kB=4
7f0000200000 interleave:0-1 anon=256 dirty=256 N0=128 N1=128 kernelpagesize_kB=4
7f0000400000 default file=/memfd:buffers\\040(deleted) dirty=256 N1=256 kernelpagesize_kB=4
7f0000600000 default file=/var/lib/db/pages mapped=256 N1=256 kernelpagesize_kB=4
7f0000800000 default file=/anon_hugepage\\040(deleted) huge anon=1 dirty=1 N1=1 kernelpagesize_kB=2048
7f0000c00000 bind=static:1 anon=256 dirty=256 N1=256 kernelpagesize_kB=4
7ffd00000000 default stack anon=3 dirty=3 N1=3 kernelpagesize_kB=4
7ffd00100000 default
"""
SPARSE = """
import mmap, signal
memory = mmap.mmap(-1, 64 << 20)
memory[:8 << 20] = b"x" * (8 << 20)
print("touched", flush=True)
signal.pause()
"""


@pytest.fixture
def holder():
    """A process with 8 MiB of memory in a mapping of 64; stopped, as any step of Python's touches pages."""
    with subprocess.Popen([sys.executable, "-c", SPARSE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "touched\n"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        yield process
        process.kill()


def recorded(root: Path, resident_pages: int = 2000) -> Path:
    directory = root / "proc/42"
    directory.mkdir(parents=True)
    (directory / "maps").write_text(MAPS)
    (directory / "numa_maps").write_text(NUMA_MAPS)
    (directory / "statm").write_text(f"9000 {resident_pages} 30 1 0 9 0\n")
    (directory / "status").write_text("Name:\tdb\nHugetlbPages:\t       0 kB\n")
    return root


def test_memory_of_processes_on_the_node_is_moved_as_far_as_its_policy_allows(tmp_path):
    root = recorded(tmp_path)
    starts = [start for start, _ in movable_ranges(42, 1, 0, root)]
    assert starts == [0x651000, 0x7F0000200000, 0x7F0000400000, 0x7FFD00000000]
    starts = [start for start, _ in movable_ranges(42, 1, 2, root)]
    assert starts == [0x651000, 0x7F0000000000, 0x7F0000200000, 0x7F0000400000, 0x7FFD00000000]
    assert movable_ranges(42, 0, 1, root)[0] == (0xE03000, 0xE24000)


def test_the_page_tables_of_a_large_process_are_not_walked(tmp_path):
    root = recorded(tmp_path, resident_pages=3 << 20)
    (root / "proc/42/numa_maps").unlink()
    starts = [start for start, _ in movable_ranges(42, 1, 0, root)]
    assert 0x400000 not in starts
    assert 0x7F0000600000 not in starts
    assert {0xE03000, 0x7F0000400000} <= set(starts)


@pytest.mark.parametrize(("huge_kib", "moved"), [(2048, False), (0, True)])
def test_huge_pages_stay_also_where_the_page_tables_are_not_walked(tmp_path, huge_kib, moved):
    root = recorded(tmp_path, resident_pages=3 << 20)
    (root / "proc/42/numa_maps").unlink()
    (root / "proc/42/status").write_text(f"Name:\tdb\nHugetlbPages:\t{huge_kib:>8} kB\nThreads:\t1\n")
    starts = {start for start, _ in movable_ranges(42, 1, 0, root)}
    # A mapping with a name may be of huge pages; these are private memory without one.
    assert (0x7F0000800000 in starts, 0x7F0000400000 in starts) == (moved, moved)
    assert {0xE03000, 0x7F0000000000, 0x7FFD00000000} <= starts


def test_a_process_keeps_its_memory(holder):
    pace = Pace()
    found = move_pages(holder.pid, HERE, HERE, 4 * MIB, pace)
    assert (found.moved_bytes, found.refused_bytes, found.exhausted) == (4 * MIB, 0, False)
    assert pace.slowest_s > 0
    everything = move_pages(holder.pid, HERE, HERE, 1 << 40, pace)
    assert everything.moved_bytes >= 8 * MIB
    assert everything.exhausted
    maps = Path(f"/proc/{holder.pid}/smaps_rollup").read_text()
    (rss,) = (line.split()[1] for line in maps.splitlines() if line.startswith("Rss:"))
    assert int(rss) >= 8 << 10


TMPFS = """
import mmap, os, sys
file = os.memfd_create("cache")
os.write(file, b"x" * (32 << 20))
memory = mmap.mmap(file, 32 << 20) if sys.argv[1] == "mapped" else None
if memory:
    sum(memory[at] for at in range(0, 32 << 20, mmap.PAGESIZE))
print("written", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["mapped", "unmapped"])
def test_a_file_of_a_tmpfs_is_moved_where_somebody_maps_it(how):
    with subprocess.Popen(
        [sys.executable, "-c", TMPFS, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "written\n"
        found = move_pages(process.pid, HERE, HERE, 1 << 40, Pace())
        process.stdin.close()
    assert found.exhausted
    assert (found.moved_bytes >= 32 * MIB) == (how == "mapped")


def test_it_is_asked_before_each_call_whether_to_go_on(holder):
    asked: list[int] = []

    def go_on(moved_bytes: int) -> bool:
        asked.append(moved_bytes)
        return sum(asked) == 0

    pace = Pace()
    found = move_pages(holder.pid, HERE, HERE, 1 << 40, pace, go_on)
    assert 0 < found.moved_bytes == sum(asked) < 8 * MIB
    assert not found.exhausted
    # It goes on where it was, and what is before that place is looked at again after the end.
    rest = move_pages(holder.pid, HERE, HERE, 1 << 40, pace)
    assert not rest.exhausted
    everything = move_pages(holder.pid, HERE, HERE, 1 << 40, pace)
    assert everything.exhausted
    assert everything.moved_bytes == found.moved_bytes + rest.moved_bytes


def test_what_the_kernel_refuses_is_an_error_with_its_number(holder):
    with pytest.raises(RefusedError) as caught:
        move_pages(holder.pid, HERE, 1000, MIB, Pace())
    assert caught.value.errno in (errno.ENODEV, errno.EINVAL)
    assert move_pages(holder.pid, 1000, HERE, MIB, Pace()) == PagesMoved(exhausted=True)


def test_a_process_that_is_gone(holder):
    holder.kill()
    holder.wait()
    with pytest.raises(AbsentError):
        move_pages(holder.pid, HERE, HERE, MIB, Pace())


def test_dear_calls_become_smaller_and_cheap_ones_larger():
    cpu_s, now_s = [0.0], [0.0]
    pace = Pace(lambda: cpu_s[0], lambda: now_s[0])

    def taking(seconds: float, waiting: float = 0.0) -> int:
        def call() -> int:
            cpu_s[0] += seconds
            now_s[0] += seconds + waiting
            return 0

        return pace.timed(call)

    taking(CALL_S * 2)
    assert pace.pages == FIRST_PAGES // 2
    for _ in range(20):
        taking(CALL_S * 2)
    assert pace.pages == FEWEST_PAGES
    taking(CALL_S / 2)
    assert pace.pages == FEWEST_PAGES
    # What is waited for is the same for every call, and dearer the smaller they are.
    for _ in range(20):
        taking(CALL_S / 8, waiting=CALL_S * 10)
    assert pace.pages == MOST_PAGES
    assert pace.slowest_s == pytest.approx(CALL_S * 10.125)

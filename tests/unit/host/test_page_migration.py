"""migrate_pages(2) on this kernel, and what /proc says of huge pages on recorded text."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bayplan.host.container import ContainerCgroup
from bayplan.host.kernelfs import AbsentError, RefusedError
from bayplan.host.page_moves import huge_page_bytes, migrate_pages, move_huge_pages
from bayplan.host.sysfs import read_machine
from bayplan.quantity import MIB
from bayplan.sets import NodeSet
from support.oci_node import OciNode

HERE = read_machine().memory_nodes
FIRST = NodeSet([min(HERE)])
NOWHERE = NodeSet([1000])

HOLDING = """
import mmap, sys
memory = mmap.mmap(-1, 8 << 20)
memory.write(b"x" * (8 << 20))
print("touched", flush=True)
sys.stdin.read()
"""
WITHOUT_PRIVILEGES = """
import ctypes, os, sys
from bayplan.host.kernelfs import RefusedError
from bayplan.host.page_moves import migrate_pages
from bayplan.sets import NodeSet
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    migrate_pages(int(sys.argv[1]), NodeSet.parse(sys.argv[2]), NodeSet.parse(sys.argv[2]))
except RefusedError as error:
    print(error.errno, error)
"""


@pytest.fixture
def holder():
    """A process with 8 MiB of memory of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "touched\n"
        yield process
        process.stdin.close()


def test_the_memory_of_a_process_stays_whole(holder):
    assert migrate_pages(holder.pid, FIRST, FIRST) == 0
    assert migrate_pages(holder.pid, NOWHERE, HERE) == 0
    maps = Path(f"/proc/{holder.pid}/smaps_rollup").read_text()
    (rss,) = (line.split()[1] for line in maps.splitlines() if line.startswith("Rss:"))
    assert int(rss) >= 8 << 10


def test_a_process_that_is_gone():
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(AbsentError, match=f"process {process.pid}: its pages cannot be moved to node"):
        migrate_pages(process.pid, FIRST, FIRST)


def test_a_process_that_has_ended_and_is_still_listed():
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    try:
        with pytest.raises(RefusedError) as raised:
            migrate_pages(process.pid, FIRST, FIRST)
        assert raised.value.errno == errno.EINVAL
    finally:
        process.wait()


def test_nodes_that_nobody_may_use(holder, root_user):
    with pytest.raises(RefusedError) as raised:
        migrate_pages(holder.pid, FIRST, NOWHERE)
    assert raised.value.errno == errno.EINVAL
    assert str(raised.value).startswith(
        f"process {holder.pid}: its pages cannot be moved to node 1000: Invalid argument (it is ending, or"
    )


def test_without_privileges(holder, root_user):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PRIVILEGES, str(holder.pid), str(FIRST)],
        capture_output=True,
        text=True,
        check=True,
    )
    number, _, text = done.stdout.partition(" ")
    assert int(number) == errno.EPERM
    assert "CAP_SYS_PTRACE" in text


def numa_maps(tmp_path, text):
    directory = tmp_path / "proc" / "42"
    directory.mkdir(parents=True)
    (directory / "numa_maps").write_text(text)


def test_huge_pages_are_counted_by_node(tmp_path):
    numa_maps(
        tmp_path,
        "55d0 default file=/bin/cat mapped=3 N0=3 kernelpagesize_kB=4\n"
        "7f00 default file=/anon_hugepage huge anon=6 N0=4 N1=2 kernelpagesize_kB=2048\n"
        "7f40 bind:1 file=/mnt/huge/x huge dirty=1 N12=1 kernelpagesize_kB=1048576\n"
        "7fff default stack anon=3 dirty=3 N1=3 kernelpagesize_kB=4\n",
    )
    assert huge_page_bytes(42, NodeSet([1]), tmp_path) == 4 * MIB
    assert huge_page_bytes(42, NodeSet([0, 12]), tmp_path) == (8 + 1024) * MIB
    assert huge_page_bytes(42, NodeSet([2]), tmp_path) == 0


def test_a_process_without_maps_has_no_huge_pages(tmp_path):
    assert huge_page_bytes(42, NodeSet([0]), tmp_path) == 0
    # A file called "huge" makes no huge pages.
    numa_maps(tmp_path, "55d0 default file=/opt/huge mapped=3 N0=3 kernelpagesize_kB=4\n")
    assert huge_page_bytes(42, NodeSet([0]), tmp_path) == 0


HUGE = "7f0000000000 default file=/anon_hugepage huge anon={} dirty={} {} kernelpagesize_kB=2048\n"
PATH = "/kubepods/pod1/c1"
HOME, LEFT = NodeSet([0]), NodeSet([1])


@pytest.mark.parametrize(
    ("stays", "most_mib", "said"),
    [
        ({}, 64, ""),
        ({42}, 64, "32Mi of huge pages on node 1 could not be moved: process 42: no free huge pages"),
        ({}, 63, "it has 64Mi of huge pages on node 1, and at most 63Mi are moved at once"),
    ],
)
def test_huge_pages_of_all_processes_move_or_it_is_said_why_not(tmp_path, stays, most_mib, said):
    node, called = OciNode(tmp_path), []
    node.make_cgroup(PATH)
    for pid in (41, 42):
        node.make_process(pid, PATH)
        (tmp_path / f"proc/{pid}/numa_maps").write_text(HUGE.format(16, 16, "N1=16"))

    def migrate(pid, leave, stay):
        called.append((pid, leave, stay))
        if pid in stays:
            raise RefusedError(f"process {pid}", "no free huge pages", errno.ENOMEM)
        (tmp_path / f"proc/{pid}/numa_maps").write_text(HUGE.format(16, 16, "N0=16"))

    with ContainerCgroup(node.hierarchy, {"cpuset": PATH, "memory": PATH}) as cgroup:
        assert move_huge_pages(cgroup, LEFT, HOME, most_mib * MIB, migrate) == said
    assert called == ([] if most_mib < 64 else [(pid, LEFT, HOME) for pid in (41, 42)])

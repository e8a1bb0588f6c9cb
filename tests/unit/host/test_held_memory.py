"""What is held outside of containers: by example, on old kernels, on cgroup v1, and on this machine."""

import pytest

from bayplan.errors import HostError
from bayplan.host.live_memory import read_held_memory, read_memory_totals
from bayplan.host.memory_statistics import HeldPages
from bayplan.quantity import KIB, MIB

MEMINFO = """Node {0} MemTotal:       {1} kB
Node {0} MemFree:        {2} kB
Node {0} Active(anon):     4096 kB
Node {0} Active(file):    10240 kB
Node {0} Inactive(file):  20480 kB
Node {0} KReclaimable:     3072 kB
Node {0} SReclaimable:     2048 kB
Node {0} HugePages_Total:    32
"""
ZONEINFO = """Node 0, zone   Normal
  pages free     1000
      nr_free_pages 1000
  pagesets
    cpu: 0
              count:    256
              high:     7000
              high_min: 0
    cpu: 1
              count:    768
              high_min: 0
Node 1, zone  Movable
    cpu: 0
              count:    0
"""
CONTAINER = HeldPages({0: 41 * MIB, 1: MIB}, {0: 4 * MIB}, {0: 90 * MIB})


@pytest.fixture
def root(tmp_path):
    for node, total_kib, free_kib in ((0, 1 << 20, 512 << 10), (1, 1 << 20, 1 << 20)):
        directory = tmp_path / f"sys/devices/system/node/node{node}"
        directory.mkdir(parents=True)
        (directory / "meminfo").write_text(MEMINFO.format(node, total_kib, free_kib))
    (tmp_path / "proc").mkdir()
    return tmp_path


def held(root, *containers, pools_bytes=0):
    return read_held_memory(containers, {0: pools_bytes, 1: 0}, root)


CACHE_BYTES = 33 * MIB
PLAIN_BYTES = 512 * MIB - CACHE_BYTES


def test_used_memory_without_cache_is_held(root):
    assert held(root) == {0: PLAIN_BYTES, 1: 0}


def test_huge_pages_are_not_ordinary_memory(root):
    assert held(root, pools_bytes=64 * MIB)[0] == PLAIN_BYTES - 64 * MIB


def test_what_containers_cannot_give_back_is_theirs(root):
    assert held(root, CONTAINER, CONTAINER)[0] == PLAIN_BYTES - 2 * 45 * MIB


def test_free_pages_at_hand_of_a_cpu_are_not_held(root):
    (root / "proc/zoneinfo").write_text(ZONEINFO)
    assert held(root)[0] == PLAIN_BYTES - 1024 * 4 * KIB


def test_what_the_kernel_keeps_free_and_what_stays_on_lists_can_nobody_have(root):
    zones = ZONEINFO.replace(
        "  pages free     1000\n", "        min 512\n        high 640\n        managed 99999\n"
    )
    (root / "proc/zoneinfo").write_text(zones)
    assert held(root)[0] == PLAIN_BYTES - 1024 * 4 * KIB + 640 * 4 * KIB
    (root / "proc/zoneinfo").write_text(zones.replace("high_min: 0", "high_min: 512"))
    assert held(root)[0] == PLAIN_BYTES - 1024 * 4 * KIB + (512 + 2 * 512) * 4 * KIB


def test_pages_that_the_kernel_is_about_to_reclaim_are_not_held(root):
    text = "nr_inactive_anon 999\nnr_isolated_anon 256\nnr_isolated_file 768\nnr_isolated_other 9999\n"
    (root / "sys/devices/system/node/node0/vmstat").write_text(text)
    assert held(root) == {0: PLAIN_BYTES - 4 * MIB, 1: 0}


def test_the_size_of_nodes_is_read_along(root):
    assert read_memory_totals([0, 1], root) == {0: 1 << 30, 1: 1 << 30}


def test_a_kernel_before_4_20_has_no_kreclaimable(root):
    path = root / "sys/devices/system/node/node0/meminfo"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if "KReclaimable" not in line))
    assert held(root)[0] == PLAIN_BYTES + MIB


def test_a_kernel_without_numa_has_the_same_lines_in_proc(tmp_path):
    (tmp_path / "proc").mkdir()
    text = MEMINFO.format(0, 1 << 20, 512 << 10).replace("Node 0 ", "")
    (tmp_path / "proc/meminfo").write_text(text)
    assert read_held_memory([], {0: 0}, tmp_path) == {0: PLAIN_BYTES}


def test_garbage_names_the_file(root):
    path = root / "sys/devices/system/node/node1/meminfo"
    path.write_text("Node 1 MemTotal: 12 kB\n")
    with pytest.raises(HostError, match="MemFree") as caught:
        held(root)
    assert caught.value.subject == str(path)


def test_this_machine():
    found = read_held_memory([], {0: 0})
    assert found[0] > 0

"""What nodes can give and containers hold: by example, on old kernels, on cgroup v1, and on this machine."""

from pathlib import Path

import pytest

from bayplan.errors import HostError
from bayplan.host.kernelfs import AbsentError
from bayplan.host.live_memory import (
    ContainerMemory,
    read_nodes,
)
from bayplan.host.memory_statistics import NodeZones, read_zones
from bayplan.placement.page_placement import NodeMemory
from bayplan.quantity import KIB, MIB
from bayplan.sets import NodeSet
from support.numa_stat import NUMA_STAT
from support.oci_node import OciNode

MEMINFO = """Node 0 MemTotal:       1048576 kB
Node 0 MemFree:         524288 kB
Node 0 Active(anon):     40960 kB
Node 0 Active(file):     61440 kB
Node 0 Inactive(file):   40960 kB
Node 0 Dirty:            10240 kB
Node 0 Writeback:         1024 kB
Node 0 KReclaimable:      3072 kB
Node 0 SReclaimable:      2048 kB
Node 0 HugePages_Total:     32
"""


def a_node(root: Path, text: str = MEMINFO) -> Path:
    directory = root / "sys/devices/system/node/node0"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "meminfo").write_text(text)
    return root


def test_a_node_gives_what_is_free_above_the_watermark_and_what_is_clean(tmp_path: Path) -> None:
    root = a_node(tmp_path)
    zones = NodeZones(10 * MIB, 20 * MIB)
    clean = (100 - 10 - 1) * MIB
    reclaimable = clean - 10 * MIB + 3 * MIB - 3 * MIB // 2
    used = (1024 - 512 - 64 - 100 - 3) * MIB
    assert read_nodes({0: 64 * MIB, 5: 0}, {0: zones}, root) == {
        0: NodeMemory((512 - 20) * MIB, reclaimable, used)
    }
    assert read_nodes({0: 0}, {0: NodeZones(513 * MIB, 600 * MIB)}, root)[0].free_bytes == 0
    assert read_nodes({0: 0}, {0: NodeZones(513 * MIB, 600 * MIB)}, root)[0].low


def test_an_old_kernel_has_no_line_for_all_that_is_reclaimable(tmp_path: Path) -> None:
    text = "".join(line for line in MEMINFO.splitlines(keepends=True) if "KReclaimable" not in line)
    assert read_nodes({0: 0}, {}, a_node(tmp_path, text))[0].reclaimable_bytes == 91 * MIB


def test_page_cache_that_the_kernel_has_lost_count_of_is_neither_free_nor_unused(tmp_path: Path) -> None:
    """As with UEK 6.12, which said that there is more of it than memory."""
    lost = MEMINFO.replace("Inactive(file):   40960", "Inactive(file): 9999999")
    (found,) = read_nodes({0: 64 * MIB}, {}, a_node(tmp_path, lost)).values()
    there = (1024 - 512 - 64 - 40 - 3) * MIB
    assert found.reclaimable_bytes == there - 11 * MIB + 3 * MIB
    assert found.used_bytes == 40 * MIB


def test_a_garbled_node_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="node0/meminfo: found 'MemTotal: none', expected lines MemTotal"):
        read_nodes({0: 0}, {}, a_node(tmp_path, "MemTotal: none"))


def test_the_path_of_a_container_is_found_once_and_again_when_it_is_gone(tmp_path: Path) -> None:
    node = OciNode(tmp_path)
    memory = ContainerMemory(node.hierarchy)
    with pytest.raises(AbsentError):
        memory.read("c1", "/pods/c1", "", {})
    directory = node.make_cgroup("/pods/c1")
    (directory / "memory.numa_stat").write_text(NUMA_STAT)
    assert memory.read("c1", "/pods/c1", "", {}).of_kernel_bytes == {0: 150}
    # What the runtime says of it counts no more.
    assert memory.read("c1", "", "", {}).of_kernel_bytes == {0: 150}
    memory.keep([])
    assert memory.read("c1", "", "", {"cpuset": "/pods/c1", "memory": "/pods/c1"}).of_files_bytes
    (directory / "memory.numa_stat").write_text("anon 12\n")
    with pytest.raises(HostError, match="'anon 12'") as caught:
        memory.read("c1", "", "", {})
    assert caught.value.subject == str(directory / "memory.numa_stat")


def test_this_machine() -> None:
    nodes = NodeSet([0])
    zones = read_zones()
    assert 0 < zones[0].low_bytes < zones[0].reserve_bytes
    found = read_nodes(dict.fromkeys(nodes, 0), zones)[0]
    assert found.used_bytes > MIB
    assert found.used_bytes % KIB == 0

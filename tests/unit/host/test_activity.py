"""What containers and nodes do, read from trees of cgroup files as the kernel writes them."""

from pathlib import Path

import pytest

from bayplan.errors import HostError
from bayplan.host.hierarchy import Hierarchy, Layout
from bayplan.host.live_memory import ActivityReader, NodeAllocations, read_allocations

STAT = "anon 4096\npgfault 1200\npgmajfault 7\n"
LEGACY_STAT = "cache 0\npgfault 1\npgmajfault 0\ntotal_pgfault 1200\ntotal_pgmajfault 7\n"
PRESSURE = (
    "some avg10=12.50 avg60=1.00 avg300=0.10 total=1234\nfull avg10=3.00 avg60=0.00 avg300=0.00 total=1\n"
)
KINDS = ("anon", "shmem", "inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable")
NUMA_STAT = "\n".join(f"{kind} N0=4096 N1=8192" for kind in KINDS)
PATHS = {"cpuset": "/pod/c", "memory": "/pod/c"}


def hierarchy(root: Path) -> Hierarchy:
    mount = str(root / "cgroup")
    return Hierarchy(Layout.UNIFIED, {"cpuset": mount, "memory": mount}, {}, root)


def write(root: Path, **files: str) -> None:
    directory = root / "cgroup/pod/c"
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("_", ".", 1)).write_text(text)


def test_faults_and_stalls_of_a_container(tmp_path: Path) -> None:
    write(
        tmp_path,
        memory_numa_stat=NUMA_STAT,
        memory_stat=STAT,
        memory_pressure=PRESSURE,
        cpu_pressure=PRESSURE,
    )
    found = ActivityReader(hierarchy(tmp_path)).read("c", "", "", PATHS)
    assert found is not None
    assert (found.page_faults, found.major_page_faults) == (1200, 7)
    assert (found.memory_stall_percent, found.cpu_stall_percent) == (12.5, 12.5)
    assert found.held.unreclaimable_bytes.keys() == {0, 1}


def test_a_kernel_without_psi_says_nothing_of_stalls(tmp_path: Path) -> None:
    write(tmp_path, memory_numa_stat=NUMA_STAT, memory_stat=LEGACY_STAT)
    found = ActivityReader(hierarchy(tmp_path)).read("c", "", "", PATHS)
    assert found is not None
    assert (found.page_faults, found.major_page_faults) == (1200, 7)
    assert found.memory_stall_percent is None


def test_a_container_that_is_gone_is_none_and_garbage_is_an_error(tmp_path: Path) -> None:
    reader = ActivityReader(hierarchy(tmp_path))
    assert reader.read("c", "", "", PATHS) is None
    write(tmp_path, memory_numa_stat="nonsense")
    with pytest.raises(HostError):
        reader.read("c", "", "", PATHS)


def test_allocations_that_missed_their_node(tmp_path: Path) -> None:
    node = tmp_path / "sys/devices/system/node/node0"
    node.mkdir(parents=True)
    (node / "numastat").write_text(
        "numa_hit 9\nnuma_miss 5\nnuma_foreign 4\ninterleave_hit 2\nlocal_node 8\nother_node 3\n"
    )
    assert read_allocations({0: None, 1: None}, tmp_path) == {
        0: NodeAllocations(5, 4, 3),
        1: NodeAllocations(),
    }

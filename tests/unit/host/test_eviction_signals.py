"""kubelet's formulas, from recorded files."""

from pathlib import Path

import pytest

from bayplan.errors import HostError
from bayplan.host.eviction_signals import (
    FileSystems,
    find_file_systems,
    has_kubelet,
    read_signals,
    thread_count,
    working_set_bytes,
)
from bayplan.host.hierarchy import CPUSET, MEMORY, Hierarchy, Layout
from bayplan.host.kernelfs import AbsentError
from bayplan.kubelet.eviction_manager import SignalObservation
from bayplan.model.kubelet_version import NEWEST, rules_of
from bayplan.quantity import GIB, KIB, MIB
from support.oci_node import OciNode

FILES = {
    "proc/meminfo": f"MemTotal: {8 * GIB // KIB} kB\nMemFree: 100 kB\n",
    "proc/loadavg": "0.20 0.18 0.12 1/800 11206\n",
    "proc/sys/kernel/pid_max": "4194304\n",
    "proc/sys/kernel/threads-max": "10000\n",
    "sys/fs/cgroup/memory.stat": f"anon {GIB}\nfile {3 * GIB}\nkernel 12345\ninactive_file {2 * GIB}\n",
    "sys/fs/cgroup/kubepods.slice/memory.max": f"{6 * GIB}\n",
    "sys/fs/cgroup/kubepods.slice/memory.current": f"{2 * GIB}\n",
    "sys/fs/cgroup/kubepods.slice/memory.stat": f"anon 1\ninactive_file {512 * MIB}\n",
    "var/lib/kubelet/config.yaml": "",
    "var/lib/containerd/x": "",
}
LEGACY = {
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
    "sys/fs/cgroup/memory/memory.stat": f"cache 1\ntotal_inactive_file {GIB}\n",
    "sys/fs/cgroup/memory/kubepods/memory.limit_in_bytes": "9223372036854771712\n",
}


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def unified(root: Path) -> Hierarchy:
    mount = str(root / "sys/fs/cgroup")
    return Hierarchy(Layout.UNIFIED, {CPUSET: mount, MEMORY: mount}, {}, root)


def test_cgroup_v2(tmp_path: Path) -> None:
    hierarchy = unified(written(tmp_path, FILES))
    found = read_signals(hierarchy, find_file_systems(tmp_path), NEWEST)
    # 8 GiB less anonymous memory and page cache, but for the inactive part of that.
    assert found["memory.available"] == SignalObservation(6 * GIB, 8 * GIB)
    assert found["allocatableMemory.available"] == SignalObservation(4 * GIB + 512 * MIB, 6 * GIB)
    assert found["pid.available"] == SignalObservation(9200, 10000)
    assert found["nodefs.available"] == found["imagefs.available"] == found["containerfs.available"]
    assert 0 < found["nodefs.inodesFree"].available <= found["nodefs.inodesFree"].capacity
    assert working_set_bytes(hierarchy, "/kubepods.slice") == GIB + 512 * MIB
    assert has_kubelet(hierarchy)


@pytest.mark.parametrize(
    ("kubelet", "minor", "available_bytes"),
    [(True, 36, 6 * GIB), (True, 37, 2 * GIB), (False, 36, 2 * GIB), (False, 37, 2 * GIB)],
)
def test_huge_pages_are_not_available_but_to_older_kubelets(
    tmp_path: Path, kubelet: bool, minor: int, available_bytes: int
) -> None:
    files = FILES | {"proc/meminfo": f"{FILES['proc/meminfo']}Hugetlb: {4 * GIB // KIB} kB\n"}
    of_pods = {} if kubelet else {name: text for name, text in files.items() if "kubepods" not in name}
    hierarchy = unified(written(tmp_path, of_pods or files))
    found = read_signals(hierarchy, FileSystems(), rules_of(minor))["memory.available"]
    # Where they are not, they are not part of the capacity either, of which thresholds are percentages.
    assert found == SignalObservation(available_bytes, available_bytes + 2 * GIB)


def test_huge_pages_beyond_what_is_available_leave_nothing(tmp_path: Path) -> None:
    files = FILES | {"proc/meminfo": f"{FILES['proc/meminfo']}Hugetlb: {7 * GIB // KIB} kB\n"}
    found = read_signals(unified(written(tmp_path, files)), FileSystems(), NEWEST)["memory.available"]
    assert found == SignalObservation(0, 2 * GIB)


def test_threads_count_and_where_the_kernel_does_not_count_them_processes(tmp_path: Path) -> None:
    node = OciNode(tmp_path)
    directory = node.make_cgroup("/pods/a")
    (directory / "below").mkdir()
    (directory / "cgroup.procs").write_text("7\n")
    (directory / "below/cgroup.procs").write_text("8\n9\n")
    assert thread_count(node.hierarchy, "/pods/a") == 3
    (directory / "pids.current").write_text("40\n")
    assert thread_count(node.hierarchy, "/pods/a") == 40
    with pytest.raises(AbsentError):
        thread_count(node.hierarchy, "/pods/b")


def test_cgroup_v1_without_a_limit_for_pods(tmp_path: Path) -> None:
    written(tmp_path, FILES | LEGACY)
    mounts = {name: str(tmp_path / "sys/fs/cgroup" / name) for name in (CPUSET, MEMORY)}
    hierarchy = Hierarchy(Layout.LEGACY, mounts, {}, tmp_path)
    found = read_signals(hierarchy, FileSystems(str(tmp_path)), NEWEST)
    assert found["memory.available"] == SignalObservation(6 * GIB, 8 * GIB)
    assert "allocatableMemory.available" not in found
    assert "imagefs.available" not in found


def test_what_is_not_there_is_not_observed_and_garbage_is_an_error(tmp_path: Path) -> None:
    plain = {
        name: text for name, text in FILES.items() if "kubepods" not in name and "containerd" not in name
    }
    hierarchy = unified(written(tmp_path, plain))
    disks = find_file_systems(tmp_path)
    assert disks == FileSystems(str(tmp_path / "var/lib/kubelet"))
    assert not has_kubelet(hierarchy)
    (tmp_path / "proc/loadavg").unlink()
    assert {"memory.available", "nodefs.available"} <= read_signals(hierarchy, disks, NEWEST).keys()
    assert "pid.available" not in read_signals(hierarchy, disks, NEWEST)
    (tmp_path / "proc/loadavg").write_text("soon\n")
    with pytest.raises(HostError, match="loadavg: found 'soon', expected"):
        read_signals(hierarchy, disks, NEWEST)
    assert find_file_systems(tmp_path / "nowhere") == FileSystems()

"""What a kernel can reclaim, and what is said where it cannot."""

from pathlib import Path

import pytest

from bayplan.host.hierarchy import CPUSET, MEMORY, Hierarchy, Layout
from bayplan.host.kernelfs import AbsentError
from bayplan.host.reclaim import missing_abilities, reclaim_in_cgroup

V1 = (
    "with cgroup v1 the kernel's memory of containers, and what services hold, is not known, and nobody is"
    " slowed down until promised memory is freed"
)


def hierarchy(root: Path, layout: Layout) -> Hierarchy:
    mounts = {name: str(root / "sys/fs/cgroup" / name) for name in (CPUSET, MEMORY)}
    for directory in mounts.values():
        Path(directory).mkdir(parents=True, exist_ok=True)
    return Hierarchy(layout, mounts, {"": "/"}, root=root)


def with_file(root: Path, path: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text("")


@pytest.mark.parametrize(
    ("layout", "path", "problem"),
    [
        (Layout.UNIFIED, "sys/fs/cgroup/memory/memory.reclaim", ""),
        (Layout.UNIFIED, "sys/devices/system/node/node3/reclaim", ""),
        (Layout.UNIFIED, "none", "page cache is not reclaimed: the kernel has memory.reclaim from 5.19 on"),
        (
            Layout.HYBRID,
            "sys/devices/system/node/node3/reclaim",
            V1,
        ),
        (
            Layout.LEGACY,
            "none",
            f"{V1}, and page cache is not reclaimed",
        ),
    ],
)
def test_what_a_machine_cannot_do(tmp_path: Path, layout: Layout, path: str, problem: str) -> None:
    with_file(tmp_path, path)
    assert missing_abilities(hierarchy(tmp_path, layout), 3) == problem


def test_a_cgroup_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(AbsentError):
        reclaim_in_cgroup(str(tmp_path / "gone"), 4096)

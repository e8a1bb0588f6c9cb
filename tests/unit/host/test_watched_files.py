"""Files that are compared with what they showed, and stay open only as long as somebody watches them."""

import os
from pathlib import Path

import pytest

from bayplan.host.kernelfs import REREAD_S, AbsentError, WatchedFiles


def open_files(directory: Path) -> int:
    """How many descriptors of this process lead below *directory*."""
    found = [one for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    return sum(str(one.readlink()).startswith(f"{directory}/") for one in found)


@pytest.mark.parametrize("dropped", [True, False], ids=["dropped", "closed"])
def test_what_changes_is_seen_and_nothing_stays_open(tmp_path: Path, *, dropped: bool) -> None:
    cpus = tmp_path / "cpuset.cpus"
    cpus.write_text("0-3\n")
    watched = WatchedFiles()
    watched.add(str(cpus))
    with pytest.raises(AbsentError):
        watched.add(str(tmp_path / "cpuset.mems"))
    assert watched.are_unchanged()
    cpus.write_text("0-2\n")
    assert not watched.are_unchanged()
    assert open_files(tmp_path) == len(watched) == 1
    if dropped:
        del watched
    else:
        watched.close()
    assert open_files(tmp_path) == 0


def test_of_a_directory_nothing_is_read_until_somebody_writes_or_a_while_has_passed(tmp_path: Path) -> None:
    cgroup, elsewhere = tmp_path / "c1", tmp_path / "elsewhere"
    cgroup.mkdir()
    elsewhere.mkdir()
    cpus = cgroup / "cpuset.cpus.effective"
    cpus.write_text("0-3\n")
    # What is written by this name nobody hears of in the other directory: as what the kernel changes itself.
    (silent := elsewhere / "same").hardlink_to(cpus)
    now_s = 0.0
    watched = WatchedFiles(lambda: now_s)
    directory = os.open(cgroup, os.O_RDONLY)
    watched.add(cpus.name, dir_fd=directory)
    os.close(directory)
    assert watched.are_unchanged()
    silent.write_text("0-1\n")
    assert watched.are_unchanged()
    now_s += REREAD_S
    assert not watched.are_unchanged()
    silent.write_text("0-3\n")
    assert watched.are_unchanged()
    silent.write_text("0-1\n")
    (cgroup / "cgroup.procs").write_text("42\n")
    assert not watched.are_unchanged()
    watched.close()
    assert watched.are_unchanged()
    assert open_files(tmp_path) == len(watched) == 0

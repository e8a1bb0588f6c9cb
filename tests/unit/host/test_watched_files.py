"""Files that are compared with what they showed, and stay open only as long as somebody watches them."""

from pathlib import Path

import pytest

from bayplan.host.kernelfs import AbsentError, WatchedFiles


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

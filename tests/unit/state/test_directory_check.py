"""A state directory that somebody arranged oddly: everything is named, before anything is opened."""

import os
from pathlib import Path

import pytest

from bayplan.errors import ConfigError
from bayplan.state import Store, check_directory


def problems_of(directory: Path) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        check_directory(directory)
    assert raised.value.source == f"state directory {directory}"
    return [str(problem) for problem in raised.value.problems]


def test_what_the_daemon_leaves_behind_is_good(tmp_path: Path) -> None:
    Store.open(tmp_path)
    (tmp_path / "lock").write_text("1\n")
    (tmp_path / "notes").symlink_to("/dev/null")
    check_directory(tmp_path)


@pytest.mark.parametrize("name", ["lock", "state.db", "state.db-wal", "state.db-shm"])
def test_links_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / name).symlink_to("elsewhere")
    (problem,) = problems_of(tmp_path)
    expected = f"{name}: found a symbolic link to elsewhere, expected a regular file (rm {tmp_path}/{name})"
    assert problem.startswith(expected)
    assert ("or stateDirectory" in problem) is (name == "state.db")


@pytest.mark.parametrize(("make", "kind"), [(os.mkfifo, "a FIFO"), (os.mkdir, "a directory")])
def test_a_lock_that_is_no_file_is_named(tmp_path: Path, make: object, kind: str) -> None:
    assert callable(make)
    make(tmp_path / "lock")
    assert problems_of(tmp_path) == [f"lock: found {kind}, expected a regular file (rm -r {tmp_path}/lock)"]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_others_may_not_write(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    (problem,) = problems_of(tmp_path)
    assert problem.startswith(
        f"its mode: found {mode:o}, expected no access for others to write (chmod go-w "
    )


@pytest.mark.root
def test_everything_is_named_at_once(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    os.mkfifo(tmp_path / "lock")
    (tmp_path / "state.db-wal").unlink(missing_ok=True)
    (tmp_path / "state.db-wal").symlink_to("/dev/null")
    (tmp_path / "state.db-shm").touch()
    os.chown(tmp_path / "state.db-shm", 65534, 65534)
    (tmp_path / "state.db").chmod(0o666)
    os.chown(tmp_path, 65534, 65534)
    tmp_path.chmod(0o775)
    found = problems_of(tmp_path)
    assert [problem.partition(",")[0] for problem in found] == [
        "its owner: found user 65534",
        "its mode: found 775",
        "lock: found a FIFO",
        "state.db: found a file with mode 666",
        "state.db-wal: found a symbolic link to /dev/null",
        "state.db-shm: found a file of user 65534",
    ]

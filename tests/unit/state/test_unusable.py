"""The error for a state directory with which the daemon cannot start."""

import errno
import os
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from bayplan.state.directory import unusable

FAILED = "disk I/O error (SQLITE_IOERR_SHMSIZE)"


@pytest.mark.parametrize(
    ("number", "cause", "advice"),
    [
        (errno.ENOSPC, "No space left on device (ENOSPC)", "make room there"),
        (errno.EDQUOT, "(EDQUOT)", "raise root's quota"),
        (errno.EROFS, "Read-only file system (EROFS)", "mount it for writing"),
    ],
)
@pytest.mark.parametrize("known", [True, False], ids=["known", "asked"])
def test_the_cause_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, cause: str, advice: str, *, known: bool
) -> None:
    def refused(**_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    if not known:
        monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    said = str(unusable(tmp_path, FAILED, number if known else None))
    assert said.startswith(f"state store {tmp_path}: ")
    assert FAILED in said
    assert cause in said
    assert f"; {advice}" in said
    assert "stateDirectory" in said


def test_a_cause_that_is_said_already_is_not_said_twice(tmp_path: Path) -> None:
    problem = f"{tmp_path}/lock: cannot be written: {os.strerror(errno.ENOSPC)}"
    said = str(unusable(tmp_path, problem, errno.ENOSPC))
    assert said.count(os.strerror(errno.ENOSPC)) == 1
    assert "(ENOSPC); make room" in said


def test_where_files_can_be_written_the_problem_stays_what_it_is(tmp_path: Path) -> None:
    assert str(unusable(tmp_path, FAILED)) == f"state store {tmp_path}: {FAILED}"
    assert str(unusable(tmp_path, FAILED, errno.EACCES)) == f"state store {tmp_path}: {FAILED}"
    assert str(unusable(tmp_path / "missing", FAILED)) == f"state store {tmp_path}/missing: {FAILED}"
    assert list(tmp_path.iterdir()) == []

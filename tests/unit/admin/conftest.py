"""The snapshot that the views and the admin socket show, and a place for sockets that others reach."""

import stat
from pathlib import Path

import pytest

from bayplan.admin.views import Snapshot
from support.snapshots import make_snapshot


@pytest.fixture
def snapshot() -> Snapshot:
    return make_snapshot()


@pytest.fixture
def open_directory(tmp_path: Path) -> Path:
    """A directory that every user may enter; nothing is taken away from those above it."""
    directory = tmp_path / "open"
    directory.mkdir()
    for one in (directory, *directory.parents):
        mode = stat.S_IMODE(one.stat().st_mode)
        if mode & 0o055 != 0o055:
            one.chmod(mode | 0o055)
    return directory

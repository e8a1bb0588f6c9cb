"""A place for sockets that other users reach."""

import stat
from pathlib import Path

import pytest


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

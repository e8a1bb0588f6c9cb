"""Setting a database aside under a name that says why.

SQLite finds a write-ahead log by the database's name, so that the companions ``-wal`` and ``-shm`` always go
with it. A few files of each kind are kept; the oldest go, or a broken disk would fill up with them.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Final

KEPT: Final = 5
COMPANIONS: Final = ("", "-wal", "-shm")


def move_aside(database: Path, mark: str) -> Path:
    """Rename *database* and its companions to ``<name>.<mark>``, numbered if that is taken; the new path.

    Raises:
        OSError: the directory does not allow it.
    """
    target = _next_name(database, mark)
    for companion in reversed(COMPANIONS):
        source = Path(f"{database}{companion}")
        if os.path.lexists(source):
            source.rename(f"{target}{companion}")
    _sync_directory(database.parent)
    _drop_oldest(database, mark)
    return target


def _next_name(database: Path, mark: str) -> Path:
    taken = _numbers(database, mark)
    if mark == "corrupt":
        return database.with_name(f"{database.name}.corrupt-{max(taken, default=0) + 1}")
    suffix = f"-{max(taken) + 1}" if taken else ""
    return database.with_name(f"{database.name}.{mark}{suffix}")


def _numbers(database: Path, mark: str) -> dict[int, list[Path]]:
    """What is set aside with that mark: number (1 where the name has none) -> files."""
    name = re.compile(rf"{re.escape(database.name)}\.{re.escape(mark)}(?:-([0-9]+))?(?:-wal|-shm)?")
    found: dict[int, list[Path]] = {}
    for path in database.parent.iterdir():
        match = name.fullmatch(path.name)
        if match is not None:
            found.setdefault(int(match[1] or 1), []).append(path)
    return found


def _drop_oldest(database: Path, mark: str) -> None:
    numbered = _numbers(database, mark)
    for number in sorted(numbered)[:-KEPT]:
        for path in numbered[number]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

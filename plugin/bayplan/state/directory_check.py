"""The state directory before anything in it is opened: nobody else may write there, and no file is a link.

Damaged files are set aside (`bayplan.state.aside`). What is checked here is no damage: somebody made it so
and has to decide, because a good record may be behind the link.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bayplan.errors import ConfigError, Problem
from bayplan.files import kind_of
from bayplan.state.aside import COMPANIONS

_FILES: Final = ("lock", *(f"state.db{companion}" for companion in COMPANIONS))
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def check_directory(directory: Path) -> None:
    """Check *directory* and the files that are opened there.

    Raises:
        ConfigError: others may write there, or a link or something else lies in the place of a file;
            everything is named, with what to do.
        OSError: it cannot be examined.
    """
    problems = (*_of_directory(directory), *_of_files(directory))
    if problems:
        raise ConfigError(f"state directory {directory}", problems)


def _of_directory(directory: Path) -> Iterator[Problem]:
    status = directory.stat()
    if status.st_uid not in (0, os.geteuid()):
        advice = f"root or user {os.geteuid()} (chown root {directory}), or another stateDirectory"
        yield Problem("its owner", f"user {status.st_uid}", advice)
    if status.st_mode & _WRITABLE_BY_OTHERS:
        advice = f"no access for others to write (chmod go-w {directory}), or another stateDirectory"
        yield Problem("its mode", f"{stat.S_IMODE(status.st_mode):o}", advice)


def _of_files(directory: Path) -> Iterator[Problem]:
    for name in _FILES:
        path = directory / name
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(status.st_mode):
            # SQLite follows a link to a database, and then keeps its log there; it refuses a log that is one.
            found = f"a symbolic link to {path.readlink()}"
            target = os.path.realpath(path)
            # Of a loop there is no other end.
            moved = (
                f"or stateDirectory set to the directory of {target}"
                if name == "state.db" and os.path.exists(target)  # noqa: PTH110 - Path.resolve raises RuntimeError
                else ""
            )
            yield Problem(name, found, " ".join(filter(None, (f"a regular file (rm {path})", moved))))
        elif not stat.S_ISREG(status.st_mode):
            if name == "lock":
                yield Problem(name, kind_of(status), f"a regular file (rm -r {path})")
        elif status.st_uid not in (0, os.geteuid()):
            yield Problem(name, f"a file of user {status.st_uid}", f"one of root's (chown root {path})")
        elif status.st_mode & stat.S_IWOTH:
            found = f"a file with mode {stat.S_IMODE(status.st_mode):o}"
            yield Problem(name, found, f"one that others cannot write (chmod go-w {path})")

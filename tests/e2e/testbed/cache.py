"""Artefacts that are expensive to make, kept between runs.

Each lives at CACHE/NAME/KEY, where KEY is a hash of the recipe (everything that went into it). It is built
in a temporary place and renamed, under a lock per key: a path that exists is whole, and two runs that start
at once build it once. What a run that was killed left in its temporary place goes with the next build.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, ClassVar

from testbed import progress
from testbed.progress import Step

Recipe = Mapping[str, object]
LOCK_POLL_S = 0.2


def cache_root() -> Path:
    """BAYPLAN_CACHE, else bayplan under XDG_CACHE_HOME, else ~/.cache/bayplan."""
    if explicit := os.environ.get("BAYPLAN_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "bayplan"


def recipe_key(recipe: Recipe) -> str:
    text = json.dumps(recipe, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def digest_files(*paths: Path) -> str:
    """One hash over the contents (and relative names) of files and of all files below directories."""
    total = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                total.update(f"{file.name}\0{file.stat().st_size}\0".encode())
                total.update(file.read_bytes())
    return total.hexdigest()


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock NAME of this cache; others wait, unless `progress.end` says that it is over."""
    directory = cache_root() / "locks"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{name}.lock").open("w") as handle:
        while not _lock(handle):
            progress.wait(LOCK_POLL_S)
        yield


def artefact(
    name: str, recipe: Recipe, build: Callable[[Path], None], *, keep: int = 3, step: Step | None = None
) -> Path:
    """The path of the artefact for this recipe; `build` is called with the path to write (file or directory).

    At most `keep` artefacts of a name stay, the least recently used go first. `step`: what is said while it
    is built.
    """
    key = recipe_key(recipe)
    final = cache_root() / name / key
    if _Survey.missing is not None:
        if step is not None and not final.exists():
            _Survey.missing[final] = step
        return final
    with locked(f"{name}-{key}"):
        if not final.exists():
            progress.check()
            _build(name, final, build, step)
        os.utime(final)
    _forget_old(final.parent, keep)
    return final


def _build(name: str, final: Path, build: Callable[[Path], None], step: Step | None) -> None:
    final.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(name, final)
    scratch = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    try:
        with progress.working_on(step) as result:
            made = scratch / name
            build(made)
            if step is not None:
                result.append(f"{disk_mb(made)} MB")
            made.rename(final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _remove_abandoned(name: str, final: Path) -> None:
    """Temporary places of builds that were killed: nobody holds their lock, but perhaps we."""
    for place in final.parent.glob(".*-*"):
        key = place.name[1:].rpartition("-")[0]
        with (cache_root() / "locks" / f"{name}-{key}.lock").open("w") as handle:
            if key == final.name or _lock(handle):
                shutil.rmtree(place, ignore_errors=True)


def _lock(handle: IO[str]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _Survey:
    missing: ClassVar[dict[Path, Step] | None] = None


def missing_steps(*makers: Callable[[], object]) -> list[Step]:
    """The steps that these functions would take, without taking them: in them `artefact` builds nothing.

    What reads an artefact that is not there ends with FileNotFoundError; what it would build is not counted.
    """
    _Survey.missing = found = dict[Path, Step]()
    try:
        for make in makers:
            with suppress(FileNotFoundError):
                make()
    finally:
        _Survey.missing = None
    return list(found.values())


def disk_mb(path: Path) -> int:
    """What a file, or all below a directory, takes on the disk."""
    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    return sum(file.lstat().st_blocks * 512 for file in files) // 1_000_000


def _forget_old(directory: Path, keep: int) -> None:
    entries = [entry for entry in directory.iterdir() if not entry.name.startswith(".")]
    entries.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
    for entry in entries[keep:]:
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)

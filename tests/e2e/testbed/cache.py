"""Artefacts that are expensive to make, kept between runs.

Each lives at CACHE/NAME/KEY, where KEY is a hash of the recipe (everything that went into it). It is built
in a temporary place and renamed, under a lock per key: a path that exists is whole, and two runs that start
at once build it once.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

Recipe = Mapping[str, object]


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
    """Hold the lock NAME of this cache; other processes wait."""
    directory = cache_root() / "locks"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def artefact(name: str, recipe: Recipe, build: Callable[[Path], None], *, keep: int = 3) -> Path:
    """The path of the artefact for this recipe; `build` is called with the path to write (file or directory).

    At most `keep` artefacts of a name stay, the least recently used go first.
    """
    key = recipe_key(recipe)
    final = cache_root() / name / key
    with locked(f"{name}-{key}"):
        if not final.exists():
            final.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=final.parent))
            try:
                made = scratch / name
                build(made)
                made.rename(final)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        os.utime(final)
    _forget_old(final.parent, keep)
    return final


def _forget_old(directory: Path, keep: int) -> None:
    entries = [entry for entry in directory.iterdir() if not entry.name.startswith(".")]
    entries.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
    for entry in entries[keep:]:
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)

"""A store that is opened on a full or read-only disk has all that was recorded, and records when it can."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bayplan.errors import StateError
from bayplan.model.ledger import Entry
from bayplan.state.directory import DirectoryLock

if TYPE_CHECKING:
    from conftest import Recording

Make = Callable[..., Entry]
Open = Callable[..., "Recording"]

pytestmark = pytest.mark.root


class Disk:
    """A small file system."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.filler = directory / "filler"

    def mount(self, *options: str) -> None:
        words = ["mount", "-t", "tmpfs", "-o", ",".join(options), "small", str(self.directory)]
        subprocess.run(words, check=True)

    def fill(self) -> None:
        with self.filler.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    one = Disk(tmp_path / "disk")
    one.directory.mkdir()
    one.mount("size=8m", "mode=0700")
    yield one
    subprocess.run(["umount", "--lazy", str(one.directory)], check=True)


def full(disk: Disk) -> None:
    disk.fill()


def read_only(disk: Disk) -> None:
    disk.mount("remount", "ro")


def has_room(disk: Disk) -> None:
    disk.mount("remount", "rw")
    disk.filler.unlink(missing_ok=True)


@pytest.mark.parametrize("hinder", [full, read_only])
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_it_has_all_and_records_again_when_there_is_room(
    open_store: Open,
    entry: Make,
    disk: Disk,
    tmp_path: Path,
    hinder: Callable[[Disk], None],
    *,
    killed: bool,
) -> None:
    before = open_store(tmp_path / "before")
    before.record([entry("a"), entry("b")])
    if not killed:
        before.close()
    for name in ("state.db", "state.db-wal"):
        if (tmp_path / "before" / name).exists():
            shutil.copy(tmp_path / "before" / name, disk.directory / name)
    assert (disk.directory / "state.db-wal").exists() == killed
    hinder(disk)
    with DirectoryLock(disk.directory):
        store = open_store(disk.directory)
        assert store.problem is not None
        assert store.problem.startswith(f"state store {disk.directory}: ")
        assert not store.is_in_place()
        assert store.entries() == [entry("a"), entry("b")]
        assert [one.decision for one in store.history()] == [entry("b").decision, entry("a").decision]
        for _ in range(2):
            with pytest.raises(StateError):
                store.record([entry("c")])
            with pytest.raises(StateError, match=r"ENOSPC|EROFS"):
                store.ensure_in_place()
        assert store.entries() == [entry("a"), entry("b")]
        has_room(disk)
        store.ensure_in_place()
        assert store.is_in_place()
        assert (store.problem, store.times_emptied) == (None, 0)
        store.record([entry("c")], gone=["a"])
        store.close()
    assert open_store(disk.directory).entries() == [entry("b"), entry("c")]


def test_without_a_database_it_begins_empty_and_is_made_when_there_is_room(
    open_store: Open, entry: Make, disk: Disk
) -> None:
    disk.fill()
    store = open_store(disk.directory)
    assert (store.entries(), store.history()) == ([], [])
    has_room(disk)
    store.record([entry("c")])
    store.close()
    assert open_store(disk.directory).entries() == [entry("c")]


def test_what_cannot_be_read_is_kept(open_store: Open, entry: Make, disk: Disk) -> None:
    (disk.directory / "state.db").write_bytes(b"nothing of ours" * 100)
    disk.fill()
    store = open_store(disk.directory)
    assert store.entries() == []
    has_room(disk)
    store.record([entry("c")])
    kept = [path for path in disk.directory.glob("state.db.*") if path.read_bytes()[:7] == b"nothing"]
    assert len(kept) == 1

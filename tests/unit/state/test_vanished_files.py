"""Files of the database, or their directory, go away or are replaced while it is open: nothing is lost."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bayplan.errors import StateError, UnavailableError
from bayplan.model.ledger import Entry
from bayplan.placement.measured_reservation import Learned
from bayplan.state import Step, Store

if TYPE_CHECKING:
    from conftest import Recording

Make = Callable[..., Entry]
Open = Callable[..., "Recording"]


def without_directory(directory: Path) -> None:
    shutil.rmtree(directory)


def with_another_directory(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))
    directory.mkdir(mode=0o700)


def without_files(directory: Path) -> None:
    for name in ("state.db", "state.db-wal", "state.db-shm"):
        (directory / name).unlink(missing_ok=True)


def without_database(directory: Path) -> None:
    (directory / "state.db").unlink()


def without_log(directory: Path) -> None:
    (directory / "state.db-wal").unlink()


def with_another_log(directory: Path) -> None:
    (directory / "new").write_bytes(bytes(100))
    (directory / "new").rename(directory / "state.db-wal")


def with_another_database(directory: Path) -> None:
    (directory / "other").mkdir()
    Store.open(directory / "other").close()
    (directory / "other" / "state.db").rename(directory / "state.db")


def with_nonsense(directory: Path) -> None:
    (directory / "new").write_text("nonsense")
    (directory / "new").rename(directory / "state.db")


def with_a_directory(directory: Path) -> None:
    without_files(directory)
    (directory / "state.db").mkdir()


WAYS = (
    without_directory,
    with_another_directory,
    without_files,
    without_database,
    without_log,
    with_another_log,
    with_another_database,
    with_nonsense,
    with_a_directory,
)


@pytest.mark.parametrize("vanish", WAYS)
@pytest.mark.parametrize("checkpointed", [True, False])
def test_the_database_is_made_again_with_all_that_it_had(
    open_store: Open, entry: Make, tmp_path: Path, vanish: Callable[[Path], None], checkpointed: bool
) -> None:
    directory = tmp_path / "state"
    store = open_store(directory)
    store.record([entry("a"), entry("b")])
    store.learn({1: Learned(7, 8, 9)})
    if checkpointed:
        store.checkpoint()
    for number in range(3):
        assert store.is_in_place()
        vanish(directory)
        assert not store.is_in_place()
        store.record([entry(f"c{number}")], gone=["a"] if number == 0 else [])
        assert store.is_in_place()
        expected = [entry("b"), *(entry(f"c{one}") for one in range(number + 1))]
        assert store.entries() == expected
        shutil.rmtree(directory.with_name("elsewhere"), ignore_errors=True)
        shutil.rmtree(directory / "other", ignore_errors=True)
        # As the next daemon finds it after a kill: the log is read, and nothing else is there.
        killed = tmp_path / f"killed{number}"
        shutil.copytree(directory, killed)
        with closing(open_store(killed)) as next_one:
            assert next_one.entries() == expected
            assert next_one.held_memory() == {1: Learned(7, 8, 9)}
            assert len(next_one.history()) == 3 + number
    assert store.times_emptied == 0
    assert not (directory / "state.db.new").exists()


@pytest.mark.parametrize("vanish", [without_directory, without_files, with_nonsense])
def test_what_was_closed_is_made_again_empty_and_says_so(
    open_store: Open, entry: Make, tmp_path: Path, vanish: Callable[[Path], None]
) -> None:
    directory = tmp_path / "state"
    store = open_store(directory)
    store.record([entry("a")])
    store.close()  # as after a write that failed
    vanish(directory)
    store.record([entry("b")])
    assert store.times_emptied == 1
    assert store.entries() == [entry("b")]


def test_where_it_cannot_be_made_nothing_is_lost_until_it_can(
    open_store: Open, entry: Make, tmp_path: Path
) -> None:
    directory = tmp_path / "state"
    store = open_store(directory)
    store.record([entry("a")])
    shutil.rmtree(directory)
    directory.write_text("in the way")
    for _ in range(3):
        with pytest.raises(StateError, match="cannot be made again"):
            store.record([entry("b")])
        # Whoever only asks is answered.
        assert store.entries() == [entry("a")]
    directory.unlink()
    store.record([entry("b")])
    assert store.entries() == [entry("a"), entry("b")]
    assert store.times_emptied == 0


def test_what_lies_in_its_place_is_kept_under_another_name(
    open_store: Open, entry: Make, tmp_path: Path
) -> None:
    store = open_store()
    store.record([entry("a")])
    with_nonsense(tmp_path)
    store.record([entry("b")])
    assert (tmp_path / "state.db.replaced").read_text() == "nonsense"


def test_a_directory_that_another_daemon_holds_is_left_alone(tmp_path: Path, entry: Make) -> None:
    directory = tmp_path / "state"

    def held() -> None:
        raise UnavailableError(str(directory), "of somebody else")

    store = Store.open(directory, hold_directory=held)
    with_another_directory(directory)
    with closing(Store.open(directory)) as others:
        before = others.entries()
        with pytest.raises(StateError, match="of somebody else"):
            store.commit(Step.of([entry("a")]))
        assert store.entries() == []
        assert others.entries() == before
    assert not list(directory.glob("*replaced*"))
    store.close()


def test_a_reader_from_outside_changes_nothing(open_store: Open, entry: Make, tmp_path: Path) -> None:
    store = open_store()
    store.record([entry("a")])
    with closing(sqlite3.connect(tmp_path / "state.db")) as reader:
        assert reader.execute("SELECT count(*) FROM decisions").fetchone() == (1,)
        store.record([entry("b")])
        store.checkpoint()
        assert store.is_in_place()
    before = os.stat(tmp_path / "state.db")  # noqa: PTH116 - for samestat
    store.record([entry("c")])
    assert os.path.samestat(before, os.stat(tmp_path / "state.db"))  # noqa: PTH116 - for samestat

"""What was recorded is there; what cannot be read is set aside; a sick disk is an error that passes."""

import logging
import os
import random
import resource
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from bayplan.errors import StateError
from bayplan.model.decision import Outcome, PageMoveRecord
from bayplan.model.ledger import Entry
from bayplan.placement.measured_reservation import Learned
from bayplan.sets import CpuSet, NodeSet
from bayplan.state import Store
from bayplan.state.database import VERSION
from bayplan.state.store import PAGE_MOVES_LIMIT

if TYPE_CHECKING:
    from conftest import Recording

Make = Callable[..., Entry]
Open = Callable[..., "Recording"]


def test_a_new_store_is_empty(open_store: Open, tmp_path: Path) -> None:
    store = open_store(tmp_path / "var" / "bayplan")
    assert store.entries() == []
    assert store.history() == []


def test_what_was_recorded_is_there_after_closing(open_store: Open, entry: Make) -> None:
    store = open_store()
    store.record([entry("b"), entry("a")])
    store.close()
    assert open_store().entries() == [entry("a"), entry("b")]


def test_what_was_learned_of_held_memory_replaces_what_was_known(open_store: Open) -> None:
    store = open_store()
    assert store.held_memory() == {}
    store.learn({0: Learned(1, 2, 3), 1: Learned(4, 5, 6)})
    store.learn({1: Learned(7, 8, 9)})
    store.close()
    assert open_store().held_memory() == {1: Learned(7, 8, 9)}


def test_one_step_holds_decided_gone_and_told(open_store: Open, entry: Make) -> None:
    store = open_store()
    store.record([entry("a"), entry("b")])
    told = replace(entry("b"), notified_cpus=CpuSet([4]))
    store.record([entry("c")], gone=["a"], unlisted=[told])
    assert store.entries() == [told, entry("c")]
    assert [item.decision.request.container_id for item in store.history()] == ["c", "b", "a"]


def test_recording_again_replaces(open_store: Open, entry: Make) -> None:
    store = open_store()
    store.record([entry("a", node=0)])
    store.record([entry("a", node=1)])
    assert store.entries() == [entry("a", node=1)]
    assert len(store.history()) == 2


def test_the_history_keeps_what_was_decided(open_store: Open, entry: Make) -> None:
    store = open_store()
    store.record([entry("a", node=0)])
    store.record([], unlisted=[entry("a", node=1)])
    assert store.entries() == [entry("a", node=1)]
    assert [item.decision for item in store.history()] == [entry("a", node=0).decision]
    store.record([entry("a", node=2)])
    store.forget(["a"])
    kept = [entry("a", node=2).decision, entry("a", node=0).decision]
    assert [item.decision for item in store.history()] == kept


def test_what_was_only_told_is_not_history(open_store: Open, entry: Make) -> None:
    store = open_store()
    store.record([], unlisted=[entry("found")])
    assert store.entries() == [entry("found")]
    store.record([], gone=["found"], unlisted=[replace(entry("found"), ended=True)])
    store.close()
    store = open_store()
    assert store.entries() == [replace(entry("found"), ended=True)]
    store.forget(["found"])
    assert store.entries() == store.history() == []


def test_a_step_that_failed_takes_no_row(open_store: Open, entry: Make) -> None:
    store = open_store()
    store.record([entry("a")])
    with closing(sqlite3.connect(store.path, isolation_level=None)) as nosy, nosy:
        nosy.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateError, match="locked"):
            store.record([entry("b")], gone=["a"])
        nosy.execute("ROLLBACK")
    nosy.close()
    store.record([entry("c")])
    assert store.entries() == [entry("a"), entry("c")]


def test_two_entries_of_one_container_are_damage(open_store: Open, entry: Make, tmp_path: Path) -> None:
    store = open_store()
    store.record([entry("a")])
    connection = store._connection
    assert connection is not None
    connection.execute(
        "INSERT INTO decisions SELECT 7, at_us, container_id, name, 1, 1, document, NULL FROM decisions"
    )
    store.close()
    assert open_store().entries() == []
    assert (tmp_path / "state.db.corrupt-1").exists()


def test_forgetting_keeps_the_history(open_store: Open, entry: Make) -> None:
    store = open_store()
    store.record([entry("a")])
    store.forget(["a", "never-there"])
    assert store.entries() == []
    assert [item.decision for item in store.history()] == [entry("a").decision]


def test_a_refusal_is_history_only(open_store: Open, entry: Make) -> None:
    store = open_store()
    refusal = replace(entry("a").decision, outcome=Outcome.REFUSED)
    store.refused(refusal)
    assert store.entries() == []
    assert [(item.at_us, item.decision) for item in store.history()] == [(1_700_000_000_000_000, refusal)]


def test_the_history_of_one_container_by_name_or_id(open_store: Open, entry: Make) -> None:
    store = open_store()
    store.record([entry("a", "default/web-0/nginx"), entry("b", "default/db-0/postgres")])
    store.record([entry("c", "default/web-0/nginx")])
    for subject in ("default/web-0/nginx", "default/web-0", "web-0/nginx", "web-0"):
        assert [i.decision.request.container_id for i in store.history(subject=subject)] == ["c", "a"]
    assert [i.decision.request.container_id for i in store.history(subject="b")] == ["b"]
    assert store.history(subject="default") == store.history(subject="nginx") == []
    assert [i.decision.request.container_id for i in store.history(limit=1)] == ["c"]


def test_the_history_is_bounded(open_store: Open, entry: Make) -> None:
    store = open_store(history_limit=10)
    store.record([entry("lasting")])
    for number in range(25):
        store.record([entry(f"c{number}")], gone=[f"c{number - 1}"])
    assert len(store.history()) == 26
    store.checkpoint()
    assert [i.decision.request.container_id for i in store.history()] == [
        *(f"c{number}" for number in reversed(range(15, 25))),
        "lasting",
    ]
    assert store.entries() == [entry("c24"), entry("lasting")]


def test_commits_wait_for_the_disk(open_store: Open) -> None:
    connection = open_store()._connection
    assert connection is not None
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_failure_in_the_middle_leaves_nothing(open_store: Open, entry: Make) -> None:
    store = open_store()
    store.record([entry("a")])
    unspeakable = entry("b", name="\ud800")
    with pytest.raises(UnicodeEncodeError):
        store.record([entry("c"), unspeakable], gone=["a"])
    assert store.entries() == [entry("a")]
    store.record([entry("d")])
    assert store.entries() == [entry("a"), entry("d")]


def test_another_thread_is_a_defect_not_a_sick_disk(open_store: Open) -> None:
    store = open_store()
    raised: list[Exception] = []

    def use() -> None:
        try:
            store.entries()
        except sqlite3.Error as error:
            raised.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert [type(error) for error in raised] == [sqlite3.ProgrammingError]
    assert store.entries() == []


# --- files that cannot be used ---


def recorded(open_store: Open, entry: Make, count: int = 40) -> Path:
    store = open_store()
    store.record([entry(f"c{number}") for number in range(count)])
    store.close()
    return store.path


def assert_set_aside(open_store: Open, entry: Make, caplog: pytest.LogCaptureFixture, aside: Path) -> None:
    with caplog.at_level(logging.INFO):
        store = open_store(aside.parent)
    loud = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.levelno for record in loud] == [logging.CRITICAL]
    assert str(store.path) in loud[0].getMessage()
    assert str(aside) in loud[0].getMessage()
    assert aside.exists()
    assert store.entries() == []
    store.record([entry("new")])
    store.close()
    assert open_store(aside.parent).entries() == [entry("new")]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"x", id="one-byte"),
        pytest.param(b"not a database at all" * 1000, id="text"),
        pytest.param(b"SQLite format 3\x00", id="only-magic"),
        pytest.param(b"SQLite format 3\x00" + b"\xff" * 9000, id="magic-and-garbage"),
    ],
)
def test_a_file_that_is_no_database(
    open_store: Open,
    entry: Make,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    content: bytes,
) -> None:
    (tmp_path / "state.db").write_bytes(content)
    assert_set_aside(open_store, entry, caplog, tmp_path / "state.db.corrupt-1")
    assert (tmp_path / "state.db.corrupt-1").read_bytes() == content


@pytest.mark.parametrize("keep", [50, 99, 100, 512, 4095, 4096, 4097, 8192, 0.5, 0.9, -4096])
def test_a_truncated_file(
    open_store: Open,
    entry: Make,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    keep: float,
) -> None:
    path = recorded(open_store, entry)
    size = path.stat().st_size
    os.truncate(path, int(size * keep) if 0 < keep < 1 else int(keep) % size)
    assert_set_aside(open_store, entry, caplog, tmp_path / "state.db.corrupt-1")


def test_any_damage_is_found_or_harmless(open_store: Open, entry: Make, tmp_path: Path) -> None:
    pristine = recorded(open_store, entry).read_bytes()
    expected = sorted((entry(f"c{number}") for number in range(40)), key=lambda one: one.container_id)
    for seed in range(60):
        dice = random.Random(seed)
        damaged = bytearray(pristine)
        start = dice.randrange(len(damaged))
        for position in range(start, min(start + dice.choice([1, 16, 600]), len(damaged))):
            damaged[position] = dice.randrange(256)
        directory = tmp_path / str(seed)
        directory.mkdir()
        if seed % 5 == 0:
            del damaged[-seed - 1 :]
        (directory / "state.db").write_bytes(damaged)
        store = open_store(directory)
        entries = store.entries()
        if (directory / "state.db.corrupt-1").exists():
            assert entries == []
        else:
            # Damage inside a value may leave a valid value: no checksum guards it, but every type holds.
            assert len(entries) == len(expected)
        store.record([entry("new")])
        assert entry("new") in store.entries()
        store.close()


@pytest.mark.parametrize("name", ["state.db", "state.db-wal", "state.db-shm"])
def test_a_directory_in_the_place_of_a_file(
    open_store: Open,
    entry: Make,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    recorded(open_store, entry)
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    (tmp_path / name / "inside").touch()
    suffix = name.removeprefix("state.db")
    with caplog.at_level(logging.CRITICAL):
        assert open_store().entries() == []
    assert "not a regular file" in caplog.text
    assert (tmp_path / f"state.db.corrupt-1{suffix}").is_dir()


def test_a_log_without_its_database(
    open_store: Open, entry: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state.db-wal").write_bytes(b"frames")
    with caplog.at_level(logging.CRITICAL):
        open_store()
    assert "its log is there" in caplog.text
    assert (tmp_path / "state.db.corrupt-1-wal").read_bytes() == b"frames"


def test_somebody_elses_database(
    open_store: Open, entry: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(sqlite3.connect(tmp_path / "state.db")) as connection, connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    assert_set_aside(open_store, entry, caplog, tmp_path / "state.db.corrupt-1")


@pytest.mark.parametrize(
    ("version", "writer"), [(VERSION + 1, "a later"), (VERSION - 1, "an earlier"), (1, "an earlier")]
)
def test_another_version_of_the_tables(
    open_store: Open,
    entry: Make,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    version: int,
    writer: str,
) -> None:
    path = recorded(open_store, entry)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    assert_set_aside(open_store, entry, caplog, tmp_path / f"state.db.v{version}")
    assert f"was written by {writer} bayplan" in caplog.text
    with closing(sqlite3.connect(tmp_path / f"state.db.v{version}")) as kept, kept:
        assert kept.execute("SELECT count(*) FROM decisions WHERE current").fetchone() == (40,)
    kept.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE decisions SET document = '{}' WHERE container_id = 'c3'",
        "UPDATE decisions SET document = 7 WHERE container_id = 'c3'",
        "UPDATE decisions SET document = '', container_id = 'other' WHERE container_id = 'c3'",
        "UPDATE decisions SET container_id = 'other' WHERE container_id = 'c3'",
        "UPDATE decisions SET container_id = CAST(x'ff' AS TEXT) WHERE container_id = 'c3'",
        "DROP TABLE decisions",
    ],
)
def test_rows_that_cannot_be_read(
    open_store: Open,
    entry: Make,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: str,
) -> None:
    path = recorded(open_store, entry)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(damage.replace("entry = NULL, ", ""))
    connection.close()
    assert_set_aside(open_store, entry, caplog, tmp_path / "state.db.corrupt-1")


def test_the_log_goes_aside_with_its_database(open_store: Open, entry: Make, tmp_path: Path) -> None:
    store = open_store()
    store.record([entry("a")])
    wal = (tmp_path / "state.db-wal").read_bytes()
    directory = tmp_path / "copy"
    directory.mkdir()
    (directory / "state.db").write_bytes(b"rubbish")
    (directory / "state.db-wal").write_bytes(wal)
    assert open_store(directory).entries() == []
    assert (directory / "state.db.corrupt-1").read_bytes() == b"rubbish"
    assert (directory / "state.db.corrupt-1-wal").read_bytes() == wal


def test_files_set_aside_are_numbered_and_few(open_store: Open, tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / "state.db").write_bytes(b"rubbish %d" % number)
        open_store().close()
    kept = sorted(path.name for path in tmp_path.glob("state.db.corrupt-*"))
    assert kept == [f"state.db.corrupt-{number}" for number in range(4, 9)]
    assert (tmp_path / "state.db.corrupt-8").read_bytes() == b"rubbish 7"


# --- a sick disk ---


@pytest.mark.parametrize("obstacle", ["file", "below-file"])
def test_a_directory_that_cannot_be_used_is_named(open_store: Open, tmp_path: Path, obstacle: str) -> None:
    (tmp_path / "taken").write_text("a file")
    directory = tmp_path / "taken" if obstacle == "file" else tmp_path / "taken" / "below"
    with pytest.raises(StateError, match=str(directory)):
        open_store(directory)


def test_a_disk_with_little_room_takes_decisions_all_the_same(
    open_store: Open, tmp_path: Path, entry: Make
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        store = open_store()
        assert (tmp_path / "state.db-wal").stat().st_size <= 1 << 20
        store.record([entry("a")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.entries() == [entry("a")]


def test_a_full_disk_is_an_error_until_there_is_space(open_store: Open, entry: Make) -> None:
    store = open_store()
    store.record([entry("a")])
    connection = store._connection
    assert connection is not None
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StateError, match="full"):
        store.record([entry(f"c{number}") for number in range(500)], gone=["a"])
    assert store.entries() == [entry("a")]
    store.record([entry("b")])
    store.close()
    assert open_store().entries() == [entry("a"), entry("b")]


def test_write_errors_are_an_error_until_they_end(open_store: Open, entry: Make) -> None:
    """A limit on file sizes makes every write beyond it fail, as a failing disk does."""
    store = open_store()
    store.record([entry("a")])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        for _ in range(3):
            with pytest.raises(StateError, match="SQLITE_IOERR"):
                store.record([entry("b")], gone=["a"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.entries() == [entry("a")]
    store.record([entry("b")], gone=["a"])
    store.close()
    assert open_store().entries() == [entry("b")]


def test_a_lock_held_by_somebody_is_an_error_until_it_is_free(open_store: Open, entry: Make) -> None:
    store = open_store()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as nosy, nosy:
        nosy.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateError, match="locked"):
            store.record([entry("a")])
        nosy.execute("ROLLBACK")
    nosy.close()
    store.record([entry("a")])
    assert store.entries() == [entry("a")]


def test_a_database_replaced_under_a_failed_store_is_not_adopted(open_store: Open, entry: Make) -> None:
    store = open_store()
    with closing(sqlite3.connect(store.path, isolation_level=None)) as nosy, nosy:
        nosy.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateError):
            store.record([entry("a")])
        nosy.execute("ROLLBACK")
    nosy.close()
    store.path.unlink()
    with closing(sqlite3.connect(store.path)) as other, other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    store.record([entry("a")])
    assert store.entries() == [entry("a")]
    with closing(sqlite3.connect(store.path.with_name("state.db.replaced"))) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]


def test_a_database_overwritten_under_a_failed_store_is_not_adopted(open_store: Open, entry: Make) -> None:
    store = open_store()
    store.close()  # as after a write that failed
    with store.path.open("r+b") as file, closing(sqlite3.connect(":memory:")) as other:
        other.execute("CREATE TABLE theirs (x)")
        file.truncate()
        file.write(other.serialize())
    store.record([entry("a")])
    assert store.entries() == [entry("a")]
    assert store.times_emptied == 1


def test_rows_damaged_while_we_run_are_an_error(open_store: Open, entry: Make) -> None:
    store = open_store()
    store.record([entry("a")])
    with closing(sqlite3.connect(store.path)) as nosy, nosy:
        nosy.execute("UPDATE decisions SET document = '{}'")
    nosy.close()
    with pytest.raises(StateError, match="recorded entry"):
        store.history()
    with pytest.raises(StateError, match="recorded entry"):
        store.entries()


def test_closing_twice_is_harmless(open_store: Open) -> None:
    store = open_store()
    store.close()
    store.close()


def test_the_log_is_grown_once_and_overwritten_after_each_checkpoint(
    open_store: Open, entry: Make, tmp_path: Path
) -> None:
    store = open_store()
    log = tmp_path / "state.db-wal"
    size = log.stat().st_size
    assert size == 4 << 20
    for number in range(50):
        store.record([entry("a"), entry(f"b{number % 3}")])
        store.checkpoint()
    assert log.stat().st_size == size
    with closing(sqlite3.connect(f"file:{tmp_path}/state.db?immutable=1", uri=True)) as past_the_log:
        ids = [
            row[0]
            for row in past_the_log.execute("SELECT container_id FROM decisions WHERE current ORDER BY 1")
        ]
    assert ids == ["a", "b0", "b1", "b2"]


def test_a_grown_log_of_a_dead_process_is_read_up_to_its_last_commit(
    open_store: Open, entry: Make, tmp_path: Path
) -> None:
    store = open_store()
    store.record([entry("a")])
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("state.db", "state.db-wal"):
        (copy / name).write_bytes((tmp_path / name).read_bytes())
    assert open_store(copy).entries() == [entry("a")]


def test_moved_pages_are_listed_and_the_oldest_dropped(tmp_path: Path) -> None:
    def record(number: int) -> PageMoveRecord:
        name = "default/db/main" if number % 2 else "default/web/main"
        return PageMoveRecord(number, f"c{number % 2}", name, 0, 1, 10, number, 5, NodeSet([0, 2]), "why")

    with closing(Store.open(tmp_path)) as store:
        store.add_page_moves([record(number) for number in range(PAGE_MOVES_LIMIT + 10)])
        store.add_page_moves([record(PAGE_MOVES_LIMIT + 10)])
        assert store.page_moves(1) == [record(PAGE_MOVES_LIMIT + 10)]
        assert len(store.page_moves(PAGE_MOVES_LIMIT * 2)) == PAGE_MOVES_LIMIT
        assert {one.name for one in store.page_moves(20, "db")} == {"default/db/main"}
    with closing(Store.open(tmp_path)) as store:
        assert store.page_moves(1)[0].at_risk == NodeSet([0, 2])

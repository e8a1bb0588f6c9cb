"""The database: its tables, opening it, and the check of a file that was there before.

A fault of the file (damage, a foreign or a later schema) is `UnreadableDatabaseError`; a fault of the
disk stays the sqlite3.Error or OSError that it is, because setting a good file aside would not help
against a full disk. A database with another version of the tables was written by an earlier or a later
bayplan; it is set aside and never changed.

Where the current entry of each container is in its table is known by a copy in memory of what the table
says. With it the table needs no index, which each commit would write too. Here is how a step becomes
statements; the store runs them.
"""

import errno
import logging
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

from bayplan.errors import ParseError
from bayplan.model.ledger import Entry
from bayplan.quantity import counted
from bayplan.state.directory import COMPANIONS
from bayplan.state.record import EntryRow, Step, decode_entry

APPLICATION_ID: Final = 0x62617970
"""The four bytes ``bayp`` in the file's header, which tell our database from any other."""

VERSION: Final = 8
"""``PRAGMA user_version``. Add one with every change of `TABLES`."""

TABLES: Final = (
    # A commit writes every page that it touches to the disk. So there are no indexes: a search through ten
    # thousand decisions takes milliseconds. Ids grow, as only the oldest rows are removed.
    # One row has a decision and the entry that it made: what was decided (document), what the entry is by now
    # if that differs (amended), whether it is current, and whether the history lists it. So the commit of a
    # creation is one statement and mostly one page (1.0 ms in all instead of 1.1 with two tables).
    """
    CREATE TABLE decisions (
      id INTEGER PRIMARY KEY,
      at_us INTEGER NOT NULL,
      container_id TEXT NOT NULL,
      name TEXT NOT NULL,
      listed INTEGER NOT NULL,
      current INTEGER NOT NULL,
      document BLOB NOT NULL,
      amended BLOB
    )
    """,
    # What was learned of memory that others than containers hold: after a restart it counts until it is
    # measured again.
    """
    CREATE TABLE held_memory (
      node INTEGER PRIMARY KEY,
      held_bytes INTEGER NOT NULL,
      measured_us INTEGER NOT NULL,
      reserved_bytes INTEGER NOT NULL
    )
    """,
    # What became of pages that were moved so that memory is free where it is promised. Nothing depends on it.
    """
    CREATE TABLE page_moves (
      id INTEGER PRIMARY KEY,
      at_us INTEGER NOT NULL,
      container_id TEXT NOT NULL,
      name TEXT NOT NULL,
      source INTEGER NOT NULL,
      target INTEGER NOT NULL,
      wanted_bytes INTEGER NOT NULL,
      moved_bytes INTEGER NOT NULL,
      duration_ms INTEGER NOT NULL,
      at_risk TEXT NOT NULL,
      obstacle TEXT NOT NULL
    )
    """,
    # The containers that were evicted, a row for each. Nothing depends on it.
    """
    CREATE TABLE evictions (
      id INTEGER PRIMARY KEY,
      at_us INTEGER NOT NULL,
      container_id TEXT NOT NULL,
      name TEXT NOT NULL,
      document BLOB NOT NULL
    )
    """,
)


def read_version(connection: sqlite3.Connection) -> int | None:
    """The version of the tables; 0 when the database is new; None when it is another program's."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version == application_id == tables == 0:
        return 0
    return int(version) if application_id == APPLICATION_ID and version > 0 else None


def create_tables(connection: sqlite3.Connection) -> None:
    """Make the tables of a new database in one transaction: all of them or none."""
    connection.execute("BEGIN EXCLUSIVE")
    try:
        for statement in TABLES:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


_INSERT: Final = """
    INSERT INTO decisions (id, at_us, container_id, name, listed, current, document)
    VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_AMEND: Final = "UPDATE decisions SET amended = ? WHERE id = ?"
_END: Final = "UPDATE decisions SET current = 0 WHERE id = ?"
_DELETE: Final = "DELETE FROM decisions WHERE id = ?"

Statement = tuple[str, tuple[object, ...]]


class Rows:
    """The rows that are current, by container id, and the number of the next one. A value: `after` makes a
    new one, which counts once its statements are committed."""

    def __init__(self, current: dict[str, tuple[int, int | None]], next_id: int) -> None:
        self._current = current
        """Number and decision; unlisted rows have None."""
        self._next = next_id

    @classmethod
    def of(cls, rows: Iterable[tuple[str, int, int]], last: int) -> Self:
        """What a table says whose current rows are (container id, number, listed), the *last* row of all
        having that number."""
        current = {container_id: (number, 0 if listed else None) for container_id, number, listed in rows}
        return cls(current, last + 1)

    def after(self, step: Step, at_us: int) -> tuple[Self, list[Statement]]:
        """The rows after *step*, and the statements that lead there."""
        rows = type(self)(self._current.copy(), self._next)
        return rows, list(rows._take(step, at_us))  # noqa: SLF001 - of its own class

    def _take(self, step: Step, at_us: int) -> Iterator[Statement]:
        unknown = [] if step.kept is None else sorted(self._current.keys() - step.kept)
        for container_id in (*step.gone, *unknown):
            yield from self._ended(container_id)
        for row in step.decided:
            known = self._current.get(row.container_id)
            if known and row.decision and known[1] == row.decision:
                yield _AMEND, (row.document, known[0])
                continue
            yield from self._ended(row.container_id)
            yield self._inserted(row, at_us)
        for row in step.unlisted:
            known = self._current.get(row.container_id)
            yield (_AMEND, (row.document, known[0])) if known else self._inserted(row, at_us, listed=False)
        for row in step.refused:
            yield self._inserted(row, at_us, current=False)

    def _inserted(self, row: EntryRow, at_us: int, *, listed: bool = True, current: bool = True) -> Statement:
        container_id, name, document, decision = row
        number, self._next = self._next, self._next + 1
        if current:
            self._current[container_id] = number, decision if listed else None
        return _INSERT, (number, at_us, container_id, name, listed, current, document)

    def _ended(self, container_id: str) -> list[Statement]:
        known = self._current.pop(container_id, None)
        if known is None:
            return []
        number, decision = known
        return [(_DELETE if decision is None else _END, (number,))]


logger = logging.getLogger(__name__)

_BUSY_TIMEOUT_S: Final = 0.5
"""An administrator may be looking into the database; a decision has 1 s in all."""

_LOG_LIMIT_BYTES: Final = 4 << 20
"""What the log file is cut down to after a burst: SQLite's own checkpoint distance of 1000 pages."""

_CHECKPOINT_PAGES: Final = 4000
"""Where a commit folds the log into the database by itself. That costs it two more flushes, so it is done
earlier, between commits: see `Store.checkpoint`."""

_GROWN_LOG_BYTES: Final = 4 << 20
"""A flush of a log that is overwritten takes half as long as that of one that grows (0.27 ms and 0.48 ms)."""

_HEADER_BYTES: Final = 100
"""SQLite takes anything shorter than its header for a new database; we never leave one behind."""

_FAULTS_OF_THE_DISK: Final = frozenset(
    {
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOMEM,
    }
)
_FAULTS_OF_THE_TARGET: Final = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}
)
"""With a copy: what reading a database that is open cannot fail with."""
_LOG: Final = "-wal"
_PRIMARY_CODE: Final = 0xFF
"""SQLite's extended result codes carry the primary one in their lowest byte."""


class UnreadableDatabaseError(Exception):
    """The database can't be used: the mark for the file that it becomes, and why."""

    def __init__(self, mark: str, problem: str) -> None:
        super().__init__(mark, problem)
        self.mark = mark
        self.problem = problem


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """A connection on which every commit waits for the disk, without implicit transactions."""
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={'rwc' if create else 'rw'}",
        uri=True,
        isolation_level=None,
        timeout=_BUSY_TIMEOUT_S,
    )
    connection.text_factory = _text
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT_BYTES}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def identities(path: Path) -> dict[str, tuple[int, int]]:
    """Device and inode of the database ("") and of its log ("-wal"), of those that are there."""
    found = {}
    for companion in ("", _LOG):
        with suppress(OSError):
            status = os.stat(f"{path}{companion}")  # noqa: PTH116 - with each commit, and four times as quick
            found[companion] = status.st_dev, status.st_ino
    return found


def put_copy(connection: sqlite3.Connection, path: Path) -> bool:
    """Put all that *connection* reads beside *path* as a database of its own; whether it could be read. The
    files of the connection may be gone: what is open can be read.

    Raises:
        sqlite3.Error, OSError: there is no room, or nothing can be written there.
    """
    copy = _copy_of(path)
    copy.unlink(missing_ok=True)
    try:
        with closing(connect(copy, create=True)) as target:
            connection.backup(target)
    except sqlite3.Error as error:
        copy.unlink(missing_ok=True)
        if getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE in _FAULTS_OF_THE_TARGET:
            raise
        return False
    log = Path(f"{copy}{_LOG}")
    if log.exists():
        # Closing folds it into the copy, and says nothing where there is no room for that.
        for one in (copy, log):
            one.unlink(missing_ok=True)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(copy))
    return True


def take_copy(path: Path) -> None:
    """Put the copy that `put_copy` has made in the place of the database, which no process has open. A log
    that lies there is not the copy's.

    Raises:
        OSError: the directory does not allow it.
    """
    for companion in COMPANIONS[1:]:
        Path(f"{path}{companion}").unlink(missing_ok=True)
    _copy_of(path).rename(path)


def _copy_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def grow_log(path: Path) -> None:
    """Fill the log of an open database with zeros up to its usual size, as far as the disk has room. SQLite
    takes what follows the last whole frame for nothing, as it must after a crash."""
    # It is for speed alone: where there is no room for it there may still be some for decisions.
    with suppress(OSError), path.with_name(f"{path.name}-wal").open("r+b") as log:
        missing_bytes = _GROWN_LOG_BYTES - log.seek(0, os.SEEK_END)
        if missing_bytes > 0:
            log.write(bytes(missing_bytes))
            log.flush()
            os.fsync(log.fileno())


def open_readable(path: Path) -> sqlite3.Connection:
    """Open the database, which is made if it is missing, after checking all of it.

    Raises:
        UnreadableDatabaseError: the file can't be used and should be set aside.
        sqlite3.Error, OSError: the disk or the directory can't be used.
    """
    _check_files(path)
    try:
        connection = connect(path, create=True)
        try:
            _make_ready(connection, path)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE in _FAULTS_OF_THE_DISK:
            raise
        raise UnreadableDatabaseError("corrupt", f"is damaged ({error})") from error
    return connection


def read_into_memory(path: Path) -> sqlite3.Connection:
    """All that the database has, in memory: where it cannot be opened, as nothing can be written beside it,
    its files can still be read. Empty where they cannot, or there is none."""
    import tempfile  # noqa: PLC0415 - a daemon that starts on a sound disk does without
    from shutil import copyfile  # noqa: PLC0415 - as above

    elsewhere = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108 - a directory of its own is made there
    memory = sqlite3.connect(":memory:", isolation_level=None)
    memory.text_factory = _text
    try:
        with tempfile.TemporaryDirectory(dir=elsewhere) as directory:
            copy = Path(directory) / path.name
            for companion in ("", _LOG):
                with suppress(FileNotFoundError):
                    copyfile(f"{path}{companion}", f"{copy}{companion}")
            with closing(open_readable(copy)) as readable:
                readable.backup(memory)
    except (sqlite3.Error, OSError, UnreadableDatabaseError) as error:
        logger.error("what is recorded cannot be read", extra={"file": str(path), "problem": str(error)})  # noqa: TRY400 - expected, so that a traceback says nothing
        create_tables(memory)
    return memory


def read_entries(connection: sqlite3.Connection) -> list[Entry]:
    """All entries by container id.

    Raises:
        ParseError: a row is not what was written.
    """
    entries: list[Entry] = []
    for container_id, document in connection.execute(
        "SELECT container_id, coalesce(amended, document) FROM decisions WHERE current ORDER BY container_id"
    ):
        entry = decode_entry(document)
        if entry.container_id != container_id:
            raise ParseError("recorded entry", entry.container_id, f"the entry of {container_id}")
        if entries and entries[-1].container_id == container_id:
            raise ParseError("recorded entry", container_id, "one entry per container")
        entries.append(entry)
    return entries


def read_rows(connection: sqlite3.Connection) -> Rows:
    """Where the current entries are."""
    (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM decisions").fetchone()
    current = connection.execute("SELECT container_id, id, listed FROM decisions WHERE current")
    return Rows.of(current, last)


def _check_files(path: Path) -> None:
    files = [Path(f"{path}{companion}") for companion in COMPANIONS]
    for file in files:
        if os.path.lexists(file) and not file.is_file():
            raise UnreadableDatabaseError("corrupt", f"cannot be opened ({file.name} is not a regular file)")
    present = path.exists()
    if present and path.stat().st_size < _HEADER_BYTES:
        raise UnreadableDatabaseError(
            "corrupt", f"is too short for a database ({counted(path.stat().st_size, 'byte')})"
        )
    if not present and files[1].exists() and files[1].stat().st_size > 0:
        raise UnreadableDatabaseError("corrupt", "is missing, although its log is there")


def _make_ready(connection: sqlite3.Connection, path: Path) -> None:
    version = read_version(connection)
    if version is None:
        raise UnreadableDatabaseError("corrupt", "is a database, but not one of bayplan's")
    if version not in (0, VERSION):
        writer = "a later" if version > VERSION else "an earlier"
        problem = f"was written by {writer} bayplan (schema {version}, this one has {VERSION})"
        raise UnreadableDatabaseError(f"v{version}", problem)
    (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if verdict != "ok":
        raise UnreadableDatabaseError("corrupt", f"is damaged ({verdict})")
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        logger.warning("%s is on a file system without write-ahead logs; commits will be slower", path)
    if version == 0:
        create_tables(connection)
    try:
        read_entries(connection)
    except ParseError as error:
        raise UnreadableDatabaseError("corrupt", f"holds a row that cannot be read ({error})") from error


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")

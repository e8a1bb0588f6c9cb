"""The store: what each container was promised now, and the last decisions in order.

One transaction per step, flushed to the disk before `record` returns. Not thread-safe: open, use and close a
store in one thread. A database that can't be read is set aside and the store starts empty; only a directory
that can't be used is an error.
"""

import errno
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from bayplan.errors import BayplanError, ParseError, StateError
from bayplan.model.decision import Decision, EvictionRecord, PageMoveRecord
from bayplan.model.ledger import Entry
from bayplan.model.workload import names_container
from bayplan.placement.measured_reservation import Learned
from bayplan.sets import NodeSet
from bayplan.state.database import (
    VERSION,
    UnreadableDatabaseError,
    connect,
    grow_log,
    identities,
    open_readable,
    put_copy,
    read_entries,
    read_into_memory,
    read_rows,
    read_version,
    take_copy,
)
from bayplan.state.directory import has_room, move_aside, obstacle, require_room, unusable
from bayplan.state.record import Step, decode_entry

logger = logging.getLogger(__name__)

DATABASE: Final = "state.db"
_NOWHERE: Final = (-1, -1)
"""The device and inode of a database that is no file."""
HISTORY_LIMIT: Final = 10_000
"""Decisions kept, and a few more between two checkpoints: about 10 MB, and a week on a node that starts a
container every minute."""

PAGE_MOVES_LIMIT: Final = 1000
EVICTIONS_LIMIT: Final = 1000

_REFUSED_MARK: Final = b'"outcome":"refused"'
"""What the document of a refusal has; within a text it would have other quotes."""
_LATEST: Final = "SELECT id, at_us, name, NOT current AND instr(document, ?) FROM decisions ORDER BY id DESC"


class HistoryItem(Struct, frozen=True):
    """A decision and when it was recorded, in microseconds since the epoch."""

    at_us: int
    decision: Decision


class RefusedItem(Struct, frozen=True):
    """A container, by its name, that was refused ``times`` times; ``decision`` is the last one. Times are
    microseconds since the epoch."""

    times: int
    first_us: int
    last_us: int
    decision: Decision


class Store:
    """The decisions on disk. Every method raises StateError when the disk does not do its part; the next
    call tries again, so that the store works again as soon as the disk does."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        clock_us: Callable[[], int],
        history_limit: int,
        hold_directory: Callable[[], None],
    ) -> None:
        self.path = path
        self.times_emptied = 0
        """How often the database was made again without what was recorded: the caller records all anew."""
        self._connection: sqlite3.Connection | None = connection
        self._rows = read_rows(connection)
        self._clock_us = clock_us
        self._history_limit = history_limit
        self._hold_directory = hold_directory
        self._files = identities(path)
        self._in_memory = False
        self.problem: str | None = None
        """Why nothing can be recorded since it was opened; None where that is not known."""

    @classmethod
    def open(
        cls,
        directory: Path,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        *,
        history_limit: int = HISTORY_LIMIT,
        hold_directory: Callable[[], None] = lambda: None,
    ) -> Self:
        """Open the store in *directory*, which is made if it is missing.

        A database that is damaged, or was written by another version, is set aside with one message. On a
        disk that is full or read-only it is read, and made again when there is room: see `ensure_in_place`.
        *hold_directory* is called before the database is made again in a directory that may be another one;
        it keeps other daemons out of it.

        Raises:
            StateError: the directory can't be used.
        """
        path = directory / DATABASE
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_access(directory)
            require_room(directory)
            connection = _open_or_replace(path)
            # The log exists once something was written since the database was opened.
            connection.execute("PRAGMA wal_checkpoint(RESTART)")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute("COMMIT")
            grow_log(path)
            return cls(path, connection, clock_us, history_limit, hold_directory)
        except (sqlite3.Error, OSError) as error:
            number = obstacle(directory, getattr(error, "errno", None))
            problem = unusable(directory, _describe(error), number)
            if number is None or not directory.is_dir():
                raise problem from error
            store = cls(path, read_into_memory(path), clock_us, history_limit, hold_directory)
            store._in_memory, store._files, store.problem = True, {"": _NOWHERE}, str(problem)
            return store

    def entries(self) -> list[Entry]:
        """Everything that is promised now, by container id."""
        with self._connected() as connection:
            return read_entries(connection)

    def commit(self, step: Step) -> bool:
        """Commit *step*; whether the database did not say all of it before.

        When this returns, it is on the disk; when it raises, it is all there or not at all.
        """
        with self._connected(writing=True) as connection:
            rows, statements = self._rows.after(step, self._clock_us())
            if len(statements) == 1:
                connection.execute(*statements[0])  # a transaction of its own
            elif statements:
                with _transaction(connection):
                    for statement in statements:
                        connection.execute(*statement)
            self._rows = rows
            return bool(statements)

    def held_memory(self) -> dict[int, Learned]:
        """What was learned last of memory that others than containers hold, by node."""
        with self._connected() as connection:
            query = "SELECT node, held_bytes, measured_us, reserved_bytes FROM held_memory ORDER BY node"
            return {node: Learned(*amounts) for node, *amounts in connection.execute(query)}

    def learn(self, learned: Mapping[int, Learned]) -> None:
        """Commit what was learned of memory that others than containers hold, instead of what was before."""
        with self._connected(writing=True) as connection, _transaction(connection):
            connection.execute("DELETE FROM held_memory")
            connection.executemany(
                "INSERT INTO held_memory (node, held_bytes, measured_us, reserved_bytes) VALUES (?, ?, ?, ?)",
                [
                    (node, one.held_bytes, one.measured_us, one.reserved_bytes)
                    for node, one in learned.items()
                ],
            )

    def add_page_moves(self, records: Sequence[PageMoveRecord]) -> None:
        """Commit what became of pages that were to be moved; the oldest beyond a number are dropped."""
        columns = ", ".join(PageMoveRecord.__struct_fields__)
        places = ", ".join("?" * len(PageMoveRecord.__struct_fields__))
        rows = [(*astuple(one)[:-2], str(one.at_risk), one.obstacle) for one in records]
        with self._connected(writing=True) as connection, _transaction(connection):
            connection.executemany(f"INSERT INTO page_moves ({columns}) VALUES ({places})", rows)  # noqa: S608 - names of columns
            connection.execute(
                "DELETE FROM page_moves WHERE id <= (SELECT max(id) FROM page_moves) - ?", (PAGE_MOVES_LIMIT,)
            )

    def page_moves(self, limit: int = 100, subject: str | None = None) -> list[PageMoveRecord]:
        """The last *limit* records of moved pages, the newest first; only those of *subject*, if one is
        given."""
        columns = ", ".join(PageMoveRecord.__struct_fields__)
        query = f"SELECT {columns} FROM page_moves WHERE ? OR names_container(?, name, container_id) "  # noqa: S608 - names of columns
        with self._connected() as connection:
            connection.create_function("names_container", 3, names_container, deterministic=True)
            values = (subject is None, subject or "", limit)
            rows = connection.execute(f"{query} ORDER BY id DESC LIMIT ?", values).fetchall()
            names = PageMoveRecord.__struct_fields__
            fields = [dict(zip(names, row, strict=True)) for row in rows]
            return [PageMoveRecord(**{**one, "at_risk": NodeSet.parse(one["at_risk"])}) for one in fields]

    def add_evictions(self, records: Sequence[EvictionRecord]) -> None:
        """Commit which containers are evicted; the oldest beyond a number are dropped."""
        insert = "INSERT INTO evictions (at_us, container_id, name, document) VALUES (?, ?, ?, ?)"
        rows = [(one.at_us, one.container_id, one.name, msgspec.json.encode(one)) for one in records]
        with self._connected(writing=True) as connection, _transaction(connection):
            connection.executemany(insert, rows)
            connection.execute(
                "DELETE FROM evictions WHERE id <= (SELECT max(id) FROM evictions) - ?", (EVICTIONS_LIMIT,)
            )

    def evictions(self, limit: int = 100, subject: str | None = None) -> list[EvictionRecord]:
        """The last *limit* records of evicted containers, the newest first; only those of *subject*, if one
        is given."""
        query = "SELECT document FROM evictions WHERE ? OR names_container(?, name, container_id) "
        with self._connected() as connection:
            connection.create_function("names_container", 3, names_container, deterministic=True)
            values = (subject is None, subject or "", limit)
            rows = connection.execute(f"{query} ORDER BY id DESC LIMIT ?", values).fetchall()
            return [msgspec.json.decode(document, type=EvictionRecord) for (document,) in rows]

    def history(self, limit: int = 100, subject: str | None = None) -> list[HistoryItem]:
        """The last *limit* decisions, the newest first; only those about *subject*, if one is given: see
        `bayplan.model.workload`."""
        query = "SELECT at_us, document FROM decisions WHERE listed ORDER BY id DESC LIMIT ?"
        values: tuple[object, ...] = (limit,)
        if subject is not None:
            # Asking Python about every row would take twice as long.
            about = "(instr(name, ?) OR instr(container_id, ?)) AND names_container(?, name, container_id)"
            query = query.replace("ORDER", f"AND {about} ORDER")
            values = (subject, subject, subject, limit)
        with self._connected() as connection:
            connection.create_function("names_container", 3, names_container, deterministic=True)
            rows = connection.execute(query, values).fetchall()
            return [HistoryItem(at_us, decode_entry(document).decision) for at_us, document in rows]

    def decided(self, since_us: int) -> list[HistoryItem]:
        """The decisions since *since_us*, refusals too, the newest first."""
        query = "SELECT at_us, document FROM decisions WHERE listed ORDER BY id DESC"
        with self._connected() as connection:
            rows = takewhile(lambda row: row[0] >= since_us, connection.execute(query))
            return [HistoryItem(at_us, decode_entry(document).decision) for at_us, document in rows]

    def refusals(self, limit: int, since_us: int) -> list[RefusedItem]:
        """The *limit* containers that were refused last since *since_us*, the latest first."""
        found: dict[str, list[int]] = {}
        with self._connected() as connection:
            # From the end, as there is no index: a minute ago is found without reading what was last week.
            for number, at_us, name, refused in connection.execute(_LATEST, (_REFUSED_MARK,)):
                if at_us < since_us:
                    break
                if refused:
                    times, _, last_us, last = found.get(name, (0, 0, at_us, number))
                    found[name] = [times + 1, at_us, last_us, last]
            query = "SELECT document FROM decisions WHERE id = ?"
            items = []
            for times, first_us, last_us, last in list(found.values())[:limit]:
                (document,) = connection.execute(query, (last,)).fetchone()
                items.append(RefusedItem(times, first_us, last_us, decode_entry(document).decision))
            return items

    def names(self, limit: int) -> list[tuple[str, str]]:
        """Name and id of the containers that the last *limit* listed decisions are about, the latest
        first."""
        query = "SELECT name, container_id FROM decisions WHERE listed ORDER BY id DESC LIMIT ?"
        with self._connected() as connection:
            return list(dict.fromkeys(connection.execute(query, (limit,))))

    def checkpoint(self) -> None:
        """Drop what is too old for the history, and fold the log into the database, so that the next commits
        overwrite it. For moments of rest, but at least after some hundred commits."""
        with self._connected(writing=True) as connection:
            connection.execute(
                "DELETE FROM decisions WHERE id <= (SELECT max(id) FROM decisions) - ? AND NOT current",
                (self._history_limit,),
            )
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def is_in_place(self) -> bool:
        """Whether the database and its log are still the files that were opened. Any thread."""
        return not self._in_memory and self._files.items() <= identities(self.path).items()

    def ensure_in_place(self) -> None:
        """Make the database again if it is not where it was opened: somebody removed or replaced its files or
        their directory, or mounted something over it, or it could only be read. A file that was removed can
        be read as long as it is open, so that nothing that was recorded is lost.

        Raises:
            StateError: it cannot be made; the next call tries again.
        """
        found = identities(self.path)
        if self._files.items() <= found.items():
            self._files = found  # the log may be new
        else:
            self._make_again(foreign=found.get("") != self._files[""])

    def _make_again(self, *, foreign: bool) -> None:
        """See `ensure_in_place`. *foreign*: what lies in its place is not what was opened."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._hold_directory()
            require_room(self.path.parent)
            copied = self._connection is not None and put_copy(self._connection, self.path)
            self.close()  # SQLite removes the log by its name then, so that there must be no new one yet
            if foreign and os.path.lexists(self.path):
                move_aside(self.path, "replaced")
            if copied:
                take_copy(self.path)
            self._connection = _open_or_replace(self.path)
            self._rows = read_rows(self._connection)
        except (sqlite3.Error, OSError, BayplanError) as error:
            if self._in_memory:
                directory, number = self.path.parent, getattr(error, "errno", None)
                raise unusable(directory, _describe(error), number) from error
            problem = f"it is not where it was opened, and cannot be made again: {_describe(error)}"
            raise StateError(str(self.path), problem) from error
        self._files = identities(self.path)
        self._in_memory, self.problem = False, None
        self.times_emptied += not copied
        what = "with all that was recorded" if copied else "empty; what is promised is recorded anew"
        logger.critical("state database %s is made again, %s", self.path, what)

    def close(self) -> None:
        """Fold the log into the database and close it. Closing twice is harmless."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._files = {"": self._files[""]}  # the log goes
            connection.close()

    @contextmanager
    def _connected(self, *, writing: bool = False) -> Iterator[sqlite3.Connection]:
        """The connection; a new one after a failure, because the old one may be out of step with the file."""
        if writing or not self._in_memory:
            try:
                self.ensure_in_place()
            except StateError:
                # What is open can be read, wherever its files are.
                if writing or self._connection is None:
                    raise
        try:
            if not writing and self._connection is None and not has_room(self.path.parent):
                # After a write that failed; to open it again may take room.
                with closing(read_into_memory(self.path)) as readable:
                    yield readable
            else:
                yield self._connection or self._connect_again()
        except sqlite3.ProgrammingError:
            raise
        except (sqlite3.Error, OSError, ParseError) as error:
            with suppress(sqlite3.Error):
                self.close()
            raise StateError(str(self.path), _describe(error)) from error

    def _connect_again(self) -> sqlite3.Connection:
        connection = connect(self.path, create=False)
        version = None
        try:
            version = read_version(connection)
        finally:
            if version != VERSION:
                connection.close()
        if version != VERSION:
            self._make_again(foreign=True)
            assert self._connection is not None
            return self._connection
        self._connection = connection
        # The commit that failed may be there all the same.
        self._rows = read_rows(connection)
        return connection


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        # A full disk rolls back by itself, other failures do not.
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _check_access(directory: Path) -> None:
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise OSError(errno.EACCES, "the directory cannot be read and written")


def _open_or_replace(path: Path) -> sqlite3.Connection:
    try:
        return open_readable(path)
    except UnreadableDatabaseError as unreadable:
        aside = move_aside(path, unreadable.mark)
        logger.critical(
            "state database %s %s. It is kept as %s; the record starts empty, and what runs is taken over "
            "from the container runtime.",
            path,
            unreadable.problem,
            aside,
        )
    try:
        return open_readable(path)
    except UnreadableDatabaseError as unreadable:
        raise StateError(str(path), f"the new database {unreadable.problem}") from unreadable


def _describe(error: Exception) -> str:
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or error}{where}"
    code = getattr(error, "sqlite_errorname", None)
    return f"{error} ({code})" if code else str(error)

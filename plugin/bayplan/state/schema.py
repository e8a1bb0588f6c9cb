"""The tables, and the way from every older version of them to this one.

`PRAGMA user_version` counts the migrations that a database has had. Migrations only go forwards; a database
with a higher number than ours was written by a later bayplan and is never touched.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

APPLICATION_ID: Final = 0x62617970
"""The four bytes ``bayp`` in the file's header: tells our database from any other."""

Migration = Sequence[str]
"""The SQL statements that lead from one version to the next; no statement may begin or end a transaction."""

MIGRATIONS: Final[tuple[Migration, ...]] = (
    (
        # A commit writes every page that it touches to the disk. So: one tree per table, no indexes. A search
        # through ten thousand decisions takes milliseconds. Their ids grow, as only the oldest are removed.
        "CREATE TABLE containers (container_id TEXT PRIMARY KEY, entry BLOB NOT NULL) WITHOUT ROWID",
        """
        CREATE TABLE history (
          id INTEGER PRIMARY KEY,
          at_us INTEGER NOT NULL,
          container_id TEXT NOT NULL,
          name TEXT NOT NULL,
          decision BLOB NOT NULL
        )
        """,
    ),
    (
        # One row for a decision and for the entry that it made: what was decided, what the entry has become
        # since, if that is not the same, whether it is current, and whether the history lists it. So the
        # commit of a creation is one statement and mostly one page (1.0 ms in all instead of 1.1).
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
        """
        INSERT INTO decisions (id, at_us, container_id, name, listed, current, document)
          SELECT id, at_us, container_id, name, 1, 0,
            CAST('{"decision":' || CAST(decision AS TEXT) || '}' AS BLOB) FROM history
        """,
        """
        INSERT INTO decisions (at_us, container_id, name, listed, current, document)
          SELECT 0, container_id, container_id, 0, 1, entry FROM containers
        """,
        "DROP TABLE containers",
        "DROP TABLE history",
    ),
    (
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
    ),
)


def read_version(connection: sqlite3.Connection) -> int | None:
    """How many migrations the database has had; 0 when it is new; None when it is somebody else's."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version == application_id == tables == 0:
        return 0
    return int(version) if application_id == APPLICATION_ID and version > 0 else None


def migrate(connection: sqlite3.Connection, since: int, migrations: Sequence[Migration]) -> None:
    """Bring a database of version *since* to the last one, in one transaction: all of it or nothing."""
    connection.execute("BEGIN EXCLUSIVE")
    try:
        for statement in (one for migration in migrations[since:] for one in migration):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(migrations)}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")

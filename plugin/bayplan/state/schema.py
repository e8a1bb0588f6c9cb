"""The tables of the database, and what in a file's header tells that it has them.

A database with another version of the tables was written by an earlier or a later bayplan; it is set aside
and never changed.
"""

import sqlite3
from typing import Final

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
    # Who was evicted, a row for each container. Nothing depends on it.
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

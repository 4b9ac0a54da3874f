"""How every SQLite file of Millrace is opened: readers beside one writer, commits that survive power cuts."""

from __future__ import annotations

import sqlite3
import time

_LOCK_WAIT_S = 30


def prepare(connection: sqlite3.Connection) -> None:
    """Make a new connection wait for locks, write ahead and sync; sqlite3.Error if it cannot be used.

    Transactions begin where the caller says so, not at its first write. SQLite does not wait when two
    connections switch an empty file to the write-ahead log at once: it tells one of them at once that the
    database is locked, so the switch is repeated here until the other is done.
    """
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={_LOCK_WAIT_S * 1000}").close()
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").close()
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()

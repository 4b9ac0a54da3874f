"""Opening the databases of the registry and the auditor, in SQLite or PostgreSQL.

It is independent of their tables.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from millrace.errors import MillraceError
from millrace.installation import how_to_install
from millrace.urls import without_secret

LOCK_WAIT_S = 30
BEGIN = "millrace_begin"
"""Execution option: the statement that begins a transaction in SQLite, BEGIN by default."""


def open_database(url: str, prepare: Callable[[sa.Engine], object]) -> sa.Engine:
    """Return the engine of a database whose tables `prepare` creates. Each transaction reads one consistent
    state.

    Raise MillraceError in one line when the URL or its database cannot be used.
    """
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError):  # ValueError: a port that is no number
        raise MillraceError(
            "--database-url is not a URL: write sqlite:////PATH/FILE.db or postgresql://USER@HOST/NAME"
        ) from None
    shown = without_secret(url)
    try:
        engine = _engine(parsed)
        try:
            prepare(engine)
        except BaseException:
            engine.dispose()
            raise
    except ImportError:
        remedy = how_to_install("postgres")
        raise MillraceError(f"database {shown}: its driver is not installed: {remedy}") from None
    except SQLAlchemyError as error:
        raise MillraceError(f"cannot use database {shown}: {reason_of(error)}") from error
    return engine


def _engine(url: sa.URL) -> sa.Engine:
    name = url.get_backend_name()
    if name == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
        return sa.create_engine(url, pool_pre_ping=True, isolation_level="REPEATABLE READ")
    if name != "sqlite":
        raise MillraceError(f"database {name!r} is not supported: take sqlite or postgresql")
    engine = sa.create_engine(url)
    sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _begin_sqlite(connection: sa.Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get(BEGIN, "BEGIN"))


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    """Set up a new connection: wait for locks, use the write-ahead log, and sync, so that commits survive
    power cuts.

    Transactions begin where the caller begins them, not at the first write. SQLite does not wait when two
    connections switch an empty file to the write-ahead log at the same moment: one of them fails because the
    database is locked. The switch is repeated here until the other connection is done.
    """
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={LOCK_WAIT_S * 1000}").close()
    deadline = time.monotonic() + LOCK_WAIT_S
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


def reason_of(error: SQLAlchemyError) -> str:
    """Return the error text of the database's driver, in one line."""
    return " ".join(str(getattr(error, "orig", None) or error).split())

"""How the databases of the registry and the auditor are opened, in SQLite or PostgreSQL. Knows no table."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from millrace.errors import MillraceError
from millrace.installation import how_to_install
from millrace.urls import without_secret

LOCK_WAIT_S = 30
BEGIN = "millrace_begin"
"""The execution option that says how a transaction begins in SQLite; it is BEGIN without one."""


def open_database(url: str, prepare: Callable[[sa.Engine], object], **postgresql: Any) -> sa.Engine:
    """The engine of a database whose tables `prepare` makes; `postgresql` holds options for PostgreSQL.

    Raises MillraceError in one line when the URL or the database behind it will not do.
    """
    try:
        parsed = sa.make_url(url)
    except ArgumentError:
        raise MillraceError(
            "--database-url is no URL: write sqlite:////PATH/FILE.db or postgresql://USER@HOST/NAME"
        ) from None
    shown = without_secret(url)
    try:
        engine = _engine(parsed, postgresql)
        prepare(engine)
    except ImportError:
        raise MillraceError(
            f"database {shown}: its driver is not installed: {how_to_install('postgres')}"
        ) from None
    except SQLAlchemyError as error:
        raise MillraceError(f"cannot use database {shown}: {reason_of(error)}") from error
    return engine


def _engine(url: sa.URL, postgresql: dict[str, Any]) -> sa.Engine:
    name = url.get_backend_name()
    if name == "postgresql":
        return sa.create_engine(url.set(drivername="postgresql+psycopg"), pool_pre_ping=True, **postgresql)
    if name != "sqlite":
        raise MillraceError(f"database {name!r} is not supported: take sqlite or postgresql")
    engine = sa.create_engine(url)
    sa.event.listen(engine, "connect", lambda connection, _: _prepare_sqlite(connection))

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get(BEGIN, "BEGIN"))

    return engine


def _prepare_sqlite(connection: sqlite3.Connection) -> None:
    """Make a new connection wait for locks, write ahead and sync: commits then survive power cuts.

    Transactions begin where the caller says so, not at its first write. SQLite does not wait when two
    connections switch an empty file to the write-ahead log at once: it tells one of them at once that the
    database is locked, so the switch is repeated here until the other is done.
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
    """What the database's driver says, in one line."""
    return " ".join(str(getattr(error, "orig", None) or error).split())

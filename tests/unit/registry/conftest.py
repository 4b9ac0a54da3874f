"""Stores for the registry's tests: SQLite, and the database of MILLRACE_TEST_DATABASE_URL if it is set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from millrace_registry import store as rows
from millrace_registry.store import Store

DATABASES = ["sqlite", *(["other"] if os.environ.get("MILLRACE_TEST_DATABASE_URL") else [])]


@contextmanager
def empty_database(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty database, a new SQLite file in `folder` or the emptied other one."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/registry.db"
        return
    url = os.environ["MILLRACE_TEST_DATABASE_URL"]
    engine = sa.create_engine(sa.engine.make_url(url).set(drivername="postgresql+psycopg"))
    rows._metadata.drop_all(engine)
    engine.dispose()
    yield url


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    with empty_database(request.param, tmp_path) as url:
        yield url


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """An empty store."""
    store = Store.open(database_url)
    yield store
    store.close()

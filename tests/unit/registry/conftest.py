"""Stores for the registry's tests: every test that takes one runs on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from millrace_registry import store as rows
from millrace_registry.store import Store


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/registry.db"
    url: str = request.getfixturevalue("postgres_url")
    engine = sa.create_engine(sa.engine.make_url(url).set(drivername="postgresql+psycopg"))
    rows.metadata.drop_all(engine)
    engine.dispose()
    return url


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """An empty store."""
    store = Store.open(database_url)
    yield store
    store.close()

"""The demo reads a published table by Iceberg's own means, without Millrace's code."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from millrace_demo import table
from millrace_demo.table import metadata_location, rows_by_duckdb, rows_by_hour


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """A table of three rows in two hours."""
    times = [datetime(2015, 5, 17, hour, minute, tzinfo=UTC) for hour, minute in ((10, 0), (10, 59), (11, 0))]
    rows = pa.table({"_time": pa.array(times, pa.timestamp("us", tz="UTC"))})
    places = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    with SqlCatalog("any", **places) as catalog:
        catalog.create_namespace("millrace")
        catalog.create_table("millrace.PageView", rows.schema).append(rows)
    return tmp_path


def test_the_rows_of_a_table_are_counted_by_hour(warehouse: Path) -> None:
    location = metadata_location(warehouse, "PageView")
    assert location is not None
    assert rows_by_hour(location) == {"2015-05-17T10": 2, "2015-05-17T11": 1}


@pytest.mark.skipif(find_spec("duckdb_extension_iceberg") is None, reason="DuckDB's extension is not here")
def test_duckdb_counts_the_rows_with_its_extension_alone(warehouse: Path) -> None:
    location = metadata_location(warehouse, "PageView")
    assert location is not None
    assert rows_by_duckdb(location) == 3


def test_what_was_never_published_has_no_metadata(warehouse: Path) -> None:
    assert metadata_location(warehouse, "SearchQuery") is None
    assert metadata_location(warehouse / "none", "PageView") is None


def test_a_duckdb_without_the_extension_of_its_version_counts_nothing_and_downloads_nothing(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(table, "extension_of", lambda name, version: f"no_{name}")
    assert rows_by_duckdb("nowhere") is None


def test_a_catalog_that_is_being_created_has_no_tables_yet(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").touch()  # SQLite's file before its first table
    assert metadata_location(tmp_path, "PageView") is None

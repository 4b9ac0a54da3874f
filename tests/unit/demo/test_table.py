"""The demo reads a published table by Iceberg's own means, without Millrace's code."""

from __future__ import annotations

from datetime import UTC, datetime
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
    # None where the extension is not installed for this DuckDB; the count of the readers' tests elsewhere.
    assert rows_by_duckdb(location) in (None, 3)


def test_what_was_never_published_has_no_metadata(warehouse: Path) -> None:
    assert metadata_location(warehouse, "SearchQuery") is None
    assert metadata_location(warehouse / "none", "PageView") is None


def test_an_extension_of_another_duckdb_is_not_loaded() -> None:
    assert table._extension("no_such", "v0") == "no_such"

"""Spark and DuckDB on a table of several layouts: they find every row by partition; Spark keeps a layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace_warehouse.history.schemas import pinned, with_layout
from tests.loaded import pin_first
from tests.readers.engines import Engine, spark_engine
from tests.unit.warehouse.erase.scene import ELEVEN, MEMBERS, TEN, TWELVE, WITH_MEMBER, Scene
from tests.unit.warehouse.erase.scene import scene as scene_of

TABLE = "millrace.millrace.PageView"
EVERY_KIND = ["bucket(4, memberId)", "days(_timestamp)", "truncate(3, url)", "header.server", "memberId"]
MEMBER_IDS = [*range(20), None]


@pytest.fixture
def laid_out(tmp_path: Path) -> Iterator[Scene]:
    """A table with hours alone, then with every kind of partition, then with buckets and another order."""
    for made in scene_of(tmp_path / "w"):
        layouts: list[tuple[str, list[str], list[str]]] = [
            (TEN, [], []),
            (ELEVEN, EVERY_KIND, ["url DESC", "header.sequence"]),
            (TWELVE, ["bucket(4, memberId)"], ["url"]),
        ]
        for number, (hour, partition, sort) in enumerate(layouts):
            with_layout(
                made.stored,
                pinned(made.stored) or pin_first(made.stored, WITH_MEMBER, MEMBERS),
                partition,
                sort,
            )
            for member in MEMBER_IDS:
                made.send(member, number)
            made.load_new()
            made.publish(hour)
        yield made


@pytest.fixture
def spark_sql(home: Path, laid_out: Scene) -> Iterator[Engine]:
    engine = spark_engine(home, laid_out)
    yield engine
    engine.close()


@pytest.mark.parametrize("member", [0, 7, 19, None])
def test_every_engine_finds_the_rows_of_a_partition_in_every_layout(
    laid_out: Scene, spark_sql: Engine, duckdb: Engine, member: int | None
) -> None:
    condition = "memberId IS NULL" if member is None else f"memberId = {member}"
    duckdb("LOAD iceberg")
    for engine, table in (
        (spark_sql, TABLE),
        (duckdb, f"iceberg_scan('{laid_out.table.metadata_location}')"),
    ):
        assert engine(f"SELECT count(*) FROM {table}") == [[63]]
        assert engine(f"SELECT count(*) FROM {table} WHERE {condition}") == [[3]]


def test_a_compaction_by_spark_keeps_the_layout(laid_out: Scene, spark_sql: Engine) -> None:
    options = "options => map('rewrite-all', 'true')"
    spark_sql(f"CALL millrace.system.rewrite_data_files(table => '{TABLE}', strategy => 'sort', {options})")
    files = [task.file for task in laid_out.table.scan().plan_files()]
    assert {file.spec_id for file in files} == {laid_out.table.spec().spec_id}
    assert len(files) == 3 * 5
    assert laid_out.problems(rows=True) == []
    spark_sql(f"REFRESH TABLE {TABLE}")
    assert spark_sql(f"SELECT count(*) FROM {TABLE} WHERE memberId = 7") == [[3]]
    laid_out.compact()
    assert laid_out.problems(rows=True) == []

"""Spark with Iceberg's runtime maintains and changes a published table; Millrace goes on, or says why not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from millrace.errors import MillraceError
from millrace_spark import tables
from tests.loaded import offsets, rows_by_load_and_hour
from tests.published import Warehouse
from tests.readers.engines import Engine, EngineError, spark_engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "millrace.millrace.PageView"
NAME = f"table => '{TABLE}'"
H10, H11, H12 = (f"2015-05-17T{hour}" for hour in (10, 11, 12))
COMPACT = f"CALL millrace.system.rewrite_data_files({NAME}, options => map('min-input-files', '2'))"
LONG_AFTER = "older_than => timestamp '2100-01-01 00:00:00'"
EXPIRE = f"CALL millrace.system.expire_snapshots({NAME}, {LONG_AFTER}, retain_last => 1)"
ORPHANS = f"CALL millrace.system.remove_orphan_files({NAME}, older_than => timestamp '2026-01-01 00:00:00')"


@pytest.fixture
def spark_sql(home: Path, scene: Warehouse) -> Iterator[Engine]:
    """Spark on the scene's catalog, which must be there first."""
    assert scene.catalog is not None
    scene.load({H10: 4})
    scene.publish(H10)
    engine = spark_engine(home, scene)
    yield engine
    engine.close()


def count(engine: Engine) -> int:
    """As a session sees it that has just begun: a table stays for 30 s as Spark has read it."""
    engine(f"REFRESH TABLE {TABLE}")
    ((rows,),) = engine(f"SELECT count(*) FROM {TABLE}")
    return int(rows)


def test_compaction_and_expiry_by_spark_change_no_row_and_publications_go_on(
    scene: Warehouse, spark_sql: Engine
) -> None:
    for _ in range(4):
        scene.load({H10: 3, H11: 2})
        scene.publish()
    scene.publish(H11)
    waiting = scene.load({H12: 5})
    ((rewritten, added, *_),) = spark_sql(COMPACT)
    assert (rewritten, added) == (9, 2)
    ((deleted, *_),) = spark_sql(EXPIRE)
    assert deleted == 9, "the files belong to the table, and nothing needs them any more"
    assert not scene.data_files(1)
    assert scene.data_files(waiting), "nobody's maintenance sees what is not published"
    spark_sql(ORPHANS)
    assert scene.data_files(waiting)
    scene.load({H10: 1, H11: 1})
    scene.publish(H12)
    assert offsets(scene.table) == list(range(4 + 4 * 5 + 5 + 2))
    assert count(spark_sql) == 31
    assert scene.problems(rows=True) == []
    scene.compact()
    scene.expire()
    assert count(spark_sql) == 31
    assert scene.problems(rows=True) == []


def test_a_load_that_spark_has_compacted_is_replaced_when_it_is_read_again(
    scene: Warehouse, spark_sql: Engine
) -> None:
    scene.load({H10: 3, H11: 2})
    scene.publish(H11)
    spark_sql(COMPACT)
    spark_sql(EXPIRE)
    scene.read_again(2, {H10: 1, H11: 4})
    scene.publish()
    assert rows_by_load_and_hour(scene.table) == {(1, H10): 4, (2, H10): 1, (2, H11): 4}
    assert count(spark_sql) == 9
    assert scene.problems(rows=True) == []


def test_publications_and_spark_compactions_at_once_keep_every_row_once(
    scene: Warehouse, spark_sql: Engine
) -> None:
    refused: list[str] = []
    compactions = 0

    def compact() -> None:
        nonlocal compactions
        while not done:
            try:
                spark_sql(COMPACT)
                compactions += 1
            except EngineError as error:
                refused.append(str(error))

    done = False
    compacting = Thread(target=compact)
    compacting.start()
    try:
        for _ in range(25):
            scene.load({H10: 2, H11: 1})
            scene.publish(H11)
    finally:
        done = True
        compacting.join()
    spark_sql(COMPACT)
    assert compactions
    # Iceberg's own words for a commit that lost; SQLite's for one that waited too long.
    assert all("ommit" in error or "SQLITE_BUSY" in error for error in refused), refused
    assert offsets(scene.table) == list(range(4 + 25 * 3))
    assert count(spark_sql) == 79
    assert scene.problems(rows=True) == []


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        (f"DELETE FROM {TABLE} WHERE _offset = 1", 3),
        (f"INSERT INTO {TABLE} SELECT * FROM {TABLE} WHERE _offset = 1", 5),
    ],
)
def test_rows_that_spark_deletes_or_inserts_stop_publications_until_they_are_put_right(
    scene: Warehouse, spark_sql: Engine, statement: str, rows: int
) -> None:
    spark_sql(statement)
    assert count(spark_sql) == rows
    scene.load({H10: 2})
    with pytest.raises(MillraceError, match="--rebuild"):
        scene.publish()
    assert scene.problems()
    scene.publish(rebuild=True)
    assert offsets(scene.table) == list(range(6))
    assert scene.problems(rows=True) == []
    assert count(spark_sql) == 6


def test_rows_deleted_in_place_stop_publications_and_spark_without_the_runtime(
    scene: Warehouse, spark_sql: Engine, spark: SparkSession
) -> None:
    scene.load({H10: 4})
    scene.publish()
    spark_sql(f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    spark_sql(f"DELETE FROM {TABLE} WHERE _offset = 1")
    assert count(spark_sql) == 7
    with pytest.raises(MillraceError, match="were deleted in place"):
        tables.read(spark, str(scene.folder), "PageView")
    with pytest.raises(MillraceError, match="--rebuild"):
        scene.publish()
    assert scene.problems()


def test_a_rollback_stops_publications_until_the_table_is_made_again(
    scene: Warehouse, spark_sql: Engine
) -> None:
    before = scene.table.current_snapshot()
    assert before is not None
    scene.load({H10: 4})
    scene.publish()
    spark_sql(f"CALL millrace.system.rollback_to_snapshot('{TABLE}', {before.snapshot_id})")
    assert count(spark_sql) == 4
    scene.load({H10: 1})
    with pytest.raises(MillraceError, match="--rebuild"):
        scene.publish()
    assert scene.problems()
    scene.publish(rebuild=True)
    assert offsets(scene.table) == list(range(9))
    assert scene.problems(rows=True) == []


def test_with_gc_disabled_spark_deletes_no_file_of_the_table(scene: Warehouse, spark_sql: Engine) -> None:
    spark_sql(f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('gc.enabled' = 'false')")
    scene.load({H10: 2})
    scene.publish()
    spark_sql(COMPACT)
    for statement in (EXPIRE, ORPHANS, f"DROP TABLE {TABLE} PURGE"):
        with pytest.raises(EngineError, match=r"gc\.enabled|GC is disabled"):
            spark_sql(statement)
    assert scene.data_files(1)
    assert scene.problems(rows=True) == []

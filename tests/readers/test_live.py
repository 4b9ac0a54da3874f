"""Foreign engines on branch `live`: no act of theirs loses a row, and one `follow` makes the branch whole.

ACTS is the table of docs/warehouse.md, "Read fresh rows". All acts share one Spark session and one catalog;
each has a folder and a table of its own.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyiceberg.table import Table

from millrace.errors import MillraceError
from millrace_warehouse.context import Context
from millrace_warehouse.publish.branch_commit import LIVE
from millrace_warehouse.publish.committer import branch_files
from millrace_warehouse.publish.live import Live
from millrace_warehouse.storage import open_storage
from tests.published import Warehouse, warehouse
from tests.readers.engines import Engine, EngineError, spark_engine

TABLE = "millrace.millrace.PageView"
BRANCH = f"{TABLE}.branch_live"
H10, H11, H12 = (f"2015-05-17T{hour}" for hour in (10, 11, 12))
MAIN, ALL = 10, 22
"""Rows of the scene: in `main`, and in `live`."""
GC_ON = f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('gc.enabled' = 'true')"
REFUSED = "GC is disabled"
DROP = f"ALTER TABLE {TABLE} DROP BRANCH live"


def call(procedure: str, arguments: str, table: str = TABLE) -> str:
    return f"CALL millrace.system.{procedure}(table => '{table}'{arguments and ', '}{arguments})"


COMPACT = "options => map('min-input-files', '2')"
EXPIRE = call("expire_snapshots", "older_than => timestamp '2100-01-01 00:00:00', retain_last => 1")
ORPHANS = call("remove_orphan_files", "older_than => timestamp '2026-01-01 00:00:00'")


@dataclass(frozen=True)
class Act:
    """Statements of another program, and the table after them. The last statement may be refused."""

    name: str
    statements: tuple[str, ...]
    """`{live}` is the head of the branch, `{first}` the snapshot of the first publication."""
    refused: str = ""
    main: int = MAIN
    moves_main: bool = False
    live: int | None = ALL
    """Rows of the branch before the next `follow`; None if it is gone."""


ACTS = [
    Act("compact main", (call("rewrite_data_files", COMPACT),), moves_main=True),
    Act("compact the branch", (call("rewrite_data_files", COMPACT, BRANCH),)),
    Act("compact the branch by argument", (call("rewrite_data_files", f"branch => 'live', {COMPACT}"),)),
    Act("rewrite manifests", (call("rewrite_manifests", ""),), moves_main=True),
    Act("expire snapshots", (EXPIRE,), refused=REFUSED),
    Act("compact and expire with GC", (GC_ON, call("rewrite_data_files", COMPACT), EXPIRE), moves_main=True),
    Act("remove orphan files", (ORPHANS,), refused=REFUSED),
    Act("remove orphan files with GC", (GC_ON, ORPHANS)),
    Act(
        "roll back",
        (f"CALL millrace.system.rollback_to_snapshot('{TABLE}', {{first}})",),
        main=8,
        moves_main=True,
    ),
    Act(
        "roll back and expire with GC",
        (GC_ON, f"CALL millrace.system.rollback_to_snapshot('{TABLE}', {{first}})", EXPIRE),
        main=8,
        moves_main=True,
    ),
    Act(
        "fast-forward main to the branch",
        (f"CALL millrace.system.fast_forward('{TABLE}', 'main', 'live')",),
        refused="main is not an ancestor of live",
    ),
    Act(
        "cherry-pick",
        (f"CALL millrace.system.cherrypick_snapshot('{TABLE}', {{live}})",),
        main=MAIN + 2,
        moves_main=True,
    ),
    Act("delete from main", (f"DELETE FROM {TABLE} WHERE _offset = 1",), main=MAIN - 1, moves_main=True),
    Act(
        "insert into the branch",
        (f"INSERT INTO {BRANCH} SELECT * FROM {TABLE} WHERE _offset = 1",),
        live=ALL + 1,
    ),
    Act(
        "short age of branches, and expire with GC",
        (GC_ON, f"ALTER TABLE {TABLE} SET TBLPROPERTIES ('history.expire.max-ref-age-ms' = '1')", EXPIRE),
    ),
    Act("drop the branch and expire", (DROP, EXPIRE), refused=REFUSED, live=None),
    Act("drop the table and purge", (f"DROP TABLE {TABLE} PURGE",), refused=REFUSED),
    Act(
        "replace the table",
        (
            f"CREATE OR REPLACE TABLE {TABLE} USING iceberg PARTITIONED BY (hours(_time))"
            f" AS SELECT * FROM {TABLE} WHERE _offset < 2",
        ),
        main=2,
        moves_main=True,
    ),
]


@pytest.fixture(scope="module")
def session(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Warehouse, Engine]]:
    """A catalog without tables, and Spark on it."""
    with warehouse(tmp_path_factory.mktemp("session") / "w") as made:
        made.load({H10: 1})
        made.publish(H10)
        engine = spark_engine(home, made, cache_enabled="false")
        engine("SELECT 1")
        drop_tables(made)
        yield made, engine
        engine.close()


@pytest.fixture
def spark(session: tuple[Warehouse, Engine]) -> Engine:
    return session[1]


@pytest.fixture
def live(session: tuple[Warehouse, Engine], tmp_path: Path) -> Iterator[Warehouse]:
    """Published and late rows in `main`, two files for each hour; 12 rows wait in 8 files."""
    folder = tmp_path / "w"
    folder.mkdir()
    scene = Warehouse(folder, open_storage(str(folder)), session[0].catalog)
    scene.load({H10: 2, H11: 2}, 2)
    scene.load({H12: 2}, 2)
    scene.publish(H10, H11)
    follow(scene)
    scene.load({H10: 1, H12: 2}, 2)
    scene.load({H12: 1}, 2)
    follow(scene)
    scene.publish()
    scene.load({H12: 1}, 2)
    follow(scene)
    yield scene
    drop_tables(scene)


def drop_tables(scene: Warehouse) -> None:
    for table in scene.catalog.list_tables("millrace"):
        scene.catalog.drop_table(table)


def follow(scene: Warehouse) -> None:
    Live(Context(storage=scene.storage, catalog=scene.catalog), scene.stored).follow(on=True)


def offsets(table: Table, branch: str) -> list[int]:
    """Return every row's offset in a branch, sorted."""
    found = table.scan(selected_fields=("_offset",)).use_ref(branch).to_arrow()
    return sorted(found["_offset"].to_pylist())


def act(scene: Warehouse, spark: Engine, statements: tuple[str, ...], refused: str = "") -> None:
    """Run statements. The last one must be refused if there is a pattern for it."""
    table = scene.table
    published = [each for each in table.snapshots() if each.summary and each.summary["millrace.publication"]]
    ids = {"live": table.metadata.refs[LIVE].snapshot_id, "first": published[0].snapshot_id}
    *before, last = (statement.format(**ids) for statement in statements)
    for statement in before:
        spark(statement)
    with pytest.raises(EngineError, match=refused) if refused else nullcontext():
        spark(last)


@pytest.mark.parametrize("case", ACTS, ids=lambda each: each.name)
def test_no_act_of_another_program_loses_a_file_and_follow_makes_the_branch_whole(
    live: Warehouse, spark: Engine, case: Act
) -> None:
    files, head = set(live.data_files()), live.table.current_snapshot()
    act(live, spark, case.statements, case.refused)
    assert (live.table.current_snapshot() != head) == case.moves_main
    assert len(offsets(live.table, "main")) == case.main
    if case.live is None:
        assert LIVE not in live.table.metadata.refs
    else:
        assert len(offsets(live.table, LIVE)) == case.live
    follow(live)
    table = live.table
    assert offsets(table, LIVE) == list(range(ALL))
    assert set(offsets(table, "main")) <= set(range(ALL))
    assert files <= set(live.data_files())
    assert table.properties["gc.enabled"] == "false"
    if case.main == MAIN:
        in_live = {file.file_path for file in branch_files(table, branch=LIVE)}
        assert {file.file_path for file in branch_files(table)} <= in_live, "a compaction of main reaches it"
    else:
        with pytest.raises(MillraceError, match="--rebuild"):
            live.publish(H12)
        live.publish(rebuild=True)
    live.publish(H12)
    assert offsets(live.table, "main") == offsets(live.table, LIVE) == list(range(ALL))
    assert live.problems(rows=True) == []


def test_with_gc_enabled_by_another_program_a_drop_and_an_expiry_lose_the_rows_that_wait(
    live: Warehouse, spark: Engine
) -> None:
    files = set(live.data_files())
    act(live, spark, (GC_ON, DROP, EXPIRE))
    gone = files - set(live.data_files())
    assert len(gone) == 8
    assert len(offsets(live.table, "main")) == MAIN
    problems = live.problems()
    assert len(problems) == 8
    assert all("is missing" in problem for problem in problems)


def test_an_expiry_by_pyiceberg_leaves_both_heads_and_every_file(live: Warehouse) -> None:
    files = set(live.data_files())
    live.table.maintenance.expire_snapshots().older_than(dt.datetime(2100, 1, 1)).commit()
    assert len(live.table.snapshots()) == 2
    assert offsets(live.table, LIVE) == list(range(ALL))
    follow(live)
    assert offsets(live.table, LIVE) == list(range(ALL))
    assert len(offsets(live.table, "main")) == MAIN
    assert files == set(live.data_files())
    assert live.problems(rows=True) == []


@pytest.mark.parametrize("name", [f"{TABLE} VERSION AS OF 'live'", BRANCH])
def test_spark_reads_the_branch_by_either_name_and_by_hour(live: Warehouse, spark: Engine, name: str) -> None:
    assert spark(f"SELECT count(*), count(DISTINCT _offset) FROM {name}") == [[ALL, ALL]]
    assert spark(f"SELECT count(*) FROM {name} WHERE _time >= '2015-05-17 12:00:00'") == [[12]]
    assert spark(f"SELECT count(*) FROM {TABLE}") == [[MAIN]]


def test_duckdb_reads_the_branch_by_its_snapshot_and_takes_its_name_for_main(
    live: Warehouse, duckdb: Engine
) -> None:
    metadata, head = live.table.metadata_location, live.table.metadata.refs[LIVE].snapshot_id
    path = metadata.removeprefix("file://")
    assert duckdb(f"SELECT count(*) FROM iceberg_scan('{path}', snapshot_from_id = {head})") == [[ALL]]
    assert duckdb(f"SELECT count(*) FROM iceberg_scan('{path}', version = 'live')") == [[MAIN]]

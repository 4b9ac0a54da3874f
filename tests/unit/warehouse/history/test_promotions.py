"""A table has one schema, whatever its messages are written with, until somebody promotes it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from millrace_warehouse.table.publish import publish_hours

from millrace.errors import MillraceError
from millrace_spark.tables import dataset
from millrace_warehouse.commands.upkeep import promote as command
from millrace_warehouse.history.layout import read_load
from millrace_warehouse.history.schemas import HistoryEntry, Promotion, history, promote, promotions
from millrace_warehouse.load.load import LoadResult, load_topic
from millrace_warehouse.storage.filesystem import LocalFilesystem
from tests.support import REPOSITORY, WAIT_S
from tests.unit.warehouse.memory_log import (
    HOUR,
    SCHEMA,
    START,
    TOPIC,
    MemoryLog,
    hourly_run,
    load_run,
    rows_of,
    with_field,
)

COUNTED, WIDE, COUNTRY, BARE = 8, 9, 10, 11
"""Schema ids: a count as int, as long, a country beside it, and neither."""


@pytest.fixture
def log() -> MemoryLog:
    """An empty log whose registry knows several schemas; the newest one is COUNTED."""
    log = MemoryLog(1)
    log.schemas = {COUNTED: with_field("count", "int", 0)}
    return log


def register(log: MemoryLog, *ids: int) -> None:
    """Let the registry know some of the others."""
    wide = with_field("count", "long", 0)
    country = with_field("country", ["null", "string"], None, wide)
    log.schemas |= {i: s for i, s in {WIDE: wide, COUNTRY: country, BARE: SCHEMA}.items() if i in ids}


def run(log: MemoryLog, warehouse: Path, run_id: str, **changes: Any) -> LoadResult:
    return load_topic(load_run(log, warehouse, run_id, **changes), TOPIC)


def pinned(warehouse: Path, load: int) -> tuple[int, int | None]:
    manifest = read_load(LocalFilesystem(str(warehouse)), TOPIC, load)
    return manifest.table_schema_id, manifest.promotion


def promote_to(log: MemoryLog, warehouse: Path, schema_id: int, reason: str = "why not") -> Promotion | None:
    return promote(LocalFilesystem(str(warehouse)), TOPIC, schema_id, reason, log.schemas.get).promotion


def column_types(warehouse: Path, load: int, column: str) -> set[str]:
    paths = warehouse.glob(f"{TOPIC}/load={load:010d}/date=*/hour=*/*.parquet")
    schemas = [pq.read_schema(path) for path in paths]
    return {str(schema.field(column).type) if column in schema.names else "none" for schema in schemas}


def test_the_first_load_pins_the_newest_schema_and_later_ones_keep_it(log: MemoryLog, tmp_path: Path) -> None:
    log.append_events(0, [START], schema=COUNTED, count=1)
    run(log, tmp_path, "first")
    register(log, COUNTRY)
    log.append_events(0, [START], schema=COUNTRY, count=2, country="is")
    result = run(log, tmp_path, "second")
    assert [pinned(tmp_path, load) for load in (1, 2)] == [(COUNTED, None), (COUNTED, None)]
    # A long does not fit an int column: that record is set aside.
    assert (result.rows, result.rejected) == (0, 1)


def test_a_field_the_table_has_not_is_named_with_the_promotion_that_brings_it(
    log: MemoryLog, tmp_path: Path
) -> None:
    log.schemas = {BARE: SCHEMA}
    log.append_events(0, [START], schema=BARE)
    assert run(log, tmp_path, "first").notes == []
    log.schemas |= {COUNTRY: with_field("country", ["null", "string"], None)}
    log.append_events(0, [START], schema=COUNTRY, country="is")
    result = run(log, tmp_path, "second")
    assert result.rows == 1
    assert result.notes == [
        "PageView: its messages have fields that the table has not: country; to get them:"
        " millrace promote PageView --schema-id 10"
    ]
    promote_to(log, tmp_path, COUNTRY)
    log.append_events(0, [START], schema=COUNTRY, country="no")
    assert run(log, tmp_path, "third").notes == []


def test_hours_from_before_a_promotion_have_its_columns_once_an_hour_has_them(
    log: MemoryLog, tmp_path: Path
) -> None:
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, tmp_path, "first")
    ten = (datetime(2015, 5, 17, 10, tzinfo=UTC), datetime(2015, 5, 17, 11, tzinfo=UTC))
    publish_hours(hourly_run(tmp_path), TOPIC, ["2015-05-17T10"])
    register(log, WIDE, COUNTRY)
    assert promote_to(log, tmp_path, COUNTRY) is not None
    assert "country" not in dataset(str(tmp_path), TOPIC, ten).schema.names  # no hour has it yet
    log.append_events(0, [START + HOUR], schema=COUNTRY, count=1 << 40, country="is")
    run(log, tmp_path, "second")
    publish_hours(hourly_run(tmp_path), TOPIC, ["2015-05-17T11"])
    table = dataset(str(tmp_path), TOPIC, ten).to_table()
    assert table.schema.equals(dataset(str(tmp_path), TOPIC).schema)
    assert (table["count"].to_pylist(), table["country"].to_pylist()) == ([5], [None])


def test_after_a_promotion_new_columns_are_null_in_old_rows_and_numbers_are_wider(
    log: MemoryLog, tmp_path: Path
) -> None:
    log.append_events(0, [START, START], schema=COUNTED, count=5)
    run(log, tmp_path, "first")
    register(log, WIDE, COUNTRY)
    assert promote_to(log, tmp_path, COUNTRY) is not None
    log.append_events(0, [START], schema=COUNTRY, count=1 << 40, country="is")
    log.append_events(0, [START], schema=COUNTED, count=6)
    log.append_events(0, [START], schema=WIDE, count=7)
    result = run(log, tmp_path, "second")
    assert (result.rows, result.rejected, pinned(tmp_path, 2)) == (3, 0, (COUNTRY, 1))
    publish_hours(hourly_run(tmp_path), TOPIC, ["2015-05-17T10"])
    table = dataset(str(tmp_path), TOPIC).to_table()
    assert table.schema.field("count").type == pa.int64()
    rows = sorted((row["header"]["sequence"], row["count"], row["country"]) for row in table.to_pylist())
    # A message of an old schema read with the new one has the default; an old row has null.
    assert rows == [(0, 5, None), (1, 5, None), (2, 1 << 40, "is"), (3, 6, None), (4, 7, None)]


def test_a_removed_field_is_in_new_rows_no_more(log: MemoryLog, tmp_path: Path) -> None:
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, tmp_path, "first")
    register(log, BARE)
    fs = LocalFilesystem(str(tmp_path))
    promoted = promote(fs, TOPIC, BARE, "nobody reads it", log.schemas.get)
    assert promoted.changes == ["column count is in new rows no more"]
    log.append_events(0, [START], schema=COUNTED, count=6)
    assert run(log, tmp_path, "second").rows == 1
    assert column_types(tmp_path, 2, "count") == {"none"}
    assert [row.sequence for row in rows_of(tmp_path)] == [0, 1]


def test_a_load_that_runs_keeps_its_schema_and_the_next_has_the_promoted_one(
    log: MemoryLog, tmp_path: Path
) -> None:
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, tmp_path, "first")
    register(log, WIDE)
    log.append_events(0, [START], schema=COUNTED, count=6)

    def promote_meanwhile(step: str) -> None:
        if step == "written":
            assert promote_to(log, tmp_path, WIDE) is not None

    run(log, tmp_path, "second", progress=promote_meanwhile)
    log.append_events(0, [START], schema=WIDE, count=7)
    run(log, tmp_path, "third")
    assert [pinned(tmp_path, n) for n in (1, 2, 3)] == [(COUNTED, None), (COUNTED, None), (WIDE, 1)]
    assert column_types(tmp_path, 2, "count") == {"int32"}
    assert column_types(tmp_path, 3, "count") == {"int64"}


def test_of_two_promotions_at_the_same_moment_one_is_recorded_and_the_other_says_so(
    log: MemoryLog, tmp_path: Path
) -> None:
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, tmp_path, "first")
    register(log, WIDE, COUNTRY)
    both, outcomes = threading.Barrier(2), dict[int, Promotion | str | None]()

    def race(schema_id: int) -> None:
        def lookup(wanted: int) -> Any:
            if wanted == schema_id:
                both.wait(WAIT_S)  # both have seen which promotion would be the next
            return log.schemas.get(wanted)

        try:
            fs = LocalFilesystem(str(tmp_path))
            outcomes[schema_id] = promote(fs, TOPIC, schema_id, "race", lookup).promotion
        except MillraceError as error:
            outcomes[schema_id] = str(error)

    rivals = [threading.Thread(target=race, args=(schema_id,)) for schema_id in (WIDE, COUNTRY)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join(30)
    (winner,) = [each for each in outcomes.values() if isinstance(each, Promotion)]
    (loser,) = [each for each in outcomes.values() if isinstance(each, str)]
    assert "another promotion of PageView was recorded at the same moment" in loser
    assert promotions(LocalFilesystem(str(tmp_path)), TOPIC) == [winner]


def test_promoting_to_the_schema_the_table_has_changes_nothing(log: MemoryLog, tmp_path: Path) -> None:
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, tmp_path, "first")
    assert promote_to(log, tmp_path, COUNTED) is None
    register(log, WIDE)
    assert promote_to(log, tmp_path, WIDE) is not None
    assert promote_to(log, tmp_path, WIDE) is None
    assert not (tmp_path / TOPIC / "_promotions" / "0002.json").exists()


def with_n(type_: Any, default: Any = 0, **more: Any) -> dict[str, Any]:
    """The schema with a field n, or with another name in `more`."""
    fields = [*SCHEMA["fields"], {"name": "n", "type": type_, "default": default} | more]
    return {**SCHEMA, "fields": fields}


def array(items: str) -> dict[str, str]:
    return {"type": "array", "items": items}


CANNOT_READ = "cannot read what was written with the old"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (with_n("long"), with_n("int"), CANNOT_READ),
        (with_n("string", ""), with_n("int"), CANNOT_READ),
        (
            SCHEMA,
            {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "n", "type": "int"}]},
            "give new fields a default",
        ),
        (with_n("long"), with_n("double"), "column n would change from int64 to double"),
        (with_n("int"), with_n("float"), "column n would change from int32 to float"),
        (with_n("string", ""), with_n("bytes", ""), "column n would change from"),
        (
            with_n(array("long"), []),
            with_n(array("double"), []),
            "column n would change from int64 to double",
        ),
        (with_n("int"), with_n("int", name="m", aliases=["n"]), "it renames column n to m"),
    ],
)
def test_a_promotion_that_could_not_read_what_is_there_is_refused(
    log: MemoryLog, tmp_path: Path, old: dict[str, Any], new: dict[str, Any], words: str
) -> None:
    log.schemas = {COUNTED: old}
    fields = {"n": old["fields"][-1]["default"]} if old is not SCHEMA else {}
    log.append_events(0, [START], schema=COUNTED, **fields)
    run(log, tmp_path, "first")
    log.schemas |= {WIDE: new}
    with pytest.raises(MillraceError, match=words) as caught:
        promote_to(log, tmp_path, WIDE)
    assert str(caught.value).startswith("PageView cannot be promoted from schema 8 to 9")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / TOPIC / "_promotions").exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int", "long"),
        ("int", "double"),
        ("float", "double"),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "double"}),
    ],
)
def test_every_widening_that_is_allowed_can_be_read_from_old_files(
    log: MemoryLog, tmp_path: Path, old: Any, new: Any
) -> None:
    value: Any = {"array": [1], "map": {"k": 1}}.get(old["type"]) if isinstance(old, dict) else 1
    log.schemas = {COUNTED: with_field("n", old, value)}
    log.append_events(0, [START], schema=COUNTED, n=value)
    run(log, tmp_path, "first")
    log.schemas |= {WIDE: with_field("n", new, value)}
    assert promote_to(log, tmp_path, WIDE) is not None
    log.append_events(0, [START], schema=WIDE, n=value)
    run(log, tmp_path, "second")
    (newest,) = tmp_path.glob(f"{TOPIC}/load=0000000002/date=*/hour=*/*.parquet")
    every = ds.dataset(
        [str(path) for path in tmp_path.glob(f"{TOPIC}/load=*/date=*/hour=*/*.parquet")],
        schema=pq.read_schema(newest),
        format="parquet",
    )
    expected = [("k", 1)] if isinstance(value, dict) else value
    assert every.to_table()["n"].to_pylist() == [expected, expected]


def test_a_table_without_a_load_has_nothing_to_promote(log: MemoryLog, tmp_path: Path) -> None:
    with pytest.raises(MillraceError, match="the first load pins the newest registered schema by itself"):
        promote_to(log, tmp_path, COUNTED)


def test_a_schema_that_is_not_registered_is_refused(log: MemoryLog, tmp_path: Path) -> None:
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, tmp_path, "first")
    with pytest.raises(MillraceError, match="the registry has no schema 99"):
        promote_to(log, tmp_path, 99)


def test_a_deleted_record_of_a_promotion_does_not_bring_the_old_schema_back(
    log: MemoryLog, tmp_path: Path
) -> None:
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, tmp_path, "first")
    register(log, WIDE, COUNTRY)
    promote_to(log, tmp_path, WIDE)
    log.append_events(0, [START], schema=WIDE, count=5)
    run(log, tmp_path, "second")
    (tmp_path / TOPIC / "_promotions" / "0001.json").unlink()
    log.append_events(0, [START], schema=WIDE, count=5)
    run(log, tmp_path, "third")
    assert pinned(tmp_path, 3) == (WIDE, 1)
    promotion = promote_to(log, tmp_path, COUNTRY)
    assert promotion is not None
    assert (promotion.number, promotion.previous_schema_id) == (2, WIDE)


def test_the_history_names_every_schema_and_the_first_load_that_has_it(
    log: MemoryLog, tmp_path: Path
) -> None:
    register(log, WIDE, COUNTRY)
    log.schemas = {COUNTED: log.schemas[COUNTED], **log.schemas}
    log.append_events(0, [START], schema=COUNTED, count=5)
    first = {COUNTED: log.schemas[COUNTED]}
    known, log.schemas = log.schemas, first
    run(log, tmp_path, "1")
    log.schemas = known
    for turn, schema_id in enumerate((None, WIDE, None, COUNTRY), 2):
        if schema_id is not None:
            promote_to(log, tmp_path, schema_id, f"turn {turn}")
        log.append_events(0, [START], schema=COUNTED, count=5)
        run(log, tmp_path, str(turn))
    found = history(LocalFilesystem(str(tmp_path)), TOPIC)
    assert [(e.number, e.schema_id, e.first_load) for e in found] == [
        (None, COUNTED, 1),
        (1, WIDE, 3),
        (2, COUNTRY, 5),
    ]
    assert [entry.reason for entry in found][1:] == ["turn 3", "turn 5"]
    shown = CliRunner().invoke(command, [TOPIC, "--warehouse", str(tmp_path), "--list"])
    assert shown.exit_code == 0
    assert "turn 5" in shown.stdout
    as_json = CliRunner().invoke(command, [TOPIC, "--warehouse", str(tmp_path), "--list", "--json"])
    assert [HistoryEntry(**entry) for entry in json.loads(as_json.stdout)] == found


KILLED = """
import os, sys
from millrace_warehouse.storage.filesystem import LocalFilesystem
from millrace_warehouse.history.schemas import promote, promotions
from tests.unit.warehouse.memory_log import with_field

fs, calls = LocalFilesystem(sys.argv[1]), 0
schemas = {8: with_field("count", "int", 0), 9: with_field("count", "long", 0)}

def dying(real, step):
    def call(*arguments, **options):
        global calls
        calls += 1
        if calls == step:
            os._exit(9)
        return real(*arguments, **options)
    return call

def try_to_promote(step):
    for name in ("link", "fsync", "open"):
        setattr(os, name, dying(getattr(os, name), step))
    promote(fs, "PageView", 9, "killed", schemas.get)
    os._exit(0)

for step in range(1, 30):
    for name in fs.names("PageView/_promotions"):
        fs.delete(f"PageView/_promotions/{name}")
    if (pid := os.fork()) == 0:
        try_to_promote(step)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    before = [each.schema_id for each in promotions(fs, "PageView")]
    promote(fs, "PageView", 9, "again", schemas.get)
    print(code, before, [each.number for each in promotions(fs, "PageView")])
    if code == 0:
        break
"""


def test_killed_anywhere_in_a_promotion_it_is_recorded_whole_or_not_at_all(
    log: MemoryLog, tmp_path: Path
) -> None:
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, tmp_path, "first")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    # Whoever tries again has one promotion, the dead one's or his own.
    assert set(lines[:-1]) <= {"9 [] [1]", "9 [9] [1]"}
    assert {"9 [] [1]", "9 [9] [1]"} <= set(lines[:-1])
    assert lines[-1] == "0 [9] [1]"


def older_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a first load pin any schema, as versions did that did not look at the names."""
    monkeypatch.setattr("millrace_warehouse.load.load.check_pinned", lambda *_: None)


@pytest.mark.parametrize("name", ["date", "hour", "rev", "_load", "URL"])
def test_the_first_load_refuses_a_schema_with_a_name_that_no_column_may_have(
    log: MemoryLog, tmp_path: Path, name: str
) -> None:
    log.schemas = {20: with_field(name, "string", "")}
    log.append_events(0, [START], schema=20)
    with pytest.raises(MillraceError, match=rf"^{TOPIC} cannot be loaded with schema 20: .*{name}.*; mend "):
        run(log, tmp_path, "one")
    assert not list(tmp_path.glob(f"{TOPIC}/load=*"))


@pytest.mark.parametrize("name", ["date", "_offset", "URL"])
def test_a_promotion_to_a_schema_with_a_name_that_no_column_may_have_is_refused(
    log: MemoryLog, tmp_path: Path, name: str
) -> None:
    log.append_events(0, [START], schema=COUNTED)
    run(log, tmp_path, "one")
    log.schemas[20] = with_field(name, ["null", "string"], None, log.schemas[COUNTED])
    with pytest.raises(MillraceError, match=rf"promoted from schema {COUNTED} to 20: .*{name}.*; mend "):
        promote_to(log, tmp_path, 20)


def test_a_table_that_an_older_version_gave_a_column_named_date_is_loaded_and_read_with_it(
    log: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.schemas = {20: with_field("date", "string", "")}
    log.append_events(0, [START], schema=20, date="x")
    with monkeypatch.context() as patch:
        older_version(patch)
        run(log, tmp_path, "one")
    log.append_events(0, [START + 1], schema=20, date="y")
    run(log, tmp_path, "two")
    publish_hours(hourly_run(tmp_path), TOPIC, ["2015-05-17T10"])
    table = dataset(str(tmp_path), TOPIC).to_table()
    assert table["date"].to_pylist() == ["x", "y"]
    assert not {"hour", "rev"} & {*table.column_names}
    # The way out: a schema that calls the field something else.
    log.schemas[21] = with_field("day", "string", "")
    promote_to(log, tmp_path, 21)
    log.append_events(0, [START + 2], schema=21, day="z")
    run(log, tmp_path, "three")
    publish_hours(hourly_run(tmp_path), TOPIC, ["2015-05-17T10"])
    table = dataset(str(tmp_path), TOPIC).to_table()
    assert table["day"].to_pylist() == [None, None, "z"]
    assert {"hour", "rev"} <= {*table.column_names}

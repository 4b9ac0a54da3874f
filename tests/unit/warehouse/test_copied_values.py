"""Rows that are copied keep every value, nulls and empty lists among them, through each verb that copies."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.errors import MillraceError
from millrace_warehouse.context import Context
from millrace_warehouse.erase import erasing
from millrace_warehouse.erase.erasing import erase_topic
from millrace_warehouse.history.layout import newest_editions
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.reload import ReloadRun, reload_topic
from millrace_warehouse.projection import project
from millrace_warehouse.publish import rewriting
from millrace_warehouse.publish.gate import NoAuditor
from millrace_warehouse.requests import Erase
from tests.loaded import compact_as_others_do
from tests.published import TOPIC, Warehouse, warehouse
from tests.unit.warehouse.memory_log import SCHEMA, SCHEMA_ID, START, MemoryLog, load_run

HOUR = "2015-05-17T10"
ITEM = {"type": "record", "name": "Item", "fields": [{"name": "a", "type": ["null", "int"], "default": None}]}


def optional(name: str, type_: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", type_], "default": None}


FIELDS = [
    optional("items", {"type": "array", "items": ["null", ITEM]}),
    optional("byname", {"type": "map", "values": ["null", "Item"]}),
    optional("one", "Item"),
    optional("lists", {"type": "array", "items": ["null", {"type": "array", "items": ["null", "long"]}]}),
    optional("maps", {"type": "map", "values": {"type": "map", "values": ["null", "string"]}}),
    optional("flag", "boolean"),
    optional("small", "int"),
    optional("large", "long"),
    optional("half", "float"),
    optional("whole", "double"),
    optional("raw", "bytes"),
    optional("text", "string"),
    optional("four", {"type": "fixed", "name": "Four", "size": 4}),
    optional("kind", {"type": "enum", "name": "Kind", "symbols": ["X", "Y"]}),
    optional("price", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}),
    optional("day", {"type": "int", "logicalType": "date"}),
    optional("at", {"type": "long", "logicalType": "timestamp-micros"}),
    optional("id", {"type": "string", "logicalType": "uuid"}),
]
FULL: dict[str, Any] = {
    "items": [{"a": 1}, {"a": None}, None],
    "byname": {"k": {"a": 2}, "l": None},
    "one": {"a": 3},
    "lists": [[1, None], None, []],
    "maps": {"m": {"x": None}, "n": {}},
    "flag": True,
    "small": -1,
    "large": 2**40,
    "half": 0.5,
    "whole": -2.5,
    "raw": b"\0\xff",
    "text": "ä",
    "four": b"abcd",
    "kind": "Y",
    "price": Decimal("12.345"),
    "day": 18_000,
    "at": datetime(2015, 5, 17, 10, 0, 0, 7, UTC),
    "id": "6f1ed002-ab59-4b0f-8b1a-0000000000ff",
}
EMPTY = {"items": [], "byname": {}, "lists": [], "maps": {}, "raw": b"", "text": "", "one": {"a": None}}
VALUES: list[dict[str, Any]] = [{}, EMPTY, FULL, {"one": None, "lists": [None]}]


@pytest.fixture
def w(tmp_path: Path) -> Iterator[Warehouse]:
    with warehouse(tmp_path / "w") as made:
        yield made


@pytest.fixture
def log(w: Warehouse) -> MemoryLog:
    """A topic with a load for each of VALUES, all of one hour, published."""
    made = MemoryLog(1)
    made.schemas = {SCHEMA_ID: {**SCHEMA, "fields": [*SCHEMA["fields"], *FIELDS]}}
    for value in VALUES:
        made.append_events(0, [START], **{**dict.fromkeys(FULL), **value})
        load_topic(load_run(made, w.storage, run_id=uuid.uuid4().hex), TOPIC)
    w.publish(HOUR)
    return made


def table_rows(w: Warehouse) -> list[dict[str, Any]]:
    """The rows of the table's files as pyarrow reads them, without what a copy may change."""
    paths = [task.file.file_path.removeprefix("file://") for task in w.table.scan().plan_files()]
    found = [row for path in paths for row in pq.read_table(path, partitioning=None).to_pylist()]
    return sorted(found, key=lambda row: row["_offset"])


def test_compaction_keeps_every_value(w: Warehouse, log: MemoryLog) -> None:
    before = table_rows(w)
    assert [row["items"] for row in before][:2] == [None, []], "null and empty are not the same"
    assert w.compact().hours
    assert table_rows(w) == before
    report = w.verify(rows=True)
    assert (report.problems, report.compared) == ([], len(VALUES))


def test_an_erasure_keeps_every_value_of_the_rows_that_stay(w: Warehouse, log: MemoryLog) -> None:
    for value in VALUES:
        log.append_events(0, [START], **{**dict.fromkeys(FULL), **value})
    load_topic(load_run(log, w.storage, run_id="all"), TOPIC)
    w.publish()
    before = table_rows(w)
    erased = before[-1]
    request = Erase(
        topic=TOPIC,
        warehouse=str(w.folder),
        where=f"header.sequence = {erased['header']['sequence']}",
        reason="a test",
        id="one",
    )
    erase_topic(Context(storage=w.storage, catalog=w.catalog), request, NoAuditor(), lambda: None)
    assert table_rows(w) == before[:-1]
    assert w.problems(rows=True) == []


def test_a_re_load_keeps_every_value_of_rows_that_lie_in_the_same_file(w: Warehouse, log: MemoryLog) -> None:
    compact_as_others_do(w.storage, w.table, TOPIC, HOUR)
    before = table_rows(w)
    run = ReloadRun(context=load_run(log, w.storage, "again").context, reason="a test")
    reload_topic(run, TOPIC, [len(VALUES)])
    w.publish()
    assert table_rows(w) == before


def with_value(name: str, row: int, value: Any) -> Callable[[pa.Table], pa.Table]:
    """A change of one value of a column, whose type stays."""

    def change(rows: pa.Table) -> pa.Table:
        at = rows.schema.get_field_index(name)
        values = rows.column(at).to_pylist()
        values[row] = value
        return rows.set_column(at, rows.schema.field(at), pa.array(values, rows.schema.field(at).type))

    return change


@pytest.mark.parametrize(
    ("name", "row", "value", "where"),
    [
        ("items", 0, [], "items"),
        ("items", 2, [{"a": 1}, {"a": 7}, None], "items.element.a"),
        ("byname", 2, [("k", {"a": None}), ("l", None)], "byname.value.a"),
        ("lists", 2, [[1, 2], None, []], "lists.element.element"),
        ("one", 1, {"a": 1}, "one.a"),
        ("whole", 2, -2.25, "whole"),
        ("text", 2, "a", "text"),
        ("price", 2, None, "price"),
    ],
)
def test_a_value_that_another_program_changed_while_it_compacted_is_found(
    w: Warehouse, log: MemoryLog, name: str, row: int, value: Any, where: str
) -> None:
    compact_as_others_do(w.storage, w.table, TOPIC, HOUR, with_value(name, row, value))
    assert w.problems() == [], "the rows are as many"
    (problem,) = w.problems(rows=True)
    assert "do not hold the values of their loads' files" in problem
    assert f" in {where}: move them away" in problem
    for path in w.topic.glob("compacted/foreign/*.parquet"):
        path.unlink()
    w.publish(rebuild=True)
    assert w.problems(rows=True) == []


def test_a_copy_with_a_column_of_another_type_is_named(w: Warehouse, log: MemoryLog) -> None:
    def as_words(rows: pa.Table) -> pa.Table:
        at = rows.schema.get_field_index("large")
        words = pa.array(["many"] * len(rows))
        return rows.set_column(at, rows.schema.field(at).with_type(pa.string()), words)

    compact_as_others_do(w.storage, w.table, TOPIC, HOUR, as_words)
    (problem,) = w.problems(rows=True)
    assert "cannot be compared" in problem


def test_the_same_rows_in_another_order_are_no_difference(w: Warehouse, log: MemoryLog) -> None:
    compact_as_others_do(w.storage, w.table, TOPIC, HOUR, lambda rows: rows.take([3, 1, 0, 2]))
    report = w.verify(rows=True)
    assert (report.problems, report.compared) == ([], len(VALUES))


def forget_nulls(batch: pa.RecordBatch, *columns: Any) -> pa.RecordBatch:
    """A projection that makes null lists empty."""
    copy = project(batch, *columns)
    at = copy.schema.get_field_index("items")
    items = copy.column(at)
    whole = type(items).from_arrays(items.offsets, items.values, type=items.type)
    return copy.set_column(at, copy.schema.field(at), whole)


def test_a_copy_that_lost_a_null_is_not_committed(
    w: Warehouse, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = table_rows(w)
    monkeypatch.setattr(rewriting, "project", forget_nulls)
    result = w.compact()
    assert result.hours == []
    assert "differs from the rows that it copies in the columns items" in result.kept[HOUR]
    assert table_rows(w) == before


def test_an_erasure_whose_copy_lost_a_null_makes_no_edition(
    w: Warehouse, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing: dict[str, Any] = dict.fromkeys(FULL)
    log.append_events(0, [START, START], **nothing)
    load_topic(load_run(log, w.storage, run_id="both"), TOPIC)
    before = {path: path.read_bytes() for path in w.data_files()}
    monkeypatch.setattr(erasing, "project", forget_nulls)
    request = Erase(
        topic=TOPIC,
        warehouse=str(w.folder),
        where=f"header.sequence = {len(VALUES)}",
        reason="a test",
        id="one",
    )
    with pytest.raises(MillraceError, match=r"load 5 .* in items: nothing was erased of that load"):
        erase_topic(Context(storage=w.storage, catalog=w.catalog), request, NoAuditor(), lambda: None)
    assert newest_editions(w.stored) == {}
    assert all(path.read_bytes() == content for path, content in before.items())

"""Loads of topics in other formats than Avro: JSON by an Avro schema, text, and bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.errors import MillraceError
from millrace.records import Message
from millrace_registry.client import SchemaRegistryClient
from millrace_registry.subjects import LIKE_TOPICS
from millrace_warehouse.history.layout import Topic, read_load
from millrace_warehouse.history.schemas import (
    check_same_format,
    first_schema,
    pinned,
    plain_schema,
    promote,
    promote_registered,
    read_schema,
)
from millrace_warehouse.load.load import LoadResult, load_topic
from millrace_warehouse.load.range_writer import Pinned
from millrace_warehouse.load.reload import ReloadRun, reload_topic
from millrace_warehouse.log.formats import PLAIN_SCHEMAS, MessageFormat
from millrace_warehouse.storage import open_storage
from tests.unit.warehouse.memory_log import HOUR, SCHEMA, SCHEMA_ID, START, MemoryLog, load_run, with_field

ORDERS = "shop.orders.v1"
PLACED_AT = {"type": "long", "logicalType": "timestamp-millis"}
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "ShopOrdersV1",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "placedAt", "type": ["null", PLACED_AT]},
    ],
}
BY_TIME = MessageFormat("json", "placedAt")


def topic_of(*values: bytes | None, schema: Any = ORDER) -> MemoryLog:
    log = MemoryLog(1, ORDERS)
    log.schemas = {SCHEMA_ID: schema}
    if values:
        log.append(0, [Message(START + n, b"k", value) for n, value in enumerate(values)])
    return log


def pins(log: MemoryLog, folder: Path, messages: MessageFormat) -> Callable[[str, int], Pinned]:
    """A `pin` that pins the newest schema of the log with a format."""

    def pin(name: str, used: int) -> Pinned:
        topic = Topic(open_storage(str(folder)), name)
        held = pinned(topic, used)
        if held is None and messages.name in PLAIN_SCHEMAS:
            held = plain_schema(topic, messages)
        elif held is None:
            held = first_schema(topic, max(log.schemas), log.schemas[max(log.schemas)], messages)
        check_same_format(held, messages)
        return Pinned.from_schema(held, lambda: log, log.schemas.get)

    return pin


def loaded(
    log: MemoryLog, folder: Path, messages: MessageFormat = BY_TIME, run_id: str = "run-1", **changes: Any
) -> LoadResult:
    return load_topic(load_run(log, folder, run_id, pin=pins(log, folder, messages), **changes), ORDERS)


def rows(folder: Path, load: int = 1) -> list[Mapping[str, Any]]:
    """The rows of a load in the order of the log."""
    storage = open_storage(str(folder))
    files = read_load(Topic(storage, ORDERS), load).files
    tables = [pq.read_table(io.BytesIO(storage.read(f"{ORDERS}/{file.path}"))) for file in files]
    return sorted(pa.concat_tables(tables).to_pylist(), key=lambda row: int(row["_offset"]))


def order(number: int, **more: Any) -> bytes:
    return json.dumps({"id": number, "placedAt": START + HOUR, **more}).encode()


def column(name: str, found: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [row[name] for row in found]


def test_json_becomes_rows_by_the_schema_filed_by_the_named_field(tmp_path: Path) -> None:
    result = loaded(topic_of(order(1, customer="é"), order(2), order(3, placedAt=None)), tmp_path)
    found = rows(tmp_path)
    assert (column("id", found), column("customer", found)) == ([1, 2, 3], ["é", None, None])
    assert column("_schema_id", found) == [None] * 3
    assert column("_key", found) == [b"k"] * 3
    assert [time and int(time.timestamp() * 1000) for time in column("_time", found)] == [
        START + HOUR,
        START + HOUR,
        None,
    ]
    assert [int(time.timestamp() * 1000) for time in column("_timestamp", found)] == [
        START,
        START + 1,
        START + 2,
    ]
    assert result.hours == {"2015-05-17T11": 2, "none": 1}


def test_without_a_named_field_the_records_time_files_the_rows(tmp_path: Path) -> None:
    loaded(topic_of(order(1)), tmp_path, MessageFormat("json"))
    (row,) = rows(tmp_path)
    assert row["_time"] == row["_timestamp"]


def test_a_bad_object_is_rejected_with_its_path_and_counted_in_the_hour_of_its_record(tmp_path: Path) -> None:
    result = loaded(topic_of(order(1), b'{"id":"secret"}', b"{", order(4)), tmp_path)
    assert column("id", rows(tmp_path)) == [1, 4]
    assert result.rejected_by_kind == {"foreign_framing": 0, "unknown_schema": 0, "broken_body": 2}
    (note,) = result.notes
    assert note == (
        "shop.orders.v1: rejected: 1 times 'Input data was truncated', 1 times 'id: Expected int, got string'"
    )
    manifest = read_load(Topic(open_storage(str(tmp_path)), ORDERS), 1)
    assert [(each.hour, each.kind, each.messages) for each in manifest.aside_by_hour] == [
        ("2015-05-17T10", "broken_body", 2)
    ]


def test_too_many_bad_objects_fail_the_load(tmp_path: Path) -> None:
    with pytest.raises(MillraceError, match="200 of 200 records have a body that could not be decoded"):
        loaded(topic_of(*[b"[]"] * 200), tmp_path)


def test_objects_behind_the_id_of_a_json_schema_are_read_and_the_id_is_kept(tmp_path: Path) -> None:
    loaded(topic_of(b"\0\0\0\0\x09" + order(1), order(2), b"\0\0\0\0\x0a" + order(3)), tmp_path)
    found = rows(tmp_path)
    assert (column("id", found), column("_schema_id", found)) == ([1, 2, 3], [9, None, 10])


def test_fields_that_no_column_takes_are_noted_and_a_promotion_makes_columns_of_them(tmp_path: Path) -> None:
    log = topic_of(order(1, coupon="x"))
    result = loaded(log, tmp_path)
    assert result.unknown_fields == {"coupon": 1}
    assert result.notes == [
        "shop.orders.v1: fields that no column takes: coupon; to get them, register a schema that has them,"
        " then run millrace promote shop.orders.v1"
    ]
    topic = Topic(open_storage(str(tmp_path)), ORDERS)
    assert read_load(topic, 1).unknown_fields == {"coupon": 1}
    log.schemas[SCHEMA_ID + 1] = with_field("coupon", ["null", "string"], None, ORDER)
    promote(topic, SCHEMA_ID + 1, "coupons", log.schemas.get)
    log.append(0, [Message(START, None, order(2, coupon="y"))])
    assert loaded(log, tmp_path, run_id="run-2").unknown_fields == {}
    assert column("coupon", rows(tmp_path, 2)) == ["y"]


def test_a_promotion_to_a_schema_that_json_cannot_fill_is_refused(tmp_path: Path) -> None:
    log = topic_of(order(1))
    loaded(log, tmp_path)
    log.schemas[SCHEMA_ID + 1] = with_field("either", ["null", "string", "long"], None, ORDER)
    with pytest.raises(MillraceError, match="either: a union of several types has no form in JSON"):
        promote(Topic(open_storage(str(tmp_path)), ORDERS), SCHEMA_ID + 1, "", log.schemas.get)


def test_the_first_load_pins_the_format_and_a_load_that_is_told_another_refuses(tmp_path: Path) -> None:
    log = topic_of(order(1))
    loaded(log, tmp_path)
    log.append(0, [Message(START, None, order(2))])
    for told, why in (
        (MessageFormat("avro"), "with format = 'avro': its first load has pinned 'json'"),
        (MessageFormat("json", "id"), "with time = 'id': its first load has pinned 'placedAt'"),
    ):
        with pytest.raises(MillraceError, match=why):
            loaded(log, tmp_path, told, "run-2")
    assert loaded(log, tmp_path, MessageFormat(""), "run-3").rows == 1


def test_a_first_load_that_fails_pins_no_format(tmp_path: Path) -> None:
    log = topic_of(*[b"a line of text"] * 200)
    with pytest.raises(MillraceError, match='format = "text"'):
        loaded(log, tmp_path)
    assert loaded(log, tmp_path, MessageFormat("text"), "run-2").rows == 200


def test_a_first_load_that_is_killed_before_it_is_made_is_repeated_with_the_format_that_it_pinned(
    tmp_path: Path,
) -> None:
    class Killed(BaseException):
        pass

    def progress(step: str) -> None:
        if step == "prepared":
            raise Killed

    log = topic_of(order(1))
    with pytest.raises(Killed):
        loaded(log, tmp_path, progress=progress)
    held = read_schema(Topic(open_storage(str(tmp_path)), ORDERS), 1)
    assert (held.messages, loaded(log, tmp_path).load) == (BY_TIME, 1)
    assert column("id", rows(tmp_path)) == [1]


def test_a_load_that_is_read_again_has_the_rows_of_its_format(tmp_path: Path) -> None:
    log = topic_of(order(1), b"{", order(2))
    loaded(log, tmp_path)
    context = load_run(log, tmp_path, "again", pin=pins(log, tmp_path, MessageFormat(""))).context
    (again,) = reload_topic(ReloadRun(context=context, reason="test"), ORDERS, [1])
    assert (again.rows, again.rejected) == (2, 1)


def test_a_schema_record_from_before_formats_is_of_avro(tmp_path: Path) -> None:
    log, topic = topic_of(order(1)), Topic(open_storage(str(tmp_path)), ORDERS)
    loaded(log, tmp_path)
    (file,) = (tmp_path / ORDERS / "schema").iterdir()
    values = json.loads(file.read_text())
    del values["message_format"], values["time_field"]
    file.chmod(0o644)
    file.write_text(json.dumps(values))
    assert read_schema(topic, 1).messages == MessageFormat("avro")


@pytest.mark.parametrize(
    ("schema", "messages", "why"),
    [
        (
            SCHEMA,
            MessageFormat("json"),
            "its field header is an audit header, which only framed Avro can have",
        ),
        (SCHEMA, MessageFormat("avro-unframed"), "which only framed Avro can have"),
        (SCHEMA, MessageFormat("avro", "url"), "its audit header has the time of an event"),
        (ORDER, MessageFormat("json", "id"), "it has no field id with a timestamp"),
        (ORDER, MessageFormat("json", "x"), "it has no field x with a timestamp"),
        (with_field("u", ["int", "string"], 1, ORDER), MessageFormat("json"), "u: a union of several types"),
    ],
)
def test_a_schema_that_messages_of_the_format_cannot_fill_is_refused_before_anything_is_pinned(
    tmp_path: Path, schema: Any, messages: MessageFormat, why: str
) -> None:
    with pytest.raises(MillraceError, match=why):
        loaded(topic_of(order(1), schema=schema), tmp_path, messages)
    assert pinned(Topic(open_storage(str(tmp_path)), ORDERS)) is None


def test_bytes_and_text_become_rows_with_their_headers_and_need_no_schema(tmp_path: Path) -> None:
    for format, bad in (("bytes", []), ("text", [2])):
        log, folder = topic_of(schema={}), tmp_path / format
        log.append(0, [Message(START, b"k", "é,1".encode(), [("h", b"\1"), ("n", None)])])
        log.append(0, [Message(START, None, b""), Message(START, None, b"\xff"), Message(START, None, None)])
        result = loaded(log, folder, MessageFormat(format))
        found = rows(folder)
        values = ["é,1".encode(), b"", *([] if bad else [b"\xff"])]
        assert column("value", found) == ([v.decode() for v in values] if format == "text" else values)
        assert column("headers", found)[:2] == [
            [{"key": "h", "value": b"\1"}, {"key": "n", "value": None}],
            [],
        ]
        assert (result.tombstones, result.rejected) == (1, len(bad))
        assert {int(time.timestamp() * 1000) for time in column("_time", found)} == {START}
    assert "'value: not UTF-8'" in result.notes[0]


def test_a_tombstone_is_a_row_of_nulls_in_every_format_where_that_is_asked_for(tmp_path: Path) -> None:
    for format, value in (("bytes", b"x"), ("text", b"x"), ("json", order(1))):
        folder = tmp_path / format
        loaded(topic_of(None, value), folder, MessageFormat(format), tombstones_as_rows=True)
        first, _ = rows(folder)
        assert first["value" if format != "json" else "id"] is None
        assert first["_key"] == b"k"


def unframed(**event: Any) -> bytes:
    value = io.BytesIO()
    fastavro.schemaless_writer(value, ORDER, {"customer": None, "placedAt": None, **event})
    return value.getvalue()


def test_avro_without_a_frame_is_read_with_the_table_s_schema(tmp_path: Path) -> None:
    good = [unframed(id=number, customer="é" if number else None, placedAt=START) for number in range(3)]
    log = topic_of(good[0], b"{}", good[1][:-1], good[1] + b"\0", None, b"", *good[1:])
    result = loaded(log, tmp_path, MessageFormat("avro-unframed", "placedAt"))
    found = rows(tmp_path)
    assert (column("id", found), column("customer", found)) == ([0, 1, 2], [None, "é", "é"])
    assert column("_schema_id", found) == [None] * 3
    assert (result.rejected_by_kind["broken_body"], result.rejected, result.tombstones) == (4, 4, 1)
    assert result.hours == {"2015-05-17T10": 3}
    reload_topic(ReloadRun(context=load_run(log, tmp_path, "again").context, reason="test"), ORDERS, [1])
    assert column("id", rows(tmp_path)) == [0, 1, 2]


def test_the_schema_of_avro_without_a_frame_is_not_promoted_because_no_message_names_it(
    tmp_path: Path,
) -> None:
    loaded(topic_of(unframed(id=1)), tmp_path, MessageFormat("avro-unframed"))
    topic = Topic(open_storage(str(tmp_path)), ORDERS)
    with SchemaRegistryClient("http://127.0.0.1:1") as nowhere, pytest.raises(MillraceError) as caught:
        promote_registered(topic, nowhere, LIKE_TOPICS, None, "test")
    assert str(caught.value) == (
        f"{ORDERS} cannot be promoted: the columns of format 'avro-unframed' never change; load it into a new"
        " warehouse"
    )


def test_a_slice_without_any_text_is_rejected_as_a_whole(tmp_path: Path) -> None:
    result = loaded(topic_of(b"\xff", b"\xfe"), tmp_path, MessageFormat("text"))
    assert (result.rows, result.rejected) == (0, 2)
    assert result.notes[0].startswith(
        f"{ORDERS}: rejected: 2 times 'value: not UTF-8'; the first looks like no "
    )

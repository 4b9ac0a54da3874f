"""A table has one schema, whatever its messages are written with, until somebody promotes it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.errors import MillraceError
from millrace_warehouse.context import Context
from millrace_warehouse.history import schemas
from millrace_warehouse.history.layout import Topic, read_load
from millrace_warehouse.history.manifest import encode
from millrace_warehouse.history.schemas import TableSchema, all_schemas, pinned, promote
from millrace_warehouse.load.load import LoadResult, load_topic
from millrace_warehouse.publish.catalog import connect, table_identifier
from millrace_warehouse.publish.gate import NoAuditor
from millrace_warehouse.publish.publisher import publish_topic
from millrace_warehouse.requests import Publish
from millrace_warehouse.storage import Storage, open_storage
from tests.support import WAIT_S, run_python
from tests.unit.warehouse.memory_log import SCHEMA, START, TOPIC, MemoryLog, load_run, local_run, with_field

COUNTED, WIDE, COUNTRY, BARE = 8, 9, 10, 11
"""Schema ids: a count as int, as long, a country beside it, and neither."""
HOUR = "2015-05-17T10"


@pytest.fixture
def log() -> MemoryLog:
    """An empty log whose registry knows several schemas; the newest one is COUNTED."""
    log = MemoryLog(1)
    log.schemas = {COUNTED: with_field("count", "int", 0)}
    return log


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    (tmp_path / "w").mkdir()
    return open_storage(str(tmp_path / "w"))


def register(log: MemoryLog, *ids: int) -> None:
    """Let the registry know some of the others."""
    wide = with_field("count", "long", 0)
    country = with_field("country", ["null", "string"], None, wide)
    log.schemas |= {i: s for i, s in {WIDE: wide, COUNTRY: country, BARE: SCHEMA}.items() if i in ids}


def run(log: MemoryLog, storage: Storage, run_id: str, **changes: Any) -> LoadResult:
    return load_topic(load_run(log, storage, run_id, **changes), TOPIC)


def schema_ids(storage: Storage, *loads: int) -> list[int]:
    """The registry's ids of the schemas that loads have."""
    ids = {table_schema.number: table_schema.schema_id for table_schema in all_schemas(Topic(storage, TOPIC))}
    return [ids[read_load(Topic(storage, TOPIC), load).schema] for load in loads]


def promote_to(
    log: MemoryLog, storage: Storage, schema_id: int, reason: str = "why not"
) -> TableSchema | None:
    return promote(Topic(storage, TOPIC), schema_id, reason, log.schemas.get).record


def column_types(storage: Storage, load: int, column: str) -> set[str]:
    files = read_load(Topic(storage, TOPIC), load).files
    found = [pq.read_schema(pa.py_buffer(storage.read(f"{TOPIC}/{file.path}"))) for file in files]
    return {str(schema.field(column).type) if column in schema.names else "none" for schema in found}


def published(storage: Storage) -> pa.Table:
    """The rows of the table after one more publication of the hour."""
    with connect(storage) as catalog:
        publish_topic(
            Context(storage=storage, catalog=catalog),
            Publish(topics=[TOPIC], warehouse=storage.root, hours=[HOUR]),
            TOPIC,
            NoAuditor(),
        )
        return catalog.load_table(table_identifier(TOPIC)).scan().to_arrow().sort_by("_offset")


def test_the_first_load_pins_the_newest_schema_and_later_ones_keep_it(
    log: MemoryLog, storage: Storage
) -> None:
    log.append_events(0, [START], schema=COUNTED, count=1)
    run(log, storage, "first")
    register(log, COUNTRY)
    log.append_events(0, [START], schema=COUNTRY, count=2, country="is")
    result = run(log, storage, "second")
    assert schema_ids(storage, 1, 2) == [COUNTED, COUNTED]
    # A long does not fit an int column: that record is set aside.
    assert (result.rows, result.rejected) == (0, 1)


def test_of_two_first_loads_at_the_same_moment_both_have_the_schema_that_was_pinned(
    log: MemoryLog, storage: Storage
) -> None:
    topic = Topic(storage, TOPIC)
    log.append_events(0, [START], schema=COUNTED, count=5)
    faster = schemas.first_schema(topic, COUNTED, log.schemas[COUNTED])
    register(log, WIDE)

    def run_tasks(function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        results = local_run(function, tasks)
        assert schemas.pin(topic, faster)
        return results

    assert load_topic(load_run(log, storage, run_tasks=run_tasks), TOPIC).rows == 1
    assert all_schemas(topic) == [faster]
    assert schema_ids(storage, 1) == [COUNTED]


def test_a_field_the_table_has_not_is_named_with_the_promotion_that_brings_it(
    log: MemoryLog, storage: Storage
) -> None:
    log.schemas = {BARE: SCHEMA}
    log.append_events(0, [START], schema=BARE)
    assert run(log, storage, "first").notes == []
    log.schemas |= {COUNTRY: with_field("country", ["null", "string"], None)}
    log.append_events(0, [START], schema=COUNTRY, country="is")
    result = run(log, storage, "second")
    assert result.rows == 1
    assert result.notes == [
        "PageView: its messages have fields that the table lacks: country; to get them:"
        " millrace promote PageView --schema-id 10"
    ]
    promote_to(log, storage, COUNTRY)
    log.append_events(0, [START], schema=COUNTRY, country="no")
    assert run(log, storage, "third").notes == []


def test_after_a_promotion_new_columns_are_null_in_old_rows_and_numbers_are_wider(
    log: MemoryLog, storage: Storage
) -> None:
    log.append_events(0, [START, START], schema=COUNTED, count=5)
    run(log, storage, "first")
    assert published(storage).num_rows == 2
    register(log, WIDE, COUNTRY)
    promoted = promote(Topic(storage, TOPIC), COUNTRY, "is wanted", log.schemas.get)
    assert promoted.changes == [
        "new column country: null in rows loaded before",
        "column count is long from now on, it was int",
    ]
    log.append_events(0, [START], schema=COUNTRY, count=1 << 40, country="is")
    log.append_events(0, [START], schema=COUNTED, count=6)
    log.append_events(0, [START], schema=WIDE, count=7)
    result = run(log, storage, "second")
    assert (result.rows, result.rejected, schema_ids(storage, 2)) == (3, 0, [COUNTRY])
    table = published(storage)
    assert table.schema.field("count").type == pa.int64()
    rows = sorted((row["header"]["sequence"], row["count"], row["country"]) for row in table.to_pylist())
    # A message of an old schema read with the new one has the default; an old row has null.
    assert rows == [(0, 5, None), (1, 5, None), (2, 1 << 40, "is"), (3, 6, None), (4, 7, None)]


def test_a_removed_field_is_in_new_rows_no_more_and_comes_back_as_another_column(
    log: MemoryLog, storage: Storage
) -> None:
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, storage, "first")
    register(log, BARE)
    promoted = promote(Topic(storage, TOPIC), BARE, "nobody reads it", log.schemas.get)
    assert promoted.changes == ["column count is not in new rows"]
    log.append_events(0, [START], schema=COUNTED, count=6)
    assert run(log, storage, "second").rows == 1
    assert column_types(storage, 2, "count") == {"none"}
    register(log, WIDE)
    promote_to(log, storage, WIDE)
    log.append_events(0, [START], schema=WIDE, count=7)
    run(log, storage, "third")
    ids = [
        {field.name: field.field_id for field in table_schema.schema.fields}.get("count")
        for table_schema in all_schemas(Topic(storage, TOPIC))
    ]
    assert ids[1] is None
    assert ids[0] != ids[2]
    # What the first load wrote was another column, though it had the same name.
    assert published(storage)["count"].to_pylist() == [None, None, 7]


def test_a_load_that_runs_keeps_its_schema_and_the_next_has_the_promoted_one(
    log: MemoryLog, storage: Storage
) -> None:
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, storage, "first")
    register(log, WIDE)
    log.append_events(0, [START], schema=COUNTED, count=6)

    def promote_meanwhile(step: str) -> None:
        if step == "written":
            assert promote_to(log, storage, WIDE) is not None

    run(log, storage, "second", progress=promote_meanwhile)
    log.append_events(0, [START], schema=WIDE, count=7)
    run(log, storage, "third")
    assert schema_ids(storage, 1, 2, 3) == [COUNTED, COUNTED, WIDE]
    assert column_types(storage, 2, "count") == {"int32"}
    assert column_types(storage, 3, "count") == {"int64"}


def test_of_two_promotions_at_the_same_moment_one_is_recorded_and_the_other_says_so(
    log: MemoryLog, storage: Storage
) -> None:
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, storage, "first")
    register(log, WIDE, COUNTRY)
    both, outcomes = threading.Barrier(2), dict[int, TableSchema | str | None]()

    def race(schema_id: int) -> None:
        def lookup(wanted: int) -> Any:
            if wanted == schema_id:
                both.wait(WAIT_S)  # both have seen which promotion would be the next
            return log.schemas.get(wanted)

        try:
            outcomes[schema_id] = promote(Topic(storage, TOPIC), schema_id, "race", lookup).record
        except MillraceError as error:
            outcomes[schema_id] = str(error)

    rivals = [threading.Thread(target=race, args=(schema_id,)) for schema_id in (WIDE, COUNTRY)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join(30)
    (winner,) = [each for each in outcomes.values() if isinstance(each, TableSchema)]
    (loser,) = [each for each in outcomes.values() if isinstance(each, str)]
    assert "this promotion of PageView was not recorded" in loser
    assert all_schemas(Topic(storage, TOPIC))[1:] == [winner]


def test_promoting_to_the_schema_the_table_has_changes_nothing(log: MemoryLog, storage: Storage) -> None:
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, storage, "first")
    assert promote_to(log, storage, COUNTED) is None
    register(log, WIDE)
    assert promote_to(log, storage, WIDE) is not None
    assert promote_to(log, storage, WIDE) is None
    assert len(all_schemas(Topic(storage, TOPIC))) == 2


def with_n(type_: Any, default: Any = 0, **more: Any) -> dict[str, Any]:
    """The schema with a field n, or with another name in `more`."""
    fields = [*SCHEMA["fields"], {"name": "n", "type": type_, "default": default} | more]
    return {**SCHEMA, "fields": fields}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def struct(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Inner", "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def without_default(name: str, type_: Any) -> dict[str, Any]:
    """The schema with one more field that every message has."""
    return {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": name, "type": type_}]}


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
CANNOT_READ = "cannot read messages of schema"


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
        (with_n("long"), with_n("double"), "column n would change from long to double"),
        (with_n("int"), with_n("double"), "column n would change from int to double"),
        (with_n("int"), with_n("float"), "column n would change from int to float"),
        (with_n("string", ""), with_n("bytes", ""), "column n would change from"),
        (with_n(array("long"), []), with_n(array("double"), []), "column n would change from long to double"),
        (with_n(DECIMAL, "\0"), with_n({**DECIMAL, "precision": 3}, "\0"), "would change from decimal"),
        (with_n(DECIMAL, "\0"), with_n({**DECIMAL, "scale": 1}, "\0"), CANNOT_READ),
        (with_n(["null", "int"], None), with_n(["null", "int", "string"], None), "from int to struct"),
        (with_n("int"), with_n("int", name="m", aliases=["n"]), "it renames column n to m"),
    ],
)
def test_a_promotion_that_could_not_read_what_is_there_is_refused(
    log: MemoryLog, storage: Storage, old: dict[str, Any], new: dict[str, Any], words: str
) -> None:
    log.schemas = {COUNTED: old}
    value: Any = old["fields"][-1].get("default")
    fields: dict[str, Any] = {} if old is SCHEMA else {"n": Decimal(0) if value == "\0" else value}
    log.append_events(0, [START], schema=COUNTED, **fields)
    run(log, storage, "first")
    log.schemas |= {WIDE: new}
    with pytest.raises(MillraceError, match=words) as caught:
        promote_to(log, storage, WIDE)
    assert str(caught.value).startswith("PageView cannot be promoted from schema 8 to 9")
    assert "\n" not in str(caught.value)
    assert len(all_schemas(Topic(storage, TOPIC))) == 1


CLICK, BUY, VIEW = (
    {"type": "record", "name": name, "fields": [{"name": "id", "type": "string"}]}
    for name in ("Click", "Buy", "View")
)
BEHIND, WITH_A_FIELD = "add new types after the union's present types", "keep its type and add a field"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ([CLICK, BUY], [CLICK, VIEW, BUY], f"n.member1 is Buy of a union and would be View, .*{BEHIND}"),
        ([CLICK, BUY], [BUY, CLICK], f"n.member0 is Click of a union and would be Buy, .*{BEHIND}"),
        (array([CLICK, BUY]), array([BUY, CLICK]), "n.member0 is Click"),
        (CLICK, [CLICK, BUY], f"column n is a union in only one of the schemas, .*{WITH_A_FIELD}"),
        (["null", CLICK], ["null", CLICK, BUY], "column n is a union in only one of the schemas"),
        ({"type": "map", "values": CLICK}, {"type": "map", "values": [CLICK, BUY]}, "column n is a union"),
        (
            struct(a="string"),
            {**struct(), "fields": [{"name": "b", "type": "string", "aliases": ["a"]}]},
            "it renames column n.a to n.b",
        ),
    ],
)
def test_a_promotion_by_which_old_rows_would_lose_values_is_refused(old: Any, new: Any, words: str) -> None:
    schemas_ = (COUNTED, without_default("n", old)), (WIDE, without_default("n", new))
    with pytest.raises(MillraceError, match=words):
        schemas.check_promotion(TOPIC, *schemas_)


def test_a_union_may_get_types_at_its_end_and_its_types_other_names_and_fields() -> None:
    buy = {**BUY, "name": "Purchase", "aliases": ["Buy"]}
    buy["fields"] = [*BUY["fields"], {"name": "amount", "type": "int", "default": 0}]
    old, new = without_default("n", [CLICK, BUY]), without_default("n", [CLICK, buy, VIEW])
    schemas.check_promotion(TOPIC, (COUNTED, old), (WIDE, new))


def test_a_new_field_beside_one_named_value_or_element_is_a_column_of_its_own(
    log: MemoryLog, storage: Storage
) -> None:
    def prices(*more: Any) -> dict[str, Any]:
        money = {"type": "record", "name": "Money", "fields": [{"name": "currency", "type": "string"}]}
        price = {"type": "record", "name": "Price", "fields": [{"name": "value", "type": money}, *more]}
        return without_default("n", {"type": "map", "values": price})

    log.schemas = {COUNTED: prices()}
    usd = {"value": {"currency": "USD"}}
    log.append_events(0, [START], schema=COUNTED, n={"p": usd})
    run(log, storage, "first")
    log.schemas |= {WIDE: prices({"name": "currency", "type": "string", "default": ""})}
    promote_to(log, storage, WIDE)
    log.append_events(0, [START], schema=WIDE, n={"p": {**usd, "currency": "EUR"}})
    run(log, storage, "second")
    values = [row[0][1] for row in published(storage)["n"].to_pylist()]
    assert [(value["value"]["currency"], value["currency"]) for value in values] == [
        ("USD", None),
        ("USD", "EUR"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("int", "long", 1),
        ("float", "double", 1.0),
        (DECIMAL, {**DECIMAL, "precision": 30}, Decimal("12.34")),
        (array("int"), array("long"), [1]),
        ({"type": "map", "values": "float"}, {"type": "map", "values": "double"}, {"k": 1.0}),
        (struct(x="int"), struct(x="long"), {"x": 1}),
        (array(struct(x="int")), array(struct(x="long")), [{"x": 1}]),
        (["null", "int", "string"], ["null", "long", "string"], 1),
    ],
    ids=str,
)
def test_every_widening_that_is_allowed_can_be_read_from_old_files(
    log: MemoryLog, storage: Storage, old: Any, new: Any, value: Any
) -> None:
    log.schemas = {COUNTED: without_default("n", old)}
    log.append_events(0, [START], schema=COUNTED, n=value)
    run(log, storage, "first")
    before = published(storage)["n"].to_pylist()
    log.schemas |= {WIDE: without_default("n", new)}
    assert promote_to(log, storage, WIDE) is not None
    log.append_events(0, [START], schema=WIDE, n=value)
    run(log, storage, "second")
    assert published(storage)["n"].to_pylist() == before * 2


def test_fields_inside_a_record_come_and_go_by_their_ids(log: MemoryLog, storage: Storage) -> None:
    log.schemas = {COUNTED: without_default("n", array(struct(x="int", y="string")))}
    log.append_events(0, [START], schema=COUNTED, n=[{"x": 1, "y": "a"}])
    run(log, storage, "first")
    published(storage)
    inner = struct(y="string", z=["null", "long"])
    inner["fields"][1]["default"] = None
    log.schemas |= {WIDE: without_default("n", array(inner))}
    table_schema = promote_to(log, storage, WIDE)
    assert table_schema is not None
    first = all_schemas(Topic(storage, TOPIC))[0]
    assert table_schema.schema.find_field("n.element.z").field_id == first.last_column_id + 1
    assert table_schema.last_column_id == first.last_column_id + 1
    log.append_events(0, [START], schema=WIDE, n=[{"y": "b", "z": 2}])
    run(log, storage, "second")
    assert published(storage)["n"].to_pylist() == [[{"y": "a", "z": None}], [{"y": "b", "z": 2}]]


def test_a_table_without_a_load_has_nothing_to_promote(log: MemoryLog, storage: Storage) -> None:
    with pytest.raises(MillraceError, match=r"no load of PageView in .*: check the warehouse and the topic"):
        promote_to(log, storage, COUNTED)


def test_a_schema_that_is_not_registered_is_refused(log: MemoryLog, storage: Storage) -> None:
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, storage, "first")
    with pytest.raises(MillraceError, match="the registry has no schema 99"):
        promote_to(log, storage, 99)


def test_a_record_that_rows_need_and_that_is_gone_is_named_before_anything_is_loaded(
    log: MemoryLog, storage: Storage
) -> None:
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, storage, "first")
    register(log, WIDE, COUNTRY)
    promote_to(log, storage, WIDE)
    log.append_events(0, [START], schema=WIDE, count=5)
    run(log, storage, "second")
    kept = storage.read(f"{TOPIC}/schema/0002.json")
    storage.delete(f"{TOPIC}/schema/0002.json")
    log.append_events(0, [START], schema=WIDE, count=5)
    missing = r"^PageView/schema/0002.json is missing, and rows have its columns: restore it from a copy$"
    with pytest.raises(MillraceError, match=missing):
        run(log, storage, "third")
    with pytest.raises(MillraceError, match=missing):
        promote_to(log, storage, COUNTRY)
    storage.create(f"{TOPIC}/schema/0002.json", kept)
    assert run(log, storage, "third").rows == 1
    assert schema_ids(storage, 3) == [WIDE]
    storage.delete(f"{TOPIC}/schema/0001.json")
    with pytest.raises(MillraceError, match=r"schema/0001.json is missing"):
        all_schemas(Topic(storage, TOPIC))


def test_a_registry_that_knows_another_schema_by_the_same_id_is_refused(
    log: MemoryLog, storage: Storage
) -> None:
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, storage, "first")
    log.append_events(0, [START], schema=COUNTED, count=5)
    where = f"^the registry's schema 8 does not have the columns of {TOPIC}/schema/0001.json: name the reg"
    for other in (with_field("count", "string", ""), with_field("other", "int", 0)):
        log.schemas = {COUNTED: other}
        with pytest.raises(MillraceError, match=where):
            run(log, storage, "second")


def test_a_record_survives_its_writing_and_says_what_its_files_have(storage: Storage) -> None:
    table_schema = schemas.first_schema(Topic(storage, TOPIC), COUNTED, with_field("count", "int", 0))
    assert schemas.pin(Topic(storage, TOPIC), table_schema)
    assert schemas.read_schema(Topic(storage, TOPIC), 1) == table_schema == pinned(Topic(storage, TOPIC))
    assert encode(table_schema) == storage.read(f"{TOPIC}/schema/0001.json")
    assert (table_schema.number, table_schema.previous_schema_id, table_schema.reason) == (
        1,
        None,
        schemas.FIRST_REASON,
    )
    assert [field.name for field in table_schema.schema.fields] == table_schema.arrow_schema.names
    assert dataclasses.replace(table_schema, last_column_id=99).schema == table_schema.schema


def edited(storage: Storage, number: int, **changes: Any) -> TableSchema:
    """A record on the storage, changed by hand."""
    path = f"{TOPIC}/schema/{number:04d}.json"
    table_schema = dataclasses.replace(schemas.read_schema(Topic(storage, TOPIC), number), **changes)
    storage.delete(path)
    assert storage.create(path, encode(table_schema))
    return table_schema


@pytest.fixture
def promoted(log: MemoryLog, storage: Storage) -> list[TableSchema]:
    """A table that has lost a column, got it back and got another."""
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, storage, "first")
    register(log, WIDE, COUNTRY, BARE)
    for schema_id in (BARE, WIDE, COUNTRY):
        promote_to(log, storage, schema_id)
    return all_schemas(Topic(storage, TOPIC))


def test_records_follow_each_other(promoted: list[TableSchema]) -> None:
    assert [
        schemas.check_follows(table_schema, before)
        for before, table_schema in zip([None, *promoted], promoted, strict=False)
    ] == [[]] * 4


def test_ids_that_somebody_has_changed_in_a_record_are_found(
    storage: Storage, promoted: list[TableSchema]
) -> None:
    first, bare, wide, country = promoted

    def with_id(table_schema: TableSchema, name: str, number: int) -> dict[str, Any]:
        fields = [f | ({"id": number} if f["name"] == name else {}) for f in table_schema.iceberg["fields"]]
        return {**table_schema.iceberg, "fields": fields}

    swapped = edited(storage, 1, iceberg=with_id(first, "url", first.schema.find_field("_load").field_id))
    assert "column url has id" in schemas.check_follows(swapped, None)[0]
    moved = edited(storage, 4, iceberg=with_id(country, "count", 99), last_column_id=99)
    assert schemas.check_follows(moved, wide)[0].startswith(
        "column count has id 99, but in the files its id is"
    )
    old_id = first.schema.find_field("count").field_id
    again = edited(storage, 3, iceberg=with_id(wide, "count", old_id))
    assert f"a new column has id {old_id}, which an earlier column had" in schemas.check_follows(again, bare)
    assert "last column id" in schemas.check_follows(edited(storage, 2, last_column_id=7), first)[0]
    assert "it follows schema 5" in schemas.check_follows(edited(storage, 2, previous_schema_id=5), first)[-1]


def test_a_record_without_a_schema_is_named(storage: Storage, promoted: list[TableSchema]) -> None:
    edited(storage, 4, iceberg={"type": "struct", "fields": [{"name": "a"}]})
    with pytest.raises(MillraceError, match=r"^PageView/schema/0004.json does not hold an Iceberg schema"):
        pinned(Topic(storage, TOPIC))


def test_the_history_names_every_schema_and_the_first_load_that_has_it(
    log: MemoryLog, storage: Storage
) -> None:
    for turn, schema_id in enumerate((None, None, WIDE, None, COUNTRY, BARE), 1):
        if turn == 2:
            register(log, WIDE, COUNTRY, BARE)
        if schema_id is not None:
            promote_to(log, storage, schema_id, f"turn {turn}")
        if schema_id != BARE:
            log.append_events(0, [START], schema=COUNTED, count=5)
            run(log, storage, str(turn))
    history = schemas.history(Topic(storage, TOPIC))
    assert [(entry.number, entry.schema_id, entry.first_load) for entry in history] == [
        (1, COUNTED, 1),
        (2, WIDE, 3),
        (3, COUNTRY, 5),
        (4, BARE, None),
    ]
    assert [entry.reason for entry in history][1:] == ["turn 3", "turn 5", "turn 6"]


def test_a_schema_that_no_load_has_used_is_in_the_history_without_one(
    log: MemoryLog, storage: Storage
) -> None:
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, storage, "1")
    register(log, WIDE, COUNTRY)
    promote_to(log, storage, WIDE)
    promote_to(log, storage, COUNTRY)
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, storage, "2")
    history = schemas.history(Topic(storage, TOPIC))
    assert [(entry.schema_id, entry.first_load) for entry in history] == [
        (COUNTED, 1),
        (WIDE, None),
        (COUNTRY, 2),
    ]


KILLED = """
import os, sys
from millrace_warehouse.storage import open_storage
from millrace_warehouse.history.layout import Topic
from millrace_warehouse.history.schemas import promote, all_schemas
from tests.unit.warehouse.memory_log import with_field

topic, calls = Topic(open_storage(sys.argv[1]), "PageView"), 0
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
    promote(topic, 9, "killed", schemas.get)
    os._exit(0)

for step in range(1, 30):
    topic.storage.delete("PageView/schema/0002.json")
    if (pid := os.fork()) == 0:
        try_to_promote(step)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    before = [each.schema_id for each in all_schemas(topic)[1:]]
    promote(topic, 9, "again", schemas.get)
    print(code, before, [each.number for each in all_schemas(topic)[1:]])
    if code == 0:
        break
"""


def test_killed_anywhere_in_a_promotion_it_is_recorded_whole_or_not_at_all(
    log: MemoryLog, storage: Storage, tmp_path: Path
) -> None:
    log.append_events(0, [START], schema=COUNTED, count=5)
    run(log, storage, "first")
    done = run_python("-c", KILLED, str(tmp_path / "w"), timeout_s=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    # Whoever tries again has one promotion, the dead one's or his own.
    assert set(lines[:-1]) <= {"9 [] [2]", "9 [9] [2]"}
    assert {"9 [] [2]", "9 [9] [2]"} <= set(lines[:-1])
    assert lines[-1] == "0 [9] [2]"


@pytest.mark.parametrize("name", ["_partition", "_load", "URL"])
def test_the_first_load_refuses_a_schema_with_a_name_that_no_column_may_have(
    log: MemoryLog, storage: Storage, name: str
) -> None:
    log.schemas = {20: with_field(name, "string", "")}
    log.append_events(0, [START], schema=20)
    with pytest.raises(
        MillraceError, match=rf"^{TOPIC} cannot be loaded with schema 20: .*{name}.*; correct "
    ):
        run(log, storage, "one")
    assert storage.names(TOPIC + "/loads") == storage.names(TOPIC + "/schema") == []


@pytest.mark.parametrize("name", ["_time", "_offset", "URL"])
def test_a_promotion_to_a_schema_with_a_name_that_no_column_may_have_is_refused(
    log: MemoryLog, storage: Storage, name: str
) -> None:
    log.append_events(0, [START], schema=COUNTED)
    run(log, storage, "one")
    log.schemas[20] = with_field(name, ["null", "string"], None, log.schemas[COUNTED])
    with pytest.raises(MillraceError, match=rf"promoted from schema {COUNTED} to 20: .*{name}.*; correct "):
        promote_to(log, storage, 20)

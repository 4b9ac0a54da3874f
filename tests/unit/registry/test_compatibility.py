"""Compatibility: the verdict of every rule, and the proof that data really can or cannot be read."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from millrace_registry.avro_schema import AvroSchema, parse
from millrace_registry.compatibility import Level, incompatibilities, unreadable
from millrace_registry.errors import RegistryError
from millrace_registry.service import LEVEL


def schema(value: Any) -> AvroSchema:
    return parse(json.dumps(value))


def record(*fields: Any, **attributes: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields), **attributes}


def field(name: str, kind: Any, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **attributes}


def enum(*symbols: str, **attributes: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **attributes}


def inner(name: str, *fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def fixed(size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def mapped(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


A = field("a", "int")
B = field("b", "string")
LIST = field("next", ["null", "R"])
RENAMED = {"type": "record", "name": "S", "namespace": "n", "aliases": ["R"], "fields": [A]}

# writer schema, a value of it, reader schema, what the reader makes of the value
READABLE: dict[str, tuple[Any, Any, Any, Any]] = {
    "the same": (record(A), {"a": 1}, record(A), {"a": 1}),
    "a field with a default added": (
        record(A),
        {"a": 1},
        record(A, field("b", "string", default="x")),
        {"a": 1, "b": "x"},
    ),
    "a field removed": (record(A, B), {"a": 1, "b": "y"}, record(A), {"a": 1}),
    "fields in another order": (record(A, B), {"a": 1, "b": "y"}, record(B, A), {"b": "y", "a": 1}),
    "a field renamed with an alias": (
        record(A),
        {"a": 1},
        record(field("z", "int", aliases=["a"])),
        {"z": 1},
    ),
    "int to long": ("int", 7, "long", 7),
    "int to float": ("int", 7, "float", 7.0),
    "int to double": ("int", 7, "double", 7.0),
    "long to float": ("long", 7, "float", 7.0),
    "long to double": ("long", 7, "double", 7.0),
    "float to double": ("float", 0.5, "double", 0.5),
    "string to bytes": ("string", "x", "bytes", b"x"),
    "bytes to string": ("bytes", b"x", "string", "x"),
    "into a union": ("int", 7, ["null", "int"], 7),
    "a union grown": (["null", "int"], 7, ["null", "string", "int"], 7),
    "promotion inside a union": (["null", "int"], 7, ["null", "long"], 7),
    "an array's items": (array("int"), [1], array("long"), [1]),
    "a map's values": (mapped("int"), {"k": 1}, mapped("double"), {"k": 1.0}),
    "a symbol added": (enum("A"), "A", enum("A", "B"), "A"),
    "a symbol removed, with a default": (enum("A", "B"), "B", enum("A", default="A"), "A"),
    "a logical type added": ("long", 7, {"type": "long", "logicalType": "some-count"}, 7),
    "a record renamed with an alias": (record(A, namespace="n"), {"a": 1}, RENAMED, {"a": 1}),
    "a record inside an optional field": (
        record(field("o", ["null", inner("In", A)])),
        {"o": {"a": 1}},
        record(field("o", ["null", inner("In", A, field("b", "int", default=2))])),
        {"o": {"a": 1, "b": 2}},
    ),
    "a recursive record": (
        record(LIST),
        {"next": {"next": None}},
        record(LIST, field("n", "int", default=0)),
        {"next": {"next": None, "n": 0}, "n": 0},
    ),
}


@pytest.mark.parametrize("case", READABLE)
def test_a_compatible_reader_reads_the_data(case: str) -> None:
    writer, value, reader, expected = READABLE[case]
    assert unreadable(schema(reader), schema(writer)) == []
    assert decode(writer, value, reader) == expected


def decode(writer: Any, value: Any, reader: Any) -> Any:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(writer), value)
    body.seek(0)
    return fastavro.schemaless_reader(body, fastavro.parse_schema(writer), fastavro.parse_schema(reader))


# writer, a value that the reader cannot read, reader, the reason
UNREADABLE: dict[str, tuple[Any, Any, Any, str]] = {
    "a field without default added": (
        record(A),
        {"a": 1},
        record(A, B),
        "field b has no default and is not in the data",
    ),
    "a field renamed": (
        record(A),
        {"a": 1},
        record(field("z", "int")),
        "field z has no default and is not in the data",
    ),
    "a type changed": (record(A), {"a": 1}, record(field("a", "string")), "a: string cannot read int"),
    "a type narrowed": (record(field("a", "long")), {"a": 1}, record(A), "a: int cannot read long"),
    "double to float": (
        record(field("a", "double")),
        {"a": 1.0},
        record(field("a", "float")),
        "a: float cannot read double",
    ),
    "an optional field made required": (
        record(field("a", ["null", "int"])),
        {"a": None},
        record(A),
        "a: int cannot read null",
    ),
    "a union shrunk": (
        record(field("a", ["null", "int"])),
        {"a": 1},
        record(field("a", ["null", "string", "boolean"])),
        "a: the union cannot hold int",
    ),
    "an optional type changed": (
        record(field("a", ["null", "int"])),
        {"a": 1},
        record(field("a", ["null", "string"])),
        "a: string cannot read int",
    ),
    "a symbol removed": (
        record(field("e", enum("A", "B"))),
        {"e": "B"},
        record(field("e", enum("A"))),
        "e: enum lacks the symbols 'B' and has no default",
    ),
    "a fixed resized": (
        record(field("f", fixed(2))),
        {"f": b"ab"},
        record(field("f", fixed(4))),
        "f: fixed of size 4 cannot read size 2",
    ),
    "items narrowed": (array("string"), ["x"], array("int"), "items: int cannot read string"),
    "inside an optional record": (
        record(field("o", ["null", inner("In", A)])),
        {"o": {"a": 1}},
        record(field("o", ["null", inner("In", A, B)])),
        "o: field b has no default and is not in the data",
    ),
    "deep inside": (
        record(field("x", inner("X", field("y", mapped("long"))))),
        {"x": {"y": {"k": 1}}},
        record(field("x", inner("X", field("y", mapped("int"))))),
        "x.y.values: int cannot read long",
    ),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_an_incompatible_reader_fails_on_the_data_and_the_reason_names_the_field(case: str) -> None:
    writer, value, reader, reason = UNREADABLE[case]
    assert unreadable(schema(reader), schema(writer)) == [reason]
    with pytest.raises(Exception):  # noqa: B017, PT011  # whatever fastavro raises for it
        decode(writer, value, reader)


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            {"type": "long", "logicalType": "timestamp-micros"},
            "timestamp-micros would read timestamp-millis, whose numbers mean something else",
        ),
        (
            {"type": "int", "logicalType": "time-millis"},
            {"type": "long", "logicalType": "time-micros"},
            "time-micros would read time-millis, whose numbers mean something else",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
            "decimal(9, 3) would read decimal(9, 2), whose numbers mean something else",
        ),
    ],
)
def test_numbers_that_would_silently_mean_something_else_are_incompatible(
    writer: Any, reader: Any, reason: str
) -> None:
    assert unreadable(schema(reader), schema(writer)) == [reason]
    nested = unreadable(
        schema(record(field("t", ["null", reader]))), schema(record(field("t", ["null", writer])))
    )
    assert nested == [f"t: {reason}"]


def test_every_reason_is_given_not_only_the_first() -> None:
    writer = record(A, field("b", "string"), field("c", "long"))
    reader = record(field("a", "string"), field("b", "int"), field("c", "long"), field("d", "int"))
    assert unreadable(schema(reader), schema(writer)) == [
        "a: string cannot read int",
        "b: int cannot read string",
        "field d has no default and is not in the data",
    ]


def test_unknown_logical_types_neither_warn_nor_matter() -> None:
    one, other = {"type": "string", "logicalType": "email"}, {"type": "int", "logicalType": "date-time-thing"}
    assert unreadable(schema(one), schema("string")) == []
    assert unreadable(schema("int"), schema(other)) == []


def test_an_error_record_is_compared_like_a_record() -> None:
    error = {"type": "error", "name": "R", "fields": [A]}
    assert unreadable(schema(error), schema(error)) == []


OLD, WITH_DEFAULT, WITHOUT_DEFAULT, REMOVED = (
    record(A, field("b", "int", default=0)),
    record(A, field("b", "int", default=0), field("c", "int", default=0)),
    record(A, field("b", "int", default=0), field("c", "int")),
    record(field("b", "int", default=0)),
)


@pytest.mark.parametrize(
    ("level", "accepted"),
    [
        ("NONE", {"with", "without", "removed"}),
        ("BACKWARD", {"with", "removed"}),
        ("BACKWARD_TRANSITIVE", {"with", "removed"}),
        ("FORWARD", {"with", "without"}),
        ("FORWARD_TRANSITIVE", {"with", "without"}),
        ("FULL", {"with"}),
        ("FULL_TRANSITIVE", {"with"}),
    ],
)
def test_each_level_accepts_what_it_promises(level: str, accepted: set[str]) -> None:
    changes = {"with": WITH_DEFAULT, "without": WITHOUT_DEFAULT, "removed": REMOVED}
    found = {
        name
        for name, new in changes.items()
        if not incompatibilities(schema(new), schema(OLD), 1, Level(level))
    }
    assert found == accepted


def test_a_reason_names_the_version_and_the_direction() -> None:
    found = incompatibilities(schema(record(field("a", "string"))), schema(record(A)), 3, Level.FULL)
    assert found == [
        "the new schema cannot read version 3: a: string cannot read int",
        "version 3 cannot read the new schema: a: int cannot read string",
    ]


def test_levels_are_read_in_any_case_and_nothing_else_is_one() -> None:
    assert LEVEL.parse("full_transitive") is Level.FULL_TRANSITIVE
    for name in ("", None, "BACKWARDS", 3):
        with pytest.raises(RegistryError, match="Valid values are NONE, BACKWARD"):
            LEVEL.parse(name)

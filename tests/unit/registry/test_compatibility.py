"""Compatibility: the verdict of every rule, and the proof that data really can or cannot be read."""

from __future__ import annotations

import io
import json
import time
import tracemalloc
from collections.abc import Iterable
from typing import Any

import avro.compatibility
import avro.errors
import avro.schema
import fastavro
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from millrace_registry.avro_schema import PRIMITIVES as ALL_PRIMITIVES
from millrace_registry.avro_schema import AvroSchema, parse
from millrace_registry.compatibility import Level, incompatibilities, unreadable
from millrace_registry.errors import InvalidSchema, RegistryError
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


PRIMITIVES = sorted(ALL_PRIMITIVES)
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


kinds: st.SearchStrategy[Any] = st.deferred(
    lambda: st.sampled_from(PRIMITIVES) | arrays | maps | unions | sets | sizes | records
)
arrays: st.SearchStrategy[Any] = kinds.map(array)
maps: st.SearchStrategy[Any] = kinds.map(mapped)
unions: st.SearchStrategy[Any] = st.lists(kinds, max_size=3)
named = st.sampled_from(["n.A", "n.B", "m.A"])
aliases = st.lists(named, max_size=1)
sets: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {
        "type": st.just("enum"),
        "name": named,
        "symbols": st.lists(st.sampled_from("XYZ"), min_size=1, unique=True),
        "aliases": aliases,
    }
)
sizes: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"type": st.just("fixed"), "name": named, "size": st.sampled_from([1, 2]), "aliases": aliases}
)
fields = st.fixed_dictionaries(
    {"name": st.sampled_from("abc"), "type": kinds},
    optional={"aliases": st.lists(st.sampled_from("abc"), max_size=2), "default": st.just(0)},
)
records: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {
        "type": st.just("record"),
        "name": named,
        "fields": st.lists(fields | st.just(field("r", ["null", "n.A"])), max_size=4),
        "aliases": aliases,
    }
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.tuples(kinds, kinds) | records.flatmap(lambda r: st.tuples(st.just(r), changed(r))))
def test_a_verdict_is_that_of_apaches_library(pair: tuple[Any, Any]) -> None:
    try:
        reader, writer = (parse(json.dumps(value), flawed_too=True) for value in pair)
        new, old = (avro.schema.parse(json.dumps(value)) for value in pair)
    except (InvalidSchema, avro.errors.AvroException):
        return
    assume(not reads_twice(reader.definitions.values()))  # which Apache's library takes
    checker = avro.compatibility.ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
    verdict = checker.get_compatibility(new, old)
    readable = verdict.compatibility is avro.compatibility.SchemaCompatibilityType.compatible
    assert (unreadable(reader, writer) == []) is readable


def reads_twice(records: Iterable[Any]) -> bool:
    """True when two fields of one record have the same name or alias."""
    for record in records:
        names = [name for f in record.get("fields", ()) for name in {f["name"], *f.get("aliases", ())}]
        if len(names) > len(set(names)):
            return True
    return False


def changed(schema: Any) -> st.SearchStrategy[Any]:
    """A record with one of its fields changed, added or left out."""
    rest = st.sampled_from([schema["fields"][:-1], schema["fields"][1:], schema["fields"]])
    return st.tuples(rest, st.lists(fields, max_size=1)).map(lambda f: {**schema, "fields": f[0] + f[1]})


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


def chain(length: int) -> list[Any]:
    """Records each of which holds the one before it, by name."""
    first: dict[str, Any] = {"type": "record", "name": "R0", "fields": []}
    more = [
        {"type": "record", "name": f"R{i}", "fields": [field("f", f"R{i - 1}")]} for i in range(1, length)
    ]
    return [first, *more]


def through_a_chain(length: int, name: str) -> AvroSchema:
    """The last of a chain, which is compared before the others are."""
    last = field("last", f"R{length - 1}")
    return schema(record(field(name, chain(length), default={}), last))


def many_fixed(**attributes: Any) -> list[Any]:
    return [{"type": "fixed", "name": f"F{i}", "size": 1, **attributes} for i in range(15_000)]


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ({**fixed(1), "aliases": [f"G{i}" for i in range(50_000)]}, many_fixed()),
        ({**fixed(1), "logicalType": "decimal", "precision": ["x"] * 50_000}, many_fixed()),
        (many_fixed(), {**fixed(1), "logicalType": "decimal", "precision": 1, "scale": ["x"] * 50_000}),
    ],
)
def test_a_long_attribute_is_not_read_again_for_each_other_type(new: Any, old: Any) -> None:
    reader, writer = schema(new), schema(old)
    began = time.thread_time()
    assert unreadable(reader, writer) != []
    assert time.thread_time() - began < 5


def test_what_would_take_long_to_compare_is_refused_in_time() -> None:
    new, old = (
        schema([{"type": "fixed", "name": f"{name}{i}", "size": 1} for i in range(2000)]) for name in "AB"
    )
    began = time.thread_time()
    with pytest.raises(InvalidSchema, match="too many types"):
        unreadable(new, old)
    assert time.thread_time() - began < 5


def test_a_chain_of_types_longer_than_the_stack_is_refused() -> None:
    assert unreadable(through_a_chain(50, "a"), through_a_chain(50, "b")) == []
    with pytest.raises(InvalidSchema, match="through too many others"):
        unreadable(through_a_chain(3000, "a"), through_a_chain(3000, "b"))


def test_large_schemas_are_compared_in_time() -> None:
    wide = schema(record(*(field(f"f{i}", ["null", "int"]) for i in range(20_000))))
    many = schema([{"type": "record", "name": f"R{i}", "fields": []} for i in range(20_000)])
    began = time.thread_time()
    for large in (wide, many):
        assert unreadable(large, parse(large.text)) == []
    assert time.thread_time() - began < 5


def test_only_so_many_reasons_are_given() -> None:
    one, other = (record(*(field(f"{name}{i}", "int") for i in range(500))) for name in "ab")
    assert 1 < len(unreadable(schema(one), schema(other))) <= 51


@pytest.mark.parametrize("most", ["paths", "symbols"])
def test_reasons_take_only_so_much_room(most: str) -> None:
    if most == "paths":
        branches = [inner(f"R{i}", *(field(f"f{j}", "int") for j in range(50))) for i in range(80)]
        new = record(field("x" * 100_000, branches, aliases=["a"]))
        old = record(field("a", inner("W")))
    else:
        enums = [{"type": "enum", "name": f"E{i}", "symbols": []} for i in range(2000)]
        new = record(field("a", enums))
        old = record(field("a", enum(*(f"s{i}" + "x" * 1000 for i in range(50)))))
    reader, writer = (parse(json.dumps(value), flawed_too=True) for value in (new, old))
    tracemalloc.start()
    with pytest.raises(InvalidSchema, match="too many types or too long names"):
        unreadable(reader, writer)
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()


def test_what_rests_on_a_type_that_turns_out_unreadable_is_compared_again() -> None:
    def holder(name: str, inside: Any, kind: str, **attributes: Any) -> dict[str, Any]:
        return {**inner(name, field("f", inside), field("g", kind)), **attributes}

    def back(name: str) -> dict[str, Any]:
        return inner("T", field("back", ["null", name]))

    written = record(field("x", holder("a.W", back("a.W"), "string")), field("y", "a.T"))
    other = holder("a.W2", back("a.W2"), "int", aliases=["a.W"])
    same = holder("b.W", {**back("b.W"), "namespace": "b"}, "string")
    read = record(field("x", [other, same]), field("y", "a.T"))
    # The branch a.W2 does not fit x, but a.T was found readable while it was taken to fit.
    assert unreadable(schema(read), schema(written)) == ["x.g: int cannot read string"]
    y = {"back": {"f": {"back": None}, "g": "s"}}
    with pytest.raises(Exception):  # noqa: B017, PT011  # whatever fastavro raises for it
        decode(written, {"x": y["back"], "y": y}, read)


def test_a_type_that_each_of_many_unreadable_types_holds_is_compared_once() -> None:
    shared = inner("S", *(field(f"f{i}", "int") for i in range(1000)))

    def holders(kind: str) -> list[Any]:
        types: list[Any] = [shared, *["S"] * 999]
        return [field(f"h{i}", inner(f"H{i}", field("s", s), field("g", kind))) for i, s in enumerate(types)]

    found = unreadable(schema(record(*holders("int"))), schema(record(*holders("string"))))
    assert found[0] == "h0.g: int cannot read string"


@pytest.mark.parametrize("fields", [[("a", "b"), ("b",)], [("b",), ("a", "b")], [("a", "b"), ("c", "b")]])
def test_a_field_of_the_data_is_read_by_one_field_only(fields: list[tuple[str, ...]]) -> None:
    reader = record(*(field(name, "int", aliases=list(aliases)) for name, *aliases in fields))
    named = "a" if ("b",) in fields else "c"
    reason = f"field {named} has no default and is not in the data"
    assert unreadable(schema(reader), schema(record(field("b", "int")))) == [reason]


def test_an_alias_whose_field_another_field_reads_is_passed_over() -> None:
    reader = record(field("a", "int", aliases=["b", "c"]), field("b", "string"))
    assert unreadable(schema(reader), schema(record(field("c", "int"), field("b", "string")))) == []

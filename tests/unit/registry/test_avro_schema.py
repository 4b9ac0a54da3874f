"""Reading Avro schemas: one canonical text for one meaning, and a clear line for everything that is none."""

from __future__ import annotations

import io
import json
import time
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace_registry.avro_schema import DefaultChecker, parse
from millrace_registry.errors import InvalidSchema

REPOSITORY = Path(__file__).resolve().parents[3]


def record(*fields: Any, **attributes: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields), **attributes}


def text_of(schema: Any) -> str:
    return parse(json.dumps(schema)).text


@pytest.mark.parametrize("name", ["null", "boolean", "int", "long", "float", "double", "bytes", "string"])
def test_a_primitive_is_written_as_its_bare_name(name: str) -> None:
    assert text_of({"type": name}) == text_of(name) == json.dumps(name)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            '{"type":"record","name":"a.B","fields":[]}',
            '{"name":"B","fields":[],"namespace":"a","type":"record"}',
        ),
        (
            '{"type":"record","name":"a.B","fields":[{"name":"f","type":{"type":"enum","name":"E","symbols":["X"]}},'
            '{"name":"g","type":"E"}]}',
            '{"type":"record","name":"B","namespace":"a","fields":[{"type":{"namespace":"a","type":"enum",'
            '"symbols":["X"],"name":"E"},"name":"f"},{"name":"g","type":"a.E","order":"ascending"}]}',
        ),
        ('["null", {"type": "int"}]', '["null","int"]'),
        (
            '{"type":"array","items":{"type":"string"},"x":{"b":1,"a":2}}',
            '{"x":{"a":2,"b":1},"items":"string","type":"array"}',
        ),
    ],
)
def test_texts_that_mean_the_same_have_one_fingerprint(one: str, other: str) -> None:
    assert parse(one).fingerprint() == parse(other).fingerprint()


@pytest.mark.parametrize(
    "other",
    [
        record({"name": "a", "type": "int", "default": 1}),
        record({"name": "a", "type": "int", "doc": "a count"}),
        record({"name": "a", "type": "int", "aliases": ["b"]}),
        record({"name": "a", "type": {"type": "int", "logicalType": "date"}}),
        record({"name": "a", "type": "int", "order": "ignore"}),
        record({"name": "a", "type": "int"}, namespace="x"),
        record({"name": "a", "type": "int"}, owner="search team"),
    ],
)
def test_whatever_a_reader_can_see_makes_another_schema(other: dict[str, Any]) -> None:
    plain = parse(json.dumps(record({"name": "a", "type": "int"})))
    assert parse(json.dumps(other)).fingerprint() != plain.fingerprint()


def test_nothing_a_reader_can_see_is_lost() -> None:
    schema = record(
        {"name": "a", "type": ["null", "int"], "doc": "a count", "default": None, "aliases": ["b"], "x": 1},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["X"], "default": "X"}},
        {"name": "i", "type": "int", "order": "ignore"},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
        {"name": "f", "type": {"type": "fixed", "name": "other.F", "size": 4, "aliases": ["Old", "x.Older"]}},
        namespace="n",
        doc="ünïcode",
        aliases=["Was"],
    )
    written = json.loads(text_of(schema))
    schema["fields"][4]["type"] = {**schema["fields"][4]["type"], "name": "F", "namespace": "other"}
    assert written == schema
    assert "ünïcode" in text_of(schema)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("NaN", "NaN is not JSON"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":"double","default":1e999}]}', "1e999"),
        ('{"type":"string","x":"\\ud800"}', "surrogate"),
        ("1" * 5000, "not JSON"),
        ("[" * 5000, "nested deeper|not JSON"),
        ('{"type":"array","items":' * 100 + '"int"' + "}" * 100, "nested deeper"),
        ("7", "is not a schema"),
        ('"foo"', "unknown type 'foo'"),
        ("[]", "at least one"),
        ('["int","int"]', "int is twice"),
        ('["null",["int"]]', "must not hold a union"),
        ('[{"type":"array","items":"int"},{"type":"array","items":"long"}]', "array is twice"),
        ("{}", "needs a `type`"),
        ('{"type":["null","int"]}', "needs a `type`"),
        ('{"type":"array"}', "without `items`"),
        ('{"type":"map"}', "without `values`"),
        ('{"type":"record","fields":[]}', "needs a `name`"),
        ('{"type":"record","name":"R"}', "list of `fields`"),
        ('{"type":"record","name":"1R","fields":[]}', "is not a name"),
        ('{"type":"record","name":"R\\n","fields":[]}', "is not a name"),
        ('{"type":"record","name":"a..R","fields":[]}', "is not a name"),
        ('{"type":"record","name":"x.string","fields":[]}', "primitive"),
        ('{"type":"record","name":"R","namespace":1,"fields":[]}', "needs a `name`"),
        ('{"type":"record","name":"R","fields":["a"]}', "needs a `name`"),
        ('{"type":"record","name":"R","fields":[{"name":"a-b","type":"int"}]}', "is not a name"),
        ('{"type":"record","name":"R","fields":[{"name":"a"}]}', "R.a: a field needs a `type`"),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"long"}]}',
            "field a occurs twice",
        ),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":"int","order":"up"}]}', "order 'up'"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":"int","aliases":"b"}]}', "`aliases`"),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":"R2"},'
            '{"name":"b","type":{"type":"record","name":"R2","fields":[]}}]}',
            "define it before",
        ),
        ('[{"type":"fixed","name":"F","size":1},{"type":"fixed","name":"F","size":2}]', "defined twice"),
        ('{"type":"fixed","name":"F","size":-1}', "size"),
        ('{"type":"fixed","name":"F","size":true}', "size"),
        ('{"type":"enum","name":"E"}', "symbols"),
        ('{"type":"enum","name":"E","symbols":["A","A"]}', "symbol occurs twice"),
        ('{"type":"enum","name":"E","symbols":["A-B"]}', "is not a name"),
        ('{"type":"enum","name":"E","symbols":["A"],"default":"B"}', "none of its symbols"),
    ],
)
def test_what_is_no_schema_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(InvalidSchema, match=why) as refusal:
        parse(text)
    assert "\n" not in str(refusal.value)


INNER = {
    "type": "record",
    "name": "I",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int", "default": 0}],
}


@pytest.mark.parametrize(
    ("schema", "default", "valid"),
    [
        ("int", 2**31 - 1, True),
        ("int", 2**31, False),
        ("int", 1.5, False),
        ("int", True, False),
        ("long", 2**63 - 1, True),
        ("long", -(2**63) - 1, False),
        ("double", 1, True),
        ("float", "1", False),
        ("boolean", False, True),
        ("boolean", 0, False),
        ("null", None, True),
        ("string", None, False),
        ("bytes", "ÿ", True),
        ("bytes", "Ā", False),
        ("string", "Ā", True),
        (["null", "int"], None, True),
        (["null", "int"], 1, True),
        (["null", "int"], "x", False),
        ({"type": "array", "items": "int"}, [1], True),
        ({"type": "array", "items": "int"}, ["a"], False),
        ({"type": "map", "values": "int"}, {"a": 1}, True),
        ({"type": "map", "values": "int"}, [1], False),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "A", True),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", False),
        ({"type": "fixed", "name": "F", "size": 2}, "ab", True),
        ({"type": "fixed", "name": "F", "size": 2}, "a", False),
        (INNER, {"x": 1}, True),
        (INNER, {"y": 1}, False),
        (INNER, 1, False),
        ({"type": "long", "logicalType": "timestamp-millis"}, 0, True),
        ({"type": "long", "logicalType": "timestamp-millis"}, "now", False),
    ],
)
def test_a_default_must_fit_its_field(schema: Any, default: Any, valid: bool) -> None:
    text = json.dumps(record({"name": "a", "type": schema, "default": default}))
    if valid:
        parse(text)
    else:
        with pytest.raises(InvalidSchema, match=r"R\.a: default .* does not fit"):
            parse(text)


def test_a_recursive_type_and_its_default_are_understood() -> None:
    schema = record({"name": "next", "type": ["null", "R"], "default": None})
    assert json.loads(text_of(schema)) == schema


def test_a_type_without_namespace_stays_one_inside_a_namespace() -> None:
    inner = {"type": "fixed", "name": "F", "namespace": "", "size": 1}
    schema = record({"name": "a", "type": inner}, {"name": "b", "type": "F"}, namespace="n")
    assert json.loads(text_of(schema)) == schema
    assert parse(text_of(schema)).tree["fields"][1]["type"] == "F"


def test_a_nested_default_of_a_recursive_union_is_tried_once_for_each_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = record({"name": "n", "type": ["null", "A", "B"]}, {"name": "z", "type": "int"}, name="B")
    outer = record({"name": "n", "type": ["null", "A", inner]}, {"name": "z", "type": "int"}, name="A")
    tried: list[object] = []
    fits = DefaultChecker.fits

    def counted(self: DefaultChecker, value: object, schema: object) -> bool:
        tried.append(value)
        return fits(self, value, schema)

    monkeypatch.setattr(DefaultChecker, "fits", counted)
    depth = 40
    default: dict[str, Any] = {}
    for _ in range(depth):
        default = {"n": default}
    field = {"name": "b", "type": ["A", "B"], "default": default}
    with pytest.raises(InvalidSchema, match="does not fit"):
        text_of(record({"name": "a", "type": outer}, field))
    assert len(tried) < 20 * depth, "without a memory 2**40"


def test_a_default_that_is_nested_deeper_than_its_type_is_refused() -> None:
    default = '{"n":' * 900 + "null" + "}" * 900
    text = f'{{"type":"record","name":"L","fields":[{{"name":"n","type":["null","L"],"default":{default}}}]}}'
    with pytest.raises(InvalidSchema, match="nested deeper than 64 levels"):
        parse(text)


def test_referenced_types_are_written_out_once_where_they_are_used_first() -> None:
    header = parse(
        '{"type":"record","name":"n.H","fields":[{"name":"k","type":{"type":"enum","name":"K","symbols":["A"]}}]}'
    )
    schema = parse(
        '{"type":"record","name":"o.R","fields":[{"name":"k","type":"n.K"},{"name":"h","type":"n.H"},{"name":"i","type":"n.H"}]}',
        header.definitions,
    )
    assert "symbols" not in schema.text
    fastavro.parse_schema(json.loads(schema.resolved_text))
    assert schema.resolved_text.count('"symbols"') == 1
    assert parse(schema.resolved_text).tree == schema.tree


names = st.sampled_from(["A", "B", "C", "n.A", "n.B", "m.C"])
attributes = st.dictionaries(st.sampled_from(["doc", "owner", "x-tag"]), st.text(max_size=5), max_size=2)
simple = st.sampled_from(["null", "int", "long", "string", "bytes", {"type": "int", "logicalType": "date"}])


def complex_types(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.lists(children, max_size=3).map(
        lambda types: [{"name": f"f{i}", "type": t} for i, t in enumerate(types)]
    )
    return st.one_of(
        children.map(lambda t: {"type": "array", "items": t}),
        children.map(lambda t: {"type": "map", "values": t}),
        st.tuples(names, fields, attributes).map(
            lambda x: {"type": "record", "name": x[0], "fields": x[1], **x[2]}
        ),
        names.map(lambda name: {"type": "enum", "name": name, "symbols": ["X", "Y"]}),
        st.lists(children, min_size=1, max_size=3),
    )


@settings(max_examples=150, deadline=None)
@given(st.recursive(simple, complex_types, max_leaves=6))
def test_the_canonical_text_is_its_own_canonical_text(schema: Any) -> None:
    try:
        parsed = parse(json.dumps(schema))
    except InvalidSchema:
        return  # a name defined twice, a union in a union
    assert parse(parsed.text).text == parsed.text
    assert parse(parsed.resolved_text).tree == parsed.tree
    # An independent library sees the same schema in both texts.
    assert fastavro.schema.to_parsing_canonical_form(
        json.loads(parsed.text)
    ) == fastavro.schema.to_parsing_canonical_form(schema)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "schemas").glob("*.avsc")), ids=lambda path: path.stem)
def test_every_schema_of_ours_survives_and_still_encodes(path: Path) -> None:
    original = json.loads(path.read_text())
    canonical = json.loads(parse(path.read_text()).text)
    assert canonical == original
    fastavro.parse_schema(canonical)
    if path.stem == "SearchQuery":
        time = datetime(2015, 5, 20, 21, 5, 5, tzinfo=UTC)
        header = {"time": time, "server": "s", "service": "w", "instance": 2, "sequence": 0}
        event = {"header": header, "memberId": None, "query": "q", "results": 1, "latencyMs": 2}
        body = io.BytesIO()
        fastavro.schemaless_writer(body, canonical, event)
        body.seek(0)
        assert fastavro.schemaless_reader(body, original, None) == event


@pytest.mark.parametrize(
    "schema",
    [
        record(
            {
                "name": "a",
                "type": [
                    record({"name": "x", "type": {"type": "array", "items": "int"}}, name=f"R{i}")
                    for i in range(2000)
                ],
                "default": {"x": [*range(2000), "no int"]},
            }
        ),
        record(
            {
                "name": "a",
                "type": [{"type": "fixed", "name": f"F{i}", "size": 1} for i in range(5000)],
                "default": "x" * 200_000,
            }
        ),
        record(
            {
                "name": "a",
                "type": {
                    "type": "array",
                    "items": record(
                        *({"name": f"f{i}", "type": "int", "default": 0} for i in range(1000)), name="I"
                    ),
                },
                "default": [{}] * 20_000,
            }
        ),
    ],
)
def test_a_default_that_would_take_long_to_check_is_refused_in_time(schema: Any) -> None:
    text = json.dumps(schema)
    began = time.thread_time()
    with pytest.raises(InvalidSchema, match="the defaults are too long for their types"):
        parse(text)
    assert time.thread_time() - began < 5


def fixed(name: str) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": 1}


LONG = "N" * 400_000


@pytest.mark.parametrize(
    "schema",
    [
        record(*({"name": f"f{i}", "type": "int"} for i in range(400)), name=LONG),
        record(*({"name": f"f{i}", "type": fixed(f"x{i}")} for i in range(400)), namespace=LONG),
        record(*({"name": f"f{i}", "type": "R"} for i in range(400)), namespace=LONG),
        record(namespace=LONG, aliases=["a"] * 400),
        record({"name": LONG, "type": [fixed(f"x{i}") for i in range(400)]}),
    ],
)
def test_a_long_name_takes_its_room_only_a_few_times(schema: Any) -> None:
    text = json.dumps(schema)
    tracemalloc.start()
    with pytest.raises(InvalidSchema, match="its names are longer than 33554432 characters in all"):
        parse(text, flawed_too=True)
    assert tracemalloc.get_traced_memory()[1] < 50 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(
    "schema",
    [
        record(name="N" * 1001),
        record(namespace="N" * 999),
        record(aliases=["N" * 1001]),
        record({"name": "N" * 1001, "type": "int"}),
        record({"name": "a", "type": "int", "aliases": ["N" * 1001]}),
    ],
)
def test_a_name_of_more_than_1000_characters_is_not_registered_and_stays_readable(schema: Any) -> None:
    with pytest.raises(InvalidSchema, match=r"the name N+… has 1001 characters: write at most 1000"):
        parse(json.dumps(schema))
    stored = parse(json.dumps(schema), flawed_too=True)
    assert parse(stored.text, flawed_too=True).tree == stored.tree


def test_many_defaults_of_an_enum_of_many_symbols_are_checked_in_time() -> None:
    symbols = [f"a{i}" for i in range(52_000)]
    items = {"type": "enum", "name": "E", "symbols": symbols}
    default = [symbols[-1]] * len(symbols)
    text = json.dumps(record({"name": "f", "type": {"type": "array", "items": items}, "default": default}))
    began = time.thread_time()
    parse(text)
    assert time.thread_time() - began < 5

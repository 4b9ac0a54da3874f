from __future__ import annotations

import array
import datetime
import fractions
import math
import re
from collections import UserDict, UserList
from decimal import Decimal
from io import BytesIO
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import MillraceError
from millrace_audit.reports.event import (
    EventHeader,
    EventSchema,
    NotAudited,
    ValueSchema,
    has_header,
    read_header,
)
from millrace_audit.reports.messages import schema_file
from millrace_audit.reports.misfit import misfit
from millrace_registry.directory import AUDIT_HEADER

LONG = st.integers(-(1 << 63), (1 << 63) - 1)
HEADER = {"time": 1_431_856_800_000, "server": "web-1", "service": "shop", "instance": 2**62, "sequence": 7}
EVENT: dict[str, Any] = {
    "memberId": None,
    "clientAddress": "10.0.0.1",
    "method": "GET",
    "url": "/",
    "protocol": "HTTP/1.1",
    "referrer": None,
    "userAgent": "curl",
    "status": 200,
    "bytes": None,
}
PAGE_VIEW = EventSchema(schema_file("PageView"), 300)


def test_an_event_is_a_zero_byte_the_schema_id_and_the_avro_body() -> None:
    message = PAGE_VIEW.encode(HEADER, EVENT)
    assert message[:5] == b"\0\0\0\1\x2c"
    schema = fastavro.parse_schema(dict(schema_file("PageView")))
    record = fastavro.schemaless_reader(BytesIO(message[5:]), schema, None)
    assert isinstance(record, dict)
    assert {key: value for key, value in record.items() if key != "header"} == EVENT


@given(LONG, st.text(max_size=80), st.text(max_size=80), LONG, st.integers(0, (1 << 63) - 1))
def test_the_hand_decoder_reads_what_fastavro_writes(
    time: int, server: str, service: str, instance: int, sequence: int
) -> None:
    header = {"time": time, "server": server, "service": service, "instance": instance, "sequence": sequence}
    assert read_header(PAGE_VIEW.encode(header, EVENT))._asdict() == header


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_raise_nothing_but_not_audited(data: bytes) -> None:
    try:
        header = read_header(data)
    except NotAudited:
        return
    assert header.sequence >= 0


HEADER_END = 5 + 6 + 6 + 5 + 10 + 1


@pytest.mark.parametrize("cut", range(HEADER_END))
def test_a_message_cut_inside_its_header_is_refused(cut: int) -> None:
    message = PAGE_VIEW.encode(HEADER, EVENT)
    assert read_header(message[:HEADER_END]).sequence == 7
    with pytest.raises(NotAudited):
        read_header(message[:cut])


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"status": "two hundred"}, "status"),
        ({"status": 1 << 31}, "status"),
        ({"status": 200.5}, "status"),
        ({"status": True}, "status"),
        ({"status": None}, "status"),
        ({"memberId": "x"}, "memberId"),
        ({"memberId": 1 << 63}, "memberId"),
        ({"url": None}, "url"),
        ({"url": b"/"}, "url"),
        ({"url": "\ud800"}, "url has half of a surrogate pair"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_an_event_that_does_not_fit_is_refused_in_one_line_naming_the_field(
    change: dict[str, Any], field: str
) -> None:
    with pytest.raises(MillraceError, match=rf"schema PageView.*{field}") as caught:
        PAGE_VIEW.encode(HEADER, {**EVENT, **change})
    assert "\n" not in str(caught.value)
    assert "class '" not in str(caught.value), "an agent's client reads it, who need not know Python"


SHAPES = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "paid", "type": "boolean", "default": False},
        {"name": "total", "type": "double", "default": 0},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW"]}, "default": "NEW"},
        {"name": "labels", "type": {"type": "map", "values": "string"}, "default": {}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [
                        {"name": "price", "type": ["null", "int"]},
                        {"name": "gift", "type": ["null", "Line"], "default": None},
                    ],
                },
            },
            "default": [],
        },
    ],
}
FLAT = {**SHAPES, "fields": SHAPES["fields"][:4]}
ORDER = {"id": 1, "note": None}
CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
NESTED_ORDER = {**ORDER, "hash": b"abcd"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"note": 5}, "note must be null or a string, not 5"),
        ({"note": [None]}, "note must be null or a string, not [null]"),
        ({"id": "x"}, 'id must be an integer of 64 bits, not "x"'),
        ({"id": None}, "id must be an integer of 64 bits, not null"),
        ({"id": 1 << 63}, "id must be an integer of 64 bits, not 9223372036854775808"),
        ({"paid": "no"}, 'paid must be true or false, not "no"'),
        ({"paid": None}, "paid must be true or false, not null"),
        ({"paid": 0}, "paid must be true or false, not 0"),
        ({"total": "5"}, 'total must be a number, not "5"'),
        ({"total": True}, "total must be a number, not true"),
        ({"total": None}, "total must be a number, not null"),
        ({"total": 10**400}, "total must be a number, not 1000"),
        ({"total": Decimal("1.5")}, "total must be a number, not a decimal.Decimal 1.5"),
        ({"paid": np.bool_(True)}, f"paid must be true or false, not a numpy.{np.bool_.__name__} True"),
        ({"id": 10**5000}, "id must be an integer of 64 bits, not a value of the type int that"),
        ({"id": CIRCLE}, "id must be an integer of 64 bits, not a value of the type list that"),
        ({"note": "\ud800"}, "note has half of a surrogate pair"),
        ({"x": 1}, "x is no field of the schema: leave it out"),
    ],
)
@pytest.mark.parametrize(("shape", "order"), [(FLAT, ORDER), (SHAPES, NESTED_ORDER)], ids=["flat", "nested"])
def test_an_event_of_the_wrong_shape_is_refused_in_words_of_json(
    shape: dict[str, Any], order: dict[str, Any], change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(MillraceError) as caught:
        ValueSchema(shape, 1).encode({**order, **change})
    assert str(caught.value).startswith(f"the event does not fit schema Order: {reason}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"hash": "abcd"}, 'hash must be 4 bytes (no text), not "abcd"'),
        ({"state": "OLD"}, 'state must be one of "NEW", not "OLD"'),
        ({"labels": []}, "labels must be an object, not []"),
        ({"labels": {"a": 1}}, "labels.a must be a string, not 1"),
        ({"labels": ("a", "b")}, "labels must be an object, not a tuple ('a', 'b')"),
        ({"lines": UserList([5])}, "lines[0] must be an object of the type Line, not 5"),
        ({"lines": {}}, "lines must be an array, not {}"),
        (
            {"lines": [{"price": 1}, {"price": "1"}]},
            'lines[1].price must be null or an integer of 32 bits, not "1"',
        ),
        ({"lines": [5]}, "lines[0] must be an object of the type Line, not 5"),
        ({"lines": [{}]}, "lines[0].price is missing: give null or an integer of 32 bits"),
        ({"lines": [{"price": 1, "gift": {"prize": 1}}]}, "lines[0].gift.price is missing"),
        (
            {"lines": [{"price": 1, "gift": 7}]},
            "lines[0].gift must be null or an object of the type Line, not 7",
        ),
    ],
)
def test_a_wrong_value_inside_another_is_named_with_its_path(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(MillraceError) as caught:
        ValueSchema(SHAPES, 1).encode({**NESTED_ORDER, **change})
    assert str(caught.value).startswith(f"the event does not fit schema Order: {reason}")


def record(**types: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return {"type": "record", "name": "R", "fields": fields}


LINK = {"type": "record", "name": "L", "fields": [{"name": "q", "type": "int"}]}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
DAY = {"type": "int", "logicalType": "date"}


@pytest.mark.parametrize(
    ("types", "event", "reason"),
    [
        (
            {"u": ["null", {"type": "map", "values": "int"}, "string"], "id": "long"},
            {"u": ("string", "x"), "id": "bad"},
            'id must be an integer of 64 bits, not "bad"',
        ),
        ({"m": "long", "url": "string"}, {"m": np.int64(7), "url": 5}, "url must be a string, not 5"),
        ({"u": ["null", LINK]}, {"u": ("L", {"q": "x"})}, "R.u.L.q is <x>, expected int"),
        ({"u": ["null", LINK]}, {"u": (1, 2, 3)}, "too many values to unpack"),
        ({"p": PRICE}, {"p": Decimal("1.555")}, "p does not fit the logical type decimal: Scale provided"),
        (
            {"p": ["null", PRICE]},
            {"p": Decimal("1.555")},
            "p does not fit the logical type decimal: Scale provided",
        ),
        ({"d": ["null", DAY]}, {"d": "today"}, "d does not fit the logical type date: Invalid isoformat"),
        ({"d": DAY, "url": "string"}, {"d": "2015-05-17", "url": 5}, "url must be a string, not 5"),
        ({"b": "bytes"}, {}, "b is missing: give bytes (no text)"),
        ({"f": "float"}, {"f": 1e39}, "f must be a number of at most 3.4e38, not 1e+39"),
        ({"f": ["null", "float"]}, {"f": -1e39}, "f must be null or a number of at most 3.4e38, not -1e+39"),
        (
            {"f": {"type": "array", "items": "float"}},
            {"f": [1, 10**39]},
            "f[1] must be a number of at most 3.4e38, not 1000",
        ),
    ],
)
def test_a_value_that_only_python_has_gets_a_reason_and_no_legal_value_is_blamed(
    types: dict[str, Any], event: dict[str, Any], reason: str
) -> None:
    with pytest.raises(MillraceError) as caught:
        ValueSchema(record(**types), 1).encode(event)
    assert str(caught.value).startswith(f"the event does not fit schema R: {reason}")
    assert "\n" not in str(caught.value)


def test_an_infinite_number_that_the_service_gave_is_written() -> None:
    encoder = ValueSchema(record(f="float", g={"type": "array", "items": "float"}), 1)
    assert encoder.encode({"f": math.inf, "g": [-math.inf, 3.4e38]})[5:9] == b"\0\0\x80\x7f"


PLAIN_VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-300, 300)
    | st.sampled_from([1 << 31, 1 << 63, 10**39, 10**400, 3.5e38, fractions.Fraction(1, 3)])
    | st.floats()
    | st.text("a0\ud800", max_size=2)
    | st.binary(max_size=2)
    | st.sampled_from(["2015-05-17", datetime.date(2015, 5, 17), Decimal("1.5"), Decimal("1.555")])
    | st.sampled_from([np.int64(7), np.float64(1.5), np.float32(1.5), np.bool_(True), np.str_("a")])
    | st.sampled_from([bytearray(b"a"), memoryview(b"a"), array.array("i", [1]), range(2)])
)
PYTHON_VALUES = st.recursive(
    PLAIN_VALUES,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.lists(inner, max_size=2).map(UserList)
        | st.lists(inner, max_size=3).map(tuple)
        | st.tuples(st.sampled_from(["L", "null", "int", "string"]), inner)
        | st.dictionaries(st.sampled_from(["q", "-type", 1, "\ud800"]), inner, max_size=2)
        | st.dictionaries(st.just("q"), inner).map(UserDict)
    ),
    max_leaves=4,
)
ANY_TYPE = st.recursive(
    st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string", PRICE, DAY])
    | st.just({"type": "enum", "name": "E", "symbols": ["a"]})
    | st.just({"type": "fixed", "name": "F", "size": 1}),
    lambda inner: (
        inner.map(lambda items: {"type": "array", "items": items})
        | inner.map(lambda values: {"type": "map", "values": values})
        | inner.map(lambda kind: {"type": "record", "name": "L", "fields": [{"name": "q", "type": kind}]})
    ),
    max_leaves=1,
)


@given(ANY_TYPE, st.booleans(), PYTHON_VALUES)
def test_no_value_that_can_be_written_is_blamed_and_each_refusal_is_one_line_with_a_reason(
    kind: Any, is_optional: bool, value: Any
) -> None:
    schema = record(v=["null", kind] if is_optional and kind != "null" else kind)
    refusal = ""
    try:
        ValueSchema(schema, 1).encode({"v": value})
    except MillraceError as error:
        refusal = str(error)
    if refusal:
        assert re.fullmatch("the event does not fit schema R: .+", refusal)
    else:
        assert misfit({"v": value}, schema["fields"], {}) is None


@pytest.mark.parametrize("field", ["url", "method", "status"])
def test_a_field_without_default_must_be_given(field: str) -> None:
    event = {key: value for key, value in EVENT.items() if key != field}
    with pytest.raises(MillraceError, match=field):
        PAGE_VIEW.encode(HEADER, event)


def test_numbers_inside_lists_are_checked_too() -> None:
    nested = {
        "type": "record",
        "name": "Basket",
        "fields": [
            schema_file("PageView")["fields"][0],
            {"name": "prices", "type": {"type": "array", "items": "int"}},
        ],
    }
    schema = EventSchema(nested, 1)
    assert read_header(schema.encode(HEADER, {"prices": [1, 2]})).sequence == 7
    with pytest.raises(MillraceError, match="prices"):
        schema.encode(HEADER, {"prices": [1, 2.5]})


def test_a_schema_without_the_header_in_front_is_refused() -> None:
    schema = {"type": "record", "name": "Plain", "fields": [{"name": "url", "type": "string"}]}
    assert not has_header(schema)
    with pytest.raises(MillraceError, match="Plain cannot be audited"):
        EventSchema(schema, 1)


@pytest.mark.parametrize("name", ["PageView", "SearchQuery"])
def test_the_schemas_that_ship_have_the_header(name: str) -> None:
    assert has_header(schema_file(name))
    assert not has_header(schema_file("AuditReport"))


@given(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.text(max_size=200),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(0, (1 << 63) - 1),
)
def test_the_header_is_written_as_fastavro_would_write_it(
    time: int, name: str, instance: int, sequence: int
) -> None:
    header = {"time": time, "server": name, "service": "s", "instance": instance, "sequence": sequence}
    expected = BytesIO()
    fastavro.schemaless_writer(
        expected, fastavro.parse_schema(dict(schema_file("PageView"))), {**EVENT, "header": header}
    )
    assert PAGE_VIEW.encode(header, EVENT)[5:] == expected.getvalue()


def test_the_registry_asks_for_the_header_that_the_audit_reads() -> None:
    fields = AUDIT_HEADER["fields"]
    assert [field["name"] for field in fields][: len(EventHeader._fields)] == list(EventHeader._fields)
    assert has_header({"type": "record", "name": "E", "fields": [{"name": "header", "type": AUDIT_HEADER}]})

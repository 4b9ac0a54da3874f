"""Drafts of a schema from JSON messages: the types, the notes, and that the load takes the messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_avro.json_rows import JsonDecoder
from millrace_demo.draft import draft, record_name
from millrace_warehouse.columns import check_table_schema
from tests.unit.avro.avro_cases import in_one_buffer

SAMPLE = [
    {
        "orderId": "o-1",
        "total": 3,
        "placedAt": "2026-11-27T14:00:00Z",
        "at": 1_795_788_000_000,
        "day": "2026-11-27",
        "lines": [{"sku": "a", "qty": 1}],
        "ship-to": {"city": "Ulm", "zip": "89073"},
        "coupon": None,
    },
    {
        "orderId": 2,
        "total": 3.5,
        "placedAt": "2026-11-27 14:00:01.5",
        "at": 1_795_788_000_001,
        "day": "2026-11-28",
        "lines": [],
        "ship-to": {"city": "Köln"},
        "coupon": None,
        "flag": True,
    },
]


def fields(schema: Any) -> dict[str, Any]:
    return {field["name"]: field["type"] for field in schema["fields"]}


def test_a_draft_has_the_types_of_the_sample_and_notes_its_guesses() -> None:
    drafted = draft("shop.orders.v1", [*(json.dumps(each).encode() for each in SAMPLE), b"[1]", b"x", b""])
    found = fields(drafted.schema)
    assert drafted.schema["name"] == "ShopOrdersV1"
    assert found["orderId"] == {"type": "string", "millrace.json": "text"}
    assert found["total"] == "double"
    assert found["placedAt"] == {"type": "long", "logicalType": "timestamp-micros", "millrace.json": "iso"}
    assert found["at"] == {"type": "long", "logicalType": "timestamp-millis"}
    assert found["day"] == {"type": "int", "logicalType": "date"}
    assert found["flag"] == ["null", "boolean"]
    assert fields(found["lines"]["items"]) == {"sku": "string", "qty": "long"}
    assert fields(found["ship_to"]) == {"city": "string", "zip": ["null", "string"]}
    assert drafted.notes == [
        "orderId: integer 1, text 1: taken as JSON text",
        "placedAt: taken as times of ISO 8601",
        "at: taken as times in ms",
        "ship-to: the column is named ship_to",
        "coupon: always null: taken as JSON text",
    ]
    assert (drafted.objects, drafted.others) == (2, 3)


@pytest.mark.parametrize(
    ("topic", "record"),
    [
        ("orders", "orders"),
        ("shop.orders.v1", "ShopOrdersV1"),
        ("orders-json", "OrdersJson"),
        ("7days", "T7days"),
        ("-", "T"),
    ],
)
def test_every_legal_name_of_a_topic_has_a_record(topic: str, record: str) -> None:
    assert record_name(topic) == record


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["2026-11-27T14:00:00Z", "2026-13-45T14:00:00Z", "2026-11-27"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["a", "A", "a_b", "a-b", "_time", "_id", "é", "7", ""]) | st.text(max_size=3)


@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=5), min_size=1, max_size=6))
def test_the_drafted_schema_takes_every_object_of_its_sample(sample: list[dict[str, Any]]) -> None:
    values = [json.dumps(each).encode() for each in sample]
    drafted = draft("orders", values)
    table = check_table_schema(json.loads(json.dumps(drafted.schema)))
    arrays, faults = JsonDecoder(table).decode(*in_one_buffer(values))
    assert not faults, faults.reasons
    for array in arrays:
        array.validate(full=True)

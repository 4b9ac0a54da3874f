"""Conditions of erasures: what they match is what a naive reading of SQL's three values says."""

from __future__ import annotations

import datetime as dt
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from millrace.errors import ConfigError
from millrace_warehouse.history.condition import Condition
from millrace_warehouse.history.iceberg_types import arrow_schema

HEADER = iceberg.StructType(
    iceberg.NestedField(4, "server", iceberg.StringType()), iceberg.NestedField(5, "n", iceberg.IntegerType())
)
SCHEMA = Schema(
    iceberg.NestedField(1, "member", iceberg.LongType()),
    iceberg.NestedField(2, "url", iceberg.StringType()),
    iceberg.NestedField(3, "header", HEADER),
    iceberg.NestedField(6, "at", iceberg.TimestamptzType()),
    iceberg.NestedField(7, "ok", iceberg.BooleanType()),
    iceberg.NestedField(8, "key", iceberg.BinaryType()),
    iceberg.NestedField(9, "share", iceberg.DoubleType()),
    iceberg.NestedField(10, "tags", iceberg.ListType(11, iceberg.StringType(), element_required=False)),
)
OLD = Schema(iceberg.NestedField(2, "url", iceberg.StringType()))


def matches(where: str, *rows: dict[str, Any], schema: Schema = SCHEMA) -> list[bool]:
    batch = pa.RecordBatch.from_pylist(list(rows), schema=arrow_schema(schema))
    condition = Condition(where)
    condition.check([SCHEMA, OLD])
    return [bool(each) for each in condition.mask(batch, schema).to_pylist()]


numbers = st.integers(-3, 3) | st.sampled_from([1 << 31, -(1 << 31) - 1, (1 << 63) - 1])
texts = st.sampled_from(["a", "b", "ab", "o'x", ""])
row = st.fixed_dictionaries(
    {
        "member": st.none() | numbers,
        "url": st.none() | texts,
        "header": st.none()
        | st.fixed_dictionaries({"server": st.none() | texts, "n": st.none() | st.integers(-3, 3)}),
    }
)
_OPERATORS = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
Naive = tuple[str, Any]
"""A condition's text, and what it is for a row: True, False or None."""


def _field(path: str, of: dict[str, Any]) -> Any:
    for name in path.split("."):
        of = None if of is None else of.get(name)  # type: ignore[assignment]
    return of


def _spelt(value: Any) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def _compares(path: str, operator: str, value: Any) -> Naive:
    def holds(of: dict[str, Any]) -> bool | None:
        there = _field(path, of)
        return None if there is None else _OPERATORS[operator](there, value)

    return f"{path} {operator} {_spelt(value)}", holds


def _in(path: str, values: list[Any], negated: bool) -> Naive:
    def holds(of: dict[str, Any]) -> bool | None:
        there = _field(path, of)
        return None if there is None else (there in values) != negated

    return f"{path} {'NOT ' if negated else ''}IN ({', '.join(map(_spelt, values))})", holds


def _null(path: str, negated: bool) -> Naive:
    return f"{path} IS {'NOT ' if negated else ''}NULL", lambda of: (_field(path, of) is None) != negated


def _not(inner: Naive) -> Naive:
    def holds(of: dict[str, Any]) -> bool | None:
        value = inner[1](of)
        return None if value is None else not value

    return f"NOT ({inner[0]})", holds


def _both(left: Naive, right: Naive, deciding: bool) -> Naive:
    def holds(of: dict[str, Any]) -> bool | None:
        values = (left[1](of), right[1](of))
        if deciding in values:
            return deciding
        return None if None in values else not deciding

    return f"({left[0]}) {'OR' if deciding else 'AND'} ({right[0]})", holds


_number, _text = st.sampled_from(["member", "header.n"]), st.sampled_from(["url", "header.server"])
leaf = st.one_of(
    st.builds(_compares, _number, st.sampled_from(sorted(_OPERATORS)), numbers),
    st.builds(_compares, _text, st.sampled_from(sorted(_OPERATORS)), texts),
    st.builds(_in, _number, st.lists(numbers, min_size=1, max_size=3), st.booleans()),
    st.builds(_in, _text, st.lists(texts, min_size=1, max_size=3), st.booleans()),
    st.builds(_null, st.sampled_from(["member", "url", "header", "header.n"]), st.booleans()),
)
conditions = st.recursive(
    leaf, lambda inner: st.builds(_not, inner) | st.builds(_both, inner, inner, st.booleans()), max_leaves=6
)


@settings(max_examples=100, deadline=None)
@given(condition=conditions, rows=st.lists(row, min_size=1, max_size=6))
def test_a_condition_matches_what_a_naive_reading_matches(
    condition: Naive, rows: list[dict[str, Any]]
) -> None:
    text, holds = condition
    assert matches(text, *rows) == [holds(each) is True for each in rows]


def test_a_column_that_a_schema_lacks_is_null_in_its_rows() -> None:
    old = {"url": "a"}
    for where, expected in (
        ("member = 1", False),
        ("member != 1", False),
        ("NOT (member = 1)", False),
        ("member IS NULL", True),
        ("member != 1 OR member IS NULL", True),
        ("header.server IS NOT NULL", False),
    ):
        assert matches(where, old, schema=OLD) == [expected], where
    assert Condition("member = 1 AND url = 'a'").check([SCHEMA, OLD]) == ["member"]


def test_times_texts_bytes_and_booleans_are_compared_as_what_they_are() -> None:
    at = dt.datetime(2015, 5, 17, 10, tzinfo=dt.UTC)
    whole = {"at": at, "ok": True, "key": b"42", "url": "/jane/1", "share": float("nan")}
    for where in (
        "at = '2015-05-17T10:00:00+00:00'",
        "at BETWEEN '2015-05-17T09:00:00+00:00' AND '2015-05-17T10:00:00+00:00'",
        "ok = true",
        "key = '42'",
        "url LIKE '/jane/%'",
        "share IS NAN",
    ):
        assert matches(where, whole, {}) == [True, False], where


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("", "is not a condition"),
        ("member = ", "is not a condition"),
        ("member = 1; drop", "cannot be read from letter 11 on"),
        ("member ==== 1", "cannot be read from letter 1 on"),
        ("true AND member = 1", "true and false stand alone"),
        ("members = 1", "names members, which is not a column of the table: at, header"),
        ("MEMBER = 1", "which is not a column"),
        ("header.nobody = 1", "which is not a column"),
        ("member = 1.5", "does not fit"),
        ("member = '1'", "does not fit"),
        ("url = 1", "does not fit"),
        ("at = 5", "does not fit"),
        ("at = 'yesterday'", "does not fit"),
        ("member LIKE 'a%'", "needs text"),
        ("url IS NAN", "never is"),
        ("tags.element = 'a'", "only fields of records"),
        ("header = 'a'", "does not fit"),
        ("url = '" + "a" * 10_001 + "'", "letters"),
    ],
)
def test_what_is_no_condition_on_the_columns_is_refused_in_one_sentence(where: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        Condition(where).check([SCHEMA, OLD])
    assert len(str(refused.value)) < len(where[:200]) + 250

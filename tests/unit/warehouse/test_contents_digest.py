"""A copy of rows is told from the rows by any value, null or length, and not by the cuts between batches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from millrace.errors import MillraceError
from millrace_warehouse.contents_digest import ContentsDigest
from millrace_warehouse.history.iceberg_types import arrow_schema
from millrace_warehouse.projection import project

ITEM = StructType(NestedField(10, "a", LongType()), NestedField(11, "b", StringType()))
COLUMNS = Schema(
    NestedField(1, "n", LongType()),
    NestedField(2, "x", DoubleType()),
    NestedField(3, "s", StringType()),
    NestedField(4, "items", ListType(20, ITEM, element_required=False)),
    NestedField(5, "by", MapType(21, StringType(), 22, ListType(23, LongType(), element_required=False))),
    NestedField(6, "d", DecimalType(20, 3)),
    NestedField(7, "f", FixedType(4)),
    NestedField(8, "flag", BooleanType()),
    NestedField(9, "at", TimestamptzType()),
    NestedField(30, "day", DateType()),
    NestedField(31, "raw", BinaryType()),
)
ARROW = arrow_schema(COLUMNS)

item = st.none() | st.fixed_dictionaries(
    {"a": st.none() | st.integers(-5, 5), "b": st.none() | st.text("ab", max_size=2)}
)
number = st.none() | st.integers(0, 3)
row = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-9, 9),
        "x": st.none() | st.floats(allow_nan=False, width=32),
        "s": st.none() | st.text("xyä", max_size=3),
        "items": st.none() | st.lists(item, max_size=3),
        "by": st.none()
        | st.dictionaries(
            st.text("kl", max_size=1), st.none() | st.lists(st.none() | st.integers(0, 3)), max_size=2
        ),
        "d": st.none() | st.decimals("-9", "9", places=3, allow_nan=False),
        "f": st.none() | st.binary(min_size=4, max_size=4),
        "flag": st.none() | st.booleans(),
        "at": st.none() | st.integers(0, 10**15),
        "day": st.none() | st.integers(0, 20_000),
        "raw": st.none() | st.binary(max_size=3),
    }
)
rows = st.lists(row, max_size=6)


def batch_of(values: list[dict[str, Any]]) -> pa.RecordBatch:
    maps = [value["by"] if value["by"] is None else [*value["by"].items()] for value in values]
    plain = [{**value, "by": by} for value, by in zip(values, maps, strict=True)]
    return pa.RecordBatch.from_pylist(plain, ARROW)


def digest_of(*batches: pa.RecordBatch, columns: Schema = COLUMNS) -> ContentsDigest:
    digest = ContentsDigest()
    for batch in batches:
        digest.add(batch, columns)
    return digest


@given(rows, st.data())
def test_the_cuts_between_batches_do_not_count(values: list[dict[str, Any]], data: st.DataObject) -> None:
    batch = batch_of(values)
    cut = data.draw(st.integers(0, len(batch)))
    parts = batch.slice(0, cut), batch.slice(cut)
    assert not [*digest_of(batch).differences(digest_of(*parts))]


@given(rows, rows)
def test_rows_that_differ_anywhere_have_another_digest(
    one: list[dict[str, Any]], other: list[dict[str, Any]]
) -> None:
    """The oracle is Python's own comparison of the values that Arrow gives back."""
    first, second = batch_of(one), batch_of(other)
    same = repr(first.to_pylist()) == repr(second.to_pylist())
    assert same == (not [*digest_of(first).differences(digest_of(second))])


@given(rows, st.data())
def test_rows_in_the_columns_that_they_have_are_as_they_were(
    values: list[dict[str, Any]], data: st.DataObject
) -> None:
    whole = batch_of(values)
    batch = whole.slice(data.draw(st.integers(0, len(whole))))
    copy = project(batch, COLUMNS, COLUMNS, ARROW)
    copy.validate(full=True)
    assert copy.to_pylist() == batch.to_pylist()
    assert not [*digest_of(batch).differences(digest_of(copy))]


OLD_ITEM = StructType(NestedField(10, "a", IntegerType()))
OLD = Schema(
    NestedField(1, "n", IntegerType()),
    NestedField(2, "x", FloatType()),
    NestedField(
        4, "items", ListType(20, StructType(NestedField(10, "a", IntegerType())), element_required=False)
    ),
    NestedField(99, "gone", StringType()),
)


def test_columns_that_were_added_widened_renamed_or_dropped_are_found_by_their_ids_at_every_depth() -> None:
    items = [None, [], [{"a": 1}, None]]
    old = pa.RecordBatch.from_pydict(
        {"n": [1, None, 3], "x": [0.5, None, 2.5], "items": items, "gone": ["x"] * 3},
        schema=arrow_schema(OLD),
    )
    new = project(old, OLD, COLUMNS, ARROW)
    new.validate(full=True)
    found = new.to_pydict()
    assert (found["n"], found["x"]) == ([1, None, 3], [0.5, None, 2.5])
    assert found["items"] == [None, [], [{"a": 1, "b": None}, None]]
    assert all(found[name] == [None] * 3 for name in ARROW.names if name not in ("n", "x", "items"))
    assert not [*digest_of(old, columns=OLD).differences(digest_of(new))]


def test_a_column_that_only_some_of_the_sources_have_is_null_in_the_rows_of_the_others() -> None:
    old = pa.RecordBatch.from_pydict(
        {"n": [1, 2], "x": [None] * 2, "items": [[{"a": 1}], None], "gone": [None] * 2},
        schema=arrow_schema(OLD),
    )
    row = {**dict.fromkeys(ARROW.names), "s": "new", "items": [{"a": 2, "b": "inside"}]}
    new, empty = batch_of([row]), batch_of([dict.fromkeys(ARROW.names)])
    digest, copy, moved = ContentsDigest(), ContentsDigest(), ContentsDigest()
    rows = [project(old, OLD, COLUMNS, ARROW), new, project(old, OLD, COLUMNS, ARROW)]
    for batch, columns in ((old, OLD), (new, COLUMNS), (old, OLD)):
        digest.add(batch, columns)
    for batch in rows:
        copy.add(batch, COLUMNS)
    assert not [*digest.differences(copy)]
    for batch in (rows[0].slice(0, 1), new, rows[0].slice(1), rows[0]):
        moved.add(batch, COLUMNS)
    assert "s" in digest.differences(moved)
    copy.add(empty, COLUMNS)
    assert [*digest.differences(copy)]


def test_a_value_in_a_column_that_the_source_does_not_have_is_a_difference() -> None:
    old = pa.RecordBatch.from_pydict(
        {"n": [1], "x": [None], "items": [None], "gone": [None]}, schema=arrow_schema(OLD)
    )
    new = batch_of([{**dict.fromkeys(ARROW.names), "n": 1, "s": "made up"}])
    assert [*digest_of(old, columns=OLD).differences(digest_of(new))] == ["s"]


def test_a_required_column_that_a_file_lacks_is_an_error() -> None:
    required = Schema(NestedField(50, "must", LongType(), required=True))
    with pytest.raises(MillraceError, match="column must is required"):
        project(batch_of([]), COLUMNS, required, arrow_schema(required))

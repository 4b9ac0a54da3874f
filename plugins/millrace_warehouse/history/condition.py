"""Condition on columns that selects the rows of an erasure: parsed by pyiceberg, evaluated with Arrow.

    memberId = 42        header.server IN ('a', 'b')        url LIKE '/jane/%'        NOT (status >= 500)
    email IS NULL        _time BETWEEN '2015-05-17T10:00:00+00:00' AND '2015-05-17T10:59:59+00:00'

As in SQL, a comparison with null is unknown, and an unknown comparison matches nothing, with or without NOT.
A column that a row's schema lacks is null in that row. A value must be of the column's kind and fit it
exactly: a value that pyiceberg would round is refused. Handles rows and schemas, and no files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError
from pyiceberg import expressions as ex
from pyiceberg import types as iceberg
from pyiceberg.expressions.literals import (
    AboveMax,
    BelowMin,
    BooleanLiteral,
    DecimalLiteral,
    Literal,
    LongLiteral,
    StringLiteral,
)
from pyiceberg.expressions.parser import parse
from pyiceberg.schema import Schema
from pyparsing import ParseBaseException

from millrace.errors import ConfigError

MOST_LETTERS = 10_000
_COMPARED: Mapping[Any, Any] = {
    ex.EqualTo: pc.equal,
    ex.NotEqualTo: pc.not_equal,
    ex.LessThan: pc.less,
    ex.LessThanOrEqual: pc.less_equal,
    ex.GreaterThan: pc.greater,
    ex.GreaterThanOrEqual: pc.greater_equal,
}
_WHOLE = (iceberg.IntegerType, iceberg.LongType, iceberg.DecimalType)
_REAL = (iceberg.FloatType, iceberg.DoubleType)
_TEXT = (
    iceberg.StringType,
    iceberg.DateType,
    iceberg.TimeType,
    iceberg.TimestampType,
    iceberg.TimestamptzType,
    iceberg.UUIDType,
)
_BYTES = (iceberg.BinaryType, iceberg.FixedType)


class Condition:
    """A condition, parsed from its text.

    Raise ConfigError, with the text, when the text is not a condition.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            if len(text) > MOST_LETTERS:
                raise ValueError(f"it has {len(text):,} letters, at most {MOST_LETTERS:,} are read")
            self._expression = parse(text)
            self.columns = list(dict.fromkeys(path[0] for path, _ in self._leaves))
        except RecursionError:
            raise ConfigError(
                "--where has too many parts: erase with fewer of them at a time, or with IN (...)"
            ) from None
        except (ParseBaseException, ValidationError, ValueError, TypeError) as error:
            reason = "true and false stand alone" if isinstance(error, ValidationError) else str(error)
            if isinstance(error, ParseBaseException):  # its text lists the whole grammar
                reason = f"it cannot be read from letter {error.loc + 1} on"
            raise ConfigError(
                f"--where {text[:200]!r} is not a condition ({reason}): write one like memberId = 42, or"
                " header.server IN ('a', 'b') AND url IS NOT NULL"
            ) from None

    @cached_property
    def _leaves(self) -> list[tuple[list[str], Any]]:
        """The path of each predicate's column, and the predicate."""
        return [(leaf.term.name.split("."), leaf) for leaf in _predicates(self._expression)]

    def check(self, schemas: Sequence[Schema]) -> list[str]:
        """Return the columns of the condition that some schemas lack.

        Raise ConfigError if all schemas lack a column, or if a value does not fit its column's type.
        """
        missing: list[str] = []
        for path, leaf in self._leaves:
            name = ".".join(path)
            types = [type_ for schema in schemas if (type_ := _type_at(schema, path)) is not None]
            if not types:
                names = sorted({field.name for schema in schemas for field in schema.fields})
                raise ConfigError(
                    f"--where names {name}, which is not a column of the table: {', '.join(names)}"
                )
            if len(types) < len(schemas):
                missing.append(name)
            for type_ in types:
                _check_leaf(leaf, type_, name)
        return list(dict.fromkeys(missing))

    def mask(self, rows: pa.RecordBatch, schema: Schema) -> pa.BooleanArray:
        """Return the mask of rows that match. `rows` has each of `columns` that the schema has."""
        return _evaluated(self._expression, rows, schema).fill_null(False)


def _predicates(expression: Any) -> Iterator[Any]:
    if isinstance(expression, ex.And | ex.Or):
        yield from _predicates(expression.left)
        yield from _predicates(expression.right)
    elif isinstance(expression, ex.Not):
        yield from _predicates(expression.child)
    elif isinstance(expression, ex.UnboundPredicate):
        yield expression
    elif not isinstance(expression, ex.AlwaysTrue | ex.AlwaysFalse):
        raise ValueError(f"{expression} cannot be evaluated")


def _type_at(schema: Schema, path: Sequence[str]) -> Any:
    """Return the type of a column, or of a field inside one, or None without such a column."""
    type_: Any = schema.as_struct()
    for name in path:
        if not isinstance(type_, iceberg.StructType):
            raise ConfigError(f"--where names {'.'.join(path)}: only fields of records can be named")
        field = type_.field_by_name(name)
        if field is None:
            return None
        type_ = field.field_type
    return type_


def _check_leaf(leaf: Any, type_: Any, name: str) -> None:
    if isinstance(leaf, ex.IsNull | ex.NotNull):
        return
    if isinstance(leaf, ex.IsNaN | ex.NotNaN):
        if not isinstance(type_, _REAL):
            raise ConfigError(f"--where asks whether {name} is NaN, which {type_} never is")
        return
    if isinstance(leaf, ex.StartsWith | ex.NotStartsWith) and not isinstance(type_, iceberg.StringType):
        raise ConfigError(f"--where compares {name} with LIKE, which needs text, but {name} is {type_}")
    for literal in _literals(leaf):
        _value(literal, type_, name)


def _literals(leaf: Any) -> Sequence[Any]:
    return list(leaf.literals) if isinstance(leaf, ex.In | ex.NotIn) else [leaf.literal]


def _value(literal: Literal[Any], type_: Any, name: str) -> Any:
    """Return the literal in the column's type, or `inf` or `-inf` if it lies outside the type's range.

    Raise ConfigError if it does not fit the type.
    """
    number = isinstance(literal, LongLiteral | DecimalLiteral)
    fits = (
        (number and isinstance(type_, (*_WHOLE, *_REAL)))
        or (isinstance(literal, StringLiteral) and isinstance(type_, (*_TEXT, *_BYTES)))
        or (isinstance(literal, BooleanLiteral) and isinstance(type_, iceberg.BooleanType))
    )
    try:
        if not fits:
            raise ValueError(f"{name} is {type_}")
        if isinstance(type_, _BYTES):
            return str(literal.value).encode()
        converted = _converted(literal, type_)
        whole = number and isinstance(type_, _WHOLE) and converted not in (_ABOVE, _BELOW)
        if whole and Decimal(converted) != Decimal(literal.value):
            raise ValueError(f"{name} is {type_}")
        return converted
    except (ValueError, TypeError, ArithmeticError) as error:
        value = repr(literal.value)
        raise ConfigError(f"--where compares {name} with {value}, which does not fit: {error}") from None


_ABOVE, _BELOW = Decimal("inf"), Decimal("-inf")


def _converted(literal: Literal[Any], type_: Any) -> Any:
    if isinstance(type_, iceberg.IntegerType | iceberg.LongType) and isinstance(literal, LongLiteral):
        bits = 31 if isinstance(type_, iceberg.IntegerType) else 63
        if literal.value >= 1 << bits:
            return _ABOVE
        if literal.value < -(1 << bits):
            return _BELOW
    converted = literal.to(type_)
    if isinstance(converted, AboveMax):
        return _ABOVE
    return _BELOW if isinstance(converted, BelowMin) else converted.value


def _evaluated(expression: Any, rows: pa.RecordBatch, schema: Schema) -> pa.BooleanArray:
    """Evaluate the condition for each row: true, false, or null for unknown."""
    if isinstance(expression, ex.And):
        sides = (_evaluated(side, rows, schema) for side in (expression.left, expression.right))
        return pc.and_kleene(*sides)
    if isinstance(expression, ex.Or):
        sides = (_evaluated(side, rows, schema) for side in (expression.left, expression.right))
        return pc.or_kleene(*sides)
    if isinstance(expression, ex.Not):
        return pc.invert(_evaluated(expression.child, rows, schema))
    if isinstance(expression, ex.AlwaysTrue | ex.AlwaysFalse):
        return _same(isinstance(expression, ex.AlwaysTrue), rows)
    path = expression.term.name.split(".")
    type_, column = _type_at(schema, path), _column(rows, path)
    null = isinstance(expression, ex.IsNull)
    if type_ is None or column is None:
        return _same(null if null or isinstance(expression, ex.NotNull) else None, rows)
    if null or isinstance(expression, ex.NotNull):
        return column.is_null() if null else column.is_valid()
    return _compared(expression, column, type_, ".".join(path))


def _same(value: bool | None, rows: pa.RecordBatch) -> pa.BooleanArray:
    return pa.array([value], pa.bool_()).take(pa.array([0] * len(rows), pa.int32()))


def _column(rows: pa.RecordBatch, path: Sequence[str]) -> Any:
    if path[0] not in rows.schema.names:
        return None
    column = rows.column(path[0])
    for name in path[1:]:
        # Not `.field()`: it ignores which records are null.
        column = pc.struct_field(column, [name])
    return column.storage if isinstance(column.type, pa.BaseExtensionType) else column


def _compared(leaf: Any, column: Any, type_: Any, name: str) -> pa.BooleanArray:
    if isinstance(leaf, ex.IsNaN | ex.NotNaN):
        nan = pc.is_nan(column)
        return nan if isinstance(leaf, ex.IsNaN) else pc.invert(nan)
    if isinstance(leaf, ex.StartsWith | ex.NotStartsWith):
        begins = pc.starts_with(column, pattern=leaf.literal.value)
        return begins if isinstance(leaf, ex.StartsWith) else pc.invert(begins)
    values = [_value(literal, type_, name) for literal in _literals(leaf)]
    if isinstance(leaf, ex.In | ex.NotIn):
        found = _same_where_valid(False, column)
        for value in values:
            found = pc.or_(found, _compare(pc.equal, column, value))
        return found if isinstance(leaf, ex.In) else pc.invert(found)
    return _compare(_COMPARED[type(leaf)], column, values[0])


def _compare(compare: Any, column: Any, value: Any) -> pa.BooleanArray:
    if value in (_ABOVE, _BELOW):
        true = compare in (pc.not_equal, *((pc.less, pc.less_equal) if value == _ABOVE else ()))
        true = true or (value == _BELOW and compare in (pc.greater, pc.greater_equal))
        return _same_where_valid(true, column)
    return compare(column, pa.scalar(value, column.type))


def _same_where_valid(value: bool, column: Any) -> pa.BooleanArray:
    return pc.if_else(column.is_valid(), pa.scalar(value), pa.scalar(None, pa.bool_()))

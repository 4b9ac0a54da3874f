"""The columns of a table: the fields of its Avro schema, and Millrace's own columns.

One check decides which schemas a table may have: for the first load, for promotions and for the decoder.
Names are compared without regard to case: Spark's columns have no case.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from millrace.errors import MillraceError
from millrace_avro.schema import Record, SchemaError, arrow_fields, parse, without_nulls

TIME = pa.field("_time", pa.timestamp("us", tz="UTC"))
"""Event time that decides the row's hour; null when no correct clock can have shown it.

The time of a record header counts before any other."""
TOPIC_PARTITION = pa.field("_topic_partition", pa.int32())
OFFSET = pa.field("_offset", pa.int64())
LOG_FIELDS = [
    TOPIC_PARTITION,
    OFFSET,
    pa.field("_timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("_key", pa.binary()),
    pa.field("_schema_id", pa.int32()),
]
"""Place of a row in the log. `_timestamp` is the record's time, or null when no calendar has that time."""
INSTANCE = pa.field("_instance", pa.int64())
SEQUENCE = pa.field("_sequence", pa.int64())
SENDER_FIELDS = [INSTANCE, SEQUENCE]
"""Instance and number of the sender from the message's record header; null without such a header."""
LOAD = pa.field("_load", pa.int64())
"""Number of the load that wrote the row: rows counted by load can be compared with the loads."""
OWN_FIELDS = [TIME, *LOG_FIELDS, *SENDER_FIELDS, LOAD]
"""Millrace's columns of a table. They follow the columns of the schema."""
_ICEBERG_NAMES = {
    "_file",
    "_pos",
    "_deleted",
    "_spec_id",
    "_partition",
    "_row_id",
    "_last_updated_sequence_number",
    "_change_type",
    "_change_ordinal",
    "_commit_snapshot_id",
}
"""Apache Iceberg's metadata columns. Spark 4.1 refuses `select *` from a table with one of these."""
PARTITION = "_time_hour"
"""Name of the table's partition, as Spark names `hours(_time)`. Iceberg allows no column of that name."""
RESERVED_NAMES = frozenset({*_ICEBERG_NAMES, *(field.name for field in OWN_FIELDS), PARTITION})
"""Names that no field of a table's schema may have, in upper or lower case."""


def check_table_schema(schema: Mapping[str, Any]) -> Record:
    """Return the schema as a record whose fields can be a table's columns.

    Raise SchemaError if they cannot.
    """
    parsed = parse(schema)
    if not isinstance(parsed, Record):
        raise SchemaError("a table's schema must be an Avro record")
    table = without_nulls(parsed)
    for field in table.fields:
        if field.name.casefold() in RESERVED_NAMES:
            owner = "Apache Iceberg's" if field.name.casefold() in _ICEBERG_NAMES else "Millrace's"
            raise SchemaError(f"its field {field.name} has the name of one of {owner} columns")
    _check_case(pa.struct(arrow_fields(table)), "")
    return table


def pair_equal_but_for_case(names: Collection[str]) -> tuple[str, str] | None:
    """Return two names that differ only in case, or None."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.casefold(), name)) != name:
            return other, name
    return None


def check_pinned(topic: str, schema_id: int, schema: Mapping[str, Any]) -> Record:
    """Return the columns of a topic whose first load pins the schema.

    Raise MillraceError if a table may not have the schema.
    """
    try:
        return check_table_schema(schema)
    except SchemaError as error:
        raise MillraceError(
            f"{topic} cannot be loaded with schema {schema_id}: {error}; correct the schema, register"
            " it, then load again"
        ) from None


def _check_case(type_: pa.DataType, path: str) -> None:
    """Raise SchemaError if two fields of one record, at any depth, differ only in case."""
    inner = [type_.field(index) for index in range(type_.num_fields)]
    if pa.types.is_struct(type_) and (pair := pair_equal_but_for_case([field.name for field in inner])):
        raise SchemaError(f"its fields {path}{pair[0]} and {path}{pair[1]} differ in case only")
    for field in inner:
        _check_case(field.type, f"{path}{field.name}." if pa.types.is_struct(type_) else path)

"""The columns of a table: the fields of its Avro schema, and Millrace's own beside them.

One check says which schemas a table may have: for the first load, for promotions and for the decoder. Names
are compared with their case folded: Spark's columns have no case.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from millrace.errors import MillraceError
from millrace_avro.schema import Record, SchemaError, arrow_fields, parse, without_nulls

TIME = pa.field("_time", pa.timestamp("us", tz="UTC"))
"""What the row is filed by: its event time, null when no sound clock can have shown that."""
TOPIC_PARTITION = pa.field("_topic_partition", pa.int32())
OFFSET = pa.field("_offset", pa.int64())
LOG_FIELDS = [
    TOPIC_PARTITION,
    OFFSET,
    pa.field("_timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("_key", pa.binary()),
    pa.field("_schema_id", pa.int32()),
]
"""Where a row comes from; the time is the record's own, null when it is none a calendar has."""
LOAD = pa.field("_load", pa.int64())
"""Number of the load that the row came with: whoever counts rows by it can hold them against the loads."""
OWN_FIELDS = [TIME, *LOG_FIELDS, LOAD]
"""Millrace's columns of a table, behind those of its schema."""
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
"""Apache Iceberg's metadata columns; Spark 4.1 refuses `select *` of a table with one of these."""
PARTITION = "_time_hour"
"""The table's partition, as Spark names one by `hours(_time)`: Iceberg takes no column of that name."""
RESERVED_NAMES = frozenset({*_ICEBERG_NAMES, *(field.name for field in OWN_FIELDS), PARTITION})
"""Names that no field of a table's schema may have, in any case."""


def check_table_schema(schema: Mapping[str, Any]) -> Record:
    """The schema as a record whose fields can be columns of a table; SchemaError says why not."""
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


def same_but_case(names: Collection[str]) -> tuple[str, str] | None:
    """Two names that differ in case only, if there are any."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.casefold(), name)) != name:
            return other, name
    return None


def check_pinned(topic: str, schema_id: int, schema: Mapping[str, Any]) -> Record:
    """The columns of a topic's first load with that schema; MillraceError unless it may pin it."""
    try:
        return check_table_schema(schema)
    except SchemaError as error:
        raise MillraceError(
            f"{topic} cannot be loaded with schema {schema_id}: {error}; mend the schema, register it,"
            " then load again"
        ) from None


def _check_case(type_: pa.DataType, path: str) -> None:
    """SchemaError for two fields of one record that differ in case only, at any depth."""
    inner = [type_.field(index) for index in range(type_.num_fields)]
    if pa.types.is_struct(type_) and (pair := same_but_case([field.name for field in inner])):
        raise SchemaError(f"its fields {path}{pair[0]} and {path}{pair[1]} differ in case only")
    for field in inner:
        _check_case(field.type, f"{path}{field.name}." if pa.types.is_struct(type_) else path)

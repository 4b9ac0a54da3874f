"""Which Avro schemas a table may have: one check for the first load, for promotions and for the decoder.

Names are compared with their case folded: Spark's columns have no case. A table that an older version pinned
keeps its names, so the decoder refuses only what it cannot write itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from millrace_avro.schema import Record, SchemaError, arrow_fields, parse

META_FIELDS = [
    pa.field("_partition", pa.int32()),
    pa.field("_offset", pa.int64()),
    pa.field("_timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("_key", pa.binary()),
    pa.field("_schema_id", pa.int32()),
]
"""Where a row comes from; the time is the record's own, null when it is none a calendar has."""
FOLDER_NAMES = frozenset({"date", "hour", "rev"})
"""Columns that readers of the hourly table take from its folders, and the Spark sink names them by."""
# Apache Iceberg's own, and those that tables in its format will have: nobody shall have to rename twice.
_ICEBERG_NAMES = {
    "_time",
    "_topic_partition",
    "_load",
    "_file",
    "_pos",
    "_deleted",
    "_spec_id",
    "_row_id",
    "_last_updated_sequence_number",
    "_change_type",
    "_change_ordinal",
    "_commit_snapshot_id",
}
OUR_NAMES = frozenset({*FOLDER_NAMES, *_ICEBERG_NAMES, *(field.name for field in META_FIELDS)})
"""Names that no field of a table's schema may have."""


def check_table_schema(schema: Mapping[str, Any]) -> Record:
    """The schema as a record whose fields can be columns of a new table; SchemaError says why not."""
    table = parse(schema)
    fields = arrow_fields(table)
    assert isinstance(table, Record)
    check_names(fields, OUR_NAMES)
    _check_case(pa.struct(fields), "")
    return table


def check_names(fields: Collection[pa.Field], ours: Collection[str]) -> None:
    for field in fields:
        if field.name.casefold() in ours:
            raise SchemaError(f"its field {field.name} has the name of one of Millrace's columns")


def same_but_case(names: Collection[str]) -> tuple[str, str] | None:
    """Two names that differ in case only, if there are any."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.casefold(), name)) != name:
            return other, name
    return None


def _check_case(type_: pa.DataType, path: str) -> None:
    """SchemaError for two fields of one record that differ in case only, at any depth."""
    inner = [type_.field(index) for index in range(type_.num_fields)]
    if pa.types.is_struct(type_) and (pair := same_but_case([field.name for field in inner])):
        raise SchemaError(f"its fields {path}{pair[0]} and {path}{pair[1]} differ in case only")
    for field in inner:
        _check_case(field.type, f"{path}{field.name}." if pa.types.is_struct(type_) else path)

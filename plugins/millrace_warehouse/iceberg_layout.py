"""A table's layout as Apache Iceberg has it: the partition spec and the sort order of a schema's columns.

The hour is the first partition of every table, because hours are what is proven and published. Knows neither
topics nor tables: `publish.layouts` finds or adds the specs and orders of a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import HourTransform, IdentityTransform, Transform, parse_transform
from pyiceberg.types import DoubleType, FloatType, IcebergType, NestedField, PrimitiveType, StructType

from millrace.errors import ConfigError
from millrace_warehouse.columns import PARTITION, TIME
from millrace_warehouse.table_layout import NO_LAYOUT, PartitionTerm, TableLayout

FIRST_PARTITION_ID = 1000
SORTED = 1
"""Sort order id of sorted files in the entries of a load. A publication replaces it by the table's own id."""


def partition_spec(schema: Schema, layout: TableLayout = NO_LAYOUT) -> PartitionSpec:
    """Return the partitions of a table: the hour of `_time`, null for UNFILED rows, then its layout's."""
    hour = _partition(schema, PartitionTerm("hour", TIME.name), PARTITION)
    others = [_partition(schema, term, _name(term)) for term in layout.partition]
    numbered = enumerate((hour, *others), FIRST_PARTITION_ID)
    return PartitionSpec(*(field.model_copy(update={"field_id": number}) for number, field in numbered))


def _partition(schema: Schema, term: PartitionTerm, name: str) -> PartitionField:
    source = find_column(schema, term.column)
    return PartitionField(source.field_id, FIRST_PARTITION_ID, parse_transform(term.transform), name)


def _name(term: PartitionTerm) -> str:
    """Return the partition's name, by the rule of Spark. Manifests are Avro, where names have no dots."""
    name, _, width = term.transform.rstrip("]").partition("[")
    kind = {"identity": "", "truncate": "trunc"}.get(name, name)
    return "_".join(part for part in (term.column.replace(".", "_"), kind, width) if part)


def sort_order(schema: Schema, layout: TableLayout) -> SortOrder:
    """Return the sort order of a table with this layout."""
    if not layout.sort:
        return UNSORTED_SORT_ORDER
    fields = (
        SortField(
            find_column(schema, term.column).field_id,
            IdentityTransform(),
            SortDirection.DESC if term.descending else SortDirection.ASC,
            NullOrder.NULLS_FIRST if term.nulls_first else NullOrder.NULLS_LAST,
        )
        for term in layout.sort
    )
    return SortOrder(*fields, order_id=SORTED)


def partition_types(schema: Schema, layout: TableLayout) -> list[PrimitiveType]:
    """Return the types of the partition values besides the hour."""
    types = (transform_of(term).result_type(type_of(schema, term)) for term in layout.partition)
    return [type_ for type_ in types if isinstance(type_, PrimitiveType)]


def transform_of(term: PartitionTerm) -> Transform[object, object]:
    return parse_transform(term.transform)


def type_of(schema: Schema, term: PartitionTerm) -> IcebergType:
    return find_column(schema, term.column).field_type


def find_column(schema: Schema, column: str) -> NestedField:
    """Return a column, or a field inside structs after dots. Raise ConfigError if the schema has none."""
    fields: Iterable[NestedField] = schema.fields
    found = None
    for name in column.split("."):
        found = next((field for field in fields if field.name == name), None)
        if found is None:
            break
        fields = found.field_type.fields if isinstance(found.field_type, StructType) else ()
    if found is None:
        names = ", ".join(field.name for field in schema.fields)
        raise ConfigError(f"there is no column {column}; the columns are {names}")
    return found


def check_layout(layout: TableLayout, schema: Schema) -> None:
    """Raise ConfigError unless a table with these columns can have this layout."""
    for problem in _problems(layout, schema):
        raise ConfigError(problem)


def _problems(layout: TableLayout, schema: Schema) -> Iterator[str]:
    names = {field.name.casefold(): field.name for field in schema.fields}
    for term in layout.partition:
        type_, transform = type_of(schema, term), transform_of(term)
        if isinstance(type_, FloatType | DoubleType) or not transform.can_transform(type_):
            yield f"partition {term} is impossible: {term.column} is {type_}"
        if term.column == TIME.name and transform.dedup_name == HourTransform().dedup_name:
            yield f"partition {term} is not needed: the hour of {TIME.name} is a table's first partition"
        name = _name(term)
        if (same := names.get(name.casefold())) is not None and same != term.column:
            yield f"partition {term} would have the name of column {same}: choose another transform"
    for sort in layout.sort:
        if not isinstance(type_ := find_column(schema, sort.column).field_type, PrimitiveType):
            yield f"sort {sort.column} is impossible: its type is {type_}"
    partitions = [_name(term).casefold() for term in layout.partition]
    for number, name in enumerate(partitions):
        if name in partitions[:number]:
            yield f"two partitions would have the name {name}: choose another transform for one of them"
    times = [(term.column, transform_of(term).dedup_name) for term in layout.partition]
    for number, (column, kind) in enumerate(times):
        if kind == HourTransform().dedup_name and (column, kind) in times[:number]:
            yield f"partition names two times of {column}: keep the finer one"

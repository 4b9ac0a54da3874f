"""Proof of a table's layout: each file has rows of its partition alone, in the order that its entry states.

An engine skips a file by its partition. A row in the file of another partition is there, and a query for it
does not find it. Reads the columns of the layout in every file of the table's head.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.transforms import IdentityTransform

from millrace_warehouse.arranging import Arranger
from millrace_warehouse.iceberg_layout import partition_types
from millrace_warehouse.projection import project
from millrace_warehouse.publish.contents import hour_of_file
from millrace_warehouse.table_layout import PartitionTerm, SortTerm, TableLayout
from millrace_warehouse.verify.check import Check
from millrace_warehouse.verify.table import Head


def check_layouts(check: Check, head: Head) -> None:
    """Report rows that lie in the file of another partition, and files that are not sorted as they state."""
    for file in head.files:
        if layout := _layout_of(head.table, file):
            check.progress(file.file_path)
            with suppress(pa.ArrowException, OSError):  # reported where its rows are counted
                _check(check, head.table, file, layout)


def _layout_of(table: Table, file: DataFile) -> TableLayout:
    """Return the partitions and the order of a file, as far as they are of Millrace's kinds."""
    schema, spec = table.schema(), table.specs()[file.spec_id]
    order = table.metadata.sort_order_by_id(file.sort_order_id or 0)
    sort = [_sort_term(schema, field) for field in (order.fields if order is not None else ())]
    terms = (
        PartitionTerm(str(field.transform), schema.find_column_name(field.source_id) or "")
        for field in spec.fields[1:]
    )
    return TableLayout(tuple(terms), tuple(term for term in sort if term) if all(sort) else ())


def _sort_term(schema: Schema, field: SortField) -> SortTerm | None:
    column = schema.find_column_name(field.source_id)
    if column is None or not isinstance(field.transform, IdentityTransform):
        return None
    descending = field.direction == SortDirection.DESC
    return SortTerm(column, descending, field.null_order == NullOrder.NULLS_FIRST)


def _check(check: Check, table: Table, file: DataFile, layout: TableLayout) -> None:
    hour, rows = hour_of_file(table, file), _columns(table, file, layout)
    types = partition_types(table.schema(), layout)
    stated = tuple(
        None if value is None else to_bytes(type_, value).hex()
        for type_, value in ((type_, file.partition[at]) for at, type_ in enumerate(types, 1))
    )
    if not len(rows):
        return
    parts = Arranger(replace(layout, sort=()), table.schema()).parts(rows)
    if foreign := [part for part in parts if part.values != stated]:
        others = sum(len(part.indices) for part in foreign)
        check.problem(
            f"{file.file_path} has {others} rows of other partitions than {file.partition}: a query by"
            f" partition does not find them; run `millrace publish {check.topic} --rebuild`",
            hour=hour,
        )
    (whole,) = Arranger(replace(layout, partition=()), table.schema()).parts(rows)
    if not np.array_equal(whole.indices, np.arange(len(rows))):
        check.problem(f"{file.file_path} is not sorted as its sort order states", hour=hour)


def _columns(table: Table, file: DataFile, layout: TableLayout) -> pa.Table:
    """Return the columns of a layout in a file, as the table has them."""
    columns = [*(term.column for term in layout.partition), *(term.column for term in layout.sort)]
    named = dict.fromkeys(column.partition(".")[0] for column in columns)
    wanted = Schema(*(table.schema().find_field(name) for name in named))
    arrow = schema_to_pyarrow(wanted)
    with table.io.new_input(file.file_path).open() as content, pq.ParquetFile(content) as parquet:
        held = pyarrow_to_schema(parquet.schema_arrow, table.name_mapping(), downcast_ns_timestamp_to_us=True)
        ids = {field.field_id for field in wanted.fields}
        mine = Schema(*(field for field in held.fields if field.field_id in ids))
        batches = parquet.iter_batches(columns=[field.name for field in mine.fields])
        projected = [
            project(batch.select([field.name for field in mine.fields]), mine, wanted, arrow)
            for batch in batches
        ]
    return pa.Table.from_batches(projected, arrow)

"""Layouts of history in a table: each is one of the table's partition specs, and one of its sort orders.

A file keeps the spec and the order with which it was written, so a table holds files of several layouts. A
publication adds the specs and orders of its files that the table lacks. Compares specs and orders by their
fields, because another program may have taken an id. Changes no table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

from millrace_warehouse.history.layout import Topic
from millrace_warehouse.history.schemas import TableSchema, read_schema
from millrace_warehouse.iceberg_layout import FIRST_PARTITION_ID, partition_spec, sort_order

_SORT_ORDER = 15
"""Position of the sort order's id in a data file's entry, which pyiceberg only reads."""


@dataclass(frozen=True, slots=True)
class LayoutIds:
    """A table's ids of a layout."""

    spec_id: int
    order_id: int

    def mark(self, file: DataFile) -> DataFile:
        """Return the entry of a file of this layout with the table's ids."""
        file.spec_id = self.spec_id
        file[_SORT_ORDER] = self.order_id or None
        return file


class TableLayouts:
    """The specs and orders of a table, with those that its next commit adds."""

    def __init__(self, topic: Topic, metadata: TableMetadata | None) -> None:
        """Without metadata, the table is the one that a publication creates: with hours alone."""
        self._topic = topic
        self.new_specs: list[PartitionSpec] = []
        self.new_orders: list[SortOrder] = []
        self._last_id = FIRST_PARTITION_ID
        if metadata is None:
            self._specs, self._orders = [partition_spec(read_schema(topic, 1).schema)], [UNSORTED_SORT_ORDER]
        else:
            self._specs, self._orders = [*metadata.partition_specs], [*metadata.sort_orders]
            self._last_id = metadata.last_partition_id or FIRST_PARTITION_ID
        self._known: dict[int, LayoutIds] = {}

    def ids(self, number: int) -> LayoutIds:
        """Return the ids of the layout of a schema, by the schema's number."""
        if number not in self._known:
            schema = read_schema(self._topic, number)
            self._known[number] = LayoutIds(self._spec(schema), self._order(schema))
        return self._known[number]

    def adopted(self, file: DataFile, old: TableMetadata) -> DataFile | None:
        """Return the entry of an old table's file for this table; None if this table has no such spec."""
        had = _partitions(old.specs()[file.spec_id])
        for spec in (*self._specs, *self.new_specs):
            if _partitions(spec) == had:
                order = old.sort_order_by_id(file.sort_order_id or 0)
                same = (each.order_id for each in self._orders if order and each.fields == order.fields)
                return LayoutIds(spec.spec_id, next(same, 0)).mark(file)
        return None

    def _spec(self, schema: TableSchema) -> int:
        wanted = partition_spec(schema.schema, schema.layout)
        for spec in self._specs:
            if _partitions(spec) == _partitions(wanted):
                return spec.spec_id
        number = max((spec.spec_id for spec in self._specs), default=-1) + 1
        spec = PartitionSpec(*map(self._numbered, wanted.fields), spec_id=number)
        self._specs.append(spec)
        self.new_specs.append(spec)
        return number

    def _numbered(self, field: PartitionField) -> PartitionField:
        """Return a field with the id that an equal field of another spec has, else with the next id."""
        had = [each for spec in self._specs for each in spec.fields if _partition(each) == _partition(field)]
        self._last_id += not had
        return field.model_copy(update={"field_id": had[0].field_id if had else self._last_id})

    def _order(self, schema: TableSchema) -> int:
        wanted = sort_order(schema.schema, schema.layout)
        for order in self._orders:
            if order.fields == wanted.fields:
                return order.order_id
        number = max((order.order_id for order in self._orders), default=0) + 1
        order = wanted.model_copy(update={"order_id": number})
        self._orders.append(order)
        self.new_orders.append(order)
        return number


def is_partitioned_by(spec: PartitionSpec, schema: TableSchema) -> bool:
    """Return True if a table's spec is that of a schema's layout."""
    return _partitions(spec) == _partitions(partition_spec(schema.schema, schema.layout))


def _partitions(spec: PartitionSpec) -> Sequence[tuple[int, str]]:
    return [_partition(field) for field in spec.fields]


def _partition(field: PartitionField) -> tuple[int, str]:
    return field.source_id, str(field.transform)


def sorted_columns(metadata: TableMetadata, schema: Schema, order_id: int | None) -> list[str]:
    """Return the names of the columns by which a file with this sort order is sorted."""
    order = metadata.sort_order_by_id(order_id or 0)
    names = (schema.find_column_name(field.source_id) for field in (order.fields if order else ()))
    return [name for name in names if name is not None]

"""The schemas of a table: the first load pins one, and only a promotion adds another.

    <topic>/schema/<4 digits>.json     the columns from then on, created exclusively, never changed

A load decodes with the newest schema, and its manifest names the schema's number. A schema's file holds the
Iceberg schema with the columns' ids, which are the same in our files and in the table. Older files stay as
they are: a column that they lack is null, and a promoted number is widened when it is read. So a promotion is
refused unless the new schema can read the messages of the old one, and Iceberg allows every change of type.
Handles schemas, storage and the registry; does not use Spark.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pydantic import ValidationError
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema, assign_fresh_schema_ids

from millrace.errors import ConfigError, MillraceError
from millrace_avro.schema import Array, Enum, Fixed, Map, Node, Record, SchemaError, Union
from millrace_registry.client import SchemaRegistryClient, UnknownSchema
from millrace_registry.subjects import Subjects
from millrace_warehouse.columns import OWN_FIELDS, check_pinned, check_table_schema
from millrace_warehouse.history import iceberg_types, layout
from millrace_warehouse.history.manifest import FORMAT, decode, encode, now
from millrace_warehouse.iceberg_layout import check_layout
from millrace_warehouse.log.formats import (
    AVRO,
    AVRO_MESSAGES,
    PLAIN_SCHEMAS,
    UNFRAMED,
    MessageFormat,
    check_format,
)
from millrace_warehouse.log.messages import Lookup, body_decoder
from millrace_warehouse.option_values import user_at_machine
from millrace_warehouse.table_layout import NO_LAYOUT, TableLayout

NO_SCHEMA = 0
"""Schema id of a format without a schema in a registry."""
FIRST_REASON = "the newest registered one when the first load began"
OWN_COLUMNS_REASON = "columns that Millrace has added since the schema before it"
_WIDER = frozenset({(iceberg.IntegerType, iceberg.LongType), (iceberg.FloatType, iceberg.DoubleType)})


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """One schema that a table has had: `schema/<4 digits>.json`."""

    topic: str
    number: int
    """1 for the schema that the first load pinned, one more for each promotion."""
    schema_id: int
    """Id of the Avro schema in the registry; 0 for a format without a schema there."""
    iceberg: Mapping[str, Any]
    """The Iceberg schema as JSON, with field ids."""
    last_column_id: int
    """The highest field id that any schema of the table has had."""
    created: str
    by: str
    """user@machine."""
    reason: str
    previous_schema_id: int | None
    message_format: str = AVRO
    """Format of the topic's messages, which the first load pins."""
    time_field: str = ""
    """Field with the time of an event without an audit header; empty for the record's time."""
    partition: Sequence[str] = ()
    """Partitions of the files besides the hour, as `TableLayout` reads them."""
    sort: Sequence[str] = ()
    """Order of the rows in the files, as `TableLayout` reads it."""
    format: int = FORMAT

    @property
    def schema(self) -> Schema:
        return Schema.model_validate(self.iceberg)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of a Parquet file of the table, with field ids."""
        return iceberg_types.arrow_schema(self.schema)

    @property
    def messages(self) -> MessageFormat:
        return MessageFormat(self.message_format, self.time_field)

    @property
    def layout(self) -> TableLayout:
        return TableLayout.parse(self.partition, self.sort)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteResult:
    """Result of a promotion; the command prints its fields."""

    topic: str
    schema_id: int
    record: TableSchema | None
    """The new schema; None when the table already had it."""
    changes: Sequence[str]


def read_schema(topic: layout.Topic, number: int) -> TableSchema:
    """Return one schema of the table. Raise MillraceError when it is missing or cannot be read."""
    path = layout.schema_path(topic.name, number)
    try:
        table_schema = decode(TableSchema, topic.storage.read(path), path)
        check_layout(table_schema.layout, table_schema.schema)
    except FileNotFoundError:
        raise MillraceError(f"{path} is missing, and rows have its columns: restore it from a copy") from None
    except ValidationError:
        raise MillraceError(
            f"{path} does not hold an Iceberg schema: it was edited, restore it from a copy"
        ) from None
    except ConfigError as error:
        raise MillraceError(f"{path} was edited, restore it from a copy: {error}") from None
    return table_schema


def check_follows(table_schema: TableSchema, before: TableSchema | None) -> list[str]:
    """Return every way in which a schema does not follow its predecessor, one line each."""
    schema, ids = table_schema.schema, iceberg_types.ids_by_name(table_schema.schema)
    if before is None:
        kept, new_ids, last = iceberg_types.ids_by_name(assign_fresh_schema_ids(schema)), set[int](), 0
    else:
        kept, last = iceberg_types.ids_by_name(before.schema), before.last_column_id
        new_ids = {number for name, number in ids.items() if name not in kept}
    problems = [
        f"column {name} has id {ids[name]}, but in the files its id is {kept[name]}"
        for name in ids
        if name in kept and ids[name] != kept[name]
    ]
    problems += [
        f"a new column has id {number}, which an earlier column had" for number in new_ids if number <= last
    ]
    if table_schema.last_column_id != max(last, *ids.values()):
        problems.append(
            f"its last column id is {table_schema.last_column_id}, not {max(last, *ids.values())}"
        )
    if table_schema.previous_schema_id != (before and before.schema_id):
        problems.append(
            f"it follows schema {table_schema.previous_schema_id}, but the schema before it is not that one"
        )
    if before is not None and table_schema.messages != before.messages:
        problems.append("it has another format or time field than the schema before it")
    return problems


def schema_numbers(topic: layout.Topic) -> list[int]:
    return layout.numbers_in(topic.storage, layout.Folder.SCHEMA.path(topic.name), digits=4)


def all_schemas(topic: layout.Topic) -> list[TableSchema]:
    """Return every schema that the table has had, in order.

    Raise MillraceError when a schema is missing or cannot be read.
    """
    numbers = schema_numbers(topic)
    return [read_schema(topic, number) for number in range(1, max(numbers, default=0) + 1)]


def pinned(topic: layout.Topic, used: int = 0) -> TableSchema | None:
    """Return the newest schema, with which the next load decodes, or None before the first load.

    `used` is the number that a load names. Raise MillraceError when that schema is missing: no load falls
    back to an older schema.
    """
    newest = max([used, *schema_numbers(topic)])
    return read_schema(topic, newest) if newest else None


def first_schema(
    topic: layout.Topic, schema_id: int, schema: Mapping[str, Any], messages: MessageFormat = AVRO_MESSAGES
) -> TableSchema:
    """Return the table's first schema, not recorded yet: the first load records it once its rows are written.

    Raise MillraceError if a table may not have the schema, or messages of the format cannot fill its columns.
    """
    table = check_pinned(topic.name, schema_id, schema)
    _check_format(topic.name, schema_id, messages, table)
    columns = iceberg_types.iceberg_schema(table)
    return _next_schema(topic, None, schema_id, columns, FIRST_REASON, messages, NO_LAYOUT)


def plain_schema(topic: layout.Topic, messages: MessageFormat) -> TableSchema:
    """Return the first schema of a format whose columns come from no registry, as `first_schema` does."""
    return first_schema(topic, NO_SCHEMA, PLAIN_SCHEMAS[messages.name], messages)


def pin(topic: layout.Topic, table_schema: TableSchema) -> bool:
    """Store a schema as the table's. Return False when another run has stored another one of its number."""
    if topic.storage.create(layout.schema_path(topic.name, table_schema.number), encode(table_schema)):
        return True
    return read_schema(topic, table_schema.number) == table_schema


def check_same_format(table_schema: TableSchema, messages: MessageFormat) -> None:
    """Raise MillraceError if a load is told another format or time than the topic's first load.

    Empty values were not told.
    """
    for what, told, held in (
        ("format", messages.name, table_schema.message_format),
        ("time", messages.time, table_schema.time_field or "the record's time"),
    ):
        if told and told != held:
            raise MillraceError(
                f"{table_schema.topic} cannot be loaded with {what} = {told!r}: its first load has pinned"
                f" {held!r}; take {what} out of the topic's policy and of the command, or load into a new"
                " warehouse"
            )


def _check_format(topic: str, schema_id: int, messages: MessageFormat, table: Record) -> None:
    try:
        check_format(messages, table)
    except SchemaError as error:
        raise MillraceError(
            f"{topic} cannot be loaded as {messages.name} with schema {schema_id}: {error}; correct the"
            " schema or the topic's policy, then load again"
        ) from None


def _next_schema(
    topic: layout.Topic,
    before: TableSchema | None,
    schema_id: int,
    columns: Schema,
    reason: str,
    messages: MessageFormat,
    table_layout: TableLayout,
) -> TableSchema:
    """Return the schema that follows `before`, not stored yet."""
    return TableSchema(
        topic=topic.name,
        number=1 if before is None else before.number + 1,
        schema_id=schema_id,
        iceberg=columns.model_dump(mode="json"),
        last_column_id=max(0 if before is None else before.last_column_id, columns.highest_field_id),
        created=now(),
        by=user_at_machine(),
        reason=reason,
        previous_schema_id=None if before is None else before.schema_id,
        message_format=messages.name,
        time_field=messages.time,
        partition=tuple(map(str, table_layout.partition)),
        sort=tuple(map(str, table_layout.sort)),
    )


def avro_schema(table_schema: TableSchema, lookup: Lookup) -> Mapping[str, Any]:
    """Return the registry's Avro schema of a table schema. Raise MillraceError when their columns differ.

    Another registry may have another schema under the same id, and its rows would not fit the table. A schema
    of an earlier version may lack columns of Millrace.
    """
    if table_schema.message_format in PLAIN_SCHEMAS:
        return PLAIN_SCHEMAS[table_schema.message_format]
    schema = _look_up_schema(lookup, table_schema.schema_id)
    table = check_pinned(table_schema.topic, table_schema.schema_id, schema)
    columns = iceberg_types.evolved(table_schema.schema, table_schema.last_column_id, table)
    lacking = _lacking_own(table_schema)
    columns = Schema(*(field for field in columns.fields if field.name not in lacking))
    if not table_schema.arrow_schema.equals(iceberg_types.arrow_schema(columns), check_metadata=True):
        raise MillraceError(
            f"the registry's schema {table_schema.schema_id} does not have the columns of"
            f" {layout.schema_path(table_schema.topic, table_schema.number)}: name the registry that the"
            f" loads of {table_schema.topic} used"
        )
    return schema


def _lacking_own(table_schema: TableSchema) -> set[str]:
    """Return the names of Millrace's columns that a schema of an earlier version lacks."""
    return {field.name for field in OWN_FIELDS} - {field.name for field in table_schema.schema.fields}


def with_own_columns(topic: layout.Topic, table_schema: TableSchema, lookup: Lookup) -> TableSchema:
    """Return the newest schema if it has all of Millrace's columns; else record and return the next one.

    A load writes all these columns, and a schema of an earlier version may lack some.
    """
    while _lacking_own(table_schema):
        schema_id, before = table_schema.schema_id, table_schema
        table = check_pinned(topic.name, schema_id, avro_schema(before, lookup))
        columns = iceberg_types.evolved(before.schema, before.last_column_id, table)
        table_schema = _next_schema(
            topic, before, schema_id, columns, OWN_COLUMNS_REASON, before.messages, before.layout
        )
        if not pin(topic, table_schema):
            table_schema = read_schema(topic, table_schema.number)
    return table_schema


def with_layout(
    topic: layout.Topic,
    table_schema: TableSchema,
    partition: Sequence[str] | None,
    sort: Sequence[str] | None,
    *,
    is_first: bool = False,
) -> TableSchema:
    """Return the newest schema if it has this layout; else store and return the next one. None keeps a part.

    A first schema, which is not stored yet, gets the layout itself.

    Raise MillraceError if a table with these columns cannot have the layout.
    """
    while True:
        before = table_schema
        try:
            asked = before.layout.changed(partition, sort)
            check_layout(asked, before.schema)
        except ConfigError as error:
            raise MillraceError(
                f"{topic} cannot have the table layout that its policy asks for: {error}. Correct the policy,"
                " then load again."
            ) from None
        if asked == before.layout:
            return before
        if is_first:
            partitions, sorts = tuple(map(str, asked.partition)), tuple(map(str, asked.sort))
            return replace(before, partition=partitions, sort=sorts)
        reason = f"the layout of the topic's policy: {asked}"
        table_schema = _next_schema(
            topic, before, before.schema_id, before.schema, reason, before.messages, asked
        )
        if not pin(topic, table_schema):
            table_schema = read_schema(topic, table_schema.number)


def promote_registered(
    topic: layout.Topic,
    registry: SchemaRegistryClient,
    subjects: Subjects,
    schema_id: int | None,
    reason: str,
) -> PromoteResult:
    """Promote the table to `schema_id` or the newest schema, registered under the topic's subject."""
    now = pinned(topic)
    if now is not None and now.message_format in (UNFRAMED, *PLAIN_SCHEMAS):
        raise MillraceError(
            f"{topic} cannot be promoted: the columns of format {now.message_format!r} never change; load it"
            " into a new warehouse"
        )
    subject = subjects.of_messages(topic.name, lambda: [] if now is None else [now.schema_id], registry)
    try:
        if schema_id is None:
            schema_id = registry.latest(subject).schema_id
        elif registry.lookup(subject, registry.schema(schema_id)) is None:
            raise UnknownSchema
    except UnknownSchema:
        what = "no schema" if schema_id is None else f"no schema {schema_id}"
        raise MillraceError(
            f"{what} is registered for subject {subject!r} at {registry.url}: register it with"
            f" `millrace schemas apply`, or name another with --subject {topic}=SUBJECT, then promote again"
        ) from None
    return promote(topic, schema_id, reason, registry.find_schema)


def promote(topic: layout.Topic, schema_id: int, reason: str, lookup: Lookup) -> PromoteResult:
    """Make later loads decode with this schema, unless it is the table's schema already.

    Raise MillraceError when the schema cannot read old messages or files, or when another promotion was made
    at the same moment.
    """
    newest = layout.require_load(topic)
    # Read before any comparison: a promotion made in between then takes the next number.
    before = pinned(topic, newest.schema)
    assert before is not None
    if before.schema_id == schema_id:
        return PromoteResult(topic=topic.name, schema_id=schema_id, record=None, changes=[])
    old, new = avro_schema(before, lookup), _look_up_schema(lookup, schema_id)
    table = check_promotion(topic.name, (before.schema_id, old), (schema_id, new))
    _check_format(topic.name, schema_id, before.messages, table)
    columns = iceberg_types.evolved(before.schema, before.last_column_id, table)
    _check_layouts(topic, before, columns)
    table_schema = _next_schema(topic, before, schema_id, columns, reason, before.messages, before.layout)
    if not pin(topic, table_schema):
        raise MillraceError(
            f"this promotion of {topic} was not recorded, because another one was recorded at the same time."
            f" See `millrace promote {topic} --list`, then promote again if it is still needed"
        )
    changes = _changes(before.schema, columns)
    return PromoteResult(topic=topic.name, schema_id=schema_id, record=table_schema, changes=changes)


def _check_layouts(topic: layout.Topic, newest: TableSchema, columns: Schema) -> None:
    """Raise MillraceError if a promotion drops or changes a column by which files are, or were, laid out."""
    for each in range(1, newest.number + 1):
        had = read_schema(topic, each).layout
        if each < newest.number:
            had = TableLayout(had.partition)  # a table keeps its partitions; only its newest order is in use
        try:
            check_layout(had, columns)
        except ConfigError as error:
            raise MillraceError(
                f"{topic} cannot be promoted: {error}, and files of the table are laid out by it; keep the"
                " column, or load into a new warehouse"
            ) from None


def _look_up_schema(lookup: Lookup, schema_id: int) -> Mapping[str, Any]:
    schema = lookup(schema_id)
    if schema is None:
        raise MillraceError(
            f"the registry has no schema {schema_id}: give the registry that the table was loaded with, and"
            " the id of a registered schema"
        )
    return schema


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One schema that a table has had, for the printed history."""

    number: int
    schema_id: int
    first_load: int | None
    """The first load with this schema; None if no load has it yet."""
    created: str
    by: str
    reason: str


def history(topic: layout.Topic) -> list[HistoryEntry]:
    newest = layout.require_load(topic)
    # Loads keep the order of the schemas, so a binary search reads few manifests for each of them.
    loads = range(1, newest.load + 1)

    def schema_of(load: int) -> int:
        return layout.read_load(topic, load).schema

    def first_load(number: int) -> int | None:
        load = bisect.bisect_left(loads, number, key=schema_of)
        return loads[load] if load < len(loads) and schema_of(loads[load]) == number else None

    return [
        HistoryEntry(r.number, r.schema_id, first_load(r.number), r.created, r.by, r.reason)
        for r in all_schemas(topic)
    ]


def check_promotion(
    topic: str, old: tuple[int, Mapping[str, Any]], new: tuple[int, Mapping[str, Any]]
) -> Record:
    """Return the new table's columns. `old` and `new` are pairs of an id and a schema.

    Raise MillraceError unless a table of schema `old` can become a table of schema `new`.
    """
    where = f"{topic} cannot be promoted from schema {old[0]} to {new[0]}"
    before = check_table_schema(old[1])
    try:
        table = check_table_schema(new[1])
    except SchemaError as error:
        raise MillraceError(
            f"{where}: {error}; correct the schema, register it, then promote again"
        ) from None
    try:
        body_decoder(before, table)
    except SchemaError as error:
        raise MillraceError(
            f"{where}, which cannot read messages of schema {old[0]}: {error}; give new fields a default, or"
            " load into a new warehouse"
        ) from None
    old_columns, new_columns = map(iceberg_types.iceberg_schema, (before, table))
    if refused := _not_promoted(old_columns.as_struct(), new_columns.as_struct(), ""):
        raise MillraceError(
            f"{where}: column {refused}, which cannot be read from existing files; load into a new warehouse"
        )
    if lost := _lost(before, table, ""):
        raise MillraceError(f"{where}: {lost}, or load into a new warehouse")
    return table


def _not_promoted(old: iceberg.IcebergType, new: iceberg.IcebergType, path: str) -> str:
    """Return the first column whose change of type Iceberg refuses, with both types, or empty."""
    if old == new or _is_wider(old, new):
        return ""
    if isinstance(old, iceberg.StructType) and isinstance(new, iceberg.StructType):
        before = {field.name: field.field_type for field in old.fields}
        refused = (
            _not_promoted(before[field.name], field.field_type, f"{path}{field.name}.")
            for field in new.fields
            if field.name in before
        )
        return next(filter(None, refused), "")
    if isinstance(old, iceberg.ListType) and isinstance(new, iceberg.ListType):
        return _not_promoted(old.element_type, new.element_type, path)
    if isinstance(old, iceberg.MapType) and isinstance(new, iceberg.MapType):
        return _not_promoted(old.value_type, new.value_type, path)
    return f"{path.rstrip('.')} would change from {old} to {new}"


def _is_wider(old: iceberg.IcebergType, new: iceberg.IcebergType) -> bool:
    """Return True for a widening that Iceberg allows; pyiceberg's `promote` also takes text for bytes."""
    if isinstance(old, iceberg.DecimalType) and isinstance(new, iceberg.DecimalType):
        return old.scale == new.scale and old.precision <= new.precision
    return (type(old), type(new)) in _WIDER


def _lost(old: Node, new: Node, path: str) -> str:
    """Return the first change that would lose a value of existing rows, with advice; empty if there is none.

    A column is found by its name. So a renamed field is a different column, and so is a member of a union
    whose position changed. Expects types that `_not_promoted` accepts.
    """
    match _only(old), _only(new):
        case Record() as old, Record() as new:
            before = {field.name: field.type for field in old.fields}
            for field in new.fields:
                if field.name not in before and (renamed := before.keys() & set(field.aliases)):
                    return (
                        f"it renames column {path}{min(renamed)} to {path}{field.name}, and existing rows"
                        " would lose the column's values; keep the old name"
                    )
            pairs = [(before[f.name], f.type, f"{path}{f.name}.") for f in new.fields if f.name in before]
        case Union() as old, Union() as new:
            both = zip(old.members, new.members, strict=False)
            members = [(*pair, f"{path}member{n}") for n, pair in enumerate(both)]
            for was, becomes, member in members:
                if _names(was)[0] not in _names(becomes):
                    return (
                        f"{member} is {_names(was)[0]} of a union and would be {_names(becomes)[0]}, so"
                        " existing rows would lose its values; add new types after the union's present types"
                    )
            pairs = [(was, becomes, f"{member}.") for was, becomes, member in members]
        case (Union(), _) | (_, Union()):
            column = path.rstrip(".")
            return (
                f"column {column} is a union in only one of the schemas, so existing rows would lose its"
                " values; keep its type and add a field"
            )
        case Array() as old, Array() as new:
            pairs = [(old.items, new.items, path)]
        case Map() as old, Map() as new:
            pairs = [(old.values, new.values, path)]
        case _:
            pairs = []
    return next(filter(None, (_lost(*pair) for pair in pairs)), "")


def _names(node: Node) -> Sequence[str]:
    """Return a type's name and aliases, by which an earlier schema may know it; one empty name without."""
    return (node.name, *node.aliases) if isinstance(node, Record | Enum | Fixed) else ("",)


def _only(node: Node) -> Node:
    """Return the type inside an optional type, or any other type itself."""
    return node.members[0] if isinstance(node, Union) and node.is_optional and node.members else node


def _changes(old: Schema, new: Schema) -> list[str]:
    before = {field.name: field.field_type for field in old.fields}
    after = {field.name: field.field_type for field in new.fields}
    gained = [f"new column {name}: null in rows loaded before" for name in after if name not in before]
    lost = [f"column {name} is not in new rows" for name in before if name not in after]
    wider = [
        f"column {name} is {type_} from now on, it was {before[name]}"
        for name, type_ in after.items()
        if isinstance(type_, iceberg.PrimitiveType) and before.get(name, type_) != type_
    ]
    return gained + lost + wider


def dropped_fields(table: Mapping[str, Any], writer_ids: Iterable[int], lookup: Lookup) -> dict[str, int]:
    """Map each field that messages have and the table lacks to the newest writer schema with it."""
    columns = set(_field_names(table)) | {a for field in table["fields"] for a in field.get("aliases", ())}
    dropped: dict[str, int] = {}
    for schema_id in sorted(writer_ids):
        writer = lookup(schema_id)
        for name in _field_names(writer) if writer is not None else ():
            if name not in columns:
                dropped[name] = schema_id
    return dropped


def _field_names(schema: Mapping[str, Any]) -> list[str]:
    return [field["name"] for field in schema["fields"]]

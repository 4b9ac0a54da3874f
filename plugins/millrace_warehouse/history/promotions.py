"""A table's one schema: pinned by its first load, changed only by a promotion that is itself recorded.

    <topic>/_promotions/<4 digits>.json     one promotion, created exclusively, never changed

A load decodes with the newest promotion's schema, or without one with that of the newest load. Older files
stay as they are: a column they lack is null there, and a number that was promoted is widened when it is read.
So a promotion is refused unless the new schema can read the messages of the old one and every reader can
read the old files with the new columns. Knows schemas, folders and the registry; no Spark.
"""

from __future__ import annotations

import bisect
import getpass
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from millrace.errors import MillraceError
from millrace_avro.schema import Record, SchemaError, arrow_fields, parse
from millrace_registry.client import SchemaRegistryClient, UnknownSchema
from millrace_warehouse.columns import check_table_schema
from millrace_warehouse.history.layout import read_load
from millrace_warehouse.history.ledger import newest_load
from millrace_warehouse.history.manifest import FORMAT, LoadManifest, decode, encode, now
from millrace_warehouse.log.messages import body_decoder
from millrace_warehouse.storage.filesystem import Filesystem

PROMOTIONS = "_promotions"
WIDENED = frozenset({(pa.int32(), pa.int64()), (pa.int32(), pa.float64()), (pa.float32(), pa.float64())})
"""Column types that Spark, pyarrow and what is built on it read from a file of the narrower one (tried)."""

Lookup = Callable[[int], Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promotion:
    """One change of a table's schema."""

    topic: str
    number: int
    schema_id: int
    previous_schema_id: int
    created: str
    by: str
    """user@machine."""
    reason: str
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class PinnedId:
    """The schema id of a table, and the promotion that says so; None for the first load's own choice."""

    schema_id: int
    promotion: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteResult:
    """What a promotion did, for people and for scripts."""

    topic: str
    schema_id: int
    promotion: Promotion | None
    """None when it was the table's schema already."""
    changes: Sequence[str]


def promotions(fs: Filesystem, topic: str) -> list[Promotion]:
    """Every promotion of a table, in order; MillraceError when one cannot be read."""
    folder = f"{topic}/{PROMOTIONS}"
    names = [name for name in fs.names(folder) if re.fullmatch(r"\d{4}\.json", name)]
    return [decode(Promotion, fs.read(f"{folder}/{name}"), f"{folder}/{name}") for name in names]


def pinned_id(fs: Filesystem, topic: str, newest: LoadManifest | None) -> PinnedId | None:
    """What the next load decodes with; None before the first one."""
    if newest is None:
        return None
    recorded = promotions(fs, topic)
    # Never back to an older one: a promotion that somebody deleted has still been used by a load.
    if recorded and recorded[-1].number >= (newest.promotion or 0):
        return PinnedId(recorded[-1].schema_id, recorded[-1].number)
    return PinnedId(newest.table_schema_id, newest.promotion)


def check_pinned(topic: str, schema_id: int, schema: Mapping[str, Any]) -> None:
    """MillraceError unless the first load of a topic may pin that schema."""
    try:
        check_table_schema(schema)
    except SchemaError as error:
        raise MillraceError(
            f"{topic} cannot be loaded with schema {schema_id}: {error}; mend the schema, register it,"
            " then load again"
        ) from None


def promote_registered(
    fs: Filesystem, registry: SchemaRegistryClient, topic: str, schema_id: int | None, reason: str
) -> PromoteResult:
    """Promote to a schema that is registered under the topic's name: that of an id, or the newest."""
    try:
        if schema_id is None:
            schema_id = registry.latest(topic).schema_id
        elif registry.lookup(topic, registry.schema(schema_id)) is None:
            raise UnknownSchema
    except UnknownSchema:
        what = "no schema" if schema_id is None else f"no schema {schema_id}"
        raise MillraceError(
            f"{what} is registered for subject {topic!r} at {registry.url}: register it with"
            " `millrace schemas apply`, then promote again"
        ) from None
    return promote(fs, topic, schema_id, reason, partial(_look_up, registry))


def _look_up(registry: SchemaRegistryClient, schema_id: int) -> Mapping[str, Any] | None:
    try:
        schema: Mapping[str, Any] = registry.schema(schema_id)
    except UnknownSchema:
        return None
    return schema


def promote(fs: Filesystem, topic: str, schema_id: int, reason: str, lookup: Lookup) -> PromoteResult:
    """Record that loads from now on decode with that schema, unless it is the table's schema already.

    MillraceError when old messages or files could not be read with it, or when another promotion was
    recorded at the same moment.
    """
    newest = newest_load(fs, topic)
    # Before anything is compared: a promotion that comes in between then takes this number.
    numbers = [promotion.number for promotion in promotions(fs, topic)]
    number = max([*numbers, (newest and newest.promotion) or 0]) + 1
    pinned = pinned_id(fs, topic, newest)
    if newest is None or pinned is None:
        raise MillraceError(
            f"no load of {topic} in {fs.root}: the first load pins the newest registered schema by itself"
        )
    if pinned.schema_id == schema_id:
        return PromoteResult(topic=topic, schema_id=schema_id, promotion=None, changes=[])
    old, new = _schema(lookup, pinned.schema_id), _schema(lookup, schema_id)
    check_promotion(topic, (pinned.schema_id, old), (schema_id, new))
    promotion = Promotion(
        topic=topic,
        number=number,
        schema_id=schema_id,
        previous_schema_id=pinned.schema_id,
        created=now(),
        by=_who(),
        reason=reason,
    )
    if not fs.create(f"{topic}/{PROMOTIONS}/{number:04d}.json", encode(promotion)):
        raise MillraceError(
            f"another promotion of {topic} was recorded at the same moment: see `millrace promote {topic}"
            " --list`, then promote again if it is still needed"
        )
    return PromoteResult(topic=topic, schema_id=schema_id, promotion=promotion, changes=_changes(old, new))


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One schema a table has had, for people."""

    number: int | None
    """The promotion's; None for the first load's own choice."""
    schema_id: int
    first_load: int | None
    """The first load that has it; None before there is one."""
    created: str
    by: str
    reason: str


def history(fs: Filesystem, topic: str) -> list[HistoryEntry]:
    """Every schema a table has had, the first load's and each promotion's, in order."""
    newest = newest_load(fs, topic)
    if newest is None:
        raise MillraceError(f"no load of {topic} in {fs.root}: its first load pins a schema")
    recorded = promotions(fs, topic)
    # Loads keep the order of promotions, so a binary search reads few manifests for each promotion.
    loads, first = range(1, newest.load + 1), read_load(fs, topic, 1)

    def promotion_of(load: int) -> int:
        return read_load(fs, topic, load).promotion or 0

    def first_load(number: int) -> int | None:
        if (newest.promotion or 0) < number:
            return None
        return loads[bisect.bisect_left(loads, number, key=promotion_of)]

    reason = "the newest registered one when the first load began"
    return [HistoryEntry(None, first.table_schema_id, 1, first.created, "", reason)] + [
        HistoryEntry(p.number, p.schema_id, first_load(p.number), p.created, p.by, p.reason) for p in recorded
    ]


def _schema(lookup: Lookup, schema_id: int) -> Mapping[str, Any]:
    schema = lookup(schema_id)
    if schema is None:
        raise MillraceError(
            f"the registry has no schema {schema_id}: give the registry that the table was loaded with, and"
            " the id of a registered schema"
        )
    return schema


def check_promotion(
    topic: str, old: tuple[int, Mapping[str, Any]], new: tuple[int, Mapping[str, Any]]
) -> None:
    """MillraceError unless a table of schema `old` (id, schema) can become one of `new`."""
    where = f"{topic} cannot be promoted from schema {old[0]} to {new[0]}"
    writer = parse(old[1])
    assert isinstance(writer, Record)  # or nothing could have been loaded with it
    try:
        table = check_table_schema(new[1])
    except SchemaError as error:
        raise MillraceError(f"{where}: {error}; mend the schema, register it, then promote again") from None
    try:
        body_decoder(writer, table)
    except SchemaError as error:
        raise MillraceError(
            f"{where}, it cannot read what was written with the old one: {error}; give new fields a default,"
            " or load into a new warehouse"
        ) from None
    if refused := _unreadable(pa.struct(arrow_fields(writer)), pa.struct(arrow_fields(table)), ""):
        raise MillraceError(
            f"{where}: column {refused}, which cannot be read from the files that are there; load into a new"
            " warehouse"
        )
    if renamed := _renamed(writer, table):
        raise MillraceError(
            f"{where}: it renames column {renamed}, and rows that are there would lose it; keep the old name,"
            " or load into a new warehouse"
        )


def _unreadable(old: pa.DataType, new: pa.DataType, path: str) -> str:
    """Which column would have another type than its files can be read with; empty when none has."""
    if old == new or (old, new) in WIDENED:
        return ""
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        fields = {field.name: field.type for field in old}
        refused = (_unreadable(fields[f.name], f.type, f"{path}{f.name}.") for f in new if f.name in fields)
        return next(filter(None, refused), "")
    if pa.types.is_list(old) and pa.types.is_list(new):
        return _unreadable(old.value_type, new.value_type, path)
    if pa.types.is_map(old) and pa.types.is_map(new):
        return _unreadable(old.item_type, new.item_type, path)
    return f"{path.rstrip('.')} would change from {old} to {new}"


def _renamed(old: Record, new: Record) -> str:
    names = {field.name for field in old.fields}
    for field in new.fields:
        if field.name not in names and (before := names & set(field.aliases)):
            return f"{min(before)} to {field.name}"
    return ""


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    before, after = _field_names(old), _field_names(new)
    gained = [f"new column {name}: null in rows loaded before" for name in after if name not in before]
    lost = [f"column {name} is in new rows no more" for name in before if name not in after]
    return gained + lost


def _field_names(schema: Mapping[str, Any]) -> list[str]:
    return [field["name"] for field in schema["fields"]]


def dropped_fields(table: Mapping[str, Any], writer_ids: Iterable[int], lookup: Lookup) -> dict[str, int]:
    """Fields that messages have and the table has not, each with the newest writer schema that has it."""
    columns = set(_field_names(table)) | {a for field in table["fields"] for a in field.get("aliases", ())}
    dropped: dict[str, int] = {}
    for schema_id in sorted(writer_ids):
        writer = lookup(schema_id)
        for name in _field_names(writer) if writer is not None else ():
            if name not in columns:
                dropped[name] = schema_id
    return dropped

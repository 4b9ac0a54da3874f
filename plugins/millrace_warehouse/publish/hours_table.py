"""The table of hours, `<name>_hours`: one row for each change that a publication made, for SQL.

    hour          timestamptz   beginning of the hour; null for rows without an hour
    last          timestamptz   beginning of the last of several empty hours in a row; null for one hour
    publication   long          an hour's newest publication shows its present state
    kind          string        first, late, reload, erase, verdict or rebuild
    verdict, watermark, checked, reasons                 the auditor's verdict
    added, removed              long; the sum of added - removed over an hour is its number of rows
    loads         list<long>    loads of the added rows
    rejected      long          messages of the hour that loads have set aside; null in rows of older versions
    tombstone, foreign_framing, unknown_schema, broken_body
                                long; messages that did not become rows: an hour has the sum of its rows
    created, path, sha256       of the publication's manifest
    snapshot_id   long          of the table, if the run that wrote the row knew it

Derived from the publications' manifests, and appended after the publication's commit. If a run dies before,
the next run appends its rows. A property of the table of hours states the last publication whose rows it has.
The commit of the rows sets it, so each row is there once.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import ListType, LongType, NestedField, StringType, TimestamptzType

from millrace.errors import MillraceError
from millrace_warehouse.history.hours import UNFILED, start_of
from millrace_warehouse.history.layout import Folder, Topic, publications_from
from millrace_warehouse.history.manifest import Publication
from millrace_warehouse.log.kinds import ASIDE
from millrace_warehouse.publish.catalog import (
    TableFileGone,
    create_table,
    drop_table,
    load_table,
    table_identifier,
)
from millrace_warehouse.publish.committer import TableChange, branch_files, commit
from millrace_warehouse.publish.contents import is_whole
from millrace_warehouse.publish.table import NUMBER, PATH, SETTINGS, TOPIC
from millrace_warehouse.races import retried

FILES = 100
"""Number of files of the table of hours at which they are merged into one."""
REJECTED, LAST = "rejected", "last"
SCHEMA = Schema(
    NestedField(1, "hour", TimestamptzType()),
    NestedField(2, "publication", LongType()),
    NestedField(3, "kind", StringType()),
    NestedField(4, "verdict", StringType()),
    NestedField(5, "watermark", StringType()),
    NestedField(6, "checked", StringType()),
    NestedField(7, "reasons", ListType(15, StringType(), element_required=False)),
    NestedField(8, "added", LongType()),
    NestedField(9, "removed", LongType()),
    NestedField(10, "loads", ListType(16, LongType(), element_required=False)),
    NestedField(11, "created", TimestamptzType()),
    NestedField(12, "path", StringType()),
    NestedField(13, "sha256", StringType()),
    NestedField(14, "snapshot_id", LongType()),
    NestedField(17, REJECTED, LongType()),
    *(NestedField(18 + number, kind, LongType()) for number, kind in enumerate(ASIDE)),
    NestedField(18 + len(ASIDE), LAST, TimestamptzType()),
)


def hours_identifier(topic: str) -> tuple[str, str]:
    """Return the namespace and name of a topic's table of hours."""
    namespace, name = table_identifier(topic)
    return namespace, f"{name}_hours"


def bring_up_to_date(catalog: Catalog, topic: Topic, table: Table, publication: Publication) -> None:
    """Append the changes of every publication, through this one, that the table of hours lacks."""

    def attempt() -> None:
        hours = _table_of_hours(catalog, topic)
        through = int(hours.properties.get(NUMBER, "0"))
        if through >= publication.number:
            return
        head = table.current_snapshot()
        assert head is not None, "a publication makes a snapshot"
        rows: list[dict[str, Any]] = []
        for path, each in publications_from(topic.storage, table.properties[PATH]):
            if each.number <= through:
                break
            snapshot = head.snapshot_id if each.number == publication.number else None
            rows = [*_rows(each, path, snapshot), *rows]
        _append(hours, rows, publication.number)

    what = f"{topic} is published, and its table of hours is not"
    retried(attempt, what, "the next `millrace publish` brings it up to date")


def drop_if_gone(catalog: Catalog, topic: str) -> None:
    """Drop the table of hours if its metadata or a manifest is missing, to rebuild it from publications."""
    try:
        hours = load_table(catalog, hours_identifier(topic))
        stays = hours is None or is_whole(hours, topic)
    except TableFileGone:
        stays = False
    if not stays:
        drop_table(catalog, hours_identifier(topic))


def _table_of_hours(catalog: Catalog, topic: Topic) -> Table:
    identifier = hours_identifier(topic.name)
    table = load_table(catalog, identifier)
    if table is None:
        location, settings = topic.storage.uri(Folder.HOURS.path(topic.name)), {**SETTINGS, TOPIC: topic.name}
        table = create_table(catalog, identifier, SCHEMA, UNPARTITIONED_PARTITION_SPEC, location, settings)
    if table.properties.get(TOPIC) != topic.name:
        raise MillraceError(
            f"the table {'.'.join(identifier)} of catalog {catalog.name} is not the table of hours of"
            f" {topic}: rename one of the two, or use another catalog with --catalog"
        )
    lacking = [name for name in (REJECTED, *ASIDE, LAST) if name not in table.schema().column_names]
    if lacking:  # the table is older than these columns
        first = table.metadata.last_column_id + 1
        types = {name: SCHEMA.find_type(name) for name in lacking}
        columns = [NestedField(first + at, name, kind) for at, (name, kind) in enumerate(types.items())]
        table = commit(table, TableChange(schema=Schema(*table.schema().fields, *columns)))
    return table


def _rows(publication: Publication, path: str, snapshot: int | None) -> Iterator[dict[str, Any]]:
    for change in publication.changes:
        yield {
            "hour": None if change.hour == UNFILED else start_of(change.hour),
            LAST: start_of(change.last) if change.last else None,
            "publication": publication.number,
            "kind": change.kind,
            "verdict": change.verdict.verdict,
            "watermark": change.verdict.watermark,
            "checked": change.verdict.checked,
            "reasons": list(change.verdict.reasons),
            "added": change.added,
            "removed": change.removed,
            "loads": sorted({rows.load for rows in change.loads}),
            REJECTED: publication.rejected.get(change.hour, 0),
            **{kind: change.aside.get(kind, 0) for kind in ASIDE},
            "created": datetime.fromisoformat(publication.created),
            "path": path,
            "sha256": publication.sha256,
            "snapshot_id": snapshot,
        }


def _append(table: Table, rows: list[dict[str, Any]], number: int) -> None:
    """Commit the rows and the number of their last publication. Merge the files when there are many."""
    new = pa.Table.from_pylist(rows, schema_to_pyarrow(table.schema()))
    small: list[DataFile] = []
    if _files(table) >= FILES:
        small = list(branch_files(table))
        new = pa.concat_tables([table.scan().to_arrow().cast(new.schema), new])
    written = list(_dataframe_to_data_files(table.metadata, new, table.io)) if new.num_rows else []
    for file in written:
        file.spec_id = table.spec().spec_id
    commit(table, TableChange(added=written, removed=small, properties={NUMBER: str(number)}))


def _files(table: Table) -> int:
    head = table.current_snapshot()
    totals: Any = head.summary.additional_properties if head is not None and head.summary is not None else {}
    return int(totals.get("total-data-files", "0"))

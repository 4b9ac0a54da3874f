"""One commit of an Iceberg table: schema, rows, properties and old snapshots together, or nothing of it.

The branch's head is the only thing that is compared: every commit makes a snapshot, an empty one if need be,
so the properties go with it. Knows entries and properties; not what a publication is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.exceptions import ValidationException
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertLastAssignedFieldId,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
)

from millrace.errors import MillraceError
from millrace_warehouse.history.entries import hour_of_partition
from millrace_warehouse.publish.catalog import Unsure, careful

SNAPSHOTS = 30
"""Most snapshots that a table keeps in its own history; metadata.json then stays at some 30 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """What one commit does to a table."""

    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()
    """Files that the table has now; a commit fails with Unsure when one of them is gone."""
    schema: Schema | None = None
    """The columns from now on, with their ids; None keeps those that are there."""
    properties: Mapping[str, str] = field(default_factory=dict)
    summary: Mapping[str, str] = field(default_factory=dict)


def commit(table: Table, change: TableChange) -> Table:
    """Make the change; the table after it. Unsure when it may have been made, or lost to another commit.

    MillraceError when the storage refuses a file: then it was not made.
    """
    with_care = careful(table)
    transaction = with_care.transaction()
    if change.schema is not None:
        number = max(schema.schema_id for schema in table.metadata.schemas) + 1
        transaction._apply(
            (
                AddSchemaUpdate(schema=_numbered(change.schema, number)),
                SetCurrentSchemaUpdate.model_validate({"schema-id": -1}),
            ),
            (
                AssertLastAssignedFieldId.model_validate(
                    {"last-assigned-field-id": table.metadata.last_column_id}
                ),
            ),
        )
    update = transaction.update_snapshot(snapshot_properties=dict(change.summary))
    files = update.overwrite() if change.removed else update.merge_append()
    for file in change.added:
        files.append_data_file(file)
    for file in change.removed:
        files.delete_data_file(file)
    try:
        files.commit()
    except (ValidationException, FileNotFoundError) as error:  # somebody else's commit took a file away
        raise Unsure(str(error)) from error
    if change.properties:
        transaction.set_properties(dict(change.properties))
    if old := _old_snapshots(table):
        transaction._apply((RemoveSnapshotsUpdate.model_validate({"snapshot-ids": old}),))
    try:
        transaction.commit_transaction()
    except (Unsure, MillraceError):
        raise
    except Exception as error:  # behind the commit: old metadata that cannot be deleted, an answer cut short
        raise Unsure(f"{type(error).__name__}: {error}") from error
    return Table(
        table.name(), with_care.metadata, with_care.metadata_location, table.io, table.catalog, table.config
    )


def _numbered(schema: Schema, number: int) -> Schema:
    return Schema(*schema.fields, schema_id=number, identifier_field_ids=list(schema.identifier_field_ids))


def _old_snapshots(table: Table) -> list[int]:
    """The oldest of the branch's own snapshots beyond SNAPSHOTS; those that a branch or tag names stay."""
    head = table.current_snapshot()
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    line = [snapshot.snapshot_id for snapshot in ancestors_of(head, table.metadata)]
    return [id_ for id_ in line[SNAPSHOTS - 1 :] if id_ not in named]


def live_files(table: Table) -> Iterator[DataFile]:
    """The entries of the data files that main has."""
    snapshot = table.metadata.snapshot_by_name(MAIN_BRANCH)
    for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
        if manifest.content == ManifestContent.DATA:
            yield from (entry.data_file for entry in manifest.fetch_manifest_entry(table.io))


def head_files(table: Table, hours: Collection[str]) -> dict[str, list[DataFile]]:
    """Hour -> the entries of its data files, for those of these hours that have any."""
    files: dict[str, list[DataFile]] = {}
    for file in live_files(table):
        if (hour := hour_of_partition(file.partition[0])) in hours:
            files.setdefault(hour, []).append(file)
    return files

"""One commit of an Iceberg table: schema, rows, properties and old snapshots together, or nothing of it.

The branch's head is the only thing that is compared: every commit makes a snapshot, an empty one if need be,
so the properties go with it. Manifests stay small, and hold hours that lie beside each other, however many
files a commit adds: who reads or replaces an hour reads few of them. Knows entries and properties; not what a
publication is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import ValidationException
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, ancestors_of
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertLastAssignedFieldId,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
)
from pyiceberg.table.update.snapshot import _FastAppendFiles, _OverwriteFiles
from pyiceberg.types import IntegerType

from millrace.errors import MillraceError
from millrace_warehouse.history.hours import hour_of, partition_of
from millrace_warehouse.publish.catalog import Unsure, being_read, careful

MANIFEST_FILES = 256
"""Most files that a manifest of a commit names. A reader of one day reads one or two: some 50 us a file."""
SMALL_MANIFESTS = 10
"""The next commit makes one of so many manifests that each hold less than half of MANIFEST_FILES."""
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
    head_only: bool = False
    """Forget every other snapshot, but those that another branch or a tag names."""


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
    summary = dict(change.summary)
    files = (
        _Replace(Operation.OVERWRITE, transaction, table.io, snapshot_properties=summary)
        if change.removed
        else _Append(Operation.APPEND, transaction, table.io, snapshot_properties=summary)
    )
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
    if old := _old_snapshots(table, change.head_only):
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


class _Append(_FastAppendFiles):
    def _manifests(self) -> list[ManifestFile]:
        return _arranged(self, super()._manifests)


class _Replace(_OverwriteFiles):
    def _manifests(self) -> list[ManifestFile]:
        return _arranged(self, super()._manifests)


def _arranged(
    producer: _Append | _Replace, manifests_of: Callable[[], list[ManifestFile]]
) -> list[ManifestFile]:
    """A snapshot's manifests: each new one holds hours that lie together, and few of the others are small.

    pyiceberg writes one manifest for all files that are added. It merges manifests by their bytes, of which
    small ones are mostly the table's schema.
    """
    added, producer._added_data_files = producer._added_data_files, []
    manifests = manifests_of()
    producer._added_data_files = added  # the snapshot's summary counts them
    spec = producer._transaction.table_metadata.spec()
    small = [each for each in manifests if _is_small(each, spec.spec_id, producer.snapshot_id)]
    if len(small) < SMALL_MANIFESTS:
        small = []
    entries = [
        ManifestEntry.from_args(
            status=ManifestEntryStatus.ADDED, snapshot_id=producer.snapshot_id, data_file=file
        )
        for file in added
    ]
    for entry in chain.from_iterable(map(producer.fetch_manifest_entry, small)):
        entry.status = ManifestEntryStatus.EXISTING
        entries.append(entry)
    entries.sort(key=_by_hour)
    arranged = []
    for first in range(0, len(entries), MANIFEST_FILES):
        with producer.new_manifest_writer(spec) as writer:
            for entry in entries[first : first + MANIFEST_FILES]:
                writer.add_entry(entry)
        arranged.append(writer.to_manifest_file())
    return arranged + [each for each in manifests if each not in small]


def _is_small(manifest: ManifestFile, spec_id: int, snapshot_id: int) -> bool:
    """True for a manifest of data of an earlier snapshot that is worth being put together with others."""
    files = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
    return (
        manifest.content == ManifestContent.DATA
        and manifest.partition_spec_id == spec_id
        and manifest.added_snapshot_id != snapshot_id
        and files < MANIFEST_FILES // 2
    )


def _by_hour(entry: ManifestEntry) -> int:
    """Sorts entries by the hour of their files, those without one first."""
    partition = entry.data_file.partition
    hour = partition[0] if len(partition) else None
    return -1 if hour is None else int(hour)


def _numbered(schema: Schema, number: int) -> Schema:
    return Schema(*schema.fields, schema_id=number, identifier_field_ids=list(schema.identifier_field_ids))


def _old_snapshots(table: Table, head_only: bool) -> list[int]:
    """The oldest of the branch's own snapshots beyond SNAPSHOTS; those that a branch or tag names stay."""
    head = table.current_snapshot()
    if head_only:
        others = {ref.snapshot_id for name, ref in table.metadata.refs.items() if name != MAIN_BRANCH}
        return [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id not in others]
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    line = [snapshot.snapshot_id for snapshot in ancestors_of(head, table.metadata)]
    return [id_ for id_ in line[SNAPSHOTS - 1 :] if id_ not in named]


def live_files(table: Table, hours: Collection[str] | None = None) -> Iterator[DataFile]:
    """The entries of the data files that main has, in all hours or in these."""
    partitions = None if hours is None else {partition_of(hour) for hour in hours}
    snapshot = table.metadata.snapshot_by_name(MAIN_BRANCH)
    with being_read(table):
        for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
            if manifest.content != ManifestContent.DATA or not _may_have(table, manifest, partitions):
                continue
            for entry in manifest.fetch_manifest_entry(table.io):
                if partitions is None or entry.data_file.partition[0] in partitions:
                    yield entry.data_file


def _may_have(table: Table, manifest: ManifestFile, partitions: Collection[int | None] | None) -> bool:
    """False when a manifest states that it has no file of these partitions."""
    if partitions is None or not manifest.partitions or manifest.partition_spec_id != table.spec().spec_id:
        return True
    stated = manifest.partitions[0]
    if stated.lower_bound is None or stated.upper_bound is None:
        return None in partitions
    bounds = stated.lower_bound, stated.upper_bound
    first, last = (int(from_bytes(IntegerType(), bound)) for bound in bounds)
    return any(stated.contains_null if hour is None else first <= hour <= last for hour in partitions)


def head_files(table: Table, hours: Collection[str] | None = None) -> dict[str, list[DataFile]]:
    """Hour -> the entries of its data files, for all hours, or for those of these, that have any."""
    files: dict[str, list[DataFile]] = {}
    for file in live_files(table, hours):
        files.setdefault(hour_of(file.partition[0]), []).append(file)
    return files

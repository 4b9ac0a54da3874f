"""One commit of a branch of an Iceberg table: all of its changes together, or no change at all.

A commit has two parts. The manifests are written once. The manifest list and the sequence number depend on
the table's state: when a commit to another branch took the number, the list is written again in milliseconds.
When a branch has moved from which the manifests were derived, the commit raises Conflict, and the command
decides again. Every commit makes a snapshot, if need be an empty one, so the requirement for its branch
guards the properties as well.

After a lost answer the table decides: either the branch is at this commit's snapshot, whose id all attempts
share, or the commit was not made. pyiceberg's own transactions are not used: they send one requirement for
many branches, delete manifests of a successful commit after a false conflict, and start over completely.

Manifests stay small and hold neighbouring hours, even if a commit adds many files: reading or replacing an
hour takes few manifests. This module handles entries and properties, and depends on no publication.
"""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import count
from typing import Any

from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, Summary
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    AssertDefaultSortOrderId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from millrace.errors import MillraceError
from millrace_warehouse.publish.catalog import REFUSED, CatalogError, first_line, load_table, refusal
from millrace_warehouse.races import Conflict, Outrun, retried

logger = logging.getLogger("millrace.warehouse.committer")

MANIFEST_FILES = 256
"""Most files that one manifest names. A day needs one or two manifests; a file costs about 50 us."""
SMALL_MANIFESTS = 10
"""Number of small manifests (less than half of MANIFEST_FILES) that the next commit merges into one."""
REFUSALS = 3
"""Number of refused tries after which a commit is given up. One refusal may hide that the commit was made."""
LIVE = "live"
"""Branch with the rows that are not proven yet, too: see `publish.live`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChange:
    """Partition specs and sort orders that a commit adds, with their ids, and the ids of new defaults."""

    specs: Sequence[PartitionSpec] = ()
    orders: Sequence[SortOrder] = ()
    spec_id: int | None = None
    """The default spec from then on; None keeps the present one."""
    order_id: int | None = None
    """The default sort order from then on; None keeps the present one."""

    def updates(self) -> Iterator[TableUpdate]:
        """Yield the changes for the catalog."""
        for spec in self.specs:
            yield AddPartitionSpecUpdate(spec=spec)
        for order in self.orders:
            yield AddSortOrderUpdate.model_validate({"sort-order": order})
        if self.spec_id is not None:
            yield SetDefaultSpecUpdate.model_validate({"spec-id": self.spec_id})
        if self.order_id is not None:
            yield SetDefaultSortOrderUpdate.model_validate({"sort-order-id": self.order_id})

    def requirements(self, metadata: TableMetadata) -> Iterator[TableRequirement]:
        """Yield what must not have changed, so that the catalog gives specs and orders these ids."""
        last = metadata.last_partition_id
        if self.specs:
            yield AssertLastAssignedPartitionId.model_validate({"last-assigned-partition-id": last})
        if self.specs or self.spec_id is not None:
            yield AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id})
        if self.orders or self.order_id is not None:
            default = {"default-sort-order-id": metadata.default_sort_order_id}
            yield AssertDefaultSortOrderId.model_validate(default)


class BranchCommit(ABC):
    """One commit of a branch, tried until it is made or refused. A subclass decides what it changes."""

    branch = MAIN_BRANCH
    relies_on: Collection[str] = (MAIN_BRANCH,)
    """Branches from which the manifests are derived: when one moves, the caller decides again."""

    def __init__(
        self, table: Table, schema: Schema | None, layout: LayoutChange, properties: Mapping[str, str]
    ) -> None:
        self.table, self._properties = table, properties
        self._id = table.metadata.new_snapshot_id()
        self._name, self._numbers = uuid.uuid4(), count()
        self._failure = ""
        """Failure of the last try; empty before the first failure."""
        self._refusals: list[Exception] = []
        self.paths: list[str] = []
        """Metadata files that were written, whether or not the commit was made."""
        self._changes_schema = schema is not None
        self._schema = table.schema()
        if schema is not None:
            number = max(schema.schema_id for schema in table.metadata.schemas) + 1
            self._schema = _numbered(schema, number)
        self._layout = layout
        self._specs = table.specs() | {spec.spec_id: spec for spec in layout.specs}
        try:
            self.manifests = self.write()
        except FileNotFoundError as error:
            raise Conflict(f"a manifest is gone ({first_line(error)})") from error

    @abstractmethod
    def write(self) -> Sequence[ManifestFile]:
        """Write the new manifests. Return all manifests of the snapshot, in the order of its list.

        New manifests have no sequence number yet.
        """

    @abstractmethod
    def summary(self, parent: Snapshot | None) -> Summary:
        """Return the summary of the snapshot, given the branch's head."""

    def retention(self, table: Table) -> Mapping[str, Any]:
        """Return the settings of the branch's reference: those that it has, or nothing for a new branch."""
        ref = table.metadata.refs.get(self.branch)
        return ref.model_dump(by_alias=True, exclude={"snapshot_ref_type"}) if ref is not None else {}

    @abstractmethod
    def forgets(self, table: Table) -> Sequence[int]:
        """Return the snapshots that the commit removes."""

    @abstractmethod
    def asserts(self, table: Table) -> Collection[str]:
        """Return the branches and tags whose heads must not move until the commit is made."""

    def make(self) -> Table:
        what = f"branch {self.branch} of {'.'.join(self.table.name())} accepted no commit"
        try:
            made = retried(self._try, what, "check its catalog's log, then run again")
        except Outrun:
            now = self._now()  # the last answer may be lost, too
            if now is None or self._head(now) != self._id:
                raise
            made = self._after(now.metadata, now.metadata_location)
        if made is None:
            raise Conflict("another commit was faster")
        return made

    def _try(self) -> Table | None:
        """Commit once. Return None if another commit has moved a branch that this one relies on.

        Raise Conflict if the commit failed and none has moved; the caller then retries.
        """
        if self._failure:
            now = self._now()
            if now is not None and self._head(now) == self._id:
                return self._after(now.metadata, now.metadata_location)
            if now is None or self._basis(now) != self._basis(self.table):
                return None
            if len(self._refusals) == REFUSALS:
                error = self._refusals[-1]
                raise refusal(f"catalog {now.catalog.name}", error) from error
            self.table = now
        table = self.table
        updates = self._updates(table)
        try:
            answer = table.catalog.commit_table(table, self._requirements(table), updates)
        except MillraceError:  # the storage refused new metadata, so the catalog received no request
            raise
        except Exception as error:  # refused, or lost: whatever the catalog answers, only the table decides
            self._failure = f"{type(error).__name__}: {first_line(error)}"
            self._refusals += [error] if isinstance(error, REFUSED) else []
            raise Conflict(self._failure) from error
        return self._after(answer.metadata, answer.metadata_location)

    def _now(self) -> Table | None:
        namespace, name = self.table.name()
        try:
            return load_table(self.table.catalog, (namespace, name))
        except CatalogError as error:
            raise CatalogError(
                f"whether {namespace}.{name} took a commit is not known ({self._failure}), and {error}"
            ) from error

    def _after(self, metadata: TableMetadata, location: str) -> Table:
        """Return the table after this commit. Delete metadata files that its metadata log no longer lists."""
        table = self.table
        if metadata.properties.get(TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED) == "true":
            logged = {entry.metadata_file for entry in metadata.metadata_log}
            for path in {entry.metadata_file for entry in table.metadata.metadata_log} - logged:
                try:
                    table.io.delete(path)
                except FileNotFoundError:
                    pass  # deleted by another commit, or by the catalog itself
                except Exception as error:
                    logger.warning("%s was not deleted, `millrace expire` does it later: %s", path, error)
        return Table(table.name(), metadata, location, table.io, table.catalog, table.config)

    def _updates(self, table: Table) -> tuple[TableUpdate, ...]:
        """Write a manifest list with the table's next number; return the changes for the catalog."""
        metadata = table.metadata
        updates: list[TableUpdate] = []
        if self._changes_schema:
            updates.append(AddSchemaUpdate(schema=self._schema))
            updates.append(SetCurrentSchemaUpdate.model_validate({"schema-id": -1}))
        updates += self._layout.updates()
        parent, number = metadata.snapshot_by_name(self.branch), metadata.next_sequence_number()
        parent_id = parent.snapshot_id if parent is not None else None
        path = self._path(f"snap-{self._id}-{next(self._numbers)}-{self._name}.avro")
        with write_manifest_list(
            format_version=metadata.format_version,
            output_file=table.io.new_output(path),
            snapshot_id=self._id,
            parent_snapshot_id=parent_id,
            sequence_number=number,
            avro_compression=_compression(table),
        ) as writer:
            # Copies: the writer numbers the new manifests, and the next try has another number.
            writer.add_manifests(
                [deepcopy(each) if each.added_snapshot_id == self._id else each for each in self.manifests]
            )
        snapshot = Snapshot.model_validate(
            {
                "snapshot-id": self._id,
                "parent-snapshot-id": parent_id,
                "sequence-number": number,
                "manifest-list": path,
                "summary": self.summary(parent),
                "schema-id": self._schema.schema_id,
            }
        )
        branch_is_here = {"ref-name": self.branch, "type": "branch", "snapshot-id": self._id}
        ref = SetSnapshotRefUpdate.model_validate({**self.retention(table), **branch_is_here})
        updates += AddSnapshotUpdate(snapshot=snapshot), ref
        if self._properties:
            updates.append(SetPropertiesUpdate(updates=dict(self._properties)))
        if old := self.forgets(table):
            updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": old}))
        return tuple(updates)

    def _requirements(self, table: Table) -> tuple[TableRequirement, ...]:
        heads = {name: ref.snapshot_id for name, ref in table.metadata.refs.items()}
        columns = {"last-assigned-field-id": table.metadata.last_column_id}
        return (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            *(
                AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": heads.get(name)})
                for name in sorted(self.asserts(table))
            ),
            *([AssertLastAssignedFieldId.model_validate(columns)] if self._changes_schema else []),
            *self._layout.requirements(table.metadata),
        )

    def _head(self, table: Table) -> int | None:
        return head_of(table, self.branch)

    def _basis(self, table: Table) -> tuple[object, ...]:
        """Return the state on which the commit's work is based. While it stays equal, only the manifest list
        is written again.
        """
        metadata = table.metadata
        heads = tuple(head_of(table, name) for name in self.relies_on)
        columns = metadata.current_schema_id, len(metadata.schemas), metadata.last_column_id
        layout = (
            metadata.default_spec_id,
            len(metadata.partition_specs),
            metadata.last_partition_id,
            metadata.default_sort_order_id,
            len(metadata.sort_orders),
        )
        return metadata.table_uuid, heads, columns, layout, metadata.format_version

    def entry(
        self, status: ManifestEntryStatus, file: DataFile, old: ManifestEntry | None = None
    ) -> ManifestEntry:
        """Return this snapshot's entry of a file. An added file's entry has no sequence number: the manifest
        list has it.
        """
        return ManifestEntry.from_args(
            status=status,
            snapshot_id=self._id,
            sequence_number=old.sequence_number if old is not None else None,
            file_sequence_number=old.file_sequence_number if old is not None else None,
            data_file=file,
        )

    def write_entries(self, entries: Iterable[ManifestEntry]) -> list[ManifestFile]:
        """Write manifests of each partition spec, each with at most MANIFEST_FILES files of neighbouring
        hours.
        """
        of_specs: dict[int, list[ManifestEntry]] = {}
        for entry in entries:
            of_specs.setdefault(entry.data_file.spec_id, []).append(entry)
        written = []
        for spec_id, of_spec in of_specs.items():
            of_spec.sort(key=_by_hour)
            for first in range(0, len(of_spec), MANIFEST_FILES):
                batch = of_spec[first : first + MANIFEST_FILES]
                written.append(self._write(self._specs[spec_id], batch))
        return written

    def merged(self, kept: Sequence[ManifestFile]) -> tuple[list[ManifestEntry], list[ManifestFile]]:
        """Return the entries of the small manifests of a spec that has many, and the other manifests."""
        many = Counter(each.partition_spec_id for each in kept if _is_small(each))
        specs = {spec_id for spec_id, count in many.items() if count >= SMALL_MANIFESTS}
        small = [each for each in kept if each.partition_spec_id in specs and _is_small(each)]
        rest = [each for each in kept if each not in small]
        return [existing(entry) for each in small for entry in each.fetch_manifest_entry(self.table.io)], rest

    def _write(self, spec: PartitionSpec, entries: Iterable[ManifestEntry]) -> ManifestFile:
        path = self._path(f"{self._name}-m{next(self._numbers)}.avro")
        with write_manifest(
            format_version=self.table.metadata.format_version,
            spec=spec,
            schema=self._schema,
            output_file=self.table.io.new_output(path),
            snapshot_id=self._id,
            avro_compression=_compression(self.table),
        ) as writer:
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()

    def _path(self, name: str) -> str:
        self.paths.append(self.table.location_provider().new_metadata_location(name))
        return self.paths[-1]


def head_of(table: Table, branch: str) -> int | None:
    """Return the snapshot at the head of a branch, or None without such a branch."""
    ref = table.metadata.refs.get(branch)
    return ref.snapshot_id if ref is not None else None


def _compression(table: Table) -> Any:
    codec = TableProperties.WRITE_AVRO_COMPRESSION
    return table.properties.get(codec, TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT)


def existing(entry: ManifestEntry) -> ManifestEntry:
    """Return an earlier snapshot's entry for another manifest, with its snapshot and sequence number."""
    entry.status = ManifestEntryStatus.EXISTING
    return entry


def _is_small(manifest: ManifestFile) -> bool:
    """Return True for a data manifest that is small enough to be merged."""
    files = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
    return manifest.content == ManifestContent.DATA and files < MANIFEST_FILES // 2


def partition(file: DataFile) -> int | None:
    """Return a file's hour as its partition's number, or None for a file without an hour or partition.

    In a partition of another program the number may mean something else.
    """
    hour = file.partition[0] if len(file.partition) else None
    return hour if isinstance(hour, int) else None


def _by_hour(entry: ManifestEntry) -> int:
    """Return a sort key that orders entries by the hours of their files. Files without an hour come first."""
    hour = partition(entry.data_file)
    return -1 if hour is None else hour


def _numbered(schema: Schema, number: int) -> Schema:
    return Schema(*schema.fields, schema_id=number, identifier_field_ids=list(schema.identifier_field_ids))

"""The commits of branch `main`, and the files that a branch names.

`branch_commit` has the steps of a commit; here is what a commit to `main` adds, removes and forgets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    ancestors_of,
    update_snapshot_summaries,
)
from pyiceberg.types import IntegerType

from millrace_warehouse.history.hours import partition_of
from millrace_warehouse.publish.branch_commit import LIVE, BranchCommit, LayoutChange, existing, partition
from millrace_warehouse.publish.catalog import reading
from millrace_warehouse.publish.contents import hour_of_file
from millrace_warehouse.races import Conflict

SNAPSHOTS = 30
"""Most snapshots in a table's own history. metadata.json then stays at about 30 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """The change that one commit makes to a table."""

    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()
    """Files to remove from the table. If one of them is not in the table, the commit raises Conflict."""
    same_rows: bool = False
    """True if the added files hold the rows of the removed files: the operation is then `replace`."""
    schema: Schema | None = None
    """The table's new columns, with their ids; None keeps the present columns."""
    layout: LayoutChange = field(default_factory=LayoutChange)
    properties: Mapping[str, str] = field(default_factory=dict)
    summary: Mapping[str, str] = field(default_factory=dict)
    head_only: bool = False
    """True to forget every other snapshot, except snapshots that another branch or a tag names."""


def commit(table: Table, change: TableChange) -> Table:
    """Make the change and return the new table.

    Raise Conflict when another commit has moved branch `main`. Raise MillraceError when the storage refuses a
    file, or the catalog refuses every attempt. Raise CatalogError when the catalog does not tell whether the
    change was made.
    """
    return _MainCommit(table, change).make()


class _MainCommit(BranchCommit):
    """The commit of a TableChange to branch `main`."""

    def __init__(self, table: Table, change: TableChange) -> None:
        self._change = change
        super().__init__(table, change.schema, change.layout, change.properties)
        self._counted = self._counts()

    def asserts(self, table: Table) -> Collection[str]:
        """Return `main` and every branch or tag whose snapshots the commit might remove otherwise.

        Branch `live` moves often, and a commit that keeps its snapshots does not wait for it.
        """
        others = {*table.metadata.refs} - ({LIVE} if not self._change.head_only else set())
        return {MAIN_BRANCH, *others}

    def forgets(self, table: Table) -> Sequence[int]:
        return _old_snapshots(table, self._change.head_only)

    def _counts(self) -> dict[str, str]:
        """Return the properties of the snapshot's summary that describe this commit alone."""
        collector, specs = SnapshotSummaryCollector(), self._specs
        for file in self._change.added:
            collector.add_file(file, self._schema, specs[file.spec_id])
        for file in self._change.removed:
            collector.remove_file(file, self._schema, specs[file.spec_id])
        return {**collector.build(), **self._change.summary}

    def summary(self, parent: Snapshot | None) -> Summary:
        operation = Operation.OVERWRITE if self._change.removed else Operation.APPEND
        summary = Summary(operation=operation, **self._counted)
        update_snapshot_summaries(summary, parent.summary if parent is not None else None)
        if self._change.same_rows:  # pyiceberg has no summary for `replace`
            return Summary(operation=Operation.REPLACE, **summary.additional_properties)
        return summary

    def write(self) -> Sequence[ManifestFile]:
        added = [self.entry(ManifestEntryStatus.ADDED, file) for file in self._change.added]
        new, kept = self._without_removed()
        small, kept = self.merged(kept)
        return [*new, *self.write_entries([*added, *small]), *kept]

    def _without_removed(self) -> tuple[list[ManifestFile], list[ManifestFile]]:
        """Return main's manifests. Manifests that name removed files are rewritten without them."""
        table = self.table
        head = table.metadata.snapshot_by_name(MAIN_BRANCH)
        manifests = head.manifests(table.io) if head is not None else []
        live = [each for each in manifests if each.has_added_files() or each.has_existing_files()]
        removed = {file.file_path for file in self._change.removed}
        if not removed:
            return [], live
        partitions = {partition(file) for file in self._change.removed}
        new: list[ManifestFile] = []
        kept: list[ManifestFile] = []
        gone: dict[int, list[ManifestEntry]] = {}
        for manifest in live:
            if manifest.content != ManifestContent.DATA or not _may_have(table, manifest, partitions):
                kept.append(manifest)
                continue
            entries = manifest.fetch_manifest_entry(table.io)
            stay = [entry for entry in entries if entry.data_file.file_path not in removed]
            if len(stay) == len(entries):
                kept.append(manifest)
                continue
            if stay:
                new.append(self._write(self._specs[manifest.partition_spec_id], map(existing, stay)))
            leave = (entry for entry in entries if entry.data_file.file_path in removed)
            deleted = (self.entry(ManifestEntryStatus.DELETED, entry.data_file, entry) for entry in leave)
            gone.setdefault(manifest.partition_spec_id, []).extend(deleted)
        found = {entry.data_file.file_path for entries in gone.values() for entry in entries}
        if missing := sorted(removed - found):
            raise Conflict(f"the table no longer has {len(missing)} of the files, such as {missing[0]}")
        return new + [self._write(self._specs[spec_id], gone[spec_id]) for spec_id in gone], kept


def _old_snapshots(table: Table, head_only: bool) -> list[int]:
    """Return main's snapshots except the newest SNAPSHOTS and the snapshots that a branch or tag names."""
    head = table.current_snapshot()
    if head_only:
        others = {ref.snapshot_id for name, ref in table.metadata.refs.items() if name != MAIN_BRANCH}
        return [each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id not in others]
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    line = [snapshot.snapshot_id for snapshot in ancestors_of(head, table.metadata)]
    return [id_ for id_ in line[SNAPSHOTS - 1 :] if id_ not in named]


def branch_files(
    table: Table, hours: Collection[str] | None = None, branch: str = MAIN_BRANCH
) -> Iterator[DataFile]:
    """Yield the entries of the data files in a branch, of all hours or of the given hours."""
    partitions = None if hours is None else {partition_of(hour) for hour in hours}
    snapshot = table.metadata.snapshot_by_name(branch)
    with reading(table):
        for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
            if manifest.content != ManifestContent.DATA or not _may_have(table, manifest, partitions):
                continue
            for entry in manifest.fetch_manifest_entry(table.io):
                if hours is None or hour_of_file(table, entry.data_file) in hours:
                    yield entry.data_file


def _may_have(table: Table, manifest: ManifestFile, partitions: Collection[int | None] | None) -> bool:
    """Return False if a manifest's bounds exclude all files of these partitions."""
    spec = table.specs()[manifest.partition_spec_id]
    if partitions is None or not manifest.partitions or spec.fields[:1] != table.spec().fields[:1]:
        return True
    stated = manifest.partitions[0]
    if stated.lower_bound is None or stated.upper_bound is None:
        return None in partitions
    bounds = stated.lower_bound, stated.upper_bound
    first, last = (int(from_bytes(IntegerType(), bound)) for bound in bounds)
    return any(stated.contains_null if hour is None else first <= hour <= last for hour in partitions)


def head_files(table: Table, hours: Collection[str] | None = None) -> dict[str, list[DataFile]]:
    """Map each hour that has data files to their entries, for all hours or the given hours."""
    files: dict[str, list[DataFile]] = {}
    for file in branch_files(table, hours):
        files.setdefault(hour_of_file(table, file), []).append(file)
    return files

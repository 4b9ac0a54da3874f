"""Merges the small files of published hours, in one process. The rows stay the same, and are counted by load.

A quiet hour with too many small files of one partition gets few large ones, in one commit of the table. Files
of an earlier layout are rewritten in the table's present layout, whatever their size. A source must have
exactly the bytes that its load, or an earlier compaction, has written. The rows of each load are counted
before and after: if they differ, there is no commit. A list of hashes lies beside the new files.

Nothing is deleted. If another commit wins, the files that this run has written are strays, which `millrace
expire` deletes. Asks neither brokers nor an auditor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyiceberg.manifest import DataFile as TableFile
from pyiceberg.table import Table

from millrace.errors import MillraceError
from millrace.steps import Count
from millrace_warehouse.context import Context
from millrace_warehouse.history.layout import Topic, publications_from
from millrace_warehouse.history.schemas import TableSchema, read_schema
from millrace_warehouse.publish.committer import TableChange, branch_files, commit, head_files
from millrace_warehouse.publish.layouts import LayoutIds, TableLayouts
from millrace_warehouse.publish.live import follow
from millrace_warehouse.publish.rewriting import Rewriting
from millrace_warehouse.publish.table import PATH, SCHEMA, published_table
from millrace_warehouse.races import retried
from millrace_warehouse.requests import Compact

COMMIT_BYTES = 4 << 30
"""Bytes of small files that one commit replaces. It bounds the work that a crash or a conflict wastes."""
STALE_S = 12 * 3600.0
"""Age in seconds at which a run gives up: `expire` deletes files of a day that are in no table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedHour:
    """One hour that has fewer files now, or would have them after a run without --dry-run."""

    hour: str
    rows: int
    files_before: int
    files_after: int
    """Before a run, the least number: files of an earlier layout may become more."""
    bytes: int
    """Bytes of the files before they are rewritten; `rows` is the number of their rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactResult:
    """Hours that a run has compacted, or would compact."""

    topic: str
    hours: Sequence[CompactedHour]
    kept: Mapping[str, str]
    """Hour that keeps its many small files -> reason."""
    notes: Sequence[str] = ()
    """Remarks on a compaction that was made."""


@dataclass(frozen=True, slots=True)
class _SmallFiles:
    """Files of one hour that are rewritten: small ones, and those of an earlier layout."""

    hour: str
    groups: Sequence[Sequence[TableFile]]
    """Groups of small files of one partition. Each becomes one file."""
    strays: Sequence[Sequence[TableFile]] = ()
    """Groups of files of an earlier layout. Each becomes a file for each of its partitions."""

    @property
    def files(self) -> list[TableFile]:
        return [file for group in (*self.groups, *self.strays) for file in group]

    @property
    def bytes(self) -> int:
        return sum(file.file_size_in_bytes for file in self.files)


def compact_topic(context: Context, request: Compact, name: str) -> CompactResult:
    """Merge the small files of quiet hours.

    Raise MillraceError when the table differs from its publication.
    """
    topic = Topic(context.storage, name)
    table = _table(context, topic)
    done: list[CompactedHour] = []
    kept: dict[str, str] = {}
    hours = _hours(context, request, _Present.of(topic, table), kept)
    count = Count(context.progress, "hours merged", len(hours), "rows")
    for batch in _batches(hours):
        if request.dry_run:
            done += [_described(hour, len(hour.groups) + len(hour.strays)) for hour in batch]
        else:
            done += _compact(context, topic, batch, kept, count)
    notes = follow(context, topic) if done and not request.dry_run else []
    return CompactResult(topic=name, hours=done, kept=kept, notes=notes)


@dataclass(frozen=True, slots=True)
class _Present:
    """A table, and the layout that its newest publication left."""

    table: Table
    schema: TableSchema
    ids: LayoutIds

    @classmethod
    def of(cls, topic: Topic, table: Table) -> _Present:
        schema = read_schema(topic, int(table.properties.get(SCHEMA, "1")))
        return cls(table, schema, TableLayouts(topic, table.metadata).ids(schema.number))

    def has(self, file: TableFile) -> bool:
        """Return True for a file of this layout. Without a sort order, files may be sorted as they like."""
        is_sorted = not self.schema.layout.sort or file.sort_order_id == self.ids.order_id
        return file.spec_id == self.ids.spec_id and is_sorted

    def can_take(self, file: TableFile) -> bool:
        """Return True for a file of an earlier layout, False for a file that is not filed by hours."""
        spec = self.table.specs()[file.spec_id]
        return not self.has(file) and spec.fields[:1] == self.table.spec().fields[:1]


def _described(hour: _SmallFiles, files_after: int) -> CompactedHour:
    return CompactedHour(
        hour=hour.hour,
        rows=sum(file.record_count for file in hour.files),
        files_before=len(hour.files),
        files_after=files_after,
        bytes=hour.bytes,
    )


def _hours(context: Context, request: Compact, present: _Present, kept: dict[str, str]) -> list[_SmallFiles]:
    """Return the hours to compact, ascending, UNFILED last."""
    found: dict[str, _SmallFiles] = {}
    for hour, files in head_files(present.table).items():
        crowded = _crowded(request, (file for file in files if present.has(file)))
        groups = [group for small in crowded for group in _groups(small, request.target_bytes, 2)]
        strays = _groups([file for file in files if present.can_take(file)], request.target_bytes, 1)
        if groups or strays:
            found[hour] = _SmallFiles(hour, groups, strays)
    busy = _changed_lately(context, present.table, request.quiet_s) if found else set()
    for hour in sorted(busy & found.keys()):
        kept[hour] = "a publication has changed it lately: run again when it has been quiet"
    return [found[hour] for hour in sorted(found.keys() - busy)]


def _crowded(request: Compact, files: Iterable[TableFile]) -> Iterator[list[TableFile]]:
    """Yield the small files of each partition that has too many of them."""
    small: dict[str, list[TableFile]] = defaultdict(list)
    for file in files:
        if file.file_size_in_bytes < request.small_bytes:
            small[repr(file.partition)].append(file)
    yield from (each for each in small.values() if len(each) > request.small_files)


def _table(context: Context, topic: Topic) -> Table:
    """Return the topic's table as it is now.

    Raise MillraceError when it differs from its newest publication.
    """
    table, _ = published_table(context.catalog, topic)
    if table is None:
        raise MillraceError(f"{topic} has no table yet: run `millrace publish {topic}`")
    return table


def _changed_lately(context: Context, table: Table, quiet_s: float) -> set[str]:
    hours: set[str] = set()
    for _, publication in publications_from(context.storage, table.properties.get(PATH, "")):
        if datetime.fromisoformat(publication.created).timestamp() <= context.clock() - quiet_s:
            break
        hours |= {change.hour for change in publication.changes if change.added or change.removed}
    return hours


def _groups(files: Sequence[TableFile], target_bytes: int, least: int) -> list[list[TableFile]]:
    """Return files in the order of their paths, which is the order of loads, in groups of the target size.

    Leave out groups of fewer than `least` files.
    """
    groups: list[list[TableFile]] = [[]]
    size = 0
    for file in sorted(files, key=lambda file: file.file_path):
        if size >= target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.file_size_in_bytes
    return [group for group in groups if len(group) >= least]


def _batches(hours: Sequence[_SmallFiles]) -> Iterator[list[_SmallFiles]]:
    """Yield the hours of each commit."""
    batch: list[_SmallFiles] = []
    for hour in hours:
        batch.append(hour)
        if sum(each.bytes for each in batch) >= COMMIT_BYTES:
            yield batch
            batch = []
    if batch:
        yield batch


def _compact(
    context: Context, topic: Topic, batch: Sequence[_SmallFiles], kept: dict[str, str], count: Count
) -> list[CompactedHour]:
    """Write the hours' new files and commit them together. Return the compacted hours."""
    begun = context.clock()
    present = _Present.of(topic, _table(context, topic))
    rewriting = Rewriting(topic, present.table)
    written: dict[str, list[TableFile]] = {}
    for hour in batch:
        try:
            written[hour.hour] = _rewritten(rewriting, hour, present)
            context.progress("stored")
        except MillraceError as error:
            kept[hour.hour] = str(error)
        count.add(records=sum(file.record_count for file in hour.files), size=hour.bytes)
    done = [hour for hour in batch if hour.hour in written]
    if not done:
        return []
    rewriting.finish()
    context.progress("written")
    old = [file for hour in done for file in hour.files]
    new = [file for hour in done for file in written[hour.hour]]
    if not _replaced(context, topic, old, new, begun):
        kept |= {hour.hour: "another program rewrote it, or this run stood still: run again" for hour in done}
        return []
    context.progress("committed")
    return [_described(hour, len(written[hour.hour])) for hour in done]


def _rewritten(rewriting: Rewriting, hour: _SmallFiles, present: _Present) -> list[TableFile]:
    """Write the files of an hour in the table's present layout."""
    merged, arranged = hour.groups, hour.strays
    if present.schema.layout.sort:
        merged, arranged = (), [*merged, *arranged]
    files = [file for group in merged if (file := rewriting.write(hour.hour, group))]
    for group in arranged:
        files += rewriting.arrange(hour.hour, group, present.schema, present.ids)
    return files


def _replaced(
    context: Context, topic: Topic, old: Sequence[TableFile], new: Sequence[TableFile], begun: float
) -> bool:
    """Commit new files in place of old ones. Return False when another run was first, or this run was
    suspended for too long.

    After a lost answer, the table shows whether the commit was made. A late commit meets another head, or
    finds the replacement already made, and is refused.
    """

    def attempt() -> bool:
        table = _table(context, topic)
        live = {file.file_path for file in branch_files(table)}
        if live.issuperset(file.file_path for file in new):
            return True
        stale = context.clock() - begun > STALE_S
        if stale or not live.issuperset(file.file_path for file in old):
            return False
        commit(table, TableChange(added=new, removed=old, same_rows=True))
        return True

    return retried(attempt, f"the small files of {topic} stay", "run again while fewer runs change the table")

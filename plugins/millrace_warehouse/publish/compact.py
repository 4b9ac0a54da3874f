"""Merges the small files of published hours, in one process. The rows stay the same, and are counted by load.

A quiet hour with too many small files gets few large ones, in one commit of the table. A source must have
exactly the bytes that its load, or an earlier compaction, has written. The rows of each load are counted
before and after: if they differ, there is no commit. A list of hashes lies beside the new files.

Nothing is deleted. If another commit wins, the files that this run has written are strays, which `millrace
expire` deletes. Asks neither brokers nor an auditor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyiceberg.manifest import DataFile as TableFile
from pyiceberg.table import Table

from millrace.errors import MillraceError
from millrace_warehouse.context import Context
from millrace_warehouse.history.layout import Topic, publications_from
from millrace_warehouse.publish.committer import TableChange, commit, head_files, live_files
from millrace_warehouse.publish.live import follow
from millrace_warehouse.publish.rewriting import Rewriting
from millrace_warehouse.publish.table import PATH, published_table
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
    bytes: int
    """Bytes of the small files before they are merged; `rows` is the number of their rows."""


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
    """Small files of one hour, in groups that each become one file."""

    hour: str
    groups: Sequence[Sequence[TableFile]]

    @property
    def files(self) -> list[TableFile]:
        return [file for group in self.groups for file in group]

    @property
    def bytes(self) -> int:
        return sum(file.file_size_in_bytes for file in self.files)


def compact_topic(context: Context, request: Compact, name: str) -> CompactResult:
    """Merge the small files of quiet hours.

    Raise MillraceError when the table differs from its publication.
    """
    topic = Topic(context.storage, name)
    table = _table(context, topic)
    done: list[_SmallFiles] = []
    kept: dict[str, str] = {}
    for batch in _batches(_hours(context, request, table, kept)):
        if not request.dry_run:
            batch = _compact(context, topic, batch, kept)
        done += batch
    notes = follow(context, topic) if done and not request.dry_run else []
    return CompactResult(topic=name, hours=[_described(hour) for hour in done], kept=kept, notes=notes)


def _described(hour: _SmallFiles) -> CompactedHour:
    return CompactedHour(
        hour=hour.hour,
        rows=sum(file.record_count for file in hour.files),
        files_before=len(hour.files),
        files_after=len(hour.groups),
        bytes=hour.bytes,
    )


def _hours(context: Context, request: Compact, table: Table, kept: dict[str, str]) -> list[_SmallFiles]:
    """Return the hours to compact, ascending, UNFILED last."""
    crowded: dict[str, list[TableFile]] = {}
    for hour, files in head_files(table).items():
        here = (file for file in files if file.spec_id == table.spec().spec_id)
        small = [file for file in here if file.file_size_in_bytes < request.small_bytes]
        if len(small) > request.small_files:
            crowded[hour] = small
    busy = _changed_lately(context, table, request.quiet_s) if crowded else set()
    for hour in sorted(busy & crowded.keys()):
        kept[hour] = "a publication has changed it lately: run again when it has been quiet"
    hours = (
        _SmallFiles(hour, _groups(crowded[hour], request.target_bytes))
        for hour in sorted(crowded.keys() - busy)
    )
    return [hour for hour in hours if hour.groups]


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


def _groups(files: Sequence[TableFile], target_bytes: int) -> list[list[TableFile]]:
    """Return files in the order of their paths, which is the order of loads, in groups of the target size."""
    groups: list[list[TableFile]] = [[]]
    size = 0
    for file in sorted(files, key=lambda file: file.file_path):
        if size >= target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.file_size_in_bytes
    return [group for group in groups if len(group) > 1]


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
    context: Context, topic: Topic, batch: Sequence[_SmallFiles], kept: dict[str, str]
) -> list[_SmallFiles]:
    """Write the hours' new files and commit them together. Return the compacted hours."""
    begun = context.clock()
    rewriting = Rewriting(topic, _table(context, topic))
    written: dict[str, list[TableFile]] = {}
    for hour in batch:
        try:
            written[hour.hour] = [
                file for group in hour.groups if (file := rewriting.write(hour.hour, group))
            ]
            context.progress("stored")
        except MillraceError as error:
            kept[hour.hour] = str(error)
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
    return done


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
        live = {file.file_path for file in live_files(table)}
        if live.issuperset(file.file_path for file in new):
            return True
        stale = context.clock() - begun > STALE_S
        if stale or not live.issuperset(file.file_path for file in old):
            return False
        commit(table, TableChange(added=new, removed=old, same_rows=True))
        return True

    return retried(attempt, f"the small files of {topic} stay", "run again while fewer runs change the table")

"""Writes ranges of a log into files and the unsealed manifest of one attempt, for loads and re-loads.

Reads each range once and checks that the storage holds the files that the tasks report. Accounts for every
offset and record, and refuses an account that does not close. Stores the files that the table and `verify`
need. Decides neither which offsets to read nor whether the attempt counts.

    parts = parts_to_load(context.client, topic, topic_id, loaded, ends)     the ranges to read
    manifest = write_ranges(context, draft, pinned, parts)                   the draft, completed
"""

from __future__ import annotations

import dataclasses
import io
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from millrace.client.cluster_client import EARLIEST, ClusterClient
from millrace.client.topic_admin import topic_setting
from millrace.errors import CorruptMessage, MillraceError
from millrace.records import split_batches
from millrace.records.mirror_position import MirrorPosition, records_end
from millrace_audit.reports.counts import SequenceCounts
from millrace_avro.json_rows import MAX_UNKNOWN_FIELDS
from millrace_warehouse.context import Progress
from millrace_warehouse.history.entries import write_entries
from millrace_warehouse.history.erasures import Erasing, to_apply
from millrace_warehouse.history.layout import Topic, rows_folder
from millrace_warehouse.history.manifest import (
    AsideMessages,
    DataFile,
    LoadManifest,
    OriginPartition,
    PartitionRange,
    StoredFile,
    check_law,
    now,
)
from millrace_warehouse.history.same_log import RefusedLog, cut_log
from millrace_warehouse.history.schemas import TableSchema, avro_schema
from millrace_warehouse.history.stored import ENTRIES, ERASED, store, store_sequences
from millrace_warehouse.load.erased import RowsTaken, erased_rows
from millrace_warehouse.load.rejections import DEFAULT_LIMITS, Reasons, RejectedLimits
from millrace_warehouse.load.task import CutResult, CutTask, RunTasks, Source, write_cut
from millrace_warehouse.log.formats import other_format
from millrace_warehouse.log.kinds import Kind, Look
from millrace_warehouse.log.messages import Filing, Lookup
from millrace_warehouse.log.ranges import Gap, Range, RangeStats, cut_ranges, join_stats
from millrace_warehouse.log.reading import fetch_from, has_byte_positions
from millrace_warehouse.storage.interface import Storage
from millrace_warehouse.table_layout import NO_LAYOUT, TableLayout

ORIGIN_FETCH_BYTES = 4 << 20
"""Most bytes read to find a position batch. A mirror appends less at a time, and ends each append with such a
batch.
"""

_WRONG = {
    Kind.FOREIGN_FRAMING: "have a foreign framing",
    Kind.UNKNOWN_SCHEMA: "have a schema id that the registry does not know",
    Kind.BROKEN_BODY: "have a body that could not be decoded",
}
_CURE = {
    Kind.FOREIGN_FRAMING: "let the producer write Avro with the registry's serializer",
    Kind.UNKNOWN_SCHEMA: "register the schema",
    Kind.BROKEN_BODY: "correct the producer, or promote its schema",
}


@dataclass(frozen=True, slots=True)
class Pinned:
    """A topic's schema, and the settings with which tasks read and write its rows."""

    table_schema: TableSchema
    source: Source

    @classmethod
    def from_schema(
        cls, table_schema: TableSchema, connect: Callable[[], ClusterClient], lookup: Lookup
    ) -> Pinned:
        """Return the settings of tasks for rows with the columns of a table schema.

        Raise MillraceError if the registry's schema has other columns.
        """
        schema = avro_schema(table_schema, lookup)
        return cls(
            table_schema,
            Source(
                connect,
                lookup,
                schema,
                table_schema.arrow_schema,
                table_schema.iceberg,
                table_schema.messages,
                table_schema.layout,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadContext:
    """Connections, functions and settings of a load or a re-load. The job builds it."""

    storage: Storage
    client: ClusterClient
    run_tasks: RunTasks
    run_id: str
    cut_bytes: int
    pin: Callable[[str, int], Pinned]
    """Function that returns the newest schema of a topic. It is called for each attempt, with the number of
    the schema that the newest load used. The first load passes 0, and pins the returned schema once its rows
    are written.
    """
    progress: Progress
    max_rejected: RejectedLimits = DEFAULT_LIMITS
    """Limits of rejected records by kind; a load with more fails."""
    tombstones_as_rows: bool = False
    """Write each tombstone as a row of nulls."""
    accept_gaps: bool = False
    """Accept offsets that are missing in the middle of the log. They are listed as a gap."""


def empty_partition(partition: int) -> PartitionRange:
    """Return the empty range of a partition from which nothing was loaded."""
    return PartitionRange(partition=partition, start=0, end=0)


def empty_after(part: PartitionRange) -> PartitionRange:
    """Return the empty range after a load, for a partition without new offsets."""
    end, base = part.end, part.end_base
    return PartitionRange(
        partition=part.partition,
        start=end,
        start_base=base,
        end=end,
        end_base=base,
        end_epoch=part.end_epoch,
        origin=part.origin,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPart:
    """One partition's part of a load."""

    before: PartitionRange
    """Empty range at the end of the newest load."""
    range: Range | None = None
    """Range to read; None without new offsets."""
    expired: Sequence[Gap] = ()
    """Offsets before the range that retention deleted before any load; their reason is `control` if they held
    no records.
    """


def parts_to_load(
    client: ClusterClient,
    topic: str,
    topic_id: str,
    loaded: Mapping[int, PartitionRange],
    ends: Mapping[int, int],
) -> list[LoadedPart]:
    """Return for each partition the range from the newest load's end to `ends`, and its expired offsets."""
    before = {p: empty_partition(p) for p in ends} | {p: empty_after(part) for p, part in loaded.items()}
    news = {p for p, end in ends.items() if end > before[p].reach}
    earliest = client.list_offsets(topic, EARLIEST, news) if news else {}
    parts = []
    for partition, position in sorted(before.items()):
        if partition not in news:
            parts.append(LoadedPart(before=position))
            continue
        start, base, end, expired = position.end, position.end_base, ends[partition], []
        first = min(earliest[partition], end)
        if first > start:
            # The log may begin exactly where the last batch read ended: then nothing is missing.
            if first != base:
                only_control = _only_control(client, topic, partition, start, first)
                expired.append(Gap(start, first, "control" if only_control else "expired"))
                base = None
            start = first
        range_ = range_of(client, topic, topic_id, partition, start, end, base)
        parts.append(LoadedPart(before=position, range=range_, expired=expired))
    return parts


def range_of(
    client: ClusterClient, topic: str, topic_id: str, partition: int, start: int, end: int, base: int | None
) -> Range:
    """Return the range of a partition's offsets [start, end).

    `base` is the byte position at which its first batch must begin if nothing is missing; None: unknown."""
    return Range(topic, partition, start, end, base, uuid.UUID(topic_id), has_byte_positions(client))


def _only_control(client: ClusterClient, topic: str, partition: int, start: int, first: int) -> bool:
    """Return True if no record was in [start, first) of a log that now begins at `first`, judging by its
    first batch.

    A mirrored partition closes every append with a control batch, which no reader sees until more data
    follows. Without this check a quiet partition would seem to lose messages whenever it expires.
    """
    with suppress(CorruptMessage):  # reported when the records are read
        for header, batch in split_batches(fetch_from(client, topic, partition, first, 1).records):
            end = records_end(header, batch)
            return header.base_offset == first and end is not None and end <= start
    return False


def origin_of(client: ClusterClient, topic: str, partition: int, offset: int) -> OriginPartition | None:
    """Return the source of a mirrored partition's records from an offset on, as the next position batch
    states it.

    Return None when no position batch follows the offset: the partition is not mirrored.
    """
    with suppress(CorruptMessage):  # reported when the records are read
        fetched = fetch_from(client, topic, partition, offset, ORIGIN_FETCH_BYTES)
        for header, batch in split_batches(fetched.records):
            if (position := MirrorPosition.from_batch(header, batch)) is not None:
                origin = position.origin
                return OriginPartition(
                    cluster=origin.cluster,
                    topic=origin.topic,
                    topic_id=origin.topic_id.hex,
                    partition=origin.partition,
                )
    return None


def write_ranges(
    context: LoadContext, draft: LoadManifest, pinned: Pinned, parts: Sequence[LoadedPart]
) -> LoadManifest:
    """Write the rows of the parts into the attempt's folder. Return the completed draft, not sealed yet.

    Raise MillraceError when the storage lacks a file, or when an offset has neither a batch nor a reason to
    be missing.
    """
    # After the newest edition was looked up: an erasure that is created later takes this number.
    erasing = to_apply(Topic(context.storage, draft.topic), now(), again=draft.edition > 1)
    folder = rows_folder(draft.topic, draft.load, draft.attempt)
    results = _write(context, draft, pinned.source, parts, folder, erasing)
    return complete_draft(context, draft, pinned, parts, results, erasing)


def complete_draft(
    context: LoadContext,
    draft: LoadManifest,
    pinned: Pinned,
    parts: Sequence[LoadedPart],
    results: Sequence[CutResult],
    erasing: Sequence[Erasing],
) -> LoadManifest:
    """Account for the tasks' results, which cover the parts. Return the completed draft, not sealed yet.

    Raise MillraceError as `write_ranges` does.
    """
    context.progress("written")
    topic, folder = Topic(context.storage, draft.topic), rows_folder(draft.topic, draft.load, draft.attempt)
    files = sorted((file for result in results for file in result.files), key=lambda file: file[0].path)
    rejected = sorted((file for result in results for file in result.rejected), key=lambda file: file.path)
    tombstones = sorted(
        (file for result in results for file in result.tombstones), key=lambda file: file.path
    )
    stored = [*(file for file, _ in files), *rejected, *tombstones]
    check_stored(topic, folder, stored)
    cuts: dict[int, list[RangeStats]] = {}
    counts, erased, taken = SequenceCounts(), SequenceCounts(), RowsTaken()
    aside, unknown = Counter[tuple[str, str]](), Counter[str]()
    for result in results:
        cuts.setdefault(result.stats.partition, []).append(result.stats)
        counts.merge(result.sequences)
        erased.merge(result.erased_sequences)
        taken.update(result.erased)
        aside.update(result.aside_by_hour)
        unknown.update(result.stats.unknown_fields)
    partitions = [
        without_erased(_account(context, part, cuts.get(part.before.partition, [])), taken) for part in parts
    ]
    _check_gaps(context, draft.topic, partitions)
    _check_rejected(context, pinned, partitions, results)
    manifest = dataclasses.replace(
        draft,
        created=now(),
        schema=pinned.table_schema.number,
        partitions=partitions,
        files=[file for file, _ in files],
        rejected_files=rejected,
        tombstone_files=tombstones,
        aside_by_hour=[
            AsideMessages(hour=hour, kind=kind, messages=messages)
            for (hour, kind), messages in sorted(aside.items())
        ],
        unknown_fields=dict(unknown.most_common(MAX_UNKNOWN_FIELDS)),
        erases=None,
        erasures=[each.id for each in erasing],
        erased=erased_rows(taken),
    )
    if problems := check_law(manifest):
        raise MillraceError(
            f"{draft.topic}: the counts do not agree: {problems[0]}; no load was made: report this bug"
        )
    table_schema = pinned.table_schema
    return with_stored(
        context.storage, manifest, files, table_schema.iceberg, counts, erased, table_schema.layout
    )


def without_erased(part: PartitionRange, taken: RowsTaken) -> PartitionRange:
    """Return a partition's part without the rows that erasures took."""
    rows = sum(rows for (_, partition, _), rows in taken.items() if partition == part.partition)
    return dataclasses.replace(part, written=part.written - rows, filtered=part.filtered + rows)


def with_stored(
    storage: Storage,
    manifest: LoadManifest,
    files: Sequence[tuple[DataFile, bytes]],
    iceberg: Mapping[str, Any],
    counts: SequenceCounts,
    erased: SequenceCounts,
    layout: TableLayout = NO_LAYOUT,
) -> LoadManifest:
    """Store the files for the table and `verify` beside the rows. Return the manifest with them."""
    folder = rows_folder(manifest.topic, manifest.load, manifest.attempt)
    sequences, sequences_file = store_sequences(storage, folder, counts)
    erased_sequences, erased_file = store_sequences(storage, folder, erased, ERASED)
    entries = None
    if files:
        entries = store(storage, f"{folder}/{ENTRIES}", io.BytesIO(write_entries(files, iceberg, layout)))
    return dataclasses.replace(
        manifest,
        entries=entries,
        sequences=sequences,
        sequences_file=sequences_file,
        erased_sequences=erased_sequences,
        erased_sequences_file=erased_file,
    )


def _write(
    context: LoadContext,
    draft: LoadManifest,
    source: Source,
    parts: Sequence[LoadedPart],
    folder: str,
    erasing: Sequence[Erasing],
) -> list[CutResult]:
    ranges = [part.range for part in parts if part.range is not None]
    filing = Filing(draft.load, draft.file_by_ms, context.tombstones_as_rows)
    tasks = [
        CutTask(
            source=source,
            cut=cut,
            index=index,
            storage=context.storage,
            folder=folder,
            filing=filing,
            erasing=erasing,
        )
        for index, cut in enumerate(cut_ranges(ranges, context.cut_bytes))
    ]
    return write_cuts(context, draft.topic, tasks)


def write_cuts(context: LoadContext, topic: str, tasks: Sequence[CutTask]) -> list[CutResult]:
    """Run the tasks. Raise MillraceError if the log was cut back since one of them has read it.

    Each task reads one log, and the end of its batches is in the log now: so all of them have read this one.
    """
    results = context.run_tasks(write_cut, tasks)
    read = (part for result in results if (part := _end_of_cut(result.stats)) is not None)
    if cut := cut_log(context.client, topic, read):
        raise MillraceError(f"{cut}; what was read does not count: run again")
    return results


def _end_of_cut(stats: RangeStats) -> PartitionRange | None:
    """Return the empty range after the last batch of a cut, or None without such a batch or its epoch."""
    if (cursor := stats.cursor) is None or cursor.epoch < 0:
        return None
    end = cursor.next_offset
    return PartitionRange(partition=stats.partition, start=end, end=end, end_epoch=cursor.epoch)


def check_stored(topic: Topic, folder: str, files: Sequence[StoredFile]) -> None:
    """Raise MillraceError unless the storage lists every file with the size that its task has stored.

    Other files in the folder come from tasks that ran twice, and are never read. Tasks hash the bytes while
    they store them, and `verify` hashes the files later, so the driver does not read them.
    """
    sizes = {f"{folder}/{listed.path}": listed.bytes for listed in topic.storage.files(folder)}
    for file in files:
        path = f"{topic}/{file.path}"
        if (size := sizes.get(path)) != file.bytes:
            raise MillraceError(
                f"{topic.storage.uri(path)} has {size} bytes, its task stored {file.bytes}: the storage does"
                " not keep what is written; check that all executors see the same warehouse, then run again"
            )


def _account(context: LoadContext, part: LoadedPart, cuts: Sequence[RangeStats]) -> PartitionRange:
    if part.range is None:
        return part.before
    stats, origin = join_stats(part.range, cuts), part.before.origin
    if origin is None and stats.control_batches:
        origin = origin_of(context.client, part.range.topic, part.range.partition, part.range.start)
    return dataclasses.replace(
        end_of(part.before, stats),
        read=stats.records,
        written=stats.records - stats.tombstones - stats.rejected,
        tombstones=stats.tombstones,
        rejected=stats.rejected,
        rejected_by_kind={kind.value: stats.rejected_by_kind[kind] for kind in Kind}
        if stats.rejected
        else {},
        data_batches=stats.data_batches,
        control_batches=stats.control_batches,
        bytes=stats.bytes,
        gaps=[*part.expired, *stats.gaps],
        min_time_ms=stats.min_time,
        max_time_ms=stats.max_time,
        schema_ids=sorted(stats.schema_ids),
        origin=origin,
    )


def end_of(part: PartitionRange, stats: RangeStats) -> PartitionRange:
    """Return a partition's part with its end where a range ends that was read after it."""
    return dataclasses.replace(
        part,
        end=stats.last,
        end_base=stats.cursor.next_base if stats.cursor else None,
        end_epoch=_epoch_at(stats),
    )


def _epoch_at(stats: RangeStats) -> int | None:
    """Return the epoch of the batch that ends where a range does, or None without such a batch or epoch."""
    cursor = stats.cursor
    return cursor.epoch if cursor and cursor.next_offset == stats.last and cursor.epoch >= 0 else None


def _check_gaps(context: LoadContext, topic: str, partitions: Sequence[PartitionRange]) -> None:
    """Raise RefusedLog for offsets that have neither a batch nor a reason to be missing.

    Retention is a reason. Compaction is a reason if the topic is a compacted topic of an Apache Kafka
    cluster.
    """
    absent = [(part, gap) for part in partitions for gap in part.gaps if gap.reason == "absent"]
    if not absent or context.accept_gaps:
        return
    client = context.client
    if not has_byte_positions(client) and "compact" in (topic_setting(client, topic, "cleanup.policy") or ""):
        return
    part, gap = absent[0]
    raise RefusedLog(
        f"{topic}-{part.partition}: offsets [{gap.start}, {gap.end}) are missing in the middle of the log,"
        " nothing was loaded: run `millrace log verify` on its broker and restore it, or load with"
        " --accept-gaps to continue without them"
    )


def _check_rejected(
    context: LoadContext, pinned: Pinned, partitions: Sequence[PartitionRange], results: Sequence[CutResult]
) -> None:
    """Raise RefusedLog, naming each kind with more rejected records than its limit allows."""
    read = sum(part.read for part in partitions)
    over: dict[Kind, str] = {}
    cures: list[str] = []
    for kind in Kind:
        rejected = sum(part.rejected_by_kind.get(kind, 0) for part in partitions)
        limit = context.max_rejected.limit_for(kind)
        if rejected <= limit.allowed(read):
            continue
        reasons, foreign = Reasons(), b""
        for result in results:
            reasons.add(result.reasons[kind].items())
            foreign = foreign or (result.foreign if kind == Kind.FOREIGN_FRAMING else b"")
        begins = f"; one of them begins with {foreign.hex(' ')}" if foreign else ""
        over[kind] = (
            f"{rejected:,} of {read:,} records {_WRONG[kind]}, allowed are {limit}: {reasons}{begins}"
        )
        looks = (result.looks[kind] for result in results if kind in result.looks)
        look = next(looks, None) if rejected > read / 2 else None  # else the topic has the right format
        cures.append(_cure(kind, look, pinned.table_schema.message_format))
    if over:
        raise RefusedLog(
            f"{pinned.table_schema.topic}: {'; '.join(over.values())}; nothing was loaded:"
            f" {', '.join(cures)}, or raise --max-rejected"
        )


def _cure(kind: Kind, look: Look | None, format: str) -> str:
    """Return what to do about too many rejected records that look so in a topic of a format."""
    return (look and other_format(look, format)) or _CURE[kind]

"""From ranges of a log to a checked, unsealed manifest of a staging folder: what every load has in common.

Reads each range once through a sink, checks that the folder holds what the tasks say, accounts for every
offset and record, and refuses what does not close. Decides neither what to read nor whether it is published.

    parts = parts_of(run.client, topic, topic_id, reached, ends)    what of each partition is read
    manifest = write_ranges(run, heading, pinned, parts, staging)   unsealed; `previous` is the heading's
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from millrace.client.cluster_client import EARLIEST, ClusterClient
from millrace.client.topic_admin import topic_setting
from millrace.errors import CorruptMessage, MillraceError
from millrace.records import split_batches
from millrace.records.mirror_position import records_end
from millrace.wire.mirror_append import BYTE_OFFSETS_PREFIX
from millrace_audit.reports.counts import SequenceCounts
from millrace_spark.files.filesystem import Filesystem
from millrace_spark.load.direct import CutResult, Sink, Source
from millrace_spark.parquet.rejections import DEFAULT_LIMIT, Reasons, RejectedLimit
from millrace_spark.topic.ranges import Gap, Range, RangeStats, cut_ranges, join_stats
from millrace_spark.warehouse.layout import spill_sequences
from millrace_spark.warehouse.manifest import LoadManifest, OriginPartition, PartitionRange, check_law
from millrace_spark.warehouse.staging import Progress, check_files


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a load decodes with: the source, and the id of the schema whose fields are the columns."""

    source: Source
    table_schema_id: int
    promotion: int | None = None
    """Number of the promotion that pinned it, None for the schema the first load pinned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WritingRun:
    """What writing needs; built in one place, by the job."""

    fs: Filesystem
    client: ClusterClient
    sink: Sink
    run_id: str
    cut_bytes: int
    origin_of: Callable[[str, int, int], OriginPartition | None]
    """Where (topic, partition)'s records in the range from an offset on come from, None if unknown."""
    progress: Progress
    max_rejected: RejectedLimit = DEFAULT_LIMIT
    """More records set aside than this, and the load fails."""
    accept_gaps: bool = False
    """Go on over offsets that are missing in the middle of the log; they stay listed as a gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """What a manifest says that is not found by reading."""

    topic: str
    topic_id: str
    cluster_id: str
    load: int
    edition: int = 1
    previous: str | None
    """`sha256` of the manifest it follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Where a partition stands: the next offset to read, the byte position of the batch expected there."""

    offset: int = 0
    base: int | None = None
    origin: OriginPartition | None = None

    def is_at(self, end: int) -> bool:
        """True if nothing lies before the end that was not read: up to `base` there is no other batch."""
        return end <= max(self.offset, self.base or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPart:
    """One partition's part of a load: where it stood, and what of the log is read; None without news."""

    partition: int
    reached: Reached
    range: Range | None
    expired: Gap | None
    """Offsets before the range that retention took before anybody loaded them; `control` without records."""


def reached_by(partitions: Sequence[PartitionRange]) -> dict[int, Reached]:
    """Where a load has left each partition."""
    return {
        part.partition: Reached(offset=part.end, base=part.end_base, origin=part.origin)
        for part in partitions
    }


def parts_of(
    client: ClusterClient, topic: str, topic_id: str, reached: Mapping[int, Reached], ends: Mapping[int, int]
) -> list[LoadedPart]:
    """What to read of every partition, up to `ends`, and what of it has expired already."""
    news = {p: end for p, end in ends.items() if not reached.get(p, Reached()).is_at(end)}
    earliest = client.list_offsets(topic, EARLIEST, news) if news else {}
    parts = []
    for partition in sorted(reached.keys() | ends.keys()):
        stand = reached.get(partition, Reached())
        if partition not in news:
            parts.append(LoadedPart(partition=partition, reached=stand, range=None, expired=None))
            continue
        start, base, end, expired = stand.offset, stand.base, news[partition], None
        first = min(earliest[partition], end)
        if first > start:
            # The log may begin exactly where the last batch read ended: then nothing is missing.
            if first != base:
                bare = _only_control(client, topic, partition, start, first)
                expired = Gap(start=start, end=first, reason="control" if bare else "expired")
                base = None
            start = first
        range_ = Range(
            topic, partition, start, end, base, uuid.UUID(topic_id), byte_positions=byte_positions(client)
        )
        parts.append(LoadedPart(partition=partition, reached=stand, range=range_, expired=expired))
    return parts


def _only_control(client: ClusterClient, topic: str, partition: int, start: int, first: int) -> bool:
    """True if no record was in [start, first) of a log that begins at `first` now, as its first batch says.

    A mirrored partition closes every append with a control batch, which no reader sees until more data
    follows: without this, a quiet one would seem to have lost messages whenever it expires.
    """
    fetched = client.fetch(
        topic, {partition: first}, max_bytes=1, max_wait_ms=0, partition_max_bytes=1
    )[partition]  # fmt: skip
    try:
        header, batch = next(iter(split_batches(fetched.records)), (None, None))
    except CorruptMessage:
        return False  # whoever reads the records says so
    if header is None or batch is None or header.base_offset != first:
        return False
    end = records_end(header, batch)
    return end is not None and end <= start


def write_ranges(
    run: WritingRun, heading: Heading, pinned: Pinned, parts: Sequence[LoadedPart], staging: str
) -> LoadManifest:
    """Write the rows of the parts into the staging folder; its manifest, checked but not sealed.

    MillraceError when storage does not hold what was written, or an offset has neither a batch nor a reason.
    """
    run.fs.make_folder(staging)
    ranges = [part.range for part in parts if part.range is not None]
    results = run.sink.write(pinned.source, cut_ranges(ranges, run.cut_bytes), staging)
    run.progress("written")
    files = [file for result in results for file in result.files]
    check_files(run.fs, staging, files)
    cuts: dict[int, list[RangeStats]] = {}
    for result in results:
        cuts.setdefault(result.stats.partition, []).append(result.stats)
    partitions = [_partition_range(run, part, cuts.get(part.partition, [])) for part in parts]
    _check_gaps(run, heading.topic, partitions)
    _check_rejected(run, heading.topic, partitions, results)
    sequences, spilled = spill_sequences(run.fs, staging, _sequences(results))
    manifest = LoadManifest(
        topic=heading.topic,
        topic_id=heading.topic_id,
        cluster_id=heading.cluster_id,
        load=heading.load,
        edition=heading.edition,
        run_id=run.run_id,
        created=now(),
        sink=run.sink.name,
        table_schema_id=pinned.table_schema_id,
        promotion=pinned.promotion,
        partitions=partitions,
        files=sorted(files, key=lambda file: file.path),
        sequences=sequences,
        spilled=spilled,
        previous=heading.previous,
    )
    if problems := check_law(manifest):
        raise MillraceError(
            f"{heading.topic}: the account does not close: {problems[0]}; nothing was published"
        )
    return manifest


def _partition_range(run: WritingRun, part: LoadedPart, cuts: Sequence[RangeStats]) -> PartitionRange:
    """The account of one partition; without news it stays where it stood."""
    reached, range_ = part.reached, part.range
    if range_ is None:
        return PartitionRange(
            partition=part.partition, start=reached.offset, start_base=reached.base,
            end=reached.offset, end_base=reached.base, origin=reached.origin,
        )  # fmt: skip
    stats = join_stats(range_, cuts)
    origin = reached.origin
    if origin is None and stats.control_batches:
        origin = run.origin_of(range_.topic, range_.partition, range_.start)
    return _described(part, stats, origin)


def _described(part: LoadedPart, stats: RangeStats, origin: OriginPartition | None) -> PartitionRange:
    gaps = [Gap(start=gap.start, end=gap.end, reason=gap.reason) for gap in stats.gaps]
    return PartitionRange(
        partition=part.partition,
        start=part.reached.offset,
        start_base=part.reached.base,
        end=stats.last,
        end_base=stats.next_base,
        read=stats.records,
        written=stats.records - stats.rejected,
        rejected=stats.rejected,
        data_batches=stats.data_batches,
        control_batches=stats.control_batches,
        bytes=stats.bytes,
        gaps=[part.expired, *gaps] if part.expired is not None else gaps,
        min_time_ms=stats.min_time,
        max_time_ms=stats.max_time,
        schema_ids=sorted(stats.schema_ids),
        origin=origin,
    )


def byte_positions(client: ClusterClient) -> bool:
    """True if the cluster's offsets are byte positions (Millrace), False if they count records."""
    return client.cluster_id.startswith(BYTE_OFFSETS_PREFIX)


def _check_gaps(run: WritingRun, topic: str, partitions: Sequence[PartitionRange]) -> None:
    """MillraceError for offsets that have neither a batch nor a reason to be missing.

    Retention is a reason, and compaction where a topic of an Apache Kafka cluster is compacted.
    """
    absent = [(part, gap) for part in partitions for gap in part.gaps if gap.reason == "absent"]
    if not absent or run.accept_gaps:
        return
    if not byte_positions(run.client) and "compact" in (
        topic_setting(run.client, topic, "cleanup.policy") or ""
    ):
        return
    part, gap = absent[0]
    raise MillraceError(
        f"{topic}-{part.partition}: offsets [{gap.start}, {gap.end}) are missing in the middle of the log,"
        " nothing was published: run `millrace log verify` on its broker and restore it, or load with"
        " --accept-gaps to go on without them"
    )


def _check_rejected(
    run: WritingRun, topic: str, partitions: Sequence[PartitionRange], results: Sequence[CutResult]
) -> None:
    """MillraceError when more records could not be decoded than one mistaken producer explains."""
    read, rejected = sum(part.read for part in partitions), sum(part.rejected for part in partitions)
    if rejected <= run.max_rejected.allowed(read):
        return
    reasons = Reasons()
    for result in results:
        reasons.merge(result.reasons)
    raise MillraceError(
        f"{topic}: {rejected:,} of {read:,} records could not be decoded, allowed are {run.max_rejected}:"
        f" {reasons}; nothing was published: mend the registry or the producer, or raise --max-rejected"
    )


def _sequences(results: Sequence[CutResult]) -> SequenceCounts:
    counts = SequenceCounts()
    for result in results:
        counts.merge(result.sequences)
    return counts


def now() -> str:
    """The time as manifests state it: UTC, ISO 8601, in ms."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

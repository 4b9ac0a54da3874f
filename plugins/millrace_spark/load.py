"""One load: what is new in a topic, read once, accounted for, made visible by one rename.

The run: heal what a crash left, freeze the end, then until one attempt is published or nothing is left to
do: start at the published end, write to a staging folder, verify, describe, rename. Another driver that was
first makes the rename fail; then this one starts over from what that one published. Written without Spark:
sinks bring it along.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from millrace.audit.counts import SequenceCounts
from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace.manifest import (
    Gap,
    LoadManifest,
    OriginPartition,
    PartitionRange,
    ProducerSequences,
    check_law,
    sealed,
)
from millrace.wire.client import EARLIEST, LATEST, ClusterClient, TopicMetadata
from millrace.wire.mirror_append import BYTE_OFFSETS_PREFIX
from millrace.wire.topic_settings import topic_setting
from millrace_spark.filesystem import Filesystem
from millrace_spark.plan import Plan, PlannedEnd, check_topic_id, freeze
from millrace_spark.ranges import Range, RangeStats, cut_ranges, join_stats
from millrace_spark.sinks import CutResult, Sink, Source, check_files
from millrace_spark.warehouse import (
    STAGING,
    Progress,
    check_topic_name,
    load_folder,
    newest_load,
    publish,
    read_load,
    record,
    sweep_staging,
)

ATTEMPTS = 20
"""Races lost in a row before a run gives up: each means that another one got its load through."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a load decodes with: the source, and the id of the schema whose fields are the columns."""

    source: Source
    table_schema_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """Everything one run needs; built in one place, by the job."""

    fs: Filesystem
    client: ClusterClient
    pin: Callable[[str], Pinned]
    """The source of a topic; asked once per attempt that reads."""
    sink: Sink
    run_id: str
    cut_bytes: int
    publish_counts: Callable[[LoadManifest], None]
    """Tells the auditor what a load holds; harmless to repeat."""
    origin_of: Callable[[str, int, int], OriginPartition | None]
    """Where (topic, partition)'s records in the range from an offset on come from, None if unknown."""
    progress: Progress
    accept_new_topic: bool = False
    """Go on with a topic that was deleted and created anew, from its beginning."""
    accept_gaps: bool = False
    """Go on over offsets that are missing in the middle of the log; they stay listed as a gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What a run did, for people and for scripts."""

    topic: str
    run_id: str
    load: int | None
    """The load that holds everything this run set out to load; None while the topic is empty."""
    published: bool
    """True if this call published it."""
    rows: int
    rejected: int
    hours: Mapping[str, int]
    gaps: Sequence[str]
    message: str


def load_topic(run: LoadRun, topic: str) -> LoadResult:
    """Load what the run's plan says, unless it is loaded already; MillraceError when it cannot be done."""
    check_topic_name(topic)
    metadata = _metadata(run.client, topic)
    newest = _healed(run, topic, None)
    sweep_staging(run.fs, topic)
    plan, fresh = freeze(run.fs, topic, run.run_id, lambda: _propose(run, metadata, newest))
    run.progress("planned")
    for _ in range(ATTEMPTS):
        newest = _healed(run, topic, newest)
        check_topic_id(plan, _metadata(run.client, topic).topic_id.hex)
        _check_same_topic(run, plan, newest)
        if _covered(plan, newest):
            return _nothing_to_do(run.fs, plan, newest, fresh)
        manifest = _attempt(run, plan, newest)
        if manifest is not None:
            run.publish_counts(manifest)
            run.progress("counted")
            return _published(manifest)
    raise MillraceError(f"{topic}: other runs were faster {ATTEMPTS} times; run one load at a time")


def _metadata(client: ClusterClient, topic: str) -> TopicMetadata:
    try:
        return client.topic(topic)
    except UnknownTopicOrPartition:
        raise MillraceError(
            f"topic {topic!r} does not exist on {client.bootstrap}: check its name, or create it first"
        ) from None


def _healed(run: LoadRun, topic: str, seen: LoadManifest | None) -> LoadManifest | None:
    """The newest load, its ledger entry and its counts made good unless it is the one seen before.

    Asked before every attempt: whoever publishes the next load hides this one from all later runs, and the
    driver that published it may have died right after its rename.
    """
    newest = newest_load(run.fs, topic)
    if newest is not None and newest != seen:
        record(run.fs, topic, load_folder(newest.load), newest)
        run.publish_counts(newest)
        run.progress("healed")
    return newest


def _propose(run: LoadRun, metadata: TopicMetadata, newest: LoadManifest | None) -> Plan:
    ends = run.client.list_offsets(metadata.name, LATEST, metadata.partitions)
    if newest is not None and newest.topic_id == metadata.topic_id.hex:
        for partition, end in newest.ends.items():
            if ends.get(partition, 0) < end:
                raise MillraceError(
                    f"{metadata.name}-{partition} ends at offset {ends.get(partition, 0)}, but was loaded"
                    f" up to {end}: its log has lost messages; restore it before you load on"
                )
    return Plan(
        topic=metadata.name,
        topic_id=metadata.topic_id.hex,
        cluster_id=run.client.cluster_id,
        run_id=run.run_id,
        created=_now(),
        ends=tuple(PlannedEnd(partition=p, end=end) for p, end in sorted(ends.items())),
    )


def _check_same_topic(run: LoadRun, plan: Plan, newest: LoadManifest | None) -> None:
    if newest is None or newest.topic_id == plan.topic_id or run.accept_new_topic:
        return
    raise MillraceError(
        f"topic {plan.topic} was deleted and created anew (id {plan.topic_id}, the loads are of"
        f" {newest.topic_id}): load with --accept-new-topic to go on with it from its beginning"
    )


def _covered(plan: Plan, newest: LoadManifest | None) -> bool:
    if newest is None:
        return not any(plan.end_offsets.values())
    return newest.covers(plan.topic_id, plan.end_offsets)


def _attempt(run: LoadRun, plan: Plan, newest: LoadManifest | None) -> LoadManifest | None:
    """One try to load from the published end to the plan's; None when another driver was first."""
    staging = f"{plan.topic}/{STAGING}/{uuid.uuid4().hex}"
    try:
        manifest = _write(run, plan, newest, staging)
    except BaseException:
        run.fs.delete(staging)
        raise
    run.progress("verified")
    folder = load_folder(manifest.load)
    return manifest if publish(run.fs, plan.topic, staging, folder, manifest, run.progress) else None


def _write(run: LoadRun, plan: Plan, newest: LoadManifest | None, staging: str) -> LoadManifest:
    before = _before(plan, newest)
    ranges, expired = _ranges(run, plan, before)
    pinned = run.pin(plan.topic)
    run.fs.make_folder(staging)
    results = run.sink.write(pinned.source, cut_ranges(ranges, run.cut_bytes), staging)
    run.progress("written")
    files = [file for result in results for file in result.files]
    check_files(run.fs, staging, files)
    partitions = _account(run, plan, before, ranges, expired, results)
    _check_gaps(run, plan.topic, partitions)
    manifest = LoadManifest(
        topic=plan.topic,
        topic_id=plan.topic_id,
        cluster_id=plan.cluster_id,
        load=1 if newest is None else newest.load + 1,
        run_id=plan.run_id,
        created=_now(),
        sink=run.sink.name,
        table_schema_id=pinned.table_schema_id,
        partitions=partitions,
        files=sorted(files, key=lambda file: file.path),
        sequences=_sequences(results),
        previous=None if newest is None else newest.sha256,
    )
    if problems := check_law(manifest):
        raise MillraceError(f"{plan.topic}: the account does not close: {problems[0]}; nothing was published")
    return sealed(manifest)


def _before(plan: Plan, newest: LoadManifest | None) -> dict[int, PartitionRange]:
    """What the newest load says of each partition; nothing when it is of an earlier topic of that name."""
    if newest is None or newest.topic_id != plan.topic_id:
        return {}
    return {part.partition: part for part in newest.partitions}


def _ranges(
    run: LoadRun, plan: Plan, before: Mapping[int, PartitionRange]
) -> tuple[list[Range], dict[int, Gap]]:
    """What to read of each partition with news, and what of it has expired already."""
    news = {p: end for p, end in plan.end_offsets.items() if end > (before[p].end if p in before else 0)}
    earliest = run.client.list_offsets(plan.topic, EARLIEST, news) if news else {}
    ranges, expired = [], {}
    for partition, end in sorted(news.items()):
        start, base = 0, None
        if partition in before:
            start, base = before[partition].end, before[partition].end_base
        first = min(earliest[partition], end)
        if first > start:
            # The log may begin exactly where the last batch read ended: then nothing is missing.
            if first != base:
                expired[partition] = Gap(start=start, end=first, reason="expired")
                base = None
            start = first
        ranges.append(
            Range(
                plan.topic, partition, start, end, base, uuid.UUID(plan.topic_id),
                byte_positions=_byte_positions(run.client),
            )
        )  # fmt: skip
    return ranges, expired


def _account(
    run: LoadRun,
    plan: Plan,
    before: Mapping[int, PartitionRange],
    ranges: Sequence[Range],
    expired: Mapping[int, Gap],
    results: Sequence[CutResult],
) -> list[PartitionRange]:
    """Every partition's range: those that were read, and those without news as they were."""
    partitions: dict[int, PartitionRange] = {}
    for partition, part in before.items():
        partitions[partition] = PartitionRange(
            partition=partition, start=part.end, start_base=part.end_base,
            end=part.end, end_base=part.end_base, origin=part.origin,
        )  # fmt: skip
    for range_ in ranges:
        cuts = [result.stats for result in results if result.stats.partition == range_.partition]
        stats = join_stats(range_, cuts)
        old = before.get(range_.partition)
        origin = old.origin if old is not None and old.origin is not None else None
        if origin is None and stats.control_batches:
            origin = run.origin_of(plan.topic, range_.partition, range_.start)
        gap = expired.get(range_.partition)
        partitions[range_.partition] = _partition_range(stats, old, gap, origin)
    for partition in plan.end_offsets:
        partitions.setdefault(partition, PartitionRange(partition=partition, start=0, end=0))
    return [partitions[partition] for partition in sorted(partitions)]


def _byte_positions(client: ClusterClient) -> bool:
    return client.cluster_id.startswith(BYTE_OFFSETS_PREFIX)


def _check_gaps(run: LoadRun, topic: str, partitions: Sequence[PartitionRange]) -> None:
    """MillraceError for offsets that have neither a batch nor a reason to be missing.

    Retention is a reason, and compaction where a topic of an Apache Kafka cluster is compacted.
    """
    absent = [(part, gap) for part in partitions for gap in part.gaps if gap.reason == "absent"]
    if not absent or run.accept_gaps:
        return
    if not _byte_positions(run.client) and "compact" in (
        topic_setting(run.client, topic, "cleanup.policy") or ""
    ):
        return
    part, gap = absent[0]
    raise MillraceError(
        f"{topic}-{part.partition}: offsets [{gap.start}, {gap.end}) are missing in the middle of the log,"
        " nothing was published: run `millrace log verify` on its broker and restore it, or load with"
        " --accept-gaps to go on without them"
    )


def _partition_range(
    stats: RangeStats, before: PartitionRange | None, expired: Gap | None, origin: OriginPartition | None
) -> PartitionRange:
    gaps = [Gap(start=gap.start, end=gap.end, reason=gap.reason) for gap in stats.gaps]
    return PartitionRange(
        partition=stats.partition,
        start=before.end if before is not None else 0,
        start_base=before.end_base if before is not None else None,
        end=stats.last,
        end_base=stats.next_base,
        read=stats.records,
        written=stats.records - stats.rejected,
        rejected=stats.rejected,
        data_batches=stats.data_batches,
        control_batches=stats.control_batches,
        bytes=stats.bytes,
        gaps=[expired, *gaps] if expired is not None else gaps,
        min_time_ms=stats.min_time,
        max_time_ms=stats.max_time,
        schema_ids=sorted(stats.schema_ids),
        origin=origin,
    )


def _sequences(results: Sequence[CutResult]) -> list[ProducerSequences]:
    counts = SequenceCounts()
    for result in results:
        counts.merge(SequenceCounts.from_json(result.sequences))
    return [ProducerSequences(**entry) for entry in counts.to_json()]


def _nothing_to_do(fs: Filesystem, plan: Plan, newest: LoadManifest | None, fresh: bool) -> LoadResult:
    if newest is None:
        return _result(plan.topic, plan.run_id, None, "the topic is empty, there is nothing to load")
    holder = newest
    while holder.load > 1:
        earlier = read_load(fs, plan.topic, holder.load - 1)
        if not earlier.covers(plan.topic_id, plan.end_offsets):
            break
        holder = earlier
    if fresh:
        message = f"nothing new since load={newest.load:010d}"
        return _result(plan.topic, plan.run_id, newest, message)
    return _result(plan.topic, plan.run_id, holder, f"load={holder.load:010d} holds it already")


def _published(manifest: LoadManifest) -> LoadResult:
    gaps = [
        f"{manifest.topic}-{part.partition} offsets [{gap.start}, {gap.end}) are {gap.reason}"
        for part in manifest.partitions
        for gap in part.gaps
    ]
    return LoadResult(
        topic=manifest.topic, run_id=manifest.run_id, load=manifest.load, published=True,
        rows=manifest.rows, rejected=manifest.rejected, hours=manifest.rows_by_hour(), gaps=gaps,
        message=f"published load={manifest.load:010d}",
    )  # fmt: skip


def _result(topic: str, run_id: str, load: LoadManifest | None, message: str) -> LoadResult:
    """What to say when nothing is left to do; a load that this very run published is told in full."""
    if load is not None and load.run_id == run_id:
        return dataclasses.replace(_published(load), published=False, message=message)
    return LoadResult(
        topic=topic, run_id=run_id, load=None if load is None else load.load, published=False,
        rows=0, rejected=0, hours={}, gaps=(), message=message,
    )  # fmt: skip


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_json(result: LoadResult) -> dict[str, Any]:
    """The result as JSON values."""
    return {name: getattr(result, name) for name in LoadResult.__slots__}

"""One load: new messages of a topic, read once, accounted for, and committed by one exclusive create.

A run first completes what a crash left undone, and stores the plan of its end. Each attempt starts at the end
of the newest load, writes and accounts for the rows (`range_writer`), and creates the manifest (`attempt`).
If another driver was first, the run starts over from that driver's load. This module does not import Spark:
the job passes a function that runs the tasks. A load asks no catalog, so loads continue while the catalog is
down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow.parquet as pq

from millrace.client.cluster_client import LATEST, TopicMetadata
from millrace.errors import MillraceError
from millrace_warehouse.history import layout
from millrace_warehouse.history.ledger import add_to_ledger
from millrace_warehouse.history.manifest import LoadManifest, PartitionRange, now
from millrace_warehouse.history.plan import Plan, PlannedEnd, check_planned_log, freeze
from millrace_warehouse.history.same_log import RefusedLog, check_not_cut, check_same_log
from millrace_warehouse.history.schemas import dropped_fields, pin
from millrace_warehouse.load import range_writer
from millrace_warehouse.load.attempt import make
from millrace_warehouse.load.range_writer import Pinned
from millrace_warehouse.load.rejections import Reasons
from millrace_warehouse.log.bounds import NO_BOUNDS, Bounds, bounded_ends
from millrace_warehouse.log.formats import other_format
from millrace_warehouse.log.kinds import Kind, name_format
from millrace_warehouse.log.messages import BROKEN_BATCH
from millrace_warehouse.log.ranges import KAFKA_RECORD_BYTES, size_of
from millrace_warehouse.log.reading import has_byte_positions
from millrace_warehouse.races import Conflict, retried
from millrace_warehouse.storage import open_file
from millrace_warehouse.storage.interface import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """Settings of one load."""

    context: range_writer.LoadContext
    bounds: Bounds = NO_BOUNDS
    """Limits of the load. A run that already has a plan keeps to the limits of the plan."""
    accept_new_topic: bool = False
    """If the topic was deleted and recreated, or is in a new cluster, load it from its beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """Result of a run; the command prints its fields."""

    topic: str
    run_id: str
    load: int | None
    """The load that holds everything that this run planned to load; None while the topic is empty."""
    published: bool = False
    """True if this call made the load."""
    rows: int = 0
    tombstones: int = 0
    """Messages without a value, which are neither rows nor failures."""
    rejected: int = 0
    rejected_by_kind: Mapping[str, int] = field(default_factory=lambda: {kind.value: 0 for kind in Kind})
    """Kind -> its rejected records, for every kind."""
    unknown_fields: Mapping[str, int] = field(default_factory=dict)
    """Field of JSON objects that no column takes -> messages with it, of the messages that were searched."""
    hours: Mapping[str, int] = field(default_factory=dict)
    gaps: Sequence[str] = ()
    message: str
    notes: Sequence[str] = ()
    """Remarks on a successful load."""
    left_offsets: int | None = 0
    """Offsets after the newest load, not loaded yet. None if no broker answered once the load was made."""
    left_bytes: int | None = 0
    """Bytes of log after the newest load; an estimate on Apache Kafka. None likewise."""


def load_topic(run: LoadRun, name: str) -> LoadResult:
    """Load up to the end in the run's plan, unless that is done already.

    Raise MillraceError when it fails.
    """
    topic, client = layout.Topic(run.context.storage, name), run.context.client
    layout.check_topic(topic)
    metadata = client.topic(name)
    topic_id = metadata.topic_id.hex
    newest = layout.newest_load(topic)
    check_log(run, topic_id, newest)  # before anything is written
    heal(run.context, newest)
    plan, fresh = freeze(topic, run.context.run_id, lambda: _propose(run, metadata, newest))
    run.context.progress("planned")

    def attempt() -> LoadResult:
        nonlocal newest
        seen, newest = newest, layout.newest_load(topic)
        if newest != seen:
            heal(run.context, newest)
        check_planned_log(plan, client.cluster_id, client.topic(name).topic_id.hex)
        check_log(run, plan.topic_id, newest)
        if _covered(plan, newest):
            holder, message = _nothing_to_do(topic, plan, newest, fresh)
            return _result(run, plan, newest, holder, message, client.list_offsets(name, LATEST))
        if (result := _attempt(run, plan, newest)) is not None:
            return result
        raise Conflict("another run has made the load")

    return retried(attempt, f"{topic} was not loaded", "run one load at a time")


def heal(context: range_writer.LoadContext, newest: LoadManifest | None) -> None:
    """Write the ledger's entry of the newest load if it is missing.

    Called before every attempt. Once there is a next load, later runs no longer look at this one, and the
    driver that made it may have died right after creating its manifest.
    """
    if newest is None:
        return
    record(context.storage, newest)
    context.progress("ledger checked")


def record(storage: Storage, load: LoadManifest) -> None:
    """Write the ledger's entry of a load that was made, and make it easy to find."""
    add_to_ledger(storage, layout.manifest_path(load), load)
    layout.remember_newest(storage, load)


def _propose(run: LoadRun, metadata: TopicMetadata, newest: LoadManifest | None) -> Plan:
    client = run.context.client
    ends = client.list_offsets(metadata.name, LATEST, metadata.partitions)
    topic_id = metadata.topic_id.hex
    loaded = loaded_parts(topic_id, newest)
    check_ends(metadata.name, ends, loaded)
    if run.bounds != NO_BOUNDS:
        parts = range_writer.parts_to_load(client, metadata.name, topic_id, loaded, ends)
        ranges = [part.range for part in parts if part.range is not None]
        waiting = {range_.partition: (range_.start, range_.end) for range_ in ranges if size_of(range_)}
        bounded = bounded_ends(client, metadata.name, waiting, run.bounds)
        # A partition from which nothing is taken keeps its end, also when that has expired: the next load
        # lists the gap.
        before = {part.before.partition: part.before.end for part in parts}
        unmoved = {p: before[p] for p, end in bounded.items() if end == waiting[p][0]}
        ends |= bounded | unmoved
    return Plan(
        topic=metadata.name,
        topic_id=topic_id,
        cluster_id=client.cluster_id,
        run_id=run.context.run_id,
        created=now(),
        ends=tuple(PlannedEnd(partition=p, end=end) for p, end in sorted(ends.items())),
        max_bytes=run.bounds.max_bytes,
        until_ms=run.bounds.until_ms,
    )


def check_ends(topic: str, ends: Mapping[int, int], loaded: Mapping[int, PartitionRange]) -> None:
    """Raise RefusedLog when a partition ends before the offset up to which it was loaded."""
    for partition, part in loaded.items():
        if ends.get(partition, 0) < part.end:
            raise RefusedLog(
                f"{topic}-{partition} ends at offset {ends.get(partition, 0)}, but was loaded"
                f" up to {part.end}: its log has lost messages; restore it before you load on"
            )


def loaded_parts(topic_id: str, newest: LoadManifest | None) -> dict[int, PartitionRange]:
    """Return each partition's part in the newest load; empty when the loads are of an earlier topic's log."""
    if newest is None or newest.topic_id != topic_id:
        return {}
    return {part.partition: part for part in newest.partitions}


def check_log(run: LoadRun, topic_id: str, newest: LoadManifest | None) -> None:
    if newest is not None and not run.accept_new_topic:
        check_same_log(run.context.client, topic_id, newest)
    if newest is not None and newest.topic_id == topic_id:
        check_not_cut(run.context.client, newest.topic, newest.partitions)


def _covered(plan: Plan, newest: LoadManifest | None) -> bool:
    if newest is None:
        return not any(plan.end_offsets.values())
    return newest.covers(plan.topic_id, plan.end_offsets)


def _attempt(run: LoadRun, plan: Plan, newest: LoadManifest | None) -> LoadResult | None:
    """Try once to load from the newest load's end to the plan's. Return None if another driver won."""
    topic, progress = layout.Topic(run.context.storage, plan.topic), run.context.progress
    parts = range_writer.parts_to_load(
        run.context.client, plan.topic, plan.topic_id, loaded_parts(plan.topic_id, newest), plan.end_offsets
    )
    pinned = run.context.pin(plan.topic, 0 if newest is None else newest.schema)
    load = 1 if newest is None else newest.load + 1

    def write(attempt: str) -> LoadManifest:
        draft = draft_of(plan, newest, attempt, pinned)
        written = range_writer.write_ranges(run.context, draft, pinned, parts)
        check_log(run, plan.topic_id, newest)  # it was the log of the loads when it was read, too
        # Only now: a first load that fails, for example over its limit of rejected records, pins no format.
        if newest is None and not pin(topic, pinned.table_schema):
            raise Conflict("another run has pinned the topic's schema")
        return written

    manifest = make(topic, load, 1, write, progress)
    if manifest is None:
        return None
    return made_result(run, plan, manifest, pinned, record_made(run.context, manifest))


def draft_of(plan: Plan, newest: LoadManifest | None, attempt: str, pinned: Pinned) -> LoadManifest:
    """Return the manifest of the load after `newest`, still without rows."""
    return LoadManifest(
        topic=plan.topic,
        topic_id=plan.topic_id,
        cluster_id=plan.cluster_id,
        load=1 if newest is None else newest.load + 1,
        attempt=attempt,
        run_id=plan.run_id,
        created=now(),
        schema=pinned.table_schema.number,
        file_by_ms=plan.file_by_ms,
        partitions=(),
        files=(),
        previous=None if newest is None else newest.sha256,
    )


def record_made(context: range_writer.LoadContext, manifest: LoadManifest) -> list[str]:
    """Record a load that was made. Return a note if that fails: the load counts, and the next run heals."""
    try:
        record(context.storage, manifest)
    except MillraceError as error:
        return [_failed_afterwards(manifest, error)]
    context.progress("recorded")
    return []


def made_result(
    run: LoadRun, plan: Plan, manifest: LoadManifest, pinned: Pinned, notes: Sequence[str]
) -> LoadResult:
    """Return the result of a load that this run has made, with these notes and those on its messages.

    The load counts, whatever fails now: the result has a note on that.
    """
    latest, notes = None, [*notes, *_unknown_fields(manifest)]
    try:
        latest = run.context.client.list_offsets(plan.topic, LATEST)
        notes += _reasons(run.context.storage, manifest, pinned.table_schema.message_format)
        notes += _dropped_fields(pinned, manifest)
    except MillraceError as error:
        notes.append(_failed_afterwards(manifest, error))
    message = f"made load {manifest.load}"
    return _result(run, plan, manifest, manifest, message, latest, published=True, notes=notes)


def _failed_afterwards(manifest: LoadManifest, error: MillraceError) -> str:
    return f"{manifest.topic}: load {manifest.load} is made, but afterwards this failed: {error}"


def _dropped_fields(pinned: Pinned, manifest: LoadManifest) -> list[str]:
    """Return a note on fields of the messages for which the table has no column."""
    writers = {id_ for part in manifest.partitions for id_ in part.schema_ids} - {
        pinned.table_schema.schema_id
    }
    fields = dropped_fields(pinned.source.table_schema, writers, pinned.source.lookup)
    if not fields:
        return []
    return [
        f"{manifest.topic}: its messages have fields that the table lacks: {', '.join(sorted(fields))};"
        f" to get them: millrace promote {manifest.topic} --schema-id {max(fields.values())}"
    ]


def _unknown_fields(manifest: LoadManifest) -> list[str]:
    """Return a note on fields of JSON objects that no column takes."""
    if not manifest.unknown_fields:
        return []
    return [
        f"{manifest.topic}: fields that no column takes: {', '.join(sorted(manifest.unknown_fields))}; to get"
        f" them, register a schema that has them, then run millrace promote {manifest.topic}"
    ]


def _reasons(storage: Storage, manifest: LoadManifest, format: str) -> list[str]:
    """Return a note with the reasons of the rejected records, the most frequent first.

    If most records were rejected, the note names the format that would take them.
    """
    reasons = Reasons()
    for file in manifest.rejected_files:
        with open_file(storage, f"{manifest.topic}/{file.path}") as content:
            table = pq.read_table(content, columns=["reason", "records"], partitioning=None)
        counts = table.group_by("reason").aggregate([("records", "sum")])
        reasons.add(zip(counts["reason"].to_pylist(), counts["records_sum"].to_pylist(), strict=True))
    if not reasons.counts:
        return []
    advice = _other_format(storage, manifest, format) if manifest.rejected > manifest.rows else ""
    return [f"{manifest.topic}: rejected: {reasons}{'; ' if advice else ''}{advice}"]


def _other_format(storage: Storage, manifest: LoadManifest, format: str) -> str:
    """Return the advice to load the rejected records in another format, by the look of the first."""
    path = f"{manifest.topic}/{manifest.rejected_files[0].path}"
    with open_file(storage, path) as content, pq.ParquetFile(content) as file:
        (first,) = next(file.iter_batches(1, columns=["reason", "raw"])).to_pylist()
    if first["raw"] is None or first["reason"].startswith(BROKEN_BATCH):
        return ""
    return other_format(name_format(first["raw"]), format)


def _bytes_per_offset(newest: LoadManifest | None) -> float:
    """Return the bytes per offset of an Apache Kafka topic, estimated from the newest load."""
    read = [part for part in newest.partitions if part.bytes] if newest is not None else []
    offsets = sum(part.end - part.start for part in read)
    return sum(part.bytes for part in read) / offsets if offsets else KAFKA_RECORD_BYTES


def _nothing_to_do(
    topic: layout.Topic, plan: Plan, newest: LoadManifest | None, fresh: bool
) -> tuple[LoadManifest | None, str]:
    """Return the load that holds everything up to the plan's end, and why there is nothing to load."""
    bounded = plan.max_bytes is not None or plan.until_ms is not None
    if newest is None:
        empty = "no message of the topic lies within the limits" if bounded else "the topic is empty"
        return None, f"{empty}, there is nothing to load"
    if fresh:
        return newest, f"nothing new{' within the limits' if bounded else ''} since load {newest.load}"
    holder = newest
    while holder.load > 1:
        earlier = layout.read_load(topic, holder.load - 1)
        if not earlier.covers(plan.topic_id, plan.end_offsets):
            break
        holder = earlier
    return holder, f"load {holder.load} has its messages already"


def _result(
    run: LoadRun,
    plan: Plan,
    newest: LoadManifest | None,
    load: LoadManifest | None,
    message: str,
    latest: Mapping[int, int] | None,
    *,
    published: bool = False,
    notes: Sequence[str] = (),
) -> LoadResult:
    """Return a load's result, with counts if this run made it, and the offsets after the newest load up to
    `latest`, if that is known.
    """
    own = load if load is not None and load.run_id == plan.run_id else None
    ends = newest.ends if newest is not None else {}
    offsets = bytes_ = None
    if latest is not None:
        offsets = sum(max(0, end - ends.get(partition, 0)) for partition, end in latest.items())
        bytes_per_offset = 1.0 if has_byte_positions(run.context.client) else _bytes_per_offset(newest)
        bytes_ = int(offsets * bytes_per_offset)
    return LoadResult(
        topic=plan.topic,
        run_id=plan.run_id,
        load=None if load is None else load.load,
        published=published,
        rows=own.rows if own is not None else 0,
        tombstones=own.tombstones if own is not None else 0,
        rejected=own.rejected if own is not None else 0,
        rejected_by_kind={kind.value: own.rejected_by_kind[kind] if own is not None else 0 for kind in Kind},
        unknown_fields=own.unknown_fields if own is not None else {},
        hours=own.rows_by_hour() if own is not None else {},
        gaps=_gaps(own) if own is not None else [],
        message=message,
        notes=notes,
        left_offsets=offsets,
        left_bytes=bytes_,
    )


def _gaps(manifest: LoadManifest) -> list[str]:
    return [
        f"{manifest.topic}-{part.partition} offsets [{gap.start}, {gap.end}) are {gap.reason}"
        for part in manifest.partitions
        for gap in part.gaps
        if gap.reason != "control"
    ]

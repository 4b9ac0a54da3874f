"""Reads loads again from the log, after a decoder or a schema was corrected, into the next edition of each
load.

A run reads exactly the offsets that the load's manifest states. Before it writes anything, it refuses offsets
that have expired. It makes no edition from a log that has lost messages of the load since. The first edition
stays as it is. The next edition is made by one exclusive create in `editions/`, and names the manifest that
it replaces and the reason. The next `publish` updates the table. This module does not import Spark, like
`load`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.client.cluster_client import EARLIEST
from millrace.errors import MillraceError
from millrace_warehouse.history import layout
from millrace_warehouse.history.erasures import to_apply
from millrace_warehouse.history.hours import UNFILED
from millrace_warehouse.history.ledger import add_to_ledger, read_entry
from millrace_warehouse.history.manifest import LoadManifest, PartitionRange, now
from millrace_warehouse.history.same_log import another_log, cut_log
from millrace_warehouse.load import range_writer
from millrace_warehouse.load.attempt import make
from millrace_warehouse.load.rejections import RejectedLimit, RejectedLimits
from millrace_warehouse.log.kinds import TOMBSTONE, Kind
from millrace_warehouse.log.ranges import Gap
from millrace_warehouse.races import Conflict, retried


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadRun:
    """Settings of a re-load."""

    context: range_writer.LoadContext
    reason: str
    """Reason for the re-load, which the manifest keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadResult:
    """Result of the re-load of one load."""

    load: int
    edition: int
    published: bool
    """True if this call made the edition."""
    rows: int
    tombstones: int
    rejected: int
    rows_before: int
    tombstones_before: int
    rejected_before: int
    hours: Mapping[str, int]
    """Rows of this edition by hour, for all hours in which this edition or its predecessor has rows."""


def loads_of(topic: layout.Topic, hours: Sequence[str]) -> list[int]:
    """Return the loads with rows of one of these hours in any edition, or with rejected records that may be
    of these hours.

    The event time of a rejected record may differ from the hour in which it is filed. So a load with such
    records also counts if it has rows both before and after an hour, or no rows. Reads every manifest of the
    topic.
    """
    layout.require_load(topic)
    later = layout.editions_of(topic)
    loads = []
    for first in layout.loads_after(topic, 0):
        editions = [first, *(layout.read_edition(topic, first.load, n) for n in later.get(first.load, ()))]
        newest = editions[-1]
        present = {hour for edition in editions for hour in edition.rows_by_hour()}
        rejected = {each.hour for each in newest.aside_by_hour if each.kind != TOMBSTONE}
        if (present | rejected) & set(hours) or (newest.rejected and _may_have(present - {UNFILED}, hours)):
            loads.append(first.load)
    return loads


def _may_have(present: set[str], hours: Sequence[str]) -> bool:
    """Return True if an hour lies between the first and last present hour, or if no hour is present."""
    return not present or any(min(present) <= hour <= max(present) for hour in hours)


def reload_topic(run: ReloadRun, name: str, loads: Sequence[int]) -> list[ReloadResult]:
    """Make the next edition of every load, unless this run has made it already. Return the result of each
    load.

    Raise MillraceError before reading anything when the log no longer holds all offsets.
    """
    topic = layout.Topic(run.context.storage, name)
    newest = layout.require_load(topic)
    if unknown := sorted(set(loads) - set(layout.load_numbers(topic))):
        raise MillraceError(f"{topic} has no load {unknown[0]}: its loads are 1 to {newest.load}")
    _heal(topic)
    later = layout.editions_of(topic)
    manifests = [layout.read_edition(topic, load, later.get(load, [1])[-1]) for load in loads]
    _check_retained(run, name, [manifest for manifest in manifests if not _is_own(run, manifest)])
    pinned = run.context.pin(name, newest.schema)
    return [_reload(run, topic, load, pinned) for load in loads]


def _is_own(run: ReloadRun, manifest: LoadManifest) -> bool:
    return manifest.edition > 1 and manifest.run_id == run.context.run_id


def _heal(topic: layout.Topic) -> None:
    """Write the ledger's entries that are missing because of a crash after a create."""
    for load, numbers in layout.editions_of(topic).items():
        for number in numbers:
            path = layout.edition_path(topic.name, load, number)
            if read_entry(topic.storage, path) is None:
                add_to_ledger(topic.storage, path, layout.read_edition(topic, load, number))


def _check_retained(run: ReloadRun, topic: str, manifests: Sequence[LoadManifest]) -> None:
    """Raise MillraceError when the topic was recreated, or when the log no longer has offsets of a load."""
    if not manifests:
        return
    client = run.context.client
    topic_id = client.topic(topic).topic_id.hex
    earliest = client.list_offsets(topic, EARLIEST)
    problems = []
    for manifest in manifests:
        if different := another_log(client, topic_id, manifest) or cut_log(
            client, manifest.topic, manifest.partitions
        ):
            problems.append(f"load {manifest.load}: {different}")
            continue
        for part in manifest.partitions:
            first = earliest.get(part.partition, part.end)
            if part.end > part.start and not _is_retained(part, first):
                problems.append(
                    f"load {manifest.load} needs {topic}-{part.partition} offsets"
                    f" [{_start(part)[0]}, {part.end}), the log begins at {first}"
                )
    if problems:
        raise MillraceError(
            f"these loads of {topic} cannot be read again, so no load was read: {'; '.join(problems)};"
            " reload only the other loads, with --loads"
        )


def _start(part: PartitionRange) -> tuple[int, int | None]:
    """Return the offset and byte position where a load began to read, after the expired offsets."""
    gap = _expired(part)
    return (gap.end, None) if gap is not None else (part.start, part.start_base)


def _expired(part: PartitionRange) -> Gap | None:
    """Return the gap of offsets that had expired when a load began, with its reason, or None."""
    first = part.gaps[0] if part.gaps else None
    if first is None or first.start != part.start or first.reason == "absent":
        return None
    return first


def _is_retained(part: PartitionRange, first: int) -> bool:
    start, base = _start(part)
    return first <= start or first == base or start >= part.end


def _reload(run: ReloadRun, topic: layout.Topic, load: int, pinned: range_writer.Pinned) -> ReloadResult:
    def attempt() -> ReloadResult:
        number = layout.editions_of(topic).get(load, [1])[-1]
        newest = layout.read_edition(topic, load, number)
        if _is_own(run, newest) and not _missed_erasures(topic, newest):
            before = layout.read_edition(topic, load, newest.edition - 1)
            return _result(newest, before, published=False)
        # Another run's edition does not suffice: it may have begun before the decoder or schema was
        # corrected. Nor does an edition that was begun before an erasure.
        manifest = _attempt(run, newest, pinned)
        if manifest is not None:
            add_to_ledger(topic.storage, layout.manifest_path(manifest), manifest)
            run.context.progress("recorded")
        if manifest is not None and not _missed_erasures(topic, manifest):
            return _result(manifest, newest, published=True)
        raise Conflict("another run has made the edition, or an erasure came in between")

    return retried(attempt, f"{topic}: load {load} was not read again", "run one re-load at a time")


def _missed_erasures(topic: layout.Topic, manifest: LoadManifest) -> set[str]:
    """Return the erasures that were created after the rows of an edition were written."""
    known = to_apply(topic, now(), again=True)
    return {each.id for each in known} - {*manifest.erasures}


def _attempt(run: ReloadRun, replaced: LoadManifest, pinned: range_writer.Pinned) -> LoadManifest | None:
    """Try once to make the next edition. Return None when another run was first."""
    limited, edition = _limited(run, replaced), replaced.edition + 1

    def write(attempt: str) -> LoadManifest:
        draft = dataclasses.replace(
            replaced,
            edition=edition,
            attempt=attempt,
            run_id=run.context.run_id,
            reason=run.reason,
            previous=replaced.sha256,
        )
        written = range_writer.write_ranges(limited, draft, pinned, _parts(run, replaced))
        if cut := cut_log(run.context.client, replaced.topic, replaced.partitions):
            raise MillraceError(f"load {replaced.load}: {cut}; no edition was made")
        check_same_offsets(written, replaced)
        _check_same_records(written, replaced)
        return written

    topic = layout.Topic(run.context.storage, replaced.topic)
    return make(topic, replaced.load, edition, write, run.context.progress)


def _limited(run: ReloadRun, replaced: LoadManifest) -> range_writer.LoadContext:
    """Return settings that accept the gaps and rejected records that the load already had.

    `check_same_offsets` refuses other gaps, and `_check_same_records` records that are gone without a gap.
    """
    read, limits = sum(part.read for part in replaced.partitions), run.context.max_rejected
    allowed = {kind: max(limits.limit_for(kind).allowed(read), replaced.rejected) for kind in Kind}
    as_before = RejectedLimits({kind: RejectedLimit(records=records) for kind, records in allowed.items()})
    return dataclasses.replace(run.context, accept_gaps=True, max_rejected=as_before)


def _parts(run: ReloadRun, manifest: LoadManifest) -> list[range_writer.LoadedPart]:
    client = run.context.client
    topic, topic_id, parts = manifest.topic, manifest.topic_id, []
    for part in manifest.partitions:
        before = PartitionRange(
            partition=part.partition,
            start=part.start,
            start_base=part.start_base,
            end=part.start,
            end_base=part.start_base,
            end_epoch=part.end_epoch,
            origin=part.origin,
        )
        loaded = range_writer.LoadedPart(before=before)
        if part.end > part.start:
            start, base = _start(part)
            gap = _expired(part)
            loaded = dataclasses.replace(
                loaded,
                range=range_writer.range_of(client, topic, topic_id, part.partition, start, part.end, base),
                expired=() if gap is None else [gap],
            )
        parts.append(loaded)
    return parts


def check_same_offsets(manifest: LoadManifest, replaced: LoadManifest) -> None:
    """Raise MillraceError unless both editions account for the same offsets, without a new gap."""
    new = {part.partition: part for part in manifest.partitions}
    for old in replaced.partitions:
        part = new[old.partition]
        where = f"{manifest.topic}-{old.partition} of load {replaced.load}"
        if (part.start, part.end) != (old.start, old.end):
            raise MillraceError(
                f"{where}: [{part.start}, {part.end}) was read instead of [{old.start}, {old.end})"
            )
        for gap in part.gaps:
            if not any(before.start <= gap.start and gap.end <= before.end for before in old.gaps):
                raise MillraceError(
                    f"{where}: offsets [{gap.start}, {gap.end}) were in the log and are gone,"
                    " nothing was loaded: run `millrace log verify` on its broker"
                )


def _check_same_records(manifest: LoadManifest, replaced: LoadManifest) -> None:
    """Raise MillraceError if the log has fewer records of the load than before.

    Compaction of Apache Kafka takes single records out of a batch, which keeps its first and last offset.
    """
    new = {part.partition: part for part in manifest.partitions}
    for old in replaced.partitions:
        if (read := new[old.partition].read) < old.read:
            raise MillraceError(
                f"{manifest.topic}-{old.partition} of load {replaced.load}: the log has {read:,} of its"
                f" {old.read:,} messages, so no edition was made, and the rows stay. If the topic is"
                " compacted, reload only the other loads, with --loads; else run `millrace log verify` on its"
                " broker"
            )


def _result(manifest: LoadManifest, before: LoadManifest, *, published: bool) -> ReloadResult:
    now, then = manifest.rows_by_hour(), before.rows_by_hour()
    return ReloadResult(
        load=manifest.load,
        edition=manifest.edition,
        published=published,
        rows=manifest.rows,
        tombstones=manifest.tombstones,
        rejected=manifest.rejected,
        rows_before=before.rows,
        tombstones_before=before.tombstones,
        rejected_before=before.rejected,
        hours={hour: now.get(hour, 0) for hour in sorted(now.keys() | then.keys())},
    )

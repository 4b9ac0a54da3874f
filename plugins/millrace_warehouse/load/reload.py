"""Reads loads again from the log, after a decoder or a schema was mended: the next edition of each.

A run reads exactly the offsets that the load recorded. It refuses what has expired, before anything is
written, and a log that has lost something since. The first edition stays as it is. The next one is published
under `_reloads/` by one exclusive rename, names the manifest it replaces and why, and the auditor is told
what changed. Hours follow with the next `hourly`. Written without Spark, like `load`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.client.cluster_client import EARLIEST
from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace_warehouse.history import editions
from millrace_warehouse.history.layout import load_folder
from millrace_warehouse.history.ledger import record, recorded_folders, require_load
from millrace_warehouse.history.manifest import REJECTED, LoadManifest, PartitionRange, sealed
from millrace_warehouse.history.same_log import another_log
from millrace_warehouse.history.schemas import pinned_id
from millrace_warehouse.history.staging import publish, staged, sweep_staging
from millrace_warehouse.load import writing
from millrace_warehouse.load.rejections import RejectedLimit
from millrace_warehouse.log.ranges import Gap
from millrace_warehouse.storage.filesystem import Filesystem
from millrace_warehouse.table.index import hour_index
from millrace_warehouse.table.revisions import read_revision, revision_numbers
from millrace_warehouse.table.sources import LoadHistory

ATTEMPTS = 5
COUNTED = "_counted"
"""Folder of `_reloads/` that says which editions the auditor was told of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadRun:
    """What one reading again is given."""

    writing: writing.Writing
    reason: str
    """Why, for whoever reads the manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadResult:
    """What happened to one load."""

    load: int
    edition: int
    published: bool
    """True if this call published the edition."""
    rows: int
    rejected: int
    rows_before: int
    rejected_before: int
    hours: Mapping[str, int]
    """Hours that have rows of the edition now or had some of the one before -> rows now."""


def loads_of(fs: Filesystem, topic: str, hours: Sequence[str]) -> list[int]:
    """The loads that have rows of one of these hours, or rejected records that may be; ascending.

    A rejected record has no time that can be read: its load counts if it has rows on both sides, or none.
    """
    require_load(fs, topic)
    history = LoadHistory.of(fs, topic)
    index = hour_index(fs, topic, len(history.numbers))
    loads: set[int] = set()
    for hour in hours:
        loads |= set(history.loads_with_rows(hour, index))
        if numbers := revision_numbers(fs, topic, hour):
            parts = read_revision(fs, topic, hour, numbers[-1]).manifest.loads
            loads |= {part.load for part in parts if part.rows}
    for load in history.numbers:
        if load not in loads and REJECTED in fs.names(history.folder(load)):
            present = history.manifest(load).rows_by_hour()
            if not present or any(min(present) <= hour <= max(present) for hour in hours):
                loads.add(load)
    return sorted(loads)


def reload_topic(run: ReloadRun, topic: str, loads: Sequence[int]) -> list[ReloadResult]:
    """Make the next edition of every load, unless this run has made it before; what happened to each.

    MillraceError, and nothing is read, when the log does not hold all of their offsets any more.
    """
    fs = run.writing.fs
    newest = require_load(fs, topic)
    history = LoadHistory.of(fs, topic)
    if unknown := sorted(set(loads) - set(history.numbers)):
        raise MillraceError(f"{topic} has no {load_folder(unknown[0])}: its loads are 1 to {newest.load}")
    table = editions.reloads_table(topic)
    _heal(run, topic)
    sweep_staging(fs, table)
    manifests = [history.manifest(load) for load in loads]
    _check_retained(run, topic, [manifest for manifest in manifests if not _is_own(run, manifest)])
    pinned = run.writing.pin(topic, pinned_id(fs, topic, newest))
    return [_reload(run, topic, load, pinned) for load in loads]


def _is_own(run: ReloadRun, manifest: LoadManifest) -> bool:
    return manifest.edition > 1 and manifest.run_id == run.writing.run_id


def _heal(run: ReloadRun, topic: str) -> None:
    """Make good what a crash behind a rename left undone: the ledger's entry, the counts for the auditor."""
    fs = run.writing.fs
    table = editions.reloads_table(topic)
    recorded, counted = set(recorded_folders(fs, table)), set(fs.names(f"{table}/{COUNTED}"))
    for load, numbers in editions.later_editions(fs, topic).items():
        for edition in numbers:
            if (folder := editions.reload_folder(load, edition)) not in recorded:
                record(fs, table, folder, editions.read_edition(fs, topic, load, edition))
        if _counted_name(load, numbers[-1]) not in counted:
            _count(run, topic, load, numbers[-1])


def _counted_name(load: int, edition: int) -> str:
    return f"{editions.reload_folder(load, edition).replace('/', ',')}.json"


def _count(run: ReloadRun, topic: str, load: int, newest: int) -> None:
    fs = run.writing.fs
    numbers = range(1, newest + 1)
    run.writing.publish_counts([editions.read_edition(fs, topic, load, number) for number in numbers])
    fs.create(f"{editions.reloads_table(topic)}/{COUNTED}/{_counted_name(load, newest)}", b"{}\n")
    run.writing.progress("counted")


def _check_retained(run: ReloadRun, topic: str, manifests: Sequence[LoadManifest]) -> None:
    """MillraceError when the topic is another one, or offsets of a load are in its log no more."""
    if not manifests:
        return
    try:
        topic_id = run.writing.client.topic(topic).topic_id.hex
    except UnknownTopicOrPartition:
        raise MillraceError(f"topic {topic!r} does not exist on {run.writing.client.bootstrap}") from None
    earliest = run.writing.client.list_offsets(topic, EARLIEST)
    problems = []
    for manifest in manifests:
        folder = editions.edition_folder(manifest.load, manifest.edition)
        if different := another_log(run.writing.client, topic_id, manifest):
            problems.append(f"{folder}: {different}")
            continue
        for part in manifest.partitions:
            first = earliest.get(part.partition, part.end)
            if part.end > part.start and not _is_retained(part, first):
                problems.append(
                    f"{folder} needs {topic}-{part.partition} offsets [{_start(part)[0]}, {part.end}),"
                    f" the log begins at {first}"
                )
    if problems:
        raise MillraceError(
            f"cannot be read again, nothing was: {'; '.join(problems)}; leave these loads out"
        )


def _start(part: PartitionRange) -> tuple[int, int | None]:
    """Offset and byte position where a load began to read: behind what had expired even then."""
    if part.gaps and part.gaps[0].reason == "expired" and part.gaps[0].start == part.start:
        return part.gaps[0].end, None
    return part.start, part.start_base


def _is_retained(part: PartitionRange, first: int) -> bool:
    start, base = _start(part)
    return first <= start or first == base or start >= part.end


def _reload(run: ReloadRun, topic: str, load: int, pinned: writing.Pinned) -> ReloadResult:
    for _ in range(ATTEMPTS):
        number = editions.later_editions(run.writing.fs, topic).get(load, [1])[-1]
        newest = editions.read_edition(run.writing.fs, topic, load, number)
        if _is_own(run, newest):
            before = editions.read_edition(run.writing.fs, topic, load, newest.edition - 1)
            return _result(newest, before, published=False)
        # Another run's edition does not do: it may have begun before what was wrong was mended.
        manifest = _attempt(run, newest, pinned)
        if manifest is not None:
            _count(run, topic, load, manifest.edition)
            return _result(manifest, newest, published=True)
    raise MillraceError(
        f"{topic}: other runs read {load_folder(load)} again {ATTEMPTS} times; run one at a time"
    )


def _attempt(run: ReloadRun, replaced: LoadManifest, pinned: writing.Pinned) -> LoadManifest | None:
    """One try to publish the next edition; None when another run was first."""
    fs, progress = run.writing.fs, run.writing.progress
    table = editions.reloads_table(replaced.topic)
    draft = dataclasses.replace(
        replaced,
        edition=replaced.edition + 1,
        run_id=run.writing.run_id,
        sink=run.writing.sink.name,
        table_schema_id=pinned.table_schema_id,
        promotion=pinned.promotion,
        reason=run.reason,
        previous=replaced.sha256,
    )
    with staged(fs, table) as staging:
        limited, parts = _limited(run, replaced), _parts(run, replaced)
        written = writing.write_ranges(limited, draft, pinned.source, parts, staging)
        check_same_offsets(written, replaced)
        manifest = sealed(written)
        progress("verified")
        folder = editions.reload_folder(manifest.load, manifest.edition)
        won = publish(fs, table, staging, folder, manifest, progress)
    return manifest if won else None


def _limited(run: ReloadRun, replaced: LoadManifest) -> writing.Writing:
    """The writing for which gaps and rejected records that the load had already are no failure.

    Other gaps than those are refused by `check_same_offsets`.
    """
    read = sum(part.read for part in replaced.partitions)
    allowed = max(run.writing.max_rejected.allowed(read), replaced.rejected)
    return dataclasses.replace(run.writing, accept_gaps=True, max_rejected=RejectedLimit(records=allowed))


def _parts(run: ReloadRun, manifest: LoadManifest) -> list[writing.LoadedPart]:
    client = run.writing.client
    topic, topic_id, parts = manifest.topic, manifest.topic_id, []
    for part in manifest.partitions:
        progress = writing.PartitionProgress(offset=part.start, base=part.start_base, origin=part.origin)
        loaded = writing.LoadedPart(partition=part.partition, progress=progress)
        if part.end > part.start:
            start, base = _start(part)
            loaded = dataclasses.replace(
                loaded,
                range=writing.range_of(client, topic, topic_id, part.partition, start, part.end, base),
                expired=[Gap(part.start, start, "expired")] if start > part.start else (),
            )
        parts.append(loaded)
    return parts


def check_same_offsets(manifest: LoadManifest, replaced: LoadManifest) -> None:
    """MillraceError unless both account for the same offsets, and nothing is missing now that was there."""
    new = {part.partition: part for part in manifest.partitions}
    for old in replaced.partitions:
        part = new[old.partition]
        where = f"{manifest.topic}-{old.partition} of {load_folder(replaced.load)}"
        if (part.start, part.end) != (old.start, old.end):
            raise MillraceError(
                f"{where}: [{part.start}, {part.end}) was read instead of [{old.start}, {old.end})"
            )
        for gap in part.gaps:
            if not any(before.start <= gap.start and gap.end <= before.end for before in old.gaps):
                raise MillraceError(
                    f"{where}: offsets [{gap.start}, {gap.end}) were there and are gone from the log,"
                    " nothing was published: run `millrace log verify` on its broker"
                )


def _result(manifest: LoadManifest, before: LoadManifest, *, published: bool) -> ReloadResult:
    now, then = manifest.rows_by_hour(), before.rows_by_hour()
    return ReloadResult(
        load=manifest.load,
        edition=manifest.edition,
        published=published,
        rows=manifest.rows,
        rejected=manifest.rejected,
        rows_before=before.rows,
        rejected_before=before.rejected,
        hours={hour: now.get(hour, 0) for hour in sorted(now.keys() | then.keys())},
    )

"""Publishing hours: the rows of one hour of event time, from every load that has some, as one revision.

Many hours in one go: all their rows are written in one batch of tasks, then each hour is published by its
own exclusive rename. An hour whose loads and editions are those of its newest revision is left as it is.
What an hour is made from is found in `hour_sources`, its rows are written by `hour_merge`. No Spark here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from millrace.errors import ConfigError, MillraceError
from millrace_spark.files.filesystem import Filesystem
from millrace_spark.parquet.hour_files import HOUR_MS, hour_folder, hour_of
from millrace_spark.table.merge import Merge
from millrace_spark.table.revisions import read_revision, revision_folder, revision_numbers
from millrace_spark.table.sources import (
    HourSource,
    Unpublished,
    hour_sources,
    hours_with_news,
    unpublished_hours,
)
from millrace_spark.warehouse.layout import HOURLY, LEDGER, PLANS
from millrace_spark.warehouse.ledger import newest_load, record, recorded_folders
from millrace_spark.warehouse.manifest import (
    UNASKED,
    DataFile,
    HourManifest,
    Verdict,
    check_hash,
    sealed,
)
from millrace_spark.warehouse.staging import Progress, check_files, publish, staged, sweep_staging

ATTEMPTS = 5
_EPOCH, _HOUR = datetime(1970, 1, 1, tzinfo=UTC), timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HourResult:
    """What happened to one hour."""

    hour: str
    revision: int | None
    """The newest revision now, None for an hour no load has rows of."""
    rows: int
    verdict: str
    published: bool
    """True if this run published the revision, in this try or an earlier one."""
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HourlyRun:
    """Everything one run needs; built in one place, by the job."""

    fs: Filesystem
    merge: Merge
    verdict_of: Callable[[str, str], Verdict]
    """What the auditor says of (topic, hour) now."""
    run_id: str
    progress: Progress


def hours_between(start: datetime, end: datetime) -> list[str]:
    """Every hour of which a part lies in [start, end), UTC; ConfigError when there is none."""
    if start >= end:
        raise ConfigError(
            f"--from {start.isoformat()} is not before --to {end.isoformat()}: give them in order"
        )
    # In numbers since 1970: behind the last hour of the calendar there is no datetime to end with.
    first, behind = (start - _EPOCH) // _HOUR, -((_EPOCH - end) // _HOUR)
    return [hour_of(hour * HOUR_MS) for hour in range(first, behind)]


def publish_hours(
    run: HourlyRun, topic: str, hours: Sequence[str], *, also_empty: bool = False
) -> list[HourResult]:
    """Publish the next revision of every hour that has news; what happened to each, in order.

    With `also_empty` an hour no load has rows of gets a revision too, so that rows that come later are late.
    """
    if newest_load(run.fs, topic) is None:
        if run.fs.names(f"{topic}/{PLANS}"):
            return [_absent(hour) for hour in dict.fromkeys(hours)]  # loads ran, and found the topic empty
        raise MillraceError(f"no load of {topic} in {run.fs.root}: run `millrace load {topic}` first")
    table = f"{topic}{HOURLY}"
    sweep_staging(run.fs, table)
    recorded = _recorded_by_hour(run, table)
    results: dict[str, HourResult] = {}
    pending = list(dict.fromkeys(hours))
    for _ in range(ATTEMPTS):
        todo: list[tuple[HourSource, HourManifest | None]] = []
        # In this order: loads and editions that came after a revision are seen, and none that a revision was
        # made from is not. The other way round a slow run could replace a newer revision by one without the
        # late rows, or bring back those that a later edition has replaced.
        revisions = {
            hour: _newest(run, topic, hour, recorded.get(hour_folder(hour), set())) for hour in pending
        }
        for source in hour_sources(run.fs, topic, revisions):
            newest = revisions[source.hour]
            if newest is None and not source.parts and not also_empty:
                results[source.hour] = _absent(source.hour)
            elif newest is not None and list(newest.loads) == list(source.parts):
                results[source.hour] = _unchanged(newest, run.run_id)
            else:
                todo.append((source, newest))
        if todo:
            results |= {result.hour: result for result in _publish_all(run, topic, todo)}
        # An hour that another run published first is looked at again, from what that one says.
        pending = [source.hour for source, _ in todo if source.hour not in results]
        if not pending:
            return [results[hour] for hour in dict.fromkeys(hours)]
    raise MillraceError(f"{topic}: other runs published {pending[0]} {ATTEMPTS} times; run one at a time")


def _recorded_by_hour(run: HourlyRun, table: str) -> Mapping[str, set[str]]:
    """The folders of revisions that the ledger knows, by the folder of their hour."""
    recorded: dict[str, set[str]] = {}
    for folder in recorded_folders(run.fs, table):
        recorded.setdefault(folder.rpartition("/")[0], set()).add(folder)
    return recorded


def publish_late_hours(run: HourlyRun, topic: str) -> list[HourResult]:
    """Publish the next revision of every published hour that loads or editions since have rows of.

    Hours that an earlier try of this run has published are told again: what it said may have been lost.
    """
    late = hours_with_news(run.fs, topic, run.run_id)
    return publish_hours(run, topic, late) if late else []


def publish_unpublished_hours(run: HourlyRun, topic: str, unproven_after_s: float) -> list[HourResult]:
    """Publish the hours that were loaded and never published; those that must wait are named with the reason.

    Published is what the auditor calls complete, and what it cannot judge once it has waited that long. An
    incomplete hour is never published by itself.
    """
    verdicts = {each: run.verdict_of(topic, each.hour) for each in unpublished_hours(run.fs, topic)}
    since = datetime.now(UTC) - timedelta(seconds=unproven_after_s)
    waiting = {
        each.hour: _waiting(topic, each, verdict)
        for each, verdict in verdicts.items()
        if verdict.verdict == "incomplete" or (verdict.verdict != "complete" and each.since > since)
    }
    due = [each.hour for each in verdicts if each.hour not in waiting]
    published = publish_hours(run, topic, due) if due else []
    return sorted([*published, *waiting.values()], key=lambda result: result.hour)


def _waiting(topic: str, hour: Unpublished, verdict: Verdict) -> HourResult:
    """That an hour is not published, why, and what publishes it."""
    reason = f" ({verdict.reasons[0]})" if verdict.reasons else ""
    if verdict.verdict == "incomplete":
        message = f"not published{reason}: `millrace hourly {topic} --hour {hour.hour}` does it all the same"
    else:
        message = f"not published yet{reason}: it is younger than --unproven-after"
    return HourResult(
        hour=hour.hour,
        revision=None,
        rows=hour.rows,
        verdict=verdict.verdict,
        published=False,
        message=message,
    )


def _newest(run: HourlyRun, topic: str, hour: str, recorded: set[str]) -> HourManifest | None:
    """The hour's newest revision, its ledger entry made good; MillraceError when one is gone."""
    numbers = revision_numbers(run.fs, topic, hour)
    known = {revision_folder(hour, number) for number in numbers}
    for folder in sorted(recorded - known):
        raise MillraceError(
            f"{topic}{HOURLY}/{folder} was published and is gone: restore it from a copy, or delete its"
            f" entry in {topic}{HOURLY}/{LEDGER} to have it made again"
        )
    if not numbers:
        return None
    manifest = read_revision(run.fs, topic, hour, numbers[-1]).manifest
    if problem := check_hash(manifest):
        raise MillraceError(f"{topic}{HOURLY}/{revision_folder(hour, numbers[-1])}: {problem}")
    if revision_folder(hour, numbers[-1]) not in recorded:
        record(run.fs, f"{topic}{HOURLY}", revision_folder(hour, numbers[-1]), manifest)
    return manifest


def _publish_all(
    run: HourlyRun, topic: str, todo: Sequence[tuple[HourSource, HourManifest | None]]
) -> list[HourResult]:
    """Write all hours in one go, then publish each; only those that this call published are returned."""
    with staged(run.fs, f"{topic}{HOURLY}") as staging:
        run.fs.make_folder(staging)
        files = run.merge.write([source for source, _ in todo], staging)
        run.progress("written")
        for source, _ in todo:  # an hour may have no rows; later this could hide that all was swept
            run.fs.make_folder(f"{staging}/{hour_folder(source.hour)}")
        check_files(run.fs, staging, files)
        run.progress("verified")
        by_hour: dict[str, list[DataFile]] = {}
        for file in files:
            by_hour.setdefault(file.hour or "", []).append(file)
        of = len(todo)
        results = [
            _publish_one(run, topic, source, newest, by_hour.get(source.hour, []), staging, f"{n} of {of}")
            for n, (source, newest) in enumerate(todo, 1)
        ]
    return [result for result in results if result is not None]


def _publish_one(
    run: HourlyRun,
    topic: str,
    source: HourSource,
    newest: HourManifest | None,
    files: Sequence[DataFile],
    staging: str,
    place: str,
) -> HourResult | None:
    rows, expected = sum(file.rows for file in files), sum(part.rows for part in source.parts)
    if rows != expected:
        raise MillraceError(
            f"{topic} {source.hour}: {rows} rows written, its loads state {expected}; run `millrace verify`"
        )
    manifest = _described(run, topic, source, newest, files)
    folder = revision_folder(source.hour, manifest.revision)
    staged = f"{staging}/{hour_folder(source.hour)}"

    def progress(step: str) -> None:
        run.progress(f"{place}: {source.hour} {step}")

    if not publish(run.fs, f"{topic}{HOURLY}", staged, folder, manifest, progress):
        return None
    return HourResult(
        hour=source.hour, revision=manifest.revision, rows=rows, verdict=manifest.verdict.verdict,
        published=True, message=f"published rev={manifest.revision}{_verdict_lost(manifest, newest)}",
    )  # fmt: skip


def _verdict_lost(manifest: HourManifest, before: HourManifest | None) -> str:
    """What somebody should know who published an hour again without asking whether it is complete."""
    if before is None or manifest.verdict.verdict != UNASKED or before.verdict.verdict == UNASKED:
        return ""
    return f"; rev={before.revision} was {before.verdict.verdict}: ask again with --auditor"


def _described(
    run: HourlyRun, topic: str, source: HourSource, newest: HourManifest | None, files: Sequence[DataFile]
) -> HourManifest:
    """The manifest of the hour's next revision, with what the auditor says of the hour now."""
    inside = hour_folder(source.hour)
    return sealed(
        HourManifest(
            topic=topic,
            hour=source.hour,
            revision=1 if newest is None else newest.revision + 1,
            created=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            run_id=run.run_id,
            loads=source.parts,
            rows=sum(file.rows for file in files),
            # By path inside the revision's own folder.
            files=[_inside(file, inside) for file in sorted(files, key=lambda file: file.path)],
            table_schema_id=source.table_schema_id,
            promotion=source.promotion,
            base=source.base,
            verdict=run.verdict_of(topic, source.hour),
            previous=None if newest is None else newest.sha256,
        )
    )


def _inside(file: DataFile, folder: str) -> DataFile:
    return DataFile(
        path=file.path.removeprefix(f"{folder}/"), rows=file.rows, records=file.records,
        bytes=file.bytes, sha256=file.sha256,
    )  # fmt: skip


def _absent(hour: str) -> HourResult:
    return HourResult(
        hour=hour, revision=None, rows=0, verdict="", published=False, message="no load has rows of it"
    )


def _unchanged(newest: HourManifest, run_id: str) -> HourResult:
    mine = newest.run_id == run_id
    said = "published" if mine else "nothing new since"
    return HourResult(
        hour=newest.hour, revision=newest.revision, rows=newest.rows, verdict=newest.verdict.verdict,
        published=mine, message=f"{said} rev={newest.revision}",
    )  # fmt: skip

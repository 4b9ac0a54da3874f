"""Publishing hours: the rows of one hour of event time, from every load that has some, as one revision.

Many hours in one go: all their rows are written in one batch of tasks, then each hour is published by its
own exclusive rename. An hour whose loads and editions are those of its newest revision is left as it is.
`sources` says what an hour is made from, `merge` writes its rows. No Spark here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from millrace.errors import ConfigError, MillraceError
from millrace_spark.files.filesystem import Filesystem
from millrace_spark.parquet.hour_files import HOUR_MS, hour_folder, hour_of
from millrace_spark.table.merge import Merge
from millrace_spark.table.revisions import revision_folder, revision_numbers
from millrace_spark.table.sources import (
    HourSource,
    Unpublished,
    hour_sources,
    hours_with_news,
    unpublished_hours,
)
from millrace_spark.warehouse.layout import HOURLY, LEDGER, PLANS, read_checked
from millrace_spark.warehouse.ledger import newest_load, record, recorded_folders
from millrace_spark.warehouse.manifest import UNASKED, DataFile, HourManifest, Verdict, now, sealed
from millrace_spark.warehouse.staging import Progress, check_files, publish, staged, sweep_staging

ATTEMPTS = 5
ABSENT = "no load has rows of it"
_EPOCH, _HOUR = datetime(1970, 1, 1, tzinfo=UTC), timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class HourResult:
    """What happened to one hour."""

    hour: str
    revision: int | None = None
    """The newest revision now, None for an hour no load has rows of."""
    rows: int = 0
    verdict: str = ""
    published: bool = False
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
    hours = list(dict.fromkeys(hours))
    if newest_load(run.fs, topic) is None:
        if run.fs.names(f"{topic}/{PLANS}"):  # loads ran, and found the topic empty
            return [HourResult(hour=hour, message=ABSENT) for hour in hours]
        raise MillraceError(f"no load of {topic} in {run.fs.root}: run `millrace load {topic}` first")
    table = f"{topic}{HOURLY}"
    sweep_staging(run.fs, table)
    recorded: dict[str, set[str]] = {}
    for folder in recorded_folders(run.fs, table):
        recorded.setdefault(folder.rpartition("/")[0], set()).add(folder)
    results: dict[str, HourResult] = {}
    pending = hours
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
                results[source.hour] = HourResult(hour=source.hour, message=ABSENT)
            elif newest is not None and list(newest.loads) == list(source.parts):
                results[source.hour] = _unchanged(newest, run.run_id)
            else:
                todo.append((source, newest))
        if todo:
            results |= {result.hour: result for result in _publish_all(run, topic, todo)}
        # An hour that another run published first is looked at again, from what that one says.
        pending = [source.hour for source, _ in todo if source.hour not in results]
        if not pending:
            return [results[hour] for hour in hours]
    raise MillraceError(f"{topic}: other runs published {pending[0]} {ATTEMPTS} times; run one at a time")


def publish_late_hours(run: HourlyRun, topic: str) -> list[HourResult]:
    """Publish the next revision of every published hour that loads or editions since have rows of.

    Hours that an earlier try of this run has published are reported again: its answer may have been lost.
    """
    late = hours_with_news(run.fs, topic, run.run_id)
    return publish_hours(run, topic, late) if late else []


def publish_unpublished_hours(run: HourlyRun, topic: str, unproven_after_s: float) -> list[HourResult]:
    """Publish the hours that were loaded and never published; those that must wait are named with the reason.

    Published is what the auditor calls complete, and what it cannot judge once it has waited that long. An
    incomplete hour is never published by itself.
    """
    since = datetime.now(UTC) - timedelta(seconds=unproven_after_s)
    due, waiting = [], []
    for unpublished in unpublished_hours(run.fs, topic):
        verdict = run.verdict_of(topic, unpublished.hour)
        unproven = verdict.verdict != "complete" and unpublished.since > since
        if verdict.verdict == "incomplete" or unproven:
            waiting.append(_waiting(topic, unpublished, verdict))
        else:
            due.append(unpublished.hour)
    published = publish_hours(run, topic, due) if due else []
    return sorted([*published, *waiting], key=lambda result: result.hour)


def _waiting(topic: str, hour: Unpublished, verdict: Verdict) -> HourResult:
    reason = f" ({verdict.reasons[0]})" if verdict.reasons else ""
    if verdict.verdict == "incomplete":
        message = f"not published{reason}: `millrace hourly {topic} --hour {hour.hour}` does it all the same"
    else:
        message = f"not published yet{reason}: it is younger than --unproven-after"
    return HourResult(hour=hour.hour, rows=hour.rows, verdict=verdict.verdict, message=message)


def _newest(run: HourlyRun, topic: str, hour: str, recorded: set[str]) -> HourManifest | None:
    """The hour's newest revision, its ledger entry made good; MillraceError when one is gone."""
    table, numbers = f"{topic}{HOURLY}", revision_numbers(run.fs, topic, hour)
    for folder in sorted(recorded - {revision_folder(hour, number) for number in numbers}):
        raise MillraceError(
            f"{table}/{folder} was published and is gone: restore it from a copy, or delete its"
            f" entry in {table}/{LEDGER} to have it made again"
        )
    if not numbers:
        return None
    folder = revision_folder(hour, numbers[-1])
    manifest = read_checked(run.fs, HourManifest, f"{table}/{folder}")
    if folder not in recorded:
        record(run.fs, table, folder, manifest)
    return manifest


def _publish_all(
    run: HourlyRun, topic: str, todo: Sequence[tuple[HourSource, HourManifest | None]]
) -> list[HourResult]:
    """Write all hours in one go, then publish each; only those that this call published are returned."""
    table, results = f"{topic}{HOURLY}", []
    with staged(run.fs, table) as staging:
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
        for number, (source, newest) in enumerate(todo, 1):

            def progress(step: str, prefix: str = f"{number} of {len(todo)}: {source.hour}") -> None:
                run.progress(f"{prefix} {step}")

            manifest = _next_revision(run, topic, source, newest, by_hour.get(source.hour, []))
            folder = revision_folder(source.hour, manifest.revision)
            hour_staging = f"{staging}/{hour_folder(source.hour)}"
            if publish(run.fs, table, hour_staging, folder, manifest, progress):
                message = f"published rev={manifest.revision}{_verdict_lost(manifest, newest)}"
                results.append(_result(manifest, published=True, message=message))
    return results


def _verdict_lost(manifest: HourManifest, before: HourManifest | None) -> str:
    """What somebody should know who published an hour again without asking whether it is complete."""
    if before is None or manifest.verdict.verdict != UNASKED or before.verdict.verdict == UNASKED:
        return ""
    return f"; rev={before.revision} was {before.verdict.verdict}: ask again with --auditor"


def _next_revision(
    run: HourlyRun, topic: str, source: HourSource, newest: HourManifest | None, files: Sequence[DataFile]
) -> HourManifest:
    """The manifest of the hour's next revision, with what the auditor says of the hour now.

    MillraceError unless the files have as many rows as the hour's loads state.
    """
    inside, columns = f"{hour_folder(source.hour)}/", source.newest_columns
    rows, expected = sum(file.rows for file in files), sum(part.rows for part in source.parts)
    if rows != expected:
        raise MillraceError(
            f"{topic} {source.hour}: {rows} rows written, its loads state {expected}; run `millrace verify`"
        )
    return sealed(
        HourManifest(
            topic=topic,
            hour=source.hour,
            revision=1 if newest is None else newest.revision + 1,
            created=now(),
            run_id=run.run_id,
            loads=source.parts,
            rows=rows,
            files=[
                replace(file, path=file.path.removeprefix(inside))
                for file in sorted(files, key=lambda file: file.path)
            ],
            table_schema_id=columns.table_schema_id,
            promotion=columns.age[0] or None,
            base=source.base,
            verdict=run.verdict_of(topic, source.hour),
            previous=None if newest is None else newest.sha256,
        )
    )


def _result(manifest: HourManifest, *, published: bool, message: str) -> HourResult:
    return HourResult(
        hour=manifest.hour,
        revision=manifest.revision,
        rows=manifest.rows,
        verdict=manifest.verdict.verdict,
        published=published,
        message=message,
    )


def _unchanged(newest: HourManifest, run_id: str) -> HourResult:
    published = newest.run_id == run_id
    said = "published" if published else "nothing new since"
    return _result(newest, published=published, message=f"{said} rev={newest.revision}")

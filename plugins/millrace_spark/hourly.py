"""Publishing hours: the rows of one hour of event time, from every load that has some, as one revision.

Many hours in one go: all their rows are written in one batch of tasks, then each hour is published by its
own exclusive rename. An hour whose loads are those of its newest revision is left as it is. Also the place
where small files are put together: an hour's files become one per `MERGE_BYTES`. Written without Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from millrace.errors import ConfigError, MillraceError
from millrace.manifest import DataFile, HourManifest, LoadManifest, LoadPart, Verdict, check_hash, sealed
from millrace_spark.filesystem import Filesystem, LocalFilesystem
from millrace_spark.hour_files import ROW_GROUP_ROWS, data_file, hour_folder
from millrace_spark.sinks import check_files
from millrace_spark.tables import read_revision, revision_folder, revision_numbers
from millrace_spark.warehouse import (
    HOURLY,
    LEDGER,
    PLANS,
    STAGING,
    Progress,
    load_folder,
    load_numbers,
    newest_load,
    publish,
    read_load,
    record,
    recorded_folders,
    sweep_staging,
)

ATTEMPTS = 5
MERGE_BYTES = 256 << 20
"""Parquet bytes of loads that go into one file of an hour."""


@dataclass(frozen=True, slots=True)
class HourSource:
    """What an hour is made from: the loads that have rows of it, and their files."""

    hour: str
    parts: Sequence[LoadPart]
    files: Sequence[tuple[str, DataFile]]
    """(load's folder, file) in the order of the loads."""
    table_schema_id: int
    schema_file: str
    """A file of the newest load: its columns are the hour's."""


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Some files of one hour that become one file in staging; every path absolute."""

    sources: Sequence[str]
    schema_file: str
    staging: str
    path: str


Run = Callable[[Sequence[MergeTask]], list[DataFile]]
"""Runs `merge_files` on every task, somewhere: a Spark job, or one after the other."""


class Merge(Protocol):
    """Writes the rows of some hours into a staging folder, each hour in its own `date=…/hour=…`."""

    def write(self, sources: Sequence[HourSource], staging: str) -> list[DataFile]:
        """What is in the folder afterwards, by path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HourResult:
    """What happened to one hour."""

    hour: str
    revision: int | None
    """The newest revision now, None for an hour no load has rows of."""
    rows: int
    verdict: str
    published: bool
    """True if this call published the revision."""
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


def merge_files(task: MergeTask) -> DataFile:
    """Copy the rows of some Parquet files into one, with the columns of `schema_file`."""
    schema = pq.read_schema(task.schema_file).remove_metadata()
    target = Path(task.staging, task.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    rows = 0
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        held: list[pa.RecordBatch] = []
        for batch in ds.dataset(list(task.sources), schema=schema, format="parquet").to_batches():
            held.append(batch)
            if sum(each.num_rows for each in held) >= ROW_GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(held, schema))
                held.clear()
            rows += batch.num_rows
        writer.write_table(pa.Table.from_batches(held, schema))
    return data_file(Path(task.staging), task.path, rows)


class DirectMerge:
    """Tasks that copy Parquet files with pyarrow."""

    def __init__(self, fs: Filesystem, run: Run) -> None:
        if not isinstance(fs, LocalFilesystem):
            raise ConfigError(f"sink `direct` cannot write to {fs.root}: use --sink spark")
        self._fs = fs
        self._run = run

    def write(self, sources: Sequence[HourSource], staging: str) -> list[DataFile]:
        """What is in the folder afterwards, by path; leftovers of failed attempts are deleted."""
        folder = self._fs.uri(staging)
        tasks = [
            MergeTask(
                [self._fs.uri(f"{load}/{file.path}") for load, file in group],
                self._fs.uri(source.schema_file),
                folder,
                f"{hour_folder(source.hour)}/part-{index:05d}-{uuid.uuid4().hex[:12]}.parquet",
            )
            for source in sources
            for index, group in enumerate(_groups(source.files))
        ]
        files = self._run(tasks)
        kept = {file.path for file in files}
        for path, _ in self._fs.files(staging):
            if path not in kept:
                self._fs.delete(f"{staging}/{path}")
        return files


def _groups(files: Iterable[tuple[str, DataFile]]) -> list[list[tuple[str, DataFile]]]:
    """The files in order, in groups of about MERGE_BYTES."""
    groups: list[list[tuple[str, DataFile]]] = []
    size = MERGE_BYTES
    for load, file in files:
        if size >= MERGE_BYTES:
            groups.append([])
            size = 0
        groups[-1].append((load, file))
        size += file.bytes
    return groups


def hours_between(start: datetime, end: datetime) -> list[str]:
    """Every hour of [start, end), UTC; ConfigError when there is none."""
    start, end = start.astimezone(UTC), end.astimezone(UTC)
    if start >= end:
        raise ConfigError(
            f"--from {start.isoformat()} is not before --to {end.isoformat()}: give them in order"
        )
    hour, hours = start.replace(minute=0, second=0, microsecond=0), []
    while hour < end:
        hours.append(hour.strftime("%Y-%m-%dT%H"))
        hour += timedelta(hours=1)
    return hours


def publish_hours(run: HourlyRun, topic: str, hours: Sequence[str]) -> list[HourResult]:
    """Publish the next revision of every hour that has news; what happened to each, in order."""
    if newest_load(run.fs, topic) is None:
        if run.fs.names(f"{topic}/{PLANS}"):
            return [_absent(hour) for hour in dict.fromkeys(hours)]  # loads ran, and found the topic empty
        raise MillraceError(f"no load of {topic} in {run.fs.root}: run `millrace load {topic}` first")
    table = f"{topic}{HOURLY}"
    sweep_staging(run.fs, table)
    recorded = set(recorded_folders(run.fs, table))
    results: dict[str, HourResult] = {}
    pending = list(dict.fromkeys(hours))
    for _ in range(ATTEMPTS):
        todo: list[tuple[HourSource, HourManifest | None]] = []
        # In this order: loads that came after a revision are seen, and none that a revision was made from is
        # not. The other way round a slow run could replace a newer revision by one without the late rows.
        revisions = {hour: _newest(run, topic, hour, recorded) for hour in pending}
        for source in _sources(run.fs, topic, pending):
            newest = revisions[source.hour]
            if newest is None and not source.parts:
                results[source.hour] = _absent(source.hour)
            elif newest is not None and list(newest.loads) == list(source.parts):
                results[source.hour] = _unchanged(newest)
            else:
                _check_nothing_is_gone(run.fs, topic, source, newest)
                todo.append((source, newest))
        if todo:
            results |= {result.hour: result for result in _publish_all(run, topic, todo)}
        # An hour that another run published first is looked at again, from what that one says.
        pending = [source.hour for source, _ in todo if source.hour not in results]
        if not pending:
            return [results[hour] for hour in dict.fromkeys(hours)]
    raise MillraceError(f"{topic}: other runs published {pending[0]} {ATTEMPTS} times; run one at a time")


def _sources(fs: Filesystem, topic: str, hours: Sequence[str]) -> list[HourSource]:
    """What every hour is made from. Only loads with a folder for one of the hours are opened."""
    parts: dict[str, list[LoadManifest]] = {hour: [] for hour in hours}
    by_date: dict[str, set[str]] = {}
    for hour in hours:
        date, _, clock = hour_folder(hour).partition("/")
        by_date.setdefault(date, set()).add(clock)
    for number in load_numbers(fs, topic):
        folder = f"{topic}/{load_folder(number)}"
        dates = by_date.keys() & set(fs.names(folder))
        found = {
            f"{date[5:]}T{clock[5:]}"
            for date in dates
            for clock in by_date[date] & set(fs.names(f"{folder}/{date}"))
        }
        if not found:
            continue
        manifest = read_load(fs, topic, number)
        if problem := check_hash(manifest):
            raise MillraceError(f"{folder}: {problem}; restore it from a copy")
        for hour in found & manifest.rows_by_hour().keys():
            parts[hour].append(manifest)
    return [_source(topic, hour, parts[hour]) for hour in hours]


def _source(topic: str, hour: str, manifests: Sequence[LoadManifest]) -> HourSource:
    files = [
        (f"{topic}/{load_folder(manifest.load)}", file)
        for manifest in manifests
        for file in manifest.files
        if file.hour == hour
    ]
    # By load: schema ids rise with time in one subject, but not where another had the same schema before.
    newest = manifests[-1] if manifests else None
    own = [f"{load}/{f.path}" for load, f in files if newest and load.endswith(load_folder(newest.load))]
    return HourSource(
        hour,
        [LoadPart(load=m.load, sha256=m.sha256, rows=m.rows_by_hour()[hour]) for m in manifests],
        files,
        newest.table_schema_id if newest else 0,
        own[0] if own else "",
    )


def _check_nothing_is_gone(
    fs: Filesystem, topic: str, source: HourSource, newest: HourManifest | None
) -> None:
    """MillraceError when a load that the newest revision was made from has lost its folder of this hour.

    A load that was made anew may have other hours; it has another hash.
    """
    found, there = {part.load for part in source.parts}, set(load_numbers(fs, topic))
    for part in newest.loads if newest is not None else ():
        if part.load in there - found and read_load(fs, topic, part.load).sha256 == part.sha256:
            raise MillraceError(
                f"{topic}/{load_folder(part.load)}/{hour_folder(source.hour)} with {part.rows} rows is gone:"
                " restore it from a copy"
            )


def _newest(run: HourlyRun, topic: str, hour: str, recorded: set[str]) -> HourManifest | None:
    """The hour's newest revision, its ledger entry made good; MillraceError when one is gone."""
    numbers = revision_numbers(run.fs, topic, hour)
    known = {revision_folder(hour, number) for number in numbers}
    inside = f"{hour_folder(hour)}/"
    for folder in sorted(folder for folder in recorded if folder.startswith(inside)):
        if folder not in known:
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
    staging = f"{topic}{HOURLY}/{STAGING}/{uuid.uuid4().hex}"
    run.fs.make_folder(staging)
    try:
        files = run.merge.write([source for source, _ in todo], staging)
        run.progress("written")
        check_files(run.fs, staging, files)
        run.progress("verified")
        by_hour: dict[str, list[DataFile]] = {}
        for file in files:
            by_hour.setdefault(file.hour or "", []).append(file)
        results = [
            _publish_one(run, topic, source, newest, by_hour.get(source.hour, []), staging)
            for source, newest in todo
        ]
        return [result for result in results if result is not None]
    finally:
        run.fs.delete(staging)


def _publish_one(
    run: HourlyRun,
    topic: str,
    source: HourSource,
    newest: HourManifest | None,
    files: Sequence[DataFile],
    staging: str,
) -> HourResult | None:
    rows, expected = sum(file.rows for file in files), sum(part.rows for part in source.parts)
    if rows != expected:
        raise MillraceError(
            f"{topic} {source.hour}: {rows} rows written, its loads state {expected}; run `millrace verify`"
        )
    inside = hour_folder(source.hour)
    manifest = sealed(
        HourManifest(
            topic=topic,
            hour=source.hour,
            revision=1 if newest is None else newest.revision + 1,
            created=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            run_id=run.run_id,
            loads=source.parts,
            rows=rows,
            # By path inside the revision's own folder.
            files=[_inside(file, inside) for file in sorted(files, key=lambda file: file.path)],
            table_schema_id=source.table_schema_id,
            verdict=run.verdict_of(topic, source.hour),
            previous=None if newest is None else newest.sha256,
        )
    )
    run.fs.make_folder(f"{staging}/{inside}")
    folder = revision_folder(source.hour, manifest.revision)
    if not publish(run.fs, f"{topic}{HOURLY}", f"{staging}/{inside}", folder, manifest, run.progress):
        return None
    return HourResult(
        hour=source.hour, revision=manifest.revision, rows=rows, verdict=manifest.verdict.verdict,
        published=True, message=f"published rev={manifest.revision}",
    )  # fmt: skip


def _inside(file: DataFile, folder: str) -> DataFile:
    return DataFile(
        path=file.path.removeprefix(f"{folder}/"), rows=file.rows, records=file.records,
        bytes=file.bytes, sha256=file.sha256,
    )  # fmt: skip


def _absent(hour: str) -> HourResult:
    return HourResult(
        hour=hour, revision=None, rows=0, verdict="", published=False, message="no load has rows of it"
    )


def _unchanged(newest: HourManifest) -> HourResult:
    return HourResult(
        hour=newest.hour, revision=newest.revision, rows=newest.rows, verdict=newest.verdict.verdict,
        published=False, message=f"nothing new since rev={newest.revision}",
    )  # fmt: skip


def as_json(topic: str, results: Sequence[HourResult]) -> Mapping[str, Any]:
    """The results as JSON values."""
    return {"topic": topic, "hours": [asdict(result) for result in results]}

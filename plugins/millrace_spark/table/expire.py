"""Deletes what nobody needs any more: data files of loads that are folded into hours, old revisions, plans.

A load expires when every hour it ever had rows of is published from its newest edition and the files of those
revisions are the published ones. That is written down first, in `_expired/`, then the files are deleted:
after a crash at any step the next run goes on where this one stopped. Manifests, `_rejected/` and the files
beside a manifest stay, so the history can still be checked from end to end, and the offsets read again while
the log has them. A revision expires when the next one is old enough. Knows no Spark and reads no rows.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from millrace_spark.files.filesystem import Filesystem
from millrace_spark.table import revisions
from millrace_spark.table.revisions import Revision
from millrace_spark.table.sources import LoadHistory
from millrace_spark.warehouse import editions
from millrace_spark.warehouse.layout import HOURLY, PLANS
from millrace_spark.warehouse.ledger import recorded_at, recorded_folders, require_load
from millrace_spark.warehouse.manifest import HourManifest, LoadManifest, LoadPart, encode
from millrace_spark.warehouse.staging import STALE_STAGING_S, Progress, sweep_staging


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireRun:
    """Everything one run needs; built in one place, by the command."""

    fs: Filesystem
    older_than_s: float
    progress: Progress
    reader_grace_s: float
    """How long a superseded revision stays at least, for queries that began before the next one was there."""
    dry_run: bool = False
    """Say what would be deleted, and delete nothing."""
    clock: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireResult:
    """What a run deleted, or would have."""

    topic: str
    loads: int
    """Editions of loads whose data files went."""
    revisions: int
    plans: int
    files: int
    bytes: int
    kept: Mapping[str, str]
    """Old loads and revisions that stay -> why."""


DamageOf = Callable[[str], str | None]
"""What is wrong with the files of an hour's newest revision; None when they are the published ones."""


@dataclass(frozen=True, slots=True)
class _Expiring:
    """A folder whose data files go, and the folder's table."""

    table: str
    entry: editions.ExpiredEntry
    paths: list[str]


def expire_topic(run: ExpireRun, topic: str) -> ExpireResult:
    """Delete what is old and not needed; MillraceError when the history has a hole or a copy is damaged."""
    require_load(run.fs, topic)
    if not run.dry_run:
        _finish_deletions(run, topic)
        for table in (topic, f"{topic}{HOURLY}", editions.reloads_table(topic)):
            sweep_staging(run.fs, table)
    kept: dict[str, str] = {}
    newest = {revision.manifest.hour: revision for revision in revisions.newest_revisions(run.fs, topic)}
    damage_of = functools.cache(lambda hour: _damage(run.fs, newest[hour]))
    # Loads first: the revision that stands for one is checked while all that led to it is still there.
    loads = [_delete(run, load) for load in _old_loads(run, topic, newest, damage_of, kept)]
    superseded = [_delete(run, old) for old in _old_revisions(run, topic, newest, damage_of, kept)]
    plans = _old_plans(run, topic)
    return ExpireResult(
        topic=topic,
        loads=len(loads),
        revisions=len(superseded),
        plans=plans,
        files=sum(entry.files for entry in [*loads, *superseded]),
        bytes=sum(entry.bytes for entry in [*loads, *superseded]),
        kept=kept,
    )


def _delete(run: ExpireRun, expiring: _Expiring) -> editions.ExpiredEntry:
    entry = expiring.entry
    if not run.dry_run:
        # In this order: whoever finds a file missing finds the reason as well, and the next run what is left.
        run.fs.create(editions.deletion_path(expiring.table, editions.expired_name(entry.folder)), b"")
        run.fs.create(editions.expired_path(expiring.table, entry.folder), encode(entry))
        run.progress("written down")
        for path in expiring.paths:
            run.fs.delete(f"{expiring.table}/{entry.folder}/{path}")
            run.progress("deleted")
    return entry


def _finish_deletions(run: ExpireRun, topic: str) -> None:
    """Delete what earlier runs had only written down, and what a power cut has brought back.

    A deletion is checked for a day, as long as somebody may be in the middle of it, and until all is gone.
    """
    for table in (topic, f"{topic}{HOURLY}"):
        expired = editions.expired_folders(run.fs, table)
        for name in editions.deletions(run.fs, table):
            folder = f"{table}/{_folder(name)}"
            left = [inside for inside in run.fs.names(folder) if name in expired and inside[0] != "_"]
            for inside in left:
                run.fs.delete(f"{folder}/{inside}")
            if not left and run.fs.age_s(editions.deletion_path(table, name)) > STALE_STAGING_S:
                run.fs.delete(editions.deletion_path(table, name))


def _folder(name: str) -> str:
    """The folder of what `expired_name` names: an edition of a load, or an hour's revision."""
    if not name.startswith("load="):
        return name.replace(",", "/")
    load, _, edition = name.removeprefix("load=").partition(",edition=")
    return editions.edition_folder(int(load), int(edition or 1))


def _old_loads(
    run: ExpireRun, topic: str, newest: Mapping[str, Revision], damage_of: DamageOf, kept: dict[str, str]
) -> Iterator[_Expiring]:
    """Every edition of every old load that is folded, the newest edition of each last."""
    history = LoadHistory.of(run.fs, topic)
    for load in history.numbers:
        if history.has_expired(load):
            continue
        if not _is_old(run, history.manifest(load, 1).created):
            return  # the later ones are younger
        manifests = [history.manifest(load, number) for number in range(1, history.edition(load) + 1)]
        if not _is_old(run, manifests[-1].created):
            continue
        touched = sorted({hour for manifest in manifests for hour in manifest.rows_by_hour()})
        holding = {hour: newest[hour].manifest for hour in touched if hour in newest}
        damaged = next(filter(None, map(damage_of, holding)), None)
        if reason := _not_folded(manifests[-1], holding) or damaged:
            kept[history.folder(load)] = reason
            continue
        for manifest in manifests:
            folder = editions.edition_folder(load, manifest.edition)
            if editions.expired_name(folder) not in history.expired:
                held = {hour: revision.revision for hour, revision in holding.items()}
                yield _expiring(run, topic, folder, manifest, held)


def _not_folded(newest: LoadManifest, holding: Mapping[str, HourManifest]) -> str | None:
    """Why the newest edition must stay: an hour that lacks it, or still has an earlier one."""
    for hour, rows in newest.rows_by_hour().items():
        if hour not in holding:
            return f"{rows} rows of {hour} are in no hour: run `millrace hourly {newest.topic} --hour {hour}`"
    for hour, revision in holding.items():
        part = next((part for part in revision.loads if part.load == newest.load), None)
        rows = newest.rows_by_hour().get(hour, 0)
        folded = LoadPart(load=newest.load, edition=newest.edition, sha256=newest.sha256, rows=rows)
        if part != folded and (part is not None or rows):
            return f"{hour} was published without it: run `millrace hourly {newest.topic} --late`"
    return None


def _damage(fs: Filesystem, revision: Revision) -> str | None:
    for file in revision.manifest.files:
        path = f"{revision.folder}/{file.path}"
        try:
            if fs.sha256(path) == file.sha256:
                continue
        except FileNotFoundError:
            pass
        return f"{path} is missing or was changed: run `millrace verify`"
    return None


def _old_revisions(
    run: ExpireRun, topic: str, newest: Mapping[str, Revision], damage_of: DamageOf, kept: dict[str, str]
) -> Iterator[_Expiring]:
    """Every revision whose successor has been there for long enough, while the newest one is whole."""
    table = f"{topic}{HOURLY}"
    expired = editions.expired_folders(run.fs, table)
    recorded = set(recorded_folders(run.fs, table))
    age_s = max(run.older_than_s, run.reader_grace_s)
    for hour in newest:
        numbers = revisions.revision_numbers(run.fs, topic, hour)
        for number, successor in itertools.pairwise(numbers):
            folder, next_folder = (revisions.revision_folder(hour, n) for n in (number, successor))
            if editions.expired_name(folder) in expired or next_folder not in recorded:
                continue
            # Not what its manifest says: a driver may stand still for hours before it publishes.
            if recorded_at(run.fs, table, next_folder) > run.clock() - age_s:
                continue
            if reason := damage_of(hour):
                kept[f"{table}/{folder}"] = reason
            else:
                manifest = revisions.read_revision(run.fs, topic, hour, number).manifest
                yield _expiring(run, table, folder, manifest, {hour: numbers[-1]})


def _old_plans(run: ExpireRun, topic: str) -> int:
    """Delete plans that no retry needs any more; how many. The newest one stays: it shows that loads ran."""
    age_s = max(run.older_than_s, STALE_STAGING_S)
    paths = [f"{topic}/{PLANS}/{name}" for name in run.fs.names(f"{topic}/{PLANS}")]
    old = [path for path in sorted(paths, key=run.fs.age_s)[1:] if run.fs.age_s(path) > age_s]
    for path in old if not run.dry_run else ():
        run.fs.delete(path)
    return len(old)


def _expiring(
    run: ExpireRun, table: str, folder: str, manifest: LoadManifest | HourManifest, held: Mapping[str, int]
) -> _Expiring:
    # All files of a revision, and all but the rejected ones of a load.
    of_revision = isinstance(manifest, HourManifest)
    files = [file for file in manifest.files if of_revision or file.hour is not None]
    entry = editions.ExpiredEntry(
        folder=folder,
        sha256=manifest.sha256,
        expired=datetime.fromtimestamp(run.clock(), UTC).isoformat(timespec="seconds"),
        rows=manifest.rows,
        files=len(files),
        bytes=sum(file.bytes for file in files),
        revisions=dict(held),
    )
    # Of a load whole folders, `date=…`: their emptied shells would be listed by every later run.
    return _Expiring(table, entry, sorted({file.path.partition("/")[0] for file in files}))


def _is_old(run: ExpireRun, created: str) -> bool:
    return datetime.fromisoformat(created).timestamp() <= run.clock() - run.older_than_s

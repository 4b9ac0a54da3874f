"""What loads became later: editions read again, data files that expired, promotions of the table's schema."""

from __future__ import annotations

import re
from collections.abc import Mapping

from millrace.errors import MillraceError
from millrace_spark.files.filesystem import Filesystem
from millrace_spark.reload import COUNTED, check_same_offsets
from millrace_spark.verify.files import check_files, check_load_rows, check_rejected
from millrace_spark.verify.report import OnFolder, TableReport, against_ledger, not_recorded
from millrace_spark.warehouse.editions import (
    EXPIRED,
    ExpiredEntry,
    deletions,
    edition_folder,
    expired_name,
    expired_path,
    later_editions,
    reload_folder,
    reloads_table,
)
from millrace_spark.warehouse.layout import LEDGER, STAGING, load_folder, read_manifest, sequences_of
from millrace_spark.warehouse.ledger import recorded_folders
from millrace_spark.warehouse.manifest import MANIFEST, LoadManifest, check_hash, check_law, decode
from millrace_spark.warehouse.promotions import promotions

Loads = Mapping[int, LoadManifest | None]


def expired_entry(fs: Filesystem, table: str, folder: str) -> ExpiredEntry | None:
    """What was written down when a folder's data files were deleted; None when they were not."""
    path = expired_path(table, folder)
    try:
        return decode(ExpiredEntry, fs.read(path), path)
    except FileNotFoundError:
        return None


def check_content(
    fs: Filesystem, topic: str, folder: str, manifest: LoadManifest, report: TableReport
) -> None:
    """Check files and rows of a load or an edition; what has expired only by what stays of it."""
    where = f"{topic}/{folder}"
    report.files += len(manifest.files)
    report.rows += manifest.rows
    try:
        expired = is_expired(fs, topic, folder, manifest.sha256, report)
    except MillraceError as error:
        report.problems.append(str(error))
        return
    gone = [file for file in manifest.files if file.hour is not None] if expired else []
    kept = [file for file in manifest.files if file.hour is None] if expired else manifest.files
    damaged = check_files(fs, where, kept, manifest.spilled, gone)
    report.problems += damaged
    if damaged:
        report.damaged.add(where)
    elif not expired:
        report.problems += check_load_rows(fs, where, manifest)
    else:
        report.problems += check_rejected(fs, where, manifest)
        try:
            sequences_of(fs, where, manifest)
        except MillraceError as error:
            report.problems.append(str(error))


def is_expired(fs: Filesystem, table: str, folder: str, sha256: str, report: TableReport) -> bool:
    """True for a folder that has expired, counted and compared with what was written down of it."""
    entry = expired_entry(fs, table, folder)
    if entry is None:
        return False
    report.expired += 1
    if (entry.folder, entry.sha256) != (folder, sha256):
        report.problems.append(f"{expired_path(table, folder)} is about another folder: it was edited")
    if left := [name for name in fs.names(f"{table}/{folder}") if not name.startswith("_")]:
        do = "run `millrace expire` again"
        if expired_name(folder) not in deletions(fs, table):
            do = f"it came back later, delete {', '.join(left)} in it"
        report.notes.append(f"{table}/{folder} has expired and is not deleted: {do}")
    return True


def check_editions(
    fs: Filesystem, topic: str, loads: Loads, report: TableReport, on_folder: OnFolder
) -> None:
    """Check every later edition: the one it replaces, the same offsets, its own files and rows."""
    table, ledger = reloads_table(topic), set(recorded_folders(fs, reloads_table(topic)))
    editions = later_editions(fs, topic)
    present = {reload_folder(load, number) for load, numbers in editions.items() for number in numbers}
    report.problems += [
        f"{table}/{folder} is missing: an edition that was published is gone"
        for folder in sorted(ledger - present)
    ]
    for load, numbers in editions.items():
        before = loads.get(load)
        if before is None:
            report.problems.append(f"{table}/{load_folder(load)} is an edition of a load that is not there")
        for number in numbers:
            folder = reload_folder(load, number)
            on_folder(f"{table}/{folder}")
            report.folders += 1
            if folder not in ledger:
                not_recorded(report, f"{table}/{folder}", newest=number == numbers[-1])
            before = _check_edition(fs, topic, load, number, before, report)
    _check_strays(fs, table, report)


def _check_edition(
    fs: Filesystem, topic: str, load: int, number: int, before: LoadManifest | None, report: TableReport
) -> LoadManifest | None:
    """Check one edition; its manifest, for the next one to follow."""
    table, folder = reloads_table(topic), reload_folder(load, number)
    where = f"{table}/{folder}"
    try:
        manifest = read_manifest(fs, LoadManifest, where)
    except MillraceError as error:
        report.problems.append(str(error))
        return None
    found = [check_hash(manifest), against_ledger(fs, table, folder, manifest.sha256)]
    if (manifest.topic, manifest.load, manifest.edition) != (topic, load, number):
        found.append(
            f"the manifest is that of {manifest.topic} load={manifest.load:010d} edition={manifest.edition}"
        )
    found += check_law(manifest)
    if before is not None:
        if (before.edition, before.sha256) != (number - 1, manifest.previous):
            found.append("it replaces another edition than the one that is there")
        try:
            check_same_offsets(manifest, before)
        except (MillraceError, KeyError) as error:
            found.append(f"it does not hold the offsets of the edition before: {error}")
    report.problems += [f"{where}: {problem}" for problem in found if problem]
    check_content(fs, topic, edition_folder(load, number), manifest, report)
    if before is not None:
        report.rows -= before.rows  # readers see those of the newest edition alone
    return manifest


def _check_strays(fs: Filesystem, table: str, report: TableReport) -> None:
    """Report what lies in `_reloads` and is no edition, and what unfinished runs left."""
    for name in fs.names(table):
        if name == STAGING:
            if left := fs.names(f"{table}/{STAGING}"):
                report.notes.append(f"{table}/{STAGING} holds {len(left)} unfinished or abandoned folder(s)")
        elif re.fullmatch(r"load=\d{10}", name):
            for edition in fs.names(f"{table}/{name}"):
                if not re.fullmatch(r"edition=\d{4,}", edition):
                    report.problems.append(f"{table}/{name}/{edition} is nothing that Millrace writes")
        elif name not in (LEDGER, COUNTED):
            report.problems.append(f"{table}/{name} is nothing that Millrace writes: move it away")


def check_expired_entries(fs: Filesystem, table: str, report: TableReport) -> None:
    """Report what is said to have expired and has no manifest any more."""
    for name in fs.names(f"{table}/{EXPIRED}"):
        if name.startswith("."):
            continue
        path = f"{table}/{EXPIRED}/{name}"
        try:
            entry = decode(ExpiredEntry, fs.read(path), path)
        except MillraceError as error:
            report.problems.append(str(error))
            continue
        if f"{expired_name(entry.folder)}.json" != name:
            report.problems.append(f"{path} is about {entry.folder}: it was edited")
        elif MANIFEST not in fs.names(f"{table}/{entry.folder}"):
            report.problems.append(f"{table}/{entry.folder} has expired, but its manifest should be there")


def check_promotions(fs: Filesystem, topic: str, loads: Loads, report: TableReport) -> None:
    """Report a promotion that is missing or broken, and a load with another schema than its promotion's."""
    try:
        recorded = {promotion.number: promotion for promotion in promotions(fs, topic)}
    except MillraceError as error:
        report.problems.append(str(error))
        return
    used = {manifest.promotion or 0 for manifest in loads.values() if manifest is not None}
    last = max([*recorded, *used], default=0)
    for number in range(1, last + 1):
        if number not in recorded:
            report.problems.append(f"{topic}: promotion {number} of the table's schema is missing")
    newest = 0
    for manifest in filter(None, loads.values()):
        promotion = recorded.get(manifest.promotion or 0)
        where = f"{topic}/{load_folder(manifest.load)}"
        if promotion is not None and promotion.schema_id != manifest.table_schema_id:
            report.problems.append(
                f"{where}: its columns are those of schema {manifest.table_schema_id}, promotion"
                f" {promotion.number} states {promotion.schema_id}"
            )
        if (manifest.promotion or 0) < newest:
            report.problems.append(f"{where}: goes back behind promotion {newest}")
        newest = max(newest, manifest.promotion or 0)

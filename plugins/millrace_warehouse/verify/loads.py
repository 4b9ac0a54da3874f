"""The loads of a topic and their later editions: an unbroken history, each folder what its manifest says."""

from __future__ import annotations

import re
from collections.abc import Mapping

from millrace.errors import MillraceError
from millrace_warehouse.history import layout
from millrace_warehouse.history.editions import edition_folder, later_editions, reload_folder, reloads_table
from millrace_warehouse.history.ledger import read_entry, recorded_folders
from millrace_warehouse.history.manifest import LoadManifest, check_follows, check_law
from millrace_warehouse.history.plan import Plan
from millrace_warehouse.history.promotions import promotions
from millrace_warehouse.load.reload import COUNTED, check_same_offsets
from millrace_warehouse.storage.filesystem import Filesystem
from millrace_warehouse.verify.files import check_files, check_load_rows, check_rejected
from millrace_warehouse.verify.report import OURS, OnFolder, TableCheck, TableReport, readable

Loads = Mapping[int, LoadManifest | None]


def verify_loads(fs: Filesystem, topic: str, on_folder: OnFolder) -> TableCheck:
    """Check the loads of a topic: the history, then each folder and edition."""
    check = TableCheck(fs, topic, TableReport(topic), on_folder)
    numbers, ledger = layout.load_numbers(fs, topic), set(recorded_folders(fs, topic))
    present = {layout.load_folder(number) for number in numbers}
    expected = {layout.load_folder(number) for number in range(1, max(numbers, default=0) + 1)}
    manifests = {number: check.read(layout.read_load, topic, number) for number in numbers}
    for folder in sorted((expected | ledger) - present):
        check.problem(_missing_load(fs, topic, folder, manifests))
    for number, manifest in manifests.items():
        folder = layout.load_folder(number)
        check.begin(f"{topic}/{folder}", recorded=folder in ledger, newest=number == numbers[-1])
        if manifest is not None:
            _check_load(check, number, manifest, manifests.get(number - 1))
    _check_editions(check, manifests)
    check.check_expired_entries(topic)
    _check_promotions(check, manifests)
    check.check_strays(topic, present | OURS)
    _note_unfinished(check, manifests.get(numbers[-1]) if numbers else None)
    return check


def _check_load(check: TableCheck, number: int, manifest: LoadManifest, before: LoadManifest | None) -> None:
    problems = check_law(manifest)
    if (manifest.topic, manifest.load) != (check.topic, number):
        problems.insert(0, f"the manifest is that of {manifest.topic} load={manifest.load:010d}")
    if before is not None or number == 1:
        problems += check_follows(manifest, before)
    check.check_manifest(check.topic, layout.load_folder(number), manifest, *problems)
    _check_content(check, layout.load_folder(number), manifest)


def _missing_load(fs: Filesystem, topic: str, folder: str, manifests: Loads) -> str:
    """What is gone with a load, from the ledger or, without it, from the loads before and after it."""
    number = int(folder.removeprefix("load="))
    ranges: list[str] = []
    rows = ""
    entry = readable(read_entry, fs, topic, folder)
    if entry is not None:
        rows = f" with {entry.rows} rows"
        ranges = [f"{topic}-{range_.partition} [{range_.start}, {range_.end})" for range_ in entry.offsets]
    else:
        after = next((m for n, m in sorted(manifests.items()) if n > number and m), None)
        ends = next((m.ends for n, m in sorted(manifests.items(), reverse=True) if n < number and m), {})
        for part in after.partitions if after else ():
            if part.start > ends.get(part.partition, 0):
                ranges.append(f"{topic}-{part.partition} [{ends.get(part.partition, 0)}, {part.start})")
    return f"{topic}/{folder} is missing{rows}: offsets {', '.join(ranges) or 'unknown'}"


def _check_content(check: TableCheck, folder: str, manifest: LoadManifest) -> None:
    """Check files and rows of a load or an edition; what has expired only by what stays of it."""
    fs, where = check.fs, f"{check.topic}/{folder}"
    check.report.files += len(manifest.files)
    check.report.rows += manifest.rows
    expired = check.is_expired(check.topic, folder, manifest)
    if expired is None:
        return
    gone = [file for file in manifest.files if file.hour is not None] if expired else []
    kept = [file for file in manifest.files if file.hour is None] if expired else manifest.files
    if damaged := check_files(fs, where, kept, manifest.spilled, gone):
        check.problem(*damaged)
        check.damaged.add(where)
    elif not expired:
        check.problem(*check_load_rows(fs, where, manifest))
    else:
        check.problem(*check_rejected(fs, where, manifest))
        check.read(layout.sequences_of, where, manifest)


def _check_editions(check: TableCheck, loads: Loads) -> None:
    """Check every later edition: the one it replaces, the same offsets, its own files and rows."""
    fs, topic, table = check.fs, check.topic, reloads_table(check.topic)
    ledger, editions = set(recorded_folders(fs, table)), later_editions(fs, topic)
    present = {reload_folder(load, number) for load, numbers in editions.items() for number in numbers}
    for folder in sorted(ledger - present):
        check.problem(f"{table}/{folder} is missing: an edition that was published is gone")
    for load, numbers in editions.items():
        before = loads.get(load)
        if before is None:
            check.problem(f"{table}/{layout.load_folder(load)} is an edition of a load that is not there")
        for number in numbers:
            folder = reload_folder(load, number)
            check.begin(f"{table}/{folder}", recorded=folder in ledger, newest=number == numbers[-1])
            before = _check_edition(check, load, number, before)
    names = [name for name in fs.names(table) if re.fullmatch(r"load=\d{10}", name)]
    check.check_strays(table, {*names, layout.LEDGER, COUNTED})
    for name in names:
        folders = fs.names(f"{table}/{name}")
        for stray in (folder for folder in folders if not re.fullmatch(r"edition=\d{4,}", folder)):
            check.problem(f"{table}/{name}/{stray} is nothing that Millrace writes")


def _check_edition(
    check: TableCheck, load: int, number: int, before: LoadManifest | None
) -> LoadManifest | None:
    """Check one edition; its manifest, for the next one to follow."""
    table, folder = reloads_table(check.topic), reload_folder(load, number)
    manifest: LoadManifest | None = check.read(layout.read_manifest, LoadManifest, f"{table}/{folder}")
    if manifest is None:
        return None
    problems = check_law(manifest)
    if (manifest.topic, manifest.load, manifest.edition) != (check.topic, load, number):
        its = f"{manifest.topic} load={manifest.load:010d} edition={manifest.edition}"
        problems.insert(0, f"the manifest is that of {its}")
    if before is not None:
        if (before.edition, before.sha256) != (number - 1, manifest.previous):
            problems.append("it replaces another edition than the one that is there")
        try:
            check_same_offsets(manifest, before)
        except (MillraceError, KeyError) as error:
            problems.append(f"it does not hold the offsets of the edition before: {error}")
    check.check_manifest(table, folder, manifest, *problems)
    _check_content(check, edition_folder(load, number), manifest)
    if before is not None:
        check.report.rows -= before.rows  # readers see those of the newest edition alone
    return manifest


def _check_promotions(check: TableCheck, loads: Loads) -> None:
    """Report a promotion that is missing or broken, and a load with another schema than its promotion's."""
    topic, history = check.topic, check.read(promotions, check.topic)
    if history is None:
        return
    recorded = {promotion.number: promotion for promotion in history}
    used = {manifest.promotion or 0 for manifest in loads.values() if manifest is not None}
    for number in range(1, max([*recorded, *used], default=0) + 1):
        if number not in recorded:
            check.problem(f"{topic}: promotion {number} of the table's schema is missing")
    newest = 0
    for manifest in filter(None, loads.values()):
        number = manifest.promotion or 0
        promotion, where = recorded.get(number), f"{topic}/{layout.load_folder(manifest.load)}"
        if promotion is not None and promotion.schema_id != manifest.table_schema_id:
            check.problem(
                f"{where}: its columns are those of schema {manifest.table_schema_id}, promotion"
                f" {promotion.number} states {promotion.schema_id}"
            )
        if number < newest:
            check.problem(f"{where}: goes back behind promotion {newest}")
        newest = max(newest, number)


def _note_unfinished(check: TableCheck, newest: LoadManifest | None) -> None:
    for _, plan in check.entries(Plan, f"{check.topic}/{layout.PLANS}"):
        covered = newest is not None and newest.covers(plan.topic_id, plan.end_offsets)
        if any(plan.end_offsets.values()) and not covered:
            check.note(f"run {plan.run_id} is unfinished: no load reaches the end it planned")

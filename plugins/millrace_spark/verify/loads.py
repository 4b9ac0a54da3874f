"""The loads of a topic: an unbroken history, and each folder what its manifest says."""

from __future__ import annotations

from millrace.errors import MillraceError
from millrace_spark.files.filesystem import Filesystem
from millrace_spark.verify.editions import (
    check_content,
    check_editions,
    check_expired_entries,
    check_promotions,
)
from millrace_spark.verify.report import OnFolder, TableReport, against_ledger, check_strays, not_recorded
from millrace_spark.warehouse.layout import PLANS, load_folder, load_numbers, read_load
from millrace_spark.warehouse.ledger import read_entry, recorded_folders
from millrace_spark.warehouse.manifest import (
    LoadManifest,
    check_follows,
    check_hash,
    check_law,
    decode,
)
from millrace_spark.warehouse.plan import Plan


def verify_loads(fs: Filesystem, topic: str, on_folder: OnFolder) -> TableReport:
    """Check the loads of a topic: the history, then each folder."""
    report = TableReport(topic)
    numbers, ledger = load_numbers(fs, topic), set(recorded_folders(fs, topic))
    present = {load_folder(number) for number in numbers}
    expected = {load_folder(number) for number in range(1, max(numbers, default=0) + 1)}
    manifests = {number: _read(fs, topic, number, report) for number in numbers}
    for folder in sorted((expected | ledger) - present):
        report.problems.append(_missing_load(fs, topic, folder, manifests))
    for number, manifest in manifests.items():
        folder = load_folder(number)
        on_folder(f"{topic}/{folder}")
        report.folders += 1
        if folder not in ledger:
            not_recorded(report, f"{topic}/{folder}", newest=number == numbers[-1])
        if manifest is not None:
            _check_load(fs, topic, number, manifest, manifests.get(number - 1), report)
    check_editions(fs, topic, manifests, report, on_folder)
    check_expired_entries(fs, topic, report)
    check_promotions(fs, topic, manifests, report)
    check_strays(fs, topic, present, report)
    _note_unfinished(fs, topic, manifests.get(numbers[-1]) if numbers else None, report)
    return report


def _read(fs: Filesystem, topic: str, number: int, report: TableReport) -> LoadManifest | None:
    try:
        return read_load(fs, topic, number)
    except MillraceError as error:
        report.problems.append(str(error))
        return None


def _check_load(
    fs: Filesystem,
    topic: str,
    number: int,
    manifest: LoadManifest,
    before: LoadManifest | None,
    report: TableReport,
) -> None:
    folder = f"{topic}/{load_folder(number)}"
    found = [check_hash(manifest), against_ledger(fs, topic, load_folder(number), manifest.sha256)]
    if (manifest.topic, manifest.load) != (topic, number):
        found.append(f"the manifest is that of {manifest.topic} load={manifest.load:010d}")
    found += check_law(manifest)
    if before is not None or number == 1:
        found += check_follows(manifest, before)
    report.problems += [f"{folder}: {problem}" for problem in found if problem]
    check_content(fs, topic, load_folder(number), manifest, report)


def _missing_load(fs: Filesystem, topic: str, folder: str, manifests: dict[int, LoadManifest | None]) -> str:
    """What is gone with a load, from the ledger or, without it, from the loads before and after it."""
    number = int(folder.removeprefix("load="))
    ranges: list[str] = []
    rows = ""
    try:
        entry = read_entry(fs, topic, folder)
    except MillraceError:
        entry = None
    if entry is not None:
        rows = f" with {entry.rows} rows"
        ranges = [f"{topic}-{each.partition} [{each.start}, {each.end})" for each in entry.offsets]
    else:
        after = next((m for n, m in sorted(manifests.items()) if n > number and m), None)
        ends = next((m.ends for n, m in sorted(manifests.items(), reverse=True) if n < number and m), {})
        for part in after.partitions if after else ():
            if part.start > ends.get(part.partition, 0):
                ranges.append(f"{topic}-{part.partition} [{ends.get(part.partition, 0)}, {part.start})")
    return f"{topic}/{folder} is missing{rows}: offsets {', '.join(ranges) or 'unknown'}"


def _note_unfinished(fs: Filesystem, topic: str, newest: LoadManifest | None, report: TableReport) -> None:
    for name in fs.names(f"{topic}/{PLANS}"):
        path = f"{topic}/{PLANS}/{name}"
        if name.startswith("."):
            continue
        try:
            plan = decode(Plan, fs.read(path), path)
        except MillraceError as error:
            report.problems.append(str(error))
            continue
        if any(plan.end_offsets.values()) and (
            newest is None or not newest.covers(plan.topic_id, plan.end_offsets)
        ):
            report.notes.append(f"run {plan.run_id} is unfinished: no load reaches the end it planned")

"""Proof of the files: each file below `rows/` is as a load wrote it, or its rows are elsewhere in the table.

A data file belongs to history until its rows are published. From then on it belongs to the table: a
compaction with an expiry may delete it, and the table is proven by counting its rows. A file that the table
names must exist. Reads each file once, for its SHA-256.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from millrace.errors import MillraceError
from millrace_warehouse.history import layout
from millrace_warehouse.history.erasures import missed_erasure
from millrace_warehouse.history.expired import expired_entries
from millrace_warehouse.history.manifest import DataFile, LoadManifest, StoredFile
from millrace_warehouse.load.open_load import TAIL
from millrace_warehouse.storage import Listed, measure
from millrace_warehouse.verify.check import Check
from millrace_warehouse.verify.history import History
from millrace_warehouse.verify.publications import Replay

TAIL_S = 2 * 24 * 3600.0
"""Age in seconds at which files of a tail are noted: a daily `expire` deletes them earlier."""


@dataclass(slots=True)
class CheckedFiles:
    """Findings on the files of a topic's loads."""

    whole: dict[str, DataFile] = field(default_factory=dict)
    """Data files that are as they were written, by their paths from the topic's folder."""
    unproven: int = 0
    """Rows of missing published files, if no table was named that could hold these rows."""


def check_files(
    check: Check, history: History, replay: Replay | None, named: Collection[str] | None
) -> CheckedFiles:
    """Hash every file of every edition. `named` are the paths in the table's head; None if unknown."""
    checked = CheckedFiles()
    topic = check.topic
    present = topic.files(layout.Folder.ROWS)
    sizes = {path: file.bytes for path, file in present.items()}
    expired = _expired(check)
    stated: set[str] = set()
    total = sum(len(manifest.files) + len(_beside(manifest)) for manifest in history.manifests.values())
    count = check.count("files", total, "hashed")
    for manifest in history.manifests.values():
        for file in manifest.files:
            check.report.files += 1
            stated.add(file.path)
            whole = _is_whole(check, file, sizes.get(file.path))
            count.add(records=file.rows, size=file.bytes)
            if whole:
                checked.whole[file.path] = file
            elif whole is False:
                continue
            elif _may_be_gone(manifest, file, history, replay, expired) and file.path not in (named or ()):
                check.report.expired += 1
                if named is None and replay is not None and _is_in_table(manifest, file, replay):
                    checked.unproven += file.rows
            else:
                check.problem(f"{topic}/{file.path} is missing: {file.rows} rows are gone", hour=file.hour)
        replaced = _is_replaced(manifest, history)
        for each in _beside(manifest):
            stated.add(each.path)
            count.add(size=each.bytes)
            if _is_whole(check, each, sizes.get(each.path)) is None and not (
                replaced and each.path in expired
            ):
                check.problem(f"{topic}/{each.path} is missing: restore it from a copy")
    _check_missed_erasures(check, history, sizes.keys())
    _note_strays(check, history, {path: file for path, file in present.items() if path not in stated})
    return checked


def _beside(manifest: LoadManifest) -> list[StoredFile]:
    """Return a load's files that hold no rows of the table."""
    beside = (manifest.entries, manifest.sequences_file, manifest.erased_sequences_file)
    return [*manifest.aside_files, *(file for file in beside if file is not None)]


def _check_missed_erasures(check: Check, history: History, present: Collection[str]) -> None:
    """Report files of replaced editions that were made during an erasure and may hold erased rows."""
    for manifest in history.manifests.values():
        files = (*manifest.files, *manifest.aside_files)
        if not _is_replaced(manifest, history) or not any(file.path in present for file in files):
            continue
        if (id_ := missed_erasure(check.topic, manifest)) is not None:
            check.problem(
                f"{layout.manifest_path(manifest)} was begun before erasure {id_} and made after it, and its"
                f" files are still there: run `millrace erase {check.topic} --id {id_}` again"
            )


def _expired(check: Check) -> set[str]:
    try:
        return {path for entry in expired_entries(check.topic) for path in entry.files}
    except MillraceError as error:
        check.problem(str(error))
        return set()


def _is_whole(check: Check, file: StoredFile, size: int | None) -> bool | None:
    """Return True for an unchanged file, False for a changed file, None for a missing file."""
    path = f"{check.topic}/{file.path}"
    hour = file.hour if isinstance(file, DataFile) else None
    if size is None:
        return None
    check.progress(path)
    if size != file.bytes:
        check.problem(
            f"{path} has {size} bytes, not the {file.bytes} written: it was cut or changed", hour=hour
        )
        return False
    try:
        if measure(check.storage, path).sha256 == file.sha256:
            return True
    except FileNotFoundError:
        return None
    check.problem(f"{path} was changed: its SHA-256 differs from the written file's", hour=hour)
    return False


def _may_be_gone(
    manifest: LoadManifest, file: DataFile, history: History, replay: Replay | None, expired: Collection[str]
) -> bool:
    """Return True when the table has or had the rows of a file, or when a newer edition replaced them."""
    if file.path in expired and _is_replaced(manifest, history):
        return True
    if replay is None:
        return False
    if (manifest.load, manifest.edition, file.hour) in replay.was_in_table:
        return True
    replaced = manifest.load <= replay.through and manifest.edition < replay.edition(manifest.load)
    return replaced and file.path in expired


def _is_replaced(manifest: LoadManifest, history: History) -> bool:
    """Return True for an edition that another edition has replaced: an erasure deletes its files at once."""
    return manifest.edition < history.editions[manifest.load][-1]


def _is_in_table(manifest: LoadManifest, file: DataFile, replay: Replay) -> bool:
    part = replay.table.get(file.hour, {}).get(manifest.load)
    return part is not None and part.edition == manifest.edition


def _note_strays(check: Check, history: History, files: Mapping[str, Listed]) -> None:
    """Note files that no manifest names, except in a running load's folder. Report foreign files.

    A resident loader leaves a tail's files beside each load. They are noted once `expire` should have deleted
    them.
    """
    newest, before = max(history.editions, default=0), time.time() - TAIL_S
    left: dict[str, int] = {}
    for path, file in files.items():
        folder, name = path.split("/")[1], path.rpartition("/")[2]
        load, edition = layout.attempted(folder) or (0, 0)
        if not load or path.count("/") != 2:
            check.problem(f"{check.topic}/{path} is not a file of Millrace: move it away")
        elif name.startswith(TAIL) and file.modified > before:
            continue
        elif load <= newest and edition <= max(history.editions.get(load, (1,))):
            left[folder] = left.get(folder, 0) + 1
    for folder, count in left.items():
        check.note(
            f"{check.topic}/rows/{folder} has {count} files that no manifest names: `millrace expire` deletes"
            " them"
        )

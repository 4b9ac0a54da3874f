"""Files of loads that a publication adds to the table, as entries that name the files where they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyiceberg.manifest import DataFile as IcebergDataFile

from millrace.errors import MillraceError
from millrace.steps import Count
from millrace_warehouse.context import Progress
from millrace_warehouse.history.entries import read_entries
from millrace_warehouse.history.layout import Topic, read_edition, rows_folder
from millrace_warehouse.history.manifest import LoadManifest
from millrace_warehouse.history.stored import read_stored
from millrace_warehouse.publish.layouts import TableLayouts
from millrace_warehouse.publish.state import PendingChange
from millrace_warehouse.storage.interface import Storage


def new_files(
    topic: Topic, changes: Mapping[str, PendingChange], layouts: TableLayouts, progress: Progress
) -> tuple[list[IcebergDataFile], int]:
    """Return the entries of the added rows, and the number of the newest schema that they need, or 0 without
    rows.

    Raise MillraceError when a file is missing or has another size than its load states: a table that names it
    could not be read.
    """
    hours: dict[tuple[int, int], set[str]] = {}
    for hour, change in changes.items():
        for rows in change.loads:
            hours.setdefault((rows.load, rows.edition), set()).add(hour)
    entries: list[IcebergDataFile] = []
    schema = 0
    count = Count(progress, "loads added", len(hours), "rows")
    for (load, edition), of_load in sorted(hours.items()):
        manifest = read_edition(topic, load, edition)
        _check_there(topic.storage, manifest, of_load)
        added = entries_of(topic, manifest, of_load, layouts)
        entries += added
        count.add(
            records=sum(file.record_count for file in added),
            size=sum(file.file_size_in_bytes for file in added),
        )
        schema = max(schema, manifest.schema)
    return entries, schema


def _check_there(storage: Storage, manifest: LoadManifest, hours: Collection[str]) -> None:
    topic = manifest.topic
    folder = rows_folder(topic, manifest.load, manifest.attempt).removeprefix(f"{topic}/")
    sizes = {f"{folder}/{found.path}": found.bytes for found in storage.files(f"{topic}/{folder}")}
    for file in manifest.files:
        if file.hour in hours and (size := sizes.get(file.path)) != file.bytes:
            state = "is missing" if size is None else f"has {size} bytes, not {file.bytes}"
            raise MillraceError(
                f"{topic}/{file.path} {state}: restore it from a copy, or read the offsets of load"
                f" {manifest.load} again with `millrace reload`"
            )


def entries_of(
    topic: Topic, manifest: LoadManifest, hours: Collection[str], layouts: TableLayouts
) -> list[IcebergDataFile]:
    """Return the entries of a load's files of these hours, whether or not the files exist.

    Raise MillraceError unless the entries agree with the load's manifest.
    """
    files = {file.path: file for file in manifest.files if file.hour in hours}
    if not files:
        return []
    assert manifest.entries is not None, "rows have entries"
    path, content = f"{topic}/{manifest.entries.path}", read_stored(topic, manifest.entries)
    entries = [entry for entry in read_entries(content) if entry.file_path in files]
    for entry in entries:
        file = files[entry.file_path]
        if (entry.record_count, entry.file_size_in_bytes) != (file.rows, file.bytes):
            raise MillraceError(f"{path} differs from its load on {file.path}: run `millrace verify`")
        entry[1] = topic.storage.uri(f"{topic}/{entry.file_path}")
        layouts.ids(manifest.schema).mark(entry)
    if len(entries) != len(files):
        raise MillraceError(f"{path} lacks entries of files that its load names: run `millrace verify`")
    return entries

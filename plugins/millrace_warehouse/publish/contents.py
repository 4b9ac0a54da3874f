"""Contents of a table: its files by their paths in the warehouse and by hour, and their rows by load.

Reads metadata, and the column `_load` in files with rows of many loads. Changes nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.transforms import HourTransform
from pyiceberg.types import LongType

from millrace.errors import MillraceError
from millrace_warehouse.columns import LOAD
from millrace_warehouse.history.hours import hour_of
from millrace_warehouse.history.layout import attempted
from millrace_warehouse.history.rewritten import KnownFiles
from millrace_warehouse.publish.catalog import TableFileGone, reading

RowsByLoad = Counter[int | None]
"""Load -> rows; None for rows without a load."""


def path_in_topic(uri: str, topic: str) -> str | None:
    """Return a file's path from the topic's folder, or None for a file outside a folder of that name.

    The warehouse's own address does not matter: Spark writes `file:/` and `s3a://` for `file:///` and
    `s3://`, and a file that the table names must always be recognized.
    """
    # The last such folder: the warehouse itself may lie below folders of these names.
    match = re.fullmatch(rf".*/{re.escape(topic)}/((?:rows|compacted|table|hours)/.*)", uri)
    return match[1] if match else None


def has_hour(table: Table, file: DataFile) -> bool:
    """Return True if a file's partition begins with its hour, as in every file that Millrace writes."""
    fields = table.specs()[file.spec_id].fields
    return bool(fields) and isinstance(fields[0].transform, HourTransform)


def hour_of_file(table: Table, file: DataFile) -> str:
    """Return the hour of a table's file. Raise MillraceError for a file in a partition of another kind."""
    if not has_hour(table, file):
        raise MillraceError(
            f"{'.'.join(table.name())} has a file that is not of one hour, {file.file_path}: another program"
            " has changed the table's partitions; run `millrace publish TOPIC --rebuild`"
        )
    return hour_of(file.partition[0])


def edition_in(uri: str, topic: str) -> tuple[int, int] | None:
    """Return the load and edition that wrote a file, by its path, or None for a file that no load wrote."""
    kind, _, rest = (path_in_topic(uri, topic) or "").partition("/")
    return attempted(rest.partition("/")[0]) if kind == "rows" else None


def read_proven(files: FileIO, uri: str, topic: str, known: KnownFiles) -> bytes:
    """Return a whole file of the table. Raise FileNotFoundError when it is missing.

    Raise MillraceError when a load, a compaction or a re-load wrote it, and its contents have changed since.
    """
    with files.new_input(uri).open() as file:
        content = file.read()
    stored = known.stored(path_in_topic(uri, topic) or uri)
    if stored is not None and hashlib.sha256(content).hexdigest() != stored.sha256:
        raise MillraceError(f"{uri} was changed: restore it from a copy, then run again")
    return content


def named_files(table: Table, topic: str) -> set[str]:
    """Return the paths from the topic's folder of every file that a snapshot names, on any branch."""
    metadata = table.metadata
    named = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        named.add(statistics.statistics_path)
    with reading(table):
        for snapshot in metadata.snapshots:
            named.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                if manifest.manifest_path not in named:
                    named.add(manifest.manifest_path)
                    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                    named |= {entry.data_file.file_path for entry in entries}
    paths = (path_in_topic(uri, topic) for uri in named)
    return {path for path in paths if path is not None}


def is_whole(table: Table, topic: str) -> bool:
    """Return False if a manifest of any snapshot is gone, as in a catalog from before an expiry."""
    try:
        named_files(table, topic)
    except TableFileGone:
        return False
    return True


def stated_loads(table: Table, file: DataFile) -> tuple[int, int] | None:
    """Return the smallest and largest load with rows in a file, by its entry's bounds, or None."""
    field = table.schema().find_field(LOAD.name).field_id
    low, high = (file.lower_bounds or {}).get(field), (file.upper_bounds or {}).get(field)
    if low is None or high is None:
        return None
    return int(from_bytes(LongType(), low)), int(from_bytes(LongType(), high))


def rows_by_load(batches: Iterable[pa.RecordBatch]) -> RowsByLoad:
    """Return the number of rows of each load, by the column `_load`."""
    rows: RowsByLoad = Counter()
    for batch in batches:
        for value in batch.column(LOAD.name).value_counts():
            rows[value["values"].as_py()] += value["counts"].as_py()
    return rows


def count_loads(files: FileIO, file: DataFile) -> RowsByLoad:
    """Count the rows of a table's file by load. Raise ArrowException or OSError for a broken file."""
    with files.new_input(file.file_path).open() as content, pq.ParquetFile(content) as parquet:
        if LOAD.name not in parquet.schema_arrow.names:
            return Counter({None: parquet.metadata.num_rows})
        return rows_by_load(parquet.iter_batches(columns=[LOAD.name]))

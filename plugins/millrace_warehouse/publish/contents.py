"""What a table has in it: its files by their paths in the warehouse, and their rows by load.

Reads metadata, and of files with rows of many loads the one column `_load`. Changes nothing.
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
from pyiceberg.types import LongType

from millrace.errors import MillraceError
from millrace_warehouse.columns import LOAD
from millrace_warehouse.history.layout import attempted
from millrace_warehouse.history.rewritten import KnownFiles
from millrace_warehouse.publish.catalog import being_read

RowsByLoad = Counter[int | None]
"""Load -> rows; None for rows without one."""


def path_in_topic(uri: str, topic: str) -> str | None:
    """A file's path from the topic's folder; None for one that is not in a folder of such a name.

    The warehouse's own address does not matter: Spark writes `file:/` and `s3a://` for what is `file:///` and
    `s3://` here, and a file that the table names must never be taken for one that it does not.
    """
    # The last such folder: the warehouse itself may lie below folders of these names.
    match = re.fullmatch(rf".*/{re.escape(topic)}/((?:rows|compacted|table|hours)/.*)", uri)
    return match[1] if match else None


def edition_in(uri: str, topic: str) -> tuple[int, int] | None:
    """The load and the edition that wrote a file, by its path; None for a file that no load wrote."""
    kind, _, rest = (path_in_topic(uri, topic) or "").partition("/")
    return attempted(rest.partition("/")[0]) if kind == "rows" else None


def read_proven(files: FileIO, uri: str, topic: str, known: KnownFiles) -> bytes:
    """A file of the table, whole; FileNotFoundError when it is gone.

    MillraceError when a load, a compaction or a re-load wrote it, and something else is there now.
    """
    with files.new_input(uri).open() as file:
        content = file.read()
    stored = known.stored(path_in_topic(uri, topic) or uri)
    if stored is not None and hashlib.sha256(content).hexdigest() != stored.sha256:
        raise MillraceError(f"{uri} was changed: restore it from a copy, then run again")
    return content


def named_files(table: Table, topic: str) -> set[str]:
    """The paths from the topic's folder of every file that a snapshot names, on whichever branch."""
    metadata = table.metadata
    named = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        named.add(statistics.statistics_path)
    with being_read(table):
        for snapshot in metadata.snapshots:
            named.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                if manifest.manifest_path not in named:
                    named.add(manifest.manifest_path)
                    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                    named |= {entry.data_file.file_path for entry in entries}
    paths = (path_in_topic(uri, topic) for uri in named)
    return {path for path in paths if path is not None}


def stated_loads(table: Table, file: DataFile) -> tuple[int, int] | None:
    """The smallest and the largest load with rows in a file, by its entry; None when that does not say."""
    field = table.schema().find_field(LOAD.name).field_id
    low, high = (file.lower_bounds or {}).get(field), (file.upper_bounds or {}).get(field)
    if low is None or high is None:
        return None
    return int(from_bytes(LongType(), low)), int(from_bytes(LongType(), high))


def rows_by_load(batches: Iterable[pa.RecordBatch]) -> RowsByLoad:
    """How many rows each load has, by the column `_load`."""
    rows: RowsByLoad = Counter()
    for batch in batches:
        for value in batch.column(LOAD.name).value_counts():
            rows[value["values"].as_py()] += value["counts"].as_py()
    return rows


def count_loads(files: FileIO, file: DataFile) -> RowsByLoad:
    """The rows of a file of the table by load, read from it; ArrowException or OSError for a broken one."""
    with files.new_input(file.file_path).open() as content, pq.ParquetFile(content) as parquet:
        if LOAD.name not in parquet.schema_arrow.names:
            return Counter({None: parquet.metadata.num_rows})
        return rows_by_load(parquet.iter_batches(columns=[LOAD.name]))

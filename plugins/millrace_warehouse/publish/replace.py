"""Takes the rows of earlier editions out of the table: by whole files where it can, else by copying the rest.

A file with rows of one load has the same smallest and largest `_load`; one that `compact` wrote may hold many
loads. What is left of such a file goes into a new one, row group by row group, in this process. The rows that
go are counted, hour by hour: as many as the edition had there, or nothing is published.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.manifest import DataFile as IcebergDataFile
from pyiceberg.table import Table
from pyiceberg.types import LongType

from millrace.errors import MillraceError
from millrace_warehouse.columns import LOAD
from millrace_warehouse.encodings import ROW_GROUP_ROWS, encodings
from millrace_warehouse.history.entries import data_file
from millrace_warehouse.history.hours import hour_of
from millrace_warehouse.history.manifest import DataFile, StoredFile, now
from millrace_warehouse.history.metrics import metrics_of
from millrace_warehouse.history.rewritten import Rewritten, rewritten_folder, write_list
from millrace_warehouse.history.stored import store
from millrace_warehouse.publish.committer import head_files
from millrace_warehouse.publish.contents import check_unchanged
from millrace_warehouse.storage.verbs import Storage


@dataclass(frozen=True, slots=True)
class Replacement:
    """Files that leave the table, and those with what is kept of them."""

    removed: Sequence[IcebergDataFile] = ()
    added: Sequence[IcebergDataFile] = ()


def loads_of(table: Table, file: IcebergDataFile) -> tuple[int, int] | None:
    """The smallest and the largest load with rows in a file, by its entry; None when that does not say."""
    field = table.schema().find_field(LOAD.name).field_id
    low, high = (file.lower_bounds or {}).get(field), (file.upper_bounds or {}).get(field)
    if low is None or high is None:
        return None
    return int(from_bytes(LongType(), low)), int(from_bytes(LongType(), high))


def take_out(
    storage: Storage,
    topic: str,
    attempt: str,
    table: Table,
    loads: Collection[int],
    expected: Mapping[str, int],
) -> Replacement:
    """What becomes of the table's files when the rows of these loads leave these hours.

    `expected` says how many rows leave each hour; MillraceError when the table has more or fewer.
    """
    removed: list[IcebergDataFile] = []
    added: list[tuple[IcebergDataFile, StoredFile]] = []
    files = head_files(table, expected)
    for hour in sorted(expected):
        gone = 0
        for file in files.get(hour, ()):
            bounds = loads_of(table, file)
            if bounds is not None and not any(bounds[0] <= load <= bounds[1] for load in loads):
                continue
            if bounds is not None and bounds[0] == bounds[1]:
                removed.append(file)
                gone += file.record_count
                continue
            check_unchanged(storage, topic, file.file_path)
            rest = _copy_without(storage, topic, attempt, len(added), table, file, loads)
            kept = rest[0].record_count if rest is not None else 0
            if kept != file.record_count:
                removed.append(file)
                gone += file.record_count - kept
                added += [rest] if rest is not None else []
        if gone != expected[hour]:
            raise MillraceError(
                f"the table of {topic} has {gone:,} rows in hour {hour} of loads that were read again, and"
                f" was given {expected[hour]:,}: see `millrace verify`, then run `millrace publish"
                f" {topic} --rebuild`"
            )
    if added:
        files_written = [stored for _, stored in added]
        write_list(storage, topic, Rewritten(attempt=attempt, created=now(), files=files_written))
    return Replacement(removed, [entry for entry, _ in added])


def _copy_without(
    storage: Storage,
    topic: str,
    attempt: str,
    number: int,
    table: Table,
    file: IcebergDataFile,
    loads: Collection[int],
) -> tuple[IcebergDataFile, StoredFile] | None:
    """Copy a file's other rows into a new one with the same columns and field ids; None if none is left."""
    unwanted = pa.array(sorted(loads), pa.int64())
    with tempfile.TemporaryDirectory(prefix="millrace-publish-") as folder:
        path = Path(folder, "rows.parquet")
        rows = 0
        with table.io.new_input(file.file_path).open() as source, pq.ParquetFile(source) as parquet:
            schema = parquet.schema_arrow.remove_metadata()
            writer = None
            for group in range(parquet.num_row_groups):
                batch = parquet.read_row_group(group)
                kept = batch.filter(pc.invert(pc.is_in(batch[LOAD.name], unwanted)))
                if not kept.num_rows:
                    continue
                if writer is None:
                    writer = pq.ParquetWriter(path, schema, compression="zstd", **encodings(kept))
                writer.write_table(kept.replace_schema_metadata(), row_group_size=ROW_GROUP_ROWS)
                rows += kept.num_rows
        if writer is None:
            return None
        writer.close()
        hour = hour_of(file.partition[0])
        name = f"{rewritten_folder(topic, attempt)}/{hour}-{number:04d}.parquet"
        with path.open("rb") as content:
            stored = store(storage, name, content)
        footer = pq.read_metadata(path)
    columns = pyarrow_to_schema(schema).model_dump(mode="json")
    entry = DataFile(**asdict(stored), hour=hour, rows=rows)
    return data_file(entry, metrics_of(footer, columns), storage.uri(name)), stored

"""Proof of values: rows that the table has in other files hold the same values as their loads' files.

A row in its load's own file is proven by the file's SHA-256. Other rows were copied by a compaction, a
re-load, an erasure or another program. While history still has their files, each column is compared at each
depth, as a reader of the table gets it. Holds one column of one hour in memory at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import InputStream
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from millrace.errors import MillraceError
from millrace_warehouse.columns import LOAD, OFFSET, TOPIC_PARTITION
from millrace_warehouse.contents_digest import ContentsDigest
from millrace_warehouse.history.manifest import DataFile
from millrace_warehouse.projection import project
from millrace_warehouse.publish.contents import hour_of_file, path_in_topic
from millrace_warehouse.storage import open_file
from millrace_warehouse.verify.check import Check
from millrace_warehouse.verify.history import History
from millrace_warehouse.verify.publications import Replay
from millrace_warehouse.verify.table import Head

Open = Callable[[], BinaryIO | InputStream]
_KEYS = (LOAD.name, TOPIC_PARTITION.name, OFFSET.name)


def check_values(
    check: Check, head: Head, history: History, replay: Replay, whole: Mapping[str, DataFile]
) -> None:
    """Compare the rows of each hour that are in files which no load wrote."""
    named, table = head.paths(check.topic.name), head.table
    copies: dict[str, list[str]] = {}
    for file in head.files:
        if path_in_topic(file.file_path, check.topic.name) not in whole:
            copies.setdefault(hour_of_file(table, file), []).append(file.file_path)
    count = check.count("hours", len(copies), "compared")
    for hour, uris in sorted(copies.items()):
        count.add()
        stored = _stored(hour, history, replay, named, whole)
        if not stored:
            continue  # history's files have expired
        check.progress(f"{check.topic}: values of {hour}")
        paths = [f"{check.topic}/{file.path}" for files in stored.values() for file in files]
        where = f"{'.'.join(table.name())} in {hour}"
        try:
            of_loads: list[Open] = [partial(open_file, check.storage, path) for path in paths]
            originals = _Rows(table, of_loads, stored.keys())
            copied = [table.io.new_input(uri).open for uri in uris]
            found = _Rows(table, copied, stored.keys())
            if originals.loads() != found.loads():
                continue  # reported with the table's rows
            check.report.compared += len(found.keys)
            if different := ", ".join(_differences(originals, found, table.schema())):
                check.problem(
                    f"{where}: {', '.join(uris[:3])} do not hold the values of their loads' files, in"
                    f" {different}: move them away, then run `millrace publish {check.topic} --rebuild`; run"
                    " no `millrace expire` before",
                    hour=hour,
                )
        except (pa.ArrowException, OSError, MillraceError, ValueError, KeyError) as error:
            if hour not in check.report.hours.values():  # else the file is reported already
                first_line = str(error).partition("\n")[0]
                check.problem(
                    f"{where}: the values of {', '.join(uris[:3])} cannot be compared: {first_line}",
                    hour=hour,
                )


def _stored(
    hour: str, history: History, replay: Replay, named: Collection[str], whole: Mapping[str, DataFile]
) -> dict[int, list[DataFile]]:
    """Map each load to its files of an hour that the table does not name, if all its files exist."""
    stored: dict[int, list[DataFile]] = {}
    for load, part in replay.table.get(hour, {}).items():
        manifest = history.manifests.get((load, part.edition))
        files = manifest.files if manifest is not None else ()
        copied = [file for file in files if file.hour == hour and file.path not in named]
        if copied and all(file.path in whole for file in copied):
            stored[load] = copied
    return stored


def _differences(originals: _Rows, found: _Rows, schema: Schema) -> list[str]:
    """Return the columns, and fields inside columns, in which two sets of rows differ."""
    if not originals.keys.equals(found.keys):
        return [*_KEYS[1:]]
    return [
        name
        for column in schema.fields
        for name in originals.digest(column).differences(found.digest(column))
    ]


class _Rows:
    """The rows of some loads in some files, by load, partition and offset."""

    def __init__(self, table: Table, files: Sequence[Open], loads: Collection[int]) -> None:
        self._files, self._masks, self._schemas = files, list[pa.ChunkedArray](), list[Schema]()
        keys = []
        for opened in files:
            with opened() as content, pq.ParquetFile(content) as file:
                columns = pyarrow_to_schema(
                    file.schema_arrow, table.name_mapping(), downcast_ns_timestamp_to_us=True
                )
                rows = file.read(columns=[*_KEYS]).select(_KEYS)
            mask = pc.is_in(rows[LOAD.name], value_set=pa.array(sorted(loads), rows[LOAD.name].type))
            self._schemas.append(columns)
            self._masks.append(mask)
            keys.append(rows.filter(mask).cast(pa.schema([(name, pa.int64()) for name in _KEYS])))
        unsorted = pa.concat_tables(keys)
        self._order = pc.sort_indices(unsorted, sort_keys=[(name, "ascending") for name in _KEYS])
        self.keys: pa.Table = unsorted.take(self._order).combine_chunks()

    def loads(self) -> Counter[int]:
        """Load -> rows."""
        counts = pc.value_counts(self.keys[LOAD.name]).to_pylist()
        return Counter({each["values"]: each["counts"] for each in counts})

    def digest(self, column: NestedField) -> ContentsDigest:
        """Return the digest of one column of the table, in the order of the keys."""
        schema = Schema(column)
        arrow = schema_to_pyarrow(schema)
        parts = []
        for opened, held, mask in zip(self._files, self._schemas, self._masks, strict=True):
            mine = [each for each in held.fields if each.field_id == column.field_id]
            if mine:
                with opened() as content, pq.ParquetFile(content) as file:
                    batches = file.read(columns=[mine[0].name]).to_batches()
                projected = [project(batch, Schema(*mine), schema, arrow) for batch in batches]
                rows = pa.Table.from_batches(projected, schema=arrow)
            else:
                rows = pa.Table.from_arrays([pa.nulls(len(mask), arrow.field(0).type)], schema=arrow)
            parts.append(rows.filter(mask))
        digest = ContentsDigest()
        for batch in pa.concat_tables(parts).take(self._order).to_batches():
            digest.add(batch, schema)
        return digest

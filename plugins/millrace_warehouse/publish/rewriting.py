"""Copies rows of table files into new files: checks each source, counts each row, compares each value.

A source must be exactly the bytes that its load, a re-load or a compaction has written. Otherwise a copy of
damaged rows would look like sound rows. Each copy is read back from the storage and must hold the same rows
as its sources. A copy has the layout of its source, or the layout that the table has now. This module neither
chooses the sources nor commits the copies to the table.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import pyarrow as iceberg
from pyiceberg.manifest import DataFile as TableFile
from pyiceberg.table import Table

from millrace.errors import MillraceError
from millrace_warehouse.arranged_copy import ArrangedCopy
from millrace_warehouse.arranging import Arranger
from millrace_warehouse.columns import LOAD
from millrace_warehouse.contents_digest import ContentsDigest
from millrace_warehouse.encodings import ROW_GROUP_BYTES, ROW_GROUP_ROWS, encodings
from millrace_warehouse.history import rewritten
from millrace_warehouse.history.entries import data_file
from millrace_warehouse.history.layout import Topic, read_checked
from millrace_warehouse.history.manifest import DataFile, Publication, StoredFile, now
from millrace_warehouse.history.metrics import metrics_of
from millrace_warehouse.history.schemas import TableSchema
from millrace_warehouse.history.stored import store
from millrace_warehouse.iceberg_layout import partition_types
from millrace_warehouse.projection import project
from millrace_warehouse.publish.contents import RowsByLoad, read_proven, rows_by_load
from millrace_warehouse.publish.layouts import LayoutIds, sorted_columns
from millrace_warehouse.publish.table import PATH
from millrace_warehouse.storage import open_file

_PARTITION = 3
"""Position of the partition's values in a data file's entry, which pyiceberg only reads."""
BATCH_ROWS = 8_192
"""Number of rows decoded at a time. A file of 256 MiB decodes to several GB of rows."""


class Rewriting:
    """Files that one attempt writes, and the list of their hashes."""

    def __init__(self, topic: Topic, table: Table) -> None:
        self._topic, self._table = topic, table
        self._attempt = uuid.uuid4().hex[:16]
        self._schema = iceberg.schema_to_pyarrow(table.schema())
        self._columns = table.schema().model_dump(by_alias=True, mode="json")
        self._known = rewritten.KnownFiles(topic)
        self._files: list[StoredFile] = []

    def write(
        self, hour: str, sources: Sequence[TableFile], without: Collection[int] = ()
    ) -> TableFile | None:
        """Write one file with the sources' rows, except the rows of some loads. Return None when no row
        remains. The sources have one layout and one partition, and so has the file; several are not sorted.

        Raise MillraceError when a source was changed, or when the storage returns other rows than were
        written.
        """
        before, after, copied, written_as = RowsByLoad(), RowsByLoad(), ContentsDigest(), ContentsDigest()
        with tempfile.TemporaryDirectory(prefix="millrace-rewriting-") as scratch:
            local = Path(scratch, "rows.parquet")
            if not self._copy(sources, frozenset(without), local, before, copied):
                return None
            stored = self._store(hour, local)
            metrics = metrics_of(pq.read_metadata(local), self._columns)
        for batch in self._stored_rows(stored):
            after += rows_by_load([batch])
            written_as.add(batch, self._table.schema())
        self._compare(stored.path, (before, copied), (after, written_as))
        self._files.append(stored)
        written = DataFile(**asdict(stored), hour=hour, rows=before.total())
        entry = data_file(written, metrics, self._uri(stored))
        entry[_PARTITION] = sources[0].partition
        order = sources[0].sort_order_id if len(sources) == 1 else None
        return LayoutIds(sources[0].spec_id, order or 0).mark(entry)

    def arrange(
        self, hour: str, sources: Sequence[TableFile], schema: TableSchema, ids: LayoutIds
    ) -> list[TableFile]:
        """Write the rows of sources of any layout in the layout of a schema: a file for each partition.

        Raise MillraceError as `write` does.
        """
        before, after, copied, written_as = RowsByLoad(), RowsByLoad(), ContentsDigest(), ContentsDigest()
        arranger = Arranger(schema.layout, self._table.schema())
        types = partition_types(self._table.schema(), schema.layout)
        entries, stored = list[TableFile](), list[StoredFile]()
        with (
            tempfile.TemporaryDirectory(prefix="millrace-rewriting-") as scratch,
            ArrangedCopy(Path(scratch), self._schema, arranger) as copy,
        ):
            for rows in (rows for source in sources for rows in self._rows(source, (), copied)):
                before += rows_by_load(rows.to_batches())
                for batch in rows.to_batches():
                    copy.add(batch)
            for file in copy.write("rows"):
                stored.append(self._store(hour, file.path))
                file.path.unlink()
                written = DataFile(**asdict(stored[-1]), hour=hour, rows=file.rows)
                metrics = metrics_of(file.metadata, self._columns, file.partition)
                entries.append(ids.mark(data_file(written, metrics, self._uri(stored[-1]), types)))
            batches = (batch for each in stored for batch in self._stored_rows(each))
            for batch in copy.in_first_order(batches):
                after += rows_by_load([batch])
                written_as.add(batch, self._table.schema())
        self._compare(stored[0].path, (before, copied), (after, written_as))
        self._files += stored
        return entries

    def _store(self, hour: str, local: Path) -> StoredFile:
        folder = rewritten.rewritten_folder(self._topic.name, self._attempt)
        with open(local, "rb") as content:
            return store(self._topic.storage, f"{folder}/{hour}-{uuid.uuid4().hex[:8]}.parquet", content)

    def _stored_rows(self, stored: StoredFile) -> Iterator[pa.RecordBatch]:
        path = f"{self._topic}/{stored.path}"
        with open_file(self._topic.storage, path) as content, pq.ParquetFile(content) as file:
            yield from file.iter_batches(BATCH_ROWS)

    def _uri(self, stored: StoredFile) -> str:
        return self._topic.storage.uri(f"{self._topic}/{stored.path}")

    def _compare(
        self, path: str, made_from: tuple[RowsByLoad, ContentsDigest], made: tuple[RowsByLoad, ContentsDigest]
    ) -> None:
        """Raise MillraceError unless the copied rows are those of the sources."""
        name = f"{self._topic}/{path}"
        if made_from[0] != made[0]:
            raise MillraceError(
                f"the new file {name} differs from the rows that it copies: its rows by load are"
                f" {dict(made[0])}, not {dict(made_from[0])}. Nothing was committed. Check the storage, then"
                " run again."
            )
        if changed := ", ".join(made_from[1].differences(made[1])):
            raise MillraceError(
                f"the new file {name} differs from the rows that it copies in the columns {changed}. Nothing"
                " was committed and no file was deleted. Check the storage, then run again."
            )

    def finish(self) -> None:
        """Write the list of hashes beside the files. After that, the table may name the files."""
        if not self._files:
            return
        publication = read_checked(self._topic.storage, Publication, self._table.properties[PATH])
        files = rewritten.Rewritten(
            attempt=self._attempt, created=now(), files=self._files, editions=publication.loads.editions
        )
        rewritten.write_list(self._topic, files)

    def _copy(
        self,
        sources: Sequence[TableFile],
        without: Collection[int],
        path: Path,
        count: RowsByLoad,
        copied: ContentsDigest,
    ) -> bool:
        """Write a local file, count its rows and digest them. Return False when no row remains."""
        writer: pq.ParquetWriter | None = None
        by = sorted_columns(self._table.metadata, self._table.schema(), sources[0].sort_order_id)
        for rows in _row_groups(batch for source in sources for batch in self._rows(source, without, copied)):
            if writer is None:
                # A checksum per page: the bounds of a file with many loads appear in no manifest of a load.
                writer = pq.ParquetWriter(
                    path, self._schema, compression="zstd", write_page_checksum=True, **encodings(rows, by)
                )
            count += rows_by_load(rows.to_batches())
            writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
        if writer is not None:
            writer.close()
        return writer is not None

    def _rows(
        self, source: TableFile, without: Collection[int], copied: ContentsDigest
    ) -> Iterator[pa.Table]:
        """Yield a file's rows, except the rows of some loads, in the table's present columns."""
        unwanted = pa.array(sorted(without), pa.int64())
        rows = 0
        with pq.ParquetFile(pa.BufferReader(self._checked(source.file_path))) as file:
            mapping = self._table.name_mapping()
            columns = iceberg.pyarrow_to_schema(file.schema_arrow, mapping, downcast_ns_timestamp_to_us=True)
            for batch in file.iter_batches(BATCH_ROWS):
                rows += len(batch)
                if without:
                    batch = batch.filter(pc.invert(pc.is_in(batch.column(LOAD.name), unwanted)))
                copied.add(batch, columns)
                yield pa.Table.from_batches([project(batch, columns, self._table.schema(), self._schema)])
        if rows != source.record_count:
            raise MillraceError(f"{source.file_path} has {rows} rows, not {source.record_count}")

    def _checked(self, uri: str) -> bytes:
        try:
            return read_proven(self._table.io, uri, self._topic.name, self._known)
        except FileNotFoundError:
            raise MillraceError(f"{uri} is gone: run `millrace verify`") from None


def _row_groups(batches: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield the same rows in tables of the size of a row group. No table is empty."""
    held: list[pa.Table] = []
    rows = size = 0
    for batch in batches:
        if len(batch):
            held.append(batch)
            rows, size = rows + len(batch), size + batch.nbytes
        if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
            yield pa.concat_tables(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_tables(held)

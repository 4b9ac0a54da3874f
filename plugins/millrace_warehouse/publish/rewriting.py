"""Rows of several files of the table in one new file: each source checked, each row counted by its load.

A source must be what its load, a re-load or a compaction has written, to the byte: a copy of damaged rows
could not be told from sound ones any more. Knows files; not which ones, nor how the table learns of the new.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFile as TableFile
from pyiceberg.table import FileScanTask, Table

from millrace.errors import MillraceError
from millrace_warehouse.columns import LOAD
from millrace_warehouse.encodings import ROW_GROUP_BYTES, ROW_GROUP_ROWS, encodings
from millrace_warehouse.history.entries import data_file
from millrace_warehouse.history.manifest import DataFile, StoredFile
from millrace_warehouse.history.metrics import metrics_of
from millrace_warehouse.history.rewritten import KnownFiles
from millrace_warehouse.history.stored import store
from millrace_warehouse.publish.contents import path_in_topic, rows_by_load
from millrace_warehouse.storage import Storage, open_file


class Rewriting:
    """Files that one attempt writes, each the rows of some files of the table."""

    def __init__(self, storage: Storage, topic: str, table: Table, folder: str) -> None:
        self._storage, self._topic, self._folder = storage, topic, folder
        self._iceberg = table.schema().model_dump(by_alias=True, mode="json")
        self._schema = schema_to_pyarrow(table.schema())
        self._io = _CheckedFiles(storage, topic, table.io)
        self._scan = ArrowScan(table.metadata, self._io, table.schema(), AlwaysTrue())
        self.files: list[StoredFile] = []

    def together(self, hour: str, sources: Sequence[TableFile]) -> TableFile:
        """One file with the rows of all; MillraceError when a source was changed or a row is lost."""
        name = f"{self._folder}/{hour}-{uuid.uuid4().hex[:8]}.parquet"
        before: Counter[int | None] = Counter()
        with tempfile.TemporaryDirectory() as folder:
            local = Path(folder, "rows.parquet")
            metrics = self._write(local, sources, before)
            with open(local, "rb") as content:
                stored = store(self._storage, name, content)
        with open_file(self._storage, name) as content, pq.ParquetFile(content) as file:
            after = rows_by_load(file.iter_batches(columns=[LOAD.name]))
        if before != after:
            raise MillraceError(
                f"{name} does not hold the rows it was made from, by load {dict(after)} instead of"
                f" {dict(before)}: nothing was committed, check the storage, then run again"
            )
        written = DataFile(**asdict(stored), hour=hour, rows=before.total())
        self.files.append(stored)
        return data_file(written, metrics, self._storage.uri(name))

    def _write(self, path: Path, sources: Sequence[TableFile], count: Counter[int | None]) -> bytes:
        """Write a local file, count its rows by load; what the table is told of its columns."""
        writer: pq.ParquetWriter | None = None
        for rows in self._row_groups(sources, count):
            if writer is None:
                # A checksum per page: no manifest vouches for the rows of many loads, column by column.
                writer = pq.ParquetWriter(
                    path, self._schema, compression="zstd", write_page_checksum=True, **encodings(rows)
                )
            writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
        assert writer is not None
        writer.close()
        return metrics_of(pq.read_metadata(path), self._iceberg)

    def _row_groups(self, sources: Sequence[TableFile], count: Counter[int | None]) -> Iterator[pa.Table]:
        held: list[pa.Table] = []
        rows = size = 0
        for source in sources:
            # One file at a time: pyiceberg decodes a file whole.
            table = self._scan.to_table([FileScanTask(source)]).cast(self._schema)
            if len(table) != source.record_count:
                raise MillraceError(f"{source.file_path} has {len(table)} rows, not {source.record_count}")
            count += rows_by_load(table.to_batches())
            held.append(table)
            rows, size = rows + len(table), size + table.nbytes
            if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
                yield pa.concat_tables(held)
                held, rows, size = [], 0, 0
        if held:
            yield pa.concat_tables(held)


class _CheckedFiles(FileIO):
    """The table's files, read whole; one that a load, a compaction or a re-load wrote must have its SHA-256.

    A copy of damaged rows could not be told from sound ones any more.
    """

    def __init__(self, storage: Storage, topic: str, files: FileIO) -> None:
        super().__init__(files.properties)
        self._topic, self._files = topic, files
        self._known = KnownFiles(storage, topic)

    def new_input(self, location: str) -> InputFile:
        try:
            with self._files.new_input(location).open() as file:
                content = file.read()
        except FileNotFoundError:
            raise MillraceError(f"{location} is gone: run `millrace verify`") from None
        known = self._known.stored(path_in_topic(location, self._topic) or location)
        if known is not None and hashlib.sha256(content).hexdigest() != known.sha256:
            raise MillraceError(f"{location} was changed: restore it from a copy, then run again")
        return _HeldFile(location, content)

    def new_output(self, location: str) -> OutputFile:
        raise NotImplementedError(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise NotImplementedError(location)


class _HeldFile(InputFile):
    def __init__(self, location: str, content: bytes) -> None:
        super().__init__(location)
        self._content = content

    def __len__(self) -> int:
        return len(self._content)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return io.BytesIO(self._content)

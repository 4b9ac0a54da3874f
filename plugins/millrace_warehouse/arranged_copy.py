"""A copy of rows in a table's layout, whatever their number: written sorted, read back in their first order.

The rows wait in a file on the local disk, uncompressed and mapped into memory. Only the columns of the layout
are in memory as a whole, and a row group at a time. Knows neither storage nor tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.errors import MillraceError
from millrace_warehouse.arranging import Arranger, Indices, PartitionValues
from millrace_warehouse.encodings import encodings, rows_of_a_group

BATCH_ROWS = 8_192


@dataclass(frozen=True, slots=True)
class ArrangedFile:
    """A file with the rows of one combination of partition values."""

    path: Path
    metadata: pq.FileMetaData
    partition: PartitionValues

    @property
    def rows(self) -> int:
        return int(self.metadata.num_rows)


class ArrangedCopy:
    """Rows of one hour, from the first that is added to the last that is read back."""

    def __init__(self, folder: Path, schema: pa.Schema, arranger: Arranger) -> None:
        self._folder, self._schema, self._arranger = folder, schema, arranger
        self._order = list[Indices]()
        self._held = ExitStack()
        self._added = self._held.enter_context(_SpilledRows(folder / "added.arrow", schema))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def add(self, batch: pa.RecordBatch) -> None:
        self._added.add(batch)

    def write(self, name: str) -> list[ArrangedFile]:
        """Write all rows into files `<name>-<4 digits>.parquet`, a file for each partition."""
        rows = self._added.table()
        if not len(rows):
            return []
        files = []
        for number, part in enumerate(self._arranger.parts(rows)):
            self._order.append(part.indices)
            path = self._folder / f"{name}-{number:04d}.parquet"
            footer = self._write(path, part.indices, rows_of_a_group(rows))
            files.append(ArrangedFile(path, footer, part.values))
        return files

    def _write(self, path: Path, order: Indices, size: int) -> pq.FileMetaData:
        groups = (self._added.take(order[first : first + size]) for first in range(0, len(order), size))
        group, footers = next(groups), list[pq.FileMetaData]()
        # A checksum per page: the bounds of a file with many loads appear in no manifest of a load.
        settings = {"write_page_checksum": True, **encodings(group, self._arranger.sorted_by)}
        with pq.ParquetWriter(
            path, self._schema, compression="zstd", metadata_collector=footers, **settings
        ) as writer:
            for rows in chain([group], groups):
                writer.write_table(rows, size)
        return footers[0]

    def in_first_order(self, written: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the written files, which follow one another, in the order in which they came.

        Raise MillraceError if they are more or fewer.
        """
        with _SpilledRows(self._folder / "written.arrow", self._schema) as spilled:
            for batch in written:
                spilled.add(batch.cast(self._schema))
            rows = len(spilled.table())
            if rows != (stated := sum(map(len, self._order))):
                raise MillraceError(
                    f"{rows} of {stated} written rows were read back: check the storage, then run again"
                )
            positions = np.empty(rows, np.int64)
            positions[np.concatenate([*self._order, positions[:0]])] = np.arange(rows)
            for first in range(0, rows, BATCH_ROWS):
                yield from spilled.take(positions[first : first + BATCH_ROWS]).to_batches()


class _SpilledRows:
    """Rows in a local file of Arrow, first written, then mapped into memory."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._writer: pa.ipc.RecordBatchFileWriter | None = pa.ipc.new_file(path, schema)
        self._batches: list[pa.RecordBatch] = []
        self._starts = np.empty(0, np.int64)
        self._map: pa.MemoryMappedFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()
        self._batches = []
        if self._map is not None:
            self._map.close()
        self._path.unlink()

    def add(self, batch: pa.RecordBatch) -> None:
        if len(batch):
            assert self._writer is not None
            self._writer.write_batch(batch)

    def table(self) -> pa.Table:
        """Return all rows. None can be added afterwards."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self._map = pa.memory_map(str(self._path))
            reader = pa.ipc.open_file(self._map)
            self._schema = reader.schema
            self._batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
            self._starts = np.cumsum([0, *map(len, self._batches)])[:-1]
        return pa.Table.from_batches(self._batches, self._schema)

    def take(self, indices: Indices) -> pa.Table:
        """Return the rows at some positions, in that order. Reads each batch once."""
        numbers = np.searchsorted(self._starts, indices, side="right") - 1
        by_batch = np.argsort(numbers, kind="stable")
        ends = np.flatnonzero(np.diff(numbers[by_batch])) + 1
        pieces = []
        for mine in np.split(by_batch, ends):
            number = int(numbers[mine[0]])
            pieces.append(self._batches[number].take(pa.array(indices[mine] - self._starts[number])))
        back = np.empty(len(indices), np.int64)
        back[by_batch] = np.arange(len(indices))
        return pa.Table.from_batches(pieces).combine_chunks().take(pa.array(back))

"""The rows of a load, hour by hour: from its own files, or from the table's files where those have expired.

Each file must have exactly the bytes that were written, and each hour of a load must have the rows that its
manifest states. An edition made of other rows would vouch for unchecked rows.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.manifest import DataFile as TableFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from millrace.errors import MillraceError
from millrace_warehouse.columns import LOAD
from millrace_warehouse.context import Context
from millrace_warehouse.history.layout import Folder, Topic
from millrace_warehouse.history.manifest import LoadManifest, Publication, StoredFile
from millrace_warehouse.history.rewritten import KnownFiles
from millrace_warehouse.history.schemas import read_schema
from millrace_warehouse.publish.committer import head_files
from millrace_warehouse.publish.contents import read_proven, stated_loads
from millrace_warehouse.publish.table import published_table

BATCH_ROWS = 8_192


class Rows:
    """The rows of a topic's loads at one moment."""

    def __init__(self, context: Context, topic: Topic) -> None:
        self._context, self._topic = context, topic
        self._sizes = self._listed()
        self._known = KnownFiles(topic)

    def _listed(self) -> dict[str, int]:
        return {path: file.bytes for path, file in self._topic.files(Folder.ROWS).items()}

    @cached_property
    def published(self) -> tuple[Table | None, Publication | None]:
        """Return the table and its newest publication.

        Raise MillraceError when another program has changed the table.
        """
        return published_table(self._context.catalog, self._topic)

    @cached_property
    def _head(self) -> Mapping[str, Sequence[TableFile]]:
        table, _ = self.published
        return head_files(table) if table is not None else {}

    def are_own(self, manifest: LoadManifest, hour: str) -> bool:
        """Return True when all of the load's own files of that hour exist."""
        if self._are_listed(manifest, hour):
            return True
        _, publication = self.published
        editions = publication.loads.editions if publication is not None else {}
        if publication is None or editions.get(str(manifest.load), 1) != manifest.edition:
            self._sizes = self._listed()  # the edition may be newer than the listing
        return self._are_listed(manifest, hour)

    def _are_listed(self, manifest: LoadManifest, hour: str) -> bool:
        return all(self._sizes.get(f.path) == f.bytes for f in manifest.files if f.hour == hour)

    def schema(self, manifest: LoadManifest) -> int:
        """Return the number of the table schema that fits all of a load's rows, wherever they are."""
        _, publication = self.published
        if publication is None or all(self.are_own(manifest, hour) for hour in manifest.rows_by_hour()):
            return manifest.schema
        return max(manifest.schema, publication.schema)

    def batches(
        self, manifest: LoadManifest, hour: str, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[pa.RecordBatch, Schema]]:
        """Yield every row of a load in an hour, with the schema of its file. Without `columns`, yield all
        columns.

        Raise MillraceError when a file is missing or was changed, or when the number of rows differs from the
        load's.
        """
        rows = 0
        own = self.are_own(manifest, hour)
        for batch, schema in (
            self._own(manifest, hour, columns) if own else self._of_table(manifest, hour, columns)
        ):
            rows += len(batch)
            yield batch, schema
        if rows != (stated := manifest.rows_by_hour()[hour]):
            raise MillraceError(
                f"{rows} of the {stated} rows of load {manifest.load} of {self._topic} in {hour} were found,"
                " so nothing was erased of that load: run `millrace verify`"
            )

    def _own(
        self, manifest: LoadManifest, hour: str, columns: Sequence[str] | None
    ) -> Iterator[tuple[pa.RecordBatch, Schema]]:
        schema = read_schema(self._topic, manifest.schema).schema
        for file in manifest.files:
            if file.hour == hour:
                for batch in _batches(self.stored(file), columns):
                    yield batch, schema

    def stored(self, file: StoredFile, remedy: str = "restore it from a copy") -> bytes:
        """Return the bytes of a load's file.

        Raise MillraceError, with `remedy`, when it is missing or was changed.
        """
        path = f"{self._topic}/{file.path}"
        try:
            content = self._context.storage.read(path)
        except FileNotFoundError:
            raise MillraceError(f"{path} was deleted meanwhile: run again") from None
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise MillraceError(f"{path} was changed: {remedy}, then run again")
        return content

    def _of_table(
        self, manifest: LoadManifest, hour: str, columns: Sequence[str] | None
    ) -> Iterator[tuple[pa.RecordBatch, Schema]]:
        table, publication = self.published
        editions = publication.loads.editions if publication is not None else {}
        if table is None or editions.get(str(manifest.load), 1) != manifest.edition:
            raise MillraceError(
                f"files of load {manifest.load} of {self._topic} in {hour} are gone, and the table does"
                " not have this edition of the load: run again; if the error returns, run `millrace verify`"
            )
        wanted = None if columns is None else [*dict.fromkeys([*columns, LOAD.name])]
        for file in self._head.get(hour, ()):
            bounds = stated_loads(table, file)
            if bounds is not None and not bounds[0] <= manifest.load <= bounds[1]:
                continue
            content = self._of_file(table, file)
            schema = pyarrow_to_schema(pq.read_schema(io.BytesIO(content)), name_mapping=table.name_mapping())
            for batch in _batches(content, wanted):
                mine = batch.filter(pc.equal(batch.column(LOAD.name), manifest.load))
                if len(mine):
                    yield mine, schema

    def _of_file(self, table: Table, file: TableFile) -> bytes:
        try:
            return read_proven(table.io, file.file_path, self._topic.name, self._known)
        except FileNotFoundError:
            raise MillraceError(f"{file.file_path} was deleted meanwhile: run again") from None


def _batches(content: bytes, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(pa.BufferReader(content)) as file:
        names = file.schema_arrow.names
        yield from file.iter_batches(
            BATCH_ROWS, columns=None if columns is None else [name for name in columns if name in names]
        )

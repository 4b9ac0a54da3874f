"""A decoder for each pair of writer's and table's schema: by columns where it can, by rows where it must."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from millrace_spark.avro.rows import RowDecoder
from millrace_spark.avro.schema import Record, varies_in_shape
from millrace_spark.avro.vectorised import compile_record
from millrace_spark.topic.row_cursor import Faults, Longs, PaddedBuffer, RowCursor


class BodyDecoder(Protocol):
    """Decodes Avro bodies, the bytes after the schema id, of one writer schema."""

    def decode(self, buffer: PaddedBuffer, start: Longs, end: Longs) -> tuple[list[pa.Array], Faults]:
        """The table's columns for the good rows, and the faults of the others by row."""


def body_decoder(writer: Record, table: Record) -> BodyDecoder:
    """The decoder that brings a writer's messages into a table; SchemaError when the schemas do not fit."""
    if varies_in_shape(writer) or varies_in_shape(table):
        return RowDecoder(writer, table)
    return ColumnDecoder(writer, table)


class ColumnDecoder:
    """Decodes messages of one writer schema into the columns of a table, field by field."""

    def __init__(self, writer: Record, table: Record) -> None:
        self._step = compile_record(writer, table)

    def decode(self, buffer: PaddedBuffer, start: Longs, end: Longs) -> tuple[list[pa.Array], Faults]:
        """The columns of the good rows, and the faults of the others."""
        faults = Faults(len(start))
        while True:
            # A row's fault may show at any step, when columns hold its garbage already: so the rows without
            # a fault are decoded once more. There is a second pass only where something is wrong.
            good = np.flatnonzero(~faults.bad)
            found = Faults(len(good))
            rows = RowCursor(buffer, start[good], end[good], found)
            columns = self._step(rows)
            rows.finish()
            if not found:
                arrays = [column.array(len(good), found) for column in columns]
                if not found:
                    return arrays, faults
            for row, reason in found.reasons.items():
                faults.mark(good[[row]], reason)

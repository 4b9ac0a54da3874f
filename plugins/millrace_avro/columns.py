"""Results of decoding steps: the values of one column, or their positions, which become Arrow at the end.

A column knows the rows for which it has values (`at`, None for all rows). It becomes an array over every row
that is null in the other rows. Strings stay in the buffer until then; their UTF-8 is checked when they are
copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.records.row_cursor import Faults, Longs, PaddedBuffer


class Column(Protocol):
    """One column of some rows."""

    def array(self, rows: int, faults: Faults) -> pa.Array:
        """Return the column over all `rows`. Add errors found only now (UTF-8) to `faults`."""


def _validity(rows: int, at: Longs | None) -> pa.Buffer | None:
    if at is None:
        return None
    valid = np.zeros(rows, np.bool_)
    valid[at] = True
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


@dataclass(frozen=True, slots=True)
class FixedWidth:
    """Values that Arrow stores unchanged, one element or one row of elements for each; booleans as bits."""

    type: pa.DataType
    values: npt.NDArray[Any]
    at: Longs | None

    def array(self, rows: int, faults: Faults) -> pa.Array:
        values = self.values
        if self.at is not None:
            values = np.zeros((rows, *self.values.shape[1:]), self.values.dtype)
            values[self.at] = self.values
        if values.dtype == np.bool_:
            values = np.packbits(values, bitorder="little")
        buffers = [_validity(rows, self.at), pa.py_buffer(np.ascontiguousarray(values))]
        return pa.Array.from_buffers(self.type, rows, buffers)


@lru_cache(maxsize=64)
def _even(count: int) -> pa.Array:
    return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))


def _copied(buffer: PaddedBuffer, start: Longs, end: Longs) -> pa.Array:
    """Copy the bytes from each start to its end, all together, into a binary array."""
    rows, size = len(start), len(buffer.data)
    # An array of the values and of the bytes between them; every other element is wanted.
    offsets = np.empty(2 * rows + 2, np.int32)
    offsets[0:-2:2], offsets[1:-1:2], offsets[-2] = start, end, size
    # Arrow reserves memory for the elements by their average size, which it takes from the first and the
    # last offset. The last offset is chosen so that this is the size of the values; else every column would
    # get room for half of all messages (measured: copies of 0.3 us a PageView, 0.1 now). Its element is
    # never read.
    first = int(offsets[0])
    offsets[-1] = min(size, first + 2 * int((end - start).sum()) + rows)
    both = pa.Array.from_buffers(
        pa.binary(), 2 * rows + 1, [None, pa.py_buffer(offsets), pa.py_buffer(buffer.data)]
    )
    return both.take(_even(rows))


@dataclass(frozen=True, slots=True)
class Slices:
    """Strings or bytes, as the start and end of each in the buffer."""

    type: pa.DataType
    buffer: PaddedBuffer
    start: Longs
    end: Longs
    at: Longs | None
    name: str

    def array(self, rows: int, faults: Faults) -> pa.Array:
        start, end = self.start, self.end
        if self.at is not None:  # an empty slice where there is no value
            start, end = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
            start[self.at], end[self.at] = self.start, self.end
        data = _copied(self.buffer, start, end)
        if self.at is not None:
            buffers = [_validity(rows, self.at), *data.buffers()[1:]]
            data = pa.Array.from_buffers(pa.binary(), rows, buffers)
        return self._as_text(data, faults) if pa.types.is_string(self.type) else data

    def _as_text(self, data: pa.Array, faults: Faults) -> pa.Array:
        characters = np.frombuffer(data.buffers()[2] or b"", np.uint8)
        if characters.max(initial=0) < 0x80:  # plain ASCII needs no check: measured 20 times faster
            return pa.Array.from_buffers(pa.string(), len(data), data.buffers(), data.null_count)
        try:
            return data.cast(pa.string())
        except pa.ArrowInvalid:
            bad = [row for row, value in enumerate(data.to_pylist()) if value and not _is_utf8(value)]
            faults.mark(np.array(bad, np.int64), f"{self.name}: not UTF-8")
            return pa.nulls(len(data), pa.string())


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Symbols:
    """An enum's values as indexes into its symbols."""

    symbols: pa.Array
    codes: npt.NDArray[np.int32]
    at: Longs | None

    def array(self, rows: int, faults: Faults) -> pa.Array:
        codes = FixedWidth(pa.int32(), self.codes, self.at).array(rows, faults)
        return self.symbols.take(codes)


@dataclass(frozen=True, slots=True)
class Constant:
    """One value in every row: a default, or null."""

    value: pa.Scalar

    def array(self, rows: int, faults: Faults) -> pa.Array:
        return pa.repeat(self.value, rows)


@dataclass(frozen=True, slots=True)
class Struct:
    """A record's columns side by side; a column that is None is null in every row."""

    type: pa.DataType
    columns: Sequence[Column | None]
    at: Longs | None

    def array(self, rows: int, faults: Faults) -> pa.Array:
        children = [
            pa.nulls(rows, field.type) if column is None else column.array(rows, faults)
            for field, column in zip(self.type, self.columns, strict=True)
        ]
        return pa.Array.from_buffers(self.type, rows, [_validity(rows, self.at)], children=children)


@dataclass(frozen=True, slots=True)
class Merged:
    """A union's branches: columns of one type whose rows do not overlap."""

    columns: Sequence[Column]

    def array(self, rows: int, faults: Faults) -> pa.Array:
        return pc.coalesce(*[column.array(rows, faults) for column in self.columns])

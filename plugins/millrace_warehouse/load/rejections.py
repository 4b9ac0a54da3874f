"""Records that could not be decoded: written aside with reason and bytes, counted, and limited in number.

A few broken records are a producer's mistake and must not hold up the rest. Many of them are a mistake of
the load (a registry that was swapped, a decoder that is wrong), which must not be published.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.errors import ConfigError
from millrace_warehouse.log.messages import Rejected

REJECTED_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("records", pa.int64()),
        ("schema_id", pa.int32()),
        ("reason", pa.string()),
        ("raw", pa.binary()),
        ("timestamp", pa.int64()),
        ("keyed", pa.bool_()),
    ]
)
"""A row is one record, or `records` of them where a batch cannot be unpacked.

`raw` is null where an erasure has taken it out; `reason` quotes no value of the record. `timestamp` (ms)
is that of its audit header, which `keyed` says that there is, or the record's, or a batch's largest. Files of
versions before have neither column.
"""
_BESIDE_BYTES = [name for name in REJECTED_SCHEMA.names if name != "raw"]
HELD_BYTES = 16 << 20
"""Most raw bytes that a task holds before it writes them: a cut may be nothing but rejected records."""
REASONS = 20
"""Most reasons that a task counts apart; what comes after them is counted together."""
OTHER = "other reasons"


@dataclass(slots=True)
class Reasons:
    """How many records were rejected for which reason, a bounded number of reasons."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, counts: Iterable[tuple[str, int]]) -> None:
        """Count so many records for each reason."""
        for reason, records in counts:
            key = reason if reason in self.counts or len(self.counts) < REASONS else OTHER
            self.counts[key] = self.counts.get(key, 0) + records

    def __str__(self) -> str:
        most = sorted(self.counts.items(), key=lambda item: (item[0] == OTHER, -item[1], item[0]))
        shown = ", ".join(f"{records:,} times {reason!r}" for reason, records in most[:3])
        return f"{shown}, and more" if len(most) > 3 else shown


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedLimit:
    """How many records of one load may be rejected: a number, a share, or the larger of both."""

    records: int = 0
    percent: float = 0.0

    @classmethod
    def parse(cls, text: str) -> RejectedLimit:
        """`50` or `0.5%`; ConfigError for anything else."""
        match = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)\s*%", text.strip())
        if match is None or float(match[2] or 0) > 100:
            raise ConfigError(f"--max-rejected {text!r} is neither a number of records like 50 nor 0.5%")
        return cls(records=int(match[1])) if match[1] else cls(percent=float(match[2]))

    def allowed(self, read: int) -> int:
        """Most records that may be rejected of those read."""
        return max(self.records, int(read * self.percent / 100))

    def __str__(self) -> str:
        limits = [f"{self.percent:g} %"] if self.percent else []
        return " or ".join([*limits, f"{self.records:,} records"] if self.records or not limits else limits)


DEFAULT_LIMIT = RejectedLimit(records=100, percent=0.1)
"""A share alone would refuse one broken record of ten; a number alone would not notice a broken hour."""


@dataclass(frozen=True, slots=True)
class LocalRejected:
    """A task's file of rejected records, before it is stored."""

    path: Path
    rows: int
    records: int
    """Records the rows stand for."""


class RejectedRecords:
    """One task's file of rejected records, made when there is something to put into it."""

    def __init__(self, folder: Path, *, with_bytes: bool = True) -> None:
        self._path, self._with_bytes = folder / "rejected.parquet", with_bytes
        self._held: list[Rejected] = []
        self._held_bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self._rows = self._records = 0

    def add(self, rejected: Sequence[Rejected]) -> None:
        self._held += rejected
        self._held_bytes += sum(len(record.raw) for record in rejected)
        if self._held_bytes >= HELD_BYTES:
            self._write()

    def close(self) -> list[LocalRejected]:
        """Write what is held; the file, if there is one."""
        self._write()
        if self._writer is None:
            return []
        self._writer.close()
        return [LocalRejected(self._path, self._rows, self._records)]

    def _write(self) -> None:
        if not self._held:
            return
        rows = [
            {name: getattr(record, name) for name in REJECTED_SCHEMA.names} | {"schema_id": _wrapped(record)}
            for record in self._held
        ]
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, REJECTED_SCHEMA, compression="zstd")
        table = pa.Table.from_pylist(rows, REJECTED_SCHEMA)
        self._writer.write_table(table if self._with_bytes else without_bytes(table))
        self._rows += len(rows)
        self._records += sum(record.records for record in self._held)
        self._held, self._held_bytes = [], 0


def _wrapped(record: Rejected) -> int | None:
    """The schema id in the 32 bits of its column: a message may state any four bytes."""
    return record.schema_id and int(np.int64(record.schema_id).astype(np.int32))


def without_bytes(rejected: pa.Table) -> pa.Table:
    """The rows of a file of rejected records, each without the bytes of its record."""
    there = set(rejected.column_names) - {"raw"}
    columns = [
        rejected.column(field.name) if field.name in there else pa.nulls(len(rejected), field.type)
        for field in REJECTED_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=REJECTED_SCHEMA)


def read_without_bytes(content: Path | BinaryIO) -> pa.Table:
    """A file's rows without the bytes, which are not read: unpacked they may be gigabytes."""
    return without_bytes(pq.read_table(content, columns=_BESIDE_BYTES, partitioning=None))

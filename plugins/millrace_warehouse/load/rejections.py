"""Messages that do not become rows: rejected records, limited in number, and tombstones. They get their own
files.

A few broken records are a producer's error and must not delay the other records. Many broken records point to
an error in the load, such as a wrong registry or decoder, and its rows must not be published. Each kind of
rejected record has its own limit. Tombstones have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.errors import ConfigError
from millrace_warehouse.log.kinds import Kind
from millrace_warehouse.log.messages import RejectedRecords

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
        ("kind", pa.string()),
        ("key", pa.binary()),
    ]
)
"""Columns of rejected records. A row is one record, or all `records` of a batch that cannot be unpacked.

`raw` and `key` are null where an erasure has taken them out; `reason` quotes no value of the record.
`timestamp` (ms) is the audit header's time where `keyed` is true, else the record's time, or a batch's
largest. Files of earlier versions lack the last two columns, or the last four.
"""
BYTES = {"raw", "key"}
"""Columns with bytes from a producer, in both kinds of files. An erasure takes these bytes out."""
HELD_BYTES = 16 << 20
"""Most raw bytes that a task holds before it writes them: a cut may consist of rejected records only."""
REASONS = 20
"""Most reasons that a task counts separately. Further reasons are counted together."""
OTHER = "other reasons"


@dataclass(slots=True)
class Reasons:
    """Number of rejected records by reason, for a bounded number of reasons."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, counts: Iterable[tuple[str, int]]) -> None:
        """Add a number of records to each reason."""
        for reason, records in counts:
            key = reason if reason in self.counts or len(self.counts) < REASONS else OTHER
            self.counts[key] = self.counts.get(key, 0) + records

    def __str__(self) -> str:
        most = sorted(self.counts.items(), key=lambda item: (item[0] == OTHER, -item[1], item[0]))
        shown = ", ".join(f"{records:,} times {reason!r}" for reason, records in most[:3])
        return f"{shown}, and more" if len(most) > 3 else shown


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedLimit:
    """Most records of one load that may be rejected: a number, a share, or the larger of both."""

    records: int = 0
    percent: float = 0.0

    @classmethod
    def parse(cls, text: str) -> RejectedLimit:
        """Parse `50` or `0.5%`. Raise ConfigError for anything else."""
        match = re.fullmatch(r"(\d+)|(\d+(?:\.\d+)?)\s*%", text.strip())
        if match is None or float(match[2] or 0) > 100:
            raise ConfigError(f"--max-rejected {text!r} is neither a number of records like 50 nor 0.5%")
        return cls(records=int(match[1])) if match[1] else cls(percent=float(match[2]))

    def allowed(self, read: int) -> int:
        """Return the largest allowed number of rejected records, given the number of records read."""
        return max(self.records, int(read * self.percent / 100))

    def __str__(self) -> str:
        limits = [f"{self.percent:g} %"] if self.percent else []
        return " or ".join([*limits, f"{self.records:,} records"] if self.records or not limits else limits)


DEFAULT_LIMIT = RejectedLimit(records=100, percent=0.1)
"""A number or a share, whichever is larger. A share alone would refuse one broken record of ten; a number
alone would not notice a broken hour.
"""


@dataclass(frozen=True, slots=True)
class RejectedLimits:
    """A limit for each kind."""

    limits: Mapping[Kind | None, RejectedLimit] = field(default_factory=dict)
    """The limits that were given. The key None holds the limit of all kinds without a limit of their own."""

    @classmethod
    def parse(cls, text: str) -> RejectedLimits:
        """Parse `50`, `0.5%`, or `50,unknown_schema=1%`. Raise ConfigError for anything else."""
        limits = dict[Kind | None, RejectedLimit]()
        for part in text.split(","):
            name, _, limit = part.strip().rpartition("=")
            if name and name not in {*Kind}:
                raise ConfigError(
                    f"--max-rejected {text!r}: {name!r} is not a kind; name {' or '.join(Kind)}"
                )
            kind = Kind(name) if name else None
            if kind in limits:
                raise ConfigError(f"--max-rejected {text!r} gives a limit twice: give it once")
            limits[kind] = RejectedLimit.parse(limit)
        return cls(limits)

    def limit_for(self, kind: Kind) -> RejectedLimit:
        return self.limits.get(kind, self.limits.get(None, DEFAULT_LIMIT))


DEFAULT_LIMITS = RejectedLimits()


class AsideFile:
    """One task's file of rejected records or tombstones, created with its first row."""

    def __init__(self, path: Path, schema: pa.Schema, *, with_bytes: bool = True) -> None:
        self.path, self.rows = path, 0
        self._schema, self._with_bytes = schema, with_bytes
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._writer: pq.ParquetWriter | None = None

    def add(self, rows: pa.Table) -> None:
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        self.rows += len(rows)
        if self._held_bytes >= HELD_BYTES:
            self._write()

    def close(self) -> bool:
        """Write the remaining rows. Return False if there was no row, and so no file."""
        if self._held:
            self._write()
        if self._writer is not None:
            self._writer.close()
        return self._writer is not None

    def _write(self) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self.path, self._schema, compression="zstd")
        table = pa.concat_tables(self._held)
        self._writer.write_table(table if self._with_bytes else without_bytes(table, self._schema))
        self._held, self._held_bytes = [], 0


def rejected_rows(rejected: Sequence[RejectedRecords]) -> pa.Table:
    """Return the rows of a file of rejected records."""
    rows = [{name: getattr(record, name) for name in REJECTED_SCHEMA.names} for record in rejected]
    return pa.Table.from_pylist(rows, REJECTED_SCHEMA)


def without_bytes(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows of rejected records or tombstones without the bytes and keys of their records."""
    there = set(rows.column_names) - BYTES
    columns = [
        rows.column(field.name) if field.name in there else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def read_without_bytes(content: Path | BinaryIO, schema: pa.Schema = REJECTED_SCHEMA) -> pa.Table:
    """Return a file's rows without reading bytes and keys, which may be gigabytes when unpacked."""
    with pq.ParquetFile(content) as file:
        names = [name for name in file.schema_arrow.names if name not in BYTES]
        return without_bytes(file.read(names), schema)

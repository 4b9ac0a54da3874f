"""Messages that become no rows: rejected records and tombstones, written aside; the first limited in number.

A few broken records are a producer's mistake and must not hold up the rest. Many of them are a mistake of
the load (a registry that was swapped, a decoder that is wrong), which must not be published. Each kind of
rejected records has its own limit. Tombstones have none.
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
        ("kind", pa.string()),
        ("key", pa.binary()),
    ]
)
"""A row is one record, or `records` of them where a batch cannot be unpacked.

`raw` and `key` are null where an erasure has taken them out; `reason` quotes no value of the record.
`timestamp` (ms) is that of its audit header, which `keyed` says that there is, or the record's, or a batch's
largest. Files of versions before have none of the last four columns, or only the first two of them.
"""
BYTES = {"raw", "key"}
"""Columns of both kinds of files that hold what a producer has written: an erasure takes them out."""
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
class RejectedLimits:
    """A limit for each kind."""

    limits: Mapping[Kind | None, RejectedLimit] = field(default_factory=dict)
    """The limits that were given, under None that of all kinds without one of their own."""

    @classmethod
    def parse(cls, text: str) -> RejectedLimits:
        """`50`, `0.5%`, or `50,unknown_schema=1%`; ConfigError for anything else."""
        limits = dict[Kind | None, RejectedLimit]()
        for part in text.split(","):
            name, _, limit = part.strip().rpartition("=")
            if name and name not in {*Kind}:
                raise ConfigError(f"--max-rejected {text!r}: {name!r} is no kind; name {' or '.join(Kind)}")
            kind = Kind(name) if name else None
            if kind in limits:
                raise ConfigError(f"--max-rejected {text!r} gives a limit twice: give it once")
            limits[kind] = RejectedLimit.parse(limit)
        return cls(limits)

    def of(self, kind: Kind) -> RejectedLimit:
        return self.limits.get(kind, self.limits.get(None, DEFAULT_LIMIT))


DEFAULT_LIMITS = RejectedLimits()


class AsideFile:
    """One task's file of rejected records or tombstones, made when there is something to put into it."""

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
        """Write what is held; False without any row, and then there is no file."""
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


def rejected_rows(rejected: Sequence[Rejected]) -> pa.Table:
    """The rows of a file of rejected records."""
    rows = [{name: getattr(record, name) for name in REJECTED_SCHEMA.names} for record in rejected]
    return pa.Table.from_pylist(rows, REJECTED_SCHEMA)


def without_bytes(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with a schema of this page, each without the bytes and the key of its record."""
    there = set(rows.column_names) - BYTES
    columns = [
        rows.column(field.name) if field.name in there else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def read_without_bytes(content: Path | BinaryIO, schema: pa.Schema = REJECTED_SCHEMA) -> pa.Table:
    """A file's rows without bytes and keys, which are not read: unpacked they may be gigabytes."""
    with pq.ParquetFile(content) as file:
        names = [name for name in file.schema_arrow.names if name not in BYTES]
        return without_bytes(file.read(names), schema)

"""The rows of a task's cut: raw, or decoded into the columns of one schema.

A task that is run again, also speculatively, returns the same rows in the same order or fails. It never
returns fewer rows. Does not import Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from millrace.client.cluster_client import ClusterClient
from millrace.errors import ConfigError, MillraceError
from millrace.records import HEADER_BYTES, BatchHeader, Cursor
from millrace.records.framing import Frames
from millrace_registry.client import SchemaRegistryClient
from millrace_spark.source.options import SourceOptions
from millrace_warehouse.log import messages
from millrace_warehouse.log.formats import HEADERS, MessageFormat, header_lists
from millrace_warehouse.log.kinds import Kind, name_format
from millrace_warehouse.log.messages import Decoder, Lookup, RejectedRecords
from millrace_warehouse.log.ranges import Cut, Gap, RangeStats
from millrace_warehouse.log.reading import FetchedBatches, fetch_from, read_cut

RAW_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
CORRUPT_FIELDS = [pa.field("_corrupt_record", pa.binary()), pa.field("_corrupt_reason", pa.string())]
"""Columns of permissive mode: the bytes of a message that could not be decoded, and the reason. Null for
other messages.
"""
_CURE = "set mode=PERMISSIVE to have such messages as rows of nulls, use `millrace load` to set them aside"
_RAW_CURE = (
    "read the topic alone with value.format=bytes and mode=PERMISSIVE to have such a batch as a row of nulls,"
    " use `millrace load` to set it aside"
)
"""Raw queries refuse mode=PERMISSIVE."""


def _spark_type(type_: pa.DataType) -> pa.DataType:
    """Return the type as Spark's JVM takes it from Arrow: bytes of fixed size become plain bytes."""
    if pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_spark_type(field.type)) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_spark_type(type_.value_type)))
    if pa.types.is_map(type_):
        return pa.map_(type_.key_field, type_.item_field.with_type(_spark_type(type_.item_type)))
    return type_


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads cuts with one pinned schema. Tasks receive it."""

    options: SourceOptions
    table: Mapping[str, Any] | None

    @property
    def arrow_schema(self) -> pa.Schema:
        if self.table is None:
            return RAW_SCHEMA
        decoded = self._decoder(self.table, lambda _: None).arrow_schema
        schema = pa.schema([field.with_type(_spark_type(field.type)) for field in decoded])
        if not self.options.permissive:
            return schema
        for field in CORRUPT_FIELDS:
            if field.name in schema.names:
                raise ConfigError(f"the schema has a field {field.name}: read it with mode=FAILFAST")
        return pa.schema([*schema, *CORRUPT_FIELDS])

    def read(self, cut: Cut) -> Iterator[pa.RecordBatch]:
        stats, lost_ok = RangeStats.for_cut(cut), not self.options.fail_on_data_loss
        with ClusterClient(self.options.bootstrap, security=self.options.security) as client:
            for batch in self._batches(cut, read_cut(client, cut, stats, lost_ok=lost_ok), stats):
                self.check_loss(cut, stats)
                if batch.num_rows:
                    yield batch
            if self.options.fail_on_data_loss:
                stats.gaps += _gap_after(client, cut, stats)
        self.check_loss(cut, stats)

    def _decoder(self, table: Mapping[str, Any], lookup: Lookup) -> Decoder:
        return Decoder(table, lookup, messages=MessageFormat(self.options.value_format))

    def _batches(
        self, cut: Cut, fetched: Iterator[FetchedBatches], stats: RangeStats
    ) -> Iterator[pa.RecordBatch]:
        if self.table is None:
            for frames, broken in messages.frames_of(cut, fetched, stats):
                _refuse(cut, broken, _RAW_CURE)
                for part in frames.slices(messages.SLICE_ROWS):
                    yield raw_batch(cut, part)
            return
        schema = self.arrow_schema
        columns = pa.schema([field for field in schema if field not in CORRUPT_FIELDS])
        with _writer_schemas(self.options.registry_url) as lookup:
            for decoded in self._decoder(self.table, lookup).decode(cut, fetched, stats):
                rows = decoded.rows if decoded.rows.schema == columns else decoded.rows.cast(columns)
                if not self.options.permissive:
                    _refuse(cut, decoded.rejected, _CURE)
                    yield rows
                    continue
                nulls = [pa.nulls(rows.num_rows, field.type) for field in CORRUPT_FIELDS]
                yield pa.RecordBatch.from_arrays([*rows.columns, *nulls], schema=schema)
                yield _corrupt_rows(decoded.rejected, schema)

    def check_loss(self, cut: Cut, stats: RangeStats) -> None:
        if not self.options.fail_on_data_loss:
            return
        for gap in [*_gap_before(cut, stats), *stats.gaps]:
            what = f"{cut.range.name}: offsets [{gap.start}, {gap.end})"
            if gap.reason == "expired":
                raise MillraceError(
                    f"{what} expired while the query ran; run it again from a later offset, or set"
                    " failOnDataLoss=false"
                )
            if cut.range.byte_positions:  # Apache Kafka's compaction leaves such gaps on purpose
                raise MillraceError(
                    f"{what} are missing in the middle of the log: run `millrace log verify` on its broker,"
                    " or set failOnDataLoss=false"
                )


@contextmanager
def _writer_schemas(registry_url: str | None) -> Iterator[Lookup]:
    """Yield the lookup of writer schemas, which only Avro needs."""
    if registry_url is None:
        yield lambda _: None
        return
    with SchemaRegistryClient(registry_url) as registry:
        yield registry.find_schema


def _gap_before(cut: Cut, stats: RangeStats) -> list[Gap]:
    """Return the gap before the first batch of a range, if its expected start is known."""
    base = cut.range.start_base
    if not cut.is_first or base is None or stats.first_base is None or stats.gaps:
        return []
    if stats.first_base <= cut.range.start or stats.first_base == base:
        return []
    return [Gap(cut.range.start, stats.first_base, "absent")]


def _gap_after(client: ClusterClient, cut: Cut, stats: RangeStats) -> list[Gap]:
    """Return the gap between a cut's last batch and the next batch, which may be in any cut.

    For a cut without a batch, the cut before it finds this gap. Apache Kafka's compaction leaves gaps on
    purpose.
    """
    range_ = cut.range
    cursor = stats.cursor or (Cursor(range_.start, range_.start_base) if cut.is_first else Cursor(0))
    if cursor.next_base is None or cursor.next_base >= range_.end or not range_.byte_positions:
        return []
    answer = fetch_from(client, range_.topic, range_.partition, cursor.next_offset, max_bytes=1)
    header = BatchHeader.parse(answer.records) if len(answer.records) >= HEADER_BYTES else None
    if header is None or cursor.follows(header):
        return []
    return [Gap(cursor.next_offset, header.base_offset, "absent")]


def _refuse(cut: Cut, rejected: Sequence[RejectedRecords], cure: str) -> None:
    """Raise MillraceError, which ends with the cure, when there are rejected records."""
    if not rejected:
        return
    first = rejected[0]
    look = name_format(first.raw)
    if first.kind == Kind.FOREIGN_FRAMING and look.formats[0] in ("json", "text"):
        cure = f'give .option("value.format", "{look.formats[0]}") to read {look.plural}, or {cure}'
    raise MillraceError(f"{cut.range.name} offset {first.offset}: {first.reason}; {cure}")


def _corrupt_rows(rejected: Sequence[RejectedRecords], schema: pa.Schema) -> pa.RecordBatch:
    rows = [
        {
            "_topic_partition": record.partition,
            "_offset": record.offset,
            "_key": record.key,
            "_schema_id": record.schema_id,
            "_corrupt_record": record.raw,
            "_corrupt_reason": record.reason,
        }
        for record in rejected
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def raw_batch(cut: Cut, frames: Frames) -> pa.RecordBatch:
    count = len(frames)
    columns = [
        messages.keys(frames),
        messages.nullable_bytes(frames, frames.value, frames.value_size),
        _headers(cut, frames),
        pa.repeat(pa.scalar(cut.range.topic), count),
        pa.repeat(pa.scalar(cut.range.partition, pa.int32()), count),
        pa.array(frames.offset),
        messages.timestamps(frames),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)


def _headers(cut: Cut, frames: Frames) -> pa.Array:
    headers, faults = header_lists(frames)
    if faults:
        raise MillraceError(f"{cut.range.name}: {next(iter(faults.reasons.values()))}")
    return headers

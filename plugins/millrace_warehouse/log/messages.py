"""Decodes raw batches into Arrow: framing, schema ids and columns, with every record accounted for.

A message in Avro is a zero byte, its writer schema's id in four bytes, and a body; `formats` has the other
formats. A record becomes a row, is a tombstone, or is rejected with kind, reason, key and bytes; no record is
dropped. Neither fetches nor writes, and depends on no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.records.framing import BrokenBatch, Frames, frame_batches
from millrace.records.row_cursor import Faults, Longs
from millrace_audit.reports.counts import FIRST_EVENT_MS
from millrace_audit.reports.event import counted_header, has_header
from millrace_audit.reports.header_columns import HeaderColumns, HeaderReader
from millrace_avro.columns import FixedWidth, Slices
from millrace_avro.json_rows import JsonDecoder
from millrace_avro.resolution import SCALES
from millrace_avro.rows import RowDecoder
from millrace_avro.schema import Record, SchemaError, arrow_fields, parse, varies_in_shape
from millrace_avro.vectorised import ColumnDecoder
from millrace_warehouse.columns import LOG_FIELDS, OWN_FIELDS, SENDER_FIELDS, TIME, check_table_schema
from millrace_warehouse.log.formats import (
    AVRO_MESSAGES,
    JSON,
    PLAIN_SCHEMAS,
    UNFRAMED,
    MessageFormat,
    plain_columns,
)
from millrace_warehouse.log.kinds import Kind, name_format
from millrace_warehouse.log.ranges import Cut, RangeStats
from millrace_warehouse.log.reading import FetchedBatches

SLICE_ROWS = 10_000
"""Rows decoded at a time. Fewer rows cost more calls; more rows exceed the processor's cache (measured)."""
PREFIX_BYTES = 5
BROKEN_BATCH = "the batch cannot be unpacked"
TOMBSTONES = pa.schema(
    [("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.int64()), ("key", pa.binary())]
)
"""Columns of tombstones. `timestamp` is the record's time in ms; `key` may be null."""
_TIMESTAMP = [field.name for field in LOG_FIELDS].index("_timestamp")

Lookup: TypeAlias = Callable[[int], Mapping[str, Any] | None]
BodyDecoder: TypeAlias = ColumnDecoder | RowDecoder


@dataclass(frozen=True, slots=True)
class _Undecodable:
    """Kind and reason why no message of a schema id can become a row."""

    kind: Kind
    reason: str


def body_decoder(writer: Record, table: Record) -> BodyDecoder:
    """Return a decoder by columns where possible, else a decoder by rows.

    Raise SchemaError when the schemas do not fit. A record of another type does not fit, even if it has all
    fields of the table.
    """
    if writer.name not in (table.name, *table.aliases):
        raise SchemaError(f"it has type {writer.name}; the table's type {table.name} has no such alias")
    if varies_in_shape(writer) or varies_in_shape(table):
        return RowDecoder(writer, table)
    return ColumnDecoder(writer, table)


@dataclass(frozen=True, slots=True)
class Filing:
    """Values that the rows of one load share."""

    load: int
    """The load's number, for the column `_load`."""
    file_by_ms: int
    """Time in ms since the epoch: `_time` is null for event times from it on, and before 2000."""
    tombstones_as_rows: bool = False
    """True if a tombstone becomes a row of nulls."""


@dataclass(frozen=True, slots=True)
class RejectedRecords:
    """A record that could not be decoded, or all `records` of a batch that cannot be unpacked."""

    partition: int
    offset: int
    records: int
    kind: Kind
    schema_id: int | None
    """Signed 32-bit number, like the column: a message may have any four bytes in its place."""
    reason: str
    key: bytes | None
    """Key of the record; None if it has no key, and for a batch that cannot be unpacked."""
    raw: bytes
    timestamp: int
    """Time in ms by which auditing readers count the record: the audit header's or the record's, or a batch's
    largest.
    """
    keyed: bool = False
    """True if the record has an audit header, so that auditing readers count it by its sequence number."""

    @property
    def is_batch(self) -> bool:
        return self.reason.startswith(BROKEN_BATCH)


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """Decoded rows with the columns of `Decoder.arrow_schema`, and the other messages of the batch."""

    rows: pa.RecordBatch
    rejected: list[RejectedRecords]
    tombstones: pa.RecordBatch | None = None
    """Rows with the columns of TOMBSTONES; None without tombstones."""


class Decoder:
    """Decodes messages of any writer schema into the columns of one table's schema.

    `lookup` returns the parsed writer schema of an id, or None when the registry does not know the id. It
    raises when the registry does not answer. So an unknown id rejects a record, and an unreachable registry
    fails the task.
    """

    def __init__(
        self,
        table_schema: Mapping[str, Any],
        lookup: Lookup,
        filing: Filing | None = None,
        messages: MessageFormat = AVRO_MESSAGES,
    ) -> None:
        self.table = check_table_schema(table_schema)
        self._messages = messages
        self._json = JsonDecoder(self.table) if messages.name == JSON else None
        self._unframed = body_decoder(self.table, self.table) if messages.name == UNFRAMED else None
        self._fields = arrow_fields(self.table)
        own = [*LOG_FIELDS, *SENDER_FIELDS] if filing is None else OWN_FIELDS
        self.arrow_schema = pa.schema([*self._fields, *own])
        """The table schema's fields, then LOG_FIELDS and SENDER_FIELDS. A load has all of OWN_FIELDS.

        All columns are nullable. A file's schema also has field ids, and a separate type for UUIDs.
        """
        self._filing = filing
        self._lookup = lookup
        self._headers = HeaderReader("")
        """Reader of the record headers of the topic that is decoded."""
        self._decoders: dict[int, BodyDecoder | _Undecodable] = {}
        self._with_header: set[int] = set()
        """Ids of schemas whose messages begin with an audit header."""

    def decode(
        self, cut: Cut, fetched: Iterable[FetchedBatches], stats: RangeStats
    ) -> Iterator[DecodedBatch]:
        """Yield the rows of a cut's range in batches of about 10,000. Fill in `stats`."""
        self._headers = HeaderReader(cut.range.topic)
        for frames, rejected in frames_of(cut, fetched, stats):
            if rejected:
                yield DecodedBatch(self._empty(), rejected)
            for part in frames.slices(SLICE_ROWS):
                for decoded in self._decode_slice(cut.range.partition, part, stats):
                    yield _with_record_headers(decoded, part, self._headers)
        if self._json is not None:
            stats.unknown_fields.update(self._json.unknown)
            self._json.unknown.clear()

    def _empty(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([], schema=self.arrow_schema)

    def _decode_slice(self, partition: int, frames: Frames, stats: RangeStats) -> Iterator[DecodedBatch]:
        """Yield one batch of tombstones, one of foreign framing, then one for each schema id, ascending."""
        if (frames.value_size < 0).any():
            yield self._decode_tombstones(
                partition, frames.select(np.flatnonzero(frames.value_size < 0)), stats
            )
            frames = frames.select(np.flatnonzero(frames.value_size >= 0))
            if not len(frames):
                return
        if self._messages.name in PLAIN_SCHEMAS:
            decoded = plain_columns(frames, self._messages.name)
            yield self._decoded(partition, frames, None, decoded, Kind.BROKEN_BODY, stats)
            return
        if self._unframed is not None:
            decoded = self._unframed.decode(frames.buffer, frames.value, frames.value + frames.value_size)
            yield self._decoded(partition, frames, None, decoded, Kind.BROKEN_BODY, stats)
            return
        tagged = (frames.value_size >= PREFIX_BYTES) & (frames.buffer.bytes[frames.value] == 0)
        ids = frames.buffer.numbers(frames.value + 1, np.uint32).byteswap().astype(np.int64)
        if self._json is not None:
            ids[~tagged] = -1
            yield from self._decode_json(self._json, partition, frames, ids, stats)
            return
        if not tagged.all():
            rejected = [_foreign(partition, frames, row) for row in np.flatnonzero(~tagged).tolist()]
            stats.rejected_by_kind[Kind.FOREIGN_FRAMING] += len(rejected)
            yield DecodedBatch(self._empty(), rejected)
        ids[~tagged] = -1
        if (ids == ids[0]).all() and tagged[0]:  # the usual case, and np.unique sorts
            yield self._decode_one_schema(partition, frames, int(ids[0]), stats)
            return
        for schema_id in np.unique(ids[tagged]).tolist():
            part = frames.select(np.flatnonzero(ids == schema_id))
            yield self._decode_one_schema(partition, part, schema_id, stats)

    def _decode_tombstones(self, partition: int, frames: Frames, stats: RangeStats) -> DecodedBatch:
        if self._filing is not None and self._filing.tombstones_as_rows:
            nulls = [pa.nulls(len(frames), field.type) for field in self._fields]
            return DecodedBatch(self._rows(partition, frames, None, nulls, stats), [])
        stats.tombstones += len(frames)
        return DecodedBatch(self._empty(), [], _tombstones(partition, frames))

    def _decode_json(
        self, json: JsonDecoder, partition: int, frames: Frames, ids: Longs, stats: RangeStats
    ) -> Iterator[DecodedBatch]:
        """Yield one batch of objects without the id of a JSON Schema (-1), then one for each id."""
        kinds = [int(ids[0])] if (ids == ids[0]).all() else np.unique(ids).tolist()
        for schema_id in kinds:
            part = frames if len(kinds) == 1 else frames.select(np.flatnonzero(ids == schema_id))
            start = part.value if schema_id < 0 else part.value + PREFIX_BYTES
            decoded = json.decode(part.buffer, start, part.value + part.value_size)
            shown = None if schema_id < 0 else schema_id
            yield self._decoded(partition, part, shown, decoded, Kind.BROKEN_BODY, stats)

    def _decode_one_schema(
        self, partition: int, frames: Frames, schema_id: int, stats: RangeStats
    ) -> DecodedBatch:
        decoder, kind = self._decoder(schema_id), Kind.BROKEN_BODY
        if isinstance(decoder, _Undecodable):
            faults, kind = Faults(len(frames)), decoder.kind
            faults.mark(np.arange(len(frames)), decoder.reason)
            columns = [pa.nulls(0, field.type) for field in self._fields]
        else:
            body = frames.value + PREFIX_BYTES
            columns, faults = decoder.decode(frames.buffer, body, frames.value + frames.value_size)
        if good := len(frames) - len(faults.reasons):
            stats.schema_ids[schema_id] = stats.schema_ids.get(schema_id, 0) + good
        return self._decoded(partition, frames, schema_id, (columns, faults), kind, stats)

    def _decoded(
        self,
        partition: int,
        frames: Frames,
        schema_id: int | None,
        decoded: tuple[Sequence[pa.Array], Faults],
        kind: Kind,
        stats: RangeStats,
    ) -> DecodedBatch:
        """Return the rows of decoded columns, and the messages with faults as rejected records."""
        columns, faults = decoded
        has_header = schema_id in self._with_header
        rejected = [
            _rejected(partition, frames, row, kind, schema_id, reason, has_header)
            for row, reason in sorted(faults.reasons.items())
        ]
        good = frames.select(np.flatnonzero(~faults.bad)) if faults else frames
        stats.rejected_by_kind[kind] += len(rejected)
        return DecodedBatch(self._rows(partition, good, schema_id, columns, stats), rejected)

    def _rows(
        self,
        partition: int,
        frames: Frames,
        schema_id: int | None,
        columns: Sequence[pa.Array],
        stats: RangeStats,
    ) -> pa.RecordBatch:
        """Return the rows of some messages. Our own columns follow the columns of the schema."""
        headers = self._headers.read(frames)
        log_columns = _log_columns(partition, frames, schema_id)
        times = _event_times(self._fields, columns, log_columns, self._messages)
        times = _with_header_times(times, headers)
        own = [*log_columns, *_sender_columns(len(frames), headers)]
        if self._filing is not None:
            loads = np.full(len(frames), self._filing.load, np.int64)
            load = FixedWidth(pa.int64(), loads, None).array(len(frames), Faults(0))
            own = [filed_times(times, self._filing.file_by_ms), *own, load]
        _note_times(times, stats)
        return pa.RecordBatch.from_arrays([*columns, *own], schema=self.arrow_schema)

    def _decoder(self, schema_id: int) -> BodyDecoder | _Undecodable:
        if schema_id not in self._decoders:
            self._decoders[schema_id] = self._make_decoder(schema_id)
        return self._decoders[schema_id]

    def _make_decoder(self, schema_id: int) -> BodyDecoder | _Undecodable:
        schema = self._lookup(schema_id)
        if schema is None:
            return _Undecodable(Kind.UNKNOWN_SCHEMA, f"schema id {schema_id} is not in the registry")
        if has_header(schema):
            self._with_header.add(schema_id)
        try:
            writer = parse(schema)
            if not isinstance(writer, Record):
                return _Undecodable(Kind.BROKEN_BODY, f"schema {schema_id} is not a record")
            return body_decoder(writer, self.table)
        except SchemaError as error:
            return _Undecodable(Kind.BROKEN_BODY, f"schema {schema_id} does not fit the table: {error}")


def frames_of(
    cut: Cut, fetched: Iterable[FetchedBatches], stats: RangeStats
) -> Iterator[tuple[Frames, list[RejectedRecords]]]:
    """Yield the records of a cut that lie in its range, counted, and the batches that cannot be unpacked."""
    for some in fetched:
        start = max(cut.range.start, some.log_start)
        for frames, broken in frame_batches(some.batches):
            inside = (frames.offset >= start) & (frames.offset < cut.range.end)
            if not inside.all():
                frames = frames.select(np.flatnonzero(inside))
            rejected = [
                _rejected_batch(cut, start, batch)
                for batch in broken
                if max(start, batch.batch[0].base_offset) < cut.range.end
            ]
            lost = sum(batch.records for batch in rejected)
            stats.records += len(frames) + lost
            stats.rejected_by_kind[Kind.BROKEN_BODY] += lost
            yield frames, rejected


def _rejected_batch(cut: Cut, start: int, broken: BrokenBatch) -> RejectedRecords:
    """Return what a broken batch has in the range from `start` on."""
    header, batch = broken.batch
    reason = f"{BROKEN_BATCH}: {broken.reason}"
    first, end = max(start, header.base_offset), min(header.next_offset, cut.range.end)
    return RejectedRecords(
        partition=cut.range.partition,
        offset=first,
        records=min(max(header.records_count, 1), end - first),
        kind=Kind.BROKEN_BODY,
        schema_id=None,
        reason=reason,
        key=None,
        raw=bytes(batch),
        timestamp=header.max_timestamp,
    )


def _tombstones(partition: int, frames: Frames) -> pa.RecordBatch:
    numbers = np.full(len(frames), partition, np.int32)
    columns = [pa.array(numbers), pa.array(frames.offset), pa.array(frames.timestamp), keys(frames)]
    return pa.RecordBatch.from_arrays(columns, schema=TOMBSTONES)


def _foreign(partition: int, frames: Frames, row: int) -> RejectedRecords:
    looks = name_format(_bytes_at(frames, frames.value, frames.value_size, row))
    reason = f"the message does not begin with a zero byte and a schema id: it looks like {looks}"
    return _rejected(partition, frames, row, Kind.FOREIGN_FRAMING, None, reason)


def _bytes_at(frames: Frames, starts: Longs, sizes: Longs, row: int) -> bytes:
    start = int(starts[row])
    return bytes(frames.buffer.data[start : start + int(sizes[row])])


def _rejected(
    partition: int,
    frames: Frames,
    row: int,
    kind: Kind,
    schema_id: int | None,
    reason: str,
    has_header: bool = False,
) -> RejectedRecords:
    raw = _bytes_at(frames, frames.value, frames.value_size, row)
    has_key = frames.key_size[row] >= 0
    header = counted_header(raw) if has_header else None
    return RejectedRecords(
        partition=partition,
        offset=int(frames.offset[row]),
        records=1,
        kind=kind,
        schema_id=None if schema_id is None else int(np.int64(schema_id).astype(np.int32)),
        reason=reason,
        key=_bytes_at(frames, frames.key, frames.key_size, row) if has_key else None,
        raw=raw,
        timestamp=int(frames.timestamp[row]) if header is None else header.time,
        keyed=header is not None,
    )


def _with_record_headers(decoded: DecodedBatch, frames: Frames, headers: HeaderReader) -> DecodedBatch:
    """Give each rejected record the time of its record header, which counts before a header in the value."""
    if not decoded.rejected or not (frames.header_count > 0).any():
        return decoded
    found = headers.read(frames)
    times = dict(zip(frames.offset[found.rows].tolist(), found.time.tolist(), strict=True))
    rejected = [
        replace(record, timestamp=times[record.offset], keyed=True) if record.offset in times else record
        for record in decoded.rejected
    ]
    return replace(decoded, rejected=rejected)


def _sender_columns(rows: int, headers: HeaderColumns) -> list[pa.Array]:
    """Return the columns of SENDER_FIELDS, null in rows without a record header."""
    if not len(headers.rows):
        return [pa.nulls(rows, field.type) for field in SENDER_FIELDS]
    columns = headers.instance, headers.sequence
    return [FixedWidth(pa.int64(), column, headers.rows).array(rows, Faults(0)) for column in columns]


def _with_header_times(times: pa.Array, headers: HeaderColumns) -> pa.Array:
    """Return the event times, in microseconds, with the time of each record header in its row."""
    if not len(headers.rows):
        return times
    scale = SCALES["timestamp-millis"]
    micros = np.clip(headers.time, scale.smallest, scale.largest) * scale.factor
    of_headers = FixedWidth(TIME.type, micros, headers.rows).array(len(times), Faults(0))
    return pc.coalesce(of_headers, times.view(TIME.type))


def _log_columns(partition: int, frames: Frames, schema_id: int | None) -> list[pa.Array]:
    rows, none = len(frames), Faults(0)

    def same(value: int) -> pa.Array:  # an id above 2**31 wraps
        values = np.full(rows, value, np.int64).astype(np.int32)
        return FixedWidth(pa.int32(), values, None).array(rows, none)

    return [
        same(partition),
        FixedWidth(pa.int64(), frames.offset, None).array(rows, none),
        timestamps(frames),
        keys(frames),
        pa.nulls(rows, pa.int32()) if schema_id is None else same(schema_id),
    ]


def timestamps(frames: Frames) -> pa.Array:
    """Return the records' timestamps, null where a timestamp is not a time between the years 1 and 9999."""
    scale = SCALES["timestamp-millis"]
    valid = (frames.timestamp >= scale.smallest) & (frames.timestamp <= scale.largest)
    at = None if valid.all() else np.flatnonzero(valid)
    values = (frames.timestamp if at is None else frames.timestamp[at]) * scale.factor
    return FixedWidth(TIME.type, values, at).array(len(frames), Faults(0))


def keys(frames: Frames) -> pa.Array:
    return nullable_bytes(frames, frames.key, frames.key_size)


def nullable_bytes(frames: Frames, start: Longs, size: Longs) -> pa.Array:
    """Return the key or the value of each record, null where its size is negative."""
    present = size >= 0
    if not present.any():
        return pa.nulls(len(frames), pa.binary())
    at = None if present.all() else np.flatnonzero(present)
    if at is not None:
        start, size = start[at], size[at]
    return Slices(pa.binary(), frames.buffer, start, start + size, at, "").array(len(frames), Faults(0))


def _note_times(times: pa.Array, stats: RangeStats) -> None:
    """Extend the smallest and largest time in `stats` by the rows' event times."""
    if times.null_count < len(times):
        span = pc.min_max(times.view(pa.int64()))
        stats.add_times(span["min"].as_py() // 1000, span["max"].as_py() // 1000)


def _event_times(
    fields: Sequence[pa.Field],
    columns: Sequence[pa.Array],
    log_columns: Sequence[pa.Array],
    messages: MessageFormat,
) -> pa.Array:
    """Return the event time of each row, in microseconds: `header.time`, null without a header.

    In a table without audit headers it is the field that the format names, or the record's own timestamp.
    """
    if messages.time:
        return columns[pa.schema(fields).get_field_index(messages.time)]
    if messages.name == JSON:
        return log_columns[_TIMESTAMP]
    header = pa.schema(fields).get_field_index("header")
    type_ = fields[header].type if header >= 0 else None
    if type_ is None or not pa.types.is_struct(type_) or (time := type_.get_field_index("time")) < 0:
        return log_columns[_TIMESTAMP]
    if not pa.types.is_timestamp(type_.field(time).type):
        return log_columns[_TIMESTAMP]
    # `struct_field` and not `.field()`, which ignores which headers are null.
    return pc.struct_field(columns[header], [time])


def filed_times(times: pa.Array, file_by_ms: int) -> pa.Array:
    """Return the times that decide the rows' hours: null before 2000 and from `file_by_ms` on.

    A producer's clock may show any time. An hour of 1970 would be the table's first hour, and an hour far in
    the future would seem to be the newest.
    """
    span = pc.min_max(times.view(pa.int64()))
    first, last = span["min"].as_py(), span["max"].as_py()
    if first is None or (
        first >= FIRST_EVENT_MS * 1000 and last < file_by_ms * 1000
    ):  # nearly always, and nothing is copied
        return times.view(TIME.type)
    micros = times.view(pa.int64())
    is_late = pc.greater_equal(micros, FIRST_EVENT_MS * 1000)
    sound = pc.and_(is_late, pc.less(micros, file_by_ms * 1000))
    return pc.if_else(sound, micros, pa.scalar(None, pa.int64())).view(TIME.type)

"""MirrorAppend v0 and v1, laid out by hand: Millrace's API for the process that fills a mirrored partition.

API key 10000, never advertised. Sent to the leader of the target partition: any other broker answers
NOT_LEADER_OR_FOLLOWER with the leader's id.

    request  := mode int8, topic string, origin, expected int64, start int64, cursor, dropped int64,
                numbered int8, v1+: epoch int32, records bytes (int32 length)
    response := error int16, message string, state string, partition int32, leader int32,
                recorded int8: 0 nothing, else 1 and (origin, start int64, cursor, batches int64,
                records int64, dropped int64, reset_at int64, numbered int8, v1+: epoch int32),
                high_watermark int64, latency_ms int64 (-1: not known)
    origin   := cluster string, topic string, topic_id 16 bytes, partition int32
    cursor   := next_offset int64, next_base int64      -1: none; its epoch stands apart, -1: not known

`recorded` and `high_watermark` are of the last append, which may not be visible yet: a consumer that has read
up to that high watermark has read everything that the position accounts for.

APPEND adds whole batches, raw, if `expected` is the recorded next offset (-1: nothing is recorded yet, and
the mirror begins at `start`), and records `cursor`. DESCRIBE only answers, but creates a target partition for
an origin partition that has none. RESET records `cursor` without data: it skips offsets that the origin has
lost. Only RESET accepts an origin whose topic was deleted and recreated.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from uuid import UUID

from millrace.errors import InvalidRequest
from millrace.records import Cursor
from millrace.records.compression import Buffer
from millrace.records.mirror_position import MirrorPosition, Origin
from millrace.wire.primitives import INT8, INT16, INT32, Reader, reads, text

MIRROR_APPEND_VERSION = 1
BYTE_OFFSETS_PREFIX = "millrace-"
"""Prefix of the id of every Millrace cluster, whose offsets are byte positions; no Apache Kafka has it."""

_REQUEST_END = struct.Struct(">qqqqq?")
_PARTITION = struct.Struct(">ii?")
_POSITION = struct.Struct(">qqqqqqq?")
_RESPONSE_END = struct.Struct(">qq")


class MirrorMode(IntEnum):
    """The action of a request."""

    APPEND = 0
    DESCRIBE = 1
    RESET = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorAppend:
    """One request. `expected` None: nothing is recorded yet, and the mirror begins at `start`."""

    mode: MirrorMode
    origin: Origin
    expected: int | None = None
    start: int = 0
    cursor: Cursor | None = None  # where the next append begins
    dropped: int = 0  # control batches and aborted records left out of `records`
    numbered: bool = False  # the origin numbers its records, as Apache Kafka does
    records: Buffer = b""  # whole batches as the origin served them, one after the other


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorAppended:
    """The answer. `error` is the number on the wire, `leader` is -1 when the partition has no leader."""

    error: int = 0
    message: str = ""
    state: str = ""  # of the leader's own mirror of the partition; empty when it does not pull
    partition: int = -1  # the target partition of the origin partition
    leader: int = -1
    position: MirrorPosition | None = None  # after the request; None: none, or this broker does not lead it
    high_watermark: int = -1  # after the last record that the position accounts for
    latency_ms: int | None = None  # of the last append


def encode_request(topic: str, request: MirrorAppend) -> list[Buffer]:
    """Return the body of a v1 request for the target topic, in parts: the records are not copied."""
    end = _REQUEST_END.pack(
        -1 if request.expected is None else request.expected,
        request.start,
        *_numbers(request.cursor),
        request.dropped,
        request.numbered,
    )
    head = INT8.pack(request.mode) + text(topic) + _origin(request.origin) + end + _epoch(request.cursor)
    return [head + INT32.pack(len(request.records)), request.records]


@reads("MirrorAppend request")
def decode_request(version: int, body: Buffer) -> tuple[str, MirrorAppend]:
    """Return target topic and request; the records are a view of `body`.

    Raise InvalidRequest when it is malformed.
    """
    reader = Reader(memoryview(body))
    mode, topic, origin = MirrorMode(reader.number(INT8)), reader.text(), _read_origin(reader)
    expected, start, next_offset, next_base, dropped, numbered = reader.unpack(_REQUEST_END)
    epoch = reader.number(INT32) if version >= 1 else -1
    records = reader.part(reader.number(INT32))
    reader.end()
    if len(records) and mode is not MirrorMode.APPEND:  # it may be served after the received bytes are freed
        raise InvalidRequest("only an append carries records")
    return topic, MirrorAppend(
        mode=mode,
        origin=origin,
        expected=None if expected < 0 else expected,
        start=start,
        cursor=_cursor(next_offset, next_base, epoch),
        dropped=dropped,
        numbered=numbered,
        records=records,
    )


def encode_response(version: int, response: MirrorAppended) -> bytes:
    position, recorded = response.position, b""
    if position is not None:
        totals = (position.batches, position.records, position.dropped, position.reset_at, position.numbered)
        recorded = _POSITION.pack(position.start, *_numbers(position.cursor), *totals)
        epoch = _epoch(position.cursor) if version >= 1 else b""
        recorded = _origin(position.origin) + recorded + epoch
    latency_ms = -1 if response.latency_ms is None else response.latency_ms
    return b"".join(
        [
            INT16.pack(response.error) + text(response.message) + text(response.state),
            _PARTITION.pack(response.partition, response.leader, position is not None),
            recorded + _RESPONSE_END.pack(response.high_watermark, latency_ms),
        ]
    )


@reads("MirrorAppend response")
def decode_response(body: Buffer) -> MirrorAppended:
    """Return the v1 response in `body`.

    Raise InvalidRequest when it is malformed: no Millrace broker sent it.
    """
    reader = Reader(memoryview(body))
    error, message, state = reader.number(INT16), reader.text(), reader.text()
    partition, leader, recorded = reader.unpack(_PARTITION)
    position = _read_position(reader) if recorded else None
    high_watermark, latency_ms = reader.unpack(_RESPONSE_END)
    reader.end()
    return MirrorAppended(
        error=error,
        message=message,
        state=state,
        partition=partition,
        leader=leader,
        position=position,
        high_watermark=high_watermark,
        latency_ms=None if latency_ms < 0 else latency_ms,
    )


def _read_position(reader: Reader[memoryview]) -> MirrorPosition:
    origin = _read_origin(reader)
    start, next_offset, next_base, *totals = reader.unpack(_POSITION)
    cursor = _cursor(next_offset, next_base, reader.number(INT32))
    if cursor is None:
        raise ValueError("it records a position without an offset")
    return MirrorPosition(origin, start, cursor, *totals)


def _origin(origin: Origin) -> bytes:
    return text(origin.cluster) + text(origin.topic) + origin.topic_id.bytes + INT32.pack(origin.partition)


def _read_origin(reader: Reader[memoryview]) -> Origin:
    return Origin(reader.text(), reader.text(), UUID(bytes=bytes(reader.part(16))), reader.number(INT32))


def _numbers(cursor: Cursor | None) -> tuple[int, int]:
    if cursor is None:
        return -1, -1
    return cursor.next_offset, -1 if cursor.next_base is None else cursor.next_base


def _epoch(cursor: Cursor | None) -> bytes:
    return INT32.pack(-1 if cursor is None else cursor.epoch)


def _cursor(next_offset: int, next_base: int, epoch: int) -> Cursor | None:
    return None if next_offset < 0 else Cursor(next_offset, None if next_base < 0 else next_base, epoch)

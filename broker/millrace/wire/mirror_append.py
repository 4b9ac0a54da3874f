"""MirrorAppend v0, laid out by hand: Millrace's own API for whoever fills a mirrored partition.

API key 10000, never advertised. Sent to the leader of the target partition, which the answer names: a broker
that does not lead it answers NOT_LEADER_OR_FOLLOWER with the leader's id, and says who that is.

    request  := mode int8, topic string, origin, expected int64, start int64, cursor, dropped int64,
                numbered int8, records bytes (int32 length)
    response := error int16, message string, state string, partition int32, leader int32,
                recorded int8: 0 nothing, else 1 and (origin, start int64, cursor, batches int64,
                records int64, dropped int64, reset_at int64, numbered int8), high_watermark int64,
                latency_ms int64 (-1: not known)
    origin   := cluster string, topic string, topic_id 16 bytes, partition int32
    cursor   := next_offset int64, next_base int64      -1: none

APPEND adds whole batches, raw, if `expected` is the recorded next offset (-1: nothing is recorded yet, and
the mirror begins at `start`), and records `cursor`. DESCRIBE only answers, but gives an origin partition that
has no target partition a new one. RESET records `cursor` without data: it skips what the origin has lost; and
it is the only mode that takes an origin whose topic was deleted and created anew.
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

MIRROR_APPEND_VERSION = 0
BYTE_OFFSETS_PREFIX = "millrace-"
"""How every Millrace cluster's id begins, and no Apache Kafka cluster's: its offsets are byte positions."""

_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_CURSOR = struct.Struct(">qq")
_TOTALS = struct.Struct(">qqqq?")


class MirrorMode(IntEnum):
    """What is asked for."""

    APPEND = 0
    DESCRIBE = 1
    RESET = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorAppend:
    """One request. `expected` None: nothing is recorded yet; then `start` is where the mirror begins."""

    mode: MirrorMode
    origin: Origin
    expected: int | None = None
    start: int = 0
    cursor: Cursor | None = None
    """Where the next append begins."""
    dropped: int = 0
    """Control batches and aborted records left out of `records`."""
    numbered: bool = False
    """True when the origin numbers its records, as Apache Kafka does."""
    records: Buffer = b""
    """Whole batches as the origin served them, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorAppended:
    """The answer. `error` is the number on the wire, `leader` -1 when nobody leads the partition."""

    error: int = 0
    message: str = ""
    state: str = ""
    """What the leader's own mirror of this partition is doing; empty when it does not pull it."""
    partition: int = -1
    """The target partition of the origin partition."""
    leader: int = -1
    position: MirrorPosition | None = None
    """As recorded after the request; None: nothing is recorded yet, or this broker does not lead it."""
    high_watermark: int = -1
    latency_ms: int | None = None
    """From the timestamp of what the leader's own mirror copied last to when consumers saw it."""


def encode_request(topic: str, request: MirrorAppend) -> list[Buffer]:
    """The body of a request for the target topic, in parts: the records are not copied."""
    cursor = request.cursor
    head = [
        _INT8.pack(request.mode), _string(topic), _origin(request.origin),
        _INT64.pack(-1 if request.expected is None else request.expected), _INT64.pack(request.start),
        _cursor(cursor), _INT64.pack(request.dropped), _INT8.pack(request.numbered),
        _INT32.pack(len(request.records)),
    ]  # fmt: skip
    return [b"".join(head), request.records]


def decode_request(body: Buffer) -> tuple[str, MirrorAppend]:
    """Target topic and request; the records are a view of `body`. InvalidRequest when it does not fit."""
    reader = _Reader(body)
    try:
        mode, topic, origin = MirrorMode(reader.take(_INT8)), reader.string(), reader.origin()
    except ValueError as error:
        raise InvalidRequest(f"a MirrorAppend request is malformed: {error}") from None
    expected, start, cursor = reader.take(_INT64), reader.take(_INT64), reader.cursor()
    dropped, numbered = reader.take(_INT64), bool(reader.take(_INT8))
    records = reader.slice(reader.take(_INT32))
    reader.end()
    if len(records) and mode is not MirrorMode.APPEND:  # it may be served after the received bytes have gone
        raise InvalidRequest("only an append carries records")
    return topic, MirrorAppend(
        mode=mode, origin=origin, expected=None if expected < 0 else expected, start=start, cursor=cursor,
        dropped=dropped, numbered=numbered, records=records,
    )  # fmt: skip


def encode_response(response: MirrorAppended) -> bytes:
    """The body of a response."""
    parts = [
        _INT16.pack(response.error), _string(response.message), _string(response.state),
        _INT32.pack(response.partition), _INT32.pack(response.leader),
        _INT8.pack(response.position is not None),
    ]  # fmt: skip
    if (position := response.position) is not None:
        parts += [
            _origin(position.origin), _INT64.pack(position.start), _cursor(position.cursor),
            _TOTALS.pack(
                position.batches, position.records, position.dropped, position.reset_at, position.numbered
            ),
        ]  # fmt: skip
    latency_ms = -1 if response.latency_ms is None else response.latency_ms
    return b"".join([*parts, _INT64.pack(response.high_watermark), _INT64.pack(latency_ms)])


def decode_response(body: Buffer) -> MirrorAppended:
    """The response in `body`; InvalidRequest when it does not fit, as when no Millrace broker sent it."""
    reader = _Reader(body)
    error, message, state = reader.take(_INT16), reader.string(), reader.string()
    partition, leader, recorded = reader.take(_INT32), reader.take(_INT32), reader.take(_INT8)
    position = None
    if recorded:
        origin, start, cursor = reader.origin(), reader.take(_INT64), reader.cursor()
        if cursor is None:
            raise InvalidRequest("a MirrorAppend response records a position without an offset")
        totals = _TOTALS.unpack(reader.slice(_TOTALS.size))
        position = MirrorPosition(origin, start, cursor, *totals)
    high_watermark, latency_ms = reader.take(_INT64), reader.take(_INT64)
    reader.end()
    return MirrorAppended(
        error=error, message=message, state=state, partition=partition, leader=leader, position=position,
        high_watermark=high_watermark, latency_ms=None if latency_ms < 0 else latency_ms,
    )  # fmt: skip


def _string(text: str) -> bytes:
    encoded = text.encode()
    return _INT16.pack(len(encoded)) + encoded


def _origin(origin: Origin) -> bytes:
    names = _string(origin.cluster) + _string(origin.topic)
    return names + origin.topic_id.bytes + _INT32.pack(origin.partition)


def _cursor(cursor: Cursor | None) -> bytes:
    if cursor is None:
        return _CURSOR.pack(-1, -1)
    return _CURSOR.pack(cursor.next_offset, -1 if cursor.next_base is None else cursor.next_base)


class _Reader:
    """A position in a message; every step checks that the bytes are there."""

    def __init__(self, body: Buffer) -> None:
        self._view = memoryview(body)
        self._position = 0

    def take(self, layout: struct.Struct) -> int:
        return int(layout.unpack(self.slice(layout.size))[0])

    def slice(self, size: int) -> memoryview:
        end = self._position + size
        if size < 0 or end > len(self._view):
            raise InvalidRequest("a MirrorAppend message ends too early")
        part = self._view[self._position : end]
        self._position = end
        return part

    def string(self) -> str:
        try:
            return bytes(self.slice(self.take(_INT16))).decode()
        except UnicodeDecodeError:
            raise InvalidRequest("a MirrorAppend message holds text that is not UTF-8") from None

    def origin(self) -> Origin:
        cluster, topic = self.string(), self.string()
        return Origin(cluster, topic, UUID(bytes=bytes(self.slice(16))), self.take(_INT32))

    def cursor(self) -> Cursor | None:
        next_offset, next_base = self.take(_INT64), self.take(_INT64)
        return None if next_offset < 0 else Cursor(next_offset, None if next_base < 0 else next_base)

    def end(self) -> None:
        if self._position != len(self._view):
            raise InvalidRequest("a MirrorAppend message has bytes after its end")

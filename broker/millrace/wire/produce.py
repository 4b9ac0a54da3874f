"""Produce requests and responses, laid out by hand: v0 to v8, the broker's side.

The records of a request are handed out as writable views of the received bytes, so that the broker stamps
them where they are and writes them from there; kio would copy them twice (a 945 KB request: 0.2 ms).

    request  := v3+: transactional_id string?, acks int16, timeout_ms int32,
                [topic string, [partition int32, records bytes?]]
    response := [topic string, [partition]], v1+: throttle_ms int32
    partition := index int32, error int16, base_offset int64, v2+: log_append_time int64,
                 v5+: log_start_offset int64, v8+: [record errors], error_message string?
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from millrace.errors import InvalidRequest

_ACKS = struct.Struct(">hii")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_PAIR = struct.Struct(">ii")
_RESULT = struct.Struct(">ihqqq")
_NO_THROTTLE = b"\0\0\0\0"
_NO_RECORD_ERRORS = b"\0\0\0\0"


@dataclass(slots=True)  # not frozen: one is made per request, and freezing triples the cost of making it
class ProduceRequest:
    """Batches for partitions: `topics` is [(topic, [(partition, records or None)])]."""

    transactional_id: str | None
    acks: int
    topics: list[tuple[str, list[tuple[int, memoryview | None]]]]


@dataclass(slots=True)
class ProducedPartition:
    """What became of one partition's batch. `error` 0 is success, then `message` is None."""

    index: int
    error: int
    base_offset: int
    log_start_offset: int
    message: str | None = None


def decode_request(version: int, body: memoryview) -> ProduceRequest:
    """The request in `body`; InvalidRequest when its lengths do not fit."""
    try:
        return _decode_request(version, body)
    except (struct.error, UnicodeDecodeError):
        raise InvalidRequest("malformed produce request") from None


def _decode_request(version: int, body: memoryview) -> ProduceRequest:
    position = 0
    transactional_id = None
    if version >= 3:
        (size,) = _INT16.unpack_from(body)
        position = 2
        if size >= 0:
            transactional_id, position = _string(body, 0)
    acks, _, topic_count = _ACKS.unpack_from(body, position)
    position += _ACKS.size
    topics = []
    for _ in range(topic_count):
        name, position = _string(body, position)
        (partition_count,) = _INT32.unpack_from(body, position)
        position += 4
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(partition_count):
            index, size = _PAIR.unpack_from(body, position)
            position += 8
            if size < 0:
                partitions.append((index, None))
                continue
            end = position + size
            if end > len(body):
                raise InvalidRequest("a produce request's records reach past its end")
            partitions.append((index, body[position:end]))
            position = end
        topics.append((name, partitions))
    return ProduceRequest(transactional_id, acks, topics)


def _string(body: memoryview, position: int) -> tuple[str, int]:
    (size,) = _INT16.unpack_from(body, position)
    start, end = position + 2, position + 2 + size
    if size < 0 or end > len(body):
        raise InvalidRequest("a produce request's text reaches past its end")
    return str(body[start:end], "utf-8"), end


def encode_response(version: int, topics: Iterable[tuple[str, Sequence[ProducedPartition]]]) -> bytes:
    """The body of a produce response."""
    topics = list(topics)
    parts = [_INT32.pack(len(topics))]
    for name, partitions in topics:
        encoded = name.encode()
        parts.append(_INT16.pack(len(encoded)) + encoded + _INT32.pack(len(partitions)))
        parts += [_encode_partition(version, partition) for partition in partitions]
    if version >= 1:
        parts.append(_NO_THROTTLE)
    return b"".join(parts)


def _encode_partition(version: int, partition: ProducedPartition) -> bytes:
    # -1 as append time: the batch keeps the times its producer gave.
    fixed = _RESULT.pack(
        partition.index, partition.error, partition.base_offset, -1, partition.log_start_offset
    )
    if version >= 8:
        message = partition.message
        if message is None:
            return fixed + _NO_RECORD_ERRORS + b"\xff\xff"
        text = message.encode()[:0x7FFF]
        return fixed + _NO_RECORD_ERRORS + _INT16.pack(len(text)) + text
    return fixed if version >= 5 else fixed[:22] if version >= 2 else fixed[:14]

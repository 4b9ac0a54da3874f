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
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from millrace.errors import InvalidRequest

_ACKS = struct.Struct(">hii")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_PAIR = struct.Struct(">ii")
_ONE_TOPIC_HEAD = struct.Struct(">hhiih")
_ONE_BATCH_HEAD = struct.Struct(">iii")
_RESULT = struct.Struct(">ihqqq")
_NULL_STRING = b"\xff\xff"
_ONE_TOPIC = b"\0\0\0\1"
_NO_THROTTLE = b"\0\0\0\0"
_NO_RECORD_ERRORS = b"\0\0\0\0"


class ProduceRequest(NamedTuple):
    """Batches for partitions, in the order of the request.

    `topics` is [(topic, number of its batches)], `batches` [(topic, partition, records)]; a batch that is
    null on the wire is empty here.
    """

    transactional_id: str | None
    acks: int
    topics: list[tuple[str, int]]
    batches: list[tuple[str, int, memoryview]]


class ProducedPartition(NamedTuple):
    """What became of one partition's batch. `error` 0 is success, then `message` is None."""

    partition: int
    error: int
    base_offset: int = -1
    log_start_offset: int = -1
    message: str | None = None


def decode_request(version: int, body: memoryview) -> ProduceRequest:
    """The request in `body`; InvalidRequest when its lengths do not fit."""
    try:
        return (_decode_one_batch(body) if version >= 3 else None) or _decode_request(version, body)
    except (struct.error, UnicodeDecodeError):
        raise InvalidRequest("malformed produce request") from None


def _decode_one_batch(body: memoryview) -> ProduceRequest | None:
    """The short way for nearly every request: no transaction, one topic, one batch; None for any other."""
    if len(body) < _ONE_TOPIC_HEAD.size:
        return None
    transaction, acks, _, topic_count, name_size = _ONE_TOPIC_HEAD.unpack_from(body)
    name_end = _ONE_TOPIC_HEAD.size + name_size
    start = name_end + _ONE_BATCH_HEAD.size
    if transaction != -1 or topic_count != 1 or name_size < 0 or start > len(body):
        return None
    count, number, size = _ONE_BATCH_HEAD.unpack_from(body, name_end)
    if count != 1 or not 0 < size <= len(body) - start:
        return None
    name = str(body[_ONE_TOPIC_HEAD.size : name_end], "utf-8")
    return ProduceRequest(None, acks, [(name, 1)], [(name, number, body[start : start + size])])


def _decode_request(version: int, body: memoryview) -> ProduceRequest:
    position, transactional_id = 0, None
    if version >= 3:
        if body[:2] == _NULL_STRING:
            position = 2
        else:
            transactional_id, position = _string(body, 0)
    acks, _, topic_count = _ACKS.unpack_from(body, position)
    position += 10
    topics, batches, size_of_all = [], [], len(body)
    for _ in range(topic_count):
        name, position = _string(body, position)
        (count,) = _INT32.unpack_from(body, position)
        position += 4
        topics.append((name, count))
        for _ in range(count):
            number, size = _PAIR.unpack_from(body, position)
            position += 8
            end = position + size if size > 0 else position
            if end > size_of_all:
                raise InvalidRequest("a produce request's records reach past its end")
            batches.append((name, number, body[position:end]))
            position = end
    return ProduceRequest(transactional_id, acks, topics, batches)


def _string(body: memoryview, position: int) -> tuple[str, int]:
    (size,) = _INT16.unpack_from(body, position)
    start, end = position + 2, position + 2 + size
    if size < 0 or end > len(body):
        raise InvalidRequest("a produce request's text reaches past its end")
    return str(body[start:end], "utf-8"), end


def encode_response(
    version: int, topics: Sequence[tuple[str, int]], partitions: Sequence[ProducedPartition]
) -> bytes:
    """The body of a produce response: `topics` as in the request, `partitions` one for each batch."""
    end = _NO_THROTTLE if version >= 1 else b""
    if len(partitions) == len(topics) == 1:  # nearly every request, and worth the short way
        return _ONE_TOPIC + _topic(topics[0][0], 1) + _encode_partition(version, partitions[0]) + end
    parts = [_INT32.pack(len(topics))]
    rest = iter(partitions)
    for name, count in topics:
        parts.append(_topic(name, count))
        parts += [_encode_partition(version, next(rest)) for _ in range(count)]
    return b"".join(parts) + end


@lru_cache(maxsize=1024)
def _topic(name: str, partitions: int) -> bytes:
    encoded = name.encode()
    return _INT16.pack(len(encoded)) + encoded + _INT32.pack(partitions)


def _encode_partition(version: int, partition: ProducedPartition) -> bytes:
    number, error, base_offset, log_start_offset, message = partition
    # -1 as append time: the batch keeps the times its producer gave.
    fixed = _RESULT.pack(number, error, base_offset, -1, log_start_offset)
    if version >= 8:
        if message is None:
            return fixed + _NO_RECORD_ERRORS + b"\xff\xff"
        text = message.encode()[:0x7FFF]
        return fixed + _NO_RECORD_ERRORS + _INT16.pack(len(text)) + text
    return fixed if version >= 5 else fixed[:22] if version >= 2 else fixed[:14]

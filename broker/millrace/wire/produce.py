"""Produce requests and responses, laid out by hand: v0 to v12, the broker's side.

The records of a request are handed out as writable views of the received bytes, so that the broker stamps
them where they are and writes them from there; `wire.codec` would copy them (a 945 KB request: 0.2 ms).

    request  := v3+: transactional_id string?, acks int16, timeout_ms int32,
                [topic string, [partition int32, records bytes?]]
    response := [topic string, [partition]], v1+: throttle_ms int32
    partition := index int32, error int16, base_offset int64, v2+: log_append_time int64,
                 v5+: log_start_offset int64, v8+: [record errors], error_message string?

From v9 on (KIP-482) lengths are varints, and each partition, topic and message ends with tagged fields: they
are skipped in requests and empty in responses, without the leaders of KIP-951. v11 and v12 (KIP-890) differ
in errors of transactions only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from millrace.records.header import crc32c
from millrace.records.runs import scan
from millrace.wire.messages import ApiKey
from millrace.wire.primitives import (
    INT16,
    INT32,
    MIN_ITEM_LIMIT,
    REFUSED_ITEMS,
    Reader,
    RequestTooLarge,
    compact_length,
    compact_text,
    reads,
    text,
)

_ACKS = struct.Struct(">hii")
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_PAIR = struct.Struct(">ii")
_ONE_TOPIC_HEAD = struct.Struct(">hhiih")
_FLEXIBLE_TOPIC_HEAD = struct.Struct(">BBhiB")
_RESULT = struct.Struct(">ihqqq")
_FRAME_HEAD = struct.Struct(">ihhih")
_VERSIONS = struct.Struct(">hh")
_SIZE_BYTES = 4
_PRODUCE, _FLEXIBLE = int(ApiKey.PRODUCE), ApiKey.PRODUCE.flexible_since
_BEFORE_COMMON = 12
_NULL_STRING = b"\xff\xff"
_CLIENT_ID_TO_TOPIC = INT16.size + _ONE_TOPIC_HEAD.size
_CLIENT_ID_TO_FLEXIBLE_NAME = INT16.size + _FLEXIBLE_TOPIC_HEAD.size + 1
_NO_TAGS = b"\0\0\0"
"""Empty tagged fields of partition, topic and request, after the only batch of a flexible request."""
_MAX_LENGTH_BYTES = 5
CACHED_TARGETS = 2048
"""Most cached targets of all clients together, 1 to 2 KB each. Without the cache a run takes 2 us more."""
RUN_VERSIONS = range(3, 13)
MAX_COMMON_BYTES = 512
"""Most bytes from the client id to the partition of a target; longer requests go to `decode_request`."""


class ProduceRequest(NamedTuple):
    """Batches for partitions, in the order of the request.

    `topics` is [(topic, number of its batches)], `batches` [(topic, partition, records)]; a batch that is
    null on the wire is empty here.
    """

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str, int]]
    batches: list[tuple[str, int, memoryview]]


class ProducedPartition(NamedTuple):
    """Result of one partition's batch. `error` 0 is success; then `message` is None."""

    partition: int
    error: int
    base_offset: int = -1
    log_start_offset: int = -1
    message: str | None = None


@reads("produce request")
def decode_request(version: int, body: memoryview, item_limit: int = MIN_ITEM_LIMIT) -> ProduceRequest:
    """Return the request in `body`. Raise InvalidRequest when its lengths do not fit.

    Raise RequestTooLarge for more than `item_limit` + REFUSED_ITEMS topics and partitions.
    """
    most = item_limit + REFUSED_ITEMS
    if version >= _FLEXIBLE:
        return _decode_flexible(body, most)
    # Without a Reader: every request that the network cut in two comes here.
    transactional_id, position = None, 0
    if version >= 3:
        position = INT16.size + max(0, INT16.unpack_from(body)[0])
        if body[:2] != _NULL_STRING:
            transactional_id = str(body[INT16.size : position], "utf-8")
    acks, timeout_ms, topic_count = _ACKS.unpack_from(body, position)
    position += _ACKS.size
    topics, batches, items = [], [], 0
    for _ in range(topic_count):
        (size,) = INT16.unpack_from(body, position)
        start = position + INT16.size
        position = start + size
        (count,) = INT32.unpack_from(body, position)
        items += 1 + count
        if size < 0 or count < 0 or items > most:
            raise RequestTooLarge(f"a produce request for {items} topics and partitions")
        name = str(body[start:position], "utf-8")
        topics.append((name, count))
        position += INT32.size
        for _ in range(count):
            number, size = _PAIR.unpack_from(body, position)
            start = position + _PAIR.size
            position = start + size if size > 0 else start
            batches.append((name, number, body[start:position]))
    if position > len(body):
        raise ValueError("its records reach past its end")
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, batches)


def _decode_flexible(body: memoryview, most: int) -> ProduceRequest:
    reader = Reader(body, items=most, flexible=True)
    transactional_id = reader.string()
    acks, timeout_ms = reader.unpack(_ACKS_AND_TIMEOUT)
    topics, batches = [], []
    for _ in range(reader.count(reader.length())):
        name = reader.text()
        count = reader.count(reader.length())
        topics.append((name, count))
        for _ in range(count):
            number, records = reader.number(INT32), reader.data()
            batches.append((name, number, body[:0] if records is None else records))
            reader.skip_tagged_fields()
        reader.skip_tagged_fields()
    reader.skip_tagged_fields()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, batches)


class Target(NamedTuple):
    """The common content of requests with one batch each: everything but the correlation id and the batch.

    size int32, api key and version, correlation id int32, client id ... partition, size, batch, `tail`
                head[0]                                    head[1]                  head[2] bytes

    In a flexible request the size is a varint and the tail says that there are no tagged fields.
    """

    topic: str
    partition: int
    version: int
    acks: int
    timeout_ms: int
    head: tuple[bytes, bytes, int]
    tail: bytes
    around_batch: int
    """Bytes of the frame without its batch."""

    @property
    def kind(self) -> tuple[str, int, int, int, int]:
        """Everything that the answer depends on: the same for clients whose `client.id` differs."""
        return self[:5]


ProduceRun: TypeAlias = tuple[list[int], list[memoryview], int]
"""Consecutive requests of one client, each with one batch for the same target: their correlation ids, their
batches, and the position of the next request. Often a run is one request."""


def run_at(
    data: memoryview, position: int, target: Target, max_batch_bytes: int, max_frame_bytes: int
) -> ProduceRun:
    """Return the consecutive produce requests for `target` from `position` on, as one run.

    The run ends before a request that is not whole, or whose batch is too large or refused by
    `check_produced`. If that is the first request, the run is empty. Such a request must be read by
    `decode_request`; then `decode_request` or the broker reports the reason.
    """
    largest = max_frame_bytes - target.around_batch
    if largest > max_batch_bytes:
        largest = max_batch_bytes
    return scan(data, position, target.head, target.tail, largest, crc32c)


def target_at(data: memoryview, position: int) -> Target | None:
    """Return the target of the request at `position`; None unless it has one batch and short names."""
    if len(data) - position < _FRAME_HEAD.size:
        return None
    _, api_key, version, _, client_id_size = _FRAME_HEAD.unpack_from(data, position)
    start = position + _BEFORE_COMMON
    if client_id_size < 0:
        client_id_size = 0
    if version >= _FLEXIBLE:
        return _flexible_target_at(data, start, client_id_size, version) if api_key == _PRODUCE else None
    name_at = start + _CLIENT_ID_TO_TOPIC + client_id_size
    if api_key != _PRODUCE or name_at > len(data):
        return None
    (name_size,) = INT16.unpack_from(data, name_at - INT16.size)
    end = name_at + name_size + _PAIR.size
    if name_size < 0 or end > len(data) or end > start + MAX_COMMON_BYTES:
        return None
    return _parse_target(version, bytes(data[start:end]))


@lru_cache(maxsize=CACHED_TARGETS)
def _parse_target(version: int, common: bytes) -> Target | None:
    start = INT16.size + max(0, INT16.unpack_from(common)[0])
    name_at = start + _ONE_TOPIC_HEAD.size
    transaction, acks, timeout_ms, topic_count, name_size = _ONE_TOPIC_HEAD.unpack_from(common, start)
    batch_count, partition = _PAIR.unpack_from(common, name_at + name_size)
    usual = transaction == -1 and -1 <= acks <= 1 and topic_count == batch_count == 1
    if not usual or version not in RUN_VERSIONS:
        return None
    try:
        topic = str(common[name_at : name_at + name_size], "utf-8")
    except UnicodeDecodeError:
        return None
    return _target(topic, partition, version, acks, timeout_ms, common, INT32.size, b"")


def _target(
    topic: str,
    partition: int,
    version: int,
    acks: int,
    timeout_ms: int,
    common: bytes,
    width: int,
    tail: bytes,
) -> Target:
    head = (_VERSIONS.pack(_PRODUCE, version), common, width)
    around_batch = _BEFORE_COMMON - _SIZE_BYTES + len(common) + width + len(tail)
    return Target(topic, partition, version, acks, timeout_ms, head, tail, around_batch)


def _flexible_target_at(data: memoryview, start: int, client_id_size: int, version: int) -> Target | None:
    """Do as `target_at`, for a flexible request whose client id begins at `start`."""
    name_at = start + _CLIENT_ID_TO_FLEXIBLE_NAME + client_id_size
    size = len(data)
    if name_at >= size:
        return None
    name_size = data[name_at - 1]
    if name_size >= 0x80:  # the length has a second byte, and names have no third one
        name_size, name_at = name_size - 0x80 + (data[name_at] << 7), name_at + 1
    end = name_at + name_size + INT32.size
    if not name_size or end >= size or end > start + MAX_COMMON_BYTES:
        return None
    width = 1
    while data[end + width - 1] >= 0x80:
        width += 1
        if width > _MAX_LENGTH_BYTES or end + width > size:
            return None
    return _parse_flexible_target(version, bytes(data[start:end]), width)


@lru_cache(maxsize=CACHED_TARGETS)
def _parse_flexible_target(version: int, common: bytes, width: int) -> Target | None:
    """Parse a target; `width` is the number of bytes of the batch's size. A run ends where it changes."""
    start = INT16.size + max(0, INT16.unpack_from(common)[0])
    tags, transaction, acks, timeout_ms, topic_count = _FLEXIBLE_TOPIC_HEAD.unpack_from(common, start)
    name_at = start + _FLEXIBLE_TOPIC_HEAD.size + 1
    name_at += common[name_at - 1] >= 0x80
    name_end = len(common) - INT32.size - 1
    is_usual = not tags and transaction == 0 and -1 <= acks <= 1 and topic_count == common[name_end] == 2
    if not is_usual or version not in RUN_VERSIONS:
        return None
    try:
        topic = str(common[name_at:name_end], "utf-8")
    except UnicodeDecodeError:
        return None
    (partition,) = INT32.unpack_from(common, name_end + 1)
    return _target(topic, partition, version, acks, timeout_ms, common, width, _NO_TAGS)


def encode_successes(
    version: int,
    topic: str,
    partition: int,
    correlation_ids: Sequence[int],
    outcomes: Sequence[object],
    log_start_offset: int,
) -> bytes | None:
    """Return whole responses to requests for one batch each, if every outcome is a base offset; else None."""
    is_single = len(outcomes) == 1  # nearly always, and it needs fewer steps
    # Check before anything is cached: the topic of a refused request may be any name that its client invents.
    if not (isinstance(outcomes[0], int) if is_single else set(map(type, outcomes)) == {int}):
        return None
    if is_single:
        pack, size, before, after = _success(version, topic, partition, log_start_offset)
        return pack(size, correlation_ids[0], before, outcomes[0], after)
    return b"".join(
        encode_each_success(version, topic, partition, correlation_ids, outcomes, log_start_offset)
    )


def encode_each_success(
    version: int,
    topic: str,
    partition: int,
    correlation_ids: Sequence[int],
    base_offsets: Sequence[object],
    log_start_offset: int,
) -> list[bytes]:
    """Return the whole response to each of the requests, which had one batch each."""
    pack, size, before, after = _success(version, topic, partition, log_start_offset)
    pairs = zip(correlation_ids, base_offsets, strict=True)
    return [pack(size, number, before, base, after) for number, base in pairs]


@lru_cache(maxsize=CACHED_TARGETS)
def _success(
    version: int, topic: str, partition: int, log_start_offset: int
) -> tuple[Callable[..., bytes], int, bytes, bytes]:
    """Return the parts of successful responses, which differ in correlation id and base offset only."""
    result = ProducedPartition(partition, 0, 0, log_start_offset)
    body = encode_response(version, [(topic, 1)], [result])
    if version >= _FLEXIBLE:
        split = 1 + 1 + len(compact_text(topic)) + 1 + 6
    else:
        split = INT32.size + len(text(topic)) + INT32.size + 6
    before, after = body[:split], body[split + 8 :]
    return struct.Struct(f">ii{split}sq{len(after)}s").pack, 4 + len(body), before, after


def encode_response(
    version: int,
    topics: Sequence[tuple[str, int]],
    partitions: Sequence[ProducedPartition],
    throttle_ms: int = 0,
) -> bytes:
    """Return a produce response after its correlation id: `topics` as in the request, `partitions` one for
    each batch.
    """
    rest = iter(partitions)
    if version >= _FLEXIBLE:
        parts = [b"\0", compact_length(len(topics))]  # the header has tagged fields, too
        for name, count in topics:
            parts.append(compact_text(name) + compact_length(count))
            parts += [_encode_flexible_partition(next(rest)) for _ in range(count)]
            parts.append(b"\0")
        return b"".join([*parts, INT32.pack(throttle_ms), b"\0"])
    parts = [INT32.pack(len(topics))]
    for name, count in topics:
        parts.append(text(name) + INT32.pack(count))
        parts += [_encode_partition(version, next(rest)) for _ in range(count)]
    if version >= 1:
        parts.append(INT32.pack(throttle_ms))
    return b"".join(parts)


def _encode_partition(version: int, partition: ProducedPartition) -> bytes:
    number, error, base_offset, log_start_offset, message = partition
    # -1 as append time: the batch keeps its producer's timestamps.
    fixed = _RESULT.pack(number, error, base_offset, -1, log_start_offset)
    if version >= 8:
        reason = _NULL_STRING if message is None else text(message)
        return fixed + INT32.pack(0) + reason
    return fixed if version >= 5 else fixed[:22] if version >= 2 else fixed[:14]


def _encode_flexible_partition(partition: ProducedPartition) -> bytes:
    number, error, base_offset, log_start_offset, message = partition
    fixed = _RESULT.pack(number, error, base_offset, -1, log_start_offset) + compact_length(0)
    if message is None:
        return fixed + compact_length(-1) + b"\0"
    return fixed + compact_text(message) + b"\0"

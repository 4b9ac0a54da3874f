"""Produce requests and responses, laid out by hand: v0 to v8, the broker's side.

The records of a request are handed out as writable views of the received bytes, so that the broker stamps
them where they are and writes them from there; `wire.codec` would copy them (a 945 KB request: 0.2 ms).

    request  := v3+: transactional_id string?, acks int16, timeout_ms int32,
                [topic string, [partition int32, records bytes?]]
    response := [topic string, [partition]], v1+: throttle_ms int32
    partition := index int32, error int16, base_offset int64, v2+: log_append_time int64,
                 v5+: log_start_offset int64, v8+: [record errors], error_message string?
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from millrace.errors import InvalidRequest
from millrace.records import HEADER_BYTES, LENGTH_OVERHEAD, MAGIC
from millrace.records.compression import Codec
from millrace.records.header import CHECKED, CRC_START, MIN_RECORD_BYTES, crc32c
from millrace.wire.primitives import MAX_DECODED_ITEMS

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
_FRAME_HEAD = struct.Struct(">ihhih")
_VERSIONS = struct.Struct(">hh")
_SIZE_BYTES = 4
_BEFORE_COMMON = 12
_CLIENT_ID_TO_TOPIC = _INT16.size + _ONE_TOPIC_HEAD.size
_LAST_CODEC = int(Codec.ZSTD)
REMEMBERED_REQUESTS = 1024
"""Requests that ask for different things, remembered for all clients together: about 2 KB each."""
RUN_VERSIONS = range(3, 9)
MAX_COMMON_BYTES = 512
"""Requests with longer names than fit are read in the general way."""


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
    if count != 1 or not 0 < size == len(body) - start:
        return None
    name = str(body[_ONE_TOPIC_HEAD.size : name_end], "utf-8")
    return ProduceRequest(None, acks, [(name, 1)], [(name, number, body[start:])])


def _decode_request(version: int, body: memoryview) -> ProduceRequest:
    position, transactional_id = 0, None
    if version >= 3:
        if body[:2] == _NULL_STRING:
            position = 2
        else:
            transactional_id, position = _string(body, 0)
    acks, _, topic_count = _ACKS.unpack_from(body, position)
    position += 10
    topics, batches, size_of_all, items = [], [], len(body), 0
    for _ in range(topic_count):
        name, position = _string(body, position)
        (count,) = _INT32.unpack_from(body, position)
        position += 4
        items += 1 + count
        if count < 0 or items > MAX_DECODED_ITEMS:
            raise InvalidRequest(f"a produce request for more than {MAX_DECODED_ITEMS} partitions, or for -1")
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


class Run(NamedTuple):
    """Requests of one client that lie behind each other, each with one batch for the same partition.

    Often it is one request. They differ in their correlation ids and their batches only.
    """

    asked: OneBatch
    correlation_ids: list[int]
    batches: list[memoryview]
    end: int
    """Where the request behind them begins."""


class OneBatch(NamedTuple):
    """What some requests ask for, each for one batch: everything but the correlation id and the batch.

    size int32, api key and version, correlation id int32, client id ... partition, records bytes
                `versions`                                 `common`
    """

    topic: str
    partition: int
    version: int
    acks: int
    versions: bytes
    common: bytes
    layout: struct.Struct

    def may_be_at(self, data: memoryview, position: int) -> bool:
        """False if the request at `position` is for another partition: the cheapest look at it."""
        end = position + _BEFORE_COMMON + len(self.common)
        return end <= len(data) and _INT32.unpack_from(data, end - _INT32.size)[0] == self.partition

    def run_at(self, data: memoryview, position: int, largest: int) -> Run | None:
        """The requests from `position` on that ask for this; None when the first does not.

        They end before one that is not whole, has a batch of more than `largest` bytes or one that
        `check_produced` does not take: that one is read by `decode_request`, which is asked why.
        """
        _, _, _, _, versions, common, layout = self
        correlation_ids: list[int] = []
        batches: list[memoryview] = []
        unpack, checksum, end = layout.unpack_from, crc32c, len(data)
        smallest = layout.size
        before_batch = smallest - HEADER_BYTES
        while end - position >= smallest:
            (
                frame_size, its_versions, correlation_id, its_common, size,
                _, length, magic, crc, attributes, last_offset_delta, count,
            ) = unpack(data, position)  # fmt: skip
            start = position + before_batch
            after = start + size
            if (
                its_common != common
                or its_versions != versions
                or not HEADER_BYTES <= size <= largest
                or after > end
                or frame_size + _SIZE_BYTES != before_batch + size
                or length + LENGTH_OVERHEAD != size
                or magic != MAGIC
                or not 0 < count == last_offset_delta + 1
                or not 0 <= attributes <= _LAST_CODEC
                or (not attributes and count * MIN_RECORD_BYTES > size - HEADER_BYTES)
                or checksum(data[start + CRC_START : after]) != crc
            ):
                break
            correlation_ids.append(correlation_id)
            batches.append(data[start:after])
            position = after
        return Run(self, correlation_ids, batches, position) if batches else None


def next_run(
    data: memoryview,
    position: int,
    max_frame_bytes: int,
    max_batch_bytes: Callable[[str, int], int],
    last: OneBatch | None = None,
) -> Run | None:
    """The run that begins at `position`; None when the request there has to be read by `decode_request`.

    `max_batch_bytes` says of a topic and a partition how large a batch may be, 0 when none can be taken.
    `last` is what the client asked for the last time: most clients ask for the same again.
    """
    asked = last if last is not None and last.may_be_at(data, position) else _one_batch(data, position)
    while asked is not None:
        largest = max_batch_bytes(asked.topic, asked.partition)
        room = max_frame_bytes + _SIZE_BYTES + HEADER_BYTES - asked.layout.size
        run = asked.run_at(data, position, largest if largest < room else room)
        if run is not None or asked is not last:
            return run
        asked, last = _one_batch(data, position), None
    return None


def _one_batch(data: memoryview, position: int) -> OneBatch | None:
    """What the request at `position` asks for; None unless it brings one batch and its names are short."""
    if len(data) - position < _FRAME_HEAD.size:
        return None
    _, api_key, version, _, client_id_size = _FRAME_HEAD.unpack_from(data, position)
    start = position + _BEFORE_COMMON
    name_at = start + _CLIENT_ID_TO_TOPIC + (client_id_size if client_id_size > 0 else 0)
    if api_key != 0 or name_at > len(data):
        return None
    (name_size,) = _INT16.unpack_from(data, name_at - _INT16.size)
    end = name_at + name_size + _PAIR.size
    if name_size < 0 or end > len(data) or end > start + MAX_COMMON_BYTES:
        return None
    return _parse_one_batch(version, bytes(data[start:end]))


@lru_cache(maxsize=REMEMBERED_REQUESTS)
def _parse_one_batch(version: int, common: bytes) -> OneBatch | None:
    start = _INT16.size + max(0, _INT16.unpack_from(common)[0])
    name_at = start + _ONE_TOPIC_HEAD.size
    transaction, acks, _, topic_count, name_size = _ONE_TOPIC_HEAD.unpack_from(common, start)
    batch_count, partition = _PAIR.unpack_from(common, name_at + name_size)
    usual = transaction == -1 and -1 <= acks <= 1 and topic_count == batch_count == 1
    if not usual or version not in RUN_VERSIONS:
        return None
    try:
        topic = str(common[name_at : name_at + name_size], "utf-8")
    except UnicodeDecodeError:
        return None
    layout = struct.Struct(f">i4si{len(common)}si{CHECKED.format.removeprefix('>')}")
    return OneBatch(topic, partition, version, acks, _VERSIONS.pack(0, version), common, layout)


def encode_successes(
    version: int,
    topic: str,
    partition: int,
    correlation_ids: Sequence[int],
    bases: Sequence[int],
    log_start_offset: int,
) -> bytes:
    """Whole responses to requests for one batch each, which came to stand at these base offsets."""
    pack, size, before, after = _success(version, topic, partition, log_start_offset)
    pairs = zip(correlation_ids, bases, strict=True)
    return b"".join([pack(size, number, before, base, after) for number, base in pairs])


@lru_cache(maxsize=REMEMBERED_REQUESTS)
def _success(
    version: int, topic: str, partition: int, log_start_offset: int
) -> tuple[Callable[..., bytes], int, bytes, bytes]:
    """The parts of successful responses, which differ in correlation id and base offset only."""
    result = ProducedPartition(partition, 0, 0, log_start_offset)
    body = encode_response(version, [(topic, 1)], [result])
    split = len(_ONE_TOPIC) + len(_topic(topic, 1)) + 6
    before, after = body[:split], body[split + 8 :]
    return struct.Struct(f">ii{split}sq{len(after)}s").pack, 4 + len(body), before, after


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

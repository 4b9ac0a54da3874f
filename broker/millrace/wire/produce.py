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
from typing import Generic, NamedTuple, TypeVar

from millrace.errors import InvalidRequest
from millrace.records import HeaderFields, plain_batch
from millrace.wire.codec import MAX_DECODED_ITEMS

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
MAX_KNOWN_REQUESTS = 128
"""Of one client, at about 1.5 KB each ..."""
MAX_CONSTANT_BYTES = 512
"""... and none with a name longer than this."""
_BEFORE_CONSTANT = 12
T = TypeVar("T")


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


class RepeatedRequest:
    """What a client's requests with one batch for one partition have in common, to read many at one go.

        size int32, [api_key, version], correlation_id int32, [client id ... partition], records bytes

    One look at such a request tells what the general way needs four for: frame, header, topic, batch.
    """

    __slots__ = ("_layout", "_versions", "constant", "overhead")

    def __init__(self, frame: memoryview, records: memoryview) -> None:
        self._versions = bytes(frame[:4])
        self.constant = bytes(frame[8 : len(frame) - len(records) - 4])
        """What stands between the correlation id and the records; it says what the request asks for."""
        self._layout = struct.Struct(f">i4si{len(self.constant)}si")
        self.overhead = len(frame) - len(records)
        """Bytes of such a request, its length not counted, that are not its batch."""

    @classmethod
    def of(cls, frame: memoryview, body: memoryview) -> RepeatedRequest | None:
        """What there is to repeat of a request for one batch; None for others. `body` ends `frame`."""
        request = _decode_one_batch(body)
        if request is None or len(frame) - len(request.batches[0][2]) > MAX_CONSTANT_BYTES:
            return None
        return cls(frame, request.batches[0][2])

    def read(self, data: memoryview, position: int, max_batch_bytes: int) -> RepeatedBatches:
        """The requests from `position` on, while they are whole, repeat the first and hold good batches."""
        numbers: list[int] = []
        batches: list[memoryview] = []
        headers: list[HeaderFields] = []
        unpack, header_size = self._layout.unpack_from, self._layout.size
        versions, constant, end = self._versions, self.constant, len(data)
        while end - position >= header_size:
            frame_size, its_versions, correlation_id, its_constant, size = unpack(data, position)
            if its_constant != constant or its_versions != versions or size > max_batch_bytes:
                break
            start = position + header_size
            if frame_size + 4 != header_size + size or (plain := plain_batch(data, start, size)) is None:
                break
            position = start + size
            numbers.append(correlation_id)
            batches.append(plain[0])
            headers.append(plain[1])
        return RepeatedBatches(numbers, batches, headers, position)


class KnownRequests(Generic[T]):
    """What a client's requests mean, by their constant part."""

    __slots__ = ("_meanings",)

    def __init__(self) -> None:
        self._meanings: dict[bytes, T] = {}

    @property
    def full(self) -> bool:
        """True when no more are remembered: learning each anew would cost more than the general way."""
        return len(self._meanings) >= MAX_KNOWN_REQUESTS

    def learn(self, constant: bytes, meaning: T) -> None:
        """Remember one more."""
        self._meanings[constant] = meaning

    def next(self, data: memoryview, position: int) -> T | None:
        """What the request at `position` means; None when that is not known."""
        start = position + _BEFORE_CONSTANT
        try:
            name_at = start + 2 + max(0, _INT16.unpack_from(data, start)[0]) + _ONE_TOPIC_HEAD.size
            end = name_at + _INT16.unpack_from(data, name_at - 2)[0] + 8
        except struct.error:
            return None
        return self._meanings.get(bytes(data[start:end]))


class RepeatedBatches(NamedTuple):
    """The correlation ids, batches and headers of some requests, and the position behind the last of them."""

    correlation_ids: list[int]
    batches: list[memoryview]
    headers: list[HeaderFields]
    end: int


class RepeatedAnswer:
    """Encodes successful answers for one partition, which differ in correlation id and offset only."""

    __slots__ = (
        "_after", "_before", "_log_start_offset", "_pack", "_partition", "_size", "_topic", "_version",
    )  # fmt: skip

    def __init__(self, version: int, topic: str, partition: int) -> None:
        self._version, self._topic, self._partition = version, topic, partition
        self._log_start_offset = -1
        self._prepare()

    def _prepare(self) -> None:
        result = ProducedPartition(self._partition, 0, 0, self._log_start_offset)
        body = encode_response(self._version, [(self._topic, 1)], [result])
        split = len(_ONE_TOPIC) + len(_topic(self._topic, 1)) + 6
        self._size, self._before, self._after = 4 + len(body), body[:split], body[split + 8 :]
        self._pack = struct.Struct(f">ii{split}sq{len(self._after)}s").pack

    def frames(self, correlation_ids: Sequence[int], bases: Sequence[int], log_start_offset: int) -> bytes:
        """Whole responses, one for each base offset."""
        if log_start_offset != self._log_start_offset:
            self._log_start_offset = log_start_offset
            self._prepare()
        pack, size, before, after = self._pack, self._size, self._before, self._after
        pairs = zip(correlation_ids, bases, strict=True)
        return b"".join([pack(size, number, before, base, after) for number, base in pairs])


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

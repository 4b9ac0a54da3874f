"""ReplicaFetch and ReplicaAck, by which a follower copies its leaders' logs: Millrace's own, between brokers.

A connection has one ReplicaFetch in flight. The leader remembers its follower's position in each partition,
so a request names only partitions that changed, and an answer only partitions with news.

    ReplicaFetch v0 := follower int32, directory 8 bytes, starts_over int8 (1: forget all partitions),
                       max_wait_ms int32, max_bytes int32, [wanted], [forgotten]
    wanted          := topic id 16 bytes, partition int32, epoch int32, position int64, last_epoch int32,
                       flushed int64 (-1: the follower's log may differ from the leader's)
    forgotten       := topic id 16 bytes, partition int32
    answer          := error int16, [copied]
    copied          := topic id 16 bytes, partition int32, error int16, committed int64, log_start int64,
                       start_offset int64, segment int64, diverging_epoch int32, diverging_end int64,
                       records bytes
    ReplicaAck v0   := follower int32, directory 8 bytes, [acked]; it has no answer
    acked           := topic id 16 bytes, partition int32, epoch int32, flushed int64

`records` are the log's bytes from `position` on, of one file, which begins at `segment`; the last batch may
be cut off. The leader's first file begins at `log_start`; records below `start_offset` are deleted.
`diverging_end` is -1 if the follower's log is a prefix of the leader's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from millrace.errors import InvalidRequest
from millrace.records.file_slice import FileSlice
from millrace.wire.primitives import INT16, INT32, Reader, reads

_FETCH = struct.Struct(">i8sbii")
_ACK = struct.Struct(">i8s")
_WANTED = struct.Struct(">16siiqiq")
_ACKED = struct.Struct(">16siiq")
_PARTITION = struct.Struct(">16si")
_FETCHED = struct.Struct(">16sihqqqqiqi")
MAX_PARTITIONS = 20_000
"""Most partitions of one request; each takes 1 to 2 us of the event loop."""
NOT_DIVERGING = -1


class ReplicaPartition(NamedTuple):
    """A partition by its topic's id, so that nothing is copied into a topic that was recreated."""

    topic_id: UUID
    number: int


class Wanted(NamedTuple):
    """A follower's position in one partition, in one leader's epoch."""

    partition: ReplicaPartition
    epoch: int
    position: int
    last_epoch: int
    flushed: int


class ReplicaFetchRequest(NamedTuple):
    """A follower's request to one leader; `starts_over` makes the leader forget all its partitions."""

    follower: int
    directory: str
    starts_over: bool
    max_wait_ms: int
    max_bytes: int
    wanted: Sequence[Wanted]
    forgotten: Sequence[ReplicaPartition]


class Acked(NamedTuple):
    """The offset up to which a follower has flushed one partition, in one leader's epoch."""

    partition: ReplicaPartition
    epoch: int
    flushed: int


class ReplicaAckRequest(NamedTuple):
    """A follower's report of the partitions that it has flushed to its disk."""

    follower: int
    directory: str
    acked: Sequence[Acked]


class Copied(NamedTuple):
    """A leader's answer for one partition; `records` is a slice of its file, or a view of the answer."""

    partition: ReplicaPartition
    error: int
    committed: int = -1
    log_start: int = -1
    start_offset: int = -1
    segment: int = -1
    diverging_epoch: int = -1
    diverging_end: int = NOT_DIVERGING
    records: FileSlice | memoryview | None = None


def encode_fetch(request: ReplicaFetchRequest) -> bytes:
    follower, directory, starts_over, max_wait_ms, max_bytes, wanted, forgotten = request
    return b"".join(
        (
            _FETCH.pack(follower, bytes.fromhex(directory), starts_over, max_wait_ms, max_bytes),
            INT32.pack(len(wanted)),
            *(_WANTED.pack(one.topic_id.bytes, one.number, *rest) for one, *rest in wanted),
            INT32.pack(len(forgotten)),
            *(_PARTITION.pack(one.topic_id.bytes, one.number) for one in forgotten),
        )
    )


@reads("replica fetch request")
def decode_fetch(body: memoryview) -> ReplicaFetchRequest:
    reader = Reader(body)
    follower, directory, starts_over, max_wait_ms, max_bytes = reader.unpack(_FETCH)
    wanted = [Wanted(_partition(*item[:2]), *item[2:]) for item in _items(reader, _WANTED)]
    forgotten = [_partition(*item) for item in _items(reader, _PARTITION)]
    reader.end()
    return ReplicaFetchRequest(
        follower, directory.hex(), bool(starts_over), max_wait_ms, max_bytes, wanted, forgotten
    )


def encode_ack(request: ReplicaAckRequest) -> bytes:
    follower, directory, acked = request
    head = _ACK.pack(follower, bytes.fromhex(directory)) + INT32.pack(len(acked))
    return head + b"".join(_ACKED.pack(one.topic_id.bytes, one.number, *rest) for one, *rest in acked)


@reads("replica ack")
def decode_ack(body: memoryview) -> ReplicaAckRequest:
    reader = Reader(body)
    follower, directory = reader.unpack(_ACK)
    acked = [Acked(_partition(*item[:2]), *item[2:]) for item in _items(reader, _ACKED)]
    reader.end()
    return ReplicaAckRequest(follower, directory.hex(), acked)


def encode_answer(error: int, copied: Sequence[Copied]) -> list[bytes | FileSlice]:
    """Return the body of an answer as parts; the records stay in their files."""
    parts: list[bytes | FileSlice] = []
    pending = [INT16.pack(error) + INT32.pack(len(copied))]
    for one, *fields, records in copied:
        assert records is None or isinstance(records, FileSlice), "a leader sends slices of its files"
        size = 0 if records is None else records.length
        pending.append(_FETCHED.pack(one.topic_id.bytes, one.number, *fields, size))
        if records is not None:
            parts += (b"".join(pending), records)
            pending = []
    if pending:
        parts.append(b"".join(pending))
    return parts


@reads("replica fetch answer")
def decode_answer(body: memoryview) -> tuple[int, list[Copied]]:
    """Return the error of the request as a whole, and the answers for partitions.

    Records are views of `body`.
    """
    reader = Reader(body)
    error = reader.number(INT16)
    copied = []
    for _ in range(reader.number(INT32)):
        topic_id, number, *fields, size = reader.unpack(_FETCHED)
        partition = Copied(_partition(topic_id, number), *fields)
        copied.append(partition._replace(records=reader.part(size)))
    reader.end()
    return error, copied


def _items(reader: Reader[memoryview], layout: struct.Struct) -> Iterable[tuple[Any, ...]]:
    count = reader.number(INT32)
    if not 0 <= count <= MAX_PARTITIONS:
        raise InvalidRequest(f"{count} partitions in one request; {MAX_PARTITIONS} are allowed")
    return layout.iter_unpack(reader.part(count * layout.size))


def _partition(topic_id: bytes, number: int) -> ReplicaPartition:
    return ReplicaPartition(UUID(bytes=topic_id), number)

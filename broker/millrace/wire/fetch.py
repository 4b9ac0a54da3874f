"""Fetch, laid out by hand: v4 to v17, requests as the broker reads them (and v12 as Millrace's own clients
send them), responses as the broker writes them, and v12 as those clients read them.

Encoding does not copy the records: the answer is a list of parts, bytes and objects that stand for records
(slices of files, on the server). Decoding returns views of the received buffer. `wire.codec` would copy the
records in both directions.

    request   := replica_id int32, max_wait int32, min_bytes int32, max_bytes int32, isolation_level int8,
                 v7+: session int32, session_epoch int32, [topic string, [wanted]],
                 v7+: [forgotten topic string, [partition int32]], v11+: rack string
    wanted    := index int32, v9+: leader_epoch int32, offset int64, v5+: log_start_offset int64,
                 max_bytes int32
    response  := throttle_ms int32, v7+: error int16, session int32, [topic string, [partition]]
    partition := index int32, error int16, high_watermark int64, last_stable_offset int64,
                 v5+: log_start_offset int64, aborted [producer_id int64, first_offset int64],
                 v11+: preferred_read_replica int32, records bytes

From v12 on (KIP-482) lengths are varints, and each partition, topic and message ends with tagged fields.
In requests they are skipped. A wanted partition has a last_fetched_epoch int32 after its offset (KIP-595):
the epoch of the batch that the client has read before that offset, or -1. If the broker's log does not hold
that batch, tag 0 of the answered partition states where the logs diverge: epoch int32, end int64.
From v13 on a topic is its id (KIP-516), 16 bytes; from v15 on the replica's id is a tagged field (KIP-903),
as is a follower's directory in v17 (KIP-853).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from millrace.errors import ErrorCode, InvalidRequest
from millrace.records.compression import Buffer
from millrace.wire.messages import ApiKey
from millrace.wire.primitives import INT16, INT32, Reader, compact_length, compact_text, reads, text

_REQUEST = struct.Struct(">iiiib")
_SESSION = struct.Struct(">ii")
_FLEXIBLE, _BY_ID, _NO_REPLICA_ID = ApiKey.FETCH.flexible_since, 13, 15
_ID_BYTES = 16
_NO_SESSION_OR_RACK = b"\1\1\0"
"""End of nearly every flexible request, after its topics: none to forget, no rack, no tagged fields."""
_PARTING, _PARTING_TAG = struct.Struct(">iqB"), 0
_WANTED_12, _REQUEST_15 = struct.Struct(">iiqiqiB"), struct.Struct(">iiib")
_WANTED_4, _WANTED_5, _WANTED_9 = struct.Struct(">iqi"), struct.Struct(">iqqi"), struct.Struct(">iiqqi")
_PARTITION = struct.Struct(">ihqqq")
_PARTITION_4, _PARTITION_5 = struct.Struct(">ihqqii"), struct.Struct(">ihqqqii")
_PARTITION_11, _PARTITION_12 = struct.Struct(">ihqqqiii"), struct.Struct(">ihqqqBi")
_HEAD_4, _HEAD_7 = bytes(4), bytes(10)
_ABORTED = struct.Struct(">qq")
MIN_ITEM_LIMIT = 10_000
"""Number of topics and partitions that every fetch may name. Each takes 1 to 2 us of the event loop."""


class Sized(Protocol):
    """Records to be sent; only their size is used here."""

    @property
    def length(self) -> int: ...


S = TypeVar("S", bound=Sized)
Answered: TypeAlias = "tuple[int, int, int, int, S | None, tuple[int, int] | None]"


class Parting(NamedTuple):
    """Point where a broker's log and a client's reading diverge: the newest epoch of both, and its end."""

    epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """One partition of a fetch response, as a client sees it.

    `records` is a run of whole batches, perhaps followed by the beginning of another. `error` is the number
    on the wire. `aborted_transactions` holds (producer id, first offset) and is empty on a Millrace broker.
    `parting` is set, without records, when the log was cut back below what the client has read.
    """

    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: memoryview
    aborted_transactions: tuple[tuple[int, int], ...] = ()
    parting: Parting | None = None


class FetchRequest(NamedTuple):
    """A fetch: wait until `min_bytes` are available or `max_wait` ms have passed; answer with `max_bytes` at
    most.

    `topics` is [(topic, [(partition, offset, max_bytes, leader epoch that the client knows, epoch of the
    batch it has read before the offset)])], -1 for an unknown epoch; other fields of a request are ignored.
    From v13 on the topics are named by `ids`, one for each, and have no names yet.
    """

    max_wait: int
    min_bytes: int
    max_bytes: int
    topics: list[tuple[str, list[tuple[int, int, int, int, int]]]]
    ids: Sequence[bytes] = ()


def encode_request(
    wanted: Sequence[tuple[str, int, int, int, int, int]],
    *,
    max_wait: int,
    max_bytes: int,
    min_bytes: int = 1,
) -> bytes:
    """Return the body of a v12 request for committed records.

    `wanted` is [(topic, partition, offset, max_bytes, known leader epoch or -1, epoch of the batch read
    before the offset or -1)]; the broker fills its answer in this order.
    """
    by_topic = [(topic, list(partitions)) for topic, partitions in groupby(wanted, key=itemgetter(0))]
    parts = [_REQUEST.pack(-1, max_wait, min_bytes, max_bytes, 1), _SESSION.pack(0, -1)]
    parts.append(compact_length(len(by_topic)))
    for topic, partitions in by_topic:
        parts.append(compact_text(topic) + compact_length(len(partitions)))
        parts += [
            _WANTED_12.pack(number, epoch, offset, last_epoch, -1, most, 0)
            for _, number, offset, most, epoch, last_epoch in partitions
        ]
        parts.append(b"\0")
    parts.append(_NO_SESSION_OR_RACK)
    return b"".join(parts)


@reads("fetch request")
def decode_request(version: int, body: memoryview, item_limit: int = MIN_ITEM_LIMIT) -> FetchRequest:
    """Return the request in `body`.

    Raise InvalidRequest when its lengths do not fit or it names more items.
    """
    if version >= _FLEXIBLE:
        return _decode_flexible(version, body, item_limit)
    reader, room = Reader(body), item_limit
    layout = _WANTED_9 if version >= 9 else _WANTED_5 if version >= 5 else _WANTED_4
    _, max_wait, min_bytes, max_bytes, _ = reader.unpack(_REQUEST)
    if version >= 7:
        reader.unpack(_SESSION)
    topics = []
    for _ in range(reader.number(INT32)):
        topic, count = reader.text(), reader.number(INT32)
        room -= 1 + count
        if room < 0:
            raise InvalidRequest(f"a fetch request for over {item_limit} partitions")
        wanted = layout.iter_unpack(reader.part(count * layout.size))
        if version >= 9:
            topics.append((topic, [(one[0], one[2], one[4], one[1], -1) for one in wanted]))
        else:
            topics.append((topic, [(one[0], one[1], one[-1], -1, -1) for one in wanted]))
    # The remaining fields are ignored, but must be present.
    if version >= 7:
        forgotten = reader.number(INT32)
        if forgotten > room:
            raise InvalidRequest(f"a fetch request for over {item_limit} partitions")
        for _ in range(forgotten):
            reader.part(max(0, reader.number(INT16)))
            reader.part(4 * max(0, reader.number(INT32)))
    if version >= 11:
        reader.part(max(0, reader.number(INT16)))
    return FetchRequest(max_wait, min_bytes, max_bytes, topics)


def _decode_flexible(version: int, body: memoryview, item_limit: int) -> FetchRequest:
    reader = Reader(body, items=item_limit, flexible=True)
    if version >= _NO_REPLICA_ID:
        max_wait, min_bytes, max_bytes, _ = reader.unpack(_REQUEST_15)
    else:
        _, max_wait, min_bytes, max_bytes, _ = reader.unpack(_REQUEST)
    reader.unpack(_SESSION)
    topics, ids = [], []
    for _ in range(reader.count(reader.length())):
        if version >= _BY_ID:
            topic = ""
            ids.append(bytes(reader.part(_ID_BYTES)))
        else:
            topic = reader.text()
        topics.append((topic, _wanted(reader, reader.count(reader.length()))))
        reader.skip_tagged_fields()
    if body[reader.position :] != _NO_SESSION_OR_RACK:
        # The remaining fields are ignored, but must be present.
        for _ in range(reader.count(reader.length())):
            reader.part(_ID_BYTES) if version >= _BY_ID else reader.text()
            reader.part(4 * max(0, reader.length()))
            reader.skip_tagged_fields()
        reader.text()
        reader.skip_tagged_fields()
    return FetchRequest(max_wait, min_bytes, max_bytes, topics, ids)


def _wanted(reader: Reader[memoryview], count: int) -> list[tuple[int, int, int, int, int]]:
    """Read `count` partitions, each as in `FetchRequest`."""
    start, size = reader.position, count * _WANTED_12.size
    block = reader.encoded[start : start + size]
    if len(block) == size and not any(block[_WANTED_12.size - 1 :: _WANTED_12.size]):  # no tagged fields
        reader.position = start + size
        return [(one[0], one[2], one[5], one[1], one[3]) for one in _WANTED_12.iter_unpack(block)]
    wanted = []
    for _ in range(count):
        number, epoch, offset, last_epoch, _, most, _ = reader.unpack(_WANTED_12)
        reader.position -= 1
        reader.skip_tagged_fields()
        wanted.append((number, offset, most, epoch, last_epoch))
    return wanted


def encode_response(
    version: int, topics: Sequence[tuple[str | bytes, Sequence[Answered[S]]]]
) -> list[bytes | S]:
    """Return the body of a fetch response as parts, the records between bytes.

    `topics` is [(topic, [(partition, error, high watermark, log start offset, records or None, parting or
    None)])]; a topic is its id from v13 on, else its name. Only requests from v12 on can have a parting.
    """
    if version >= _FLEXIBLE:
        return _encode_flexible(topics)
    parts: list[bytes | S] = []
    pending = [(_HEAD_7 if version >= 7 else _HEAD_4) + INT32.pack(len(topics))]
    for name, partitions in topics:
        assert isinstance(name, str)
        pending.append(text(name) + INT32.pack(len(partitions)))
        for index, code, end, start, records, _ in partitions:
            size = 0 if records is None else records.length
            # Nothing here is transactional, so the last stable offset is the high watermark.
            if version >= 11:
                pending.append(_PARTITION_11.pack(index, code, end, end, start, 0, -1, size))
            elif version >= 5:
                pending.append(_PARTITION_5.pack(index, code, end, end, start, 0, size))
            else:
                pending.append(_PARTITION_4.pack(index, code, end, end, 0, size))
            if records is not None:
                parts += (b"".join(pending), records)
                pending = []
    if pending:
        parts.append(b"".join(pending))
    return parts


def _encode_flexible(topics: Sequence[tuple[str | bytes, Sequence[Answered[S]]]]) -> list[bytes | S]:
    parts: list[bytes | S] = []
    pending = [_HEAD_7 + compact_length(len(topics))]
    for topic, partitions in topics:
        name = compact_text(topic) if isinstance(topic, str) else topic
        pending.append(name + compact_length(len(partitions)))
        for index, code, end, start, records, parting in partitions:
            size = 0 if records is None else records.length
            # 1 is an empty list: nothing here is transactional.
            pending.append(_PARTITION_12.pack(index, code, end, end, start, 1, -1) + compact_length(size))
            if records is not None:
                parts += (b"".join(pending), records)
                pending = []
            if parting is None:
                pending.append(b"\0")
            else:
                pending.append(bytes((1, _PARTING_TAG, _PARTING.size)) + _PARTING.pack(*parting, 0))
        pending.append(b"\0")
    pending.append(b"\0")
    parts.append(b"".join(pending))
    return parts


def encode_error(version: int, code: int) -> bytes | None:
    """Return the body of a response without topics; None before v7, which has no field for the error."""
    if version >= _FLEXIBLE:
        return bytes(4) + INT16.pack(code) + bytes(4) + compact_length(0) + b"\0"
    return bytes(4) + INT16.pack(code) + bytes(8) if version >= 7 else None


@reads("fetch response")
def decode_response(body: Buffer) -> dict[str, dict[int, FetchedPartition]]:
    """Return the answers of a v12 response by topic and partition; the records are views of `body`.

    Raise InvalidRequest when the bytes are malformed, or the response has an error of the whole request.
    """
    reader = Reader(memoryview(body), flexible=True)
    reader.number(INT32)
    error = reader.number(INT16)
    reader.number(INT32)
    if error:
        raise InvalidRequest(f"the whole fetch was refused with error {error} ({error_name(error)})")
    result: dict[str, dict[int, FetchedPartition]] = {}
    for _ in range(reader.count(reader.length())):
        partitions = result.setdefault(reader.text(), {})
        for _ in range(reader.count(reader.length())):
            index, fetched = _decode_partition(reader)
            partitions[index] = fetched
        reader.skip_tagged_fields()
    reader.skip_tagged_fields()
    return result


def error_name(code: int) -> str:
    """Return the protocol's name of an error code, or its number when Millrace has no name for it."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def _decode_partition(reader: Reader[memoryview]) -> tuple[int, FetchedPartition]:
    index, error, high_watermark, last_stable, log_start = reader.unpack(_PARTITION)
    aborted = []
    for _ in range(reader.length()):  # null is -1
        aborted.append(reader.unpack(_ABORTED))
        reader.skip_tagged_fields()
    reader.number(INT32)
    records = reader.part(max(0, reader.length()))
    parting = _decode_parting(reader)
    return index, FetchedPartition(
        error, high_watermark, last_stable, log_start, records, tuple(aborted), parting
    )


def _decode_parting(reader: Reader[memoryview]) -> Parting | None:
    parting = None
    for _ in range(reader.count(reader.varint())):
        tag, size = reader.varint(), reader.varint()
        field = reader.part(size)
        if tag == _PARTING_TAG:
            epoch, end, _ = _PARTING.unpack_from(field)
            parting = Parting(epoch, end) if end >= 0 else None
    return parting

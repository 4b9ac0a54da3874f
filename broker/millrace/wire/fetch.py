"""Fetch, laid out by hand: v4 to v11, requests as the broker reads them (and v11 as Millrace's own clients
send them), responses both ways.

Encoding leaves the records where they are: the answer is a list of parts, bytes and whatever stands for the
records (a slice of a file, on the server). Decoding hands out views of the received buffer. `wire.codec`
would copy the records in both directions.

    request   := replica_id int32, max_wait int32, min_bytes int32, max_bytes int32, isolation_level int8,
                 v7+: session int32, session_epoch int32, [topic string, [wanted]],
                 v7+: [forgotten topic string, [partition int32]], v11+: rack string
    wanted    := index int32, v9+: leader_epoch int32, offset int64, v5+: log_start_offset int64,
                 max_bytes int32
    response  := throttle_ms int32, v7+: error int16, session int32, [topic string, [partition]]
    partition := index int32, error int16, high_watermark int64, last_stable_offset int64,
                 v5+: log_start_offset int64, aborted [producer_id int64, first_offset int64],
                 v11+: preferred_read_replica int32, records bytes
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple, Protocol, TypeVar

from millrace.errors import ErrorCode, InvalidRequest
from millrace.records.compression import Buffer
from millrace.wire.primitives import INT16, INT32, INT64, Reader, reads, text

_REQUEST = struct.Struct(">iiiib")
_SESSION = struct.Struct(">ii")
_WANTED_4, _WANTED_5, _WANTED_9 = struct.Struct(">iqi"), struct.Struct(">iqqi"), struct.Struct(">iiqqi")
_PARTITION = struct.Struct(">ihqq")
_PARTITION_4, _PARTITION_5 = struct.Struct(">ihqqii"), struct.Struct(">ihqqqii")
_PARTITION_11 = struct.Struct(">ihqqqiii")
_HEAD_4, _HEAD_7 = bytes(4), bytes(10)
_ABORTED = struct.Struct(">qq")
MAX_FETCHED_PARTITIONS = 10_000
"""Most topics and partitions of one fetch: each takes a microsecond or two of the event loop."""


class Sized(Protocol):
    """Records on their way out: only their number of bytes matters here."""

    @property
    def length(self) -> int: ...


S = TypeVar("S", bound=Sized)


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """One partition of a fetch response, as a client sees it.

    `records` is a run of whole batches, perhaps followed by the beginning of another. `error` is the number
    on the wire. `aborted_transactions` holds (producer id, first offset) and is empty on a Millrace broker.
    """

    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: memoryview
    aborted_transactions: tuple[tuple[int, int], ...] = ()


class FetchRequest(NamedTuple):
    """Wait until `min_bytes` are there or `max_wait` ms have passed; answer with `max_bytes` at most.

    `topics` is [(topic, [(partition, offset, max_bytes)])]; what the rest of a request says has no effect.
    """

    max_wait: int
    min_bytes: int
    max_bytes: int
    topics: list[tuple[str, list[tuple[int, int, int]]]]


def encode_request(
    wanted: Sequence[tuple[str, int, int, int]], *, max_wait: int, max_bytes: int, min_bytes: int = 1
) -> bytes:
    """The body of a v11 request for committed records.

    `wanted` is [(topic, partition, offset, max_bytes)]; the broker fills its answer in this order.
    """
    by_topic = [(topic, list(partitions)) for topic, partitions in groupby(wanted, key=itemgetter(0))]
    parts = [_REQUEST.pack(-1, max_wait, min_bytes, max_bytes, 1), _SESSION.pack(0, -1)]
    parts.append(INT32.pack(len(by_topic)))
    for topic, partitions in by_topic:
        parts.append(text(topic) + INT32.pack(len(partitions)))
        parts += [_WANTED_9.pack(number, -1, offset, -1, most) for _, number, offset, most in partitions]
    parts.append(INT32.pack(0) + text(""))
    return b"".join(parts)


@reads("fetch request")
def decode_request(version: int, body: memoryview) -> FetchRequest:
    """The request in `body`; InvalidRequest when its lengths do not fit or it is for too many partitions."""
    reader, room = Reader(body), MAX_FETCHED_PARTITIONS
    layout = _WANTED_9 if version >= 9 else _WANTED_5 if version >= 5 else _WANTED_4
    offset_at = 2 if version >= 9 else 1
    _, max_wait, min_bytes, max_bytes, _ = reader.unpack(_REQUEST)
    if version >= 7:
        reader.unpack(_SESSION)
    topics = []
    for _ in range(reader.number(INT32)):
        topic, count = reader.text(), reader.number(INT32)
        room -= 1 + count
        if room < 0:
            raise InvalidRequest(f"a fetch request for over {MAX_FETCHED_PARTITIONS} partitions")
        wanted = layout.iter_unpack(reader.part(count * layout.size))
        topics.append((topic, [(fields[0], fields[offset_at], fields[-1]) for fields in wanted]))
    # Nobody reads what follows, but it must be there.
    if version >= 7:
        forgotten = reader.number(INT32)
        if forgotten > room:
            raise InvalidRequest(f"a fetch request for over {MAX_FETCHED_PARTITIONS} partitions")
        for _ in range(forgotten):
            reader.part(max(0, reader.number(INT16)))
            reader.part(4 * max(0, reader.number(INT32)))
    if version >= 11:
        reader.part(max(0, reader.number(INT16)))
    return FetchRequest(max_wait, min_bytes, max_bytes, topics)


def encode_response(
    version: int, topics: Sequence[tuple[str, Sequence[tuple[int, int, int, int, S | None]]]]
) -> list[bytes | S]:
    """The body of a fetch response as parts, the records between bytes.

    `topics` is [(topic, [(partition, error, high watermark, log start offset, records or None)])].
    """
    parts: list[bytes | S] = []
    pending = [(_HEAD_7 if version >= 7 else _HEAD_4) + INT32.pack(len(topics))]
    for name, partitions in topics:
        pending.append(text(name) + INT32.pack(len(partitions)))
        for index, code, end, start, records in partitions:
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


def encode_error(version: int, code: int) -> bytes | None:
    """The body of a response without topics; None before v7, which has no place for the error."""
    return bytes(4) + INT16.pack(code) + bytes(8) if version >= 7 else None


@reads("fetch response")
def decode_response(version: int, body: Buffer) -> dict[str, dict[int, FetchedPartition]]:
    """Topic -> partition -> what was fetched; the records are views of `body`.

    Raises InvalidRequest when the bytes do not fit, and for an error of the request as a whole.
    """
    reader = Reader(memoryview(body))
    reader.number(INT32)
    if version >= 7:
        error = reader.number(INT16)
        reader.number(INT32)
        if error:
            raise InvalidRequest(f"the whole fetch was refused with error {error} ({error_name(error)})")
    result: dict[str, dict[int, FetchedPartition]] = {}
    for _ in range(reader.number(INT32)):
        partitions = result.setdefault(reader.text(), {})
        for _ in range(reader.number(INT32)):
            index, fetched = _decode_partition(version, reader)
            partitions[index] = fetched
    return result


def error_name(code: int) -> str:
    """The protocol's name of an error code, or its number when Millrace has no name for it."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def _decode_partition(version: int, reader: Reader[memoryview]) -> tuple[int, FetchedPartition]:
    index, error, high_watermark, last_stable = reader.unpack(_PARTITION)
    log_start = reader.number(INT64) if version >= 5 else -1
    aborted = tuple([reader.unpack(_ABORTED) for _ in range(reader.number(INT32))])
    if version >= 11:
        reader.number(INT32)
    records = reader.part(max(0, reader.number(INT32)))
    return index, FetchedPartition(error, high_watermark, last_stable, log_start, records, aborted)

"""Fetch, laid out by hand: v4 to v11, requests as the broker reads them (and v11 as Millrace's own clients
ask), responses both ways.

Encoding leaves the records where they are: the answer is a list of parts, bytes and whatever stands for the
records (a slice of a file, on the server). Decoding hands out views of the received buffer. `wire.codec`
would copy the records in both directions.

    request   := replica_id int32, max_wait int32, min_bytes int32, max_bytes int32, isolation_level int8,
                 v7+: session int32, session_epoch int32, [topic string, [wanted]],
                 v7+: [forgotten topic ...], v11+: rack string
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
from millrace.wire.reader import INT16, INT32, INT64, Reader, encoded

_FIRST = struct.Struct(">ihqq")
_PAIR = struct.Struct(">qq")
_REQUEST = struct.Struct(">iiiib")
_WANTED_11 = struct.Struct(">iiqqi")
_NO_SESSION = struct.pack(">ii", 0, -1)
_PARTITION_4 = struct.Struct(">ihqqii")
_PARTITION_5 = struct.Struct(">ihqqqii")
_PARTITION_11 = struct.Struct(">ihqqqiii")
MAX_ASKED_PARTITIONS = 10_000
"""In one fetch: each takes a microsecond or two of the only thread."""


class Sized(Protocol):
    """Records on their way out: only their number of bytes matters here."""

    @property
    def length(self) -> int:
        """Bytes."""


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


class AskedFetch(NamedTuple):
    """Wait until `min_bytes` are there or `max_wait` ms have passed; answer with `max_bytes` at most.

    `topics` is [(topic, [(partition, offset, max_bytes)])]; what the rest of a request says has no effect.
    """

    max_wait: int
    min_bytes: int
    max_bytes: int
    topics: list[tuple[str, list[tuple[int, int, int]]]]


def encode_request(
    asked: Sequence[tuple[str, int, int, int]], *, max_wait: int, max_bytes: int, min_bytes: int = 1
) -> bytes:
    """The body of a v11 request for committed records.

    `asked` is [(topic, partition, offset, max_bytes)]; the broker fills its answer in this order.
    """
    parts = [_REQUEST.pack(-1, max_wait, min_bytes, max_bytes, 1), _NO_SESSION]
    runs = [(topic, list(wanted)) for topic, wanted in groupby(asked, key=itemgetter(0))]
    parts.append(INT32.pack(len(runs)))
    for topic, wanted in runs:
        parts.append(encoded(topic) + INT32.pack(len(wanted)))
        parts += [_WANTED_11.pack(number, -1, offset, -1, most) for _, number, offset, most in wanted]
    parts.append(INT32.pack(0) + INT16.pack(0))
    return b"".join(parts)


def decode_request(version: int, body: memoryview) -> AskedFetch:
    """The request in `body`; InvalidRequest when its lengths do not fit or it asks too much."""
    layout = struct.Struct(">iqi" if version < 5 else ">iqqi" if version < 9 else ">iiqqi")
    first = 1 if version < 9 else 2  # where the offset stands
    try:
        _, max_wait, min_bytes, max_bytes, _ = _REQUEST.unpack_from(body)
        position = _REQUEST.size + (8 if version >= 7 else 0)
        (topic_count,) = INT32.unpack_from(body, position)
        position += 4
        topics, room = [], MAX_ASKED_PARTITIONS
        for _ in range(topic_count):
            name_at = position + 2
            count_at = name_at + INT16.unpack_from(body, position)[0]
            (count,) = INT32.unpack_from(body, count_at)
            position = count_at + 4 + count * layout.size
            room -= 1 + count
            if not name_at <= count_at or count < 0 or room < 0 or position > len(body):
                raise InvalidRequest(
                    f"malformed fetch request, or one of over {MAX_ASKED_PARTITIONS} partitions"
                )
            wanted = layout.iter_unpack(body[count_at + 4 : position])
            topics.append(
                (str(body[name_at:count_at], "utf-8"), [(one[0], one[first], one[-1]) for one in wanted])
            )
        if _end(version, body, position) > len(body):
            raise InvalidRequest("a fetch request ends too early")
    except (struct.error, UnicodeDecodeError):
        raise InvalidRequest("malformed fetch request") from None
    return AskedFetch(max_wait, min_bytes, max_bytes, topics)


def _end(version: int, body: memoryview, position: int) -> int:
    """The position behind what follows the topics: nobody reads it, but it must be there."""
    if version >= 7:
        (forgotten,) = INT32.unpack_from(body, position)
        position += 4
        for _ in range(forgotten):
            position += 2 + max(0, INT16.unpack_from(body, position)[0])
            position += 4 + 4 * max(0, INT32.unpack_from(body, position)[0])
    if version >= 11:
        position += 2 + max(0, INT16.unpack_from(body, position)[0])
    return position


def encode_response(
    version: int, topics: Sequence[tuple[str, Sequence[tuple[int, int, int, int, S | None]]]]
) -> list[bytes | S]:
    """The body of a fetch response as parts, the records between bytes.

    `topics` is [(topic, [(partition, error, high watermark, log start offset, records or None)])].
    """
    parts: list[bytes | S] = []
    pending = [b"\0\0\0\0" + (b"\0\0\0\0\0\0" if version >= 7 else b"") + INT32.pack(len(topics))]
    for name, partitions in topics:
        pending.append(encoded(name) + INT32.pack(len(partitions)))
        for index, error, high_watermark, log_start, records in partitions:
            size = 0 if records is None else records.length
            # Nothing here is transactional, so the last stable offset is the high watermark.
            if version >= 11:
                head = _PARTITION_11.pack(
                    index, error, high_watermark, high_watermark, log_start, 0, -1, size
                )
            elif version >= 5:
                head = _PARTITION_5.pack(index, error, high_watermark, high_watermark, log_start, 0, size)
            else:
                head = _PARTITION_4.pack(index, error, high_watermark, high_watermark, 0, size)
            pending.append(head)
            if records is not None:
                parts += (b"".join(pending), records)
                pending = []
    if pending:
        parts.append(b"".join(pending))
    return parts


def decode_response(version: int, body: Buffer) -> dict[str, dict[int, FetchedPartition]]:
    """Topic -> partition -> what was fetched; the records are views of `body`.

    Raises InvalidRequest when the bytes do not fit, and for an error of the request as a whole.
    """
    reader = Reader("fetch response", body)
    reader.take(INT32)
    if version >= 7:
        error = reader.take(INT16)
        reader.take(INT32)
        if error:
            raise InvalidRequest(f"the whole fetch was refused with error {error} ({error_name(error)})")
    result: dict[str, dict[int, FetchedPartition]] = {}
    for _ in range(reader.take(INT32)):
        name = reader.string()
        partitions = result.setdefault(name, {})
        for _ in range(reader.take(INT32)):
            index, fetched = _decode_partition(version, reader)
            partitions[index] = fetched
    return result


def error_name(code: int) -> str:
    """The protocol's name of an error code, or its number when Millrace has no name for it."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def _decode_partition(version: int, reader: Reader) -> tuple[int, FetchedPartition]:
    index, error, high_watermark, last_stable = reader.take_all(_FIRST)
    log_start = reader.take(INT64) if version >= 5 else -1
    aborted = [(pair[0], pair[1]) for _ in range(reader.take(INT32)) if (pair := reader.take_all(_PAIR))]
    if version >= 11:
        reader.take(INT32)
    records = reader.slice(max(0, reader.take(INT32)))
    return index, FetchedPartition(error, high_watermark, last_stable, log_start, records, tuple(aborted))

"""Fetch responses, laid out by hand: v4 to v11, both directions.

Encoding leaves the records where they are: the answer is a list of parts, bytes and whatever stands for the
records (a slice of a file, on the server). Decoding hands out views of the received buffer. kio would copy
the records in both directions.

    throttle_ms int32 | v7+: error int16, session int32 | [topic string, [partition]]
    partition := index int32, error int16, high_watermark int64, last_stable_offset int64,
                 v5+: log_start_offset int64, aborted [producer_id int64, first_offset int64],
                 v11+: preferred_read_replica int32, records bytes
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from millrace.compression import Buffer
from millrace.errors import ErrorCode, InvalidRequest

_FIRST = struct.Struct(">ihqq")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_INT16 = struct.Struct(">h")
_PAIR = struct.Struct(">qq")
_NO_ABORTED = b"\0\0\0\0"
_NO_REPLICA = b"\xff\xff\xff\xff"


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


def encode_partition(
    version: int, index: int, error: int, high_watermark: int, log_start_offset: int, size: int
) -> bytes:
    """Everything of one partition before its `size` bytes of records."""
    # Nothing here is transactional, so the last stable offset is the high watermark.
    head = _FIRST.pack(index, error, high_watermark, high_watermark)
    if version >= 5:
        head += _INT64.pack(log_start_offset)
    head += _NO_ABORTED
    if version >= 11:
        head += _NO_REPLICA
    return head + _INT32.pack(size)


def encode_response(
    version: int, topics: Iterable[tuple[str, Sequence[tuple[bytes, S | None]]]]
) -> list[bytes | S]:
    """The body of a fetch response as parts: [(topic, [(encode_partition(...), records or None)])]."""
    parts: list[bytes | S] = []
    topics = list(topics)
    pending = b"\0\0\0\0" + (b"\0\0\0\0\0\0" if version >= 7 else b"") + _INT32.pack(len(topics))
    for name, partitions in topics:
        encoded = name.encode()
        pending += _INT16.pack(len(encoded)) + encoded + _INT32.pack(len(partitions))
        for head, records in partitions:
            pending += head
            if records is not None:
                parts += (pending, records)
                pending = b""
    if pending:
        parts.append(pending)
    return parts


def decode_response(version: int, body: Buffer) -> dict[str, dict[int, FetchedPartition]]:
    """Topic -> partition -> what was fetched; the records are views of `body`.

    Raises InvalidRequest when the bytes do not fit, and for an error of the request as a whole.
    """
    reader = _Reader(memoryview(body))
    reader.take(_INT32)
    if version >= 7:
        error = reader.take(_INT16)
        reader.take(_INT32)
        if error:
            raise InvalidRequest(f"the whole fetch was refused with error {error} ({error_name(error)})")
    result: dict[str, dict[int, FetchedPartition]] = {}
    for _ in range(reader.take(_INT32)):
        name = bytes(reader.slice(reader.take(_INT16))).decode()
        partitions = result.setdefault(name, {})
        for _ in range(reader.take(_INT32)):
            index, fetched = _decode_partition(version, reader)
            partitions[index] = fetched
    return result


def error_name(code: int) -> str:
    """The protocol's name of an error code, or its number when Millrace has no name for it."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def _decode_partition(version: int, reader: _Reader) -> tuple[int, FetchedPartition]:
    index, error, high_watermark, last_stable = reader.take_all(_FIRST)
    log_start = reader.take(_INT64) if version >= 5 else -1
    aborted = [(pair[0], pair[1]) for _ in range(reader.take(_INT32)) if (pair := reader.take_all(_PAIR))]
    if version >= 11:
        reader.take(_INT32)
    records = reader.slice(max(0, reader.take(_INT32)))
    return index, FetchedPartition(error, high_watermark, last_stable, log_start, records, tuple(aborted))


class _Reader:
    """A position in a buffer; every step checks that the bytes are there."""

    __slots__ = ("_position", "_view")

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._position = 0

    def take_all(self, layout: struct.Struct) -> tuple[int, ...]:
        try:
            values = layout.unpack_from(self._view, self._position)
        except struct.error:
            raise InvalidRequest("a fetch response ends too early") from None
        self._position += layout.size
        return values

    def take(self, layout: struct.Struct) -> int:
        return self.take_all(layout)[0]

    def slice(self, size: int) -> memoryview:
        end = self._position + size
        if size < 0 or end > len(self._view):
            raise InvalidRequest("a fetch response ends too early")
        part = self._view[self._position : end]
        self._position = end
        return part

"""Counts the audited messages of record batches: walks the framing and reads nothing but the header.

Written for speed at the price of some repetition: records of one producer follow one another, so a message
whose server, service and instance are, byte for byte, those of the message before it needs two numbers read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from millrace.errors import CorruptMessage
from millrace.records import HEADER_BYTES, BatchHeader, read_varint
from millrace.records.compression import Buffer, decompress
from millrace_audit.reports.counts import WINDOW_MS, SequenceCounts, window_start
from millrace_audit.reports.event import PREFIX_BYTES, NotAudited, instance_bytes, read_header

# A count holds numbers of 64 bits, windows among them. What anybody may send beyond is no header: a reader
# that choked on it would choke on it again after every restart.
_BOUND = 1 << 63
_EARLIEST = WINDOW_MS - _BOUND


class BatchCounter:
    """Counts batches; `is_audited(schema_id)` says whether messages of that schema begin with a header."""

    def __init__(self, is_audited: Callable[[int], bool]) -> None:
        # Messages that are not ours may begin with anything: not all of it is remembered.
        @lru_cache(10_000)
        def audited(prefix: bytes) -> bool:
            return prefix[0] == 0 and is_audited(int.from_bytes(prefix[1:], "big"))

        self._audited = audited

    def count(self, header: BatchHeader, batch: Buffer, counts: SequenceCounts) -> int:
        """Add a whole data batch to `counts`; the number of its messages that carry no audit header.

        Raises CorruptMessage when the framing is broken; `counts` may then hold a part of the batch.
        """
        data = bytes(decompress(header.codec, memoryview(batch)[HEADER_BYTES:]))
        run = _Run(counts)
        foreign = position = 0
        try:
            for _ in range(header.records_count):
                start, end, position = _value_of(data, position)
                audited = end - start > PREFIX_BYTES and self._audited(data[start : start + PREFIX_BYTES])
                if not (audited and run.take(data, start, end)):
                    foreign += 1
        except IndexError as error:
            raise CorruptMessage(f"the batch at offset {header.base_offset} ends inside a record") from error
        run.end()
        return foreign


class _Run:
    """Consecutive sequences of one producer in one window, put into the counts when they end."""

    __slots__ = ("_counts", "_first", "_key", "_last", "_who", "_window")

    def __init__(self, counts: SequenceCounts) -> None:
        self._counts = counts
        self._who = b""  # the same as it stands in a message
        self._key = ("", "", 0)
        self._window = self._first = 0
        self._last = -1

    def take(self, data: bytes, start: int, end: int) -> bool:
        """Count the message data[start:end]; False when it has no header after all."""
        try:
            time, after_time = read_varint(data, start + PREFIX_BYTES)
            if self._who and data.startswith(self._who, after_time):
                sequence, after = read_varint(data, after_time + len(self._who))
                if after > end:
                    return False
            else:
                header = read_header(data[start:end])
                self.end()
                sequence = header.sequence
                self._key = (header.server, header.service, header.instance)
                self._who = instance_bytes(*self._key)
        except (IndexError, CorruptMessage, NotAudited):
            return False
        if not (0 <= sequence < _BOUND and _EARLIEST <= time < _BOUND):
            return False
        window = window_start(time)
        if sequence == self._last + 1 and window == self._window and self._first <= self._last:
            self._last = sequence
            return True
        self.end()
        self._window, self._first, self._last = window, sequence, sequence
        return True

    def end(self) -> None:
        if self._first <= self._last:
            self._counts.add(*self._key, self._window, self._first, self._last)
        self._first, self._last = 0, -1


def _value_of(data: bytes, position: int) -> tuple[int, int, int]:
    """Where the record at `position` has its value (start, end), and where the next record begins."""
    size, start = read_varint(data, position)
    end = start + size
    position = start + 1  # the unused record attributes
    while data[position] >= 0x80:  # timestamp delta
        position += 1
    position += 1
    while data[position] >= 0x80:  # offset delta
        position += 1
    key_size, position = read_varint(data, position + 1)
    value_size, position = read_varint(data, position + (key_size if key_size > 0 else 0))
    value_end = position + (value_size if value_size > 0 else 0)
    if size <= 0 or value_end > end or end > len(data):
        raise IndexError
    return position, value_end, end

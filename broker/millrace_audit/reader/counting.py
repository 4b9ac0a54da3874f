"""Counting the messages of record batches, many at once: their producers, sequences and fingerprints.

Only a message's header is read, or the record's time if the message has no header. The counts depend on the
bytes and the topic's name alone, so every tier that holds the same batches counts the same:

- A message has a header when its record has an audit header for this topic. Such a message is counted without
  the names of server and service, which are not in its bytes.
- Any other message has a header when its schema begins with a header, its names have at most 255 bytes and
  its numbers 64 bits.
- A batch with unreadable records (its CRC is right, so it was sent like that) counts as the number of foreign
  messages that it states, at its largest timestamp, with the fingerprint of its bytes after the 61-byte
  header.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.errors import CorruptMessage
from millrace.records import HEADER_BYTES, read_varint
from millrace.records.framing import Batch, BrokenBatch, Frames, frame_batches
from millrace.records.row_cursor import Faults, Longs, Mask, PaddedBuffer, RowCursor
from millrace_audit.reports.counts import EARLIEST_MS, WINDOW_MS, SequenceCounts, window_start
from millrace_audit.reports.event import MAX_NAME_BYTES, PREFIX_BYTES
from millrace_audit.reports.fingerprints import STRONG_BYTES, Fingerprint, fingerprint, is_strong, wrapped
from millrace_audit.reports.header_columns import HeaderColumns, HeaderReader
from millrace_audit.reports.messages import ForeignCount

ROWS = 10_000
"""Messages counted at a time; a count may end after each such part. With the longest names, a count of this
many messages has less than 6 MB, which an audit topic takes."""
STRONG_ROWS = ROWS // 2
"""Messages counted at a time with strong fingerprints, which nearly double the size of a count."""
_BOUND = 1 << 63
_MOST_BYTES = 2 * (MAX_NAME_BYTES + 2) + 10
"""Largest size of names and instance in a header."""
_RANGE_BYTES, _ENTRY_BYTES = 20, 40
Hashes = npt.NDArray[Any]
"""Fingerprints: fast ones as numbers of 64 bits, whose sums wrap, strong ones as Python's numbers."""
_Names = tuple[str, str, int]
"""Server, service, instance."""


class _Found(NamedTuple):
    names: _Names
    size: int
    """Bytes that the names and the instance take in a header."""


@dataclass(slots=True)
class Tally:
    """Counts of a partition since the last published count."""

    counts: SequenceCounts = field(default_factory=SequenceCounts)
    foreign: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Window -> messages without a header, and the sum of their fingerprints."""

    def clear(self) -> None:
        self.counts, self.foreign = SequenceCounts(), {}

    def add_foreign(self, window: int, messages: int, fingerprints: int) -> None:
        before = self.foreign.get(window, (0, 0))
        self.foreign[window] = (before[0] + messages, before[1] + fingerprints)

    def foreign_counts(self) -> list[ForeignCount]:
        return [ForeignCount(w, n, wrapped(total)) for w, (n, total) in sorted(self.foreign.items())]

    @property
    def bytes(self) -> int:
        """Estimated size in a message, rather too large than too small."""
        tallies = self.counts.tallies
        names = sum(len(key.server) + len(key.service) for key in tallies)
        entries = len(tallies) + len(self.foreign)
        strong = sum(is_strong(tally.fingerprint) for tally in tallies.values())
        strong += sum(is_strong(total) for _, total in self.foreign.values())
        entry_bytes = entries * _ENTRY_BYTES + strong * STRONG_BYTES
        return self.counts.range_count * _RANGE_BYTES + entry_bytes + 4 * names


class Part(NamedTuple):
    """Messages that were counted in one step."""

    end: int
    """Offset after all the messages."""
    messages: int
    times: Longs
    """Event times of the messages with a header."""


class BatchCounter:
    """A counter of batches. `is_audited(schema_id)` is True if messages of that schema begin
    with a header; `digest` computes the fingerprint of a message.
    """

    def __init__(self, is_audited: Callable[[int], bool], digest: Fingerprint = fingerprint) -> None:
        self._is_audited, self._digest = is_audited, digest
        self._rows = ROWS if digest is fingerprint else STRONG_ROWS

    def count(
        self, topic: str, batches: Iterable[Batch], start: int, tally: Tally, end: int | None = None
    ) -> Iterator[Part]:
        """Count the messages of data batches from offset `start` on, before `end` if given, part by part.

        `topic` is the name of the topic to which producers sent the messages. Errors of `is_audited` are
        passed on, and nothing of that part is counted.
        """
        reader = HeaderReader(topic)
        for frames, broken in frame_batches(batches):
            if len(frames) and frames.offset[0] < start:
                frames = frames.select(np.flatnonzero(frames.offset >= start))
            if end is not None and len(frames) and frames.offset[-1] >= end:
                frames = frames.select(np.flatnonzero(frames.offset < end))
            for some in sorted(broken, key=lambda some: some.batch[0].base_offset):
                header = some.batch[0]
                before = int(np.searchsorted(frames.offset, header.base_offset))
                yield from self._parts(reader, frames.select(slice(before)), tally)
                frames = frames.select(slice(before, None))
                if header.base_offset >= start:
                    self._count_broken(some, tally)
                    yield Part(header.next_offset, max(header.records_count, 1), np.zeros(0, np.int64))
            yield from self._parts(reader, frames, tally)

    def _parts(self, reader: HeaderReader, frames: Frames, tally: Tally) -> Iterator[Part]:
        for part in frames.slices(self._rows):
            yield Part(int(part.offset[-1]) + 1, len(part), self._count_frames(reader, part, tally))

    def _count_frames(self, reader: HeaderReader, frames: Frames, tally: Tally) -> Longs:
        """Count all these messages; return the times of the messages with a header."""
        columns = reader.read(frames)
        is_left = np.ones(len(frames), np.bool_)
        is_left[columns.rows] = False
        audited = self._audited(frames, is_left)
        hashes = self._hashes(frames, columns)
        found: list[_Headers] = []
        if len(columns.rows):
            found.append(_Headers.of_columns(columns, hashes))
        if audited.any():
            headers = _Headers.read(frames, hashes, np.flatnonzero(audited))
            audited[headers.without] = False
            found.append(headers)
        for headers in found:
            headers.count(tally)
        foreign = np.flatnonzero(is_left & ~audited)
        if len(foreign):
            _count_foreign(frames.timestamp[foreign], hashes[foreign], tally)
        return np.concatenate([np.zeros(0, np.int64), *(headers.time for headers in found)])

    def _audited(self, frames: Frames, is_left: Mask) -> Mask:
        """Return a mask of those messages of `is_left` whose schema begins with a header."""
        if not is_left.any():
            return is_left
        tagged: Mask = is_left & (frames.value_size > PREFIX_BYTES) & (frames.buffer.bytes[frames.value] == 0)
        ids = frames.buffer.numbers(frames.value + 1, np.uint32).byteswap()
        if tagged.all() and (ids == ids[0]).all():  # the usual case
            return tagged if self._is_audited(int(ids[0])) else ~tagged
        known = [schema_id for schema_id in np.unique(ids[tagged]).tolist() if self._is_audited(schema_id)]
        tagged &= np.isin(ids, np.array(known, np.uint32))
        return tagged

    def _hashes(self, frames: Frames, columns: HeaderColumns) -> Hashes:
        """Return the fingerprint of each message; a null value counts as no bytes."""
        first, last = int(frames.value[0]), int(frames.end[-1])
        data, digest = bytes(frames.buffer.data[first:last]), self._digest  # slicing bytes is faster
        start = frames.value - first
        end = start + np.maximum(frames.value_size, 0)
        sequences = columns.of_all(len(frames))
        places = zip(start.tolist(), end.tolist(), sequences, strict=True)
        values = (digest(data[one:other], sequence) for one, other, sequence in places)
        return np.fromiter(values, np.uint64 if digest is fingerprint else np.object_, len(frames))

    def _count_broken(self, broken: BrokenBatch, tally: Tally) -> None:
        header, batch = broken.batch
        at = window_start(max(header.max_timestamp, EARLIEST_MS))
        tally.add_foreign(at, max(header.records_count, 1), self._digest(batch[HEADER_BYTES:]))


@dataclass(slots=True)
class _Headers:
    """The headers of some messages, by columns; `group` is the index of the producer's names."""

    names: list[_Names]
    group: Longs
    time: Longs
    sequence: Longs
    hashes: Hashes
    without: Longs
    """Rows that turned out to have no header."""

    @classmethod
    def read(cls, frames: Frames, hashes: Hashes, at: Longs) -> _Headers:
        faults = Faults(len(at))
        value, size = frames.value[at], frames.value_size[at]
        rows = RowCursor(frames.buffer, value + PREFIX_BYTES, value + size, faults)
        time = rows.varint("time")
        names, group = _read_names(rows)
        sequence = rows.varint("sequence")
        good = ~faults.bad & (group >= 0) & (sequence >= 0) & (time >= EARLIEST_MS)
        if good.all():
            return cls(names, group, time, sequence, hashes[at], at[:0])
        return cls(names, group[good], time[good], sequence[good], hashes[at[good]], at[~good])

    @classmethod
    def of_columns(cls, columns: HeaderColumns, hashes: Hashes) -> _Headers:
        instance, is_all = columns.instance, len(columns.rows) == len(hashes)
        if (instance == instance[0]).all():  # the usual case
            numbers, group = instance[:1], np.zeros(len(instance), np.int64)
        else:
            numbers, group = np.unique(instance, return_inverse=True)
        names = [("", "", number) for number in numbers.tolist()]
        own = hashes if is_all else hashes[columns.rows]
        return cls(names, group, columns.time, columns.sequence, own, columns.rows[:0])

    def count(self, tally: Tally) -> None:
        """Add consecutive sequences of one instance and window to the counts, a range at a time."""
        if not len(self.time):
            return
        window = self.time - self.time % WINDOW_MS
        group, sequence, hashes = self.group, self.sequence, self.hashes
        starts = _run_starts(group, window, sequence)
        if len(starts) > len(group) // 8:  # many producers' messages lie mixed
            order = np.lexsort((sequence, window, group))
            group, window, sequence, hashes = group[order], window[order], sequence[order], hashes[order]
            starts = _run_starts(group, window, sequence)
        totals = np.add.reduceat(hashes, starts).tolist()
        firsts, lasts = sequence[starts].tolist(), sequence[[*(starts[1:] - 1), -1]].tolist()
        groups, windows = group[starts].tolist(), window[starts].tolist()
        for index, total in enumerate(totals):
            server, service, instance = self.names[groups[index]]
            tally.counts.add(server, service, instance, windows[index], firsts[index], lasts[index], total)


def _run_starts(group: Longs, window: Longs, sequence: Longs) -> Longs:
    starts = np.ones(len(group), np.bool_)
    starts[1:] = group[1:] != group[:-1]
    starts[1:] |= window[1:] != window[:-1]
    starts[1:] |= sequence[1:] != sequence[:-1] + 1
    return np.flatnonzero(starts)


def _read_names(rows: RowCursor) -> tuple[list[_Names], Longs]:
    """Step over server, service and instance in every row.

    Return the names that occur, and for each row the index of its names; -1 for rows without names.
    """
    names: list[_Names] = []
    group = np.full(len(rows), -1, np.int64)
    left = np.arange(len(rows))
    # Messages of one producer follow one another: usually a few comparisons of all the bytes are enough.
    while len(left) and (found := _names_at(rows.buffer, int(rows.pos[left[0]]), int(rows.end[left[0]]))):
        pos = rows.pos[left]
        same = _same_bytes(rows.buffer, pos, rows.end[left] - pos, found.size, pos[0])
        count = np.count_nonzero(same)
        if 8 * count < len(left):
            break
        mine = left if count == len(left) else left[same]
        names.append(found.names)
        group[mine] = len(names) - 1
        rows.pos[mine] += found.size
        left = left[:0] if count == len(left) else left[~same]
    if len(left):
        part = rows.subset(left)
        group[left] = _read_each_name(part, names)
        rows.rejoin(left, part)
    return names, group


def _read_each_name(rows: RowCursor, names: list[_Names]) -> Longs:
    """Do the same as `_read_names`, field by field; append the names found to `names`."""
    start, end = rows.pos.copy(), rows.end
    for name in ("server", "service"):
        rows.skip(rows.varint(name), name)
    instance = rows.varint("instance")
    size = rows.pos - start
    group = np.full(len(rows), -1, np.int64)

    def number(row: int) -> int:
        found = _names_at(rows.buffer, int(start[row]), int(end[row]))
        names.extend([found.names] if found else [])
        return len(names) - 1 if found else -1

    left = np.flatnonzero((rows.pos < end) & (size <= _MOST_BYTES))
    if len(left):
        _, first, code = np.unique(instance[left], return_index=True, return_inverse=True)
        leaders = left[first]
        numbers = np.array([number(row) for row in leaders.tolist()], np.int64)
        same = _same_bytes(rows.buffer, start[left], size[left], size[leaders][code], start[leaders][code])
        same &= size[left] == size[leaders][code]
        group[left[same]] = numbers[code[same]]
        left = left[~same]
    # A row with the same instance and other names belongs to another producer. These rows go one by one
    # through a dictionary: one instance under many names must not cost a comparison of each pair.
    seen: dict[bytes, int] = {}
    for row in left.tolist():
        head = bytes(rows.buffer.data[start[row] : start[row] + size[row]])
        if head not in seen:
            seen[head] = number(row)
        group[row] = seen[head]
    return group


def _names_at(buffer: PaddedBuffer, position: int, end: int) -> _Found | None:
    """Return the names and instance at the position; None when there are none, or a name is too long."""
    data, texts = bytes(buffer.data[position : min(end, position + _MOST_BYTES)]), []
    at = 0
    try:
        for _ in range(2):
            size, at = read_varint(data, at)
            texts.append(data[at : at + size].decode())
            at += size
            if not 0 <= size <= MAX_NAME_BYTES:
                return None
        instance, at = read_varint(data, at)
    except (IndexError, UnicodeDecodeError, CorruptMessage):
        return None
    return _Found((*texts, instance), at) if -_BOUND <= instance < _BOUND else None  # type: ignore[arg-type]


def _same_bytes(
    buffer: PaddedBuffer, start: Longs, room: Longs, size: int | Longs, model: np.int64 | Longs
) -> Mask:
    """Return a mask of the rows that have room for `size` bytes and whose next `size` bytes equal those at
    `model`.
    """
    same: Mask = room >= size
    last = len(buffer.words8) - 1
    for offset in range(0, int(np.max(size)), 8):
        differ = (
            buffer.words8[np.minimum(start + offset, last)] ^ buffer.words8[np.minimum(model + offset, last)]
        )
        bits = 8 * np.minimum(np.maximum(size - offset, 0), 8)
        if np.min(bits) < 64:  # of the last word only the bytes that belong to it
            differ = np.where(bits == 0, np.uint64(0), differ << (np.uint64(64) - bits.astype(np.uint64)))
        same &= differ == 0
    return same


def _count_foreign(timestamp: Longs, hashes: Hashes, tally: Tally) -> None:
    timestamp = np.maximum(timestamp, EARLIEST_MS)
    window = timestamp - timestamp % WINDOW_MS
    order = np.argsort(window, kind="stable")
    windows, first, messages = np.unique(window[order], return_index=True, return_counts=True)
    totals = np.add.reduceat(hashes[order], first)
    for at, count, total in zip(windows.tolist(), messages.tolist(), totals.tolist(), strict=True):
        tally.add_foreign(at, count, total)

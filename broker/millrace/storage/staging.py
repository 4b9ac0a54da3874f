"""The batches of one append on their way into one segment: placed, stamped, and then written together.

Knows what follows what in the log. Does not write: the partition log does, with one system call, and makes
the outcome count only when every byte is in the file.
"""

from __future__ import annotations

from millrace.errors import BrokerError, InvalidRecord
from millrace.records import LENGTH_OVERHEAD, BatchHeader, control_batch, filler_after, filler_size
from millrace.records.compression import Buffer
from millrace.records.header import STAGED, STAMP
from millrace.records.mirror_position import MirrorPosition
from millrace.storage.landmarks import LEAST_BATCH_BYTES, SPAN_BYTES
from millrace.storage.producer_state import ProducerStates, Staged
from millrace.storage.segment import Segment
from millrace.storage.state import LogState

MAX_FILLER_BYTES = 1 << 20
"""The most that a compressed batch may add to the log beyond its own bytes: nobody counts its records before
it is written, so a request that states too many costs no more disk and no more of the loop's time."""
NO_LEADER_EPOCH = -1
"""Stamped over whatever a producer sent: an epoch would make clients ask for its end offset."""


class Staging:
    """Places batches behind `state`, as many as fit; gives back the state behind them."""

    __slots__ = (
        "_any_size", "_data_end", "_high_watermark", "_known_producers", "_landmark_room", "_landmarks",
        "_max_timestamp", "_messages", "_messages_before", "_mirror", "_next_offset", "_room", "_segment",
        "buffers", "end", "producers", "size",
    )  # fmt: skip

    def __init__(
        self, state: LogState, producers: ProducerStates, segment: Segment, *, segment_bytes: int
    ) -> None:
        """The batches go to the end of `segment`, which takes `segment_bytes`, or one batch of any size."""
        self.buffers: list[Buffer] = []
        self.size = 0
        self.end = state.end
        """Log position behind everything placed so far."""
        self.producers: Staged = {}
        self._known_producers = producers
        self._segment = segment
        self._room = segment_bytes - segment.size
        self._any_size = segment.size == 0
        self._mirror = state.mirror
        self._high_watermark = state.high_watermark
        self._data_end = state.data_end
        self._messages = self._messages_before = state.messages
        self._max_timestamp = segment.facts.max_timestamp
        self._landmarks: list[int] = []
        self._landmark_room = 0 if segment.landmarks is None else segment.landmarks.room
        self._next_offset = None if segment.landmarks is None else segment.landmarks.next_offset

    def add(self, batch: Buffer) -> int | BrokerError | None:
        """Place a produced batch and return its base offset, or why it is not placed; None: no room for it.

        A retry is answered with the first attempt's offset and not placed again.
        """
        length, last_offset_delta, max_timestamp, producer_id, count = STAGED.unpack_from(batch)
        if producer_id < 0 and last_offset_delta < length and self._has_room(length + LENGTH_OVERHEAD):
            return self._place(batch, length, last_offset_delta, max_timestamp, count)
        header, sent = BatchHeader.of(batch), None
        try:
            if producer_id >= 0:
                sent = self._known_producers.find_duplicate(header, self.producers)
                if sent is not None:
                    return sent.base_offset
            if not self._has_room(size_in_log(header)):
                return None
        except BrokerError as error:
            return error
        base = self._place(batch, length, last_offset_delta, max_timestamp, count)
        if producer_id >= 0:
            self._known_producers.stage(header, base, self._data_end, self.producers)
        return base

    def _has_room(self, size: int) -> bool:
        return self.size + size <= self._room or (self.size == 0 and self._any_size)

    def place(self, batch: Buffer) -> None:
        """Place a batch that nobody produced here, whatever room there is."""
        length, last_offset_delta, max_timestamp, _, count = STAGED.unpack_from(batch)
        self._place(batch, length, last_offset_delta, max_timestamp, count)

    def _place(
        self, batch: Buffer, length: int, last_offset_delta: int, max_timestamp: int, records_count: int
    ) -> int:
        """Stamp a batch with its position, its base offset from now on, and put it behind the others."""
        base = self.end
        try:
            STAMP.pack_into(batch, 0, base, length, NO_LEADER_EPOCH)
        except (TypeError, BufferError):  # read-only
            batch = bytearray(batch)
            STAMP.pack_into(batch, 0, base, length, NO_LEADER_EPOCH)
        self.buffers.append(batch)
        unit = length + LENGTH_OVERHEAD
        self._data_end = base + unit
        self._high_watermark = base + last_offset_delta + 1
        self._messages += records_count
        if last_offset_delta >= unit:
            filler = filler_after(BatchHeader.of(batch), timestamp=max_timestamp)
            assert filler is not None
            self.buffers.append(filler)
            unit += len(filler)
        self._grow(unit, self._high_watermark)
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
        return base

    def _grow(self, unit: int, next_offset: int) -> None:
        """Step over a batch with its filler, as `Landmarks.note` does."""
        counted = unit if unit > LEAST_BATCH_BYTES else LEAST_BATCH_BYTES
        if counted > self._landmark_room:
            known = self.end if self._next_offset is None else self._next_offset
            self._landmarks += (self.end, self._max_timestamp, known)
            self._landmark_room = SPAN_BYTES
        self._landmark_room -= counted
        self._next_offset = next_offset
        self.size += unit
        self.end += unit

    def place_position(self, position: MirrorPosition, timestamp: int) -> None:
        """Put a position batch behind the others."""
        value = position.encode(self._high_watermark)
        batch = control_batch(self.end, value, timestamp=timestamp)
        self.buffers.append(batch)
        self._mirror = position
        self._grow(len(batch), self.end + 1)

    def written(self) -> LogState:
        """Note in the segment what was written to it; the log's state behind that."""
        facts, landmarks = self._segment.facts, self._segment.landmarks
        if self._messages > self._messages_before:
            facts.max_timestamp = self._max_timestamp
            facts.next_offset = self._high_watermark
        if landmarks is not None:
            landmarks.values.extend(self._landmarks)
            landmarks.room, landmarks.next_offset = self._landmark_room, self._next_offset
        return LogState(self.end, self._high_watermark, self._data_end, self._messages, self._mirror)


def size_in_log(header: BatchHeader) -> int:
    """Bytes a batch takes with its filler; InvalidRecord when it states more offsets than can be meant."""
    size = header.batch_length + LENGTH_OVERHEAD
    if header.last_offset_delta < size:
        return size
    filler = filler_size(header)
    if filler > MAX_FILLER_BYTES:
        raise InvalidRecord(f"a batch of {size} bytes states {header.last_offset_delta + 1} offsets")
    return size + filler


def position_size(position: MirrorPosition, end: int) -> int:
    """The most bytes of a position batch in a log that reaches to `end`, or a little further."""
    return len(control_batch(0, position.encode(10 * end), timestamp=0))

"""The batches of one append on their way into one segment: placed, stamped, and then written together.

Knows what follows what in the log. Does not write: the partition log does, with one system call, and makes
the outcome count only when every byte is in the file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from millrace.compression import Buffer
from millrace.errors import BrokerError, InvalidRecord
from millrace.records import LENGTH_OVERHEAD, BatchHeader, control_batch, filler_after, filler_size
from millrace.storage.position import MirrorPosition
from millrace.storage.producer_state import ProducerStates, Staged
from millrace.storage.segment import SegmentFacts
from millrace.storage.state import LogState

_STAMP = struct.Struct(">qii")
NO_LEADER_EPOCH = -1
"""Stamped over whatever a producer sent: an epoch would make clients ask for its end offset."""


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch is in the log; an acks=all answer waits until the log is visible up to `end`."""

    base_offset: int
    duplicate: bool
    """True when this was a retry: nothing was written, `base_offset` is the first attempt's."""
    end: int


class Staging:
    """Places batches behind `state`, as many as fit; gives back the state behind them."""

    def __init__(
        self, state: LogState, producers: ProducerStates, *, room: int, any_size: bool, max_filler_bytes: int
    ) -> None:
        """`room` bytes are left in the segment; with `any_size` the first batch fits however large it is."""
        self.buffers: list[Buffer] = []
        self.size = 0
        self.end = state.end
        """Log position behind everything placed so far."""
        self.producers: Staged = {}
        self._known_producers = producers
        self._room = room
        self._any_size = any_size
        self._max_filler_bytes = max_filler_bytes
        self._mirror = state.mirror
        self._high_watermark = state.high_watermark
        self._data_end = state.data_end
        self._messages = state.messages
        self._max_timestamp = -1
        self._largest_unit = 0
        self._holds_data = False

    def add(self, batch: Buffer, header: BatchHeader) -> Appended | BrokerError | None:
        """Place a produced batch, or say why it is not; None when the segment has no room for it.

        What is not placed: a retry, a batch out of its producer's order, one that states absurd counts.
        """
        try:
            idempotent = header.producer_id >= 0
            if idempotent:
                sent = self._known_producers.find_duplicate(header, self.producers)
                if sent is not None:
                    return Appended(sent.base_offset, True, sent.end)
            size = size_in_log(header, self._max_filler_bytes)
            if self.size + size > self._room and (self.size > 0 or not self._any_size):
                return None
        except BrokerError as error:
            return error
        base = self.end
        self.place(batch, header)
        if idempotent:
            self._known_producers.stage(header, base, self._data_end, self.producers)
        return Appended(base, False, self._data_end)

    def place(self, batch: Buffer, header: BatchHeader) -> None:
        """Stamp a batch with its position and put it, with the filler it needs, behind the others."""
        base = self.end
        try:
            _STAMP.pack_into(batch, 0, base, header.batch_length, NO_LEADER_EPOCH)
        except (TypeError, BufferError):  # read-only
            batch = bytearray(batch)
            _STAMP.pack_into(batch, 0, base, header.batch_length, NO_LEADER_EPOCH)
        unit = header.batch_length + LENGTH_OVERHEAD
        self.buffers.append(batch)
        self._data_end = base + unit
        self._high_watermark = base + header.last_offset_delta + 1
        self._messages += header.records_count
        self._holds_data = True
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp = header.max_timestamp
        if self._high_watermark > self._data_end:
            filler = filler_after(replace(header, base_offset=base), timestamp=header.max_timestamp)
            assert filler is not None
            self.buffers.append(filler)
            unit += len(filler)
        self._grow(unit)

    def _grow(self, unit: int) -> None:
        self.size += unit
        self.end += unit
        if unit > self._largest_unit:
            self._largest_unit = unit

    def place_position(self, position: MirrorPosition, timestamp: int) -> None:
        """Put a position batch behind the others."""
        batch = control_batch(self.end, position.encode(), timestamp=timestamp)
        self.buffers.append(batch)
        self._mirror = position
        self._grow(len(batch))

    def state(self) -> LogState:
        """The log's state once everything placed is written."""
        return LogState(self.end, self._high_watermark, self._data_end, self._messages, self._mirror)

    def note_facts(self, facts: SegmentFacts) -> None:
        """Add what was placed to the facts of the segment it was written to."""
        facts.largest_unit = max(facts.largest_unit, self._largest_unit)
        if self._holds_data:
            facts.max_timestamp = max(facts.max_timestamp, self._max_timestamp)
            facts.next_offset = self._high_watermark


def size_in_log(header: BatchHeader, max_filler_bytes: int) -> int:
    """Bytes a batch takes with its filler; InvalidRecord when it states more offsets than can be meant."""
    size = header.batch_length + LENGTH_OVERHEAD
    if header.last_offset_delta < size:
        return size
    filler = filler_size(header)
    if filler > max_filler_bytes:
        raise InvalidRecord(f"a batch of {size} bytes states {header.last_offset_delta + 1} offsets")
    return size + filler


def position_size(position: MirrorPosition) -> int:
    """Bytes of a position batch."""
    return len(control_batch(0, position.encode(), timestamp=0))

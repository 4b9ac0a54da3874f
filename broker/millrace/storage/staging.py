"""The batches of one append on their way into one segment: placed, stamped, and then written together.

Knows what follows what in the log. Does not write: the partition log does, with one system call, and makes
the outcome count only when every byte is in the file.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from millrace.compression import Buffer
from millrace.errors import BrokerError, InvalidRecord
from millrace.records import BatchHeader, control_batch, filler_after, filler_size
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
    """Places batches behind `state`; gives back the state behind them."""

    def __init__(self, state: LogState, producers: ProducerStates) -> None:
        self.buffers: list[Buffer] = []
        self.size = 0
        self.producers: Staged = {}
        self._known_producers = producers
        self._before = state
        self._mirror = state.mirror
        self._high_watermark = state.high_watermark
        self._data_end = state.data_end
        self._messages = state.messages
        self._max_timestamp = -1
        self._largest_unit = 0

    @property
    def end(self) -> int:
        """Log position behind everything placed so far."""
        return self._before.end + self.size

    def add(self, batch: Buffer, header: BatchHeader) -> Appended | BrokerError:
        """Place a produced batch, or say why it is not: a retry, or out of its producer's order."""
        idempotent = header.producer_id >= 0
        try:
            if idempotent:
                sent = self._known_producers.find_duplicate(header, self.producers)
                if sent is not None:
                    return Appended(sent.base_offset, True, sent.end)
            base = self.end
            self.place(batch, header)
        except BrokerError as error:
            return error
        end = base + header.size
        if idempotent:
            self._known_producers.stage(header, base, end, self.producers)
        return Appended(base, False, end)

    def place(self, batch: Buffer, header: BatchHeader) -> None:
        """Stamp a batch with its position and put it, with the filler it needs, behind the others."""
        base, size = self.end, header.size
        next_offset = base + header.last_offset_delta + 1
        filler = None
        if next_offset > base + size:
            filler = filler_after(replace(header, base_offset=base), timestamp=header.max_timestamp)
        if isinstance(batch, bytes) or (isinstance(batch, memoryview) and batch.readonly):
            batch = bytearray(batch)
        _STAMP.pack_into(batch, 0, base, header.batch_length, NO_LEADER_EPOCH)
        self.buffers.append(batch)
        self.size += size
        self._high_watermark = next_offset
        self._data_end = base + size
        self._messages += header.records_count
        self._max_timestamp = max(self._max_timestamp, header.max_timestamp)
        if filler is not None:
            self.buffers.append(filler)
            self.size += len(filler)
            size += len(filler)
        self._largest_unit = max(self._largest_unit, size)

    def place_position(self, position: MirrorPosition, timestamp: int) -> None:
        """Put a position batch behind the others."""
        batch = control_batch(self.end, position.encode(), timestamp=timestamp)
        self.buffers.append(batch)
        self.size += len(batch)
        self._largest_unit = max(self._largest_unit, len(batch))
        self._mirror = position

    def state(self) -> LogState:
        """The log's state once everything placed is written."""
        return LogState(self.end, self._high_watermark, self._data_end, self._messages, self._mirror)

    def note_facts(self, facts: SegmentFacts) -> None:
        """Add what was placed to the facts of the segment it was written to."""
        facts.largest_unit = max(facts.largest_unit, self._largest_unit)
        if self._data_end > self._before.data_end:
            facts.max_timestamp = max(facts.max_timestamp, self._max_timestamp)
            facts.next_offset = self._high_watermark


def size_in_log(header: BatchHeader, max_filler_bytes: int) -> int:
    """Bytes a batch takes with its filler; InvalidRecord when it states more offsets than can be meant."""
    filler = filler_size(header)
    if filler > max_filler_bytes:
        raise InvalidRecord(f"a batch of {header.size} bytes states {header.last_offset_delta + 1} offsets")
    return header.size + filler


def position_size(position: MirrorPosition) -> int:
    """Bytes of a position batch."""
    return len(control_batch(0, position.encode(), timestamp=0))

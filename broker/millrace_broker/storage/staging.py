"""The batches of one append into one segment: placed, stamped, then written together.

This module decides the order of batches in the log, and checks the conditions of a mirrored append before a
byte of it is written. A mirrored append must continue the recorded position (compare-and-append), so a retry,
a zombie or a speculative task can neither lose nor duplicate messages. The partition log writes the batches,
with one system call, and the outcome takes effect only when every byte is in the file.
"""

from __future__ import annotations

from collections.abc import Sequence

from millrace.errors import BrokerError, InvalidRecord, InvalidRequest, PolicyViolation
from millrace.records import LENGTH_OVERHEAD, BatchHeader, control_batch, filler_after, filler_size
from millrace.records.compression import Buffer
from millrace.records.header import OFFSETS, STAGED, STAMP
from millrace.records.mirror_position import MirrorPosition, Origin, PositionMismatch
from millrace.records.runs import stamp
from millrace_broker.storage import landmarks
from millrace_broker.storage.producer_state import ProducerStates, StagedProducers
from millrace_broker.storage.segment import Segment
from millrace_broker.storage.state import LogState

MAX_FILLER_BYTES = 1 << 20
"""Most bytes that a compressed batch may add to the log beyond its own bytes. Its records are not counted
before it is written, so a request that states too many records must not cost more disk and more of the loop's
time."""
MAX_FILLER_RATIO = 64
"""Most bytes that a produced batch may add, as a multiple of its own size. Records of whole kilobytes that
are all alike take a byte each."""


class Staging:
    """Places batches after `state`, as many as fit."""

    def __init__(
        self, state: LogState, producers: ProducerStates, segment: Segment, *, room: int, epoch: int
    ) -> None:
        """Place batches at the end of `segment`, which takes `room` bytes more; if empty, any one batch.

        `epoch` is the leader's; it is stamped over the epoch that a producer sent.
        """
        assert segment.landmarks is not None, "the last segment has its landmarks in memory"
        self.buffers: list[Buffer] = []
        self.size = 0
        self.end = state.end
        self.producers: StagedProducers = {}
        self._earlier_producers = producers
        self._epoch = epoch
        self._segment = segment
        self._room = room
        self._state = state
        self._mirror = state.mirror
        self._high_watermark = state.high_watermark
        self._data_end = state.data_end
        self._messages = state.messages
        self._max_timestamp = segment.facts.max_timestamp
        self._noted = segment.landmarks
        self._landmarks = segment.landmarks.continued()

    def add(
        self, batches: Sequence[Buffer], principals: Sequence[str], first: int
    ) -> list[int | BrokerError]:
        """Place produced batches of these principals from number `first` on, as many as there is room for.

        An empty segment has room for any single batch. Return the base offset of each batch, or the error for
        which it is not placed. A retry is answered with the first attempt's offset and not placed again.
        """
        outcomes: list[int | BrokerError] = []
        while (index := first + len(outcomes)) < len(batches):
            if plain := self._add_plain(batches, index):
                outcomes += plain
            elif (outcome := self._add(batches[index], principals[index])) is not None:
                outcomes.append(outcome)
            else:
                break
        return outcomes

    def _add_plain(self, batches: Sequence[Buffer], first: int) -> list[int]:
        """Place the next batches that need only their stamp and no landmark, as nearly all batches do."""
        bases, end, marked_room, messages, next_offset, max_timestamp = stamp(
            batches,
            first,
            self.end,
            self._epoch,
            self._room - self.size,
            self._landmarks.room,
            landmarks.LEAST_BATCH_BYTES,
            None,
        )
        if bases:
            self.buffers += batches[first : first + len(bases)]
            self.size += end - self.end
            self.end = self._data_end = end
            self._high_watermark = next_offset
            self._messages += messages
            self._landmarks.passed(marked_room, next_offset)
            if max_timestamp > self._max_timestamp:
                self._max_timestamp = max_timestamp
        return bases

    def _add(self, batch: Buffer, principal: str) -> int | BrokerError | None:
        """Place one produced batch of any kind. Return None when there is no room for it."""
        header = BatchHeader.of(batch)
        is_idempotent = header.producer_id >= 0
        try:
            if is_idempotent:
                sent = self._earlier_producers.find_duplicate(header, self.producers)
                if sent is not None:
                    return sent.base_offset
            size = size_in_log(header)
            if size > header.size * (1 + MAX_FILLER_RATIO):
                raise _too_many_offsets(header)
            if self.size + size > self._room and (self.size or self._segment.size):
                return None
            if is_idempotent:
                self._earlier_producers.admit(header, principal, self.producers)
        except BrokerError as error:
            return error
        base = self.place(batch)
        if is_idempotent:
            self._earlier_producers.stage(header, base, self._data_end, self.producers, principal)
        return base

    def place(self, batch: Buffer) -> int:
        """Place a batch after the other batches, whatever its size, and stamp it with its base offset.

        Return the offset.
        """
        length, last_offset_delta, max_timestamp, *_, records_count = STAGED.unpack_from(batch)
        base = self.end
        try:
            STAMP.pack_into(batch, 0, base, length, self._epoch)
        except (TypeError, BufferError):  # read-only
            batch = bytearray(batch)
            STAMP.pack_into(batch, 0, base, length, self._epoch)
        self.buffers.append(batch)
        size = length + LENGTH_OVERHEAD
        self._data_end = base + size
        self._high_watermark = base + last_offset_delta + 1
        self._messages += records_count
        if last_offset_delta >= size:
            filler = filler_after(BatchHeader.of(batch), timestamp=max_timestamp)
            assert filler is not None
            self.buffers.append(filler)
            size += len(filler)
        self._landmarks.note(base, size, self._max_timestamp, self._high_watermark)
        self.size += size
        self.end += size
        if max_timestamp > self._max_timestamp:
            self._max_timestamp = max_timestamp
        return base

    def place_position(self, position: MirrorPosition, timestamp: int) -> None:
        value = position.encode(self._high_watermark)
        batch = control_batch(self.end, value, timestamp=timestamp, leader_epoch=self._epoch)
        self.buffers.append(batch)
        self._mirror = position
        self._landmarks.note(self.end, len(batch), self._max_timestamp, self.end + 1)
        self.size += len(batch)
        self.end += len(batch)

    def written(self) -> LogState:
        """Update the segment after its write, and return the log's state after the append."""
        if self._messages > self._state.messages:
            self._segment.facts.note(self._max_timestamp, self._high_watermark)
        self._noted.extend(self._landmarks)
        return LogState(self.end, self._high_watermark, self._data_end, self._messages, self._mirror)


def size_in_log(header: BatchHeader) -> int:
    """Return a batch's bytes with its filler. Raise InvalidRecord when it states too many offsets."""
    filler = filler_size(header)
    if filler > MAX_FILLER_BYTES:
        raise _too_many_offsets(header)
    return header.size + filler


def _too_many_offsets(header: BatchHeader) -> InvalidRecord:
    return InvalidRecord(f"a batch of {header.size} bytes states {header.last_offset_delta + 1} offsets")


def check_append(
    state: LogState,
    origin: Origin,
    expected: int | None,
    position: MirrorPosition,
    batches: Sequence[Buffer],
    *,
    reset: bool,
) -> None:
    """Refuse an append that does not continue the recorded position; a reset may move it anywhere.

    Raise PolicyViolation for a partition that is no mirror of this origin. Raise PositionMismatch for an
    append that does not start at the end of the last append. Raise InvalidRequest if the append contradicts
    itself.
    """
    recorded = state.mirror
    if position.origin != origin:
        raise InvalidRequest(f"the position names {position.origin}, and the append is for {origin}")
    if recorded is None and state.end > 0:
        raise PolicyViolation("the partition holds messages that were produced to it; it cannot be a mirror")
    if recorded is not None and recorded.origin != origin:
        raise PolicyViolation(f"the partition mirrors {recorded.origin}, not {origin}")
    if expected != (None if recorded is None else recorded.cursor.next_offset):
        raise PositionMismatch(expected, recorded)
    if not reset:
        check_progress(recorded, position, batches)
    elif batches:
        raise InvalidRequest("a reset moves the position and appends no batches")


def append_size(batches: Sequence[Buffer], position: MirrorPosition, end: int) -> int:
    """Return the size of batches and of the position after them in a log that ends at `end`.

    The result may be a few bytes too large.
    """
    size = len(control_batch(0, position.encode(10 * end), timestamp=0))  # as if after the largest offset
    for batch in batches:
        _, length, last_offset_delta = OFFSETS.unpack_from(batch)
        plain = last_offset_delta < length
        size += length + LENGTH_OVERHEAD if plain else size_in_log(BatchHeader.of(batch))
    return size


def check_progress(
    recorded: MirrorPosition | None, position: MirrorPosition, batches: Sequence[Buffer]
) -> None:
    """Refuse an append whose position and batches disagree or step back. The mirror itself handles gaps."""
    start = position.start if recorded is None else recorded.cursor.next_offset
    if recorded is not None:
        if position.start != recorded.start:
            raise InvalidRequest(f"the mirror began at {recorded.start}; only a reset may change that")
        totals = (position.batches, position.records, position.dropped)
        recorded_totals = (recorded.batches, recorded.records, recorded.dropped)
        if any(new < old for new, old in zip(totals, recorded_totals, strict=True)):
            raise InvalidRequest("the running totals of a mirrored partition never go back")
        if not batches and position.cursor.next_offset == start:
            raise InvalidRequest("a mirrored append without batches must at least move the position")
    next_offset = start
    for index, batch in enumerate(batches):
        # The first batch may begin before the position: an origin answers with the whole batch.
        base, _, last_offset_delta = OFFSETS.unpack_from(batch)
        after = base + last_offset_delta + 1
        if after <= next_offset or (index > 0 and base < next_offset):
            raise InvalidRequest(f"origin batch {base} does not follow offset {next_offset}")
        next_offset = after
    if position.cursor.next_offset < next_offset:
        raise InvalidRequest(
            f"the batches reach origin offset {next_offset}, the position only {position.cursor.next_offset}"
        )

"""What a partition remembers of idempotent producers: enough to answer a retry instead of storing it twice.

The rules are Kafka's: the last five batches per producer are remembered; a batch equal to one of them is a
duplicate; any other batch must follow the last one; a newer epoch starts at sequence 0; a producer that is
not known (new, silent for a day, or the longest silent of too many) may start anywhere.

One rule is not Kafka's. Behind a batch that was refused for a reason that passes, such as a full disk, those
that the producer had in flight do not follow the last one either. They are refused for the same reason until
the first one comes again. OUT_OF_ORDER_SEQUENCE_NUMBER would have librdkafka begin a new epoch and send again
what it has in flight to all partitions, so that it may be stored twice.

While they are few they are written into the checkpoint, else into a file of their own:

    <partition>/producers := sealed JSON {version, end, producers}    as of a flush up to position `end`

The checkpoint is written every few seconds, and thousands of producers are 750 KB of it and 30 ms. The file
is written when a segment was rolled since, when 64 MiB were, and at the close; what came behind it recovery
reads from the headers again. `Checkpoint.producers` then says from where on: behind that position stands the
first batch of a producer that the file does not tell of.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from millrace.errors import BrokerError, InvalidProducerEpoch, InvalidRecord, OutOfOrderSequence
from millrace.records import BatchHeader
from millrace.records.compression import Buffer
from millrace.storage import sealed
from millrace.storage.segment import sync_directory

REMEMBERED_BATCHES = 5
"""Kafka's producers keep at most five requests in flight, so a retry is one of the last five."""
MAX_PRODUCERS = 4096
"""Most producers of one partition: beyond it the longest silent are forgotten."""
MAX_IN_ALL = 100_000
"""Most producers of all partitions of a broker, each counted where it is remembered; one takes 1.2 KB."""
EXPIRY_S = 24 * 3600.0
REFUSED_S = 300.0
"""Time for which a refused batch is awaited: librdkafka's own limit, after which it begins a new epoch."""
MAX_SEQUENCE = (1 << 31) - 1

FILE_NAME = "producers"
VERSION = 1
FEW_PRODUCERS = 100
READ_AGAIN_BYTES = 64 << 20
"""Most bytes behind the file. Recovery takes 0.3 s for their headers if each batch is one message of 200
bytes."""


class SentBatch(NamedTuple):
    """One remembered batch; `end` is the log position that must be flushed before it is safe."""

    base_sequence: int
    base_offset: int
    records: int
    end: int

    @property
    def next_sequence(self) -> int:
        return (self.base_sequence + self.records) & MAX_SEQUENCE


class ProducerState(NamedTuple):
    """One producer: its newest epoch and that epoch's last batches, oldest first."""

    epoch: int
    batches: tuple[SentBatch, ...]
    seen_at: float


class RefusedBatch(NamedTuple):
    """The first batch of a producer that was refused and has not come again."""

    epoch: int
    sequence: int
    why: BrokerError
    at: float


Staged: TypeAlias = dict[int, ProducerState]
"""Changes of one append, kept apart until its bytes are written."""


class ProducerLimit:
    """How many producers the partitions of one broker remember together: the longest silent are forgotten."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held for every change of what any partition remembers."""
        self._seen: OrderedDict[tuple[ProducerStates, int], None] = OrderedDict()
        """The longest silent first. A dict looks for its first item behind all that were ever removed."""

    def __len__(self) -> int:
        return len(self._seen)

    def seen(self, states: ProducerStates, producer_id: int) -> None:
        """Count a producer as the latest heard of; with the lock held."""
        self._seen[states, producer_id] = None
        self._seen.move_to_end((states, producer_id))
        while len(self._seen) > MAX_IN_ALL:
            longest_silent, forgotten = next(iter(self._seen))
            longest_silent.forget(forgotten)

    def forgotten(self, states: ProducerStates, producer_id: int) -> None:
        self._seen.pop((states, producer_id), None)


class ProducerStates:
    """Every idempotent producer of one partition."""

    def __init__(self, directory: Path, clock: Callable[[], float], limit: ProducerLimit) -> None:
        self._directory = directory
        self._clock = clock
        self._limit = limit
        self._states: Staged = {}
        """The longest silent first."""
        self._refused: OrderedDict[int, RefusedBatch] = OrderedDict()
        """Producer id -> its batch, the oldest first; at most MAX_PRODUCERS, in memory only."""
        self._newest_end = -1
        """Log position behind the newest batch of any producer."""
        self._file_end = -1
        """Up to where the file tells of everything; -1 when nothing relies on the file."""
        self._read_from = -1
        """The same, or further: no producer's batch lies between."""

    def __len__(self) -> int:
        return len(self._states)

    def remembered(self) -> list[tuple[int, ProducerState]]:
        """Every producer, the longest silent first."""
        with self._limit.lock:
            return list(self._states.items())

    def _state(self, producer_id: int, staged: Staged) -> ProducerState | None:
        state = staged.get(producer_id) or self._states.get(producer_id)
        return None if state is None or state.seen_at + EXPIRY_S < self._clock() else state

    def find_duplicate(self, header: BatchHeader, staged: Staged) -> SentBatch | None:
        """Return the batch that `header` repeats, or None for a batch that must be appended.

        Raises InvalidProducerEpoch, OutOfOrderSequence or InvalidRecord for a batch that must be refused. A
        batch that must wait for an earlier refused batch raises the error of that batch.
        """
        try:
            return self._find_duplicate(header, staged)
        except OutOfOrderSequence:
            self._check_refused(header)
            raise

    def _find_duplicate(self, header: BatchHeader, staged: Staged) -> SentBatch | None:
        sequence = header.base_sequence
        if sequence < 0 or header.producer_epoch < 0:
            raise InvalidRecord(f"producer {header.producer_id} sent a batch without epoch or sequence")
        state = self._state(header.producer_id, staged)
        if state is None:
            self._check_refused(header)
            return None
        if header.producer_epoch < state.epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} has epoch {state.epoch}, the batch {header.producer_epoch}"
            )
        if header.producer_epoch > state.epoch:
            if sequence != 0:
                raise OutOfOrderSequence(f"producer {header.producer_id} starts an epoch at {sequence}")
            return None
        if not state.batches or sequence == (expected := state.batches[-1].next_sequence):
            return None
        for sent in state.batches:
            if sent.base_sequence == sequence and sent.records == header.records_count:
                return sent
        raise OutOfOrderSequence(
            f"producer {header.producer_id} sent sequence {sequence}, next is {expected}"
        )

    def _check_refused(self, header: BatchHeader) -> None:
        """Refuse a batch while an earlier refused batch of its producer must come again first."""
        first = self._refused.get(header.producer_id)
        if first is None or first.epoch != header.producer_epoch or first.at + REFUSED_S < self._clock():
            return
        if _follows(header.base_sequence, first.sequence):
            raise type(first.why)(
                f"sequence {first.sequence} of producer {header.producer_id} was refused and must come first:"
                f" {first.why}"
            )

    def note_refused(self, batches: Iterable[Buffer], why: BrokerError) -> None:
        """Note batches that were refused, for a reason that passes, before any part of them was written."""
        for batch in batches:
            header = BatchHeader.of(batch)
            id_, epoch, sequence = header.producer_id, header.producer_epoch, header.base_sequence
            if id_ < 0 or sequence < 0:
                continue
            first = self._refused.pop(id_, None)
            if first is not None and first.epoch == epoch and _follows(sequence, first.sequence):
                sequence = first.sequence
            self._refused[id_] = RefusedBatch(epoch, sequence, why, self._clock())
        while len(self._refused) > MAX_PRODUCERS:
            self._refused.popitem(last=False)

    def stage(self, header: BatchHeader, base_offset: int, end: int, staged: Staged) -> None:
        """Note a batch about to be written; `commit` makes it count."""
        state = self._state(header.producer_id, staged)
        earlier = state.batches if state is not None and state.epoch == header.producer_epoch else ()
        batch = SentBatch(header.base_sequence, base_offset, header.records_count, end)
        batches = (*earlier, batch)[-REMEMBERED_BATCHES:]
        staged[header.producer_id] = ProducerState(header.producer_epoch, batches, self._clock())

    def commit(self, staged: Staged) -> None:
        """Make the staged changes of a written append count."""
        if not staged:
            return
        states = self._states
        with self._limit.lock:
            for producer_id, state in staged.items():
                states.pop(producer_id, None)
                states[producer_id] = state
                self._newest_end = max(self._newest_end, state.batches[-1].end)
                self._forget_refused(producer_id, state)
                self._limit.seen(self, producer_id)
            while len(states) > MAX_PRODUCERS:
                self.forget(next(iter(states)))

    def _forget_refused(self, producer_id: int, state: ProducerState) -> None:
        first = self._refused.get(producer_id)
        if first is not None and (
            state.epoch > first.epoch or _follows(state.batches[-1].next_sequence, first.sequence)
        ):
            del self._refused[producer_id]

    def forget(self, producer_id: int) -> None:
        self._states.pop(producer_id, None)
        self._limit.forgotten(self, producer_id)

    def replay(self, header: BatchHeader, end: int) -> None:
        """Note a batch found in the log by recovery."""
        if header.producer_id >= 0 and not header.is_control:
            staged: Staged = {}
            self.stage(header, header.base_offset, end, staged)
            self.commit(staged)

    def expire(self) -> None:
        """Forget producers that were silent for a day."""
        horizon = self._clock() - EXPIRY_S
        with self._limit.lock:
            for producer_id in [key for key, state in self._states.items() if state.seen_at < horizon]:
                self.forget(producer_id)

    def clear(self) -> None:
        with self._limit.lock:
            for producer_id in list(self._states):
                self.forget(producer_id)
        # What the file tells of may be cut: it is written anew before a checkpoint relies on it.
        self._newest_end = self._file_end = self._read_from = -1

    def save(self, flushed: int, rolled_at: int, *, closing: bool) -> list[Any] | int:
        """What the checkpoint has to say of the producers; writes the file if that is due.

        `rolled_at` is where the last segment begins. For one thread at a time.
        """
        if len(self) <= FEW_PRODUCERS:
            self._file_end = -1
            return self._to_json(flushed)
        if self._file_end >= 0 and self._newest_end <= self._file_end:
            self._read_from = flushed
        elif closing or self._file_end < rolled_at or flushed - self._file_end >= READ_AGAIN_BYTES:
            fields = {"version": VERSION, "end": flushed, "producers": self._to_json(flushed)}
            sealed.write(self._directory / FILE_NAME, fields)
            sync_directory(self._directory)  # before a checkpoint relies on it
            self._file_end = self._read_from = flushed
        return self._read_from

    def load(self, saved: list[Any] | int, flushed: int) -> int | None:
        """Take over what `save` gave; from where on headers are to be read again.

        None when the file is not what the checkpoint relies on: then the whole log is to be read.
        """
        if isinstance(saved, list):
            self._take_over(saved, flushed)
            return flushed
        try:
            fields = sealed.read(self._directory / FILE_NAME)
        except sealed.Unreadable:
            return None
        if fields is None or fields["version"] != VERSION:
            return None
        self._take_over(fields["producers"], flushed)
        if fields["end"] > flushed:  # no checkpoint relies on it yet, and what it tells of may be cut
            return flushed
        self._file_end, self._read_from = fields["end"], max(saved, fields["end"])
        return self._read_from

    def _to_json(self, flushed: int) -> list[Any]:
        """Every producer as plain lists, without the batches that end above `flushed`.

        A batch above it may not survive a power cut; remembering it would answer its retry as a duplicate
        and lose it. If it does survive, recovery finds its header.
        """
        states = []
        for producer_id, state in self.remembered():  # not between the two halves of a commit
            batches = [list(sent) for sent in state.batches if sent.end <= flushed]
            if batches:
                states.append([producer_id, state.epoch, state.seen_at, batches])
        return states

    def _take_over(self, states: Iterable[Any], end: int) -> None:
        """Take what `_to_json` gave, without the batches that end above `end`: they are read again."""
        for producer_id, epoch, seen_at, batches in states:
            sent = tuple(SentBatch(*batch) for batch in batches if batch[-1] <= end)
            if sent:
                self.commit({producer_id: ProducerState(epoch, sent, seen_at)})


def _follows(sequence: int, other: int) -> bool:
    """True if `sequence` follows `other`; sequences wrap to zero after MAX_SEQUENCE."""
    return 0 < (sequence - other) & MAX_SEQUENCE <= MAX_SEQUENCE // 2

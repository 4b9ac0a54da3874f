"""A partition's memory of idempotent producers: enough to answer a retry instead of storing it twice.

The rules are Kafka's: the last five batches per producer are remembered; a batch equal to one of them is a
duplicate; any other batch must follow the last one; a newer epoch starts at sequence 0; an unknown producer
(new, silent for a day, or forgotten in favour of a newer producer) may start anywhere.

Two rules are not Kafka's. Places are limited and shared among principals (`places.py`). A new id takes the
place of an id that was silent for `RETRIED_S`; if its principal holds half of the places, of an id of that
principal. While there is no such id, the new id is refused: an id that may still retry is never forgotten.

After a batch that was refused for a temporary reason, such as a full disk, the later batches of its producer
are refused for the same reason until the first one comes again (`refused.py`).

While producers are few they are written into the checkpoint, else into a file of their own:

    <partition>/producers := sealed JSON {version, end, producers}    as of a flush up to position `end`

The checkpoint is written every few seconds, and thousands of producers would take 750 KB of it and 30 ms. The
file is written when a segment was rolled since, when 64 MiB were appended since, and at the close. Recovery
reads the headers of later batches again. `Checkpoint.producers` then states the position to read from: the
first batch of a producer that the file does not cover comes at or after it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from millrace.config import MAX_PRODUCER_IDS
from millrace.errors import (
    BrokerError,
    InvalidProducerEpoch,
    InvalidRecord,
    OutOfOrderSequence,
    TooManyProducers,
)
from millrace.records import BatchHeader
from millrace.records.compression import Buffer
from millrace.records.runs import StampedBatch
from millrace_broker.storage import sealed
from millrace_broker.storage.places import Places, Principal
from millrace_broker.storage.refused import MAX_SEQUENCE, RefusedBatches
from millrace_broker.storage.segment import sync_directory

logger = logging.getLogger("millrace.storage.producer_state")

REMEMBERED_BATCHES = 5
"""Number of batches that are remembered: Kafka's producers keep at most five requests in flight, so a retry
is among the last five."""
RETRIED_S = 120.0
"""Seconds for which a batch may be retried: the default `delivery.timeout.ms` of Kafka's producers."""
SEEN_INTERVAL_S = 1.0
"""Seconds within which an id is noted as seen only once, because noting costs time for each batch."""
EXPIRY_S = 24 * 3600.0

FILE_NAME = "producers"
VERSION = 1
FEW_PRODUCERS = 100
MAX_REPLAY_BYTES = 64 << 20
"""Most bytes of the log after the file's end. Recovery takes 0.3 s for their headers if each batch is one
message of 200 bytes."""


class SentBatch(NamedTuple):
    """One remembered batch. Once the log is flushed up to `end`, the batch is safe."""

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
    principal: Principal = None
    """The sender of the newest batch."""


StagedProducers: TypeAlias = dict[int, ProducerState]
"""Changes of one append, kept apart until its bytes are written."""


class ProducerLimit:
    """The places for producers in all partitions of one broker.

    A producer takes a place in each partition that remembers it.
    """

    def __init__(self, max_producer_ids: int = MAX_PRODUCER_IDS) -> None:
        self.lock = threading.Lock()
        """Held for every change of any partition's memory of producers."""
        self.places = Places[tuple[ProducerStates, int]](max_producer_ids)
        self.copied = Places[tuple[ProducerStates, int]](max_producer_ids)
        """Places of producers that came with a log. They take no places of clients: other leaders admitted
        them."""
        self.refused = Places[tuple[RefusedBatches, int]](max_producer_ids // 4)
        """Places of producers whose refused batch is awaited."""
        self.of_partition = max_producer_ids // 10

    def places_of(self, principal: Principal) -> Places[tuple[ProducerStates, int]]:
        return self.copied if principal is None else self.places


class ProducerStates:
    """Every idempotent producer of one partition."""

    __slots__ = (
        "_clock",
        "_directory",
        "_file_end",
        "_limit",
        "_newest_end",
        "_places",
        "_read_from",
        "_refusal_logged_at",
        "_refused",
        "_states",
    )

    def __init__(self, directory: Path, clock: Callable[[], float], limit: ProducerLimit) -> None:
        self._directory = directory
        self._clock = clock
        self._limit = limit
        self._states: StagedProducers = {}
        """All producers that are remembered, the longest silent first."""
        self._places: Places[int] = Places(limit.of_partition)
        self._refused = RefusedBatches(clock, limit.refused)
        self._refusal_logged_at = -math.inf
        self._newest_end = -1
        """Log position after the newest batch of any producer."""
        self._file_end = -1
        """Log position up to which the file covers every batch; -1 when no checkpoint relies on the file."""
        self._read_from = -1
        """The same position, or a later one with no producer's batch between the two."""

    def __len__(self) -> int:
        return len(self._states)

    def remembered(self) -> list[tuple[int, ProducerState]]:
        """Return all producers, the longest silent first."""
        with self._limit.lock:
            return list(self._states.items())

    def _state(self, producer_id: int, staged: StagedProducers) -> ProducerState | None:
        state = staged.get(producer_id) or self._states.get(producer_id)
        return None if state is None or state.seen_at + EXPIRY_S < self._clock() else state

    def find_duplicate(self, header: BatchHeader, staged: StagedProducers) -> SentBatch | None:
        """Return the batch that `header` repeats, or None for a batch that must be appended.

        Raise InvalidProducerEpoch, OutOfOrderSequence or InvalidRecord for a batch that must be refused. For
        a batch that must wait for an earlier refused batch, raise the error of that batch.
        """
        try:
            return self._find_duplicate(header, staged)
        except OutOfOrderSequence:
            self._refused.check(header)
            raise

    def _find_duplicate(self, header: BatchHeader, staged: StagedProducers) -> SentBatch | None:
        sequence = header.base_sequence
        if sequence < 0 or header.producer_epoch < 0:
            raise InvalidRecord(f"producer {header.producer_id} sent a batch without epoch or sequence")
        state = self._state(header.producer_id, staged)
        if state is None:
            self._refused.check(header)
            return None
        if header.producer_epoch < state.epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} has epoch {state.epoch}, the batch {header.producer_epoch}"
            )
        if header.producer_epoch > state.epoch:
            if sequence != 0:
                raise OutOfOrderSequence(
                    f"producer {header.producer_id} starts epoch {header.producer_epoch} at {sequence}, not 0"
                )
            return None
        if not state.batches or sequence == (expected := state.batches[-1].next_sequence):
            return None
        for sent in state.batches:
            if sent.base_sequence == sequence and sent.records == header.records_count:
                return sent
        raise OutOfOrderSequence(
            f"producer {header.producer_id} sent sequence {sequence}, next is {expected}"
        )

    def note_refused(self, batches: Sequence[Buffer], principals: Sequence[str], why: BrokerError) -> None:
        """Note batches that were refused, for a temporary reason, before any part of them was written."""
        with self._limit.lock:
            for batch, principal in zip(batches, principals, strict=True):
                self._refused.note(BatchHeader.of(batch), principal, why)

    def take_refused(self, refused: RefusedBatches) -> None:
        """Move the batches of `refused`, which were refused while the log was not open, into this memory."""
        with self._limit.lock:
            self._refused.take(refused)
            for producer_id in self._states.keys() & self._refused.first.keys():
                self._note_stored(producer_id, self._states[producer_id])

    def admit(self, header: BatchHeader, principal: str, staged: StagedProducers) -> None:
        """Give the producer of a batch about to be staged a place, or keep its place. `abandon` undoes this.

        Raise TooManyProducers for a new producer while only producers that may still retry could make room.
        """
        producer_id, now = header.producer_id, self._clock()
        known = staged.get(producer_id) or self._states.get(producer_id)
        is_same = known is not None and known.principal == principal
        if is_same and 0 <= now - self._places.seen_at(producer_id) < SEEN_INTERVAL_S:
            return
        with self._limit.lock:
            if known is None:
                try:
                    self._make_room(principal, now)
                except TooManyProducers as error:
                    self._refused.note(header, principal, error)
                    raise
            elif not is_same:
                self._drop(producer_id, known.principal)
            self._put(producer_id, principal, now)

    def _make_room(self, principal: str, now: float) -> None:
        """Forget the longest silent producer, on the broker and in this partition, if the new producer needs
        its place.
        """
        if (oldest := self._limit.places.in_the_way(principal)) is not None:
            (states, other), seen_at = oldest
            self._check_is_stale(seen_at, now, principal, "the broker")
            states.forget(other)
        if (oldest_here := self._places.in_the_way(principal)) is not None:
            other, seen_at = oldest_here
            self._check_is_stale(seen_at, now, principal, self._directory.name)
            self.forget(other)

    def _check_is_stale(self, seen_at: float, now: float, principal: str, where: str) -> None:
        # A time in the future comes from a clock that was set back: the producer must not keep its place
        # until then.
        if abs(now - seen_at) >= RETRIED_S + SEEN_INTERVAL_S:
            return
        error = TooManyProducers(
            f"{where} has no place for another producer id of {principal} before one was silent for"
            f" {RETRIED_S:.0f} s. Keep producers open, or raise max_producer_ids of the brokers"
        )
        if not 0 <= now - self._refusal_logged_at < RETRIED_S:
            self._refusal_logged_at = now
            logger.warning("%s: a new producer is refused: %s", self._directory.name, error)
        raise error

    def abandon(self, staged: StagedProducers) -> None:
        """Restore the places as they were before: the staged batches are not written."""
        with self._limit.lock:
            for producer_id, state in staged.items():
                before = self._states.get(producer_id)
                if before is not state:
                    self._drop(producer_id, state.principal)
                    if before is not None:
                        self._put(producer_id, before.principal, before.seen_at)

    def stage(
        self,
        header: BatchHeader,
        base_offset: int,
        end: int,
        staged: StagedProducers,
        principal: Principal = None,
    ) -> None:
        """Note a batch about to be written; `commit` makes it effective."""
        state = self._state(header.producer_id, staged)
        earlier = state.batches if state is not None and state.epoch == header.producer_epoch else ()
        batch = SentBatch(header.base_sequence, base_offset, header.records_count, end)
        batches = (*earlier, batch)[-REMEMBERED_BATCHES:]
        staged[header.producer_id] = ProducerState(header.producer_epoch, batches, self._clock(), principal)

    def take_next(self, stamped: Sequence[StampedBatch], principals: Sequence[str]) -> StagedProducers | None:
        """Stage batches that simply come next in their sequences; return None if one does not.

        Such a batch follows the last one of a producer that has a place, in the same epoch and of the same
        principal. For it, this does what `find_duplicate`, `admit` and `stage` do. `principals` has an entry
        for each batch of the append. `abandon` undoes this.
        """
        now, staged, silent = self._clock(), StagedProducers(), list[tuple[int, str]]()
        for number, producer_id, epoch, sequence, base_offset, records, end in stamped:
            state, principal = staged.get(producer_id) or self._states.get(producer_id), principals[number]
            if state is None or state.epoch != epoch or state.principal != principal or not state.batches:
                return None  # another thread may take the place of a principal's that is not known yet
            if state.batches[-1].next_sequence != sequence:
                return None
            if producer_id not in staged:
                if state.seen_at + EXPIRY_S < now:
                    return None
                if not 0 <= now - self._places.seen_at(producer_id) < SEEN_INTERVAL_S:
                    silent.append((producer_id, principal))
            batch = SentBatch(sequence, base_offset, records, end)
            batches = (*state.batches, batch)[-REMEMBERED_BATCHES:]
            staged[producer_id] = ProducerState(epoch, batches, now, principal)
        if silent:
            with self._limit.lock:
                for producer_id, principal in silent:
                    self._put(producer_id, principal, now)
        return staged

    def commit(self, staged: StagedProducers) -> None:
        """Make the staged changes of a written append effective."""
        if not staged:
            return
        states, refused = self._states, self._refused.first
        with self._limit.lock:
            for producer_id, state in staged.items():
                states.pop(producer_id, None)
                states[producer_id] = state
                self._newest_end = max(self._newest_end, state.batches[-1].end)
                if producer_id in refused:
                    self._note_stored(producer_id, state)

    def _note_stored(self, producer_id: int, state: ProducerState) -> None:
        self._refused.stored(producer_id, state.epoch, state.batches[-1].next_sequence)

    def forget(self, producer_id: int) -> None:
        """Forget a producer; called with the lock held."""
        self._drop(producer_id, self._states.pop(producer_id).principal)

    def _put(self, producer_id: int, principal: Principal, seen_at: float) -> None:
        self._places.put(producer_id, principal, seen_at)
        self._limit.places_of(principal).put((self, producer_id), principal, seen_at)

    def _drop(self, producer_id: int, principal: Principal) -> None:
        self._places.drop(producer_id, principal)
        self._limit.places_of(principal).drop((self, producer_id), principal)

    def replay(self, header: BatchHeader, end: int) -> None:
        """Note a batch found in the log by recovery."""
        if header.producer_id >= 0 and not header.is_control:
            staged: StagedProducers = {}
            self.stage(header, header.base_offset, end, staged)
            self._restore(header.producer_id, staged[header.producer_id])

    def _restore(self, producer_id: int, state: ProducerState) -> None:
        """Remember a producer from the log or a checkpoint: it gets a place in any case."""
        with self._limit.lock:
            before = self._states.get(producer_id)
            if before is not None and before.principal is not None:
                self._drop(producer_id, before.principal)
            self._put(producer_id, None, state.seen_at)
            while (here := self._places.surplus) is not None:
                self.forget(here)
            while (elsewhere := self._limit.copied.surplus) is not None:
                elsewhere[0].forget(elsewhere[1])
        self.commit({producer_id: state})

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
        # The file may cover batches that are cut: it is rewritten before a checkpoint relies on it.
        self._newest_end = self._file_end = self._read_from = -1

    def close(self) -> None:
        """Forget everything: the log is no longer used."""
        self.clear()
        with self._limit.lock:
            self._refused.clear()

    def save(self, flushed: int, rolled_at: int, *, closing: bool) -> list[Any] | int:
        """Return the checkpoint's entry for the producers; write their file first if that is due.

        `rolled_at` is the start of the last segment. For one thread at a time.
        """
        if len(self) <= FEW_PRODUCERS:
            self._file_end = -1
            return self._to_json(flushed)
        if self._file_end >= 0 and self._newest_end <= self._file_end:
            self._read_from = flushed
        elif closing or self._file_end < rolled_at or flushed - self._file_end >= MAX_REPLAY_BYTES:
            fields = {"version": VERSION, "end": flushed, "producers": self._to_json(flushed)}
            sealed.write(self._directory / FILE_NAME, fields)
            sync_directory(self._directory)  # before a checkpoint relies on it
            self._file_end = self._read_from = flushed
        return self._read_from

    def load(self, saved: list[Any] | int, flushed: int) -> int | None:
        """Restore the producers from the result of `save`. Return the position from which headers must be
        read again.

        Return None when the file does not belong to the checkpoint: then the whole log must be read.
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
        if fields["end"] > flushed:  # no checkpoint relies on it yet, and its batches may be cut
            return flushed
        self._file_end, self._read_from = fields["end"], max(saved, fields["end"])
        return self._read_from

    def _to_json(self, flushed: int) -> list[Any]:
        """Return all producers as plain lists, without the batches that end above `flushed`.

        A batch above `flushed` may not survive a power cut. If it were remembered, its retry would be
        answered as a duplicate and lost. If it survives, recovery finds its header.
        """
        states = []
        for producer_id, state in self.remembered():  # under the lock: never in the middle of a commit
            batches = [list(sent) for sent in state.batches if sent.end <= flushed]
            if batches:
                states.append([producer_id, state.epoch, state.seen_at, batches])
        return states

    def _take_over(self, states: Iterable[Any], end: int) -> None:
        """Restore the producers from the result of `_to_json`, without the batches that end above `end`,
        which are read again.
        """
        for producer_id, epoch, seen_at, batches in states:
            sent = tuple(SentBatch(*batch) for batch in batches if batch[-1] <= end)
            if sent:
                self._restore(producer_id, ProducerState(epoch, sent, seen_at))

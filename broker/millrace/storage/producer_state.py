"""What a partition remembers of idempotent producers: enough to answer a retry instead of storing it twice.

Knows producer ids, epochs and sequences. Does not know files: `producer_file` stores what `to_json` gives,
and recovery feeds the headers behind that back in.

The rules are Kafka's: the last five batches per producer are remembered; a batch equal to one of them is a
duplicate; any other batch must follow the last one; a newer epoch starts at sequence 0; a producer that is
not known (new, silent for a day, or the longest silent of too many) may start anywhere.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from millrace.errors import InvalidProducerEpoch, InvalidRecord, OutOfOrderSequence
from millrace.records import BatchHeader

REMEMBERED_BATCHES = 5
"""Kafka's producers keep at most five requests in flight, so a retry is one of the last five."""
MAX_PRODUCERS = 4096
"""The most that one partition knows: beyond it the longest silent are forgotten."""
MAX_IN_ALL = 100_000
"""The same for all partitions of a broker together, each counted where it is known; one takes 1.2 KB."""
EXPIRY_S = 24 * 3600.0
MAX_SEQUENCE = (1 << 31) - 1


class SentBatch(NamedTuple):
    """One remembered batch; `end` is the log position that must be flushed before it is safe."""

    base_sequence: int
    base_offset: int
    records: int
    end: int

    @property
    def next_sequence(self) -> int:
        """The sequence after this batch; it wraps to 0 after 2^31 - 1."""
        return (self.base_sequence + self.records) & MAX_SEQUENCE


class ProducerState(NamedTuple):
    """One producer: its newest epoch and that epoch's last batches, oldest first."""

    epoch: int
    batches: tuple[SentBatch, ...]
    seen_at: float


Staged: TypeAlias = dict[int, ProducerState]
"""Changes of one append, kept apart until its bytes are written."""


class ProducerLimit:
    """How many producers the partitions of one broker know together: the longest silent are forgotten."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held for every change of what any partition knows."""
        self._known: OrderedDict[tuple[ProducerStates, int], None] = OrderedDict()
        """The longest silent first. A dict looks for its first item behind all that were ever removed."""

    def __len__(self) -> int:
        return len(self._known)

    def seen(self, states: ProducerStates, producer_id: int) -> None:
        """Count a producer as the latest heard of; with the lock held."""
        known = self._known
        known[states, producer_id] = None
        known.move_to_end((states, producer_id))
        while len(known) > MAX_IN_ALL:
            longest_silent, forgotten = next(iter(known))
            longest_silent.forget(forgotten)

    def forgotten(self, states: ProducerStates, producer_id: int) -> None:
        """Count a producer no longer; with the lock held."""
        self._known.pop((states, producer_id), None)


class ProducerStates:
    """Every idempotent producer of one partition."""

    def __init__(self, clock: Callable[[], float], limit: ProducerLimit) -> None:
        self._clock = clock
        self._limit = limit
        self._states: Staged = {}
        """The longest silent first."""
        self.newest_end = -1
        """Log position behind the newest batch of any producer."""

    def __len__(self) -> int:
        return len(self._states)

    def find_duplicate(self, header: BatchHeader, staged: Staged) -> SentBatch | None:
        """The batch that `header` repeats, or None for one that must be appended.

        Raises InvalidProducerEpoch, OutOfOrderSequence or InvalidRecord for one that must be refused.
        """
        sequence = header.base_sequence
        if sequence < 0 or header.producer_epoch < 0:
            raise InvalidRecord(f"producer {header.producer_id} sent a batch without epoch or sequence")
        state = staged.get(header.producer_id) or self._states.get(header.producer_id)
        if state is None or state.seen_at + EXPIRY_S < self._clock():
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

    def stage(self, header: BatchHeader, base_offset: int, end: int, staged: Staged) -> None:
        """Note a batch about to be written; `commit` makes it count."""
        state = staged.get(header.producer_id) or self._states.get(header.producer_id)
        now = self._clock()
        batch = SentBatch(header.base_sequence, base_offset, header.records_count, end)
        known = state is not None and state.epoch == header.producer_epoch and state.seen_at + EXPIRY_S >= now
        batches = state.batches if known and state is not None else ()
        staged[header.producer_id] = ProducerState(
            header.producer_epoch, (*batches, batch)[-REMEMBERED_BATCHES:], now
        )

    def commit(self, staged: Staged) -> None:
        """Make the staged changes of a written append count."""
        if not staged:
            return
        states = self._states
        with self._limit.lock:
            for producer_id, state in staged.items():
                states.pop(producer_id, None)
                states[producer_id] = state
                self.newest_end = max(self.newest_end, state.batches[-1].end)
                self._limit.seen(self, producer_id)
            while len(states) > MAX_PRODUCERS:
                self.forget(next(iter(states)))

    def forget(self, producer_id: int) -> None:
        """Know a producer no more; with the limit's lock held."""
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
        """Forget all: the log is closed."""
        with self._limit.lock:
            for producer_id in list(self._states):
                self.forget(producer_id)

    def to_json(self, flushed: int) -> list[Any]:
        """Every producer as plain lists, without the batches that end above `flushed`.

        A batch above it may not survive a power cut; remembering it would answer its retry as a duplicate
        and lose it. If it does survive, recovery finds its header.
        """
        states = []
        for producer_id, state in list(self._states.items()):
            batches = [
                [sent.base_sequence, sent.base_offset, sent.records, sent.end]
                for sent in state.batches
                if sent.end <= flushed
            ]
            if batches:
                states.append([producer_id, state.epoch, state.seen_at, batches])
        return states

    def load_json(self, states: Iterable[Any], end: int) -> None:
        """Take over what `to_json` gave, without the batches that end above `end`: they are read again."""
        for producer_id, epoch, seen_at, batches in states:
            sent = tuple(SentBatch(*batch) for batch in batches if batch[-1] <= end)
            if sent:
                self.commit({producer_id: ProducerState(epoch, sent, seen_at)})

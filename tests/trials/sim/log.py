"""A log in memory with what a disk may do to it: batches in units, some flushed, some not.

Instead of bytes each batch has a number that stands for itself and all before it: two logs with the same
number at the same position hold the same bytes up to there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from random import Random
from typing import NamedTuple

from millrace_broker.storage.epochs import EpochMap


class Violation(Exception):
    """An invariant does not hold, or the partition stays stuck."""


class Batch(NamedTuple):
    """Some bytes of a log; `before` and `after` stand for all bytes up to its begin and to its end."""

    start: int
    end: int
    epoch: int
    before: int
    after: int
    is_whole: bool
    """True for the last batch of a unit."""


class MemoryLog:
    """A model of a log: the methods that `millrace_broker.replication` and its driver call."""

    def __init__(self) -> None:
        self.start = self.flushed = self.committed = 0
        self.epochs = EpochMap()
        self._batches: list[Batch] = []
        self._ends: list[int] = []
        self._durable_committed = 0
        self._cuts = 0

    @property
    def end(self) -> int:
        return self._ends[-1] if self._ends else self.start

    @property
    def whole_end(self) -> int:
        return next((batch.end for batch in reversed(self._batches) if batch.is_whole), self.start)

    @property
    def first_state(self) -> int:
        """State for all bytes below the start."""
        return self._batches[0].before if self._batches else self._empty_state

    def state_at(self, position: int) -> int | None:
        """Return the state for all bytes up to `position`; None where no batch ends, or no state is known."""
        if position == self.start:
            return self._batches[0].before if self._batches else None
        index = bisect_left(self._ends, position)
        return self._batches[index].after if self._ends[index : index + 1] == [position] else None

    def batch_before(self, position: int) -> Batch:
        return self._batches[bisect_left(self._ends, position)]

    def read(self, position: int, limit: int | None = None) -> list[Batch]:
        """Up to `limit` batches from `position` on."""
        first = bisect_right(self._ends, position)
        return self._batches[first : None if limit is None else first + limit]

    def write(self, epoch: int, sizes: list[int], number: int) -> None:
        """Append one unit as a leader: a batch of each size, all of them numbered from `number` on."""
        for index, size in enumerate(sizes):
            before = self._batches[-1].after if self._batches else self._empty_state
            batch = Batch(
                self.end, self.end + size, epoch, before, number + index, is_whole=index == len(sizes) - 1
            )
            self.append(batch)

    _empty_state = 0

    def append(self, batch: Batch) -> None:
        """Append a batch; Violation when it does not follow what is there (invariant 2)."""
        before = self._batches[-1].after if self._batches else batch.before
        if batch.start != self.end or batch.before != before:
            raise Violation(f"a log that ends at {self.end} after {before} takes {batch}")
        if not self._batches:
            self._empty_state = batch.before
        self.epochs.note(batch.epoch, batch.start)
        self._batches.append(batch)
        self._ends.append(batch.end)

    def cut(self, position: int) -> None:
        """Drop everything from `position` on, durably."""
        kept = bisect_right(self._ends, position)
        if kept == 0 and self._batches:
            self._empty_state = self._batches[0].before
        del self._batches[kept:], self._ends[kept:]
        self.epochs.cut(position)
        self.flushed = min(self.flushed, position)
        self._cuts += 1

    def reset(self, position: int, state: int) -> None:
        """Begin anew, empty, at `position`, below which the leader's bytes are what `state` stands for."""
        self.cut(self.start)
        self.start = self.flushed = position
        self._empty_state = state

    def drop_below(self, position: int) -> None:
        """Apply retention: drop whole batches below `position`."""
        gone = bisect_right(self._ends, position)
        if gone:
            self._empty_state = self._batches[gone - 1].after
            self.start = self._ends[gone - 1]
            del self._batches[:gone], self._ends[:gone]
            self.epochs.drop_below(self.start)

    def begin_flush(self) -> tuple[int, int]:
        return self._cuts, self.end

    def end_flush(self, begun: tuple[int, int]) -> None:
        """The disk has what was there when the flush began, unless the log was cut since."""
        cuts, end = begun
        if cuts == self._cuts:
            self.flushed = max(self.flushed, end)
        self._durable_committed = min(self.committed, self.flushed)

    def recover(self, rng: Random, *, power_cut: bool) -> None:
        """Open the log after a crash: what was not flushed may be gone, and the rest is on the disk."""
        if power_cut:
            unflushed = [end for end in self._ends if end > self.flushed]
            self.cut(rng.choice([self.flushed, self.flushed, *unflushed]))
        if rng.random() < 0.5:
            self.cut(self.whole_end)  # as the recovery of a mirrored partition does
        self.committed = min(self._durable_committed, self.end)
        self.flushed = self.end

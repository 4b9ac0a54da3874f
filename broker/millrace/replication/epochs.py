"""Which leader wrote which bytes of a log, and where two logs part.

Each batch carries the epoch of the leader that appended it. A log's epochs never fall, so a list of where
each begins says everything. An epoch has one leader, and followers take its bytes in order. So two logs that
have bytes of one epoch are equal up to the nearer of its two ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

NO_EPOCH = -1
"""The last epoch of a log without a batch."""


class EpochEnd(NamedTuple):
    """The largest epoch not above one that was asked for, and where its bytes end."""

    epoch: int
    end: int


class EpochMap:
    """Where each epoch of one log begins, in order."""

    def __init__(self, starts: Iterable[tuple[int, int]] = ()) -> None:
        """`starts`: (epoch, position of its first batch), both rising."""
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in starts:
            self.note(epoch, start)

    @property
    def last(self) -> int:
        """The epoch of the last batch; NO_EPOCH without one."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    @property
    def starts(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def note(self, epoch: int, position: int) -> None:
        """A batch of `epoch` was appended at `position`; ValueError when an epoch or a position falls."""
        if epoch == self.last:
            return
        if epoch < self.last or (self._starts and position <= self._starts[-1]):
            raise ValueError(f"epoch {epoch} at {position} follows epoch {self.last} at {self._starts[-1:]}")
        self._epochs.append(epoch)
        self._starts.append(position)

    def end_of(self, epoch: int, log_end: int) -> EpochEnd:
        """The largest epoch here that is not above `epoch`, and its end; (NO_EPOCH, 0) when all are above."""
        index = bisect_right(self._epochs, epoch)
        if index == 0:
            return EpochEnd(NO_EPOCH, 0)
        end = self._starts[index] if index < len(self._starts) else log_end
        return EpochEnd(self._epochs[index - 1], end)

    def cut(self, position: int) -> None:
        """Forget the epochs that begin at `position` or behind it."""
        kept = bisect_left(self._starts, position)
        del self._epochs[kept:], self._starts[kept:]

    def drop_below(self, position: int) -> None:
        """Forget what ends at `position` or before it: the log begins there now."""
        gone = bisect_right(self._starts, position) - 1
        if gone >= 0:
            del self._epochs[:gone], self._starts[:gone]
            self._starts[0] = position

"""Which leader wrote which bytes of a log, and where two logs part.

Each batch carries the epoch of the leader that appended it. A log's epochs never fall, so a list of where
each begins says everything. An epoch has one leader, and followers take its bytes in order. So two logs that
have bytes of one epoch are equal up to the nearer of its two ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

NO_EPOCH = -1
"""The last epoch of a log without a batch."""
_epoch, _start = itemgetter(0), itemgetter(1)


class EpochEnd(NamedTuple):
    """The largest epoch not above one that was asked for, and where its bytes end."""

    epoch: int
    end: int


class EpochMap:
    """Where each epoch of one log begins, in order. One thread changes it at a time, any may look."""

    __slots__ = ("last", "starts")

    def __init__(self, starts: Iterable[tuple[int, int]] = ()) -> None:
        """`starts`: (epoch, position of its first batch), both rising."""
        self.starts: tuple[tuple[int, int], ...] = ()
        """Replaced whole at each change."""
        self.last = NO_EPOCH
        """The epoch of the last batch; NO_EPOCH without one."""
        for epoch, start in starts:
            self.note(epoch, start)

    def note(self, epoch: int, position: int) -> None:
        """A batch of `epoch` was appended at `position`; ValueError when an epoch or a position falls.

        An epoch that begins where the last one does takes its place: retention has dropped all of that.
        """
        if epoch == self.last:
            return
        if epoch < self.last or (self.starts and position < self.starts[-1][1]):
            raise ValueError(f"epoch {epoch} at {position} follows epoch {self.last} at {self.starts[-1:]}")
        self.cut(position)
        self._replace((*self.starts, (epoch, position)))

    def end_of(self, epoch: int, log_end: int) -> EpochEnd:
        """The largest epoch here that is not above `epoch`, and its end; (NO_EPOCH, 0) when all are above."""
        starts = self.starts
        index = bisect_right(starts, epoch, key=_epoch)
        if index == 0:
            return EpochEnd(NO_EPOCH, 0)
        end = starts[index][1] if index < len(starts) else log_end
        return EpochEnd(starts[index - 1][0], end)

    def parting(self, epoch: int, position: int, log_end: int) -> EpochEnd | None:
        """Return where this log leaves that of a reader at `position`, after a batch of `epoch`.

        None when the batch is in this log, or was until retention deleted it. None also for a reader that
        does not know the epoch.
        """
        if epoch == NO_EPOCH or (epoch == self.last and position <= log_end):
            return None
        here = self.end_of(epoch, log_end)
        begin = self.starts[0][1] if self.starts else log_end
        if here.epoch == NO_EPOCH and position <= begin:
            return None
        return None if here.epoch == epoch and position <= here.end else here

    def cut(self, position: int) -> None:
        """Forget the epochs that begin at `position` or behind it."""
        self._replace(self.starts[: bisect_left(self.starts, position, key=_start)])

    def drop_below(self, position: int) -> None:
        """Forget what ends at `position` or before it: the log begins there now."""
        gone = bisect_right(self.starts, position, key=_start) - 1
        if gone >= 0:
            self._replace(((self.starts[gone][0], position), *self.starts[gone + 1 :]))

    def _replace(self, starts: tuple[tuple[int, int], ...]) -> None:
        self.starts, self.last = starts, starts[-1][0] if starts else NO_EPOCH

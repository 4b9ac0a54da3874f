"""The leader epochs of a log: the leader that wrote each byte, and the place where two logs diverge.

Each batch carries the epoch of the leader that appended it. Epochs never fall within a log, so a list of
their start positions describes them all. An epoch has one leader, and followers take its bytes in order.
Therefore two logs with bytes of the same epoch are equal up to the earlier end of that epoch.
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
    """The largest epoch that is not above a requested epoch, and the end of its bytes."""

    epoch: int
    end: int


class EpochMap:
    """Start position of each epoch of one log, in order. One thread at a time may change it.

    Any thread may read it.
    """

    __slots__ = ("last", "starts")

    def __init__(self, starts: Iterable[tuple[int, int]] = ()) -> None:
        """Begin with `starts`: (epoch, position of its first batch), both rising."""
        self.starts: tuple[tuple[int, int], ...] = ()
        """Replaced whole at each change."""
        self.last = NO_EPOCH
        """The epoch of the last batch; NO_EPOCH without one."""
        for epoch, start in starts:
            self.note(epoch, start)

    def note(self, epoch: int, position: int) -> None:
        """Note that a batch of `epoch` was appended at `position`. Raise ValueError when an epoch or a
        position falls.

        An epoch that begins where the last epoch does replaces it: retention has deleted all batches of that
        epoch.
        """
        if epoch == self.last:
            return
        if epoch < self.last or (self.starts and position < self.starts[-1][1]):
            raise ValueError(f"epoch {epoch} at {position} follows epoch {self.last} at {self.starts[-1:]}")
        self.cut(position)
        self._replace((*self.starts, (epoch, position)))

    def end_of(self, epoch: int, log_end: int) -> EpochEnd:
        """Return the largest epoch of the log that is not above `epoch`, and its end.

        (NO_EPOCH, 0) if there is none.
        """
        starts = self.starts
        index = bisect_right(starts, epoch, key=_epoch)
        if index == 0:
            return EpochEnd(NO_EPOCH, 0)
        end = starts[index][1] if index < len(starts) else log_end
        return EpochEnd(starts[index - 1][0], end)

    def parting(self, epoch: int, position: int, log_end: int) -> EpochEnd | None:
        """Return the point where this log and the log of a reader diverge; the reader is at `position`, after
        a batch of `epoch`.

        Return None when the batch is in this log, or was until retention deleted it. Return None also for a
        reader that does not know the epoch.
        """
        if epoch == NO_EPOCH or (epoch == self.last and position <= log_end):
            return None
        here = self.end_of(epoch, log_end)
        begin = self.starts[0][1] if self.starts else log_end
        if here.epoch == NO_EPOCH and position <= begin:
            return None
        return None if here.epoch == epoch and position <= here.end else here

    def cut(self, position: int) -> None:
        """Forget the epochs that begin at or after `position`."""
        self._replace(self.starts[: bisect_left(self.starts, position, key=_start)])

    def drop_below(self, position: int) -> None:
        """Forget the epochs that end at or before `position`: the log begins there now."""
        gone = bisect_right(self.starts, position, key=_start) - 1
        if gone >= 0:
            self._replace(((self.starts[gone][0], position), *self.starts[gone + 1 :]))

    def _replace(self, starts: tuple[tuple[int, int], ...]) -> None:
        self.starts, self.last = starts, starts[-1][0] if starts else NO_EPOCH

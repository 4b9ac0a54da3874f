"""Following one leader in one epoch: the place where the two logs diverge, the end that may be reported as
flushed.

This module compares positions and epochs only. The caller copies the bytes.
"""

from __future__ import annotations

from millrace.errors import MillraceError
from millrace_broker.replication.leadership import ReplicaLog
from millrace_broker.storage.epochs import NO_EPOCH, EpochEnd


class ReplicaDiverged(MillraceError):
    """The leader lacks bytes that were committed, and this replica keeps them.

    A leader that does not serve yet is deposed. A leader that serves was elected by hand: an operator must
    decide.
    """

    def __init__(self, message: str, *, leader_serves: bool) -> None:
        super().__init__(message)
        self.leader_serves = leader_serves


class Following:
    """A follower's knowledge of the leader of one epoch."""

    def __init__(self, leader: int, epoch: int, log: ReplicaLog) -> None:
        self.leader, self.epoch = leader, epoch
        self.is_in_step = False
        """True once the leader has found this log to be the beginning of its own."""
        self.has_everything = False
        """True once the log has had everything that a serving leader has committed."""
        self._log = log

    @property
    def position(self) -> tuple[int, int]:
        """(end, epoch of the last batch) of the log: the position of a fetch."""
        return self._log.end, self._log.epochs.last

    @property
    def flushed(self) -> int:
        """End up to which the leader may count this log as flushed.

        -1 while the log may differ from the leader's.
        """
        return self._log.flushed if self.is_in_step else -1

    def accepted(self, committed: int) -> int:
        """Note that the leader found no divergence, and its committed end; return this log's committed end.

        The end is rounded down to a whole unit: the rest of the last unit may be cut again.
        """
        self.is_in_step = True
        self.has_everything |= 0 <= committed <= self._log.end
        return max(self._log.committed, min(committed, self._log.whole_end))

    def cut_at(self, diverging: EpochEnd, leader_committed: int) -> int | None:
        """Return the position at which to cut; `diverging` is the end of the common epoch in the leader's
        log.

        Up to that position both logs have the same bytes, unless the next fetch gets an earlier end. Return
        None if they have no common bytes that this log still holds: then this log begins again, empty, at the
        later of the two logs' starts. It never begins before its own start: retention dropped only committed
        bytes, and a replica that counts must not lack committed bytes. Raise ReplicaDiverged when the cut
        would remove committed bytes.
        """
        self.is_in_step = False
        log = self._log
        own = log.epochs.end_of(diverging.epoch, log.end)
        shared = min(own.end, diverging.end)
        kept = shared if own.epoch != NO_EPOCH and shared >= log.start else None
        new_start = diverging.end if diverging.epoch == NO_EPOCH else log.start
        lost_from = max(log.start, new_start if kept is None else kept)
        lost = ""
        if lost_from < min(log.committed, log.end):
            lost = f"at {lost_from}, below the committed {log.committed}"
        elif log.epochs.last == NO_EPOCH and new_start <= log.start:
            lost = f"before {log.start}, where this log begins"  # to begin again would change nothing
        if lost:
            raise ReplicaDiverged(
                f"the leader {self.leader} of epoch {self.epoch} ends {lost}: it was elected by hand, or its"
                " disk was restored from an old copy",
                leader_serves=leader_committed >= 0,
            )
        return kept

"""The follower's side of one partition: its leader's answers, as changes of its log.

`checked` belongs to the thread that received, `take` to the loop, and the work that `take` returns to a
thread that may wait for the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from millrace.errors import ERRORS, BrokerError, CorruptMessage, MillraceError
from millrace.records import BatchHeader
from millrace.wire.replica import NOT_DIVERGING, Acked, Copied, ReplicaPartition, Wanted
from millrace_broker.replication.committed import CommittedStates
from millrace_broker.replication.following import Following
from millrace_broker.storage.copying import whole_entries
from millrace_broker.storage.epochs import EpochEnd
from millrace_broker.storage.sides import CutSide, LoopSide


class Checked(NamedTuple):
    """A leader's answer, whose records were checked to follow the requested position."""

    copied: Copied
    headers: Sequence[BatchHeader]
    batches: memoryview


def checked(copied: Copied, wanted: Wanted) -> Checked:
    """Check the records. Raise CorruptMessage when they cannot follow the follower's log."""
    if not copied.records:
        return Checked(copied, (), memoryview(b""))
    assert isinstance(copied.records, memoryview), "a follower has its leader's answer in memory"
    headers, size = whole_entries(copied.records, wanted.position, wanted.last_epoch, wanted.epoch)
    if size == 0:
        raise CorruptMessage(f"the leader sent no complete batch at position {wanted.position}")
    return Checked(copied, headers, copied.records[:size])


class Copying:
    """One partition while this broker follows the leader of one epoch."""

    def __init__(
        self, partition: ReplicaPartition, following: Following, log: LoopSide, *, is_behind: bool = False
    ) -> None:
        self.partition, self.following, self.log = partition, following, log
        self.is_behind = is_behind
        """True while the log lacks committed messages, or may lack some because the leader's first answer is
        not taken yet. Never true for an in-sync replica."""
        self.leader_start = log.start
        """Start of the leader's log: segments below it may be deleted here, too."""
        self._start_offset = -1
        self._states = CommittedStates(log)

    @property
    def wanted(self) -> Wanted:
        """The next request to the leader."""
        following = self.following
        return Wanted(self.partition, following.epoch, *following.position, following.flushed)

    @property
    def acked(self) -> Acked | None:
        """The acknowledgement for the leader after a flush; None while the leader must not count this log."""
        flushed = self.following.flushed
        return Acked(self.partition, self.following.epoch, flushed) if flushed >= 0 else None

    def take(self, answer: Checked) -> Callable[[CutSide], None] | None:
        """Process the leader's answer to `wanted`. Return the work that a thread must do before the next
        fetch.

        Raise BrokerError for a refusal by the leader or the disk. Raise ReplicaDiverged when the leader lacks
        committed bytes.
        """
        copied = answer.copied
        if copied.error:
            raise _refused(copied.error, self.partition)
        if copied.diverging_end != NOT_DIVERGING:
            diverging = EpochEnd(copied.diverging_epoch, copied.diverging_end)
            kept = self.following.cut_at(diverging, copied.committed)
            start, start_offset = copied.log_start, copied.start_offset
            if self.log.start > start:
                start, start_offset = self.log.start, self.log.snapshot[1].start_offset
            return lambda log: self._cut(log, kept, start, start_offset)
        if answer.headers:
            self.log.append_copied(answer.headers, answer.batches, copied.segment)
            self._states.appended(self.log.whole)
        self._states.publish(self.following.accepted(copied.committed))
        self.is_behind = self.log.end < copied.committed
        self.leader_start, self._start_offset = copied.log_start, copied.start_offset
        return None

    @property
    def to_delete(self) -> int | None:
        """Offset before which the leader has given up its records, if this log still has them."""
        start, log = self._start_offset, self.log
        return start if log.log_start_offset < start <= log.high_watermark else None

    def _cut(self, log: CutSide, kept: int | None, new_start: int, start_offset: int) -> None:
        if kept is None:
            log.start_over_at(new_start, start_offset)
        else:
            log.cut(kept)
        self._states = CommittedStates(self.log)


def _refused(error: int, partition: ReplicaPartition) -> MillraceError:
    return ERRORS.get(error, BrokerError)(f"{partition}: the leader answers with error {error}")

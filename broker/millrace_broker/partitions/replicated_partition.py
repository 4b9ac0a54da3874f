"""A partition with several replicas that this broker leads: what is flushed here is not shown yet.

Messages are shown, and acks=all is answered, once they are committed: flushed on every in-sync replica, while
there are enough of them. The leadership decides which replicas count; on the loop only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from uuid import UUID

from millrace.errors import (
    BrokerError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    RequestTimedOut,
)
from millrace_broker.mailbox import Mailbox
from millrace_broker.partitions.flush import FlushThreads
from millrace_broker.partitions.partition import Partition, StagedRequest, Unsynced
from millrace_broker.replication.committed import CommittedStates
from millrace_broker.replication.leadership import Leadership
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.state import LogState


class ReplicatedPartition(Partition):
    """A led partition with several replicas, in one epoch."""

    def __init__(
        self,
        topic: str,
        number: int,
        topic_id: UUID,
        leading: Leadership,
        log: PartitionLog,
        mailbox: Mailbox,
        flushes: FlushThreads,
        doubtful: Callable[[], bool],
        *,
        cut_off: Callable[[], bool],
        grown: Callable[[], None],
        flush_failed: Callable[[], None],
    ) -> None:
        """`cut_off` returns True while another broker may lead without this broker's knowledge; `grown` is
        called after each append, `flush_failed` when the state of the disk is unknown."""
        super().__init__(topic, number, topic_id, leading.epoch, log, mailbox, flushes, doubtful)
        self.leading = leading
        self._states = CommittedStates(log)
        self._cut_off, self._grown, self._flush_failed = cut_off, grown, flush_failed
        self._noted_end = log.end
        self._marks: deque[tuple[float, int]] = deque()
        """(time, end of the log then), as far back as a request waits."""

    def check_knows(self, offset: int) -> None:
        if offset > self.log.high_watermark and self._cut_off():
            raise NotLeader(f"{self.name} may be led by another broker, and ZooKeeper is not there to ask")

    def note_append(self) -> None:
        end = self.log.end
        if end > self._noted_end:
            self._noted_end = end
            self._states.appended(self.log.appended)
            self.leading.appended()
            self._grown()

    def show_committed(self) -> None:
        """Make the committed bytes visible, and answer the requests that waited for them."""
        if self.leading.committed > self.log.visible_end:
            before = self.log.visible_end
            self._states.publish(self.leading.committed)
            self._shown(before)

    def refuse_late(self, now: float) -> None:
        """Answer acks=all that has waited for its producer's timeout; called often.

        Its batches are in the log and may yet be committed: a repeated one is a duplicate, and waits, too.
        """
        self._marks.append((now, self.log.end))
        waiting: deque[Unsynced] = deque()
        marks = iter(self._marks)
        began, end = next(marks)
        for entry in self._unsynced:
            while end < entry[0]:
                began, end = next(marks)
            if (now - began) * 1000 < entry[1].timeout_ms:
                waiting.append(entry)
            else:
                self._refuse_late(entry)
        self._unsynced = waiting
        while len(self._marks) > 1 and (not waiting or self._marks[0][1] < waiting[0][0]):
            self._marks.popleft()

    def _refuse_late(self, entry: Unsynced) -> None:
        _, producing, index, outcomes = entry
        self._batches_waiting -= len(outcomes)
        why: BrokerError = RequestTimedOut(f"{self.name} is not flushed on all replicas in sync yet")
        if not self.leading.has_enough:
            why = NotEnoughReplicasAfterAppend(
                f"{self.name} is written here, and too few of its replicas are in sync now"
            )
        self._notify(producing, index, [why] * max(1, len(outcomes)))

    def _append(self, staged: Sequence[StagedRequest]) -> None:
        if not self.leading.has_enough:
            staged = self._without_acks_all(staged)
        if staged:
            super()._append(staged)
            self.note_append()

    def _without_acks_all(self, staged: Sequence[StagedRequest]) -> list[StagedRequest]:
        """Refuse acks=all, as too few replicas are in sync; return the other staged batches."""
        snapshot = self.leading.snapshot
        why = NotEnoughReplicas(
            f"{self.name} has {len(snapshot.state.isr)} replicas in sync, and min.insync.replicas is"
            f" {snapshot.minimum}"
        )
        taken = []
        for batches, producing, index in staged:
            if producing.acks_all:
                self.log.note_refused(batches, [producing.principal] * len(batches), why)
                self._notify(producing, index, [why] * len(batches))
            else:
                taken.append((batches, producing, index))
        return taken

    @property
    def _owes_flush(self) -> bool:
        return self.log.end > self.log.flushed

    @property
    def _may_flush(self) -> bool:
        log = self.log
        return not (self._flushing or self.gone or log.end == log.flushed or log.flush_refusal)

    def _publish(self, flushed: LogState) -> None:
        if self.leading.flushed():
            self.show_committed()

    def _take_outcome(self, flushed: LogState | None, error: BaseException | None) -> None:
        super()._take_outcome(flushed, error)
        if self.log.flush_refusal is not None:
            self._flush_failed()

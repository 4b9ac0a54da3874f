"""One partition this broker leads, while it runs: the requests that wait on it, and its flushes.

Records of one turn are staged and written with one append. A flush runs in a flush thread; when it is done
the loop publishes it, answers acks=all and wakes parked fetches. One flush runs at a time: later appends are
the next one's (group commit). A flush that only parked fetches wait for takes its turn among those of other
partitions (`submit_soon`); one that is due or owed begins beside it. Everything here runs on the loop. The
log handles the bytes.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from millrace.errors import BrokerError, FencedLeaderEpoch, MillraceError, StorageError, UnknownLeaderEpoch
from millrace_broker.mailbox import Mailbox, Timer
from millrace_broker.partitions.flush import FlushThreads
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.sides import BackgroundSide, FlushSide, LoopSide
from millrace_broker.storage.state import LogState

logger = logging.getLogger("millrace.broker.partition")

Outcomes: TypeAlias = Sequence[int | BrokerError]
"""For each batch, its base offset or the error for which it was refused."""
NONE_WAITS: deque[Any] = deque(maxlen=0)
"""The empty queue of every partition that has not needed one yet: a queue takes 760 bytes."""
SMALL_FLUSH_BYTES = 32 << 10
"""Size up to which a flush takes no longer than an empty one. The disk should begin a larger one early."""
FLUSH_AGAIN_S = 0.5
"""Seconds after which a failed flush is tried again, if the log allows it."""


class Producing(Protocol):
    """One or more produce requests that wait for their partitions."""

    acks_all: bool
    principal: str
    """Sender of the batches; places for producer ids are shared out by sender."""
    timeout_ms: int
    """Longest wait of acks=all for other brokers."""

    def appended(self, index: int, outcomes: Outcomes, log_start_offset: int = -1) -> None:
        """Note the outcome of the batches staged under `index`. With acks=all, call it after the flush."""

    def abort(self, reason: str) -> None:
        """Close the client's connection, because a bug left the answer unknown."""


StagedRequest: TypeAlias = tuple[Sequence[memoryview], Producing, int]
"""(batches, the request they belong to, its index)."""


Unsynced: TypeAlias = tuple[int, Producing, int, Outcomes]
"""(log position to be flushed, the request that waits for it, its index, its outcomes)."""


class Parked(Protocol):
    """A fetch that waits for more records."""

    @property
    def any_is_enough(self) -> bool:
        """True if the fetch waits for a single byte, as consumers do for low latency."""

    def grown(self, partition: Partition, size: int) -> None:
        """Note that `size` bytes of the partition were published."""

    def wake(self) -> None:
        """Look again, because the partition was removed or can get no more records."""


class Partition:
    """A led partition: its log, its staged batches, and the requests that wait for its next flush."""

    def __init__(
        self,
        topic: str,
        number: int,
        topic_id: UUID,
        leader_epoch: int,
        log: PartitionLog,
        mailbox: Mailbox,
        flushes: FlushThreads,
        doubtful: Callable[[], bool],
    ) -> None:
        """While `doubtful` returns True the topic may be gone: acks=all then waits for `answer_flushed`."""
        self.topic, self.number, self.topic_id = topic, number, topic_id
        self.log: LoopSide = log
        self.background: BackgroundSide = log
        """The log, for threads that may wait for the disk."""
        self._flush_side: FlushSide = log
        self.leader_epoch = leader_epoch
        log.lead(leader_epoch)
        self.mirrored = False
        """True if the partition is the mirror of another partition: ordinary producers are refused."""
        self.parked: dict[Parked, None] = {}
        self._hurrying = 0
        """Number of parked fetches for which any byte is enough."""
        self.opened_end = log.end
        self.batches_in = 0
        self.bytes_out = self.reads_out = 0
        """Metrics: produced batches (`batches_in`), and bytes and slices of records sent to consumers."""
        self.gone: BrokerError | None = None
        """Reason why the partition is no longer served; None while it is served."""
        self._mailbox, self._flushes, self._doubtful = mailbox, flushes, doubtful
        self._staged: list[StagedRequest] = []
        self._unsynced: deque[Unsynced] = NONE_WAITS
        self._watched: deque[tuple[int, Callable[[], None]]] = NONE_WAITS
        """(log position, function to call once it is flushed). No client waits, so no flush is hurried."""
        self._flushing = self._flushing_soon = self._failing = False
        self._batches_waiting = self._answered_together = 0
        """Numbers of batches of acks=all in `_unsynced`, and of those that the last flush answered. Batches
        that several replicas have to flush are not counted as answered."""
        self._expecting: Timer | None = None
        """Set while the next flush waits for the producers that shared the last one."""
        self._timer: Timer | None = None
        self._idle: Future[None] | None = None
        """Set once the partition is closed; done once no flush runs."""

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.number}"

    def check_epoch(self, known: int) -> None:
        """Refuse a client whose leader epoch differs from this partition's; -1: the client knows none."""
        if known > self.leader_epoch:
            raise UnknownLeaderEpoch(f"{self.name} is led in epoch {self.leader_epoch} here, not {known}")
        if 0 <= known < self.leader_epoch:
            raise FencedLeaderEpoch(f"{self.name} is led in epoch {self.leader_epoch} now, not {known}")

    def check_knows(self, offset: int) -> None:
        """Raise NotLeader if an offset after the end may exist at a new leader."""

    def stage(self, batches: Sequence[memoryview], producing: Producing, index: int = 0) -> None:
        """Take checked batches; `write` appends them with all others of this turn."""
        self._staged.append((batches, producing, index))

    def write(self) -> None:
        """Append the staged batches, answer acks=1, note acks=all, and flush if due. Raises nothing."""
        staged, self._staged = self._staged, []
        try:
            self._append(staged)
            self.maybe_flush()
        except Exception:
            logger.exception("a bug while appending to %s", self.name)
            for _, producing, _ in staged:
                self._abort(producing)

    def _append(self, staged: Sequence[StagedRequest]) -> None:
        batches: list[memoryview] = []
        principals: list[str] = []
        for own, producing, _ in staged:
            batches += own
            principals += [producing.principal] * len(own)
        outcomes = self.log.append(batches, principals)
        self.batches_in += len(batches)
        start, first = self.log.log_start_offset, 0
        for own, producing, index in staged:
            mine = outcomes[first : first + len(own)]
            first += len(own)
            if producing.acks_all and self._must_wait(mine):
                self._await_flush((self.log.end, producing, index, mine))
            else:
                self._notify(producing, index, mine, start)

    def _must_wait(self, outcomes: Outcomes) -> bool:
        """Return True if acks=all waits. A duplicate does, too: the first one may not be on the disk yet."""
        has_unseen = self.log.end > self.log.visible_end or self._doubtful()
        return has_unseen and any(isinstance(outcome, int) for outcome in outcomes)

    def _await_flush(self, entry: Unsynced) -> None:
        if self._unsynced is NONE_WAITS:
            self._unsynced = deque()
        self._unsynced.append(entry)
        self._batches_waiting += len(entry[3])

    def _notify(self, producing: Producing, index: int, outcomes: Outcomes, start: int = -1) -> None:
        """Answer one client. A bug while answering closes only this client's connection."""
        try:
            producing.appended(index, outcomes, start)
        except Exception:
            logger.exception("a bug while answering a producer of %s", self.name)
            self._abort(producing)

    def _abort(self, producing: Producing) -> None:
        try:
            producing.abort(f"a bug was met while its request to {self.name} was served")
        except Exception:
            logger.exception("a bug while closing the connection of a producer of %s", self.name)

    def maybe_flush(self) -> None:
        """Start a flush if one is due, unless it waits for more, or set a timer for it.

        Call it after each append.
        """
        if not self._may_flush:
            return
        log = self.log
        if self._unsynced or log.unflushed_messages >= log.config.flush_messages:
            if not self._expects_more:
                self._start_flush()
            elif self._expecting is None:
                self._expecting = self._mailbox.when_idle(self._stop_expecting)
            return
        if self._timer is None:
            self._timer = self._mailbox.after(log.config.flush_ms / 1000, self._flush_is_due)
        if self._hurrying and not (self._flushing_soon or self._failing) and log.config.flush == "soon":
            self._flushing_soon = True
            self._flushes.submit_soon(self._flush_side, self._flushed_soon)

    def park(self, fetch: Parked) -> None:
        """Let a fetch wait for more records. The records may already be appended, but not flushed."""
        if fetch not in self.parked:
            self.parked[fetch] = None
            self._hurrying += fetch.any_is_enough
            self.maybe_flush()

    def leave(self, fetch: Parked) -> None:
        if fetch in self.parked:
            del self.parked[fetch]
            self._hurrying -= fetch.any_is_enough

    @property
    def _owes_flush(self) -> bool:
        return self.log.end > self.log.visible_end

    @property
    def _may_flush(self) -> bool:
        log = self.log
        # A log that only refuses more writes still owes the flush of what it has taken.
        return not (self._flushing or self.gone or log.end == log.visible_end or log.flush_refusal)

    @property
    def _expects_more(self) -> bool:
        """True if more producers will probably share the next flush: those that shared the last one were
        answered together, and send again together."""
        is_small = self.log.end - self.log.visible_end <= SMALL_FLUSH_BYTES
        return is_small and 0 < self._batches_waiting < self._answered_together

    def _stop_expecting(self) -> None:
        self._expecting = None
        self.flush()

    def flush(self) -> None:
        """Start the flush of the bytes not on the disk yet, if there are any and no flush runs."""
        if self._may_flush:
            self._start_flush()

    def answer_when_flushed(self, end: int, producing: Producing) -> None:
        """Notify `producing`, as for acks=all, when the log is on the disk up to `end`; flush it at once."""
        if end > self.log.visible_end or (end and self._doubtful()):
            self._await_flush((end, producing, 0, ()))
            self.maybe_flush()
        else:
            self._notify(producing, 0, (), self.log.log_start_offset)

    def answer_flushed(self) -> None:
        """Answer acks=all for all flushed batches, unless the topic must be read again first."""
        visible, start = self.log.visible_end, self.log.log_start_offset
        while self._unsynced and self._unsynced[0][0] <= visible and not self._doubtful():
            _, producing, index, outcomes = self._unsynced.popleft()
            self._batches_waiting -= len(outcomes)
            self._notify(producing, index, outcomes, start)

    def note_append(self) -> None:
        """Note an append that was not made by `write`."""

    def when_visible(self, end: int, then: Callable[[], None]) -> None:
        """Call `then` when consumers see the log up to `end`. Starts no flush."""
        if self._watched is NONE_WAITS:
            self._watched = deque()
        self._watched.append((end, then))

    def close(self, why: BrokerError) -> Future[None]:
        """Stop serving the partition and refuse every waiting request. The result is done once no flush
        runs."""
        self.gone = why
        self.refuse_staged(why)
        self.refuse_waiting(why)
        self.wake_parked()
        self._idle = idle = Future[None]()
        self._note_idle()
        return idle

    def _note_idle(self) -> None:
        if self._idle is not None and not (self._flushing or self._flushing_soon or self._idle.done()):
            self._idle.set_result(None)

    def finalize(self) -> None:
        """Flush the rest in this thread and answer waiting requests, after the flush threads have ended."""
        if self._owes_flush and self.log.flush_refusal is None:
            try:
                self._flushed(self._flush_side.flush(), None)
            except (MillraceError, OSError) as error:
                self._flushed(None, error)

    def wake_parked(self) -> None:
        for fetch in self.parked:
            fetch.wake()

    def _flush_is_due(self) -> None:
        self._timer = None
        self.flush()

    def _start_flush(self) -> None:
        for timer in (self._timer, self._expecting):
            if timer is not None:
                timer.cancel()
        self._timer = self._expecting = None
        self._flushing = True
        self._flushes.submit(self._flush_side, self._flushed)

    def _flushed(self, flushed: LogState | None, error: BaseException | None) -> None:
        self._flushing = False
        self._take_outcome(flushed, error)

    def _flushed_soon(self, flushed: LogState | None, error: BaseException | None) -> None:
        self._flushing_soon = False
        self._take_outcome(flushed, error)

    def _take_outcome(self, flushed: LogState | None, error: BaseException | None) -> None:
        self._failing = flushed is None
        if flushed is None:
            logger.error("flush of %s failed: %s", self.name, error)
            self.refuse_waiting(StorageError(f"{self.name} could not be flushed"))
            self.wake_parked()
            if self.log.flush_refusal is None and self.gone is None and self._timer is None:
                self._timer = self._mailbox.after(FLUSH_AGAIN_S, self._flush_is_due)
        elif self.gone is None:
            # Else nothing is published: when the log is led here again, a flush of the new `Partition`
            # publishes it, and only that one knows its waiting requests.
            self._publish(flushed)
            self.maybe_flush()
        self._note_idle()

    def _publish(self, flushed: LogState) -> None:
        """Make flushed bytes visible."""
        before, waiting = self.log.visible_end, self._batches_waiting
        self.log.publish(flushed)
        self._shown(before)
        self._answered_together = waiting - self._batches_waiting

    def _shown(self, before: int) -> None:
        """Answer and wake the requests that waited for bytes beyond `before`, which are visible now."""
        visible = self.log.visible_end
        self.answer_flushed()
        while self._watched and self._watched[0][0] <= visible:
            self._call(self._watched.popleft()[1])
        for fetch in self.parked:
            fetch.grown(self, visible - before)

    def _call(self, then: Callable[[], None]) -> None:
        try:
            then()
        except Exception:
            logger.exception("a bug after a flush of %s", self.name)

    def refuse_staged(self, why: BrokerError) -> None:
        """Answer this turn's requests with an error that may pass, before a later one can be answered."""
        staged, self._staged = self._staged, []
        for batches, producing, index in staged:
            self.log.note_refused(batches, [producing.principal] * len(batches), why)
            self._notify(producing, index, [why] * len(batches))

    def refuse_waiting(self, why: BrokerError) -> None:
        """Answer every waiting acks=all with an error."""
        waiting, self._unsynced, self._batches_waiting = self._unsynced, NONE_WAITS, 0
        for _, producing, index, outcomes in waiting:
            self._notify(producing, index, [why] * max(1, len(outcomes)))

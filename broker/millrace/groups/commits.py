"""The offsets one group commits, on their way to ZooKeeper: one write at a time, in the order they came.

What comes while a write is under way is written together with the next one, the last offset of a partition
alone. So a slow ZooKeeper makes writes larger, not the queue longer, and an older offset never follows a
newer one. Whoever waits too long is told to try again; what it committed may still be written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from millrace.coordination.groups import CommittedOffset, Fence
from millrace.errors import ErrorCode
from millrace.groups.timing import Memory
from millrace.groups.work import Waiting, Work
from millrace.mailbox import Mailbox
from millrace.records.topic_partition import TopicPartition

OFFSET_BYTES = 500
"""Counted for an offset that waits, beside its metadata."""


class Write(Protocol):
    """`ConsumerRegistry.commit` of one group."""

    def __call__(self, offsets: Mapping[TopicPartition, CommittedOffset], *, fence: Fence) -> None:
        """Write them all if the fence holds."""


class Commits:
    """The queue of one group. `fenced` is called when another broker has become its coordinator."""

    def __init__(
        self,
        write: Write,
        fence: Fence,
        work: Work,
        mailbox: Mailbox,
        memory: Memory,
        fenced: Callable[[], None],
    ) -> None:
        self.fence = fence
        self._write, self._work, self._mailbox, self._memory = write, work, mailbox, memory
        self._fenced = fenced
        self._offsets: dict[TopicPartition, CommittedOffset] = {}
        self._waiting: list[Waiting[None]] = []
        self._writing = False

    @property
    def busy(self) -> bool:
        """True while something is being written, or waits for that."""
        return self._writing

    def add(
        self, offsets: Mapping[TopicPartition, CommittedOffset], answer: Callable[[ErrorCode], None]
    ) -> None:
        """Write these, too; `answer` hears what came of it, within a few seconds."""
        size = _size(offsets)
        if not self._memory.has_room(size):
            answer(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        self._memory.add(size - _size({p: o for p, o in self._offsets.items() if p in offsets}))
        self._offsets.update(offsets)
        self._waiting.append(Waiting(self._mailbox, lambda _: answer(ErrorCode.NONE), answer))
        if not self._writing:
            self._write_all()

    def drop(self, code: ErrorCode) -> None:
        """Forget what is not being written yet; whoever waits for that is answered `code`."""
        self._memory.add(-_size(self._offsets))
        self._offsets = {}
        all_waiting, self._waiting = self._waiting, []
        for waiting in all_waiting:
            waiting.fail(code)

    def _write_all(self) -> None:
        offsets, self._offsets = self._offsets, {}
        all_waiting, self._waiting = self._waiting, []
        self._writing = True
        fence = self.fence

        def written(_: None) -> None:
            self._finish(offsets)
            for waiting in all_waiting:
                waiting.succeed(None)

        def failed(code: ErrorCode) -> None:
            gone = code in (ErrorCode.NOT_COORDINATOR, ErrorCode.GROUP_ID_NOT_FOUND)
            if gone:
                self._fenced()
            self._finish(offsets)
            for waiting in all_waiting:
                waiting.fail(ErrorCode.NOT_COORDINATOR if gone else code)

        self._work.run(lambda: self._write(offsets, fence=fence), written, failed)

    def _finish(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self._memory.add(-_size(offsets))
        self._writing = False
        if self._waiting:
            self._write_all()


def _size(offsets: Mapping[TopicPartition, CommittedOffset]) -> int:
    return sum(OFFSET_BYTES + len(offset.metadata) for offset in offsets.values())

"""The offsets one group commits, on their way to ZooKeeper: one write at a time, in the order they came.

Offsets that come while a write is under way are written together with the next one; of each partition only
the last. So a slow ZooKeeper makes writes larger, not the queue longer, and an older offset never follows a
newer one. A client that waits too long has to try again; its offsets may still be written. Before each write
ZooKeeper is asked whether the topics still have the ids in the offsets: the snapshot may be stale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from millrace.errors import ErrorCode, TopicChanged
from millrace.records.topic_partition import TopicPartition
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.coordination.groups import CommittedOffset, ConsumerRegistry, Fence
from millrace_broker.groups.timing import Memory
from millrace_broker.groups.work import Waiting, Work
from millrace_broker.mailbox import Mailbox, outcome

OFFSET_BYTES = 500
"""Bytes counted for an offset that waits, beside its metadata."""

Offsets: TypeAlias = Mapping[TopicPartition, CommittedOffset]


def check_topics(cluster: Cluster, offsets: Offsets) -> None:
    """Raise TopicChanged unless every topic has the id in its offsets; in a thread."""
    ids = cluster.topic_ids({topic for topic, _ in offsets})
    for (topic, _), offset in offsets.items():
        if ids.get(topic) != offset.topic_id:
            raise TopicChanged(f"topic {topic} was deleted or recreated")


class Commits:
    """The queue of one group's commits. `fenced` is called when another broker has become its coordinator."""

    def __init__(
        self,
        group: str,
        cluster: Cluster,
        registry: ConsumerRegistry,
        fence: Fence,
        work: Work,
        mailbox: Mailbox,
        memory: Memory,
        fenced: Callable[[], None],
    ) -> None:
        self.fence = fence
        self.busy = self.has_written = False
        self._group, self._cluster, self._registry = group, cluster, registry
        self._work, self._mailbox, self._memory = work, mailbox, memory
        self._fenced = fenced
        self._offsets: dict[TopicPartition, CommittedOffset] = {}
        self._waiting: list[Waiting[ErrorCode]] = []

    async def add(self, offsets: Offsets) -> ErrorCode:
        """Queue these offsets, too; return the outcome of their write within a few seconds."""
        size = _size(offsets)
        if not self._memory.has_room(size):
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._memory.add(size - _size({p: o for p, o in self._offsets.items() if p in offsets}))
        self._offsets.update(offsets)
        waiting: Waiting[ErrorCode] = Waiting(self._mailbox, items=len(offsets))
        self._waiting.append(waiting)
        if not self.busy:
            self._mailbox.begin(self._write_all())
        return await outcome(waiting)

    def drop(self, code: ErrorCode) -> None:
        """Forget the offsets not being written yet, and answer their clients with `code`."""
        offsets, waiting = self._take()
        self._memory.add(-_size(offsets))
        for one in waiting:
            one.settle(code)

    def _take(self) -> tuple[Offsets, list[Waiting[ErrorCode]]]:
        taken = self._offsets, self._waiting
        self._offsets, self._waiting = {}, []
        return taken

    async def _write_all(self) -> None:
        """Write the waiting offsets, then offsets that arrived meanwhile."""
        self.busy = True
        while self._waiting:
            offsets, waiting = self._take()
            code = await self._work.run(partial(self._write, offsets, self.fence))
            self._memory.add(-_size(offsets))
            if code is ErrorCode.GROUP_ID_NOT_FOUND:
                code = ErrorCode.NOT_COORDINATOR
            for one in waiting:
                one.settle(code)
            self.has_written |= code is ErrorCode.NONE
            if code is ErrorCode.NOT_COORDINATOR:
                self._fenced()
        self.busy = False

    def _write(self, offsets: Offsets, fence: Fence) -> ErrorCode:
        """In a thread: write the offsets, unless a topic was deleted or recreated."""
        check_topics(self._cluster, offsets)
        self._registry.commit(self._group, offsets, fence=fence)
        return ErrorCode.NONE


def _size(offsets: Offsets) -> int:
    return sum(OFFSET_BYTES + len(offset.metadata) for offset in offsets.values())

"""Changes of partitions in ZooKeeper, gathered by topic: one compare-and-set writes all that wait.

A compare-and-set reads the topic's newest state, applies the waiting changes and writes the result. If its
outcome is unknown, nothing changes here: the next state that is read shows whether it was written.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import NamedTuple, TypeAlias
from uuid import UUID

from millrace import errors
from millrace.zookeeper.topic_state import PartitionState, TopicState
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.mailbox import Mailbox, outcome
from millrace_broker.partitions.hosted import HostedPartition
from millrace_broker.replication.leadership import Snapshot

logger = logging.getLogger("millrace.replication")

GATHER_S = 0.003
"""Time for which changes of one topic are gathered into one write. Those which come while it is written are
the next one's."""

Apply: TypeAlias = Callable[[Snapshot], PartitionState | None]
"""Function from the newest state to the state to write; None if nothing must be written (any more)."""
Written: TypeAlias = tuple[Snapshot | None, bool]
"""The newest state, and True if the change is in it. (None, False) if the outcome is unknown."""
UNKNOWN: Written = (None, False)


class _Change(NamedTuple):
    number: int
    apply: Apply
    written: Future[Written]


class TopicWrites:
    """Writes changes of partitions, in threads. On the loop."""

    def __init__(self, cluster: Cluster, mailbox: Mailbox, pool: Executor) -> None:
        self._cluster, self._mailbox, self._pool = cluster, mailbox, pool
        self._changes: dict[tuple[str, UUID], list[_Change]] = {}
        """Changes that wait, by topic. A topic stays here while one of its writes runs."""

    async def write(self, one: HostedPartition, apply: Apply) -> Written:
        """Write a change of a partition, together with other changes of its topic."""
        topic = (one.key[0], one.topic_id)
        if topic not in self._changes:
            self._changes[topic] = []
            self._mailbox.begin(self._write_all(topic))
        change = _Change(one.key[1], apply, Future())
        self._changes[topic].append(change)
        return await outcome(change.written)

    async def _write_all(self, topic: tuple[str, UUID]) -> None:
        """Write a topic's waiting changes, and further changes that arrive meanwhile."""
        await self._mailbox.sleep(GATHER_S)
        while changes := self._changes[topic]:
            self._changes[topic], written = [], [UNKNOWN] * len(changes)
            try:
                written = await outcome(self._pool.submit(_write, self._cluster, topic, changes))
            except Exception as error:
                logger.warning(
                    "cannot change who leads %s: %s", topic[0], error, exc_info=errors.is_bug(error)
                )
            for change, its_outcome in zip(changes, written, strict=True):
                change.written.set_result(its_outcome)
        del self._changes[topic]


def snapshot_of(topic: TopicState, number: int) -> Snapshot:
    return Snapshot(topic.version, topic.partitions[number], topic.minimum(number))


def _write(cluster: Cluster, topic: tuple[str, UUID], changes: Sequence[_Change]) -> list[Written]:
    """Make several changes in one compare-and-set; return the outcome of each. Call it in a thread."""
    name, topic_id = topic
    made: set[int] = set()

    def change(newest: TopicState) -> TopicState:
        made.clear()
        if newest.topic_id != topic_id:
            raise errors.UnknownTopicOrPartition(f"topic {name} was deleted and recreated")
        partitions = dict(newest.partitions)
        for index, one in enumerate(changes):
            if one.number in partitions:
                state = one.apply(snapshot_of(newest, one.number))
                if state is not None:
                    partitions[one.number] = state
                    made.add(index)
        return dataclasses.replace(newest, partitions=partitions)

    written = cluster.change_topic(name, change)
    return [
        (snapshot_of(written, one.number), index in made) if one.number in written.partitions else UNKNOWN
        for index, one in enumerate(changes)
    ]

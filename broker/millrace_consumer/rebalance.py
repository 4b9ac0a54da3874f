"""The decentralised rebalancing of the 2011 paper: every consumer of a group does it for itself.

The rebalancer owns this consumer's partitions: it claims, releases and commits them, and watches the
registries. Any change of the brokers, the topics or the group's consumers wakes it. A topic whose partitions
and streams are unchanged since its last rebalance stays as it is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from uuid import UUID

from millrace.client.fetcher import Rounds
from millrace.errors import BrokerError
from millrace.records.topic_partition import TopicPartition
from millrace.zookeeper.session import OPERATION_SECONDS
from millrace_broker.coordination import groups
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.coordination.groups import ConsumerRegistry, Fence, NotOwner, stream_name
from millrace_consumer.assignment import assign
from millrace_consumer.puller import Pullers
from millrace_consumer.registration import Registration
from millrace_consumer.streams import MessageStream, OwnedPartition

logger = logging.getLogger("millrace.consumer.rebalance")

HAND_OVER_SECONDS = 5.0
"""Seconds for which a partition is kept for a message in hand. Then it is released without that message."""
RETRY_SECONDS = 0.2
MAX_RETRY_SECONDS = 1.0
TRIES_BEFORE_LOGGED = 4

Shape = tuple[UUID | None, tuple[int, ...], tuple[str, ...]]
"""Input of a topic's assignment: the topic's id, its live partitions, the streams that read it."""


class Rebalancer(Rounds):
    """Keeps the streams of one consumer supplied with their share of the partitions."""

    max_pause_seconds = MAX_RETRY_SECONDS

    def __init__(
        self,
        group: str,
        cluster: Cluster,
        registry: ConsumerRegistry,
        streams: Mapping[str, list[MessageStream]],
        pullers: Pullers,
        *,
        commit_every: float | None,
    ) -> None:
        """Prepare the thread; `commit_every` is in seconds, None for commits by `commit` only."""
        super().__init__(f"consumer {group}", logger, f"group {group}")
        self.owned: Mapping[TopicPartition, OwnedPartition] = {}
        self._group, self._cluster, self._registry = group, cluster, registry
        self._streams, self._pullers, self._commit_every = streams, pullers, commit_every
        counts = {topic: len(of_topic) for topic, of_topic in streams.items()}
        self._registration = Registration(cluster.session, registry, group, counts, self.wake)
        self._fence: Fence | None = None  # fence under which everything in `owned` is owned
        self._members: Mapping[str, groups.StreamsMember] = {}
        self._members_stale = threading.Event()
        self._settled: dict[str, Shape] = {}
        self._claimed: dict[str, list[TopicPartition]] = {}  # claimed, perhaps owned, not in `owned` yet
        self._retry: dict[str, tuple[int, float]] = {}  # topic -> (tries, when to try again)
        self._commit_at = time.monotonic()
        self._writing = threading.RLock()  # one commit or release at a time, in this order in ZooKeeper

    def register(self) -> None:
        """Join the group. Raise MillraceError when the group refuses."""
        self._registration.register()

    def start(self) -> None:
        """Rebalance, now and whenever something changes, in a thread of its own."""
        self._cluster.on_change(self.wake)
        super().start()

    def close(self) -> None:
        """Commit, release and leave. Blocks. Raise MillraceError when ZooKeeper cannot be reached."""
        self.stop()
        try:
            self.join(OPERATION_SECONDS)
            if self.is_alive():
                raise BrokerError("ZooKeeper does not answer")
            if self._fence is not None:
                self._release(list(self.owned.values()), self._fence)
            self._registration.close()
        finally:
            self._registration.stop()

    # The loop

    def round(self) -> None:
        try:
            self._look()
        except NotOwner as error:
            logger.warning("group %s: %s; registering again", self._group, error)
            self._registration.lost()
        else:
            self.sleep(self._next_due())

    def _next_due(self) -> float | None:
        due = [when for _, when in self._retry.values()]
        if self._commit_every is not None:
            due.append(self._commit_at)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _look(self) -> None:
        """Do the due steps: register, rebalance changed topics, commit."""
        fence = self._registration.register()
        if fence is not self._fence:
            self._forget_everything()
            self._fence = fence
        self._read_members()
        for topic in self._streams:
            if self.stopping.is_set():
                return
            tries, when = self._retry.get(topic, (0, 0.0))
            if self._settled.get(topic) == self._shape(topic) or when > time.monotonic():
                continue
            if self._rebalance(topic, fence):
                self._retry.pop(topic, None)
                continue
            pause = min(RETRY_SECONDS * 2**tries, MAX_RETRY_SECONDS)
            self._retry[topic] = (tries + 1, time.monotonic() + pause)
            if tries + 1 == TRIES_BEFORE_LOGGED:
                logger.warning("group %s: other consumers still own partitions of %s", self._group, topic)
        self._pullers.refresh()
        if self._commit_every is not None and self._commit_at <= time.monotonic():
            self._commit_at = time.monotonic() + self._commit_every
            self.commit()

    def _read_members(self) -> None:
        if not self._members_stale.is_set():
            return
        self._members_stale.clear()
        try:
            self._members = self._registry.members(self._group, self._members_changed)
        except BaseException:
            self._members_stale.set()
            raise

    def _members_changed(self, event: object) -> None:
        self._members_stale.set()
        self.wake()

    def _shape(self, topic: str) -> Shape:
        state = self._cluster.topics.get(topic)
        alive = self._cluster.brokers
        streams = sorted(
            stream_name(consumer, index)
            for consumer, member in self._members.items()
            for index in range(member.topics.get(topic, 0))
        )
        if state is None:
            return None, (), tuple(streams)
        partitions = sorted(number for number, p in state.partitions.items() if p.leader in alive)
        return state.topic_id, tuple(partitions), tuple(streams)

    # Algorithm 1, for one topic

    def _rebalance(self, topic: str, fence: Fence) -> bool:
        """Claim exactly this consumer's share of the topic.

        Return False when another consumer still owns a part of it.
        """
        self._settled.pop(topic, None)
        # Remove the partitions we own from the ownership registry.
        self._release([owned for name, owned in self.owned.items() if name[0] == topic], fence)
        if topic in self._claimed:  # a failure came between
            self._registry.disown(self._group, self._claimed[topic], fence)
        # Read the broker and the consumer registries: all partitions, all streams that read the topic.
        shape = topic_id, partitions, streams = self._shape(topic)
        # Sort both; the i-th stream reads the i-th range of partitions.
        shares = assign(partitions, streams)
        readers: dict[TopicPartition, MessageStream] = {}
        owners: dict[TopicPartition, str] = {}
        for index, stream in enumerate(self._streams[topic]):
            owner = stream_name(self._registration.consumer_id, index)
            for number in shares.get(owner, ()):
                readers[topic, number], owners[topic, number] = stream, owner
        # Own each of them. If another consumer still owns one, release all, wait and begin again.
        self._claimed[topic] = list(owners)
        if topic_id is not None and not self._registry.own(self._group, owners, fence):
            return False
        # Read the offsets to begin at from the offset registry, and have the partitions pulled.
        if topic_id is not None:
            self._begin(readers, topic_id, fence)
        del self._claimed[topic]
        self._settled[topic] = shape
        logger.info(
            "group %s: reads %s of %s (%d partitions, %d streams)",
            self._group,
            sorted(number for _, number in readers) or "nothing",
            topic,
            len(partitions),
            len(streams),
        )
        return True

    def _begin(self, readers: Mapping[TopicPartition, MessageStream], topic_id: UUID, fence: Fence) -> None:
        committed = groups.committed_positions(
            self._registry.offsets(self._group, readers), {topic: topic_id for topic, _ in readers}
        )
        begun = {
            name: OwnedPartition(
                name, topic_id, stream, committed.get(name), lambda: self._registration.proves(fence)
            )
            for name, stream in readers.items()
        }
        self.owned = {**self.owned, **begun}
        self._pullers.refresh()

    def _release(self, partitions: Collection[OwnedPartition], fence: Fence) -> None:
        """Commit the consumed messages of these partitions, then give the partitions up."""
        if not partitions:
            return
        streams = {partition.stream for partition in partitions}
        for stream in streams:
            stream.stop(partitions)
        deadline = time.monotonic() + HAND_OVER_SECONDS
        for stream in streams:
            if not stream.wait_for_hands(partitions, deadline - time.monotonic()):
                logger.warning(
                    "group %s: a message was in work for more than %g s; the next owner of its partition "
                    "gets it again",
                    self._group,
                    HAND_OVER_SECONDS,
                )
        with self._writing:
            if self._commit_every is not None:
                self._commit(partitions, fence)
            self._registry.disown(self._group, [p.topic_partition for p in partitions], fence)
            self._end(partitions)

    def _end(self, partitions: Collection[OwnedPartition]) -> None:
        for stream in {partition.stream for partition in partitions}:
            stream.end(partitions)
        self.owned = {name: owned for name, owned in self.owned.items() if owned not in partitions}

    def _forget_everything(self) -> None:
        """Forget everything owned: the registration is lost, and all ownership with it."""
        with self._writing:
            self._end(list(self.owned.values()))
            self._settled.clear()
            self._claimed.clear()
            self._members_stale.set()  # the watch was lost with the session

    # Offsets

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Continue at `offset` in a partition. Raise NotOwner when this consumer does not own it."""
        with self._writing:  # not while the partition is being given up: its offset is written already
            owned = self.owned.get(topic_partition)
            if owned is None:
                raise NotOwner("{}-{} is not owned by this consumer (any more)".format(*topic_partition))
            owned.stream.seek(owned, offset)

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Write these offsets, or the application's positions.

        Raise NotOwner when this consumer does not own a partition.
        """
        with self._writing:
            owned, fence = self.owned, self._fence
            missing = sorted(set(offsets or ()) - owned.keys())
            if fence is None or missing:
                what = ", ".join(f"{topic}-{number}" for topic, number in missing) or "the registration"
                raise NotOwner(f"{what} is not owned by this consumer (any more): nothing is committed")
            if offsets is None:
                self._commit(owned.values(), fence)
            else:
                self._write({owned[name]: offset for name, offset in offsets.items()}, fence)

    def _commit(self, partitions: Collection[OwnedPartition], fence: Fence) -> None:
        done = {partition: partition.done for partition in partitions}
        changed = {p: offset for p, offset in done.items() if offset is not None and offset != p.committed}
        self._write(changed, fence)

    def _write(self, offsets: Mapping[OwnedPartition, int], fence: Fence) -> None:
        now = time.time_ns() // 1_000_000
        entries = {
            partition.topic_partition: groups.CommittedOffset(
                offset=offset, time_ms=now, topic_id=partition.topic_id
            )
            for partition, offset in offsets.items()
        }
        if entries:
            self._registry.commit(self._group, entries, fence=fence)
        for partition, offset in offsets.items():
            partition.committed = offset

"""The decentralised rebalancing of the 2011 paper: every consumer of a group does it for itself.

Owns what this consumer owns: it claims, releases and commits partitions, and follows the registries. Any
change of the brokers, the topics or the group's consumers wakes it; a topic whose partitions and streams are
what they were at its last rebalance is left alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from uuid import UUID

from millrace.consumer.assignment import assign
from millrace.consumer.puller import Pullers
from millrace.consumer.registration import Registration
from millrace.consumer.streams import MessageStream, OwnedPartition
from millrace.coordination.cluster import Cluster
from millrace.coordination.groups import (
    CommittedOffset,
    ConsumerRegistry,
    Fence,
    NotOwner,
    StreamsMember,
    committed_positions,
    stream_name,
)
from millrace.coordination.session import OPERATION_SECONDS
from millrace.errors import BrokerError, MillraceError
from millrace.records.topic_partition import TopicPartition

log = logging.getLogger(__name__)

HAND_OVER_SECONDS = 5.0
"""How long a partition is kept for a message that is being worked on, before it is given up without it."""
RETRY_SECONDS = 0.2
MAX_RETRY_SECONDS = 1.0
TRIES_BEFORE_TOLD = 4

Shape = tuple[UUID | None, tuple[int, ...], tuple[str, ...]]
"""What a topic's assignment is computed from: its id, its live partitions, the streams that read it."""


class Rebalancer:
    """Keeps the streams of one consumer supplied with their share of the partitions."""

    def __init__(
        self, group: str, cluster: Cluster, registry: ConsumerRegistry,
        streams: Mapping[str, list[MessageStream]], pullers: Pullers, *, commit_every: float | None,
    ) -> None:  # fmt: skip
        """`commit_every` in seconds; None: only when told to."""
        self.owned: Mapping[TopicPartition, OwnedPartition] = {}
        self._group, self._cluster, self._registry = group, cluster, registry
        self._streams, self._pullers, self._commit_every = streams, pullers, commit_every
        wanted = {topic: len(each) for topic, each in streams.items()}
        self._registration = Registration(cluster.session, registry, group, wanted, self.wake)
        self._fence: Fence | None = None  # under which everything in `owned` is owned
        self._members: Mapping[str, StreamsMember] = {}
        self._members_stale = threading.Event()
        self._settled: dict[str, Shape] = {}
        self._claimed: dict[str, list[TopicPartition]] = {}  # asked for, perhaps owned, not in `owned` yet
        self._retry: dict[str, tuple[int, float]] = {}  # topic -> (tries, when to try again)
        self._commit_at = time.monotonic()
        self._writing = threading.RLock()  # one commit or release at a time, in this order in ZooKeeper
        self._woken, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"consumer {group}", daemon=True)

    def register(self) -> None:
        """Join the group; MillraceError when it is refused."""
        self._registration.register()

    def start(self) -> None:
        """Rebalance, now and whenever something changes, in a thread of its own."""
        self._cluster.on_change(self.wake)
        self._thread.start()

    def wake(self) -> None:
        """Look at the registries now. From any thread."""
        self._woken.set()

    def close(self) -> None:
        """Commit, release and leave. Blocks; MillraceError when ZooKeeper cannot be told."""
        self._closing.set()
        self.wake()
        try:
            self._thread.join(OPERATION_SECONDS)
            if self._thread.is_alive():
                raise BrokerError("ZooKeeper does not answer")
            if self._fence is not None:
                self._release(list(self.owned.values()), self._fence)
            self._registration.close()
        finally:
            self._registration.stop()

    # The loop

    def _run(self) -> None:
        while not self._closing.is_set():
            self._woken.clear()
            try:
                self._look()
            except NotOwner as error:
                log.warning("group %s: %s; registering anew", self._group, error)
                self._registration.lost()
                continue
            except MillraceError as error:
                log.warning("group %s: %s; trying again", self._group, error)
                self._closing.wait(MAX_RETRY_SECONDS)
                continue
            except Exception:  # a mistake of ours must not leave the streams without partitions for ever
                log.exception("group %s: rebalancing failed; trying again", self._group)
                self._closing.wait(MAX_RETRY_SECONDS)
                continue
            self._woken.wait(self._next_due())

    def _next_due(self) -> float | None:
        due = [when for _, when in self._retry.values()]
        if self._commit_every is not None:
            due.append(self._commit_at)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _look(self) -> None:
        """Do what is due: register, rebalance what has changed, commit."""
        fence = self._registration.register()
        if fence is not self._fence:
            self._forget_everything()
            self._fence = fence
        self._read_members()
        for topic in self._streams:
            if self._closing.is_set():
                return
            tries, when = self._retry.get(topic, (0, 0.0))
            if self._settled.get(topic) == self._shape(topic) or when > time.monotonic():
                continue
            if self._rebalance(topic, fence):
                self._retry.pop(topic, None)
            else:
                pause = min(RETRY_SECONDS * 2**tries, MAX_RETRY_SECONDS)
                self._retry[topic] = (tries + 1, time.monotonic() + pause)
                if tries + 1 == TRIES_BEFORE_TOLD:
                    log.warning("group %s: partitions of %s are still owned by others", self._group, topic)
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
        partitions = (
            tuple(number for number, each in sorted(state.partitions.items()) if each.leader in alive)
            if state is not None else ()
        )  # fmt: skip
        streams = sorted(
            stream_name(consumer, index)
            for consumer, member in self._members.items()
            for index in range(member.topics.get(topic, 0))
        )
        return state.topic_id if state is not None else None, partitions, tuple(streams)

    # Algorithm 1, for one topic

    def _rebalance(self, topic: str, fence: Fence) -> bool:
        """Own our share of the topic and nothing else of it; False when somebody else still owns some."""
        self._settled.pop(topic, None)
        # Remove the partitions we own from the ownership registry.
        self._release([each for each in self.owned.values() if each.topic_partition[0] == topic], fence)
        if topic in self._claimed:  # a failure came between
            self._registry.disown(self._group, self._claimed[topic], fence)
        # Read the broker and the consumer registries: all partitions, all streams that read the topic.
        shape = topic_id, partitions, streams = self._shape(topic)
        # Sort both; the i-th stream reads the i-th range of partitions.
        shares = assign(partitions, streams)
        readers = {
            (topic, number): stream
            for index, stream in enumerate(self._streams[topic])
            for number in shares.get(stream_name(self._registration.consumer_id, index), ())
        }
        # Own each of them; when another still does, release all, wait and do it all again.
        names = {name: self._name_of(topic, stream) for name, stream in readers.items()}
        self._claimed[topic] = list(names)
        if topic_id is not None and not self._registry.own(self._group, names, fence):
            return False
        # Read the offsets where to begin from the offset registry, and have them pulled.
        if topic_id is not None:
            self._begin(readers, topic_id, fence)
        del self._claimed[topic]
        self._settled[topic] = shape
        log.info(
            "group %s: reads %s of %s (%d partitions, %d streams)",
            self._group, sorted(number for _, number in readers) or "nothing", topic,
            len(partitions), len(streams),
        )  # fmt: skip
        return True

    def _name_of(self, topic: str, stream: MessageStream) -> str:
        return stream_name(self._registration.consumer_id, self._streams[topic].index(stream))

    def _begin(self, readers: Mapping[TopicPartition, MessageStream], topic_id: UUID, fence: Fence) -> None:
        committed = committed_positions(
            self._registry.offsets(self._group, readers), {topic: topic_id for topic, _ in readers}
        )
        begun = {}
        for name, stream in readers.items():
            begun[name] = OwnedPartition(
                name, topic_id, stream, committed.get(name), lambda: self._registration.proves(fence)
            )
        self.owned = {**self.owned, **begun}
        self._pullers.refresh()

    def _release(self, partitions: Collection[OwnedPartition], fence: Fence) -> None:
        """Commit what is done of these partitions, then give them up."""
        if not partitions:
            return
        for stream in {each.stream for each in partitions}:
            stream.stop(partitions)
        deadline = time.monotonic() + HAND_OVER_SECONDS
        for stream in {each.stream for each in partitions}:
            if not stream.wait_for_hands(partitions, deadline - time.monotonic()):
                log.warning(
                    "group %s: a message is worked on for more than %g s; who takes its partition over "
                    "gets it again", self._group, HAND_OVER_SECONDS,
                )  # fmt: skip
        with self._writing:
            if self._commit_every is not None:
                self._commit(partitions, fence)
            self._registry.disown(self._group, [each.topic_partition for each in partitions], fence)
            self._end(partitions)

    def _end(self, partitions: Collection[OwnedPartition]) -> None:
        for stream in {each.stream for each in partitions}:
            stream.end(partitions)
        ended = {each.topic_partition for each in partitions}
        self.owned = {name: each for name, each in self.owned.items() if name not in ended}

    def _forget_everything(self) -> None:
        """The registration is gone, and what was owned with it."""
        with self._writing:
            self._end(list(self.owned.values()))
            self._settled.clear()
            self._claimed.clear()
            self._members_stale.set()  # the watch went with the session

    # Offsets

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Go on there in a partition; NotOwner when it is not ours."""
        with self._writing:  # while it is given up, what is done of it was written already
            owned = self.owned.get(topic_partition)
            if owned is None:
                raise NotOwner("{}-{} is not this consumer's (any more)".format(*topic_partition))
            owned.stream.seek(owned, offset)

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Write these offsets, or where the application is; NotOwner when a partition is not ours."""
        with self._writing:
            owned, fence = self.owned, self._fence
            missing = sorted(set(offsets or ()) - owned.keys())
            if fence is None or missing:
                what = ", ".join(f"{topic}-{number}" for topic, number in missing) or "the registration"
                raise NotOwner(f"{what} is not this consumer's (any more): nothing is committed")
            if offsets is None:
                self._commit(owned.values(), fence)
            else:
                self._write({owned[name]: offset for name, offset in offsets.items()}, fence)

    def _commit(self, partitions: Collection[OwnedPartition], fence: Fence) -> None:
        done = {each: each.done for each in partitions}
        self._write({each: at for each, at in done.items() if at is not None and at != each.committed}, fence)

    def _write(self, offsets: Mapping[OwnedPartition, int], fence: Fence) -> None:
        now = time.time_ns() // 1_000_000
        entries = {
            each.topic_partition: CommittedOffset(offset=offset, time_ms=now, topic_id=each.topic_id)
            for each, offset in offsets.items()
        }
        if entries:
            self._registry.commit(self._group, entries, fence=fence)
        for each, offset in offsets.items():
            each.committed = offset

"""The consumer of the 2011 paper: streams of messages, shared out among the consumers of a group.

This module is the application's side: making streams, committing, seeking, closing. There is no coordinator.
Consumers find each other in ZooKeeper. Each consumer computes its own share (rebalance.py), claims it there,
and pulls it ahead of the application (streams.py) from the brokers that lead its partitions (puller.py).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Literal

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.errors import MillraceError
from millrace.process import HomeProcess
from millrace.records.topic_partition import TopicPartition
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.coordination.groups import ConsumerRegistry, NotOwner
from millrace_consumer.puller import Pullers
from millrace_consumer.rebalance import Rebalancer
from millrace_consumer.streams import Message, MessageStream

__all__ = ["Consumer", "Message", "MessageStream", "NotOwner"]

logger = logging.getLogger("millrace.consumer")

MAX_SESSION_TIMEOUT_MS = 40_000
"""Longest session that a ZooKeeper with default settings grants. A longer session would end before the
consumer notices."""


class Consumer:
    """One consumer of a group; use it as a context manager.

    Every message of a subscribed topic goes to one stream of the group, in order within its partition, at
    least once. A message comes again only after a consumer has died without closing, lost its session, or
    worked on one message for more than five seconds while its partition moved to another consumer. With
    `auto_commit=False`, messages also come again that were not committed when their partition changed hands.

    A message counts as consumed when the thread that took it from its stream asks for the next message,
    commits or closes. Leaving the `with` block by an exception gives up the message in hand. Only consumed
    messages are committed, never messages that were pulled ahead. An application that hands messages to other
    threads, or writes them somewhere later, takes `auto_commit=False` and commits the smallest offset that it
    has not stored yet.

    Ownership: a partition is given to another consumer only when this one has released it or its ZooKeeper
    session has expired on the server. A stream hands out a message only within two thirds of the session
    timeout after ZooKeeper last confirmed the session with a write, so never at a time when another consumer
    can own the partition. Without confirmation the stream blocks, and it continues once the session is
    confirmed. A message that the application has already taken cannot be taken back, nor can a message of a
    process that was stopped between the check and the return. Offsets are written in one transaction with a
    check of the registration: a consumer that has lost its session cannot write offsets.
    """

    def __init__(
        self,
        zookeeper: str,
        cluster: str,
        group: str,
        *,
        start: Literal["smallest", "largest"] = "smallest",
        auto_commit: bool = True,
        commit_interval_ms: int = 10_000,
        fetch_bytes: int = 300_000,
        queued_bytes: int = 3_000_000,
        session_timeout_ms: int = 6000,
    ) -> None:
        """Create a consumer that reads nothing yet. Raise MillraceError without ZooKeeper or the cluster.

        `start` is the policy for a partition without a committed offset, or whose committed offset has
        expired. `fetch_bytes` are the bytes that one pull requests of a partition. `queued_bytes` is the size
        at which pulling ahead for a stream stops; each broker may add one more pull, or one batch that is
        larger.
        """
        if start not in ("smallest", "largest"):
            raise MillraceError(f"start is {start!r}: it must be 'smallest' or 'largest'")
        if min(commit_interval_ms, fetch_bytes, queued_bytes) <= 0:
            raise MillraceError("commit_interval_ms, fetch_bytes and queued_bytes must be positive")
        if not 0 < session_timeout_ms <= MAX_SESSION_TIMEOUT_MS:
            raise MillraceError(f"session_timeout_ms must be positive and {MAX_SESSION_TIMEOUT_MS} at most")
        self.group, self._home = group, HomeProcess("consumer")
        self._commit_every = commit_interval_ms / 1000 if auto_commit else None
        self._queued_bytes = queued_bytes
        self._cluster = Cluster.connect(
            zookeeper, cluster, session_timeout_ms=session_timeout_ms, create=False
        )
        self._registry = ConsumerRegistry(self._cluster.session, cluster)
        self._pullers = Pullers(
            group,
            self._cluster,
            lambda: self._rebalancer.owned if self._rebalancer else {},
            start=EARLIEST if start == "smallest" else LATEST,
            fetch_bytes=fetch_bytes,
        )
        self._rebalancer: Rebalancer | None = None
        self._streams: dict[str, list[MessageStream]] = {}
        self._closed = False

    def create_message_streams(self, topics: Mapping[str, int]) -> dict[str, list[MessageStream]]:
        """Return the requested number of iterators for each topic. They divide this consumer's partitions.

        May be called once per consumer. A topic need not exist yet. Raise MillraceError when the group uses
        Kafka's classic protocol.
        """
        if self._rebalancer is not None or self._closed:
            raise MillraceError("this consumer is closed or has its streams already: create another consumer")
        if not topics or min(topics.values()) < 1:
            raise MillraceError("name at least one topic, and at least one stream for each")
        streams = {
            topic: [
                MessageStream(f"{topic} {index}", self._queued_bytes, self._pullers.wake)
                for index in range(number)
            ]
            for topic, number in topics.items()
        }
        for topic in sorted(topics.keys() - self._cluster.topics.keys()):
            logger.warning(
                "no topic %s in cluster %s yet: its streams wait for it", topic, self._cluster.name
            )
        rebalancer = Rebalancer(
            self.group, self._cluster, self._registry, streams, self._pullers, commit_every=self._commit_every
        )
        rebalancer.register()
        self._streams, self._rebalancer = streams, rebalancer
        rebalancer.start()
        return {topic: list(of_topic) for topic, of_topic in streams.items()}

    @property
    def owned(self) -> list[TopicPartition]:
        return sorted(self._rebalancer.owned) if self._rebalancer is not None else []

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit `offsets`, the next to read; without them, the messages that this thread has taken and that
        other threads have done.

        Blocks until ZooKeeper has stored them. Raise NotOwner when this consumer does not own a partition:
        its owner continues at the offset committed before.
        """
        self._home.check()
        if offsets is not None and self._commit_every is not None:
            raise MillraceError("offsets of your own need auto_commit=False: it would overwrite them")
        if self._rebalancer is None:
            raise NotOwner("this consumer has no streams: it owns no partition to commit")
        if offsets is None:
            for stream in self._each_stream():
                stream.put_down(threading.get_ident())
        self._rebalancer.commit(offsets)

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Continue in a partition at `offset`, forwards or back; messages pulled ahead are dropped.

        Raise NotOwner when this consumer does not read the partition.
        """
        self._home.check()
        if offset < 0:
            raise MillraceError(f"an offset is not negative: {offset}")
        if self._rebalancer is None:
            raise NotOwner("this consumer has no streams: it owns no partition in which to seek")
        self._rebalancer.seek((topic, partition), offset)
        self._pullers.wake()

    def seek_to_time(self, topic: str, partition: int, time_ms: int) -> int:
        """Seek to the first message of that time or later, or to the end; return the offset."""
        with ClusterClient(self._cluster.bootstrap) as client:
            offset = client.list_offsets(topic, time_ms, [partition])[partition]
        self.seek(topic, partition, offset)
        return offset

    def close(self) -> None:
        """Commit (with `auto_commit`), release everything, end all streams. A second call does nothing.

        The message that the calling thread has taken counts as consumed. `close` waits five seconds for other
        threads to finish their messages. If ZooKeeper does not answer, `close` waits at most twenty seconds,
        and then once more for the session timeout.
        """
        self._close(done=True)

    def _close(self, *, done: bool) -> None:
        if self._closed or not self._home.is_here:  # a forked child owns nothing: all is the parent's
            return
        self._closed = True
        self._pullers.stop()
        for stream in self._each_stream():
            stream.put_down(threading.get_ident(), done=done)
            stream.close()
        try:
            if self._rebalancer is not None:
                self._rebalancer.close()
        except MillraceError as error:
            logger.warning("group %s: the last offsets are not committed: %s", self.group, error)
        finally:
            self._pullers.close()
            self._cluster.close()

    def _each_stream(self) -> list[MessageStream]:
        return [stream for streams in self._streams.values() for stream in streams]

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(done=kind is None)

"""Pulls batches ahead of the application: one thread for each broker that leads a partition of this consumer.

This module interprets answers for the streams, and checks every CRC. The addresses of leaders come from the
broker registry. The streams decide which offsets to pull, and keep the pulled batches.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from millrace.client.errors import MOVED
from millrace.client.fetcher import EARLIEST, BrokerFetcher, FetchLimits, Puller, log_was_cut
from millrace.errors import CorruptMessage, ErrorCode, MillraceError
from millrace.records import split_batches
from millrace.records.topic_partition import TopicPartition
from millrace.wire.fetch import FetchedPartition, Parting, error_name
from millrace_broker.coordination.cluster import Cluster
from millrace_consumer.streams import Batch, Jump, OwnedPartition, damaged

logger = logging.getLogger("millrace.consumer.puller")

FETCH_WAIT_MS = 250
FULL_WAIT_MS = 50
"""Longest wait for an answer while another stream's queue is full: the queue may have room at any moment."""
PAUSE_SECONDS = 0.2
IDLE_SECONDS = 1.0
CRC_TRIES = 3
"""Tries of a damaged batch. After them the batch counts as damaged in the log, not by the network."""

Owned = Mapping[TopicPartition, OwnedPartition]


class Pullers:
    """The threads that pull the partitions in `owned()`, each from its leader."""

    def __init__(
        self, group: str, cluster: Cluster, owned: Callable[[], Owned], *, start: int, fetch_bytes: int
    ) -> None:
        """Prepare the threads; `start` is EARLIEST or LATEST, for a partition whose committed offset is
        missing or gone.
        """
        self.group, self.cluster, self.owned, self.start = group, cluster, owned, start
        self.fetch_bytes = fetch_bytes
        self._pullers: dict[int, ConsumerPuller] = {}
        self._closed = False

    def wake(self) -> None:
        """Wake the pullers: a queue has room, partitions came or went, or a leader moved."""
        for puller in list(self._pullers.values()):
            puller.wake()

    def refresh(self) -> None:
        """Start a thread for every broker that leads a partition of this consumer.

        Must be called by one thread.
        """
        for broker_id in {self.leader(partition) for partition in self.owned()} - self._pullers.keys():
            if broker_id is not None and not self._closed:
                puller = self._pullers[broker_id] = ConsumerPuller(self, broker_id)
                puller.start()
        self.wake()

    def leader(self, partition: TopicPartition) -> int | None:
        """Return the live broker that leads a partition, or None."""
        topic = self.cluster.topics.get(partition[0])
        state = topic.partitions.get(partition[1]) if topic is not None else None
        return state.leader if state is not None and state.leader in self.cluster.brokers else None

    def epoch_of(self, partition: TopicPartition) -> int:
        topic = self.cluster.topics.get(partition[0])
        state = topic.partitions.get(partition[1]) if topic is not None else None
        return -1 if state is None else state.leader_epoch

    def stop(self) -> None:
        self._closed = True
        for puller in list(self._pullers.values()):
            puller.stop()

    def close(self) -> None:
        """Stop, and wait a moment for outstanding answers."""
        self.stop()
        for puller in self._pullers.values():
            puller.join(2 * FETCH_WAIT_MS / 1000)


class _Pull(NamedTuple):
    """One partition in a fetch; `life` is the partition's at the time of the request."""

    partition: OwnedPartition
    life: int
    offset: int
    epoch: int
    """Leader epoch of the batch before `offset`."""


class ConsumerPuller(Puller):
    """Pulls from one broker for all streams of one consumer."""

    max_pause_seconds = 1.0

    def __init__(self, pullers: Pullers, broker_id: int) -> None:
        group = pullers.group
        super().__init__(
            f"consumer {group} broker {broker_id}", f"millrace-{group}"[:200], logger, f"group {group}"
        )
        self._pullers, self._broker_id = pullers, broker_id
        self._crc_failures: dict[tuple[TopicPartition, int], int] = {}
        self._refused: dict[TopicPartition, tuple[int, float]] = {}
        """Partition -> the broker's last error for it, and the time of the next request."""

    def address(self) -> tuple[str, int]:
        address = self._pullers.cluster.brokers.get(self._broker_id)
        if address is None:
            raise MillraceError(f"broker {self._broker_id} is not alive")
        return address.host, address.port

    def epoch_of(self, partition: TopicPartition) -> int:
        return self._pullers.epoch_of(partition)

    def round(self) -> None:
        ours = self._ours()
        pulls: list[_Pull] = []
        beginning: list[tuple[OwnedPartition, int]] = []
        for partition in map(ours.__getitem__, self.in_turn(ours.keys())):
            wanted = partition.stream.next_pull(partition)
            if wanted is not None:
                life, offset = wanted
                if offset is None:
                    beginning.append((partition, life))
                else:
                    pulls.append(_Pull(partition, life, offset, partition.pull_epoch))
        errors: dict[TopicPartition, int] = {}
        if beginning:
            errors |= self._begin(beginning)
        elif not pulls:
            self.sleep(IDLE_SECONDS)
        if pulls:
            errors |= self._pull(pulls, FETCH_WAIT_MS if len(pulls) == len(ours) else FULL_WAIT_MS)
        self._pause_for(errors)

    def _ours(self) -> dict[TopicPartition, OwnedPartition]:
        now = time.monotonic()
        return {
            name: partition
            for name, partition in self._pullers.owned().items()
            if self._pullers.leader(name) == self._broker_id
            and not partition.broken
            and self._refused.get(name, (0, 0.0))[1] <= now
        }

    def _begin(self, partitions: Collection[tuple[OwnedPartition, int]]) -> dict[TopicPartition, int]:
        """Look up the offsets at which partitions without a committed offset begin, by the start policy."""
        lives = {partition.topic_partition: (partition, life) for partition, life in partitions}
        listed = self.connected().list_offsets(lives, self._pullers.start)
        for name, answer in listed.items():
            if name in lives and not answer.error_code:
                partition, life = lives[name]
                partition.stream.put(partition, life, Jump(None, answer.offset))
        return {name: answer.error_code for name, answer in listed.items() if answer.error_code}

    def _pull(self, pulls: list[_Pull], wait_ms: int) -> dict[TopicPartition, int]:
        """Fetch all partitions once and queue the messages; return errors of partitions that must wait."""
        broker, most = self.connected(), self._pullers.fetch_bytes
        # The whole answer may be for the stream with the least room.
        room = min(pull.partition.stream.room for pull in pulls)
        limits = FetchLimits(max_bytes=max(most, room), partition_max_bytes=most, max_wait_ms=wait_ms)
        requested = {pull.partition.topic_partition: pull for pull in pulls}
        epochs = {name: pull.epoch for name, pull in requested.items()}
        broker.request({name: pull.offset for name, pull in requested.items()}, limits, epochs)
        answers = {name: answer for name, answer in broker.receive().items() if name in requested}
        self.serve_last([name for name, answer in answers.items() if answer.records])
        errors = {}
        for name, answer in answers.items():
            if answer.parting is not None:
                self._go_back(requested[name], answer.parting, answer.log_start_offset)
            elif answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
                if not self._skip_gap(broker, requested[name]):
                    errors[name] = answer.error
            elif answer.error == ErrorCode.CORRUPT_MESSAGE:
                self._corrupt(requested[name], CorruptMessage("the broker refuses to send it"))
            elif answer.error:
                errors[name] = answer.error
            else:
                self._refused.pop(name, None)
                self._take(requested[name], answer)
        return errors

    def _take(self, pull: _Pull, answer: FetchedPartition) -> None:
        try:
            for header, batch in split_batches(answer.records):
                pull = pull._replace(offset=header.next_offset)
                # Copied: one batch that waits must not keep the whole answer in memory.
                pull.partition.stream.put(pull.partition, pull.life, Batch(header, bytes(batch)))
        except CorruptMessage as error:
            self._corrupt(pull, error)

    def _pause_for(self, errors: Mapping[TopicPartition, int]) -> None:
        """Pause partitions with errors, while other partitions continue.

        After a leader's move, wait for the registry.
        """
        for name, error in errors.items():
            if error in MOVED:
                continue
            if self._refused.get(name, (0, 0.0))[0] != error:
                place = (*name, self._broker_id, error_name(error))
                logger.warning("group %s: %s-%d waits: broker %d answers %s", self._pullers.group, *place)
            self._refused[name] = error, time.monotonic() + IDLE_SECONDS
        if MOVED.intersection(errors.values()):
            self.stopping.wait(PAUSE_SECONDS)

    def _corrupt(self, pull: _Pull, error: CorruptMessage) -> None:
        partition, offset = pull.partition, pull.offset
        key = (partition.topic_partition, offset)
        failures = self._crc_failures.pop(key, 0) + 1
        if failures < CRC_TRIES:
            self._crc_failures[key] = failures
            logger.warning(
                "group %s: %s at offset %d: %s; asking again", self._pullers.group, partition, offset, error
            )
            self.stopping.wait(PAUSE_SECONDS)
            return
        partition.stream.put(partition, pull.life, CorruptMessage(damaged(partition, offset, error)))

    def _go_back(self, pull: _Pull, parting: Parting, log_start: int) -> None:
        """Continue at the offset at which the log was cut back: its messages from there on were not delivered
        yet.
        """
        cut = log_was_cut(str(pull.partition), pull.offset, pull.epoch, parting)
        offset = max(parting.end, log_start)
        logger.warning("group %s: %s. Going on at %d", self._pullers.group, cut, offset)
        pull.partition.stream.put(pull.partition, pull.life, Jump(pull.offset, offset))

    def _skip_gap(self, broker: BrokerFetcher, pull: _Pull) -> bool:
        """Continue after the deleted offsets.

        Return False when the broker does not state the log's bounds.
        """
        partition, offset = pull.partition, pull.offset
        bounds = broker.bounds([partition.topic_partition]).get(partition.topic_partition)
        if bounds is None:
            return False
        earliest, latest = bounds
        if earliest <= offset <= latest:
            self.stopping.wait(PAUSE_SECONDS)  # the offset exists: the answer was stale
            return True
        to = earliest if self._pullers.start == EARLIEST else latest
        logger.warning(
            "group %s: offset %d of %s was deleted: the log has the offsets %d to %d. Continuing at %d; "
            "the deleted messages are not delivered",
            self._pullers.group,
            offset,
            partition,
            earliest,
            latest,
            to,
        )
        partition.stream.put(partition, pull.life, Jump(offset, to))
        return True

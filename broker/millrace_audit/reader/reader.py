"""The auditing reader: counts every message of one cluster and publishes what it counted.

One process for a cluster. Reads raw batches up to the high watermark, looks at nothing but the audit header,
and publishes for each partition the range of offsets it read with the sequences found there. A heartbeat
says: all that was visible in the cluster at that time is counted. It keeps no state of its own: where to go
on is read from the audit topic, so it may be killed at any moment. Memory is bounded by what one fetch
holds and a number of ranges after which it publishes early.
"""

# mypy: ignore-errors
from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient, FetchedPartition, TopicMetadata
from millrace.client.transactions import batches_from
from millrace.config import OFFLINE_AUDIT_TOPIC
from millrace.errors import ErrorCode, MillraceError, TopicAlreadyExists
from millrace.records import iter_records
from millrace_audit.reader.counting import BatchCounter
from millrace_audit.reader.turns import PartitionKey, Turns
from millrace_audit.reports import messages
from millrace_audit.reports.counts import SequenceCounts
from millrace_audit.reports.event import has_header
from millrace_audit.reports.messages import AUDIT_TOPIC, Count, Heartbeat, now_ms
from millrace_audit.reports.publish import AUDIT_TOPIC_SETTINGS, AuditPublisher
from millrace_registry.client import SchemaRegistryClient, UnknownSchema

log = logging.getLogger("millrace.audit.reader")

FETCH_BYTES = 8 << 20
RANGES_PER_COUNT = 20_000
"""A partition with more ranges than this is published before the interval is over."""
IDLE_HEARTBEAT_S = 5.0
_RETRY_S = 1.0
_CHECK_S = 3.0
_ALWAYS_LEFT_OUT = {AUDIT_TOPIC, OFFLINE_AUDIT_TOPIC}
_FETCH_WAIT_MS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderConfig:
    """One auditing reader."""

    cluster: str
    tier: str
    """What the cluster stands for: its own name, or `offline` for the aggregate one."""
    bootstrap: str
    registry: str = field(repr=False)
    """URL of the schema registry."""
    audit_topic: str = AUDIT_TOPIC
    """Where it publishes, in the same cluster."""
    topics: Sequence[str] = ()
    """Topics to count; none named means all but the audit topics."""
    interval_ms: int = 1000
    """How often it looks for new messages and publishes; the delay it adds to a verdict."""


@dataclass(slots=True)
class _Partition:
    """What was read of one partition since it was last published."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    """The next offset to read."""
    counts: SequenceCounts = field(default_factory=SequenceCounts)
    foreign: int = 0
    expired: int = 0


class AuditReader:
    """Counts one cluster until it is told to stop."""

    def __init__(self, config: ReaderConfig) -> None:
        self._config = config
        self._registry = SchemaRegistryClient(config.registry)
        self._codec = messages.AuditCodec(self._registry)
        self._client = ClusterClient(config.bootstrap, client_id="millrace-audit-reader")
        self._publisher = AuditPublisher(config.bootstrap, config.audit_topic)
        self._counter = BatchCounter(self._is_audited)
        self._partitions: dict[PartitionKey, _Partition] = {}
        self._turns = Turns()
        self._followed = 0  # the next offset of the audit topic to read
        self._reader = 0
        self._heartbeat_due = 0.0

    def check(self) -> None:
        """MillraceError in one line when no broker answers soon."""
        with ClusterClient(self._config.bootstrap, timeout_s=_CHECK_S) as client:
            client.topics()

    def run(self, stop: threading.Event) -> None:
        """After `take_over`: count until `stop` is set; what goes wrong is logged and tried again."""
        taken_over = True
        while not stop.is_set():
            began = time.monotonic()
            pause = self._config.interval_ms / 1000
            try:
                if not taken_over:
                    self.take_over()
                    taken_over = True
                self.count_once()
            except MillraceError as error:
                # What of a failed publication got through is not known: find out from the topic.
                log.warning("%s; trying again", error)
                taken_over, pause = False, _RETRY_S
            stop.wait(max(0.0, began + pause - time.monotonic()))
        self._client.close()
        self._publisher.close()
        self._registry.close()

    def take_over(self) -> None:
        """Begin a turn: say so on the audit topic, and read from it where the counts before end."""
        self._ensure_audit_topic()
        self._reader = secrets.randbits(63)
        self._partitions.clear()
        self._heartbeat(messages.NOTHING)
        self._turns = Turns()
        self._followed = self._client.list_offsets(self._config.audit_topic, EARLIEST, [0])[0]
        self._follow()
        self._heartbeat_due = 0.0
        turn = (self._reader, self._config.cluster, len(self._turns.covered))
        log.info("reader %d counts %s from where %d partitions are covered", *turn)

    def _ensure_audit_topic(self) -> None:
        if self._config.audit_topic not in self._client.topics():
            with suppress(TopicAlreadyExists):
                self._client.create_topic(self._config.audit_topic, 1, AUDIT_TOPIC_SETTINGS)

    def _follow(self) -> None:
        """Read on to the end of the audit topic; MillraceError unless it is this reader's turn there.

        A request that was long on its way, or a second reader, may have taken the turn: nothing that this
        one publishes counts from then on, and it would not notice in any other way.
        """
        topic = self._config.audit_topic
        end = self._client.list_offsets(topic, LATEST, [0])[0]
        while self._followed < end:
            fetched = self._fetch(topic, {0: self._followed})[0]
            _check(fetched.error, f"{topic}-0")
            for header, batch, readable in batches_from(fetched, self._followed):
                for record in iter_records(header, batch) if readable else ():
                    self._turns.apply(self._codec.decode(record.value), self._config.tier)
                self._followed = header.next_offset
        if self._turns.current != self._reader:
            raise MillraceError(
                f"another audit reader counts tier {self._config.tier} on {topic}: there must be one only"
            )

    def count_once(self) -> None:
        """Count all that is visible now, publish it, and beat when it is time or there was news."""
        self._follow()
        now = now_ms()
        topics = self._topics()
        there = {topic.topic_id.hex for topic in topics}
        # A deleted topic's partitions would stay in every heartbeat; nothing of them is unpublished here.
        self._partitions = {key: state for key, state in self._partitions.items() if key[0] in there}
        news = [self._count_topic(topic) for topic in topics]
        if any(news) or time.monotonic() >= self._heartbeat_due:
            self._heartbeat(now)

    def _topics(self) -> list[TopicMetadata]:
        wanted = self._config.topics
        return [
            topic
            for name, topic in self._client.topics().items()
            if (name in wanted if wanted else name not in _ALWAYS_LEFT_OUT and not name.startswith("__"))
        ]

    def _count_topic(self, topic: TopicMetadata) -> bool:
        """Read a topic to its high watermark and publish; True if there was anything new."""
        partitions = self._states(topic)
        ends = self._client.list_offsets(topic.name, LATEST, partitions)
        for p, state in partitions.items():
            if state.end > ends[p]:
                raise MillraceError(
                    f"{topic.name}-{p} ends at {ends[p]}, but was counted up to {state.end}: its log was lost"
                )
        news = False
        while behind := {p: state.end for p, state in partitions.items() if state.end < ends[p]}:
            self._read(topic.name, partitions, behind)
            full = [state for state in partitions.values() if state.counts.range_count > RANGES_PER_COUNT]
            news |= self._publish(full)
            if all(partitions[p].end == offset for p, offset in behind.items()):
                break  # the rest is not committed yet (an open transaction, on Apache Kafka)
        return self._publish(partitions.values()) or news

    def _states(self, topic: TopicMetadata) -> dict[int, _Partition]:
        """Where this reader stands in every partition; a new one from where it is covered, or earliest."""
        topic_id = topic.topic_id.hex
        new = [p for p in topic.partitions if (topic_id, p) not in self._partitions]
        if new:
            earliest = self._client.list_offsets(topic.name, EARLIEST, new)
            for p in new:
                start = self._turns.covered.get((topic_id, p), earliest[p])
                state = _Partition(topic.name, topic_id, p, start, start)
                if start < earliest[p]:
                    self._skip_expired(state, earliest[p])
                self._partitions[topic_id, p] = state
        return {p: self._partitions[topic_id, p] for p in topic.partitions}

    def _skip_expired(self, state: _Partition, earliest: int) -> None:
        expired = (state.topic, state.partition, state.end, earliest)
        log.error("%s-%d: offsets %d to %d expired before they were counted", *expired)
        state.expired += earliest - state.end
        state.end = earliest

    def _read(self, topic: str, partitions: Mapping[int, _Partition], offsets: Mapping[int, int]) -> None:
        for p, fetched in self._fetch(topic, offsets).items():
            state = partitions[p]
            if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE and fetched.log_start_offset > state.end:
                self._skip_expired(state, fetched.log_start_offset)
                continue
            _check(fetched.error, f"{topic}-{p} at offset {state.end}")
            for header, batch, readable in batches_from(fetched, state.end):
                if readable:
                    state.foreign += self._counter.count(header, batch, state.counts)
                state.end = header.next_offset

    def _fetch(self, topic: str, offsets: Mapping[int, int]) -> dict[int, FetchedPartition]:
        return self._client.fetch(topic, offsets, max_bytes=FETCH_BYTES, max_wait_ms=_FETCH_WAIT_MS)

    def _publish(self, partitions: Iterable[_Partition]) -> bool:
        """Publish what was read of the partitions; True if there was anything."""
        now = now_ms()
        read = [state for state in partitions if state.end > state.start]
        self._publisher.publish([self._codec.encode(self._count_of(state, now)) for state in read])
        for state in read:
            state.start, state.foreign, state.expired = state.end, 0, 0
            state.counts = SequenceCounts()
        return bool(read)

    def _count_of(self, state: _Partition, now: int) -> Count:
        return Count(
            time=now,
            tier=self._config.tier,
            topic=state.topic,
            source=messages.OffsetRange(
                reader=self._reader,
                cluster=self._config.cluster,
                topic_id=state.topic_id,
                partition=state.partition,
                start=state.start,
                end=state.end,
            ),
            foreign=state.foreign,
            expired=state.expired,
            counts=state.counts,
        )

    def _heartbeat(self, time_ms: int) -> None:
        positions = [
            messages.ReaderPosition(state.topic, state.topic_id, state.partition, state.start)
            for state in self._partitions.values()
        ]
        own = self._config
        beat = Heartbeat(
            time=time_ms, cluster=own.cluster, tier=own.tier, reader=self._reader, positions=positions
        )
        self._publisher.publish([self._codec.encode(beat)])
        self._heartbeat_due = time.monotonic() + IDLE_HEARTBEAT_S

    def _is_audited(self, schema_id: int) -> bool:
        try:
            return has_header(self._registry.schema(schema_id))
        except UnknownSchema:
            return False


def _check(error: int, where: str) -> None:
    if error:
        raise MillraceError(f"{where} cannot be read: error {error}; see the broker's log")

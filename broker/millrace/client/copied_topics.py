"""Topics that MirrorMaker 2 copies into an Apache Kafka: the copies from all origins appear as one topic.

MirrorMaker copies partition 3 of topic T of origin dc1 into partition 3 of `dc1.T`. Millrace's clients see
one topic T instead, with partitions of every origin. A record in the cluster itself names the origins, so all
readers see the same numbers:

    topic     __millrace-copies: one partition, compacted
    record := key = b"origins", value = JSON {"origins": [alias, ...]}; the newest counts

    partition of T     0 ...      the cluster's own topic T
                       10,000 ... partitions of the first origin, 20,000 ... of the second, and so on

Numbers must never change, so origins are only added at the end. This module reads no records of the copied
topics.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID, uuid5

from millrace.client.connection import Connection
from millrace.client.fetcher import NO_EPOCHS, READ_COMMITTED, BrokerFetcher, FetchLimits
from millrace.client.transactions import batches_from
from millrace.errors import ErrorCode, MillraceError
from millrace.records import iter_records
from millrace.records.topic_partition import TopicPartition
from millrace.wire.fetch import FetchedPartition
from millrace.wire.fields import replace
from millrace.wire.messages import ListOffsetsResponse, MetadataResponse

COPIES_TOPIC = "__millrace-copies"
COPIES_KEY = b"origins"
PARTITIONS_EACH = 10_000
"""Partition numbers reserved for each origin of a topic."""
_FETCH_BYTES, _WAIT_MS = 1 << 20, 500
Topic = MetadataResponse.Topic


@dataclass(frozen=True, slots=True)
class CopiedTopics:
    """The origins named by the record, and the id of the record's topic."""

    origins: tuple[str, ...]
    topic_id: UUID

    def encode(self) -> bytes:
        """Return the value of the record in the topic."""
        return json.dumps({"origins": self.origins}).encode()

    @classmethod
    def decode(cls, value: bytes, topic_id: UUID) -> CopiedTopics:
        """Read the value of the record. Raise MillraceError when it does not name the origins."""
        try:
            origins = json.loads(value)["origins"]
        except (ValueError, LookupError, TypeError, RecursionError):
            origins = None
        if not isinstance(origins, list) or not all(isinstance(one, str) and one for one in origins):
            raise MillraceError(
                f"the newest record of {COPIES_TOPIC} does not name the origins: append a record with key"
                f' {COPIES_KEY.decode()} and value {{"origins": [...]}}, with all origins given to `mirror'
                " adopt` in their order, and let only `mirror adopt` write there"
            )
        return cls(tuple(origins), topic_id)

    def origin(self, partition: int) -> str | None:
        """Return the origin from which a partition is copied; None for the cluster's own partitions."""
        index = partition // PARTITIONS_EACH
        return self.origins[index - 1] if 0 < index <= len(self.origins) else None

    def in_cluster(self, partition: TopicPartition) -> TopicPartition:
        """Return the cluster's own name and number of a partition."""
        topic, number = partition
        origin = self.origin(number)
        return partition if origin is None else (f"{origin}.{topic}", number % PARTITIONS_EACH)

    def names(self, topic: str) -> list[str]:
        """Return the cluster's own names of the topics that appear as `topic`.

        A copy's own name means that copy alone.
        """
        if self._seen_as(topic) != topic:
            return [topic]
        return [topic, *(f"{origin}.{topic}" for origin in self.origins)]

    def _seen_as(self, name: str) -> str:
        copied = (name.removeprefix(f"{one}.") for one in self.origins if name.startswith(f"{one}."))
        return next(copied, name)

    def merged(self, topics: Iterable[Topic], names: Iterable[str] | None) -> tuple[Topic, ...]:
        """Merge the topics of a cluster's answer into the topics `names`, or into all topics."""
        there = {topic.name or "": topic for topic in topics}
        wanted = dict.fromkeys(map(self._seen_as, there)) if names is None else names
        return tuple(self._merge(name, there) for name in wanted)

    def _merge(self, name: str, there: Mapping[str, Topic]) -> Topic:
        found = [there.get(one) for one in self.names(name)]
        answered = [topic for topic in found if topic is not None]
        copies = {
            i: topic for i, topic in enumerate(found) if i and topic is not None and not topic.error_code
        }
        own = next((topic for topic in answered if topic.name == name), None)
        if not copies:
            return own or Topic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)
        partitions = list(own.partitions) if own is not None and not own.error_code else []
        for index, topic in copies.items():
            partitions += (
                replace(one, partition_index=index * PARTITIONS_EACH + one.partition_index)
                for one in topic.partitions
            )
        # The id does not depend on which origins have the topic so far.
        topic_id = uuid5(self.topic_id, name)
        return Topic(error_code=0, name=name, topic_id=topic_id, partitions=tuple(partitions))


class CopiesFetcher(BrokerFetcher):
    """One broker's partitions by the merged topics' names and numbers."""

    def __init__(
        self,
        connection: Connection,
        copies: CopiedTopics,
        *,
        timeout_s: float,
        epoch_of: Callable[[TopicPartition], int],
    ) -> None:
        """Connect; `epoch_of` takes partitions by the cluster's own names."""
        super().__init__(connection, timeout_s=timeout_s, epoch_of=epoch_of)
        self._copies = copies
        self._requested: deque[dict[TopicPartition, TopicPartition]] = deque()

    def _names(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, TopicPartition]:
        return {self._copies.in_cluster(partition): partition for partition in partitions}

    def request(
        self,
        offsets: Mapping[TopicPartition, int],
        limits: FetchLimits,
        last_epochs: Mapping[TopicPartition, int] = NO_EPOCHS,
    ) -> None:
        names = self._names(offsets)
        of_names = {name: offsets[partition] for name, partition in names.items()}
        last = {name: last_epochs.get(partition, -1) for name, partition in names.items()}
        super().request(of_names, limits, last)
        self._requested.append(names)

    def receive(self, buffer: bytearray | None = None) -> dict[TopicPartition, FetchedPartition]:
        names = self._requested.popleft()
        return {names[name]: part for name, part in super().receive(buffer).items()}

    def list_offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, *, isolation_level: int = READ_COMMITTED
    ) -> dict[TopicPartition, ListOffsetsResponse.Partition]:
        names = self._names(partitions)
        listed = super().list_offsets(names, timestamp, isolation_level=isolation_level)
        return {names[name]: answer for name, answer in listed.items()}


def read_copies(fetcher: BrokerFetcher, topic_id: UUID) -> CopiedTopics | None:
    """Read the newest record from the broker that leads its partition; None when there is no record yet."""
    place: TopicPartition = (COPIES_TOPIC, 0)
    bounds = fetcher.bounds([place]).get(place)
    if bounds is None:
        raise MillraceError(f"{COPIES_TOPIC} cannot be read: see its broker's log")
    offset, end = bounds
    limits = FetchLimits(max_bytes=_FETCH_BYTES, partition_max_bytes=_FETCH_BYTES, max_wait_ms=_WAIT_MS)
    newest: bytes | None = None
    while offset < end:
        fetcher.request({place: offset}, limits)
        fetched = fetcher.receive()[place]
        before = offset
        for header, batch, readable in batches_from(fetched, offset, COPIES_TOPIC):
            for record in iter_records(header, batch) if readable else ():
                if record.key == COPIES_KEY and record.value:
                    newest = record.value
            offset = header.next_offset
        if offset == before:
            raise MillraceError(
                f"{COPIES_TOPIC} returns nothing at offset {offset}, below its end {end}:"
                " see its broker's log"
            )
    return None if newest is None else CopiedTopics.decode(newest, topic_id)

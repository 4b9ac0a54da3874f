"""From options to offsets: asks the cluster which topics and partitions there are, and where they begin.

A batch's ranges are frozen here as numbers, before anything is read. Reads no messages, except the one batch
of a partition that tells where the next batch begins. Knows no Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from millrace.client.cluster_client import EARLIEST, LATEST
from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace.records import HEADER_BYTES, BatchHeader, Cursor
from millrace.wire.mirror_append import BYTE_OFFSETS_PREFIX
from millrace_spark.source.options import Position, SourceOptions, Subscription
from millrace_spark.topic.ranges import Cut, Range, cut_ranges, size_of
from millrace_spark.topic.reading import Client, TopicMetadata

CUT_BYTES = 128 << 20
"""The most one task reads unless `minPartitions` asks for smaller ones (on Apache Kafka: about)."""
LOOK_BYTES = 8 << 20
"""Fetched at a time to see where batches end."""

Offsets = Mapping[int, int]
"""Partition -> offset."""


class TopicWithPartitions(TopicMetadata, Protocol):
    """A topic and its partitions."""

    @property
    def partitions(self) -> Mapping[int, int]:
        """Partition -> leader."""


class OffsetsClient(Protocol):
    """What finding offsets needs of `wire.client.ClusterClient`."""

    @property
    def cluster_id(self) -> str:
        """The cluster's own random id, which tells Millrace from Apache Kafka."""

    def topic(self, name: str) -> TopicWithPartitions:
        """The topic's metadata."""

    def topics(self) -> Mapping[str, TopicWithPartitions]:
        """Every topic."""

    def list_offsets(
        self, topic: str, timestamp: int, partitions: Iterable[int] | None = None
    ) -> Mapping[int, int]:
        """Partition -> offset; for a time the end where no record is that late."""


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A topic that is read: its id, and those of its partitions."""

    topic_id: UUID
    partitions: tuple[int, ...]


def has_byte_positions(client: OffsetsClient) -> bool:
    """True for Millrace, False for Apache Kafka."""
    return client.cluster_id.startswith(BYTE_OFFSETS_PREFIX)


def subscribed(
    client: OffsetsClient, asked: Subscription, *, missing_ok: bool = False
) -> dict[str, Subscribed]:
    """The topics asked for as they are now; MillraceError for a missing one, unless it may be left out."""
    found: dict[str, TopicWithPartitions]
    if asked.pattern is not None:
        pattern = re.compile(asked.pattern)
        # Names that begin so are Kafka's own bookkeeping; its consumers leave them out of patterns too.
        found = {
            name: topic
            for name, topic in sorted(client.topics().items())
            if pattern.fullmatch(name) and not name.startswith("__")
        }
    else:
        found = {}
        for name in asked.topics:
            try:
                found[name] = client.topic(name)
            except UnknownTopicOrPartition:
                if not missing_ok:
                    raise
    topics = {}
    for name, topic in found.items():
        partitions = tuple(sorted(topic.partitions))
        if asked.partitions is not None:
            wanted = asked.partitions[name]
            if strange := set(wanted) - set(partitions):
                raise MillraceError(f"topic {name!r} has no partition {min(strange)}, named by 'assign'")
            partitions = tuple(sorted(set(wanted)))
        topics[name] = Subscribed(topic.topic_id, partitions)
    return topics


def freeze(client: OffsetsClient, options: SourceOptions) -> list[Range]:
    """The ranges a batch asks for, as numbers that will not change; MillraceError where that cannot be."""
    starting, ending = options.starting or Position(EARLIEST), options.ending or Position(LATEST)
    byte_positions = has_byte_positions(client)
    ranges: list[Range] = []
    for name, topic in subscribed(client, options.subscription).items():
        earliest = client.list_offsets(name, EARLIEST, topic.partitions)
        starts = resolve(client, starting, name, topic.partitions, strict=not options.latest_if_no_record)
        ends = resolve(client, ending, name, topic.partitions, strict=False)
        latest = client.list_offsets(name, LATEST, topic.partitions)  # asked last: no end found is behind it
        for partition in topic.partitions:
            start, end = starts[partition], ends[partition]
            if start < earliest[partition]:
                if options.fail_on_data_loss:
                    raise MillraceError(
                        f"{name}-{partition} begins at {earliest[partition]}, offset {start} has expired;"
                        " start later, or set failOnDataLoss=false"
                    )
                start = earliest[partition]
            if end > latest[partition]:
                raise MillraceError(
                    f"{name}-{partition} ends at {latest[partition]}, before endingOffsets {end}"
                )
            if start < end:
                ranges.append(
                    Range(name, partition, start, end, topic_id=topic.topic_id, byte_positions=byte_positions)
                )
    return ranges


def resolve(
    client: OffsetsClient, position: Position, topic: str, partitions: Iterable[int], *, strict: bool
) -> dict[int, int]:
    """Partition -> the offset a position stands for; with `strict` a time after every record is an error."""
    asked = _asked(position, topic, tuple(partitions))
    found: dict[int, int] = {}
    for place in sorted(set(asked.values())):
        these = [partition for partition, at in asked.items() if at == place]
        if position.by_time or place < 0:
            found |= client.list_offsets(topic, place, these)
        else:
            found |= dict.fromkeys(these, place)
    if position.by_time and strict:
        latest = client.list_offsets(topic, LATEST, asked)
        if late := [partition for partition in asked if found[partition] >= latest[partition]]:
            raise MillraceError(
                f"{topic}-{late[0]} has no record at or after {asked[late[0]]} ms; give an earlier"
                f" {position.option!r}, or set startingOffsetsByTimestampStrategy=latest"
            )
    return found


def _asked(position: Position, topic: str, partitions: tuple[int, ...]) -> dict[int, int]:
    if isinstance(position.places, int):
        return dict.fromkeys(partitions, position.places)
    places = position.places.get(topic, {})
    if missing := set(partitions) - set(places):
        raise MillraceError(
            f"option {position.option!r} names no partition {min(missing)} of topic {topic!r}; name them all"
        )
    if strange := set(places) - set(partitions):
        raise MillraceError(f"topic {topic!r} has no partition {min(strange)}, named by {position.option!r}")
    return dict(places)


def cuts_for(ranges: list[Range], min_partitions: int) -> list[Cut]:
    """The ranges as tasks: at least `min_partitions` of them if there are offsets for that many."""
    total = sum(map(size_of, ranges))
    return cut_ranges(ranges, max(1, min(CUT_BYTES, total // min_partitions)))


def behind_batches(client: Client, topic: str, ends: Offsets) -> dict[int, Cursor]:
    """Each end moved behind the batch it lies in or before, and where the next batch begins; Millrace only.

    A batch is fetched whole, so an end inside one would have it fetched twice, and an end between two batches
    might come with no record at all. The place where the next batch begins tells an ordinary jump between
    offsets from lost messages when all that was read has expired. A partition that gives no batch now keeps
    its end.
    """
    found = {partition: Cursor(end) for partition, end in ends.items()}
    left = dict(ends)
    while left:
        fetched = client.fetch(
            topic, {partition: end - 1 for partition, end in left.items()},
            max_bytes=LOOK_BYTES, max_wait_ms=0, partition_max_bytes=1,
        )  # fmt: skip
        seen = {p: one for p, one in fetched.items() if one.error or len(one.records) >= HEADER_BYTES}
        for partition, one in seen.items():
            if not one.error and (header := BatchHeader.parse(one.records)) is not None:
                found[partition] = Cursor(0).after(header)
        if not seen:  # a batch was there a moment ago; the tasks will find out what has become of it
            break
        left = {partition: end for partition, end in left.items() if partition not in seen}
    return found

"""Turns options into offsets: asks the cluster for topics, partitions and their starts.

A batch's ranges are fixed here as numbers before anything is read. Reads no messages, except the one batch of
a partition that shows where the next batch begins. Does not import Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient, TopicMetadata
from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace.records import HEADER_BYTES, BatchHeader, Cursor
from millrace_spark.source.options import Position, SourceOptions, Subscription
from millrace_warehouse.log.ranges import Cut, Range, cut_ranges, size_of
from millrace_warehouse.log.reading import has_byte_positions

CUT_BYTES = 128 << 20
"""Most bytes that a task reads, unless `minPartitions` asks for less. Approximate on Apache Kafka."""
LOOK_BYTES = 8 << 20
"""Bytes fetched at a time to find where batches end."""


def subscribed(
    client: ClusterClient, subscription: Subscription, *, missing_ok: bool = False
) -> dict[str, TopicMetadata]:
    """Return the subscribed topics as they are now, each with the partitions to read.

    Raise MillraceError for a missing topic, unless it may be left out.
    """
    topics: dict[str, TopicMetadata] = {}
    if subscription.pattern is not None:
        pattern = re.compile(subscription.pattern)
        # Names with this prefix are Kafka's internal topics; its consumers exclude them from patterns too.
        topics = {
            name: topic
            for name, topic in sorted(client.topics().items())
            if pattern.fullmatch(name) and not name.startswith("__")
        }
    for name in subscription.topics:
        try:
            topics[name] = client.topic(name)
        except UnknownTopicOrPartition:
            if not missing_ok:
                raise
    if subscription.partitions is None:
        return topics
    return {name: _assigned(topic, subscription.partitions[name]) for name, topic in topics.items()}


def _assigned(topic: TopicMetadata, partitions: Iterable[int]) -> TopicMetadata:
    wanted = set(partitions)
    if strange := wanted - set(topic.partitions):
        raise MillraceError(f"topic {topic.name!r} has no partition {min(strange)}, named by 'assign'")
    return replace(topic, partitions={p: leader for p, leader in topic.partitions.items() if p in wanted})


def freeze(client: ClusterClient, options: SourceOptions) -> list[Range]:
    """Return a batch's ranges as numbers that will not change. Raise MillraceError if that is impossible."""
    starting, ending = options.starting or Position(EARLIEST), options.ending or Position(LATEST)
    byte_positions = has_byte_positions(client)
    ranges: list[Range] = []
    for name, topic in subscribed(client, options.subscription).items():
        earliest = client.list_offsets(name, EARLIEST, topic.partitions)
        starts = resolve(client, starting, name, topic.partitions, strict=not options.latest_if_no_record)
        ends = resolve(client, ending, name, topic.partitions, strict=False)
        # Requested last: no end from above is larger.
        latest = client.list_offsets(name, LATEST, topic.partitions)
        for partition in topic.partitions:
            start, end = starts[partition], ends[partition]
            if start < earliest[partition]:
                if options.fail_on_data_loss:
                    raise MillraceError(
                        f"{name}-{partition} begins at {earliest[partition]}, offset {start} has expired;"
                        " start later, or set failOnDataLoss=false"
                    )
                start = earliest[partition]
            if start > latest[partition] and options.fail_on_data_loss:
                raise MillraceError(
                    f"{name}-{partition} ends at {latest[partition]}, before {starting.option} {start};"
                    " start earlier, or set failOnDataLoss=false"
                )
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
    client: ClusterClient, position: Position, topic: str, partitions: Iterable[int], *, strict: bool
) -> dict[int, int]:
    """Map each partition to the offset of a position.

    With `strict`, raise MillraceError for a time after every record.
    """
    wanted = position.of_topic(topic, tuple(partitions))
    offsets: dict[int, int] = {}
    for value in sorted(set(wanted.values())):
        alike = [partition for partition, other in wanted.items() if other == value]
        if position.by_time or value < 0:
            offsets |= client.list_offsets(topic, value, alike)
        else:
            offsets |= dict.fromkeys(alike, value)
    if position.by_time and strict:
        latest = client.list_offsets(topic, LATEST, wanted)
        if late := [partition for partition in wanted if offsets[partition] >= latest[partition]]:
            raise MillraceError(
                f"{topic}-{late[0]} has no record at or after {wanted[late[0]]} ms; give an earlier"
                f" {position.option!r}, or set startingOffsetsByTimestampStrategy=latest"
            )
    return offsets


def cuts_for(ranges: list[Range], min_partitions: int) -> list[Cut]:
    """Return the ranges as tasks: at least `min_partitions` of them if there are that many offsets."""
    total = sum(map(size_of, ranges))
    return cut_ranges(ranges, max(1, min(CUT_BYTES, total // min_partitions)))


def to_batch_ends(client: ClusterClient, topic: str, ends: Mapping[int, int]) -> dict[int, Cursor]:
    """Move each end to the end of its batch, and add where the next batch begins. For Millrace only.

    A batch is fetched whole, so an end inside a batch would fetch it twice, and an end between two batches
    might return no record at all. When all offsets that were read have expired, the begin of the next batch
    distinguishes an ordinary jump between offsets from lost messages. A partition that returns no batch now
    keeps its end.
    """
    cursors = {partition: Cursor(end) for partition, end in ends.items()}
    left = dict(ends)
    while left:
        fetched = client.fetch(
            topic,
            {partition: end - 1 for partition, end in left.items()},
            max_bytes=LOOK_BYTES,
            max_wait_ms=0,
            partition_max_bytes=1,
        )
        answers = {p: one for p, one in fetched.items() if one.error or len(one.records) >= HEADER_BYTES}
        if not answers:  # a batch was there a moment ago; the tasks will find the reason
            break
        for partition, answer in answers.items():
            del left[partition]
            if not answer.error and (header := BatchHeader.parse(answer.records)) is not None:
                cursors[partition] = Cursor(0).after(header)
    return cursors

"""Kafka's consumer protocol: a member's subscription and assignment, bytes that brokers only pass on.

A later version only adds fields at the end, which Millrace does not read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import groupby
from operator import itemgetter

from millrace.errors import InvalidRequest
from millrace.records.topic_partition import TopicPartition
from millrace.wire.codec import decode, encode
from millrace.wire.fields import ApiMessage, array, data, i16, i32, string
from millrace.wire.messages import ApiKey

STREAMS_PROTOCOL = "millrace-streams"
"""Assignor name in the description of a group of Millrace's own consumers."""

MAX_SUBSCRIBED_TOPICS = 20_000
"""Most topics that are read from all subscriptions of one consumer: reading them takes 10 ms of the event
loop."""
MAX_SUBSCRIPTIONS = 10
"""Most different subscriptions of one consumer that are read. Clients send one topic list for each assignor
that they support."""


class _Subscription(ApiMessage):  # in JoinGroup; Kafka's goes on with user data, which no broker needs
    version: int = i16()
    topics: tuple[str, ...] = array(string())


class _Assignment(ApiMessage):  # in SyncGroup
    class Topic(ApiMessage):
        topic: str = string()
        partitions: tuple[int, ...] = array(i32())

    version: int = i16(default=0)
    topics: tuple[Topic, ...] = array(Topic)
    user_data: bytes | None = data(null_since=0, default=None)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Return an assignment of these partitions, without user data."""
    topics = tuple(
        _Assignment.Topic(topic=topic, partitions=tuple(number for _, number in group))
        for topic, group in groupby(sorted(partitions), itemgetter(0))
    )
    return encode(_Assignment(topics=topics), ApiKey.SYNC_GROUP, 0)


def decode_assignment(assignment: bytes) -> list[TopicPartition]:
    """Return the assigned partitions.

    None when the bytes are no assignment, as a client may write any bytes.
    """
    try:
        topics = decode(_Assignment, ApiKey.SYNC_GROUP, 0, assignment).topics
    except InvalidRequest:
        return []
    return [(topic.topic, partition) for topic in topics for partition in topic.partitions]


def decode_subscriptions(subscriptions: Collection[bytes]) -> frozenset[str] | None:
    """Return the topics in any of a consumer's subscriptions.

    None if they exceed a limit or one is malformed.
    """
    topics: list[str] = []
    if len(subscriptions) > MAX_SUBSCRIPTIONS:
        return None
    try:
        for subscription in subscriptions:
            left = MAX_SUBSCRIBED_TOPICS - len(topics)
            topics += decode(_Subscription, ApiKey.JOIN_GROUP, 0, subscription, items=left).topics
    except InvalidRequest:
        return None
    return frozenset(topics)

"""What Kafka's consumers write into a member's subscription and assignment: bytes that brokers pass on.

A later version only adds fields at the end, which are not read here.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.errors import InvalidRequest
from millrace.wire.codec import decode, encode
from millrace.wire.fields import Message, array, data, i16, i32, string
from millrace.wire.messages import ApiKey

STREAMS_PROTOCOL = "millrace-streams"
"""Stands for an assignor's name where a group of Millrace's own consumers is described."""


class Subscription(Message):
    """What a member says in JoinGroup; Kafka's goes on with user data, which no broker needs."""

    version: int = i16()
    topics: tuple[str, ...] = array(string())


class AssignedTopic(Message):
    """The partitions of one topic that a member is to read."""

    topic: str = string()
    partitions: tuple[int, ...] = array(i32())


class Assignment(Message):
    """What a member is told in SyncGroup."""

    version: int = i16(default=0)
    topics: tuple[AssignedTopic, ...] = array(AssignedTopic)
    user_data: bytes | None = data(null_since=0, default=None)


def encode_assignment(places: Iterable[tuple[str, int]]) -> bytes:
    """An assignment of these (topic, partition) pairs, without user data."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        topics.setdefault(topic, []).append(partition)
    assigned = tuple(AssignedTopic(topic=topic, partitions=tuple(topics[topic])) for topic in topics)
    return encode(Assignment(topics=assigned), ApiKey.SYNC_GROUP, 0)


def decode_assignment(assignment: bytes) -> list[tuple[str, int]]:
    """The (topic, partition) pairs; none when the bytes mean something else: a client may write anything."""
    try:
        topics = decode(Assignment, ApiKey.SYNC_GROUP, 0, assignment).topics
    except InvalidRequest:
        return []
    return [(topic.topic, partition) for topic in topics for partition in topic.partitions]


def decode_subscription(subscription: bytes) -> set[str] | None:
    """The topics that a consumer reads; None when the bytes mean something else."""
    try:
        return set(decode(Subscription, ApiKey.JOIN_GROUP, 0, subscription).topics)
    except InvalidRequest:
        return None

"""What Kafka's consumers write into a member's subscription and assignment: bytes that brokers pass on.

    subscription := version int16, [topic string], user data bytes?
    assignment   := version int16, [topic string, [partition int32]], user data bytes?

A later version only adds fields at the end, which are not read here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

STREAMS_PROTOCOL = "millrace-streams"
"""Stands for an assignor's name where a group of Millrace's own consumers is described."""

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def encode_assignment(places: Iterable[tuple[str, int]]) -> bytes:
    """An assignment of these (topic, partition) pairs, without user data."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        topics.setdefault(topic, []).append(partition)
    out = _INT16.pack(0) + _INT32.pack(len(topics))
    for topic, partitions in topics.items():
        name = topic.encode()
        out += (
            _INT16.pack(len(name)) + name + struct.pack(f">i{len(partitions)}i", len(partitions), *partitions)
        )
    return out + _INT32.pack(-1)


def decode_assignment(data: bytes) -> list[tuple[str, int]]:
    """The (topic, partition) pairs; none when the bytes mean something else: a client may write anything."""
    places: list[tuple[str, int]] = []
    try:
        (topics,) = _INT32.unpack_from(data, 2)
        position = 6
        for _ in range(topics):
            (length,) = _INT16.unpack_from(data, position)
            name = data[position + 2 : position + 2 + length].decode()
            position += 2 + length
            (count,) = _INT32.unpack_from(data, position)
            places += [(name, number) for number in struct.unpack_from(f">{count}i", data, position + 4)]
            position += 4 + 4 * count
    except (struct.error, UnicodeDecodeError):
        return []
    return places


def decode_subscription(data: bytes) -> set[str] | None:
    """The topics a consumer reads; None when the bytes mean something else."""
    topics = set()
    try:
        (count,) = _INT32.unpack_from(data, 2)
        position = 6
        for _ in range(count):
            (length,) = _INT16.unpack_from(data, position)
            topics.add(data[position + 2 : position + 2 + length].decode())
            position += 2 + length
    except (struct.error, UnicodeDecodeError):
        return None
    return topics

"""What the nodes of consumer groups hold, as values and as bytes, and what they are called.

Pure: values in, values out. Reading, writing and what goes together is the registry's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote, unquote
from uuid import UUID

from millrace.records.topic_partition import TopicPartition

MAX_PART_BYTES = 500_000
"""Of one transaction: the server closes the connection on a request of 1 MiB."""
CHANGE_BYTES = 100
"""A change takes at most this much beside its path and its data."""


class GroupKind(StrEnum):
    """Whose members a group has: consumers of `millrace.consumer`, or of Kafka's classic group protocol."""

    STREAMS = "streams"
    CLASSIC = "classic"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """The next offset to read, and of which life of the topic it is.

    A negative one is kept as clients commit it, and stands for none: who reads on begins by its own rule for
    that. A topic that was deleted and created anew has other messages there: see `current_offsets`.
    """

    offset: int
    metadata: str = ""
    time_ms: int
    topic_id: UUID | None
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsMember:
    """One registered consumer: topic -> how many streams it reads it with."""

    topics: Mapping[str, int]
    host: str


def current_offsets(
    committed: Mapping[TopicPartition, CommittedOffset], topic_ids: Mapping[str, UUID]
) -> dict[TopicPartition, CommittedOffset]:
    """Those of topics that are still the same; the others count as not committed."""
    return {place: found for place, found in committed.items() if topic_ids.get(place[0]) == found.topic_id}


def committed_positions(
    committed: Mapping[TopicPartition, CommittedOffset], topic_ids: Mapping[str, UUID]
) -> dict[TopicPartition, int]:
    """Where to read on, of current offsets that name a place in the log."""
    current = current_offsets(committed, topic_ids)
    return {place: found.offset for place, found in current.items() if found.offset >= 0}


def stream_name(consumer_id: str, index: int) -> str:
    """What one of a consumer's streams is called where it owns a partition."""
    return f"{consumer_id}-{index}"


def consumer_of(stream: str) -> str:
    """The consumer that a stream belongs to."""
    return stream.rpartition("-")[0]


def node_name(name: str) -> str:
    """Any name as a node's: `.` and `..` would be steps of a path."""
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")


def name_of(path: str) -> str:
    """The name that `node_name` encoded, from a path that ends in it."""
    return unquote(path.rsplit("/", 1)[1])


def place_of(path: str) -> TopicPartition:
    """The partition, from the node of its offset or owner."""
    topic, _, partition = path.rpartition("/")
    return name_of(topic), int(partition)


def encode_kind(kind: GroupKind) -> bytes:
    """What a group's node holds."""
    return json.dumps({"kind": kind}).encode()


def decode_kind(data: bytes) -> GroupKind:
    """The kind of group, from its node's data."""
    return GroupKind(json.loads(data)["kind"])


def encode_member(member: StreamsMember) -> bytes:
    """What a registered consumer's node holds."""
    return json.dumps({"host": member.host, "topics": dict(member.topics)}).encode()


def decode_member(data: bytes) -> StreamsMember:
    """The consumer, from its node's data."""
    return StreamsMember(**json.loads(data))


def encode_offset(committed: CommittedOffset) -> bytes:
    """What an offset's node holds."""
    value = {
        "offset": committed.offset, "metadata": committed.metadata, "time_ms": committed.time_ms,
        "topic_id": committed.topic_id and committed.topic_id.hex, "leader_epoch": committed.leader_epoch,
    }  # fmt: skip
    return json.dumps(value).encode()


def decode_offset(data: bytes) -> CommittedOffset:
    """The offset, from its node's data."""
    value = json.loads(data)
    return CommittedOffset(**{**value, "topic_id": value["topic_id"] and UUID(value["topic_id"])})


def in_parts(changes: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Paths and data, in their order, in as many parts as there must be transactions: at least one."""
    part: dict[str, bytes] = {}
    size = 0
    for path, data in changes.items():
        change = CHANGE_BYTES + len(path.encode()) + len(data)
        if part and size + change > MAX_PART_BYTES:
            yield part
            part, size = {}, 0
        part[path] = data
        size += change
    yield part

"""A cluster's description of its brokers and topics: the request, the answer, and a topic as a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from millrace.wire.codec import decode, encode
from millrace.wire.messages import ApiKey, MetadataRequest, MetadataResponse

VERSION = 12


class Copies(NamedTuple):
    """A partition's leader epoch, and the broker ids of all replicas and of the in-sync ones."""

    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic as the cluster describes it: partition -> id of its leader (-1: no leader)."""

    name: str
    topic_id: UUID
    partitions: Mapping[int, int]
    copies: Mapping[int, Copies] = field(default_factory=dict)

    def epoch_of(self, partition: int) -> int:
        """Return the partition's leader epoch; -1 when the cluster did not report it."""
        return self.copies[partition].leader_epoch if partition in self.copies else -1

    @classmethod
    def of(cls, topic: MetadataResponse.Topic) -> TopicMetadata:
        partitions = sorted(topic.partitions, key=lambda p: p.partition_index)
        return cls(
            topic.name or "",
            topic.topic_id or UUID(int=0),
            {p.partition_index: p.leader_id for p in partitions},
            {p.partition_index: Copies(p.leader_epoch, p.replica_nodes, p.isr_nodes) for p in partitions},
        )


def encode_request(topics: Iterable[str] | None) -> bytes:
    """Return the body of a request about topics by name, or about all of them."""
    names = None if topics is None else tuple(MetadataRequest.Topic(name=name) for name in topics)
    request = MetadataRequest(topics=names, allow_auto_topic_creation=False)
    return encode(request, ApiKey.METADATA, VERSION)


def decode_response(body: memoryview) -> MetadataResponse:
    return decode(MetadataResponse, ApiKey.METADATA, VERSION, body)


def topics_of(response: MetadataResponse) -> dict[str, TopicMetadata]:
    """Return the topics of an answer by name, without topics that it reports with an error."""
    return {t.name: TopicMetadata.of(t) for t in response.topics if t.name and not t.error_code}

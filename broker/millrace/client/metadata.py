"""A topic as a cluster describes it to its clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from millrace.wire.messages import MetadataTopic


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic as the cluster describes it: partition -> id of the leading broker (-1: nobody leads it)."""

    name: str
    topic_id: UUID
    partitions: Mapping[int, int]

    @classmethod
    def of(cls, topic: MetadataTopic) -> TopicMetadata:
        """What an answer says of a topic, its partitions in order."""
        partitions = {p.partition_index: p.leader_id for p in topic.partitions}
        return cls(topic.name or "", topic.topic_id or UUID(int=0), dict(sorted(partitions.items())))

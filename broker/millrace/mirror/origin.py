"""One topic of an origin cluster, as it is asked about from outside the brokers: status, reset, batch mirror.

Blocking; for one thread. Knows neither targets nor positions. (The mirror inside a broker reads with
puller.py.)
"""

from __future__ import annotations

from millrace.client.cluster_client import ClusterClient, TopicMetadata
from millrace.client.topic_admin import topic_setting
from millrace.mirror.runs import CLEANUP_POLICY, OffsetRules, OriginChanged, next_run, readable_from
from millrace.records.mirror_position import MirrorPosition
from millrace.wire.fetch import FetchedPartition

FETCH_BYTES = 4 << 20
"""Of one answer. A single batch may be larger, and still comes whole."""
FETCH_WAIT_MS = 500


class OriginTopic:
    """A topic of an origin, asked through a client of it; MillraceError when nobody answers."""

    def __init__(self, client: ClusterClient, topic: str) -> None:
        self._client, self._topic = client, topic

    def describe(self) -> TopicMetadata:
        """The topic that has the name now; UnknownTopicOrPartition when none has.

        Fetches go by name. An id never comes back, so asking after a fetch vouches for what it brought.
        """
        return self._client.topic(self._topic)

    def offset_rules(self) -> OffsetRules:
        """What this origin's offsets mean."""
        policy = topic_setting(self._client, self._topic, CLEANUP_POLICY)
        return OffsetRules.of_cluster(self._client.cluster_id, policy)

    def bounds(self, partition: int) -> tuple[int, int]:
        """The first offset still there, and the high watermark."""
        return self._client.bounds(self._topic, partition)

    def examine(self, recorded: MirrorPosition) -> OriginChanged | None:
        """Why the copying cannot go on behind a position, or None when it can."""
        partition, rules = recorded.origin.partition, self.offset_rules()
        earliest, high_watermark = self.bounds(partition)
        try:
            offset = readable_from(recorded.cursor, earliest, high_watermark, rules)
            if offset < high_watermark:
                fetched = self.fetch(partition, offset)
                if not fetched.error:
                    next_run(recorded, recorded, fetched, rules)
        except OriginChanged as error:
            return error
        return None

    def fetch(self, partition: int, offset: int, max_bytes: int = FETCH_BYTES) -> FetchedPartition:
        """What is new from an offset on; waits a moment when there is nothing."""
        fetched = self._client.fetch(
            self._topic,
            {partition: offset},
            max_bytes=max_bytes,
            max_wait_ms=FETCH_WAIT_MS,
            partition_max_bytes=max_bytes,
        )
        return fetched[partition]

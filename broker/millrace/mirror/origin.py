"""One topic of an origin cluster, as a puller reads it: what there is, what is new, where it begins and ends.

Blocking; for one thread. A broker of the origin that is down holds up its own partitions only: it is asked
apart from the others until it answers again. Knows neither targets nor positions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from uuid import UUID

from millrace.config import OriginConfig
from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace.mirror.runs import OffsetRules, OriginChanged, next_run, readable_from
from millrace.storage.position import MirrorPosition
from millrace.wire.client import EARLIEST, LATEST, ClusterClient, TopicMetadata
from millrace.wire.fetch import FetchedPartition
from millrace.wire.mirror_append import BYTE_OFFSETS_PREFIX
from millrace.wire.topic_settings import topic_setting

FETCH_BYTES = 4 << 20
"""Of one answer. A single batch may be larger, and still comes whole."""
PARTITION_BYTES = 1 << 20
FETCH_WAIT_MS = 500
TIMEOUT_SECONDS = 5.0
PROBE_TIMEOUT_SECONDS = 1.0
PROBE_EVERY_SECONDS = 5.0


class OriginTopic:
    """A topic of an origin; every method raises MillraceError when nobody answers."""

    def __init__(self, config: OriginConfig, topic: str, client_id: str) -> None:
        self._topic = topic
        self._client = ClusterClient(config.bootstrap, client_id=client_id, timeout_s=TIMEOUT_SECONDS)
        self._probe = ClusterClient(config.bootstrap, client_id=client_id, timeout_s=PROBE_TIMEOUT_SECONDS)
        self._leaders: Mapping[int, int] = {}
        self._silent: dict[int, tuple[float, str]] = {}
        """Broker -> when to ask it again, and what it failed with."""

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._probe.close()

    def describe(self) -> TopicMetadata:
        """The topic as it is now; UnknownTopicOrPartition when there is none."""
        metadata = self._client.topic(self._topic)
        self._leaders = metadata.partitions
        return metadata

    def offset_rules(self) -> OffsetRules:
        """What this origin's offsets mean."""
        if self._client.cluster_id.startswith(BYTE_OFFSETS_PREFIX):
            return OffsetRules(byte_positions=True)
        policy = topic_setting(self._client, self._topic, "cleanup.policy") or ""
        return OffsetRules(byte_positions=False, compacted="compact" in policy)

    def has_id(self, topic_id: UUID) -> bool:
        """True if the topic of that name is still the one with this id.

        Fetches go by name. An id never comes back, so asking after a fetch vouches for what it brought.
        """
        return self._client.topic(self._topic).topic_id == topic_id

    def bounds(self, partition: int) -> tuple[int, int]:
        """The first offset still there, and the high watermark."""
        earliest = self._client.list_offsets(self._topic, EARLIEST, [partition])[partition]
        return earliest, self._client.list_offsets(self._topic, LATEST, [partition])[partition]

    def examine(self, recorded: MirrorPosition) -> OriginChanged | None:
        """Why the copying cannot go on behind a position, or None when it can."""
        partition, rules = recorded.origin.partition, self.offset_rules()
        earliest, high_watermark = self.bounds(partition)
        try:
            offset = readable_from(recorded.cursor, earliest, high_watermark, rules)
            if offset < high_watermark:
                found, _ = self.fetch({partition: offset})
                if partition in found and not found[partition].error:
                    next_run(recorded, recorded, found[partition], rules)
        except OriginChanged as error:
            return error
        return None

    def fetch(self, offsets: Mapping[int, int]) -> tuple[dict[int, FetchedPartition], dict[int, str]]:
        """What is new in each partition from its offset on, and why some could not be asked."""
        by_leader: dict[int, dict[int, int]] = {}
        for partition, offset in offsets.items():
            by_leader.setdefault(self._leaders.get(partition, -1), {})[partition] = offset
        asked = {
            p: offset for leader, share in by_leader.items() if leader not in self._silent
            for p, offset in share.items()
        }  # fmt: skip
        found: dict[int, FetchedPartition] = {}
        try:
            if asked:
                found |= self._ask(self._client, asked, FETCH_WAIT_MS)
        except UnknownTopicOrPartition:
            raise
        except MillraceError as error:
            if len(set(self._leaders.values())) <= 1:
                raise
            # One of several does not answer, or it has moved: the probe below finds out which.
            self._silent |= {leader: (0.0, str(error)) for leader in by_leader if leader not in self._silent}
        failed: dict[int, str] = {}
        for leader in [leader for leader in self._silent if leader in by_leader]:
            answer, why = self._ask_silent(leader, by_leader[leader])
            found |= answer
            failed |= dict.fromkeys(by_leader[leader], why) if why else {}
        return found, failed

    def _ask_silent(
        self, leader: int, offsets: Mapping[int, int]
    ) -> tuple[Mapping[int, FetchedPartition], str]:
        again_at, why = self._silent[leader]
        if time.monotonic() < again_at:
            return {}, why
        try:
            answer = self._ask(self._probe, offsets, 0)
        except MillraceError as error:
            self._silent[leader] = (time.monotonic() + PROBE_EVERY_SECONDS, str(error))
            return {}, str(error)
        del self._silent[leader]
        return answer, ""

    def _ask(
        self, client: ClusterClient, offsets: Mapping[int, int], wait_ms: int
    ) -> Mapping[int, FetchedPartition]:
        return client.fetch(
            self._topic, offsets, max_bytes=FETCH_BYTES, max_wait_ms=wait_ms,
            partition_max_bytes=PARTITION_BYTES,
        )  # fmt: skip

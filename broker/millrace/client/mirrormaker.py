"""What MirrorMaker 2 says of its copies in an Apache Kafka: which offset there is which offset of the origin.

    topic     mm2-offset-syncs.<origin>.internal, one partition, compacted; MirrorMaker keeps it in the
              cluster it fills with `offset-syncs.topic.location = target`
    record := key = topic (int16 length, UTF-8), partition (int32), both of the origin,
              value = offset of a record at the origin (int64), offset of its copy (int64)

MirrorMaker copies a partition in its order. So before the copy that a record names lies all that is before it
at the origin, and nothing that is behind it there. It writes one for some records only, and one for the last
whenever Kafka Connect commits its offsets.
"""

from __future__ import annotations

import struct
import time
from typing import NamedTuple

from millrace.client.cluster_client import ClusterClient
from millrace.client.kafka_positions import TopicLog
from millrace.errors import MillraceError
from millrace.records.topic_partition import TopicPartition

FRESH_SECONDS = 0.2
_OFFSETS = struct.Struct(">qq")


class Synced(NamedTuple):
    """The newest record of a copy: both offsets are those behind it."""

    origin_end: int
    copy_end: int


def syncs_topic(origin: str) -> str:
    return f"mm2-offset-syncs.{origin}.internal"


class SyncLog:
    """The newest word on every partition that is copied from one origin. For one thread."""

    def __init__(self, client: ClusterClient, origin: str) -> None:
        self._topic = syncs_topic(origin)
        self._log = TopicLog(client, self._topic)
        self._newest: dict[TopicPartition, Synced] = {}
        self._read_at = -FRESH_SECONDS

    def read(self) -> dict[TopicPartition, Synced]:
        """What is said, partitions are the origin's; MillraceError when it cannot be read.

        Asked for every partition of a cluster, it looks for news once.
        """
        if time.monotonic() < self._read_at + FRESH_SECONDS:
            return self._newest
        for record in self._log.read():
            if record.key is not None and record.value is not None:
                place, upstream, downstream = _sync(record.key, record.value, self._topic)
                before = self._newest.get(place, Synced(0, 0))
                # After a crash MirrorMaker goes back at the origin, and its copy grows on.
                self._newest[place] = Synced(max(before.origin_end, upstream + 1), downstream + 1)
        self._read_at = time.monotonic()
        return self._newest


def _sync(key: bytes, value: bytes, topic: str) -> tuple[TopicPartition, int, int]:
    """One record: the partition, and the offset there and here; MillraceError for any other record."""
    try:
        (size,) = struct.unpack_from(">h", key)
        if size < 0:
            raise ValueError("a negative length")
        place = key[2 : 2 + size].decode(), struct.unpack_from(">i", key, 2 + size)[0]
        return place, *_OFFSETS.unpack_from(value)
    except (struct.error, ValueError):
        raise MillraceError(
            f"{topic} has a record that is no offset sync: let only MirrorMaker write"
        ) from None

"""MirrorMaker 2's offset syncs in an Apache Kafka: pairs of an origin's offset and the copy's offset.

    topic     mm2-offset-syncs.<origin>.internal, one partition, compacted; MirrorMaker keeps it in the
              cluster it fills with `offset-syncs.topic.location = target`
    record := key = topic (int16 length, UTF-8), partition (int32), both of the origin,
              value = offset of a record at the origin (int64), offset of its copy (int64)

MirrorMaker copies a partition in order. So all records before a synced record at the origin have copies
before its copy, and no later record does. MirrorMaker writes a sync for some records only, and for the last
record whenever Kafka Connect commits its offsets.
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
    """The newest sync of a partition: the offsets after its record, at the origin and in the copy."""

    origin_end: int
    copy_end: int


def syncs_topic(origin: str) -> str:
    return f"mm2-offset-syncs.{origin}.internal"


class SyncLog:
    """The newest sync of every partition that is copied from one origin. For one thread."""

    def __init__(self, client: ClusterClient, origin: str) -> None:
        self._topic = syncs_topic(origin)
        self._log = TopicLog(client, self._topic)
        self._newest: dict[TopicPartition, Synced] = {}
        self._read_at = -FRESH_SECONDS

    def read(self) -> dict[TopicPartition, Synced]:
        """Return the newest syncs by the origin's partitions. Raise MillraceError when they cannot be read.

        Calls within FRESH_SECONDS of the last read return its result, so a loop over partitions reads once.
        """
        if time.monotonic() < self._read_at + FRESH_SECONDS:
            return self._newest
        for record in self._log.read():
            if record.key is not None and record.value is not None:
                place, upstream, downstream = parse_sync(record.key, record.value, self._topic)
                before = self._newest.get(place, Synced(0, 0))
                # After a crash MirrorMaker rereads the origin, and its copy keeps growing.
                self._newest[place] = Synced(max(before.origin_end, upstream + 1), downstream + 1)
        self._read_at = time.monotonic()
        return self._newest


def parse_sync(key: bytes, value: bytes, topic: str) -> tuple[TopicPartition, int, int]:
    """Return the origin's partition, the origin's offset and the copy's.

    Raise MillraceError if the record is no sync.
    """
    try:
        (size,) = struct.unpack_from(">h", key)
        if size < 0:
            raise ValueError("a negative length")
        place = key[2 : 2 + size].decode(), struct.unpack_from(">i", key, 2 + size)[0]
        return place, *_OFFSETS.unpack_from(value)
    except (struct.error, ValueError):
        raise MillraceError(
            f"{topic} has a record that is no offset sync: allow only MirrorMaker to write"
        ) from None

"""Where a mirrored partition's records come from, as the position batches in its log say."""

from __future__ import annotations

from millrace.client.cluster_client import ClusterClient
from millrace.errors import CorruptMessage
from millrace.records import split_batches
from millrace.records.mirror_position import MirrorPosition
from millrace_spark.warehouse.manifest import OriginPartition

FETCH_BYTES = 4 << 20
"""A mirror appends less than this at a time and closes each append with a position."""


def origin_of(client: ClusterClient, topic: str, partition: int, offset: int) -> OriginPartition | None:
    """The origin of a partition; None when no position batch lies behind the offset (it is not mirrored)."""
    fetched = client.fetch(
        topic, {partition: offset}, max_bytes=FETCH_BYTES, max_wait_ms=0, partition_max_bytes=FETCH_BYTES
    )[partition]
    try:
        for header, batch in split_batches(fetched.records):
            position = MirrorPosition.from_batch(header, batch)
            if position is not None:
                origin = position.origin
                return OriginPartition(
                    cluster=origin.cluster, topic=origin.topic, topic_id=origin.topic_id.hex,
                    partition=origin.partition,
                )  # fmt: skip
    except CorruptMessage:
        return None  # whoever reads the records says so
    return None

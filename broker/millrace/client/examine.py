"""Requests to an origin by `mirror status`, `mirror reset` and the batch mirror, from outside the brokers.

Blocking. It uses neither targets nor threads. (The mirror inside a broker reads with puller.py.)
"""

from __future__ import annotations

from millrace.client.cluster_client import ClusterClient
from millrace.client.runs import CLEANUP_POLICY, OffsetRules, OriginChanged, readable_from, runs_of
from millrace.client.topic_admin import topic_setting
from millrace.records.mirror_position import MirrorPosition
from millrace.wire.fetch import FetchedPartition

FETCH_BYTES = 4 << 20
"""Most bytes of one answer. A single larger batch still comes whole."""
FETCH_WAIT_MS = 500


def offset_rules(client: ClusterClient, topic: str) -> OffsetRules:
    policy = topic_setting(client, topic, CLEANUP_POLICY)
    return OffsetRules.of_cluster(client.cluster_id, policy)


def fetch(
    client: ClusterClient,
    topic: str,
    partition: int,
    offset: int,
    max_bytes: int = FETCH_BYTES,
    *,
    last_epoch: int = -1,
) -> FetchedPartition:
    """Fetch from an offset on, after a batch of `last_epoch`; wait up to FETCH_WAIT_MS for the first bytes.

    A fetch names the topic, not its id. Topic ids are never reused: an unchanged id after the fetch proves
    that the batches are of that topic.
    """
    fetched = client.fetch(
        topic,
        {partition: offset},
        max_bytes=max_bytes,
        max_wait_ms=FETCH_WAIT_MS,
        partition_max_bytes=max_bytes,
        last_epochs={partition: last_epoch},
    )
    return fetched[partition]


def examine(client: ClusterClient, recorded: MirrorPosition) -> OriginChanged | None:
    """Return the reason that copying cannot continue at a position; None when it can."""
    topic, partition = recorded.origin.topic, recorded.origin.partition
    rules = offset_rules(client, topic)
    earliest, high_watermark = client.bounds(topic, partition)
    cursor = recorded.cursor
    # A log that ends before the position may also have reused offsets: check at its end.
    asked = min(cursor.next_offset, high_watermark)
    fetched = fetch(client, topic, partition, asked, last_epoch=cursor.epoch)
    try:
        if fetched.parting is None:
            offset = readable_from(cursor, earliest, high_watermark, rules)
            if offset != asked:
                fetched = fetch(client, topic, partition, offset)
        if not fetched.error:
            next(runs_of(recorded, recorded, fetched, rules), None)
    except OriginChanged as error:
        return error
    return None

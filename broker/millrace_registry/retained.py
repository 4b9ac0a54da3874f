"""Schema ids in the messages that a topic still holds. Batches are read, but no message is decoded."""

from __future__ import annotations

from collections import Counter

import numpy as np

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.client.transactions import batches_from
from millrace.errors import MillraceError
from millrace.records.framing import frame_batches
from millrace.wire.fetch import error_name

TAIL = 1 << 16
"""Number of offsets before a partition's end that are read for a sample: 64 KiB of log on Millrace's brokers,
at most 65,536 messages on Apache Kafka's."""
_PREFIX_BYTES = 5
_FETCH_BYTES = 4 << 20


def ids_in(client: ClusterClient, topic: str, *, tail_only: bool = False) -> Counter[int]:
    """Return the number of retained messages of each schema id; `tail_only` samples the end of each
    partition.

    Messages that do not begin with an id are left out. Raise MillraceError when a partition cannot be read.
    """
    found: Counter[int] = Counter()
    earliest, latest = (client.list_offsets(topic, when) for when in (EARLIEST, LATEST))
    for partition, end in latest.items():
        first = earliest.get(partition, end)  # the partition may be new
        start = max(first, end - TAIL) if tail_only else first
        found += _ids_between(client, topic, partition, start, end, sample=tail_only)
    return found


def _ids_between(
    client: ClusterClient, topic: str, partition: int, offset: int, end: int, *, sample: bool
) -> Counter[int]:
    found: Counter[int] = Counter()
    most = TAIL if sample else _FETCH_BYTES
    where = f"{topic}-{partition}"
    while offset < end:
        fetched = client.fetch(
            topic, {partition: offset}, max_bytes=most, partition_max_bytes=most, max_wait_ms=0
        )[partition]
        if fetched.error:
            raise MillraceError(f"{where} cannot be read at {offset}: {error_name(fetched.error)}: try again")
        batches = list(batches_from(fetched, offset))
        if not batches:
            raise MillraceError(f"{where} returns nothing at offset {offset}, below its end {end}: try again")
        committed = ((header, batch) for header, batch, readable in batches if readable)
        for frames, _ in frame_batches(committed):
            tagged = frames.value_size >= _PREFIX_BYTES
            tagged &= frames.buffer.bytes[np.where(tagged, frames.value, 0)] == 0
            numbers = frames.buffer.numbers(frames.value[tagged] + 1, np.uint32).byteswap()
            ids, counts = np.unique(numbers, return_counts=True)
            found.update(dict(zip(ids.tolist(), counts.tolist(), strict=True)))
        offset = batches[-1][0].next_offset
        if sample:  # Apache Kafka's offsets are messages of any size: halve the distance to the end
            offset = (offset + end) // 2
    return found

"""The newest values of a topic, for commands that look at what it holds."""

from __future__ import annotations

from collections import deque

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.client.transactions import batches_from
from millrace.records import iter_records
from millrace.wire.mirror_append import BYTE_OFFSETS_PREFIX

_VALUE_BYTES = 512
"""Assumed size of a record in the log, where offsets are byte positions."""
_FETCH_BYTES = 4 << 20
_MOST_BYTES = 64 << 20
"""Most bytes of values that are held, whatever their number."""


def newest_values(client: ClusterClient, topic: str, most: int) -> list[bytes]:
    """Return at most `most` values, of 64 MiB or so, from the ends of all partitions, without tombstones.

    Raise MillraceError when a partition cannot be read.
    """
    earliest, latest = (client.list_offsets(topic, when) for when in (EARLIEST, LATEST))
    share = -(-most // max(len(latest), 1))
    span = share * _VALUE_BYTES if client.cluster_id.startswith(BYTE_OFFSETS_PREFIX) else share
    most_bytes = _MOST_BYTES // max(len(latest), 1)
    values: list[bytes] = []
    for partition, end in latest.items():
        start = max(earliest.get(partition, end), end - span)
        values += _values_between(client, topic, partition, start, end, share, most_bytes)
    return values[:most]


def _values_between(
    client: ClusterClient, topic: str, partition: int, offset: int, end: int, most: int, most_bytes: int
) -> deque[bytes]:
    """Return the last values of the offsets [offset, end): one at least, if there is one."""
    values, held = deque[bytes](), 0
    while offset < end:
        fetched = client.fetch(
            topic,
            {partition: offset},
            max_bytes=_FETCH_BYTES,
            partition_max_bytes=_FETCH_BYTES,
            max_wait_ms=0,
        )[partition]
        batches = list(batches_from(fetched, offset, f"{topic}-{partition}"))
        if not batches:
            break
        for header, batch, is_committed in batches:
            for record in iter_records(header, batch) if is_committed else ():
                if record.value is not None:
                    values.append(record.value)
                    held += len(record.value)
                while len(values) > most or (held > most_bytes and len(values) > 1):
                    held -= len(values.popleft())
        offset = batches[-1][0].next_offset
    return values

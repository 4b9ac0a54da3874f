"""The records of a topic up to its end, from all partitions in turn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.client.transactions import batches_from
from millrace.errors import MillraceError
from millrace.records import TIMESTAMP_TYPE_BIT, Record, iter_records

_FETCH_BYTES = 4 << 20
_FETCH_WAIT_MS = 200
_STALL_S = 30.0


class Stored(NamedTuple):
    """A record and its place in the log."""

    partition: int
    record: Record
    is_committed: bool
    """False for a record of an aborted transaction."""
    has_append_time: bool
    """True if the broker replaced the producer's timestamp."""


def records_of(client: ClusterClient, topic: str) -> Iterator[Stored]:
    """Yield the records from the start of each partition to its end at the call.

    Every answer has a share of each partition: the numbers of one instance then come nearly in order, and
    take few ranges. Raise MillraceError when a partition cannot be read.
    """
    ends, offsets = (client.list_offsets(topic, when) for when in (LATEST, EARLIEST))
    give_up_at = time.monotonic() + _STALL_S
    while left := {partition: at for partition, at in offsets.items() if at < ends[partition]}:
        if time.monotonic() > give_up_at:
            names = ", ".join(f"{topic}-{partition} at offset {at}" for partition, at in left.items())
            raise MillraceError(f"nothing more can be read of {names}: see the broker's log")
        share = max(_FETCH_BYTES // len(left), 1)
        answer = client.fetch(
            topic, left, max_bytes=_FETCH_BYTES, partition_max_bytes=share, max_wait_ms=_FETCH_WAIT_MS
        )
        for partition, fetched in answer.items():
            for header, batch, is_committed in batches_from(fetched, left[partition], f"{topic}-{partition}"):
                offsets[partition] = header.next_offset
                give_up_at = time.monotonic() + _STALL_S
                if not header.is_control:
                    has_append_time = bool(header.attributes & TIMESTAMP_TYPE_BIT)
                    for record in iter_records(header, batch):
                        yield Stored(partition, record, is_committed, has_append_time)

"""Where a run stops when it may not take everything: so many bytes, or up to a time, at batch boundaries.

Bytes are shared over the partitions in proportion to what waits there, and rounded down to whole batches; a
partition whose next batch is larger than its share takes that one batch, so that every one makes progress.
A time takes everything before it: the batch it falls into is taken whole. On Apache Kafka an offset is a
record, so bytes are reckoned from the size of the first records that wait. Reads a batch here and there;
freezes nothing: `plan` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from millrace.errors import CorruptMessage, ErrorCode, MillraceError
from millrace.records import BatchHeader, split_batches
from millrace.wire.client import ClusterClient
from millrace_spark.ranges import KAFKA_RECORD_BYTES

SAMPLE_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much one run may take of a topic; None for no bound."""

    max_bytes: int | None = None
    until_ms: int | None = None
    """Event time is not known to the broker: this is the time of the Kafka records, in ms."""


NO_BOUNDS = Bounds()


def bounded_ends(
    client: ClusterClient,
    topic: str,
    waiting: Mapping[int, tuple[int, int]],
    bounds: Bounds,
    *,
    byte_positions: bool,
) -> dict[int, int]:
    """Partition -> where to stop in its waiting offsets (start, end), which must not be empty."""
    ends = {partition: end for partition, (_, end) in waiting.items()}
    if bounds.until_ms is not None and waiting:
        found = client.list_offsets(topic, bounds.until_ms, waiting)
        for partition, (start, end) in waiting.items():
            offset = found[partition]
            if offset < end:
                ends[partition] = _end_of_batch(client, topic, partition, offset, end)
            ends[partition] = max(start, ends[partition])
    if bounds.max_bytes is not None:
        left = {p: (start, ends[p]) for p, (start, _) in waiting.items() if ends[p] > start}
        ends |= _by_bytes(client, topic, left, bounds.max_bytes, byte_positions)
    return ends


def _by_bytes(
    client: ClusterClient,
    topic: str,
    waiting: Mapping[int, tuple[int, int]],
    max_bytes: int,
    byte_positions: bool,
) -> dict[int, int]:
    each = {
        p: 1.0 if byte_positions else _bytes_per_offset(client, topic, p, start)
        for p, (start, _) in waiting.items()
    }
    total = sum((end - start) * each[p] for p, (start, end) in waiting.items())
    if total <= max_bytes:
        return {partition: end for partition, (_, end) in waiting.items()}
    ends = {}
    for partition, (start, end) in waiting.items():
        target = start + int((end - start) * (max_bytes / total))
        ends[partition] = _whole_batches(client, topic, partition, start, target, end)
    return ends


def _whole_batches(
    client: ClusterClient, topic: str, partition: int, start: int, target: int, end: int
) -> int:
    """The last batch boundary up to `target`, or the end of the first batch if that lies behind it."""
    header = next(_batches(client, topic, partition, target), None)
    if header is None:
        return end
    return min(end, header.base_offset if header.base_offset > start else header.next_offset)


def _end_of_batch(client: ClusterClient, topic: str, partition: int, offset: int, end: int) -> int:
    """The offset itself where a batch begins, else the end of the batch it lies in."""
    header = next(_batches(client, topic, partition, offset), None)
    if header is None or header.base_offset >= offset:
        return offset
    return min(end, header.next_offset)


def _bytes_per_offset(client: ClusterClient, topic: str, partition: int, start: int) -> float:
    """What an offset is worth where the offsets count records: by the first batches that wait."""
    size, last = 0, start
    for header in _batches(client, topic, partition, start, SAMPLE_BYTES):
        size, last = size + header.size, header.next_offset
    return size / (last - start) if last > start else KAFKA_RECORD_BYTES


def _batches(
    client: ClusterClient, topic: str, partition: int, offset: int, max_bytes: int = 1
) -> Iterator[BatchHeader]:
    """The batch an offset lies in and those behind it; nothing when they have expired meanwhile."""
    fetched = client.fetch(
        topic, {partition: offset}, max_bytes=max_bytes, max_wait_ms=0, partition_max_bytes=max_bytes
    )[partition]
    if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
        return
    if fetched.error:
        raise MillraceError(
            f"{topic}-{partition} at offset {offset}: the broker answers with error {fetched.error}"
        )
    try:
        yield from (header for header, _ in split_batches(fetched.records) if header.next_offset > offset)
    except CorruptMessage as error:
        raise MillraceError(
            f"{topic}-{partition}: {error}; run `millrace log verify` on its broker"
        ) from None

"""End of a run with a limit of bytes or of time, at boundaries of batches.

Bytes are shared among the partitions in proportion to the bytes that wait in each, and rounded down to whole
batches. A partition whose next batch is larger than its share takes that batch, so that every partition makes
progress. A time limit takes everything before it, and the whole batch that it falls into. On Apache Kafka an
offset is a record, so bytes are estimated from the size of the first waiting records. Reads only a few
batches, and stores nothing: the load stores the end in its plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from millrace.client.cluster_client import ClusterClient
from millrace.errors import ErrorCode, MillraceError
from millrace.records import BatchHeader
from millrace_warehouse.log.ranges import KAFKA_RECORD_BYTES
from millrace_warehouse.log.reading import batches_of, fetch_from, has_byte_positions

WINDOW_BYTES = 1 << 16
"""Bytes fetched at a time to look for the boundaries of batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The most that one run may take of a topic; None for no limit."""

    max_bytes: int | None = None
    until_ms: int | None = None
    """Time limit in ms for the times of Kafka records: the broker does not know event times."""


NO_BOUNDS = Bounds()


def bounded_ends(
    client: ClusterClient, topic: str, waiting: Mapping[int, tuple[int, int]], bounds: Bounds
) -> dict[int, int]:
    """Map each partition to the run's end in its waiting offsets (start, end), which must not be empty."""
    logs = {p: _Waiting(client, topic, p, start, end) for p, (start, end) in waiting.items()}
    ends = {partition: log.end for partition, log in logs.items()}
    if bounds.until_ms is not None and logs:
        offsets = client.list_offsets(topic, bounds.until_ms, logs)
        ends = {partition: log.end_before(offsets[partition]) for partition, log in logs.items()}
    if bounds.max_bytes is not None:
        ends |= _by_bytes(logs, ends, bounds.max_bytes, has_byte_positions(client))
    return ends


def _by_bytes(
    logs: Mapping[int, _Waiting], ends: Mapping[int, int], max_bytes: int, byte_positions: bool
) -> dict[int, int]:
    left = {partition: log for partition, log in logs.items() if ends[partition] > log.start}
    bytes_per_offset = {p: 1.0 if byte_positions else log.bytes_per_offset() for p, log in left.items()}
    # Where offsets are byte positions, the end of an offset range lies inside its last batch.
    positions = {p: log.position_after(ends[p]) if byte_positions else ends[p] for p, log in left.items()}
    total = sum((positions[p] - log.start) * bytes_per_offset[p] for p, log in left.items())
    if total <= max_bytes:
        return dict(ends)
    share = max_bytes / total
    targets = {p: log.start + int((positions[p] - log.start) * share) for p, log in left.items()}
    return {p: min(ends[p], log.last_boundary(targets[p], bytes_per_offset[p])) for p, log in left.items()}


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Waiting offsets [start, end) of a partition, and the batches in them."""

    client: ClusterClient
    topic: str
    partition: int
    start: int
    end: int

    def end_before(self, offset: int) -> int:
        """Return the end that takes everything before the offset: the end of the batch around it, if any."""
        if offset >= self.end:
            return self.end
        if offset <= self._first_data():
            return self.start
        header = next(self._batches(offset), None)
        if header is None or header.base_offset >= offset:
            return offset
        return min(self.end, header.next_offset)

    def last_boundary(self, target: int, bytes_per_offset: float) -> int:
        """Return the last start of a batch up to `target`, or the end of the first batch if that lies after
        `target`.

        The search goes back from the target in ever larger steps. Where offsets are byte positions, nearly
        every target lies between the starts of two batches, and a fetch from there shows only the next batch.
        """
        first = self._first_data()
        window = WINDOW_BYTES
        while True:
            begin = max(self.start, target - int(window / bytes_per_offset))
            bases = [h.base_offset for h in self._batches(begin, window) if first < h.base_offset <= target]
            if bases:
                return bases[-1]
            if begin == self.start:
                break
            window *= 8
        header = next((h for h in self._batches(first) if h.base_offset >= first), None)
        return self.end if header is None else header.next_offset

    def _first_data(self) -> int:
        """Start of the first batch with records. Control batches alone need no load."""
        batches = self._batches(self.start, WINDOW_BYTES)
        return next((header.base_offset for header in batches if not header.is_control), self.start)

    def position_after(self, end: int) -> int:
        """Return the byte position after the last batch before an end."""
        header = next(self._batches(end - 1), None)
        return end if header is None or header.base_offset >= end else header.base_offset + header.size

    def bytes_per_offset(self) -> float:
        """Return the bytes per offset where offsets count records, estimated from the first batches."""
        size, last = 0, self.start
        for header in self._batches(self.start, WINDOW_BYTES):
            size, last = size + header.size, header.next_offset
        return size / (last - self.start) if last > self.start else KAFKA_RECORD_BYTES

    def _batches(self, offset: int, max_bytes: int = 1) -> Iterator[BatchHeader]:
        """Yield the batch around an offset and the batches after it; yield nothing when they have expired."""
        fetched = fetch_from(self.client, self.topic, self.partition, offset, max_bytes)
        if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            return
        where = f"{self.topic}-{self.partition}"
        if fetched.error:
            raise MillraceError(f"{where} at offset {offset}: the broker answers with error {fetched.error}")
        yield from (h for h, _ in batches_of(fetched.records, where) if h.next_offset > offset)

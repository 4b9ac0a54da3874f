"""Where a run stops when it may not take everything: so many bytes, or up to a time, at batch boundaries.

Bytes are shared over the partitions in proportion to what waits there, and rounded down to whole batches; a
partition whose next batch is larger than its share takes that one batch, so that every one makes progress.
A time takes everything before it: the batch it falls into is taken whole. On Apache Kafka an offset is a
record, so bytes are reckoned from the size of the first records that wait. Reads a batch here and there;
freezes nothing: the load does that when it plans.
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
"""Fetched at a time to look for the boundaries of batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much one run may take of a topic; None for no bound."""

    max_bytes: int | None = None
    until_ms: int | None = None
    """Event time is not known to the broker: this is the time of the Kafka records, in ms."""


NO_BOUNDS = Bounds()


def bounded_ends(
    client: ClusterClient, topic: str, waiting: Mapping[int, tuple[int, int]], bounds: Bounds
) -> dict[int, int]:
    """Partition -> where to stop in its waiting offsets (start, end), which must not be empty."""
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
    # The end of an offset range lies inside its last batch where offsets are byte positions.
    behind = {p: log.behind(ends[p]) if byte_positions else ends[p] for p, log in left.items()}
    total = sum((behind[p] - log.start) * bytes_per_offset[p] for p, log in left.items())
    if total <= max_bytes:
        return dict(ends)
    share = max_bytes / total
    targets = {p: log.start + int((behind[p] - log.start) * share) for p, log in left.items()}
    return {p: min(ends[p], log.last_boundary(targets[p], bytes_per_offset[p])) for p, log in left.items()}


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The offsets [start, end) of a partition that wait, and the batches in them."""

    client: ClusterClient
    topic: str
    partition: int
    start: int
    end: int

    def end_before(self, offset: int) -> int:
        """Where everything before the offset is taken: the end of the batch it lies in, if it is inside."""
        if offset >= self.end:
            return self.end
        if offset <= self._first_data():
            return self.start
        header = next(self._batches(offset), None)
        if header is None or header.base_offset >= offset:
            return offset
        return min(self.end, header.next_offset)

    def last_boundary(self, target: int, bytes_per_offset: float) -> int:
        """The last beginning of a batch up to `target`; the end of the first batch if it lies behind that.

        Looked for in ever larger pieces before the target: where offsets are byte positions, nearly all of
        them lie between two batches, and from there a broker shows only the next one.
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
        """Where the first batch with records begins; control batches alone are not worth a load."""
        batches = self._batches(self.start, WINDOW_BYTES)
        return next((header.base_offset for header in batches if not header.is_control), self.start)

    def behind(self, end: int) -> int:
        """The byte position behind the last batch before an end."""
        header = next(self._batches(end - 1), None)
        return end if header is None or header.base_offset >= end else header.base_offset + header.size

    def bytes_per_offset(self) -> float:
        """What an offset is worth where the offsets count records: by the first batches that wait."""
        size, last = 0, self.start
        for header in self._batches(self.start, WINDOW_BYTES):
            size, last = size + header.size, header.next_offset
        return size / (last - self.start) if last > self.start else KAFKA_RECORD_BYTES

    def _batches(self, offset: int, max_bytes: int = 1) -> Iterator[BatchHeader]:
        """The batch an offset lies in and those behind it; nothing when they have expired meanwhile."""
        fetched = fetch_from(self.client, self.topic, self.partition, offset, max_bytes)
        if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            return
        where = f"{self.topic}-{self.partition}"
        if fetched.error:
            raise MillraceError(f"{where} at offset {offset}: the broker answers with error {fetched.error}")
        yield from (h for h, _ in batches_of(fetched.records, where) if h.next_offset > offset)

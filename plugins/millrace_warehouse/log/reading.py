"""Reads a cut: whole raw batches of one partition in order, or an error.

Skips batches of other cuts, control batches and aborted transactions, and counts the latter two. Does not
unpack batches: `messages.frames_of` leaves out single records outside the range.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from millrace.client.cluster_client import ClusterClient, FetchedPartition
from millrace.client.fetcher import log_was_cut
from millrace.client.runs import OffsetRules
from millrace.client.transactions import AbortedTransactions
from millrace.errors import CorruptMessage, ErrorCode, MillraceError, UnknownTopicId, UnknownTopicOrPartition
from millrace.records import BatchHeader, Cursor, split_batches
from millrace.records.framing import Batch
from millrace.wire.mirror_append import BYTE_OFFSETS_PREFIX
from millrace_warehouse.log.ranges import Cut, Gap, RangeStats

FETCH_BYTES = 8 << 20
"""Most bytes of one fetch. A larger batch still arrives whole."""
_WAIT_MS = 500


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Some data batches of a cut in log order: whole, with checked CRCs, still compressed."""

    batches: list[Batch]
    log_start: int = 0
    """Records before this offset have expired. The first batch may still hold some of them: Apache Kafka
    returns the whole batch around its log start.
    """


def has_byte_positions(client: ClusterClient) -> bool:
    """Return True for Millrace, where an offset is a byte position, and False for Apache Kafka."""
    return client.cluster_id.startswith(BYTE_OFFSETS_PREFIX)


def fetch_from(
    client: ClusterClient,
    topic: str,
    partition: int,
    offset: int,
    max_bytes: int,
    max_wait_ms: int = 0,
    last_epoch: int = -1,
) -> FetchedPartition:
    """Fetch one partition from an offset on: at least a whole batch, if there is one.

    With `last_epoch`, the epoch of the batch before, the answer has a `parting` if the log was cut back.
    """
    return client.fetch(
        topic,
        {partition: offset},
        max_bytes=max_bytes,
        partition_max_bytes=max_bytes,
        max_wait_ms=max_wait_ms,
        last_epochs={partition: last_epoch},
    )[partition]


def batches_of(records: memoryview, partition: str) -> Iterator[Batch]:
    """Yield the whole batches of an answer.

    Raise MillraceError, naming the partition, when a batch is damaged.
    """
    try:
        yield from split_batches(records)
    except CorruptMessage as error:
        raise MillraceError(f"{partition}: {error}; run `millrace log verify` on its broker") from None


def read_cut(
    client: ClusterClient,
    cut: Cut,
    stats: RangeStats,
    *,
    fetch_bytes: int = FETCH_BYTES,
    timeout_s: float = 60.0,
    lost_ok: bool = False,
) -> Iterator[FetchedBatches]:
    """Yield the data batches whose base offset lies in the cut, in order. Fill in `stats`.

    The same cut always gives the same batches, or MillraceError is raised: a batch is damaged, the topic was
    recreated, the log ends before the cut does or was cut back after a batch was read, or nothing arrives for
    `timeout_s`. Offsets that have expired since the range was fixed are a gap in `stats`, and no error. With
    `lost_ok`, a topic that is missing or was recreated gives nothing, and a log that ends too early or was
    cut back gives its rest.
    """
    if cut.first >= cut.last:
        return
    try:
        _check_topic(client, cut)
    except (UnknownTopicId, UnknownTopicOrPartition):
        if lost_ok:
            return
        raise
    reader = _CutReader(cut, stats)
    deadline = time.monotonic() + timeout_s
    while not reader.done:
        before = reader.wanted
        last_epoch = -1 if lost_ok or reader.cursor is None else reader.cursor.epoch
        fetched = fetch_from(
            client, cut.range.topic, cut.range.partition, before, fetch_bytes, _WAIT_MS, last_epoch
        )
        if fetched.parting is not None:
            was_cut = log_was_cut(cut.range.name, before, last_epoch, fetched.parting)
            raise MillraceError(
                f"{was_cut}: run again, start a query with a new checkpoint or set its failOnDataLoss=false"
            )
        if lost_ok and fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE and fetched.log_start_offset <= before:
            break
        if batches := reader.take(fetched):
            yield FetchedBatches(batches, reader.log_start)
        if reader.wanted > before:
            deadline = time.monotonic() + timeout_s
        elif not reader.done and time.monotonic() > deadline:
            if lost_ok and fetched.high_watermark < cut.range.end:
                break
            raise _nothing_came(cut, reader.wanted, fetched, timeout_s)
    # Fetches go by name. A topic's id never comes back, so this later check covers everything that was read.
    _check_topic(client, cut)


def _nothing_came(cut: Cut, wanted: int, fetched: FetchedPartition, timeout_s: float) -> MillraceError:
    return MillraceError(
        f"{cut.range.name} returned no data at offset {wanted} for {timeout_s:g} s; its high watermark is"
        f" {fetched.high_watermark}, the range ends at {cut.range.end}: if the high watermark is smaller, the"
        " log has lost messages; otherwise check the broker's log and run again"
    )


def _check_topic(client: ClusterClient, cut: Cut) -> None:
    expected, topic = cut.range.topic_id, cut.range.topic
    if expected is not None and (topic_id := client.topic(topic).topic_id) != expected:
        raise UnknownTopicId(
            f"topic {topic!r} was deleted and recreated (its id is {topic_id}, the run expected {expected}):"
            " load with a new run id, start a query with a new checkpoint or set its failOnDataLoss=false"
        )


@dataclass(slots=True)
class _CutReader:
    """State of reading one cut, one answer at a time. Makes no requests."""

    cut: Cut
    stats: RangeStats
    cursor: Cursor | None = None
    done: bool = False
    log_start: int = 0
    """Start of the log at the moment when offsets were found to have expired."""
    lost_from: int | None = None
    """The first expired offset, until the next batch shows which expired offsets belong to this cut."""
    rules: OffsetRules = field(init=False)

    def __post_init__(self) -> None:
        self.rules = OffsetRules(byte_positions=self.cut.range.byte_positions)
        if self.cut.is_first:
            self.cursor = Cursor(self.cut.range.start, self.cut.range.start_base)

    @property
    def wanted(self) -> int:
        return self.cut.first if self.cursor is None else self.cursor.next_offset

    def take(self, fetched: FetchedPartition) -> list[Batch]:
        """Return the data batches of an answer that belong to the cut."""
        if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE and fetched.log_start_offset > self.wanted:
            self._skip_to(fetched.log_start_offset)
            return []
        if fetched.error:
            raise self._error_of(fetched)
        aborted = AbortedTransactions(fetched.aborted_transactions)
        taken: list[Batch] = []
        for header, batch in batches_of(fetched.records, self.cut.range.name):
            dropped = aborted.drops(header)  # must see every batch, also those of another cut
            if header.next_offset <= self.wanted:
                continue  # read already
            self._add_expired_gap(header.base_offset)
            if header.base_offset >= self.cut.last:
                self.done = True
                break
            if header.base_offset >= self.cut.first or self.cut.is_first:
                self._count(header, dropped)
                if not dropped and not header.is_control:
                    taken.append((header, batch))
            self.cursor = self._after(header)
        if self.wanted >= self.cut.last:
            self._add_expired_gap(self.cut.last)
            self.done = True
        return taken

    def _count(self, header: BatchHeader, dropped: bool) -> None:
        stats = self.stats
        if stats.first_base is None:
            stats.first_base = header.base_offset
        elif self.cursor is not None and not self.cursor.follows(header):
            stats.gaps.append(Gap(self.cursor.next_offset, header.base_offset, "absent"))
        if dropped or header.is_control:
            stats.control_batches += 1
        else:
            stats.data_batches += 1
        stats.bytes += header.size
        stats.cursor = self._after(header)

    def _after(self, header: BatchHeader) -> Cursor:
        return self.rules.after(header, self.cursor or Cursor(0))

    def _skip_to(self, log_start: int) -> None:
        if self.cursor is not None and self.cursor.next_base == log_start:
            self.cursor = Cursor(log_start, log_start)  # no gap: the expired offsets were read already
            self.done = log_start >= self.cut.last
            return
        if self.lost_from is None:
            self.lost_from = self.wanted
        self.log_start = log_start
        self.cursor = Cursor(log_start, log_start)

    def _add_expired_gap(self, base: int) -> None:
        """Add the gap of expired offsets, now that the base offset of the next batch is known.

        A batch may begin before the log's start. The cut that contains its base offset reads the batch and
        accounts for all of its offsets, including expired ones. For other cuts these offsets are not lost.
        """
        start, self.lost_from = self.lost_from, None
        if start is None or (base < self.cut.first and not self.cut.is_first):
            return
        end = self.log_start if base < self.cut.last else min(self.log_start, self.cut.last)
        self.stats.gaps.append(Gap(start, end, "expired"))
        if self.stats.first_base is None:
            self.stats.first_base = start
        self.cursor = self.stats.cursor = Cursor(end, end)

    def _error_of(self, fetched: FetchedPartition) -> MillraceError:
        where = f"{self.cut.range.name} at offset {self.wanted}"
        if fetched.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            return MillraceError(
                f"{where}: the log has only [{fetched.log_start_offset}, {fetched.high_watermark}), messages "
                "that were there are lost: restore the log, or load to its end with a new run id, start a"
                " query with a new checkpoint or set its failOnDataLoss=false"
            )
        if fetched.error == ErrorCode.CORRUPT_MESSAGE:
            return MillraceError(f"{where}: the batch on disk is damaged; run `millrace log repair`")
        return MillraceError(f"{where}: the broker answers with error {fetched.error}")

"""Batches of idempotent producers that were refused for a temporary reason and have not come again.

A producer may have more batches in flight behind a refused batch. If one of them were stored, librdkafka
would take its acknowledgement for that of the refused batch, too. So all of them are refused for the same
reason until the refused batch comes again. OUT_OF_ORDER_SEQUENCE_NUMBER would make librdkafka begin a new
epoch and send all its batches in flight again, to all partitions, so that they may be stored twice.

An open log keeps the `RefusedBatches` of its partition. `UnservedBatches` keeps those of partitions whose log
is not open here; the log takes them over before its partition is served. All of them are in memory only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID
from weakref import WeakValueDictionary

from millrace.errors import BrokerError
from millrace.records import BatchHeader
from millrace_broker.storage.places import Places

REFUSED_S = 300.0
"""Seconds for which a refused batch is awaited: after this time librdkafka begins a new epoch."""
MAX_SEQUENCE = (1 << 31) - 1


class RefusedBatch(NamedTuple):
    """The first batch of a producer that was refused and has not come again."""

    epoch: int
    sequence: int
    error: type[BrokerError]
    reason: str
    """The error's text. The error itself would keep the batch in memory with its traceback."""
    at: float
    principal: str


class RefusedBatches:
    """The first refused batch of each producer of one partition. `places` limits those of many partitions."""

    __slots__ = ("__weakref__", "_clock", "_places", "first")

    def __init__(self, clock: Callable[[], float], places: Places[tuple[RefusedBatches, int]]) -> None:
        self._clock, self._places = clock, places
        self.first: dict[int, RefusedBatch] = {}
        """Producer id -> its first refused batch."""

    def check(self, header: BatchHeader) -> None:
        """Refuse a batch while an earlier refused batch of its producer must come again first."""
        first = self.first.get(header.producer_id)
        if first is None or first.epoch != header.producer_epoch or self._is_over(first):
            return
        if follows(header.base_sequence, first.sequence):
            raise first.error(
                f"sequence {first.sequence} of producer {header.producer_id} was refused and must come first:"
                f" {first.reason}"
            )

    def note(self, header: BatchHeader, principal: str, why: BrokerError) -> None:
        """Note a batch that was refused, for a temporary reason, before any part of it was written."""
        epoch, sequence = header.producer_epoch, header.base_sequence
        if header.producer_id >= 0 and sequence >= 0:
            batch = RefusedBatch(epoch, sequence, type(why), str(why), self._clock(), principal)
            self._put(header.producer_id, batch)

    def _put(self, producer_id: int, batch: RefusedBatch) -> None:
        first = self.first.get(producer_id)
        if first is not None:
            self._drop(producer_id)
            is_earlier = first.epoch == batch.epoch and follows(batch.sequence, first.sequence)
            if is_earlier and not self._is_over(first):
                batch = batch._replace(sequence=first.sequence)
        while (oldest := self._places.in_the_way(batch.principal)) is not None:
            (batches, other), _ = oldest
            batches._drop(other)
        self.first[producer_id] = batch
        self._places.put((self, producer_id), batch.principal, batch.at)

    def take(self, others: RefusedBatches) -> None:
        """Move the batches of `others`, which were refused for the same partition, here."""
        for producer_id, batch in list(others.first.items()):
            others._drop(producer_id)
            if not self._is_over(batch):
                self._put(producer_id, batch)

    def stored(self, producer_id: int, epoch: int, next_sequence: int) -> None:
        """Forget the producer's batch if its sequence is before `next_sequence`, or its epoch is older."""
        first = self.first.get(producer_id)
        if first is not None and (
            epoch > first.epoch or (epoch == first.epoch and follows(next_sequence, first.sequence))
        ):
            self._drop(producer_id)

    def clear(self) -> None:
        for producer_id in list(self.first):
            self._drop(producer_id)

    def _is_over(self, batch: RefusedBatch) -> bool:
        return batch.at + REFUSED_S < self._clock()

    def _drop(self, producer_id: int) -> None:
        self._places.drop((self, producer_id), self.first.pop(producer_id).principal)


class UnservedBatches:
    """Batches that were refused because the log of their partition is not open here. For one thread."""

    def __init__(self, clock: Callable[[], float], limit: int) -> None:
        """Keep at most `limit` batches, of one principal at most half of them."""
        self._clock = clock
        self._places: Places[tuple[RefusedBatches, int]] = Places(limit)
        self._refused: WeakValueDictionary[tuple[str, int, UUID | None], RefusedBatches] = (
            WeakValueDictionary()
        )
        """The batches of each partition, which its entries in `_places` keep in memory."""

    def note(
        self, partition: tuple[str, int, UUID | None], header: BatchHeader, principal: str, why: BrokerError
    ) -> None:
        """Note a batch for (topic, partition, topic id); the id is None while the topic is unknown."""
        batches = self._refused.get(partition)
        if batches is None:
            batches = self._refused[partition] = RefusedBatches(self._clock, self._places)
        batches.note(header, principal, why)

    def of(self, topic: str, partition: int, topic_id: UUID) -> list[RefusedBatches]:
        """Return the batches of a partition, without those that were sent to another topic of that name."""
        found = [self._refused.get((topic, partition, id_)) for id_ in (None, topic_id)]
        return [refused for refused in found if refused is not None]


def follows(sequence: int, other: int) -> bool:
    """Return True if `sequence` follows `other`. Sequences wrap to zero after MAX_SEQUENCE."""
    return 0 < (sequence - other) & MAX_SEQUENCE <= MAX_SEQUENCE // 2

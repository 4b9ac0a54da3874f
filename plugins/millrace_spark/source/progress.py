"""Progress of a stream, as its checkpoint keeps it, and the choice of its next micro-batch's end.

Takes the topics' present offsets and returns numbers, without any request. Spark may run a micro-batch again
from the two offsets in its checkpoint alone, after a crash and much later. So these contain everything that
decides which rows a micro-batch reads, also the start of a partition that is read for the first time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from millrace.errors import MillraceError
from millrace.records.topic_partition import TopicPartition
from millrace_warehouse.log.ranges import Range


@dataclass(frozen=True, slots=True)
class Progress:
    """The end of a micro-batch, which is the start of the next micro-batch. Empty before the first.

    As JSON, with topics and partitions in order and without empty values:

        {"offsets":   {topic: {partition: the next offset to read}},
         "topic_ids": {topic: id},        # a recreated topic has another id
         "next_base": {topic: {partition: where the next batch begins}},      # Millrace, where it is known
         "begun_at":  {topic: {partition: where this micro-batch began it}},  # partitions read the first time
         "epochs":    {topic: {partition: leader epoch of the last batch}}}   # Millrace, where it is known
    """

    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    next_base: Mapping[TopicPartition, int] = field(default_factory=dict)
    begun_at: Mapping[TopicPartition, int] = field(default_factory=dict)
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values. Equal progress makes equal text, which is how Spark compares it."""
        values: dict[str, Any] = {
            "offsets": _nested(self.offsets),
            "topic_ids": {topic: str(self.topic_ids[topic]) for topic in sorted(self.topic_ids)},
        }
        optional = {"next_base": self.next_base, "begun_at": self.begun_at, "epochs": self.epochs}
        return values | {name: _nested(numbers) for name, numbers in optional.items() if numbers}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Progress:
        """Read the values that `to_json` returned, or nothing. Raise MillraceError for other values."""
        if not values:
            return cls()
        try:
            return cls(
                _flat(values["offsets"]),
                {topic: UUID(text) for topic, text in values["topic_ids"].items()},
                _flat(values.get("next_base", {})),
                _flat(values.get("begun_at", {})),
                _flat(values.get("epochs", {})),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise MillraceError(
                f"the checkpoint's offsets are not of this source: {dict(values)}; give the query its own"
                " checkpoint"
            ) from None

    def has_read(self, partition: TopicPartition, topic_ids: Mapping[str, UUID]) -> bool:
        """Return True if the partition was read; a recreated topic, with another id, was not."""
        topic = partition[0]
        return partition in self.offsets and self.topic_ids.get(topic) == topic_ids.get(topic)

    def start_of(self, partition: TopicPartition, before: Progress) -> int:
        """Return the offset where the micro-batch that ends here began to read a partition."""
        if before.has_read(partition, self.topic_ids):
            return before.offsets[partition]
        if partition not in self.begun_at:
            topic, number = partition
            raise MillraceError(
                f"the checkpoint does not tell where {topic}-{number} began; start with a new checkpoint"
            )
        return self.begun_at[partition]


def _nested(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        nested.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return nested


def _flat(nested: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in nested.items()
        for partition, offset in partitions.items()
    }


def advance(
    before: Progress, latest: Progress, begun_at: Mapping[TopicPartition, int], limit: int | None
) -> Progress:
    """Return the end of the next micro-batch: the latest offsets, or about `limit` offsets after the start.

    `begun_at` has the starts of partitions that were not read yet. Topics without latest offsets keep their
    offsets. A partition that ends before its last read offset is set back to its end; the caller decides
    whether to allow that.
    """
    plan = Progress({}, latest.topic_ids, {}, begun_at)
    starts = {partition: plan.start_of(partition, before) for partition in latest.offsets}
    lags = {partition: max(0, end - starts[partition]) for partition, end in latest.offsets.items()}
    shares = lags if limit is None else share_out(lags, limit)
    offsets = {p: min(starts[p], end) + shares[p] for p, end in latest.offsets.items()}
    for partition, start in begun_at.items():
        offsets[partition] = max(offsets[partition], start)  # it may be newer than the latest offsets
    topic_ids = {**before.topic_ids, **latest.topic_ids}
    kept = {p: offset for p, offset in before.offsets.items() if before.has_read(p, topic_ids)}
    offsets = {**kept, **offsets}
    bases, epochs = (
        {p: number for p, number in numbers.items() if kept.get(p) == offsets.get(p)}
        for numbers in (before.next_base, before.epochs)
    )
    return Progress(offsets, topic_ids, bases, begun_at, epochs)


def share_out(lags: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """Return the number of offsets to read of each partition: in proportion to its lag, at most `limit` in
    all.

    Every partition with a lag gets at least one offset, even if there are more partitions than `limit`.
    Otherwise a small lag would wait for ever beside a large one.
    """
    lagging = {partition: lag for partition, lag in lags.items() if lag > 0}
    count, total = len(lagging), sum(lagging.values())
    if total <= limit:
        return dict(lags)
    shares = dict.fromkeys(lags, 0)
    for partition, lag in lagging.items():
        # One offset for each; the rest of the limit is divided over the rest of the lags.
        shares[partition] = 1 + (lag - 1) * max(0, limit - count) // max(1, total - count)
    return shares


def ranges_between(before: Progress, after: Progress, *, byte_positions: bool) -> list[Range]:
    """Return the ranges that the micro-batch between two ends reads."""
    ranges = []
    for partition, end in sorted(after.offsets.items()):
        begun = partition in after.begun_at
        if end == before.offsets.get(partition) and not begun:
            continue  # also a topic that is no longer read
        start = after.start_of(partition, before)
        base = None if begun else before.next_base.get(partition)
        if start < end:
            topic_id = after.topic_ids[partition[0]]
            ranges.append(Range(*partition, start, end, base, topic_id, byte_positions))
    return ranges

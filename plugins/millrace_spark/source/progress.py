"""How far a stream has come, as its checkpoint keeps it, and how far its next micro-batch goes.

Pure: what is known of the topics comes in, numbers come out. Spark may run a micro-batch again from the two
offsets in its checkpoint alone, after a crash and much later; so whatever decides what a micro-batch reads is
in them, also the place where a partition that was seen for the first time began.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from millrace.errors import MillraceError
from millrace.records.topic_partition import TopicPartition
from millrace_spark.topic.ranges import Range


@dataclass(frozen=True, slots=True)
class Progress:
    """The end of a micro-batch, which is the beginning of the next one.

    As JSON, topics and partitions in order, what is empty left out:

        {"offsets":   {topic: {partition: the next offset to read}},
         "topic_ids": {topic: id},        # a topic that was deleted and created anew has another
         "next_base": {topic: {partition: where the next batch begins}},      # Millrace, where it is known
         "begun_at":  {topic: {partition: where this micro-batch began it}}}  # those read for the first time
    """

    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    next_base: Mapping[TopicPartition, int] = field(default_factory=dict)
    begun_at: Mapping[TopicPartition, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As JSON values; equal progress gives equal text, which is how Spark compares."""
        values: dict[str, Any] = {
            "offsets": _nested(self.offsets),
            "topic_ids": {topic: str(self.topic_ids[topic]) for topic in sorted(self.topic_ids)},
        }
        for name, places in (("next_base", self.next_base), ("begun_at", self.begun_at)):
            if places:
                values[name] = _nested(places)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Progress:
        """What `to_json` gave; MillraceError when it is something else."""
        try:
            return cls(
                _flat(values["offsets"]),
                {topic: UUID(text) for topic, text in values["topic_ids"].items()},
                _flat(values.get("next_base", {})),
                _flat(values.get("begun_at", {})),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise MillraceError(
                f"the checkpoint's offsets are not of this source: {dict(values)}; give the query its own"
                " checkpoint"
            ) from None

    def start_of(self, place: TopicPartition, before: Progress | None) -> int:
        """Where the micro-batch that ends here began to read a partition."""
        topic = place[0]
        if (
            before is not None
            and place in before.offsets
            and before.topic_ids.get(topic) == self.topic_ids.get(topic)
        ):
            return before.offsets[place]
        if place not in self.begun_at:
            raise MillraceError(
                f"the checkpoint does not tell where {topic}-{place[1]} began; start with a new checkpoint"
            )
        return self.begun_at[place]


def _nested(places: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(places):
        nested.setdefault(topic, {})[str(partition)] = places[topic, partition]
    return nested


def _flat(nested: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    return {(topic, int(p)): int(offset) for topic, each in nested.items() for p, offset in each.items()}


@dataclass(frozen=True, slots=True)
class Seen:
    """The topics as they are now, and the end of each partition."""

    topic_ids: Mapping[str, UUID]
    latest: Mapping[TopicPartition, int]


def unknown_places(before: Progress | None, seen: Seen) -> list[TopicPartition]:
    """The partitions that were not read yet, those of a topic created anew among them."""
    if before is None:
        return list(seen.latest)
    return [
        place
        for place in seen.latest
        if place not in before.offsets or before.topic_ids.get(place[0]) != seen.topic_ids[place[0]]
    ]


def advance(
    before: Progress | None, seen: Seen, begun_at: Mapping[TopicPartition, int], limit: int | None
) -> Progress:
    """Where the next micro-batch ends: at what there is, or after about `limit` offsets of it.

    `begun_at` says where the unknown partitions begin. Topics that are not seen stay as they were. A
    partition that ends before it was read to is set back to its end: whether that may be, others decide.
    """
    plan = Progress({}, seen.topic_ids, {}, begun_at)
    starts = {place: plan.start_of(place, before) for place in seen.latest}
    lags = {place: max(0, latest - starts[place]) for place, latest in seen.latest.items()}
    shares = lags if limit is None else share_out(lags, limit)
    offsets = {place: min(starts[place], latest) + shares[place] for place, latest in seen.latest.items()}
    for place, start in begun_at.items():
        offsets[place] = max(offsets[place], start)  # it may be younger than what was seen
    if before is None:
        return Progress(offsets, seen.topic_ids, {}, begun_at)
    kept = {
        place: offset
        for place, offset in before.offsets.items()
        if seen.topic_ids.get(place[0], before.topic_ids[place[0]]) == before.topic_ids[place[0]]
    }
    offsets = {**kept, **offsets}
    bases = {place: base for place, base in before.next_base.items() if kept.get(place) == offsets.get(place)}
    return Progress(offsets, {**before.topic_ids, **seen.topic_ids}, bases, begun_at)


def share_out(lags: Mapping[TopicPartition, int], limit: int) -> dict[TopicPartition, int]:
    """How many offsets of each partition to read: in proportion to its lag, together at most `limit`.

    Every partition that has a lag gets at least one, also where there are more of them than the limit:
    beside a large lag a small one would otherwise wait for ever.
    """
    lagging = {place: lag for place, lag in lags.items() if lag > 0}
    count, total = len(lagging), sum(lagging.values())
    if total <= limit:
        return dict(lags)
    shares = dict.fromkeys(lags, 0)
    for place, lag in lagging.items():
        # One for each; what is left of the limit over what is left of the lags.
        shares[place] = 1 + (lag - 1) * max(0, limit - count) // max(1, total - count)
    return shares


def ranges_between(before: Progress | None, after: Progress, *, byte_positions: bool) -> list[Range]:
    """What the micro-batch between two ends reads."""
    ranges = []
    for topic, partition in sorted(after.offsets):
        place = (topic, partition)
        if (
            before is not None
            and after.offsets[place] == before.offsets.get(place)
            and (place not in after.begun_at)
        ):
            continue  # also a topic that is not read any more
        start, end = after.start_of(place, before), after.offsets[place]
        base = None if before is None or place in after.begun_at else before.next_base.get(place)
        if start < end:
            ranges.append(Range(topic, partition, start, end, base, after.topic_ids[topic], byte_positions))
    return ranges

"""`spark.readStream.format("millrace")`: how far each micro-batch goes, and its tasks.

Runs in a Python process of the driver that lives as long as the query; Spark keeps the offsets in the query's
checkpoint and hands them back. A micro-batch that is run again reads the same rows. What a micro-batch reads
is decided in source_progress.py; here the cluster is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.errors import MillraceError
from millrace.records.topic_partition import TopicPartition
from millrace_spark.source.offsets import (
    behind_batches,
    cuts_for,
    has_byte_positions,
    resolve,
    subscribed,
)
from millrace_spark.source.options import Position
from millrace_spark.source.progress import (
    Progress,
    Seen,
    advance,
    ranges_between,
    unknown_places,
)
from millrace_spark.source.rows import RowReader
from millrace_spark.topic.ranges import KAFKA_RECORD_BYTES, Cut


class CutPartition(InputPartition):
    """A task's share."""

    def __init__(self, cut: Cut) -> None:
        super().__init__(cut)


class MillraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in the driver, and reads their cuts in the tasks."""

    def __init__(self, rows: RowReader) -> None:
        self.rows = rows
        self.asked = rows.asked
        self._client: ClusterClient | None = None  # made when needed: a copy of this travels to the tasks
        self._seen: Seen | None = None
        self._target: Seen | None = None

    @property
    def client(self) -> ClusterClient:
        """The one connection of this process."""
        if self._client is None:
            self._client = ClusterClient(self.asked.bootstrap)
        return self._client

    def initialOffset(self) -> dict[str, Any]:
        """Before everything: the first micro-batch finds out where the partitions begin, and records it.

        Spark asks again after a crash in the first micro-batch. The latest offsets would be others then, and
        what lies between the two answers would be skipped.
        """
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say of a trigger."""
        if self.asked.max_offsets is not None:
            return ReadMaxRows(self.asked.max_offsets)
        if self.asked.max_bytes is not None:
            return ReadMaxBytes(self.asked.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Go to the ends of now, and no further."""
        self._target = self._look()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next micro-batch; `start` itself when there is nothing to read."""
        before = Progress.from_json(start) if start else None
        seen = self._seen = self._target or self._look()
        if before is not None and self.asked.fail_on_data_loss:
            _check_nothing_lost(before, seen)
        begun_at = self._beginnings(before, seen)
        after = advance(before, seen, begun_at, self._offsets_of(limit))
        if before is not None and not begun_at and after.offsets == before.offsets:
            return start
        if has_byte_positions(self.client):
            after = self._behind_batches(before, after)
        return after.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends as last seen, for the query's progress reports."""
        return None if self._seen is None else Progress(self._seen.latest, self._seen.topic_ids).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch; of the same one the same tasks."""
        before = Progress.from_json(start) if start else None
        ranges = ranges_between(
            before, Progress.from_json(end), byte_positions=has_byte_positions(self.client)
        )
        return [CutPartition(cut) for cut in cuts_for(ranges, self.asked.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a cut."""
        return self.rows.read(partition.value)

    def stop(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()

    def _look(self) -> Seen:
        """The topics asked for and their ends, now."""
        topics = subscribed(self.client, self.asked.subscription, missing_ok=not self.asked.fail_on_data_loss)
        latest = {
            (name, partition): offset
            for name, topic in topics.items()
            for partition, offset in self.client.list_offsets(name, LATEST, topic.partitions).items()
        }
        return Seen({name: topic.topic_id for name, topic in topics.items()}, latest)

    def _beginnings(self, before: Progress | None, seen: Seen) -> dict[TopicPartition, int]:
        """Where the partitions begin that were not read yet.

        Those a new query finds begin where its options say, at the end by default; later ones at their start.
        """
        new: dict[str, list[int]] = {}
        for topic, partition in unknown_places(before, seen):
            new.setdefault(topic, []).append(partition)
        position = Position(EARLIEST) if before is not None else self.asked.starting or Position(LATEST)
        strict = not self.asked.latest_if_no_record
        found: dict[TopicPartition, int] = {}
        for topic, partitions in new.items():
            starts = resolve(self.client, position, topic, partitions, strict=strict)
            latest = self.client.list_offsets(topic, LATEST, partitions)
            for partition, start in starts.items():
                if start > latest[partition]:
                    raise MillraceError(
                        f"{topic}-{partition} ends at {latest[partition]}, before {position.option} {start}"
                    )
                known = before is not None and before.topic_ids.get(topic) == seen.topic_ids[topic]
                if known and start > 0 and self.asked.fail_on_data_loss:
                    raise MillraceError(
                        f"{topic}-{partition}, which is new, begins at {start}: what came before it has"
                        " expired; set failOnDataLoss=false to go on there"
                    )
                found[topic, partition] = start
        return found

    def _offsets_of(self, limit: ReadLimit) -> int | None:
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows
        if isinstance(limit, ReadMaxBytes):
            if has_byte_positions(self.client):
                return limit.max_bytes
            return max(1, limit.max_bytes // KAFKA_RECORD_BYTES)
        return None

    def _behind_batches(self, before: Progress | None, after: Progress) -> Progress:
        """Every end that moved behind the batch it lies in; the limit may be passed by that much."""
        moved: dict[str, dict[int, int]] = {}
        for (topic, partition), end in after.offsets.items():
            place = (topic, partition)
            if end > 0 and (before is None or place in after.begun_at or before.offsets.get(place) != end):
                moved.setdefault(topic, {})[partition] = end
        offsets, bases = dict(after.offsets), dict(after.next_base)
        for topic, ends in moved.items():
            for partition, cursor in behind_batches(self.client, topic, ends).items():
                offsets[topic, partition] = cursor.next_offset
                if cursor.next_base is not None:
                    bases[topic, partition] = cursor.next_base
        return Progress(offsets, after.topic_ids, bases, after.begun_at)


def _check_nothing_lost(before: Progress, seen: Seen) -> None:
    """Refuse a topic that is gone or another one, or ends before it was read to."""
    for topic, topic_id in before.topic_ids.items():
        found = seen.topic_ids.get(topic)
        if found is None:
            raise MillraceError(
                f"topic {topic!r}, which this query has read so far, is gone or no longer asked for: start"
                " with a new checkpoint, or set failOnDataLoss=false to go on without it"
            )
        if found != topic_id:
            raise MillraceError(
                f"topic {topic!r} was deleted and created anew (its id is {found}, the checkpoint's"
                f" {topic_id}): start with a new checkpoint, or set failOnDataLoss=false to read the new one"
                " from its start"
            )
    for place, offset in before.offsets.items():
        if seen.latest.get(place, offset) < offset:
            raise MillraceError(
                f"{place[0]}-{place[1]} ends at {seen.latest[place]}, and was read up to {offset}: messages"
                " that were there are lost; restore the log, or set failOnDataLoss=false to go on at its end"
            )

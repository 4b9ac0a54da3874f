"""`spark.readStream.format("millrace")`: the end of each micro-batch, and its tasks.

Runs in a Python process of the driver that lives as long as the query. Spark keeps the offsets in the query's
checkpoint and passes them back. A micro-batch that is run again reads the same rows. progress.py decides
which offsets a micro-batch reads; this module asks the cluster.

Needs PySpark 4.2: earlier versions do not pass the start of the planned micro-batch to a Python source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
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
from millrace_spark.source import offsets
from millrace_spark.source.data_source import CutPartition
from millrace_spark.source.options import Position
from millrace_spark.source.progress import Progress, advance, ranges_between
from millrace_spark.source.rows import RowReader
from millrace_warehouse.history.manifest import PartitionRange
from millrace_warehouse.history.same_log import cut_log
from millrace_warehouse.log.ranges import KAFKA_RECORD_BYTES
from millrace_warehouse.log.reading import has_byte_positions


class MillraceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in the driver, and reads their cuts in the tasks."""

    def __init__(self, rows: RowReader) -> None:
        self.rows = rows
        self.options = rows.options
        self._client: ClusterClient | None = None  # made when needed: a copy of this object goes to the tasks
        self._latest: Progress | None = None
        self._target: Progress | None = None

    @property
    def client(self) -> ClusterClient:
        if self._client is None:
            self._client = ClusterClient(self.options.bootstrap, security=self.options.security)
        return self._client

    def initialOffset(self) -> dict[str, Any]:
        """Return an empty progress. The first micro-batch then finds and stores the partitions' starts.

        The latest offsets must not be returned here. Spark calls this again after a crash in the first
        micro-batch, when the latest offsets have moved, and the messages in between would be skipped.
        """
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.max_offsets is not None:
            return ReadMaxRows(self.options.max_offsets)
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch, or `start` itself when there is nothing to read."""
        before = Progress.from_json(start)
        latest = self._latest = self._target or self._ends()
        if self.options.fail_on_data_loss:
            _check_nothing_lost(before, latest)
        begun_at = self._beginnings(before, latest, first=not start)
        if self._target is not None:  # the log may have grown before the query chose where to begin
            ends = {key: max(end, begun_at.get(key, 0)) for key, end in latest.offsets.items()}
            latest = self._target = replace(latest, offsets=ends)
        after = advance(before, latest, begun_at, self._offsets_of(limit))
        if start and not begun_at and after.offsets == before.offsets:
            return start
        if self.options.fail_on_data_loss:
            self._check_not_cut(before, after)
        if has_byte_positions(self.client):
            after = self._to_batch_ends(before, after)
        return after.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else self._latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a micro-batch. The same micro-batch always has the same tasks."""
        before, after = Progress.from_json(start), Progress.from_json(end)
        ranges = ranges_between(before, after, byte_positions=has_byte_positions(self.client))
        return [CutPartition(cut) for cut in offsets.cuts_for(ranges, self.options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.rows.read(partition.value)

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()

    def _ends(self) -> Progress:
        """Return the subscribed topics with their present ends."""
        missing_ok = not self.options.fail_on_data_loss
        topics = offsets.subscribed(self.client, self.options.subscription, missing_ok=missing_ok)
        latest = {
            (name, partition): offset
            for name, topic in topics.items()
            for partition, offset in self.client.list_offsets(name, LATEST, topic.partitions).items()
        }
        return Progress(latest, {name: topic.topic_id for name, topic in topics.items()})

    def _beginnings(self, before: Progress, ends: Progress, *, first: bool) -> dict[TopicPartition, int]:
        """Return the start offsets of the partitions that were not read yet.

        A new query begins at the position in its options, by default at the ends. Partitions that are created
        later are read from their start.
        """
        new: dict[str, list[int]] = {}
        for topic, partition in ends.offsets:
            if not before.has_read((topic, partition), ends.topic_ids):
                new.setdefault(topic, []).append(partition)
        position = self.options.starting or Position(LATEST) if first else Position(EARLIEST)
        strict = not self.options.latest_if_no_record
        beginnings: dict[TopicPartition, int] = {}
        for topic, partitions in new.items():
            starts = offsets.resolve(self.client, position, topic, partitions, strict=strict)
            latest = self.client.list_offsets(topic, LATEST, partitions)
            same_topic = before.topic_ids.get(topic) == ends.topic_ids[topic]
            for partition, start in starts.items():
                if start > latest[partition]:
                    raise MillraceError(
                        f"{topic}-{partition} ends at {latest[partition]}, before {position.option} {start}"
                    )
                if same_topic and start > 0 and self.options.fail_on_data_loss:
                    raise MillraceError(
                        f"{topic}-{partition}, which is new, begins at {start}: what came before it has"
                        " expired; set failOnDataLoss=false to continue there"
                    )
                beginnings[topic, partition] = start
        return beginnings

    def _offsets_of(self, limit: ReadLimit) -> int | None:
        if isinstance(limit, ReadMaxRows):
            return limit.max_rows
        if isinstance(limit, ReadMaxBytes):
            if has_byte_positions(self.client):
                return limit.max_bytes
            return max(1, limit.max_bytes // KAFKA_RECORD_BYTES)
        return None

    def _to_batch_ends(self, before: Progress, after: Progress) -> Progress:
        """Move the end of each partition with news to the end of a batch, up to a batch past the limit."""
        moved: dict[str, dict[int, int]] = {}
        for key, end in after.offsets.items():
            if end > 0 and (key in after.begun_at or before.offsets.get(key) != end):
                topic, partition = key
                moved.setdefault(topic, {})[partition] = end
        next_offsets, bases, epochs = dict(after.offsets), dict(after.next_base), dict(after.epochs)
        for topic, ends in moved.items():
            for partition, cursor in offsets.to_batch_ends(self.client, topic, ends).items():
                next_offsets[topic, partition] = cursor.next_offset
                if cursor.next_base is not None:
                    bases[topic, partition] = cursor.next_base
                if cursor.epoch >= 0:
                    epochs[topic, partition] = cursor.epoch
        return Progress(next_offsets, after.topic_ids, bases, after.begun_at, epochs)

    def _check_not_cut(self, before: Progress, after: Progress) -> None:
        """Refuse a partition with news whose log no longer holds the last batch that was read."""
        parts: dict[str, list[PartitionRange]] = {}
        for key, epoch in before.epochs.items():
            if after.offsets[key] != (end := before.offsets[key]):
                part = PartitionRange(partition=key[1], start=end, end=end, end_epoch=epoch)
                parts.setdefault(key[0], []).append(part)
        for topic, of_topic in parts.items():
            if cut := cut_log(self.client, topic, of_topic):
                raise MillraceError(
                    f"{cut}; start with a new checkpoint, or set failOnDataLoss=false to continue in the"
                    " present log"
                )


def _check_nothing_lost(before: Progress, ends: Progress) -> None:
    """Refuse a topic that is missing or recreated, or that ends before an offset that was read."""
    for topic, topic_id in before.topic_ids.items():
        id_now = ends.topic_ids.get(topic)
        if id_now is None:
            raise MillraceError(
                f"topic {topic!r}, which this query has read so far, is gone or not in its options any more:"
                " start with a new checkpoint, or set failOnDataLoss=false to continue without it"
            )
        if id_now != topic_id:
            raise MillraceError(
                f"topic {topic!r} was deleted and recreated (its id is {id_now}, the checkpoint's"
                f" {topic_id}): start with a new checkpoint, or set failOnDataLoss=false to read the new one"
                " from its start"
            )
    for (topic, partition), offset in before.offsets.items():
        end = ends.offsets.get((topic, partition), offset)
        if end < offset:
            raise MillraceError(
                f"{topic}-{partition} ends at {end}, and was read up to {offset}: messages that were there"
                " are lost; restore the log, or set failOnDataLoss=false to continue at its end"
            )

"""Copies one origin partition into its target partition, from the recorded position to an end fixed at the
start.

Copies whole batches, as the origin serves them. The position is stored in the target's log together with the
data. An append is accepted only if it begins at that position. So a task that is killed, retried or run twice
at once can neither lose nor repeat a batch. Control batches and aborted transactions are counted, not copied.

A task's counts are differences between positions: from the position that its driver saw to the position where
it ended. So they include an attempt that was killed after an append, and an append whose answer was lost.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from millrace.client.cluster_client import ClusterClient
from millrace.client.examine import FETCH_BYTES, fetch, offset_rules
from millrace.client.runs import OffsetRules, OriginChanged, Run, beginning, readable_from, runs_of
from millrace.config import ClientSecurity
from millrace.errors import ErrorCode, MillraceError, UnknownTopicOrPartition
from millrace.records import BatchHeader
from millrace.records.mirror_position import MirrorPosition, Origin, PositionMismatch
from millrace.wire.fetch import FetchedPartition, error_name
from millrace.wire.mirror_append import MirrorAppend, MirrorAppended, MirrorMode

TIMEOUT_S = 60.0
"""Seconds without new data from the origin after which a task that has not reached its end gives up."""

ALLOCATION_TIMEOUT_S = 10.0
PAUSE_S = 0.1
CLIENT_ID = "millrace-mirror-batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorTask:
    """One origin partition to copy: source, target, and the offset where the copy ends."""

    origin: Origin
    origin_bootstrap: str
    end: int
    bootstrap: str
    origin_security: ClientSecurity = field(default_factory=ClientSecurity)
    """Settings for the origin and, below, for the target: names of files that every worker has."""
    security: ClientSecurity = field(default_factory=ClientSecurity)
    since: MirrorPosition | None = None
    """Position recorded when the run began; None if there was none."""
    max_bytes: int | None = None
    """Number of appended bytes after which the task stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredPartition:
    """Origin offsets [start, end) of one partition that were copied during the run, with counts."""

    topic: str
    partition: int
    target_partition: int
    start: int
    end: int
    batches: int
    records: int
    dropped: int
    bytes: int
    """Bytes of batches that the reporting attempt appended."""
    lag: int
    """Origin offsets before the run's fixed end that are still to be copied."""

    @property
    def figures(self) -> tuple[int, int]:
        """Records and bytes, for the progress of the job."""
        return self.records, self.bytes


def mirror_partition(task: MirrorTask) -> MirroredPartition:
    """Copy up to the end of the task.

    Raise MillraceError when the origin's log does not continue the copied log.
    """
    try:
        with (
            ClusterClient(
                task.origin_bootstrap, client_id=CLIENT_ID, security=task.origin_security
            ) as origin,
            ClusterClient(task.bootstrap, client_id=CLIENT_ID, security=task.security) as target,
        ):
            return _Copy(task, origin, target).to_the_end()
    except OriginChanged as error:
        raise MillraceError(f"{_name(task.origin)}: {error}; to go on: millrace mirror reset") from None


def recorded_position(client: ClusterClient, origin: Origin) -> MirrorAppended:
    """Return the target partition and recorded position of an origin partition. Allocate a target if there is
    none.

    Some brokers do not know a newly allocated partition yet, so the request is repeated for a while.
    """
    return _ask(client, origin, MirrorAppend(mode=MirrorMode.DESCRIBE, origin=origin))


class _Copy:
    """State of the copying of one partition."""

    def __init__(self, task: MirrorTask, origin: ClusterClient, target: ClusterClient) -> None:
        self._task, self._origin, self._target = task, origin, target
        self._topic, self._partition = task.origin.topic, task.origin.partition
        self._where = _name(task.origin)
        self._rules: OffsetRules = offset_rules(origin, self._topic)
        answer = recorded_position(target, task.origin)
        self._target_partition = answer.partition
        self._recorded: MirrorPosition | None = answer.position
        self._first, self._high_watermark = origin.bounds(self._topic, self._partition)
        self._bytes = 0
        self._skip_to = -1
        """Fetch offset after the recorded position that skips no record; -1 if it is not known."""

    @property
    def _before(self) -> MirrorPosition:
        return self._recorded or self._beginning()

    def to_the_end(self) -> MirroredPartition:
        """Fetch and append until the recorded position reaches the end, or `max_bytes` was copied."""
        self._check_origin()
        give_up_at = time.monotonic() + TIMEOUT_S
        while self._before.cursor.next_offset < self._task.end and not self._enough():
            before = self._before
            for run in self._next_runs():
                if not self._append(run):
                    break
            if self._before != before:
                give_up_at = time.monotonic() + TIMEOUT_S
            elif time.monotonic() > give_up_at:
                at = f"offset {before.cursor.next_offset}, its end was {self._task.end}"
                raise MillraceError(
                    f"{self._where} returns no data at {at}: check its broker's log and run again"
                )
        return self._result()

    def _check_origin(self) -> None:
        """Check the origin even without new messages: a recreated origin must not look idle."""
        self._check_topic()
        if self._recorded is not None:
            readable_from(self._recorded.cursor, self._first, self._high_watermark, self._rules)
        if self._high_watermark < self._task.end:
            raise MillraceError(
                f"{self._where} ended at offset {self._task.end} when the run began, now at "
                f"{self._high_watermark}: see its broker's log and run again"
            )

    def _check_topic(self) -> None:
        if self._origin.topic(self._topic).topic_id != self._task.origin.topic_id:
            raise MillraceError(
                f"{self._where}: the topic was deleted and recreated, or its addresses lead to another"
                " cluster: check them; to continue with the new topic: millrace mirror reset"
            )

    def _enough(self) -> bool:
        return self._task.max_bytes is not None and self._bytes >= self._task.max_bytes

    def _result(self) -> MirroredPartition:
        since = self._task.since or self._beginning()
        last = self._before
        return MirroredPartition(
            topic=self._topic,
            partition=self._partition,
            target_partition=self._target_partition,
            start=since.cursor.next_offset,
            end=last.cursor.next_offset,
            batches=last.batches - since.batches,
            records=last.records - since.records,
            dropped=last.dropped - since.dropped,
            bytes=self._bytes,
            lag=max(0, self._task.end - last.cursor.next_offset),
        )

    def _next_runs(self) -> Iterator[Run]:
        offset = max(self._before.cursor.next_offset, self._skip_to)
        left = FETCH_BYTES if self._task.max_bytes is None else self._task.max_bytes - self._bytes
        cursor = self._before.cursor
        last_epoch = cursor.epoch if cursor.next_offset == offset else -1
        answer = fetch(
            self._origin, self._topic, self._partition, offset, min(left, FETCH_BYTES), last_epoch=last_epoch
        )
        # A fetch is by name: before anything is copied, check that the topic is still the same.
        self._check_topic()
        if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range()
            return iter(())
        if answer.error:
            raise MillraceError(
                f"{self._task.origin_bootstrap} answers {error_name(answer.error)}; run again"
            )
        return runs_of(self._recorded, self._before, _up_to(answer, self._task.end), self._rules)

    def _append(self, run: Run) -> bool:
        """Append a run of batches. Return False when another task moved the position meanwhile."""
        before, position = self._before, run.position
        request = MirrorAppend(
            mode=MirrorMode.APPEND,
            origin=self._task.origin,
            expected=run.expected,
            start=before.start,
            cursor=position.cursor,
            dropped=position.dropped - before.dropped,
            numbered=position.numbered,
            records=b"".join(run.batches),
        )
        self._skip_to = -1
        try:
            _ask(self._target, self._task.origin, request)
        except PositionMismatch as error:
            # An earlier try got through, or there is a second driver: continue from the recorded position.
            self._recorded = error.recorded
            return False
        self._recorded = position
        self._bytes += len(request.records)
        return True

    def _beginning(self) -> MirrorPosition:
        return beginning(self._task.origin, self._first)

    def _out_of_range(self) -> None:
        """Raise OriginChanged if unread offsets have expired. Otherwise find where reading continues."""
        self._first, last = self._origin.bounds(self._topic, self._partition)
        if self._recorded is not None:
            self._skip_to = readable_from(self._recorded.cursor, self._first, last, self._rules)


def _ask(client: ClusterClient, origin: Origin, request: MirrorAppend) -> MirrorAppended:
    give_up_at = time.monotonic() + ALLOCATION_TIMEOUT_S
    while True:
        try:
            return client.mirror_append(origin.topic, request)
        except UnknownTopicOrPartition:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(PAUSE_S)


def _name(origin: Origin) -> str:
    return f"{origin.cluster} {origin.topic}-{origin.partition}"


def _up_to(fetched: FetchedPartition, end: int) -> FetchedPartition:
    """Return the answer without the batches whose base offset is `end` or higher."""
    position = 0
    while (header := BatchHeader.parse(fetched.records, position)) is not None and header.base_offset < end:
        if header.batch_length <= 0:
            break  # damaged: `runs_of` reports it
        position += header.size
    else:
        return dataclasses.replace(fetched, records=fetched.records[:position])
    return fetched

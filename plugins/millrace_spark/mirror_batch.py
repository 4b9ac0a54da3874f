"""Copying one origin partition into its target partition, from the recorded position to a frozen end.

Whole batches, as the origin serves them. The position lives in the target's log and moves with the data:
an append is taken only if it begins there, so a task that is killed, retried or run twice at once can
neither lose nor repeat a batch. Control batches and aborted transactions stay behind, counted.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from millrace.config import OriginConfig
from millrace.errors import ErrorCode, MillraceError, UnknownTopicOrPartition
from millrace.mirror.origin import OriginTopic
from millrace.mirror.runs import OffsetRules, OriginChanged, Run, beginning, next_run, readable_from
from millrace.records import BatchHeader
from millrace.storage.position import MirrorPosition, Origin, PositionMismatch
from millrace.wire.client import ClusterClient
from millrace.wire.fetch import FetchedPartition, error_name
from millrace.wire.mirror_append import MirrorAppend, MirrorAppended, MirrorMode

TIMEOUT_S = 60.0
"""Without anything new from the origin before the end, a task gives up after this."""

KNOWN_AFTER_S = 10.0
PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class MirrorTask:
    """One origin partition: what to copy, from where, up to which offset, to which cluster."""

    origin: Origin
    origin_bootstrap: str
    end: int
    bootstrap: str


@dataclass(frozen=True, slots=True)
class MirroredPartition:
    """What one task copied: origin offsets [start, end), counted by this task's own appends."""

    partition: int
    target_partition: int
    start: int
    end: int
    batches: int
    records: int
    dropped: int


def mirror_partition(task: MirrorTask) -> MirroredPartition:
    """Copy until the end of the task; MillraceError when the origin does not go on where the copy ended."""
    origin = OriginTopic(
        OriginConfig(bootstrap=task.origin_bootstrap), task.origin.topic, "millrace-mirror-batch"
    )
    try:
        with ClusterClient(task.bootstrap, client_id="millrace-mirror-batch") as target:
            return _Copy(task, origin, target).to_the_end()
    except OriginChanged as error:
        raise MillraceError(f"{_name(task.origin)}: {error}; to go on: millrace mirror reset") from None
    finally:
        origin.close()


class _Copy:
    """Where the copying of one partition stands."""

    def __init__(self, task: MirrorTask, origin: OriginTopic, target: ClusterClient) -> None:
        self._task, self._origin, self._target = task, origin, target
        self._where = _name(task.origin)
        origin.describe()
        self._rules: OffsetRules = origin.offset_rules()
        answer = self._ask(self._request(MirrorMode.DESCRIBE))
        self._target_partition = answer.partition
        self._recorded: MirrorPosition | None = answer.position
        self._before = answer.position or self._beginning()
        self._skip_to = -1
        """A fetch offset past the recorded one that leaves out no record; -1: none."""

    def to_the_end(self) -> MirroredPartition:
        """Fetch and append until the recorded position reaches the end."""
        start = self._before.cursor.next_offset
        batches = records = dropped = 0
        give_up_at = time.monotonic() + TIMEOUT_S
        while self._before.cursor.next_offset < self._task.end:
            run = self._next_run()
            if run is None:
                if time.monotonic() > give_up_at:
                    at = f"offset {self._before.cursor.next_offset}, its end was {self._task.end}"
                    raise MillraceError(
                        f"{self._where} gives nothing at {at}: see its broker's log and run again"
                    )
                continue
            give_up_at = time.monotonic() + TIMEOUT_S
            before = self._before
            if self._append(run):
                batches += run.position.batches - before.batches
                records += run.position.records - before.records
                dropped += run.position.dropped - before.dropped
        end = self._before.cursor.next_offset
        return MirroredPartition(
            self._task.origin.partition, self._target_partition, start, end, batches, records, dropped
        )

    def _next_run(self) -> Run | None:
        partition = self._task.origin.partition
        offset = max(self._before.cursor.next_offset, self._skip_to)
        found, failed = self._origin.fetch({partition: offset})
        if partition in failed:
            raise MillraceError(f"{self._where}: {failed[partition]}; run again")
        # A fetch is by name: before anything is copied, make sure which topic has answered.
        if not self._origin.has_id(self._task.origin.topic_id):
            raise MillraceError(
                f"{self._where}: the topic was deleted and created anew; to go on: millrace mirror reset"
            )
        answer = found[partition]
        if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range()
            return None
        if answer.error:
            raise MillraceError(
                f"{self._task.origin_bootstrap} answers {error_name(answer.error)}; run again"
            )
        return next_run(self._recorded, self._before, _up_to(answer, self._task.end), self._rules)

    def _append(self, run: Run) -> bool:
        """True when the run was appended; False when somebody else moved the position meanwhile."""
        before, position = self._before, run.position
        request = dataclasses.replace(
            self._request(MirrorMode.APPEND),
            expected=run.expected,
            start=before.start,
            cursor=position.cursor,
            dropped=position.dropped - before.dropped,
            records=b"".join(run.batches),
        )
        self._skip_to = -1
        try:
            self._ask(request)
        except PositionMismatch as error:
            # A retry whose first try did get through, or a second driver: go on from what is recorded.
            self._recorded = error.recorded
            self._before = error.recorded or self._beginning()
            return False
        self._recorded = self._before = position
        return True

    def _ask(self, request: MirrorAppend) -> MirrorAppended:
        """The target's answer; a partition allocated a moment ago is not known to every broker yet."""
        give_up_at = time.monotonic() + KNOWN_AFTER_S
        while True:
            try:
                return self._target.mirror_append(self._task.origin.topic, request)
            except UnknownTopicOrPartition:
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(PAUSE_S)

    def _request(self, mode: MirrorMode) -> MirrorAppend:
        return MirrorAppend(mode=mode, origin=self._task.origin)

    def _beginning(self) -> MirrorPosition:
        first, _ = self._origin.bounds(self._task.origin.partition)
        return beginning(self._task.origin, first)

    def _out_of_range(self) -> None:
        """OriginChanged when offsets that were to be read are gone; else find where reading goes on."""
        first, last = self._origin.bounds(self._task.origin.partition)
        if self._recorded is None:
            self._before = beginning(self._task.origin, first)
        else:
            self._skip_to = readable_from(self._recorded.cursor, first, last, self._rules)


def _name(origin: Origin) -> str:
    return f"{origin.cluster} {origin.topic}-{origin.partition}"


def _up_to(fetched: FetchedPartition, end: int) -> FetchedPartition:
    """The answer without the batches that begin at the end or after it."""
    position = 0
    while (header := BatchHeader.parse(fetched.records, position)) is not None and header.base_offset < end:
        if header.batch_length <= 0:
            break  # damaged: `next_run` says so
        position += header.size
    else:
        return dataclasses.replace(fetched, records=fetched.records[:position])
    return fetched

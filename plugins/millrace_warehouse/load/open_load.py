"""A load that is made over several intervals: the offsets read so far, and their rows in small files.

The files have final names in the attempt's folder, which no manifest names yet. `complete` merges them and
accounts for all offsets as a load does that reads everything at once. Offsets are read once: an interval that
fails leaves the load as it was. Decides neither when to read nor when to make the load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pyiceberg.manifest import DataFile as TableFile

from millrace_warehouse.history.entries import data_file
from millrace_warehouse.history.erasures import erasure_ids, to_apply
from millrace_warehouse.history.layout import Topic, read_load, rows_folder
from millrace_warehouse.history.manifest import LoadManifest, PartitionRange, now, sealed
from millrace_warehouse.history.plan import Plan
from millrace_warehouse.history.same_log import check_not_cut
from millrace_warehouse.history.schemas import pin, schema_numbers
from millrace_warehouse.load.attempt import discard, new_attempt
from millrace_warehouse.load.load import LoadRun, check_ends, draft_of, loaded_parts
from millrace_warehouse.load.merge import merge_files
from millrace_warehouse.load.range_writer import (
    LoadedPart,
    Pinned,
    complete_draft,
    end_of,
    parts_to_load,
    range_of,
    write_cuts,
)
from millrace_warehouse.load.task import CutResult, CutTask
from millrace_warehouse.log.bounds import Bounds, bounded_ends
from millrace_warehouse.log.messages import Filing
from millrace_warehouse.log.ranges import Cut, Range, cut_ranges, join_stats, size_of
from millrace_warehouse.races import Conflict

TAIL = "tail-"
"""Beginning of the names of files that hold the rows of a load which is not made yet."""


@dataclass(kw_only=True)
class OpenLoad:
    """The load after `before`, while it is read."""

    run: LoadRun
    before: LoadManifest | None
    plan: Plan
    """The topic's log and the hours of its rows. It has no ends: these grow."""
    pinned: Pinned
    attempt: str = field(default_factory=lambda: new_attempt(1))
    entries: list[TableFile] = field(default_factory=list)
    """The table's entry of each file of rows, under its URI."""
    bytes: int = 0
    """Bytes of log that were read."""
    rows: int = 0
    manifest: LoadManifest | None = None
    """The completed load, from the first try to create it."""

    def __post_init__(self) -> None:
        # In this order: an erasure that is created in between is not applied, and makes the load outdated.
        self._erasures = erasure_ids(self.topic)
        self._erasing = to_apply(self.topic, now())
        self._loaded = loaded_parts(self.plan.topic_id, self.before)
        self._reached: dict[int, PartitionRange] = dict(self._loaded)
        self._parts: dict[int, LoadedPart] = {}
        self._results: list[CutResult] = []

    @classmethod
    def begin(cls, run: LoadRun, topic_id: str, topic: str, before: LoadManifest | None) -> OpenLoad:
        """Return an empty load of a topic's log."""
        context = run.context
        plan = Plan(
            topic=topic,
            topic_id=topic_id,
            cluster_id=context.client.cluster_id,
            run_id=f"{context.run_id}-{1 if before is None else before.load + 1}",
            created=now(),
            ends=(),
        )
        pinned = context.pin(topic, 0 if before is None else before.schema)
        return cls(run=run, before=before, plan=plan, pinned=pinned)

    @cached_property
    def topic(self) -> Topic:
        return Topic(self.run.context.storage, self.plan.topic)

    @property
    def number(self) -> int:
        return 1 if self.before is None else self.before.load + 1

    @property
    def is_empty(self) -> bool:
        return not self._results

    @property
    def ends(self) -> Mapping[int, int]:
        """Partition -> end offset of what was read."""
        return {partition: part.end for partition, part in self._reached.items()}

    def is_outdated(self) -> bool:
        """Return True if an erasure was created since the load began: its rows may match."""
        return erasure_ids(self.topic) != self._erasures

    def has_old_schema(self) -> bool:
        """Return True if the topic's table was promoted since the load began."""
        return max(schema_numbers(self.topic), default=0) > self.pinned.table_schema.number

    def read(self, ends: Mapping[int, int], max_bytes: int) -> bool:
        """Read on to the ends, but at most about `max_bytes` of log. Return True if the ends were reached.

        Raise MillraceError when that fails; then nothing was read.
        """
        client, name = self.run.context.client, self.plan.topic
        check_ends(name, ends, self._reached)
        parts = self._new_parts(ends)
        ranges = [part.range for part in parts if part.range is not None] + self._further(ends)
        within = self._bounded(ranges, max_bytes)
        cuts = cut_ranges(within, self.run.context.cut_bytes)
        tasks = [self._task(cut, len(self._results) + index, TAIL) for index, cut in enumerate(cuts)]
        results = write_cuts(self.run.context, name, tasks)
        # Afterwards: a log that was cut back before or during the reading has another epoch at these ends.
        check_not_cut(client, name, [part for p, part in self._reached.items() if p in _partitions(within)])
        self._add(parts, within, results)
        return within == ranges

    def _new_parts(self, ends: Mapping[int, int]) -> list[LoadedPart]:
        """Return the parts of partitions of which nothing was read yet."""
        begun = {partition for partition, part in self._parts.items() if part.range is not None}
        return parts_to_load(
            self.run.context.client,
            self.plan.topic,
            self.plan.topic_id,
            {partition: part for partition, part in self._loaded.items() if partition not in begun},
            {partition: end for partition, end in ends.items() if partition not in begun},
        )

    def _further(self, ends: Mapping[int, int]) -> list[Range]:
        """Return the new ranges of partitions of which something was read."""
        client, plan = self.run.context.client, self.plan
        return [
            range_of(
                client, plan.topic, plan.topic_id, partition, reached.end, ends[partition], reached.end_base
            )
            for partition, part in self._parts.items()
            if part.range is not None and ends[partition] > (reached := self._reached[partition]).reach
        ]

    def _bounded(self, ranges: Sequence[Range], max_bytes: int) -> list[Range]:
        if sum(map(size_of, ranges)) <= max_bytes:
            return list(ranges)
        waiting = {range_.partition: (range_.start, range_.end) for range_ in ranges}
        bounds = Bounds(max_bytes=max_bytes)
        ends = bounded_ends(self.run.context.client, self.plan.topic, waiting, bounds)
        bounded = [replace(range_, end=ends[range_.partition]) for range_ in ranges]
        return [range_ for range_ in bounded if range_.end > range_.start]

    def _task(self, cut: Cut, index: int, prefix: str) -> CutTask:
        context = self.run.context
        return CutTask(
            source=self.pinned.source,
            cut=cut,
            index=index,
            storage=context.storage,
            folder=self._folder,
            filing=Filing(self.number, self.plan.file_by_ms, context.tombstones_as_rows),
            erasing=self._erasing,
            prefix=prefix,
        )

    @cached_property
    def _folder(self) -> str:
        return rows_folder(self.plan.topic, self.number, self.attempt)

    def _add(
        self, parts: Sequence[LoadedPart], within: Sequence[Range], results: Sequence[CutResult]
    ) -> None:
        """Add what was read in one interval."""
        read = {range_.partition: range_ for range_ in within}
        self._parts |= {
            part.before.partition: replace(part, range=read.get(part.before.partition)) for part in parts
        }
        for partition, range_ in read.items():
            part = self._parts[partition]
            assert part.range is not None
            self._parts[partition] = replace(part, range=replace(part.range, end=range_.end))
            cuts = (result.stats for result in results if result.stats.partition == partition)
            self._reached[partition] = end_of(part.before, join_stats(range_, cuts))
        self._results += results
        for result in results:
            self.bytes += result.stats.bytes
            for file, metrics in result.files:
                self.rows += file.rows
                uri = self.topic.storage.uri(f"{self.topic}/{file.path}")
                self.entries.append(data_file(file, metrics, uri))

    def pin(self) -> None:
        """Pin the topic's schema with the first load, once it has rows. Raise Conflict if another run has
        pinned another schema.
        """
        if self.before is None and not pin(self.topic, self.pinned.table_schema):
            raise Conflict("another run has pinned the topic's schema")

    def complete(self) -> LoadManifest:
        """Merge the files and account for all offsets. Return the manifest, ready to be created.

        Raise MillraceError as `range_writer.write_ranges` does. Raise Conflict when files of the load are
        gone, and when another run has pinned another schema for the topic's first load.
        """
        stored = {f"{self._folder}/{listed.path}" for listed in self.topic.storage.files(self._folder)}
        files = (
            file
            for result in self._results
            for file in (*(data for data, _ in result.files), *result.rejected, *result.tombstones)
        )
        if any(f"{self.topic}/{file.path}" not in stored for file in files):
            raise Conflict("files of the open load are gone")  # as after a restore of the topic's folder
        parts = [part for _, part in sorted(self._parts.items())]
        whole = next(part.range for part in parts if part.range is not None)
        into = self._task(Cut(whole, whole.start, whole.end), 0, "")
        results = merge_files(self.run.context.run_tasks, into, self._results)
        draft = draft_of(self.plan, self.before, self.attempt, self.pinned)
        completed = complete_draft(self.run.context, draft, self.pinned, parts, results, self._erasing)
        self.pin()
        self.manifest = sealed(completed)
        return self.manifest

    def made_by(self, newest: LoadManifest | None) -> LoadManifest | None:
        """Return the load that has this load's number, or None while the number is free.

        It may be this load itself: a create without an answer may have happened.
        """
        if newest is None or newest.load < self.number:
            return None
        return newest if newest.load == self.number else read_load(self.topic, self.number)

    def discard(self) -> None:
        """Delete the files, if that is possible. The load must never be made."""
        discard(self.topic, self.number, self.attempt)


def _partitions(ranges: Sequence[Range]) -> set[int]:
    return {range_.partition for range_ in ranges}

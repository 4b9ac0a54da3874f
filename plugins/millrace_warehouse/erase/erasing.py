"""The steps of an erasure. Each step may be interrupted at any moment; the same command then continues.

    1  count the matches            every row of every load's newest edition; a dry run ends here
    2  write the erasure            `erasures/<id>.json`: loads leave out matching rows from now on
    3  commit a load without rows   takes the number that running loads want, so that they start over
    4  write new editions           of each load with matching rows, which are left out and counted;
                                    with `rejected` also of each load that has messages without rows, now
                                    without their bytes; and of each load whose edition missed an erasure
    5  publish                      takes the rows of the old editions out of the table
    6  finish the erasure           `erasures/<id>.done.json`
    7  delete                       the files of old editions and snapshots, whatever their age

Asks no brokers: `logs` asks them which rows they still hold.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema

from millrace.errors import ConfigError, MillraceError
from millrace.steps import Count
from millrace_audit.reports.counts import SequenceCounts
from millrace_warehouse.arranged_copy import ArrangedCopy
from millrace_warehouse.arranging import Arranger
from millrace_warehouse.contents_digest import ContentsDigest
from millrace_warehouse.context import Context
from millrace_warehouse.erase.purge import Purged, purge, rejected_left
from millrace_warehouse.erase.rows import BATCH_ROWS, Rows
from millrace_warehouse.history import erasures, layout
from millrace_warehouse.history.condition import Condition
from millrace_warehouse.history.erasures import Erasing, Erasure
from millrace_warehouse.history.ledger import add_to_ledger
from millrace_warehouse.history.manifest import (
    DataFile,
    LoadManifest,
    RejectedFile,
    TombstoneFile,
    check_law,
    now,
)
from millrace_warehouse.history.metrics import metrics_of
from millrace_warehouse.history.schemas import TableSchema, all_schemas, read_schema
from millrace_warehouse.history.stored import erased_sequences_of, store
from millrace_warehouse.load.attempt import make
from millrace_warehouse.load.erased import Eraser, RowsTaken, erased_rows
from millrace_warehouse.load.hour_files import HourFile, HourFiles
from millrace_warehouse.load.range_writer import check_stored, empty_after, with_stored, without_erased
from millrace_warehouse.load.rejections import REJECTED_SCHEMA, read_without_bytes
from millrace_warehouse.log.messages import TOMBSTONES
from millrace_warehouse.projection import project
from millrace_warehouse.publish.gate import Auditor
from millrace_warehouse.publish.publisher import publish_topic
from millrace_warehouse.publish.table import find_table
from millrace_warehouse.races import Conflict, retried
from millrace_warehouse.requests import Erase, Publish
from millrace_warehouse.sequences import count_sequences

Aside = TypeVar("Aside", RejectedFile, TombstoneFile)


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseResult:
    """Rows that an erasure has taken out, or would take out in a dry run."""

    topic: str
    id: str
    done: bool
    """True when every matching row is out; False for a dry run."""
    rows: int
    """Rows taken out in all, with the rows of this erasure's earlier runs."""
    rejected: int
    """Rejected records and tombstones that lost their bytes and keys, or would lose them."""
    hours: Mapping[str, int]
    loads: Mapping[str, int]
    files: int
    """Data files of loads in the hours with matching rows; 0 when no row was left to take out."""
    in_force_until: str | None
    """Time until which loads leave out matching rows; None for ever."""
    columns_not_everywhere: Sequence[str] = ()
    """Columns of the condition that some of the topic's schemas lack: null in their rows."""
    purged: Purged | None = None
    message: str = ""


@dataclass(slots=True)
class _Matches:
    """Matching rows by hour and by load, and totals."""

    hours: Counter[str] = field(default_factory=Counter)
    """Hour -> matching rows."""
    rows_of: Counter[int] = field(default_factory=Counter)
    """Load -> matching rows."""
    rejected: Counter[int] = field(default_factory=Counter)
    """Load -> rejected records and tombstones that lose bytes and keys."""
    unseen: set[int] = field(default_factory=set)
    """Loads with an edition that missed an earlier erasure: their rows are examined again."""
    files: int = 0
    rows: int = 0
    editions: dict[int, int] = field(default_factory=dict)
    """Load -> the edition that was examined, for loads with more than one."""
    through: int = 0

    @property
    def loads(self) -> list[int]:
        return sorted(self.rows_of.keys() | self.rejected.keys() | self.unseen)

    def take(self, hour: str, load: int, rows: int) -> None:
        self.hours[hour] += rows
        self.rows_of[load] += rows

    @property
    def rows_by_load(self) -> dict[str, int]:
        """The rows by load, with the keys of JSON."""
        return {str(load): rows for load, rows in sorted(self.rows_of.items())}


def erase_topic(
    context: Context, request: Erase, auditor: Auditor, in_force_until: Callable[[], str | None]
) -> EraseResult:
    """Take out every row of a topic that the condition matches.

    Raise MillraceError when that is impossible.

    `in_force_until` is called once, when the erasure is written.
    """
    return _ErasureRun(context, request, auditor).erase(in_force_until)


class _ErasureRun:
    def __init__(self, context: Context, request: Erase, auditor: Auditor) -> None:
        self._context, self._request, self._auditor = context, request, auditor
        self._topic = layout.Topic(context.storage, request.topic)

    def erase(self, in_force_until: Callable[[], str | None]) -> EraseResult:
        topic, request = self._topic, self._request
        layout.require_load(topic)
        before = self._recorded()
        where = request.where or (erasures.condition_of(topic, before.id) if before else None)
        if before is not None and erasures.read_done(topic, before.id) is not None:
            return self._nothing_to_do(before)
        if where is None:
            raise MillraceError(
                f"no erasure {request.id} of {topic} is unfinished: give --where and --reason"
            )
        condition = Condition(where)
        lacking = condition.check([each.schema for each in all_schemas(topic)])
        if before is None or request.dry_run:
            found = self._look(condition, (before or request).rejected)
            if before is None:
                self._check_size(found)
            if request.dry_run:
                return self._result(None, found, lacking, "would erase")
        if before is None:
            if not request.reason:
                raise ConfigError("give --reason: an erasure needs one")
            before = erasures.create_erasure(topic, self._new(in_force_until()), where)
            self._context.progress("erasure recorded")
        return self._take_out(before, condition, lacking)

    def _recorded(self) -> Erasure | None:
        """Return the erasure with the given id, or without an id the newest with the same condition."""
        topic, request = self._topic, self._request
        if not request.id:
            return erasures.with_same_condition(topic, request.where, request.rejected)
        known = erasures.read_erasure(topic, request.id)
        condition = erasures.condition_of(topic, request.id) if known is not None else None
        if condition is not None and request.where not in ("", condition):
            raise MillraceError(f"erasure {request.id} of {topic} has another condition: choose another --id")
        if known is not None and request.rejected and not known.rejected:
            raise MillraceError(
                f"erasure {request.id} of {topic} does not take rejected records: choose another --id"
            )
        return known

    def _new(self, until: str | None) -> Erasure:
        request = self._request
        return Erasure(
            topic=self._topic.name,
            id=request.id or request.fresh_id,
            reason=request.reason,
            by=request.by,
            created=now(),
            in_force_until=until,
            all_rows=request.all_rows,
            rejected=request.rejected,
        )

    def _check_size(self, found: _Matches) -> None:
        rows = found.hours.total()
        if rows and rows == found.rows and not self._request.all_rows:
            raise ConfigError(
                f"--where matches all {rows:,} rows of {self._topic}, and nothing was erased: give --all-rows"
                " to erase them all"
            )

    def _look(self, condition: Condition, rejected: bool) -> _Matches:
        """Count matching rows, and messages without rows that have bytes, in each newest edition."""
        found, rows = _Matches(), Rows(self._context, self._topic)
        takers = erasures.taking_bytes(self._topic)
        known = {each.id for each in erasures.to_apply(self._topic, now(), again=True)}
        searched = Count(
            self._context.progress, "loads searched", len(layout.load_numbers(self._topic)), records="rows"
        )
        for first in layout.loads_after(self._topic, 0):
            manifest = self._newest(first, found)
            for hour, count in manifest.rows_by_hour().items():
                found.rows += count
                matches = sum(
                    condition.mask(batch, schema).true_count
                    for batch, schema in rows.batches(manifest, hour, condition.columns or [_ANY])
                )
                if matches:
                    found.take(hour, manifest.load, matches)
                    found.files += sum(file.hour == hour for file in manifest.files)
            if rejected and manifest.aside and takers.isdisjoint(manifest.erasures):
                found.rejected[manifest.load] = manifest.aside
            if known.difference(manifest.erasures) and erasures.missed_erasure(self._topic, manifest):
                found.unseen.add(manifest.load)
            self._context.progress(f"looked at load {manifest.load}")
            searched.add(records=manifest.rows, size=sum(file.bytes for file in manifest.files))
        return found

    def _newest(self, first: LoadManifest, found: _Matches) -> LoadManifest:
        edition = layout.newest_editions(self._topic).get(first.load, 1)
        found.through = first.load
        if edition == 1:
            return first
        found.editions[first.load] = edition
        return layout.read_edition(self._topic, first.load, edition)

    def _take_out(self, erasure: Erasure, condition: Condition, lacking: Sequence[str]) -> EraseResult:
        context, topic = self._context, self._topic
        self._fence(erasure)
        context.progress("fenced")
        files = 0

        def attempt() -> _Matches:
            nonlocal files
            found = self._look(condition, erasure.rejected)
            if not found.loads:
                return found
            files += found.files
            rows = Rows(context, topic)
            count = Count(context.progress, "loads rewritten", len(found.loads))
            for load in found.loads:
                self._make_edition(erasure, load, rows)
                context.progress("edition made")
                count.add()
            raise Conflict("a re-load may have come in between")

        found = retried(attempt, f"{topic}: matching rows remain", "run again when re-loads have ended")
        self._heal_editions()
        if find_table(context.catalog, topic.name) is not None:
            request = Publish(
                topics=[topic.name], warehouse=topic.storage.root, unasked=True, run_id=f"erase-{erasure.id}"
            )
            publish_topic(context, request, topic.name, self._auditor)
        context.progress("published")
        out = self._taken(erasure)
        out.files = files
        done = erasures.Done(
            topic=topic.name,
            id=erasure.id,
            created=now(),
            through=found.through,
            editions={str(load): edition for load, edition in found.editions.items()},
            hours=dict(out.hours),
            loads=out.rows_by_load,
            rejected=out.rejected.total(),
        )
        erasures.write_done(topic.storage, done)
        context.progress("done")
        return self._result(erasure, out, lacking, "erased" if out.hours else "no row matched")

    def _nothing_to_do(self, erasure: Erasure) -> EraseResult:
        """Return the counts of a finished erasure. Delete the files that it had to leave for a day."""
        return self._result(erasure, self._taken(erasure), (), f"nothing to do: {erasure.id} is done")

    def _result(
        self, erasure: Erasure | None, found: _Matches, lacking: Sequence[str], message: str
    ) -> EraseResult:
        purged = None
        if erasure is not None and not self._request.dry_run:
            purged = purge(self._context, self._topic, erasure)
        elif not found.rejected:  # a dry run can only report that these messages stay
            purged = Purged(files=0, bytes=0, left=[*rejected_left(self._topic)])
        return EraseResult(
            topic=self._topic.name,
            id=self._request.id if erasure is None else erasure.id,
            done=erasure is not None,
            rows=found.hours.total(),
            rejected=found.rejected.total(),
            hours=dict(sorted(found.hours.items())),
            loads=found.rows_by_load,
            files=found.files,
            in_force_until=None if erasure is None else erasure.in_force_until,
            columns_not_everywhere=lacking,
            purged=purged,
            message=message,
        )

    def _taken(self, erasure: Erasure) -> _Matches:
        """Return the numbers of rows and messages that the erasure has removed, from the manifests."""
        out = _Matches()
        for first in layout.loads_after(self._topic, 0):
            manifest = self._newest(first, out)
            for rows in manifest.erased:
                if rows.erasure == erasure.id:
                    out.take(rows.hour, manifest.load, rows.rows)
        out.rejected.update(dict(self._bytes_taken(erasure)))
        return out

    def _bytes_taken(self, erasure: Erasure) -> Iterator[tuple[int, int]]:
        """Yield each load in which the erasure deleted bytes of rejected messages, and their number."""
        takers = erasures.taking_bytes(self._topic)
        for load, numbers in layout.editions_of(self._topic).items() if erasure.rejected else ():
            editions = (layout.read_edition(self._topic, load, each) for each in (1, *numbers))
            for before, after in itertools.pairwise(editions):
                if erasure.id in after.erasures and takers.isdisjoint(before.erasures) and before.aside:
                    yield load, before.aside

    def _fence(self, erasure: Erasure) -> None:
        """Commit one load without rows. It takes the number that any running load would use."""
        topic = self._topic

        def attempt() -> None:
            loads = list(layout.loads_after(topic, 0))
            for load in loads:  # the run that made it may have died before
                add_to_ledger(topic.storage, layout.manifest_path(load), load)
            if any(load.erases == erasure.id for load in loads):
                return
            manifest = make(
                topic, loads[-1].load + 1, 1, _Fence(erasure, loads[-1]).write, self._context.progress
            )
            if manifest is not None:
                add_to_ledger(topic.storage, layout.manifest_path(manifest), manifest)
                layout.remember_newest(topic.storage, manifest)
                return
            raise Conflict("another run has made the load")

        retried(attempt, f"{topic}: no row was erased", "run again while fewer loads run")

    def _heal_editions(self) -> None:
        for load, numbers in layout.editions_of(self._topic).items():
            for number in numbers:
                path = layout.edition_path(self._topic.name, load, number)
                add_to_ledger(self._topic.storage, path, layout.read_edition(self._topic, load, number))

    def _make_edition(self, erasure: Erasure, load: int, rows: Rows) -> None:
        """Write a load's rows without the matching rows. If another run made a newer edition, examine that
        edition again.
        """
        edition = layout.newest_editions(self._topic).get(load, 1)
        replaced = layout.read_edition(self._topic, load, edition)
        where = erasures.to_apply(self._topic, now(), again=True)
        mine = [each for each in where if each.id == erasure.id]
        others = [each for each in where if each.id != erasure.id]
        new_edition = _Edition(self._context, erasure, replaced, rows, [*mine, *others])
        manifest = make(self._topic, load, edition + 1, new_edition.write, self._context.progress)
        if manifest is not None:
            add_to_ledger(self._topic.storage, layout.manifest_path(manifest), manifest)


_ANY = "_offset"
"""Column to read for counting rows when a condition names no column."""


@dataclass(frozen=True, slots=True)
class _Fence:
    """The load without rows that follows the newest load."""

    erasure: Erasure
    before: LoadManifest

    def write(self, attempt: str) -> LoadManifest:
        return LoadManifest(
            topic=self.before.topic,
            topic_id=self.before.topic_id,
            cluster_id=self.before.cluster_id,
            load=self.before.load + 1,
            attempt=attempt,
            run_id=f"erase-{self.erasure.id}",
            created=now(),
            schema=self.before.schema,
            file_by_ms=self.before.file_by_ms,
            partitions=[empty_after(part) for part in self.before.partitions],
            files=(),
            previous=self.before.sha256,
            erases=self.erasure.id,
            erasures=[self.erasure.id],
        )


@dataclass(frozen=True, slots=True)
class _Edition:
    """The edition with a load's remaining rows, and its other messages, without their bytes if the erasure
    takes them.
    """

    context: Context
    erasure: Erasure
    replaced: LoadManifest
    rows: Rows
    erasing: Sequence[Erasing]

    def write(self, attempt: str) -> LoadManifest:
        """Write the rows into the attempt's folder. Return the manifest, which is not sealed yet."""
        topic = layout.Topic(self.context.storage, self.replaced.topic)
        columns = read_schema(topic, self.rows.schema(self.replaced))
        folder = layout.rows_folder(topic.name, self.replaced.load, attempt)
        eraser, counts = Eraser(self.erasing), SequenceCounts()
        files: list[tuple[DataFile, bytes]] = []
        with tempfile.TemporaryDirectory(prefix="millrace-erase-") as scratch:
            for file in self._files(Path(scratch), columns, eraser, counts):
                with open(file.path, "rb") as content:
                    stored = store(topic.storage, f"{folder}/{file.path.name}", content)
                described = DataFile(**dataclasses.asdict(stored), hour=file.hour, rows=file.rows)
                files.append((described, metrics_of(file.metadata, columns.iceberg, file.partition)))
        rejected, tombstones = self.replaced.rejected_files, self.replaced.tombstone_files
        if any(each.rejected for each in self.erasing):
            rejected = [self._without_bytes(folder, n, file) for n, file in enumerate(rejected)]
            tombstones = [self._without_bytes(folder, n, file) for n, file in enumerate(tombstones)]
        fresh = (file for file in (*rejected, *tombstones) if file not in self.replaced.aside_files)
        check_stored(topic, folder, [*(file for file, _ in files), *fresh])
        manifest = self._manifest(attempt, columns, files, counts, eraser)
        return dataclasses.replace(manifest, rejected_files=rejected, tombstone_files=tombstones)

    def _files(
        self, scratch: Path, columns: TableSchema, eraser: Eraser, counts: SequenceCounts
    ) -> Iterator[HourFile]:
        """Yield the local files of each hour's remaining rows, in the layout of the table's schema."""
        for hour in self.replaced.rows_by_hour():
            copied = ContentsDigest()
            rows = self._remaining(hour, columns, eraser, counts, copied)
            if columns.layout:
                written = self._arranged(scratch, hour, columns, rows, copied)
            else:
                files = HourFiles(scratch, "00000", columns.arrow_schema)
                for batch in rows:
                    files.add(batch)
                written = files.close()
                found = (batch for file in written for batch in _batches_in(file.path))
                self._compare(hour, copied, found, columns.schema)
            yield from written

    def _remaining(
        self, hour: str, columns: TableSchema, eraser: Eraser, counts: SequenceCounts, copied: ContentsDigest
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of an hour that stay, in the schema's columns. Count and digest them."""
        for batch, schema in self.rows.batches(self.replaced, hour):
            kept = eraser.kept(batch, schema)
            if len(kept):
                count_sequences(kept, counts)
                copied.add(kept, schema)
                yield project(kept, schema, columns.schema, columns.arrow_schema)

    def _arranged(
        self,
        scratch: Path,
        hour: str,
        columns: TableSchema,
        rows: Iterator[pa.RecordBatch],
        copied: ContentsDigest,
    ) -> list[HourFile]:
        arranger = Arranger(columns.layout, columns.schema)
        with ArrangedCopy(scratch, columns.arrow_schema, arranger) as copy:
            for batch in rows:
                copy.add(batch)
            written = copy.write(f"{hour}-00000")
            found = copy.in_first_order(batch for file in written for batch in _batches_in(file.path))
            self._compare(hour, copied, found, columns.schema)
        return [HourFile(file.path, hour, file.metadata, file.partition) for file in written]

    def _compare(
        self, hour: str, copied: ContentsDigest, written: Iterator[pa.RecordBatch], columns: Schema
    ) -> None:
        """Raise MillraceError unless the rows that were read back are the hour's remaining rows."""
        found = ContentsDigest()
        for batch in written:
            found.add(batch, columns)
        if changed := ", ".join(copied.differences(found)):
            raise MillraceError(
                f"the copy of load {self.replaced.load} of {self.replaced.topic} does not hold the values"
                f" of its rows in {hour}, in {changed}: nothing was erased of that load"
            )

    def _without_bytes(self, folder: str, number: int, file: Aside) -> Aside:
        """Store the rejected records or tombstones of a file without their bytes and keys.

        A file that was deleted stays in the manifest by its name: `verify` reports it as missing.
        """
        if not self.context.storage.files(f"{self.replaced.topic}/{file.path}"):
            return file
        content = io.BytesIO()
        stored = self.rows.stored(file, "restore it from a copy, or delete it")
        kind, schema = "rejected", REJECTED_SCHEMA
        if isinstance(file, TombstoneFile):
            kind, schema = "tombstones", TOMBSTONES
        table = read_without_bytes(io.BytesIO(stored), schema)
        pq.write_table(table, content, compression="zstd")
        content.seek(0)
        path = f"{folder}/{kind}-{number:05d}-{uuid.uuid4().hex[:8]}.parquet"
        return dataclasses.replace(file, **dataclasses.asdict(store(self.context.storage, path, content)))

    def _manifest(
        self,
        attempt: str,
        columns: TableSchema,
        files: Sequence[tuple[DataFile, bytes]],
        counts: SequenceCounts,
        eraser: Eraser,
    ) -> LoadManifest:
        replaced, taken = self.replaced, RowsTaken(eraser.taken)
        manifest = dataclasses.replace(
            replaced,
            edition=replaced.edition + 1,
            attempt=attempt,
            run_id=f"erase-{self.erasure.id}",
            created=now(),
            schema=columns.number,
            partitions=[without_erased(part, taken) for part in replaced.partitions],
            files=[file for file, _ in files],
            reason=self.erasure.reason,
            previous=replaced.sha256,
            erases=self.erasure.id,
            erasures=[*dict.fromkeys([*replaced.erasures, *(each.id for each in self.erasing)])],
            erased=[*replaced.erased, *erased_rows(taken)],
            sha256="",
        )
        if problems := check_law(manifest):
            raise MillraceError(
                f"load {replaced.load} of {replaced.topic}: the counts do not agree: {problems[0]};"
                " nothing was erased of it"
            )
        erased = SequenceCounts()
        erased.merge(erased_sequences_of(self.context.storage, replaced))
        erased.merge(eraser.sequences)
        return with_stored(
            self.context.storage, manifest, files, columns.iceberg, counts, erased, columns.layout
        )


def _batches_in(path: Path) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as content:
        yield from content.iter_batches(BATCH_ROWS)

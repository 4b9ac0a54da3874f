"""Branch `live` of a topic's table: every row seconds after it was sent, whether or not its hour is proven.

    live = the tail         rows of the load that is being made, shown by a resident loader
         + what waits       rows of loads that are in no published hour
         + main             the manifests of branch `main` themselves; those before it was changed, if another
                            program has changed its rows

The branch is derived. `follow` makes the same branch from the history, `main` and the tail, whatever was
there before; it may be behind, wrong or dropped at any moment, because nothing reads it to decide anything.
Its snapshots have a line of their own, so that no fast-forward publishes unproven rows. It names the files of
loads where they are. They are the only copies, so a table with this branch has `gc.enabled=false`: Iceberg's
library then deletes no data files.

    millrace.live = true               property of the table: the branch is on, and every command follows
    millrace.tail = {...}              property: the load, attempt, ends and lease of the tail that is shown
    millrace.live.shown = {...}        summary of a snapshot of the branch: what it was made from
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import msgspec
from pyiceberg.manifest import DataFile, ManifestEntryStatus, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableUpdate,
)

from millrace.errors import MillraceError
from millrace_warehouse.context import Context
from millrace_warehouse.history import layout
from millrace_warehouse.history.layout import Topic
from millrace_warehouse.history.manifest import LoadManifest, Publication
from millrace_warehouse.publish.branch_commit import LIVE, BranchCommit, LayoutChange, head_of
from millrace_warehouse.publish.catalog import connect, first_line, reading
from millrace_warehouse.publish.committer import TableChange, commit
from millrace_warehouse.publish.files import entries_of
from millrace_warehouse.publish.layouts import TableLayouts
from millrace_warehouse.publish.table import (
    PATH,
    SHA256,
    TableChanged,
    check_table,
    find_table,
    make_table,
    missing_columns,
)
from millrace_warehouse.races import Conflict, retried

S = TypeVar("S")

ON = "millrace.live"
TAIL = "millrace.tail"
SHOWN = "millrace.live.shown"
GC = "gc.enabled"
SNAPSHOTS = 12
"""Snapshots of the branch that are kept: a query that began earlier than these commits may fail."""
CLOCKS_S = 300.0
"""Most seconds by which the clocks of two loaders may differ."""
_FOR_EVER = 1 << 53
"""Milliseconds of retention, so that no other program's expiry removes the branch or its snapshots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Rows of the load that is being made, in files that only branch `live` names."""

    load: int
    """Number of the load."""
    attempt: str
    ends: Mapping[int, int]
    """Partition -> end offset of the rows."""
    schema: int
    """Number of the schema that the rows have."""
    entries: Sequence[DataFile]
    """Entries of the files, with absolute URIs. A later tail of the attempt begins with the same entries."""
    lease_s: float
    """Seconds for which no other loader replaces the tail by its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTail:
    """The tail that a table's branch shows: the table's property `millrace.tail`."""

    load: int
    attempt: str
    ends: Mapping[str, int]
    """Partition -> end offset."""
    until: float
    """Time in seconds since the epoch until which another loader leaves the tail alone."""
    lease_s: float = 1e12
    """Seconds before `until` at which the lease was given. Properties of older versions do not state them."""

    def is_leased(self, now: float) -> bool:
        """Return True while another loader leaves the tail alone. A lease that a clock gave which was far
        ahead is none: it could last for days.
        """
        return now < self.until <= now + self.lease_s + CLOCKS_S


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """Summary of a snapshot of the branch: what it was made from, and how many manifests each part has."""

    main: int
    """Snapshot of branch `main`."""
    basis: str
    """SHA-256 of the newest publication's manifest and of the numbers of the newest editions."""
    load: int
    """Newest load; 0 before the first."""
    load_sha256: str
    attempt: str = ""
    """Attempt of the tail; empty without a tail."""
    tail_files: int = 0
    tail: int = 0
    """Manifests of the tail, which come first."""
    waiting: int = 0
    """Manifests of what waits, which come next."""

    @classmethod
    def of(cls, table: Table) -> _Shown | None:
        """Return what the branch's head shows, or None without a head, or when another program made it."""
        head = table.metadata.snapshot_by_name(LIVE)
        text = head.summary[SHOWN] if head is not None and head.summary is not None else None
        return _parsed(text, cls)


@dataclass(slots=True)
class _Part:
    """A part of the next snapshot: whether it keeps the part's manifests, and the entries that come."""

    keeps: bool = False
    added: list[DataFile] = field(default_factory=list)


def _parsed(text: str | None, cls: type[S]) -> S | None:
    """Return a state that a commit of the branch wrote, or None for a text that no commit wrote."""
    try:
        return msgspec.json.decode(text, type=cls) if text else None
    except msgspec.DecodeError:
        return None


def is_on(table: Table) -> bool:
    """Return True if the table has branch `live` switched on."""
    return table.properties.get(ON) == "true"


def lag_s(topic: Topic, table: Table, head: Snapshot, now: float) -> float:
    """Return the seconds since the commit of the branch's head, or 0 if the branch lacks no row."""
    through = shown_through_s(topic, table)
    return max(now - (head.timestamp_ms / 1000 if through is None else through), 0.0)


def shown_through_s(topic: Topic, table: Table) -> float | None:
    """Return the time in seconds since the epoch before which every row that reached the warehouse is in the
    branch; infinity if the branch shows every load and publication and has no tail. None if no commit of the
    branch made its head.

    Rows that the branch lacks reached the warehouse after the commit of its head. Messages that no load has
    read, and that no tail shows, are not known here.
    """
    shown, head = _Shown.of(table), table.metadata.snapshot_by_name(LIVE)
    if shown is None or head is None:
        return None
    if not shown.attempt and _History.read(topic, table).is_shown_by(shown):
        return math.inf
    return head.timestamp_ms / 1000


def follow(context: Context, topic: Topic, *, on: bool = False) -> list[str]:
    """Bring the branch up to date after other work is done. Return a note if it stays behind."""
    try:
        Live(context, topic).follow(on=on)
    except MillraceError as error:
        return [f"{topic}: branch {LIVE} is behind until the next load or publication: {error}"]
    return []


def follow_load(topic: Topic, catalog: str, *, on: bool | None) -> list[str]:
    """Switch the branch on or off after a load, or with None leave it as the table has it. Bring a branch
    that is on up to date. Return a note if that fails: the load is made, whatever the catalog answers.
    """
    try:
        with connect(topic.storage, catalog, create=on is True) as opened:
            context = Context(storage=topic.storage, catalog=opened)
            if on is not False:
                return follow(context, topic, on=on is True)
            switch_off(context, topic)
    except MillraceError as error:
        return [f"{topic}: branch {LIVE} is behind until the next load or publication: {error}"]
    return []


def switch_off(context: Context, topic: Topic) -> None:
    """Remove the branch, its snapshots and its properties from the table. Rows and `main` stay."""

    def attempt() -> None:
        table = find_table(context.catalog, topic.name)
        if table is None or not (is_on(table) or LIVE in table.metadata.refs):
            return
        removals = [name for name in (ON, TAIL, GC) if name in table.properties]
        updates: list[TableUpdate] = [RemovePropertiesUpdate(removals=removals)]
        if LIVE in table.metadata.refs:
            line = _removable(table)
            updates.append(RemoveSnapshotRefUpdate.model_validate({"ref-name": LIVE}))
            updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": line}))
        heads = [
            AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": ref.snapshot_id})
            for name, ref in table.metadata.refs.items()
        ]
        try:
            table.catalog.commit_table(table, tuple(heads), tuple(updates))
        except MillraceError:
            raise
        except Exception as error:  # refused, or lost: the table decides
            raise Conflict(first_line(error)) from error

    retried(attempt, f"branch {LIVE} of {topic} stays", "run again")


class Live:
    """The branch of one topic's table. A resident loader keeps one; other commands make one for each use."""

    def __init__(self, context: Context, topic: Topic) -> None:
        self._context, self._topic = context, topic
        self.refused = 0
        """Number of commits that the catalog refused, or that came too late."""
        self._record: Publication | None = None
        """Newest publication that was read."""
        self._broken: int | None = None
        """Head of the branch whose own files are gone, as after a restore of the catalog."""
        self._written: dict[str, float] = {}
        """Metadata file that this object wrote -> time in seconds since the epoch."""

    def follow(self, tail: Tail | None = None, *, on: bool = False, dropped: str = "") -> ShownTail | None:
        """Bring the branch to the newest load, publication and tail. Return the tail that it shows then.

        The given tail replaces another loader's tail whose lease has ended. Without one, a tail that is shown
        stays until its load is made, unless it is of the attempt `dropped`. `on` switches the branch on and
        creates the table; without `on`, a table whose branch is off stays as it is. May be called by anybody
        at any time, and repeated after any failure.
        """
        what = f"branch {LIVE} of {self._topic} stays behind"
        return retried(lambda: self._follow_once(tail, on, dropped), what, "run again")

    def sweep(self, older_than_s: float) -> None:
        """Delete the metadata files that this object wrote so long ago and that no snapshot names."""
        table = find_table(self._context.catalog, self._topic.name)
        before = self._context.clock() - older_than_s
        old = {path for path, written in self._written.items() if written <= before}
        if table is None or not old:
            return
        with reading(table):
            for snapshot in table.metadata.snapshots:
                old.discard(snapshot.manifest_list)
                old -= {manifest.manifest_path for manifest in snapshot.manifests(table.io)}
        for path in old:
            with suppress(FileNotFoundError):
                table.io.delete(path)
            del self._written[path]

    def _follow_once(self, tail: Tail | None, on: bool, dropped: str) -> ShownTail | None:
        topic = self._topic
        # In this order: a load that is made meanwhile is seen now, or comes with the next call.
        table = self._table(on)
        if table is None:
            return None
        shown, history = _Shown.of(table), _History.read(topic, table, self._record)
        if head_of(table, LIVE) == self._broken:
            shown = None
        now, record = history.now, history.record
        self._record = record
        waiting = _Part(keeps=shown is not None and _continues(topic, now, shown))
        schema = record.schema if record is not None else 1
        after = shown.load if shown is not None and waiting.keeps else None
        layouts = TableLayouts(topic, table.metadata)
        for manifest, hours in history.waiting(topic, after):
            waiting.added += entries_of(topic, manifest, hours, layouts)
            schema = max(schema, manifest.schema)
        # The branch keeps the rows that main had until another program has changed them.
        keeps_main = waiting.keeps and _was_changed(table, record)
        own, there = self._choose_tail(table, shown, now.load + 1, tail, dropped)
        rows = _Part()
        if own is not None:
            rows.keeps = shown is not None and shown.attempt == own.attempt
            new = own.entries[shown.tail_files if shown is not None and rows.keeps else 0 :]
            rows.added = [layouts.ids(own.schema).mark(entry) for entry in new]
            now = replace(now, attempt=own.attempt, tail_files=len(own.entries))
            schema = max(schema, own.schema)
        elif there is not None and shown is not None:
            rows.keeps = True
            now = replace(now, attempt=there.attempt, tail_files=shown.tail_files)
        if shown is not None and replace(now, tail=shown.tail, waiting=shown.waiting) == shown:
            time = self._context.clock()
            lease_is_long = there and there.is_leased(time) and there.until - time > there.lease_s / 2
            if waiting.keeps and (own is None or lease_is_long) and table.properties.get(GC) == "false":
                return there
        if own is not None:
            until = self._context.clock() + own.lease_s
            ends = {str(partition): end for partition, end in own.ends.items()}
            there = ShownTail(load=own.load, attempt=own.attempt, ends=ends, until=until, lease_s=own.lease_s)
        properties = {TAIL: json.dumps(asdict(there)) if there is not None else "", ON: "true", GC: "false"}
        columns = missing_columns(topic, table, schema)
        layout = LayoutChange(specs=layouts.new_specs, orders=layouts.new_orders)
        try:
            made = _LiveCommit(table, shown, now, rows, waiting, keeps_main, columns, layout, properties)
        except Conflict:  # a manifest is gone
            self._broken = head_of(table, LIVE)
            raise
        try:
            made.make()
        except Conflict:
            self.refused += 1
            raise
        finally:
            self._written |= dict.fromkeys(made.paths, self._context.clock())
        self._context.progress("live followed")
        return there

    def _table(self, on: bool) -> Table | None:
        """Return the table if the branch is on or to be switched on, with a head of `main` to rely on."""
        table = find_table(self._context.catalog, self._topic.name)
        if not on and (table is None or not is_on(table)):
            return None
        if table is None:
            table = make_table(self._context.catalog, self._topic)
        return commit(table, TableChange()) if table.current_snapshot() is None else table

    def _choose_tail(
        self, table: Table, shown: _Shown | None, load: int, tail: Tail | None, dropped: str
    ) -> tuple[Tail | None, ShownTail | None]:
        """Return the given tail if the branch is to show it, and the tail that stays or that it continues."""
        there = _parsed(table.properties.get(TAIL), ShownTail)
        if there is not None and (shown is None or shown.attempt != there.attempt):
            there = None  # another program has changed the branch
        if there is not None and (there.load != load or there.attempt == dropped):
            there = None
        if tail is None or tail.load != load or not tail.entries:
            return None, there
        if there is None or there.attempt == tail.attempt:
            return tail, there
        return (None, there) if there.is_leased(self._context.clock()) else (tail, None)


@dataclass(frozen=True, slots=True)
class _History:
    """The state of a topic's loads and of its table's newest publication."""

    now: _Shown
    """State of a branch that is made from them, without a tail."""
    record: Publication | None
    editions: Mapping[int, int]

    @classmethod
    def read(cls, topic: Topic, table: Table, known: Publication | None = None) -> _History:
        """Read the history. `known` is a publication that need not be read again, if it is the newest."""
        newest, path = layout.newest_load(topic), table.properties.get(PATH)
        record = known if known is not None and known.sha256 == table.properties.get(SHA256) else None
        if record is None and path:
            record = layout.read_checked(topic.storage, Publication, path)
        editions = layout.newest_editions(topic)
        stated = [record.sha256 if record is not None else "", sorted(editions.items())]
        now = _Shown(
            main=head_of(table, MAIN_BRANCH) or 0,
            basis=hashlib.sha256(json.dumps(stated).encode()).hexdigest(),
            load=newest.load if newest is not None else 0,
            load_sha256=newest.sha256 if newest is not None else "",
        )
        return cls(now, record, editions)

    def is_shown_by(self, shown: _Shown) -> bool:
        """Return True if a head of the branch is up to date, whatever its tail is."""
        stated = (shown.main, shown.basis, shown.load, shown.load_sha256)
        return stated == (self.now.main, self.now.basis, self.now.load, self.now.load_sha256)

    def waiting(
        self, topic: Topic, after: int | None = None
    ) -> Iterator[tuple[LoadManifest, Collection[str]]]:
        """Yield each edition with rows that are not in `main`, and the hours of these rows.

        `after` skips the loads up to this one, whose rows the branch shows already. Rows that the newest
        publication knows count in the edition that it names, because `main` has the rest of that edition.
        """
        if after is None:
            hours: dict[tuple[int, int], set[str]] = {}
            for hour, loads in self.record.unpublished.items() if self.record is not None else ():
                for rows in loads:
                    hours.setdefault((rows.load, rows.edition), set()).add(hour)
            for (load, edition), of_load in sorted(hours.items()):
                yield layout.read_edition(topic, load, edition), of_load
            after = self.record.loads.load if self.record is not None else 0
        for first in layout.loads_after(topic, after):
            if first.load > self.now.load:
                return  # made meanwhile: the next call adds it
            edition = self.editions.get(first.load, 1)
            manifest = first if edition == 1 else layout.read_edition(topic, first.load, edition)
            yield manifest, manifest.rows_by_hour().keys()


def wrong_files(topic: Topic, table: Table) -> list[str] | None:
    """Return a line for each file that branch `live` lacks or has too much; None if the branch is behind.

    The files of a tail are not looked at. Raise MillraceError when a manifest of a load or of the table is
    missing.
    """
    shown, history = _Shown.of(table), _History.read(topic, table)
    if shown is None or not history.is_shown_by(shown):
        return None
    if _was_changed(table, history.record):
        return []  # `main` is reported
    there = Counter[str]()
    with reading(table):
        for number, manifest in enumerate(_manifests(table, LIVE)):
            if number >= shown.tail:
                there.update(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))
        expected = Counter(
            entry.data_file.file_path
            for manifest in _manifests(table, MAIN_BRANCH)
            for entry in manifest.fetch_manifest_entry(table.io)
        )
    layouts = TableLayouts(topic, table.metadata)
    for load, hours in history.waiting(topic):
        expected.update(entry.file_path for entry in entries_of(topic, load, hours, layouts))
    return [
        *(f"branch {LIVE} lacks {path}" for path in sorted((expected - there).elements())),
        *(f"branch {LIVE} has {path} too much" for path in sorted((there - expected).elements())),
    ]


def _manifests(table: Table, branch: str) -> list[ManifestFile]:
    """Return the manifests of a branch's head that name files."""
    head = table.metadata.snapshot_by_name(branch)
    manifests = head.manifests(table.io) if head is not None else []
    return [each for each in manifests if each.has_added_files() or each.has_existing_files()]


def _was_changed(table: Table, record: Publication | None) -> bool:
    try:
        check_table(table, record)
    except TableChanged:
        return True
    return False


def _continues(topic: Topic, now: _Shown, shown: _Shown) -> bool:
    """Return True if loads were added at most since the branch's head was made."""
    if shown.basis != now.basis or shown.load > now.load:
        return False
    return not shown.load or layout.read_load(topic, shown.load).sha256 == shown.load_sha256


class _LiveCommit(BranchCommit):
    """The commit of a new head of the branch."""

    branch = LIVE
    relies_on = (MAIN_BRANCH, LIVE)

    def __init__(
        self,
        table: Table,
        shown: _Shown | None,
        now: _Shown,
        tail: _Part,
        waiting: _Part,
        keeps_main: bool,
        columns: Schema | None,
        layout: LayoutChange,
        properties: Mapping[str, str],
    ) -> None:
        self._shown, self._next = shown, now
        self._tail, self._waiting, self._keeps_main = tail, waiting, keeps_main
        changed = {key: value for key, value in properties.items() if table.properties.get(key, "") != value}
        super().__init__(table, columns, layout, changed)

    def write(self) -> Sequence[ManifestFile]:
        shown = self._shown
        before = _manifests(self.table, LIVE) if shown is not None else []
        first, second = (shown.tail, shown.tail + shown.waiting) if shown is not None else (0, 0)
        tail = self._part(self._tail, before[:first])
        waiting = self._part(self._waiting, before[first:second])
        self._next = replace(self._next, tail=len(tail), waiting=len(waiting))
        main = before[second:] if self._keeps_main else _manifests(self.table, MAIN_BRANCH)
        return [*tail, *waiting, *main]

    def _part(self, part: _Part, before: Sequence[ManifestFile]) -> list[ManifestFile]:
        small, kept = self.merged(before) if part.keeps else ([], [])
        added = [self.entry(ManifestEntryStatus.ADDED, file) for file in part.added]
        return [*self.write_entries([*small, *added]), *kept]

    def summary(self, parent: Snapshot | None) -> Summary:
        shown = self._shown
        only_adds = (
            shown is not None
            and shown.main == self._next.main
            and self._waiting.keeps
            and (self._tail.keeps or not shown.attempt)
        )
        files = sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in self.manifests)
        rows = sum((m.added_rows_count or 0) + (m.existing_rows_count or 0) for m in self.manifests)
        totals = {"total-data-files": str(files), "total-records": str(rows)}
        return Summary(
            Operation.APPEND if only_adds else Operation.OVERWRITE,
            **{SHOWN: json.dumps(asdict(self._next)), **totals},
        )

    def retention(self, table: Table) -> Mapping[str, Any]:
        return {"min-snapshots-to-keep": 1, "max-snapshot-age-ms": _FOR_EVER, "max-ref-age-ms": _FOR_EVER}

    def forgets(self, table: Table) -> Sequence[int]:
        """Return the branch's snapshots but the newest, also those of a branch that was dropped."""
        return _removable(table)[: -(SNAPSHOTS - 1)]

    def asserts(self, table: Table) -> Collection[str]:
        return self.relies_on


def _removable(table: Table) -> list[int]:
    """Return the branch's snapshots, oldest first, except those that other branches and tags name."""
    named = {ref.snapshot_id for name, ref in table.metadata.refs.items() if name != LIVE}
    line = [each for each in table.metadata.snapshots if _is_live(each) and each.snapshot_id not in named]
    line.sort(key=lambda snapshot: snapshot.sequence_number or 0)
    return [snapshot.snapshot_id for snapshot in line]


def _is_live(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary[SHOWN] is not None

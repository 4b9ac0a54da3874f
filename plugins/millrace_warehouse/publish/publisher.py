"""Publish: add the rows that loads have written to an Iceberg table, by reference, in one commit.

    1  read the table and the manifest it names; check that they agree             table.py
    2  read the manifests of newer loads and editions, hour by hour                state.py
    3  find the hours that are due, and the auditor's verdicts on them             due.py
       check that the rows of complete hours are the rows that were judged         gate.py
       check the sequence numbers of these rows against their loads                closing.py
    4  list the loads' files; rewrite files from which a re-load removes rows      files.py, replace.py
    5  store the publication's manifest under a unique name
    6  make one commit: schema, files, properties that name the manifest           committer.py
    7  write the ledger and the table of hours                                     hours_table.py
       bring branch `live` up to date, if it is on                                 live.py

If another commit to `main` was faster, everything starts over with the new table. That table may already name
this run's manifest, if an answer was lost. A failed attempt leaves its manifest behind, without effect.
Copies no rows except in step 4, and starts no Spark. The caller provides the auditor.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from millrace.errors import MillraceError
from millrace.steps import Count
from millrace_audit.answer import LoadHour
from millrace_warehouse.context import Context
from millrace_warehouse.history import layout
from millrace_warehouse.history.erasures import stale_reason
from millrace_warehouse.history.hours import UNFILED, number_of
from millrace_warehouse.history.ledger import add_to_ledger
from millrace_warehouse.history.manifest import (
    HourChange,
    HourVerdict,
    LoadManifest,
    LoadRows,
    PreviousPublication,
    Publication,
)
from millrace_warehouse.history.schemas import pinned
from millrace_warehouse.publish.catalog import CatalogError, table_identifier
from millrace_warehouse.publish.closing import unclosed, unclosed_in_table
from millrace_warehouse.publish.committer import head_files
from millrace_warehouse.publish.due import choose, judge_late
from millrace_warehouse.publish.files import new_files
from millrace_warehouse.publish.gate import MOST_HOURS, Auditor, Judgement, TableRows, filed_by, refusal
from millrace_warehouse.publish.hours_table import bring_up_to_date
from millrace_warehouse.publish.layouts import TableLayouts
from millrace_warehouse.publish.live import follow
from millrace_warehouse.publish.rebuild import rebuild_table
from millrace_warehouse.publish.replace import take_out
from millrace_warehouse.publish.state import COMPLETE, UNKNOWN, PendingChange, TableState
from millrace_warehouse.publish.table import (
    PATH,
    commit_publication,
    has_moved,
    make_table,
    published_table,
    require_loads,
)
from millrace_warehouse.races import Conflict, Outrun, retried
from millrace_warehouse.requests import Publish

CATCH_UP = 1_000
"""Number of newer loads that causes a publication even if no hour changes, so that later runs need not read
them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingHour:
    """An hour that has rows and is not published."""

    hour: str
    rows: int
    verdict: HourVerdict | None
    """None when the auditor was not asked because no option named the hour."""
    rejected: int = 0
    """Messages of the hour that loads have set aside, as the auditor counts them."""
    incident: str = ""
    """Key of the hour's worst incident; empty for none."""
    loads: Sequence[LoadRows]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishResult:
    """Result of a run: its publication, or for a dry run the publication that it would make."""

    topic: str
    table: str
    """Name in the catalog, such as `millrace.PageView`."""
    published: bool
    """True when this run made a publication; False for a dry run, or when there was nothing to change."""
    publication: Publication | None
    """Newest publication, or for a dry run the publication that it would make; None before the first."""
    path: str = ""
    """Path of the publication's manifest from the warehouse's root."""
    snapshot_id: int | None = None
    metadata_location: str = ""
    changes: Sequence[HourChange] = ()
    """Changes by this run's publication; empty without one."""
    waiting: Sequence[WaitingHour] = ()
    """Hours with rows that stay unpublished, ascending, UNFILED last."""
    notes: Sequence[str] = ()
    """Remarks on a publication that was made."""


def publish_topic(context: Context, request: Publish, name: str, auditor: Auditor) -> PublishResult:
    """Bring the table to the newest load: late rows, editions, and the hours that are due, in one commit.

    Without changes and newer editions there is no commit. Raise MillraceError, with advice, when the table
    differs from its newest publication, or when the catalog does not answer.
    """
    topic = layout.Topic(context.storage, name)
    layout.check_topic(topic)
    require_loads(context.catalog, topic)
    return _Attempts(context, request, topic, auditor).publish()


class _Attempts:
    def __init__(self, context: Context, request: Publish, topic: layout.Topic, auditor: Auditor) -> None:
        self._context, self._request, self._topic, self._auditor = context, request, topic, auditor
        self._judgements: dict[str, Judgement] = {}
        newest = pinned(topic)
        self._time_field = "" if newest is None else newest.time_field
        self._editions = cache(self._read_edition)
        self._to_rebuild = request.rebuild
        self._read: Table | None = None
        """Table as this run read it last."""
        self._notes: Sequence[str] = ()
        self._made: set[str] = set()
        """Paths of the publications that this run tried to commit: the table may name any of them."""

    def publish(self) -> PublishResult:
        what = f"{self._topic} was not published"
        return retried(self._attempt, what, "let fewer runs publish at once, then run again")

    def _attempt(self) -> PublishResult:
        try:
            return self._publish_once()
        except (CatalogError, Outrun):
            raise
        except MillraceError as error:  # an erasure deletes the files of earlier snapshots at once
            if self._read is None or not has_moved(self._context.catalog, self._topic, self._read):
                raise
            raise Conflict(str(error)) from error

    def _publish_once(self) -> PublishResult:
        context, request, topic = self._context, self._request, self._topic
        self._judgements.clear()  # they may be older than the changes that this try reads below
        if self._to_rebuild:
            self._rebuild()
        table, before = published_table(context.catalog, topic)
        self._read = table
        context.progress("table read")
        if table is not None and before is not None and table.properties[PATH] in self._made:
            return self._finish(table, before)
        state = TableState.from_publication(before)
        self._follow(state)
        context.progress(f"loads read through {state.through.load}")
        choose(
            state,
            self._ask,
            partial(self._auditor.changes, topic.name),
            request.hours,
            request.proven,
            request.unproven_after_s,
            context.clock(),
        )
        self._follow(state)  # also the loads that were made before the auditor was asked
        while judge_late(state, self._ask):
            self._follow(state)  # again: the answer counts rows that this run had not read
        self._hold_back(table, state)
        context.progress("hours judged")
        if not state.changes and not _has_news(before, state):
            return self._unchanged(table, before, state)
        return self._commit(table, before, state)

    def _unchanged(self, table: Table | None, before: Publication | None, state: TableState) -> PublishResult:
        """Return a result without a commit, or after a rebuild. Finish the work of an earlier run."""
        rebuild = self._request.rebuild
        if table is not None and before is not None and not self._request.dry_run:
            bring_up_to_date(self._context.catalog, self._topic, table, before)
        changes = before.changes if rebuild and before is not None else ()
        return self._result(table, before, state.unpublished, published=rebuild, changes=changes)

    def _rebuild(self) -> None:
        """Rebuild the table once. Rows of newer loads are then published as usual."""
        if self._request.dry_run:
            raise MillraceError("a rebuild looks at every file: leave out --dry-run, or --rebuild")
        table, publication = rebuild_table(self._context, self._topic, self._request.run_id)
        self._to_rebuild = False
        self._settle(table, publication)
        self._context.progress("table made again")

    def _ask(self, hours: Iterable[str]) -> dict[str, HourVerdict]:
        """Map each hour to its verdict. Ask about at most MOST_HOURS new hours in one question."""
        asked = dict.fromkeys(hours)
        if UNFILED in asked:
            self._judgements[UNFILED] = Judgement(verdict=UNKNOWN)
        new = sorted(asked.keys() - self._judgements.keys())
        for _, together in groupby(new, lambda hour: number_of(hour) // MOST_HOURS):
            self._judgements |= self._judge([*together])
        return {hour: self._judgements[hour].verdict for hour in asked}

    def _judge(self, hours: Sequence[str]) -> Mapping[str, Judgement]:
        judgements = self._auditor.judge(self._topic.name, hours)
        if not self._time_field:
            return judgements
        return {hour: filed_by(self._time_field, judged) for hour, judged in judgements.items()}

    def _hold_back(self, table: Table | None, state: TableState) -> None:
        """Change the verdict of each complete hour whose rows are not the judged rows."""
        for hour, verdict in self._refused(table, state).items():
            change = state.changes[hour]
            judged = self._judgements.get(hour)  # None for an hour that only lost rows to an erasure
            self._judgements[hour] = Judgement(verdict=verdict, rejected=judged.rejected if judged else 0)
            if change.kind == "verdict" and not state.is_complete(number_of(hour)):
                del state.changes[hour]  # the hour stays as it is
            elif change.kind != "first" or hour in self._request.hours:
                change.verdict = verdict
            elif loads := state.changes.pop(hour).loads:
                state.unpublished[hour] = loads

    def _refused(self, table: Table | None, state: TableState) -> dict[str, HourVerdict]:
        """Map each hour that is not complete after all to the verdict in place of `complete`."""
        complete = {
            hour: change
            for hour, change in state.changes.items()
            if change.verdict is not None and change.verdict.verdict == COMPLETE
        }
        judged = {
            hour: change
            for hour, change in complete.items()
            if change.kind != "erase" or not state.is_complete(number_of(hour))
        }
        files = head_files(table, [*judged]) if table is not None and judged else {}
        refused: dict[str, HourVerdict] = {}
        closing: dict[str, list[str]] = {}
        for hour, change in judged.items():
            there = sum(file.record_count for file in files.get(hour, ()))
            held = self._held(state, hour, change, there)
            if (verdict := self._refusal(hour, held)) is not None:
                refused[hour] = verdict
            elif table is not None and there and not state.is_complete(number_of(hour)):
                new = {rows.load for rows in change.loads}
                old = [
                    LoadRows(load=each.load, edition=each.edition, rows=each.rows)
                    for each in held.loads.values()
                    if each.load not in new and each.rows
                ]
                problems = unclosed_in_table(self._topic, table, hour, old, state.replaced)
                closing |= {hour: problems} if problems else {}
        added = {hour: change.loads for hour, change in complete.items() if hour not in refused}
        for hour, problems in unclosed(self._topic, added).items():
            closing.setdefault(hour, []).extend(problems)
        return refused | {
            hour: HourVerdict(verdict="incomplete", reasons=problems) for hour, problems in closing.items()
        }

    def _held(self, state: TableState, hour: str, change: PendingChange, there: int) -> TableRows:
        """Return the rows of an hour that the table will have, given its present number `there`."""
        editions = {rows.load: rows.edition for rows in change.loads}
        for judged in self._judgements[hour].loads:
            if judged.load <= state.through.load:
                editions.setdefault(judged.load, state.through.editions.get(str(judged.load), 1))
        loads = {}
        for load, edition in sorted(editions.items()):
            sha256, rows = self._editions(load, edition)
            loads[load] = LoadHour(load, edition, sha256, rows.get(hour, 0))
        return TableRows(loads, there - change.removed + change.added)

    def _read_edition(self, load: int, edition: int) -> tuple[str, Mapping[str, int]]:
        """Return the hash of an edition's manifest, and its rows by hour. Cached for thousands of hours."""
        manifest = layout.read_edition(self._topic, load, edition)
        return manifest.sha256, manifest.rows_by_hour()

    def _refusal(self, hour: str, held: TableRows) -> HourVerdict | None:
        """Return the verdict to use if the auditor's verdict is not valid for these rows, else None.

        The rows no longer change, so the auditor is asked once more: it may have counted the newest rows
        meanwhile. Raise Conflict if it has also counted a load or edition that was made since this run read
        the newest ones.
        """
        topic = self._topic.name
        if refusal(topic, self._judgements[hour].loads, held) is None:
            return None
        self._judgements[hour] = judged = self._judge([hour])[hour]
        newer = [
            each
            for each in judged.loads
            if each.load not in held.loads or each.edition > held.loads[each.load].edition
        ]
        if any(self._exists(each) for each in newer):
            raise Conflict("a load was made while the auditor was asked")
        return judged.verdict if judged.verdict.verdict != COMPLETE else refusal(topic, judged.loads, held)

    def _exists(self, counted: LoadHour) -> bool:
        """Return True if the folder has a load's edition that the auditor has counted."""
        try:
            return self._editions(counted.load, counted.edition)[0] == counted.sha256
        except MillraceError:  # it is gone
            return False

    def _follow(self, state: TableState) -> None:
        topic, after = self._topic, state.through.load
        if after and layout.read_load(topic, after).sha256 != state.through.sha256:
            path = layout.load_path(topic.name, after)
            raise MillraceError(
                f"{path} is not the load whose rows were published, it was recreated: restore the published"
                " one from a copy"
            )
        # In this order: an edition belongs to a load that exists.
        editions = layout.newest_editions(topic)
        numbers = layout.load_numbers(topic, after)
        loads = self._counted(layout.loads_after(topic, after), len(numbers)) if numbers else ()
        for load, edition in editions.items():
            if edition > state.through.editions.get(str(load), 1):
                why = stale_reason(topic, layout.read_edition(topic, load, edition))
                if why is not None:
                    raise MillraceError(why)
        state.follow(loads, editions, partial(layout.read_edition, topic))

    def _counted(self, loads: Iterator[LoadManifest], total: int) -> Iterator[LoadManifest]:
        count = Count(self._context.progress, "loads read", total, "rows")
        for load in loads:
            yield load
            count.add(records=load.rows)

    def _commit(self, table: Table | None, before: Publication | None, state: TableState) -> PublishResult:
        context, request, topic = self._context, self._request, self._topic
        attempt = uuid.uuid4().hex[:16]
        layouts = TableLayouts(topic, table.metadata if table is not None else None)
        added, schema = new_files(topic, state.changes, layouts, context.progress)
        state.schema = max(schema, state.schema, 1)
        removed = {hour: change.removed for hour, change in state.changes.items() if change.removed}
        publication = self._new_publication(table, before, state, attempt)
        if request.dry_run:
            return self._result(table, publication, state.unpublished, changes=publication.changes)
        if table is None:
            table = make_table(context.catalog, topic)
            context.progress("table made")
        old: list[DataFile] = []
        if removed:
            old, rest = take_out(topic, table, state.replaced, removed, context.progress)
            added += rest
            context.progress("rows of earlier editions taken out")
        self._made.add(layout.publication_path(topic.name, publication.number, attempt))
        committed = commit_publication(context, table, publication, added, old, layouts)
        return self._finish(committed, publication)

    def _new_publication(
        self, table: Table | None, before: Publication | None, state: TableState, attempt: str
    ) -> Publication:
        previous = None
        if table is not None and before is not None:
            previous = PreviousPublication(path=table.properties[PATH], sha256=before.sha256)
        changes = state.settled()
        counted = {change.hour: self._judgements.get(change.hour) for change in changes}
        rejected = {hour: judged.rejected for hour, judged in counted.items() if judged and judged.rejected}
        return state.to_publication(
            self._topic.name, attempt, self._request.run_id, previous, changes, rejected
        )

    def _settle(self, table: Table, publication: Publication) -> None:
        """Do the steps after a commit. If this run dies before them, the next run does them."""
        context = self._context
        add_to_ledger(context.storage, table.properties[PATH], publication)
        context.progress("recorded")
        bring_up_to_date(context.catalog, self._topic, table, publication)
        context.progress("table of hours written")
        self._notes = follow(context, self._topic)

    def _finish(self, table: Table, publication: Publication) -> PublishResult:
        self._settle(table, publication)
        return self._result(
            table, publication, publication.unpublished, published=True, changes=publication.changes
        )

    def _result(
        self,
        table: Table | None,
        publication: Publication | None,
        unpublished: Mapping[str, Sequence[LoadRows]],
        *,
        published: bool = False,
        changes: Sequence[HourChange] = (),
    ) -> PublishResult:
        head = table.current_snapshot() if table is not None else None
        return PublishResult(
            topic=self._topic.name,
            table=".".join(table_identifier(self._topic.name)),
            published=published,
            publication=publication,
            path=table.properties.get(PATH, "") if table is not None else "",
            snapshot_id=head.snapshot_id if head is not None else None,
            metadata_location=table.metadata_location if table is not None else "",
            changes=changes,
            waiting=[
                WaitingHour(
                    hour=hour,
                    rows=sum(load.rows for load in loads),
                    verdict=self._judgements[hour].verdict if hour in self._judgements else None,
                    rejected=self._judgements[hour].rejected if hour in self._judgements else 0,
                    incident=self._judgements[hour].incident if hour in self._judgements else "",
                    loads=loads,
                )
                # "none" sorts after every year.
                for hour, loads in sorted(unpublished.items())
            ],
            notes=self._notes,
        )


def _has_news(before: Publication | None, state: TableState) -> bool:
    """Return True if a publication is due even if no hour changes: there are many newer loads, or a known
    load has a newer edition. Branch `live` shows waiting rows in the edition that the publication names.
    """
    known = TableState.from_publication(before).through
    return state.through.load - known.load >= CATCH_UP or any(
        int(load) <= known.load and edition != known.editions.get(load, 1)
        for load, edition in state.through.editions.items()
    )

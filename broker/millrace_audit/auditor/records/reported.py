"""Hellos and reports of one cluster's producers, and the check of their writers.

The first hello of an instance fixes its names. A report counts if it is the next one and its key fits the
seal of the report before. The writer of a report further ahead cannot be checked: such a report shows only
that one is missing.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy import delete, func, insert, select, text
from sqlalchemy.orm import Session

from millrace_audit.auditor import store
from millrace_audit.auditor.records.batch import (
    Changes,
    Entry,
    Place,
    Producers,
    RejectedRecords,
    names_hash,
    storable,
)
from millrace_audit.auditor.records.decisions import is_accepted, is_disowned, judge_windows_of, owes_from
from millrace_audit.auditor.store import HeldOpenRow, ProducerRow
from millrace_audit.reports.counts import WINDOW_MS, CountKey, is_of_this_world, window_start
from millrace_audit.reports.messages import FOR_EVER, MOST_OPEN_WINDOWS, MOST_WINDOWS, Hello, Report
from millrace_audit.reports.seals import seal_of

MOST_OPEN = 10_000
"""Most open instances of a topic and origin; records of further instances are rejected."""
MOST_MISSING = 1000
"""Most missing reports before a report of an instance; a report further ahead is rejected."""
MOST_RANGES = 50_000
"""Most ranges in all windows of a report, more than twice what producers send."""
_HOLD = text(
    'INSERT INTO held_open (producer, "window", topic) VALUES (:producer, :window, :topic)'
    " ON CONFLICT DO NOTHING"
).execution_options(preserve_rowcount=True)


def _debt(row: ProducerRow) -> tuple[int, bool]:
    """Return the time from which a producer can have unreported events, and whether it has sent no report."""
    return owes_from(row), row.next_report == 0


class Reported:
    """Hellos and reports of one cluster's producers."""

    def __init__(
        self, session: Session, place: Place, changes: Changes, rejected_records: RejectedRecords
    ) -> None:
        self._session, self._place, self._changes = session, place, changes
        self._rejected_records = rejected_records
        self._producers = Producers(session)
        self._links: set[tuple[str, int]] = set()  # (topic, producer) of the announced topics
        self._held: defaultdict[int, set[tuple[int, str]]] = defaultdict(set)
        """Producer -> known (window, topic) among its rows in `held_open`."""
        self._open: dict[str, int] = {}
        # True if a hello may have been lost: while windows of that time are kept.
        gaps = select(store.LostReportsRow).where(store.LostReportsRow.origin == place.tier)
        self._has_gap = session.scalar(gaps.limit(1)) is not None

    def take_all(self, entries: Sequence[Entry]) -> None:
        """Apply hellos and reports in their order."""
        numbers = [h.record.instance for h in entries if isinstance(h.record, Hello | Report)]
        rows = self._producers.prepare(self._place.tier, numbers)
        link = store.ProducerTopicRow
        for some in store.slices([row.producer for row in rows if row.announced]):
            links = select(link.topic, link.producer).where(link.producer.in_(some))
            self._links.update((topic, producer) for topic, producer in self._session.execute(links))
        accepted = self._accepted([row for row in rows if row.announced])
        before = {row.producer: _debt(row) for row in accepted}
        for entry in entries:
            self._take(entry)
        self._judge_again(accepted, before)

    def _accepted(self, rows: Sequence[ProducerRow]) -> list[ProducerRow]:
        """Return the producers that an operator has accepted and not disowned."""
        accepted: set[int] = set()
        for some in store.slices([row.producer for row in rows]):
            here = ProducerRow.producer.in_(some), is_accepted(), ~is_disowned()
            accepted.update(self._session.scalars(select(ProducerRow.producer).where(*here)))
        return [row for row in rows if row.producer in accepted]

    def _judge_again(self, accepted: Sequence[ProducerRow], before: Mapping[int, tuple[int, bool]]) -> None:
        """Have windows judged again where an acceptance has ended or concerns other windows than before."""
        if not accepted:
            return
        still = {row.producer for row in self._accepted(accepted)}
        changed = [row for row in accepted if row.producer not in still or _debt(row) != before[row.producer]]
        starts = {row.producer: min(before[row.producer][0], owes_from(row)) for row in changed}
        judge_windows_of(self._session, starts, final_only=True)

    def _take(self, entry: Entry) -> None:
        record = entry.record
        assert isinstance(record, Hello | Report)
        kind = type(record).__name__
        row = self._producers.announced(self._place.tier, record.instance)
        if record.cluster not in ("", self._place.tier):  # an empty name is this cluster's
            cause = (
                f"it says cluster {storable(record.cluster)[:100]} and speaks in that of {self._place.tier}"
            )
        elif row is not None and row.names != names_hash(record.server, record.service):
            cause = "it contradicts the first hello of its instance"
        elif isinstance(record, Hello):
            cause = self._hello(row, record, entry.at)
        elif any(news.window % WINDOW_MS for news in record.windows):
            cause = "a window that does not begin with ten minutes of the clock"
        elif len(record.windows) > MOST_WINDOWS:
            cause = f"a report of more than {MOST_WINDOWS} windows"
        elif sum(w.acknowledged.range_count + w.failed.range_count for w in record.windows) > MOST_RANGES:
            cause = f"a report of more than {MOST_RANGES} ranges"
        else:
            cause = self._report(row, record, entry)
        if cause:
            self._rejected_records.add(entry, kind, cause)

    def _hello(self, row: ProducerRow | None, hello: Hello, at: int) -> str:
        if row is not None and row.done:
            return "its instance has ended"
        if row is not None and row.seal != hello.seal and not row.missing:
            return "it does not have the instance's seal"
        if row is None:  # even with too many instances: else others could use its names
            row = self._announce(hello, at)
            row.closed_through = hello.closed_through
        row.heard_at = max(row.heard_at, hello.time)
        if not self._may_join(row, hello.topic, at):
            return f"more than {MOST_OPEN} instances are open"
        self._join(row, hello.topic)
        return ""

    def _announce(self, word: Hello | Report, at: int) -> ProducerRow:
        key = CountKey(word.server, word.service, word.instance, 0)
        row = self._producers.get_all(self._place.tier, [key])[key]
        row.announced, row.hello_at, row.seal, row.first_at = True, at, word.seal, word.time
        unnamed = self._producers.unnamed(self._place.tier, word.instance)
        if unnamed is not None:  # events of the instance were counted before its hello
            row.counted |= unnamed.counted
            row.first_window = min(row.first_window, unnamed.first_window)
            row.last_window = max(row.last_window, unnamed.last_window)
        return row

    def _may_join(self, row: ProducerRow | None, topic: str, at: int) -> bool:
        """Return True if the topic may have one more open instance; if not, note a gap from `at` on."""
        if row is not None and (topic, row.producer) in self._links:
            return True
        if self._open.get(topic, MOST_OPEN) >= MOST_OPEN:  # some instances may have ended
            link = store.ProducerTopicRow
            known = (
                select(func.count())
                .select_from(link)
                .join(ProducerRow, ProducerRow.producer == link.producer)
                .where(link.topic == topic, ProducerRow.origin == self._place.tier)
                .where(~ProducerRow.done, ~is_accepted())
            )
            self._open[topic] = self._session.scalar(known) or 0
        if self._open[topic] < MOST_OPEN:
            return True
        gap = store.LostReportsRow
        crowd = (gap.origin == self._place.tier, gap.topic == topic, gap.to.is_(None))
        if self._session.scalar(select(gap).where(*crowd)) is None:
            self._session.merge(gap(origin=self._place.tier, topic=topic, at=at))
            self._session.flush()
        self._changes.topic(topic)
        return False

    def _join(self, row: ProducerRow, topic: str) -> None:
        self._changes.topic(topic)
        if (topic, row.producer) not in self._links:
            self._links.add((topic, row.producer))
            self._open[topic] += 1
            self._session.execute(
                insert(store.ProducerTopicRow), [{"topic": topic, "producer": row.producer}]
            )

    def _report(self, row: ProducerRow | None, report: Report, entry: Entry) -> str:
        digest = hashlib.blake2b(entry.value, digest_size=16).digest()
        if row is None:
            if not self._has_gap:
                return "its instance has not said hello"
            row = self._announce(report, 0)  # its hello was lost in a gap: nothing is known of its place
            row.first_report = row.next_report = report.number
        elif report.number < row.next_report:
            repeated = report.number == row.next_report - 1 and digest == row.last_report
            return "" if repeated else "another report with its number has come before"
        elif row.done:
            return "its instance has ended"
        elif report.number > row.next_report + MOST_MISSING:
            return f"it is more than {MOST_MISSING} reports ahead"
        elif report.number > row.next_report:
            row.missing = row.missing or [[row.next_report, report.number - 1]]
            return ""
        elif seal_of(report.key) != row.seal:
            return "its key does not fit the seal of what was said before"
        if self._held_open(row, report) > MOST_OPEN_WINDOWS:
            row.missing = [[report.number, report.number]]
            return f"more than {MOST_OPEN_WINDOWS} windows of its instance are open"
        row.missing = []  # reports come in order: one ahead was forged
        promised, row.closed_through = row.closed_through, report.closed_through
        row.next_report, row.seal, row.last_report = report.number + 1, report.seal, digest
        row.heard_at = max(row.heard_at, report.time)
        row.done = row.closed_through == FOR_EVER
        for news in report.windows:
            if not is_of_this_world(news.window):
                self._rejected_records.add(entry, "Report", "a time that no producer may send")
            elif self._may_join(row, news.topic, entry.at):
                self._join(row, news.topic)
                change = self._changes.window(news.topic, news.window)
                change.reports.append((row.producer, news, report.fingerprinted))
                row.extend_to(news.window)
                change.positions["reported", self._place.tier] = entry.at
                change.positions["origins", self._place.tier] = 1
                change.late |= promised >= news.window + WINDOW_MS  # the instance had closed it
            else:
                row.first_report = row.next_report  # earlier reports are not all known
                self._rejected_records.add(entry, "Report", f"more than {MOST_OPEN} instances are open")
        return ""

    def _held_open(self, row: ProducerRow, report: Report) -> int:
        """Note which windows the instance opens and closes with a report; return how many it holds open."""
        connection = self._session.connection()  # a session would write all its rows first
        known = self._held[row.producer]
        opened = {
            (news.window, news.topic)
            for news in report.windows
            if news.window + WINDOW_MS > report.closed_through and is_of_this_world(news.window)
        } - known
        if opened:
            rows = [{"producer": row.producer, "window": w, "topic": topic} for w, topic in opened]
            row.held_open += connection.execute(_HOLD, rows).rowcount
            known |= opened
        if row.held_open and report.closed_through > row.closed_through:
            closed = window_start(max(report.closed_through, 0))
            here = (HeldOpenRow.producer == row.producer, HeldOpenRow.window < closed)
            row.held_open -= connection.execute(delete(HeldOpenRow).where(*here)).rowcount
            self._held[row.producer] = {held for held in known if held[0] >= closed}
        return row.held_open

"""Facts about a topic's loads beside their counts: lost ones, rejected messages, the state of the table.

Reads them from the database, and states each in a sentence. `topic_view` and `verdict` draw the conclusions
for a window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from millrace_audit.answer import Verdict, iso
from millrace_audit.auditor.circumstances import Rejected
from millrace_audit.auditor.store import (
    AcceptanceRow,
    LoadHourRow,
    LoadRow,
    RejectedRow,
    WarehouseStateRow,
    slices,
)
from millrace_audit.reports.counts import HOUR_MS
from millrace_audit.reports.messages import FOR_EVER, NOTHING

TABLE_PATIENCE_MS = 15 * 60_000
"""Time for which a table may be away without doubt: a catalog is restarted now and then."""


@dataclass(slots=True)
class LoadFacts:
    """Facts about the loads and the table of one topic."""

    topic: str
    state: WarehouseStateRow | None = None
    spans: Sequence[RejectedRow] = ()
    """Rejected messages whose window is not known."""
    accepted: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """(load, edition) -> reason for which an operator gives up its rejected messages."""
    lost: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """Hour -> (load, rows) of the lost loads."""
    lost_somewhere: int | None = None
    """The first lost load whose hours are not known."""
    others: frozenset[int] = frozenset()
    """Hours with rows of editions for which the warehouse has others."""
    unkeyed_from: int = NOTHING
    """Windows before this time are in loads that reported no rows without a header."""

    def reasons(self, window: int, now: int, *, is_published: bool) -> Iterator[tuple[Verdict, str]]:
        """Yield the verdicts on a window that follow from its loads and its table, each with its sentence."""
        hour = window - window % HOUR_MS
        for load, rows in self.lost.get(hour, ()):
            yield Verdict.INCOMPLETE, self._gone(f"load {load} was counted with {rows} rows and is gone")
        if self.lost_somewhere is not None:
            text = f"load {self.lost_somewhere} was counted, in hours that are not known, and is gone"
            yield Verdict.UNKNOWN, self._gone(text)
        if hour in self.others:
            text = "the warehouse has other editions of the hour's loads than were counted"
            again = f"`millrace reload {self.topic} --hour HOUR --reason TEXT`"
            yield Verdict.UNKNOWN, f"{text}: restore a newer copy, or run {again}"
        for span in self.spans_over(window):
            yield self.of_rejected(self.rejected(span))
        if is_published and self.is_table_gone(now):
            assert self.state is not None
            why = self.state.table_trouble or "it is not in the catalog"
            since = iso(self.state.table_gone_since)
            text = f"the published table cannot be counted since {since} ({why})"
            yield Verdict.UNKNOWN, f"{text}: run `millrace verify WAREHOUSE --topic {self.topic}`"

    def spans_over(self, window: int) -> Iterator[RejectedRow]:
        return (span for span in self.spans if span.window <= window <= span.last)

    def is_table_gone(self, now: int) -> bool:
        return self.state is not None and now - self.state.table_gone_since >= TABLE_PATIENCE_MS

    def _gone(self, text: str) -> str:
        newest = "" if self.state is None else self.state.newest_load
        return (
            f"{text}: the warehouse's newest load is {newest}; restore a newer copy, or load again and"
            f" replace: `millrace audit {self.topic} --replace-loads --reason TEXT`"
        )

    def rejected(self, row: RejectedRow) -> Rejected:
        why = self.accepted.get((row.load, row.edition))
        return Rejected(row.load, row.messages, row.keyed, row.reason, why)

    def of_rejected(self, rejected: Rejected) -> tuple[Verdict, str]:
        """Verdict on a window with messages that a load set aside, and its sentence."""
        text = f"load {rejected.load} rejected {rejected.messages} messages ({rejected.reason})"
        if rejected.accepted is not None:
            return Verdict.CARRIED, f"{text}; accepted: {rejected.accepted}"
        again = f"`millrace reload {self.topic} --loads {rejected.load} --reason TEXT`"
        give_up = f"`millrace audit {self.topic} --accept-rejected {rejected.load} --reason TEXT`"
        return Verdict.INCOMPLETE, f"{text}: once they can be decoded, {again}; to give them up, {give_up}"


def load_facts(
    session: Session, topics: Sequence[str], unkeyed_from: Mapping[str, int]
) -> dict[str, LoadFacts]:
    """The facts of each topic; read for many of them at once."""
    found = {topic: LoadFacts(topic, unkeyed_from=unkeyed_from.get(topic, NOTHING)) for topic in topics}
    for some in slices(topics):
        for state in session.scalars(select(WarehouseStateRow).where(WarehouseStateRow.topic.in_(some))):
            found[state.topic].state = state
            _add_lost(session, state, found[state.topic])
        spans: defaultdict[str, list[RejectedRow]] = defaultdict(list)
        for span in session.scalars(
            select(RejectedRow).where(RejectedRow.is_span, RejectedRow.topic.in_(some))
        ):
            spans[span.topic].append(span)
        accepted: defaultdict[str, dict[tuple[int, int], str]] = defaultdict(dict)
        decisions = select(AcceptanceRow).where(AcceptanceRow.topic.in_(some))
        for row in session.scalars(decisions.order_by(AcceptanceRow.number)):
            accepted[row.topic][row.load, row.edition] = row.reason
        for topic in some:
            found[topic].spans, found[topic].accepted = spans[topic], accepted[topic]
    return found


def _add_lost(session: Session, state: WarehouseStateRow, facts: LoadFacts) -> None:
    table = LoadHourRow
    if state.lost_from != FOR_EVER:
        lost: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        columns = select(table.hour, table.load, table.rows).order_by(table.load)
        gone = columns.where(table.topic == state.topic, table.load >= state.lost_from, table.rows > 0)
        for hour, load, rows in session.execute(gone):
            lost[hour].append((load, rows))
        facts.lost = lost
        unknown = (LoadRow.topic == state.topic, LoadRow.load >= state.lost_from, ~LoadRow.whole)
        facts.lost_somewhere = session.scalar(select(func.min(LoadRow.load)).where(*unknown))
    if state.other_editions:
        hours = select(table.hour).where(table.topic == state.topic, table.load.in_(state.other_editions))
        facts.others = frozenset(session.scalars(hours))


def rejected_in(session: Session, facts: LoadFacts, window: int) -> list[Rejected]:
    """The messages of one window that loads set aside."""
    table = RejectedRow
    here = (table.topic == facts.topic, table.window == window, ~table.is_span)
    return [facts.rejected(row) for row in session.scalars(select(table).where(*here).order_by(table.load))]


def erased_in(session: Session, topic: str, window: int) -> int:
    """Rows without a header that were erased from the window's hour, or from no hour."""
    table = LoadHourRow
    hours = (window - window % HOUR_MS, NOTHING)
    here = (table.topic == topic, table.hour.in_(hours))
    return int(session.scalar(select(func.sum(table.erased)).where(*here)) or 0)

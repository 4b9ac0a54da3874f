"""Facts about a topic's loads beside their counts: lost loads, rejected messages, the state of the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import and_, func, select
from sqlalchemy.orm import Session

from millrace_audit.auditor.store import (
    DecisionRow,
    LoadHourRow,
    LoadRow,
    RejectedRow,
    WarehouseStateRow,
    slices,
)
from millrace_audit.auditor.verdict.facts import LostLoad, Rejected, TableTrouble, UncountedRows
from millrace_audit.reports.counts import HOUR_MS
from millrace_audit.reports.messages import ACCEPT_REJECTED, FOR_EVER, NOTHING

TABLE_PATIENCE_MS = 15 * 60_000
"""Time for which a table may be unavailable without effect, such as during a restart of its catalog."""


@dataclass(slots=True)
class LoadFacts:
    """Facts about the loads and the table of one topic."""

    topic: str
    state: WarehouseStateRow | None = None
    spans: Sequence[RejectedRow] = ()
    """Rejected messages whose windows are not known."""
    accepted: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """(load, edition) -> operator's reason for giving its rejected messages up."""
    lost: Mapping[int, Sequence[LostLoad]] = field(default_factory=dict)
    """Hour -> lost loads with rows in it."""
    lost_somewhere: Sequence[LostLoad] = ()
    """The first lost load whose hours are not known."""
    others: frozenset[int] = frozenset()
    """Hours with rows of counted editions that differ from the warehouse's."""
    unkeyed_from: int = NOTHING
    """Windows before this time are in loads that reported no rows without a header."""

    def table_troubles(self, now: int) -> list[TableTrouble]:
        if self.state is None or now - self.state.table_gone_since < TABLE_PATIENCE_MS:
            return []
        why = self.state.table_trouble or "it is not in the catalog"
        return [TableTrouble(self.state.table_gone_since, why)]

    def spans_over(self, window: int) -> list[Rejected]:
        return [self._rejected(span) for span in self.spans if span.window <= window <= span.last]

    def rejected_in(self, session: Session, window: int) -> Iterator[Rejected]:
        """Return the messages that loads set aside and that are surely of this window."""
        table = RejectedRow
        here = (table.topic == self.topic, table.window == window, ~table.is_span)
        return map(self._rejected, session.scalars(select(table).where(*here).order_by(table.load)))

    def erased_in(self, session: Session, window: int) -> int:
        """Count the rows without a header that were erased from the window's hour, or from no hour."""
        table = LoadHourRow
        hours = (window - window % HOUR_MS, NOTHING)
        here = (table.topic == self.topic, table.hour.in_(hours))
        return int(session.scalar(select(func.sum(table.erased)).where(*here)) or 0)

    def uncounted_in(self, session: Session, window: int) -> list[UncountedRows]:
        """Return the uncounted rows without a header of the window's hour, or of no known hour."""
        table = LoadHourRow
        hours = (window - window % HOUR_MS, NOTHING)
        here = (table.topic == self.topic, table.hour.in_(hours), table.uncounted > 0)
        sums = select(table.load, func.sum(table.uncounted)).where(*here).group_by(table.load)
        return [UncountedRows(load, int(rows)) for load, rows in session.execute(sums.order_by(table.load))]

    def _rejected(self, row: RejectedRow) -> Rejected:
        accepted = self.accepted.get((row.load, row.edition))
        return Rejected(row.load, row.messages, row.keyed, row.reason, accepted, row.is_span)


def load_facts(
    session: Session, topics: Sequence[str], unkeyed_from: Mapping[str, int]
) -> dict[str, LoadFacts]:
    """Return the facts of each topic, read for many topics at once."""
    found = {topic: LoadFacts(topic, unkeyed_from=unkeyed_from.get(topic, NOTHING)) for topic in topics}
    for some in slices(topics):
        for state in session.scalars(select(WarehouseStateRow).where(WarehouseStateRow.topic.in_(some))):
            found[state.topic].state = state
            _add_lost(session, state, found[state.topic])
        spans: defaultdict[str, list[RejectedRow]] = defaultdict(list)
        rows = select(RejectedRow).where(RejectedRow.is_span, RejectedRow.topic.in_(some))
        for span in session.scalars(rows):
            spans[span.topic].append(span)
        accepted: defaultdict[str, dict[tuple[int, int], str]] = defaultdict(dict)
        loads, same = LoadRow, [DecisionRow.topic == LoadRow.topic, DecisionRow.load == LoadRow.load]
        same += [DecisionRow.edition == loads.edition, DecisionRow.sha256 == loads.sha256]
        decisions = select(DecisionRow).join(loads, and_(*same)).where(DecisionRow.topic.in_(some))
        of_rejected = decisions.where(DecisionRow.kind == ACCEPT_REJECTED)
        for row in session.scalars(of_rejected.order_by(DecisionRow.time, DecisionRow.id)):
            accepted[row.topic or ""][row.load, row.edition] = row.reason
        for topic in some:
            found[topic].spans, found[topic].accepted = spans[topic], accepted[topic]
    return found


def _add_lost(session: Session, state: WarehouseStateRow, facts: LoadFacts) -> None:
    table = LoadHourRow
    if state.lost_from != FOR_EVER:
        lost: defaultdict[int, list[LostLoad]] = defaultdict(list)
        columns = select(table.hour, table.load, table.rows).order_by(table.load)
        gone = columns.where(table.topic == state.topic, table.load >= state.lost_from, table.rows > 0)
        for hour, load, rows in session.execute(gone):
            lost[hour].append(LostLoad(load, rows, state.newest_load))
        facts.lost = lost
        unknown = (LoadRow.topic == state.topic, LoadRow.load >= state.lost_from, ~LoadRow.whole)
        first = session.scalar(select(func.min(LoadRow.load)).where(*unknown))
        facts.lost_somewhere = [] if first is None else [LostLoad(first, None, state.newest_load)]
    if state.other_editions:
        hours = select(table.hour).where(table.topic == state.topic, table.load.in_(state.other_editions))
        facts.others = frozenset(session.scalars(hours))
